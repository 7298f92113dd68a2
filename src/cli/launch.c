/* launch.c: ranks through mpiexec, and their failures on one screen.
 *
 * The launching process replaces itself by mpiexec, so signals and the exit status need no care.
 * (Where ranks want to save before they stop it waits for mpiexec instead, and asks them by SIGUSR1
 * where it is sent SIGTERM, SIGINT, SIGUSR1 or SIGHUP: launchers answer these by killing the ranks
 * a second later.)
 * The ranks get the same words and see by their environment that they are ranks already.
 *
 * Who prints a failure? One that all ranks share (job.h) is printed by the rank it befell. Of one
 * that may be a single rank's nobody knows more than that: rank 0 prints at once and ends the job,
 * others first wait a moment in which they are ended if rank 0, or a lower rank, failed too. So a
 * wrong word on the command line, which every rank finds, is printed once, and a file that is
 * missing on one node is told by a rank of that node. */
#include "cli/launch.h"

#include "base/crc32c.h"
#include "comm/job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LAUNCHED "LOOPLINE_RANKS" /* set by the launcher: never launch twice */

static int own_argc;
static char *const *own_argv;

void ll_cli_launch_args(int argc, char *const *argv)
{
    uint32_t hash = 0;
    own_argc = argc;
    own_argv = argv;
    for (int i = 1; i < argc; i++) hash = ll_crc32c(hash, argv[i], strlen(argv[i]) + 1);
    ll_job_set_words(hash);
}

static const char *program = "loopline";

void ll_cli_call_it(const char *path)
{
    const char *slash = strrchr(path, '/');
    program = slash ? slash + 1 : path;
}

const char *ll_cli_program(void)
{
    return program;
}

const char *ll_cli_name(void)
{
    static char name[64];
    snprintf(name, sizeof name, "%.32s %.28s", ll_cli_program(), own_argc > 1 ? own_argv[1] : "");
    return name;
}

const char *ll_cli_mpiexec(void)
{
    const char *given = getenv("LOOPLINE_MPIEXEC");
    return given && *given ? given : LL_MPIEXEC;
}

/* May mpiexec start ranks on other machines too? */
static bool several_hosts(void)
{
    static const char *const signs[] = {"LOOPLINE_MPIEXEC", "SLURM_JOB_ID", "PBS_JOBID",
                                        "LSB_JOBID", "OMPI_MCA_orte_default_hostfile"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (getenv(signs[i])) return true;
    return false;
}

void ll_cli_launch_env(int64_t ranks)
{
    char threads[24];
    int64_t each = omp_get_num_procs() / (ranks > 0 ? ranks : 1);
    snprintf(threads, sizeof threads, "%lld", (long long)(each > 1 ? each : 1));
    const char *const vars[][2] = {
        {"OMP_NUM_THREADS", threads},
        /* Open MPI. Whoever waits must let others run: with more ranks than cores a spinning wait
         * costs a thousand times the message. It binds two ranks to a core each, threads and all;
         * and counts cores, not hardware threads, before it calls the machine full. */
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_orte_execute_quiet", "1"}, /* pages about each failure: ours say it in a line */
        {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"}, /* from version 5 on */
        {"PRTE_MCA_hwloc_default_binding_policy", "none"},
        /* MPICH: with more ranks than cores no setting helps; our waits yield instead. */
    };
    /* The first is left out where it is not known how many ranks a node gets: they divide its
     * cores. */
    for (size_t i = several_hosts(); i < sizeof vars / sizeof *vars; i++)
        setenv(vars[i][0], vars[i][1], 0);
    if (geteuid() == 0) { /* containers */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
}

/* ---- waiting for mpiexec ---- */

/* The parent of a process; 0: it is gone. */
static pid_t parent_of(pid_t pid)
{
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(line, 1, sizeof line - 1, f) : 0;
    if (f) fclose(f);
    line[n] = '\0';
    const char *name_end = strrchr(line, ')');
    long parent = 0;
    return name_end && sscanf(name_end + 1, " %*c %ld", &parent) == 1 ? (pid_t)parent : 0;
}

static bool is_below(pid_t pid, pid_t ancestor)
{
    for (int depth = 0; pid > 1 && depth < 64; depth++) {
        pid = parent_of(pid);
        if (pid == ancestor) return true;
    }
    return false;
}

/* Asks the ranks on this machine to save and stop: processes below mpiexec that run this program.
 * One that hears it is enough. Not every mpiexec passes SIGUSR1 on, so it is asked only where no
 * rank is here. */
static void ask_ranks(pid_t mpiexec)
{
    char self[4096], path[64], exe[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self), found = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *d; all && n > 0 && (d = readdir(all));) {
        pid_t pid = (pid_t)atol(d->d_name);
        snprintf(path, sizeof path, "/proc/%ld/exe", (long)pid);
        if (pid <= 0 || pid == mpiexec || readlink(path, exe, sizeof exe) != n) continue;
        if (!memcmp(exe, self, (size_t)n) && is_below(pid, mpiexec))
            found += kill(pid, SIGUSR1) == 0;
    }
    if (all) closedir(all);
    if (!found) kill(mpiexec, SIGUSR1);
}

/* Does not return. What is in wanted is blocked: signals come one by one. */
static void wait_for_mpiexec(pid_t child, const sigset_t *wanted)
{
    for (int asked = 0;;) {
        int status, number = sigwaitinfo(wanted, NULL);
        if (number > 0 && number != SIGCHLD) {
            if (asked++)
                kill(child, number); /* who asks twice does not want to wait */
            else
                ask_ranks(child);
        }
        if (waitpid(child, &status, WNOHANG) != child) continue;
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        /* mpiexec is told to be quiet, and ranks do not watch each other before they have met. */
        if (code > 128 && code < 128 + 32)
            fprintf(stderr, "%s: a rank was ended by signal %d\n", ll_cli_name(), code - 128);
        _exit(code);
    }
}

/* Returns in a new process, away from the terminal's signals, that ends when this one does. */
static ll_err stay_behind(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD};
    sigset_t wanted, old;
    struct sigaction now;
    sigemptyset(&wanted);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i] != SIGHUP || sigaction(SIGHUP, NULL, &now) || now.sa_handler != SIG_IGN)
            sigaddset(&wanted, numbers[i]);
    sigprocmask(SIG_BLOCK, &wanted, &old);
    pid_t parent = getpid(), child = fork();
    if (child > 0) wait_for_mpiexec(child, &wanted);
    sigprocmask(SIG_SETMASK, &old, NULL);
    CHECK(child == 0, LL_E_SYS, "no process for mpiexec: %s", strerror(errno));
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    setpgid(0, 0);
    int nothing = open("/dev/null", O_RDONLY); /* reading from the terminal would stop it */
    if (nothing > 0) dup2(nothing, 0);
    if (nothing > 2) close(nothing);
    return LL_OK;
}

/* ---- launching ---- */

/* Becomes mpiexec; returns only with a failure. */
static ll_err become_mpiexec(int64_t ranks, bool stay)
{
    char self[4096], count[24];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(n > 0, LL_E_SYS, "/proc/self/exe cannot be read: %s", strerror(errno));
    self[n] = '\0';
    snprintf(count, sizeof count, "%lld", (long long)ranks);
    const char *mpiexec = ll_cli_mpiexec();
    char *words = strdup(mpiexec), *rest = NULL;
    char **argv = (char **)calloc(strlen(mpiexec) + (size_t)own_argc + 4, sizeof *argv);
    CHECK(words && argv, LL_E_MEM, "no memory for the words of %s", mpiexec);
    int k = 0;
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) argv[k++] = w;
    argv[k++] = (char *)"-n";
    argv[k++] = count;
    argv[k++] = self;
    for (int i = 1; i < own_argc; i++) argv[k++] = own_argv[i];
    ll_cli_launch_env(ranks);
    setenv(LAUNCHED, count, 1);
    fflush(NULL);
    if (stay) TRY(stay_behind());
    execvp(argv[0], argv);
    int why = errno;
    free(argv);
    free(words);
    FAIL(LL_E_SYS,
         "%s, which starts the ranks of -n, cannot be run: %s; install openmpi-bin or mpich, the "
         "one that loopline was built with, or set LOOPLINE_MPIEXEC to its mpiexec",
         mpiexec, strerror(why));
}

/* The launcher is told to be quiet, so a rank that crashes says so itself. (One that is killed
 * cannot: the watch of the others does.) */
static char crash_line[64];
static size_t crash_len;

static void on_crash(int number) /* may call very little */
{
    crash_line[crash_len - 3] = (char)('0' + number / 10 % 10);
    crash_line[crash_len - 2] = (char)('0' + number % 10);
    if (write(STDERR_FILENO, crash_line, crash_len) < 0) _exit(1);
    raise(number); /* by default now, which ends the process */
}

static void tell_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    crash_len = (size_t)snprintf(crash_line, sizeof crash_line,
                                 "loopline: rank %d: ended by signal 00\n", ll_job_rank());
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction mine = {.sa_handler = on_crash, .sa_flags = SA_RESETHAND | SA_NODEFER};
        struct sigaction now;
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(numbers[i], &mine, NULL);
    }
}

/* More ranks than cores are slow but work; a slip of the finger would stop the machine. */
static ll_err check_room(int64_t ranks)
{
    int64_t cores = omp_get_num_procs(), most = 16 * cores > 256 ? 16 * cores : 256;
    CHECK(ranks <= most || several_hosts(), LL_E_ARG,
          "-n is %lld, but this machine has %lld cores: want %lld ranks at most; for more machines "
          "use mpirun or srun, or set LOOPLINE_MPIEXEC",
          (long long)ranks, (long long)cores, (long long)most);
    return LL_OK;
}

ll_err ll_cli_launch(int64_t ranks, bool kindly)
{
    const char *launched = getenv(LAUNCHED);
    int size = ll_job_size();
    if (size == 0 && launched) size = atoi(launched); /* a launcher that we do not know */
    if (launched) tell_crashes();
    if (ranks == 0) return LL_OK;
    CHECK(ranks <= 1 << 20, LL_E_ARG, "-n is %lld, want 1 to %d ranks", (long long)ranks, 1 << 20);
    /* Open MPI's mpirun refuses to run below itself, be it with one rank. */
    CHECK(ranks == size || (size <= 1 && !getenv("OMPI_COMM_WORLD_SIZE")), LL_E_ARG,
          "-n is %lld, but this is one of %d ranks that a launcher started: leave -n out, or start "
          "loopline without mpiexec",
          (long long)ranks, size);
    if (ranks == 1 || size == ranks) return LL_OK;
    TRY(check_room(ranks));
    return become_mpiexec(ranks, kindly);
}

static void pause_s(double s)
{
    struct timespec t = {(time_t)s, (long)(1e9 * (s - (double)(time_t)s))};
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

int ll_cli_fail(const char *who, const char *text, int status)
{
    int size = ll_job_size(), rank = ll_job_rank();
    ll_failure how = ll_job_failure();
    bool print = how != LL_FAILURE_HEARD && how != LL_FAILURE_TOLD;
    bool wait = how == LL_FAILURE_LATE || (how == LL_FAILURE_ALONE && rank);
    if (size <= 1) {
        if (print) fprintf(stderr, "%s: %s\n", who, text);
        return status;
    }
    /* Launchers end the job when the first rank leaves: let the one that prints come first. */
    if (how == LL_FAILURE_HEARD) pause_s(1.0);
    if (wait) pause_s(2.5 + 0.05 * (rank < 20 ? rank : 20)); /* Open MPI's mpirun takes 1 s */
    if (print) fprintf(stderr, "%s: rank %d: %s\n", who, rank, text);
    fflush(NULL);
    if (how == LL_FAILURE_ALONE || how == LL_FAILURE_LATE) ll_job_abort(status);
    return status;
}
