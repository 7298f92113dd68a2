/* bench_netns.c: makes the hosts of `bench comm --netns` and starts this program on them. All that
 * needs root is in scripts/netns.sh, which is compiled in: it is written to a file of its own,
 * which makes the hosts, runs the ranks through mpiexec and takes the hosts down, whatever ends it
 * or this process. */
#include "cli/bench_netns_int.h"
#include "base/file.h"
#include "cli/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK "LOOPLINE_NETNS" /* set for the ranks */
enum { CANNOT = 77 };         /* the script's status where it cannot do it here */

static const unsigned char script[] = {
#include "netns_script.inc"
};

ll_err ll_netns_rate(const char *text, double *bits)
{
    char *end = NULL;
    double v = strtod(text, &end);
    static const char *const units[] = {"bit", "kbit", "mbit", "gbit"};
    static const double factors[] = {1, 1e3, 1e6, 1e9};
    *bits = 0;
    if (!strcmp(text, "none")) return LL_OK;
    for (int i = 0; i < 4 && end != text; i++)
        if (!strcmp(end, units[i])) *bits = v * factors[i];
    CHECK(*bits >= 1e5 && *bits <= 1e12, LL_E_ARG,
          "--rate %s: want a number and kbit, mbit or gbit, 100kbit at least, or none", text);
    return LL_OK;
}

/* A new file with text, run by its owner only; its name replaces the Xs. */
static ll_err temporary(char *path, const void *text, size_t size)
{
    int fd = mkstemp(path);
    CHECK(fd >= 0, LL_E_IO, "%s: %s", path, strerror(errno));
    ll_err rc = ll_write_all(fd, path, text, size);
    if (rc == LL_OK && fchmod(fd, 0700) != 0)
        rc = ll_raise(LL_E_IO, __FILE__, __LINE__, __func__, "%s: %s", path, strerror(errno));
    close(fd);
    if (rc != LL_OK) unlink(path);
    return rc;
}

/* ---- the script, and signals that are its to heed ---- */
static volatile sig_atomic_t script_pid;

static void pass_on(int signal)
{
    if (script_pid > 0) kill((pid_t)script_pid, signal);
}

/* In the child: becomes the script. It is told to end when this process is killed. */
static void become(const char *path, const char *why, const ll_netns_opts *o)
{
    char self[4096], hosts[16], count[24], owner[16];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) _exit(1);
    self[n] = '\0';
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    snprintf(hosts, sizeof hosts, "%d", o->hosts);
    snprintf(count, sizeof count, "%lld", (long long)o->count);
    setenv(MARK, "1", 1);
    setenv("NETNS_RATE", o->rate, 1);
    setenv("NETNS_MPIEXEC", ll_cli_mpiexec(), 1);
    setenv("NETNS_WHY", why, 1);
    snprintf(owner, sizeof owner, "%d", (int)getppid());
    setenv("NETNS_OWNER", owner, 1);
    setenv("OMP_NUM_THREADS", "1", 1);
    unsetenv("NETNS_PREFIX");
    const char *argv[] = {"bash",   path,    "run",     hosts,     self,
                          "bench",  "comm",  "--netns", "--hosts", hosts,
                          "--rate", o->rate, "--count", count,     o->json ? "--json" : NULL,
                          NULL};
    execvp("bash", (char *const *)argv);
    _exit(127);
}

static ll_err run_script(const char *path, const char *why, const ll_netns_opts *o, int *status)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction pass = {.sa_handler = pass_on}, old[3];
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0, LL_E_SYS, "no process for %s: %s", path, strerror(errno));
    if (child == 0) become(path, why, o);
    script_pid = child;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &pass, &old[i]);
    while (waitpid(child, status, 0) < 0 && errno == EINTR) continue;
    script_pid = 0;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &old[i], NULL);
    return LL_OK;
}

static ll_err outcome(int status, const char *why)
{
    uint8_t *text = NULL;
    size_t size = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return LL_OK;
    if (WIFEXITED(status) && WEXITSTATUS(status) == CANNOT) {
        ll_err rc = ll_file_read(why, 1 << 16, &text, &size);
        if (rc != LL_OK) return rc;
        text[strcspn((char *)text, "\n")] = '\0';
        rc = ll_raise(LL_E_SYS, __FILE__, __LINE__, __func__,
                      "hosts in network namespaces cannot be made here: %s", (char *)text);
        free(text);
        return rc;
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 127, LL_E_SYS,
          "the script that makes the hosts was ended or bash could not be run (status %d)", status);
    FAIL(LL_E_SYS, "the ranks on the hosts failed (status %d)", WEXITSTATUS(status));
}

static ll_err launch(const ll_netns_opts *o)
{
    const char *folder = getenv("TMPDIR");
    char path[4096], why[4096];
    int status = 0;
    if (!folder || !*folder) folder = "/tmp";
    CHECK(snprintf(path, sizeof path, "%s/loopline-netns-XXXXXX", folder) < (int)sizeof path,
          LL_E_ARG, "TMPDIR is too long");
    snprintf(why, sizeof why, "%.4000s/loopline-netns-XXXXXX", folder);
    TRY(temporary(path, script, sizeof script));
    ll_err rc = temporary(why, "", 0);
    if (rc == LL_OK) {
        rc = run_script(path, why, o, &status);
        if (rc == LL_OK) rc = outcome(status, why);
        unlink(why);
    }
    unlink(path);
    return rc;
}

ll_err ll_bench_netns(const ll_netns_opts *opts)
{
    ll_netns_opts o = *opts;
    double bits;
    if (!o.hosts) o.hosts = 4;
    if (!o.rate) o.rate = "1gbit";
    if (!o.count) o.count = 60000000;
    CHECK(o.hosts >= 2 && o.hosts <= 250, LL_E_ARG, "--hosts %d: want 2 to 250", o.hosts);
    CHECK(o.count >= 1 && o.count < UINT32_MAX, LL_E_ARG, "--count %lld: want 1 to 2^32 - 2",
          (long long)o.count);
    TRY(ll_netns_rate(o.rate, &bits));
    if (!getenv(MARK)) return launch(&o);
    ll_comm *c;
    TRY(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &c));
    return ll_cli_leave(c, ll_netns_measure(c, &o));
}
