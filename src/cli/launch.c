/* launch.c: ranks through mpiexec, and their failures on one screen.
 *
 * The launching process stays, and has mpiexec in a child: it sleeps until there is something to
 * pass on, a signal or what ranks print, which mpiexec would lose where it cannot be written; or it
 * cares for ranks, too (supervise.c). The ranks get the same words and see by their environment
 * that they are ranks already.
 *
 * Who prints a failure? One that all ranks share (job.h) is printed by the rank it befell. Of one
 * that may be a single rank's nobody knows more than that: rank 0 prints at once and ends the job,
 * others first wait a moment in which they are ended if rank 0, or a lower rank, failed too. So a
 * wrong word on the command line, which every rank finds, is printed once, and a file that is
 * missing on one node is told by a rank of that node. */
#define _GNU_SOURCE /* pipe2, memfd_create, ppoll */
#include "cli/launch.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "base/mapped.h"
#include "base/text.h"
#include "cli/procs.h"
#include "comm/comm.h"
#include "comm/job.h"
#include "comm/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
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
    program = ll_base_name(path);
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
    snprintf(threads, sizeof threads, "%ld", (each > 1 ? each : 1));
    const char *const vars[][2] = {
        {"OMP_NUM_THREADS", threads},
        /* Open MPI. Whoever waits must let others run: with more ranks than cores a spinning wait
         * costs a thousand times the message. It binds two ranks to a core each, threads and all;
         * and counts cores, not hardware threads, before it calls the machine full. */
        {"OMPI_MCA_mpi_yield_when_idle", "1"},
        {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
        {"OMPI_MCA_hwloc_base_binding_policy", "none"},
        {"OMPI_MCA_osc", "^ucx"}, /* Debian's has no one-sided calls over TCP unless told */
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

/* ---- launching ---- */

/* On these hosts, "a:2,b:2"; srun takes the names alone. */
static void add_hosts(char **to, const char *launcher, const char *hosts, ll_arena *a)
{
    bool slurm = !strncmp(ll_base_name(launcher), "srun", 4);
    char *list = ll_arena_strdup(a, hosts), *end = list;
    for (const char *c = hosts; *c; c++) {
        if (slurm && *c == ':') c += strcspn(c, ",");
        if (!*c) break;
        *end++ = *c;
    }
    *end = '\0';
    to[0] = (char *)(slurm ? "-w" : ll_job_hosts_option());
    to[1] = list;
}

enum { SELF = 4096 };

/* The file of this very program. */
static ll_err find_self(char path[SELF])
{
    ssize_t n = readlink("/proc/self/exe", path, SELF - 1);
    CHECK(n > 0, LL_E_SYS, "/proc/self/exe cannot be read: %m");
    path[n] = '\0';
    return LL_OK;
}

/* Becomes mpiexec; returns only with a failure. */
static ll_err become_mpiexec(const ll_mpiexec *how)
{
    char self[SELF], count[24];
    TRY(find_self(self));
    snprintf(count, sizeof count, "%ld", how->ranks);
    const char *mpiexec = ll_cli_mpiexec();
    LL_OWN(ll_arena) a = ll_arena_new();
    char *words = ll_arena_strdup(a, mpiexec), *rest = NULL;
    char **argv = LL_NEW_ARRAY(a, char *, strlen(mpiexec) + (size_t)own_argc + 8);
    int k = 0;
    for (char *w = strtok_r(words, " ", &rest); w; w = strtok_r(NULL, " ", &rest)) argv[k++] = w;
    if (how->hosts) add_hosts(argv + k, argv[0], how->hosts, a), k += 2;
    argv[k++] = (char *)"-n";
    argv[k++] = count;
    argv[k++] = how->probe ? (char *)"true" : self;
    for (int i = 1; i < own_argc && !how->probe; i++) {
        argv[k++] = own_argv[i];
        if (i > 1 || !how->job) continue;
        argv[k++] = (char *)"--job";
        argv[k++] = (char *)how->job;
    }
    ll_cli_launch_env(how->ranks);
    bool here = !how->hosts && !several_hosts();
    /* Open MPI looks for fabrics, 0.2 s of each start, that ranks of one host do not need. */
    if (here) setenv("OMPI_MCA_pml", "ob1", 0);
    if (here) ll_job_own_folder();
    setenv(LAUNCHED, count, 1);
    execvp(argv[0], argv);
    FAIL(LL_E_SYS,
         "%s, which starts the ranks of -n, cannot be run: %m; install openmpi-bin or mpich, "
         "whichever loopline was built with, or set LOOPLINE_MPIEXEC to its mpiexec",
         mpiexec);
}

/* ---- what stays while a child runs: it passes on what that prints, and signals to it ---- */

static const int passed[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
enum { N_PASSED = sizeof passed / sizeof *passed };
static volatile sig_atomic_t heard, asked; /* the signal that came; to pass on; 0: none */
static bool away;                          /* the launcher does not hear the terminal's */

static void on_signal(int number, siginfo_t *from, void *)
{
    bool sent = from->si_code <= 0; /* by a process, to this one; else a terminal's, to the group */
    if (number == SIGCHLD) return;
    heard = number;
    if (sent || away) asked = number;
}

/* Before the child is there; *before: the signals that it blocks. alone: it hears nothing of the
 * terminal's, so that it is told of those too; its ranks are, by SIGTERM, rather than it. */
static void begin_relay(bool alone, sigset_t *before)
{
    sigset_t wanted;
    away = alone;
    struct sigaction mine = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO}, now;
    sigemptyset(&wanted);
    for (int i = 0; i < N_PASSED; i++) {
        sigaction(passed[i], NULL, &now);
        /* what the user has set to be ignored stays so */
        if (passed[i] != SIGCHLD && now.sa_handler == SIG_IGN) continue;
        sigaddset(&wanted, passed[i]);
        sigaction(passed[i], &mine, NULL);
    }
    sigprocmask(SIG_BLOCK, &wanted, before);
    sigdelset(before, SIGCHLD);
}

/* Who asks twice does not want to wait. */
static void pass_on(pid_t child, int times)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_procs here = {.arena = a};
    if (away && times == 1) ll_procs_find(&here, child, NULL);
    if (!ll_procs_signal(&here, SIGTERM)) kill(child, asked);
    asked = 0;
}

static bool write_all(int fd, const char *bytes, ssize_t n)
{
    for (ssize_t done; n > 0; bytes += done, n -= done) {
        done = write(fd, bytes, (size_t)n);
        if (done < 0 && errno == EINTR) done = 0;
        if (done < 0) return false;
    }
    return true;
}

/* Until the child has ended, with *status: what comes from it goes to our standard output; from -1:
 * nothing does. Is all of it there? */
static bool relay(int from, pid_t child, const sigset_t *open, int *status)
{
    static const struct timespec at_once;
    char bytes[4096];
    bool whole = true, ended = false;
    for (int times = 0; !ended || from >= 0;) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        ended = ended || waitpid(child, status, WNOHANG) == child;
        int n = ppoll(&p, 1, ended ? &at_once : NULL, open);
        if (asked) pass_on(child, ++times);
        if (n == 0) return whole; /* it has ended, and who may still have our pipe is silent */
        if (n < 0) continue;
        ssize_t got = read(from, bytes, sizeof bytes);
        if (got <= 0)
            from = -1;
        else
            whole = whole && write_all(STDOUT_FILENO, bytes, got);
    }
    return whole;
}

/* To do something else, or begin again; ends this process where a signal came meanwhile. */
static void end_relay(const sigset_t *before)
{
    for (int i = 0; i < N_PASSED; i++) {
        struct sigaction now;
        sigaction(passed[i], NULL, &now);
        if (now.sa_handler != SIG_IGN) signal(passed[i], SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, before, NULL);
    if (heard) raise(heard);
}

/* A child that ends when this process does; signals: that it blocks. */
static pid_t fork_child(const sigset_t *signals)
{
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child) return child;
    sigprocmask(SIG_SETMASK, signals, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    return 0;
}

pid_t ll_cli_spawn(const ll_mpiexec *how, const sigset_t *signals, int out)
{
    pid_t child = fork_child(signals);
    if (child) return child;
    setpgid(0, 0);
    int nothing = open("/dev/null", how->probe ? O_RDWR : O_RDONLY); /* a terminal would stop it */
    for (int fd = 0; nothing > 0 && fd < (how->probe ? 3 : 1); fd++) dup2(nothing, fd);
    if (nothing > 2) close(nothing);
    if (!how->probe) dup2(out, 1);
    ll_err rc = become_mpiexec(how);
    fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_text());
    _exit(rc == LL_OK ? 0 : 1);
}

int ll_cli_code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int ll_cli_printed(bool whole, int code)
{
    if ((fflush(stdout) == 0 && !ferror(stdout) && whole) || code) return code;
    fprintf(stderr, "loopline: standard output cannot be written\n");
    return 1;
}

ll_err ll_cli_wait(int64_t ranks, const ll_care *care)
{
    sigset_t before;
    int ends[2], status = 0;
    CHECK(pipe2(ends, O_CLOEXEC) == 0, LL_E_SYS, "no pipe to mpiexec: %m");
    begin_relay(care, &before);
    pid_t child = fork_child(&before);
    CHECK(child >= 0, LL_E_SYS, "a process for mpiexec cannot be started: %m");
    if (child == 0) {
        if (care) setpgid(0, 0);
        dup2(ends[1], STDOUT_FILENO);
        if (become_mpiexec(&(ll_mpiexec){.ranks = ranks}) != LL_OK)
            fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_text());
        _exit(1);
    }
    close(ends[1]);
    bool whole = relay(ends[0], child, &before, &status);
    _exit(ll_cli_printed(whole, ll_cli_code(status)));
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

ll_err ll_cli_launch(int64_t ranks, const ll_care *care)
{
    const char *launched = getenv(LAUNCHED);
    int size = ll_job_size();
    if (size == 0 && launched) size = atoi(launched); /* a launcher that we do not know */
    if (launched) tell_crashes();
    ll_mapped_guard();
    if (ranks == 0) return LL_OK;
    /* Open MPI's mpirun refuses to run below itself, be it with one rank. */
    CHECK(ranks == size || (size <= 1 && !getenv("OMPI_COMM_WORLD_SIZE")), LL_E_ARG,
          "-n is %ld, but this is one of %d ranks that a launcher started: leave -n out, or start "
          "loopline without mpiexec",
          ranks, size);
    if (ranks == 1 || size == ranks) return LL_OK;
    /* More ranks than cores are slow but work; a slip of the finger would stop the machine. */
    int64_t cores = omp_get_num_procs(), most = 16 * cores > 256 ? 16 * cores : 256;
    CHECK(ranks <= most || several_hosts(), LL_E_ARG,
          "-n is %ld, but this machine has %ld cores: use at most %ld ranks; for several machines "
          "use mpirun or srun, or set LOOPLINE_MPIEXEC",
          ranks, cores, most);
    fflush(NULL);
    return care ? care->start(ranks, care) : ll_cli_wait(ranks, NULL);
}

ll_err ll_cli_launch_mesh(const char *mesh, int64_t ranks, const ll_care *care)
{
    int64_t cores = omp_get_num_procs(), most = 4 * cores > 16 ? 4 * cores : 16;
    int size = ll_job_size();
    CHECK(size == ranks || (size <= 1 && !getenv("OMPI_COMM_WORLD_SIZE")), LL_E_ARG,
          "mesh %s has %ld ranks, but mpirun started %d: start %ld, or leave out mpirun to have "
          "them started",
          mesh, ranks, size, ranks);
    CHECK(ranks <= most || size == ranks || getenv(LAUNCHED) || several_hosts(), LL_E_ARG,
          "mesh %s has %ld ranks, but this machine has %ld cores: at most %ld ranks are started; "
          "if this is intended, use mpirun -n %ld",
          mesh, ranks, cores, most, ranks);
    return ll_cli_launch(ranks, care);
}

/* ---- the program once more, as a job of its own ---- */

/* In the child: a process, or several ranks through mpiexec. Returns only with a failure. */
static ll_err become_job(int64_t ranks, int64_t threads, int argc, char **argv)
{
    char count[24], self[SELF];
    snprintf(count, sizeof count, "%ld", threads);
    setenv("OMP_NUM_THREADS", count, 1);
    ll_cli_launch_args(argc, argv);
    if (ranks > 1) TRY(ll_cli_launch(ranks, NULL));
    TRY(find_self(self));
    execv(self, argv);
    FAIL(LL_E_SYS, "%s cannot be run: %m", self);
}

static ll_err read_output(int fd, char **out, size_t *bytes)
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
    LL_OWN(ll_arena) a = ll_arena_new();
    char **argv = LL_NEW_ARRAY(a, char *, n + 2);
    argv[0] = (char *)"loopline";
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)words[i];
    begin_relay(false, &before);
    pid_t child = fork_child(&before);
    if (child == 0) {
        dup2(to, STDOUT_FILENO);
        if (become_job(ranks, threads, n + 1, argv) != LL_OK)
            fprintf(stderr, "loopline: %s\n", ll_error_text());
        _exit(1);
    }
    if (child > 0) relay(-1, child, &before, status);
    end_relay(&before);
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
    CHECK(status == 0, LL_E_SYS, "the job on %s failed: see above", LL_COUNTED(ranks, "rank"));
    return read_output(to, out, bytes);
}

/* ---- failures ---- */

static void pause_s(double s)
{
    struct timespec t = {(time_t)s, (long)(1e9 * (s - (double)(time_t)s))};
    while (nanosleep(&t, &t) && errno == EINTR) continue;
}

int ll_cli_fail(const char *who, const char *text, int status)
{
    int size = ll_job_size(), rank = ll_job_rank();
    ll_failure how = ll_job_failure();
    /* Who starts all anew says so, and launchers wait for who does not leave. */
    if (how == LL_FAILURE_LATE && ll_job_is_cared()) how = LL_FAILURE_TOLD;
    bool print = how != LL_FAILURE_HEARD && how != LL_FAILURE_TOLD;
    bool wait = how == LL_FAILURE_LATE || (how == LL_FAILURE_ALONE && rank);
    if (size <= 1) {
        if (print) fprintf(stderr, "%s: %s\n", who, text);
        return status;
    }
    /* Launchers end the job when the first rank leaves: let the one that prints come first. */
    if (how == LL_FAILURE_HEARD && !ll_transport_ends_together()) pause_s(1.0);
    if (wait) pause_s(2.5 + 0.05 * (rank < 20 ? rank : 20)); /* Open MPI's mpirun takes 1 s */
    if (print) fprintf(stderr, "%s: rank %d: %s\n", who, rank, text);
    fflush(NULL);
    if (how == LL_FAILURE_ALONE || how == LL_FAILURE_LATE) ll_job_abort(status);
    return status;
}

ll_err ll_cli_leave(ll_comm *c, ll_err rc)
{
    if (rc != LL_OK && ll_comm_size(c) > 1 && ll_job_failure() == LL_FAILURE_ALONE) {
        /* Not the pause of ll_cli_fail: those that are told now do not print. */
        fprintf(stderr, "%s: rank %d: %s\n", ll_cli_name(), ll_comm_rank(c), ll_error_text());
        ll_comm_give_up(c);
        ll_job_abort(ll_job_status(1));
        _exit(ll_job_status(1));
    }
    ll_comm_close(c); /* keeps the message */
    return rc;
}
