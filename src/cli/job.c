/* job.c: the program once more, as a job of its own: on one rank as a process, on several through
 * mpiexec. What it prints comes back through a file in memory. */
#define _GNU_SOURCE /* memfd_create */
#include "cli/launch.h"

#include "base/file.h"
#include "cli/relay.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

/* In the child. Returns only with a failure. */
static ll_err become_job(int64_t ranks, int64_t threads, int argc, char **argv)
{
    char count[24], self[LL_SELF];
    snprintf(count, sizeof count, "%ld", threads);
    setenv("OMP_NUM_THREADS", count, 1);
    ll_cli_launch_args(argc, argv);
    if (ranks > 1) TRY(ll_cli_launch(ranks, NULL));
    TRY(ll_cli_self(self));
    execv(self, argv);
    FAIL(LL_E_SYS, "%s cannot be run: %m", self);
}

static ll_err read_all(int fd, char **out, size_t *bytes)
{
    off_t size = lseek(fd, 0, SEEK_END);
    *bytes = (size_t)size;
    *out = size < 0 ? NULL : (char *)malloc(*bytes + 1);
    CHECK(*out, LL_E_MEM, "not enough memory for a job's output: %ld bytes", size);
    return ll_read_all(fd, "a job's output", *out, *bytes, 0);
}

/* Waits for it, and passes signals on: those that end this process end it first. */
static ll_err do_job(int64_t ranks, int64_t threads, const char *const *words, int n, int to,
                     int *status)
{
    sigset_t before;
    LL_OWN_MEMORY char **argv = (char **)calloc((size_t)n + 2, sizeof *argv);
    CHECK(argv, LL_E_MEM, "not enough memory for the words of a job");
    argv[0] = (char *)"loopline";
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)words[i];
    fflush(NULL);
    ll_relay_begin(false, &before);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent) _exit(1);
        dup2(to, STDOUT_FILENO);
        if (become_job(ranks, threads, n + 1, argv) != LL_OK)
            fprintf(stderr, "loopline: %s\n", ll_error_text());
        _exit(1);
    }
    if (child > 0) ll_relay(-1, child, &before, status);
    ll_relay_end(&before);
    CHECK(child > 0, LL_E_SYS, "a process for a job cannot be started");
    return LL_OK;
}

ll_err ll_cli_job(int64_t ranks, int64_t threads, const char *const *words, int n, char **out,
                  size_t *bytes)
{
    LL_OWN_FD int to = memfd_create("job", MFD_CLOEXEC);
    int status = 0;
    *out = NULL;
    CHECK(to >= 0, LL_E_SYS, "no file in memory for a job's output: %m");
    TRY(do_job(ranks, threads, words, n, to, &status));
    CHECK(status == 0, LL_E_SYS, "the job on %ld rank%s failed: see above", ranks,
          ranks == 1 ? "" : "s");
    return read_all(to, out, bytes);
}
