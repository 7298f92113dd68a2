/* job.c: the program once more, as a job of its own: on one rank as a process, on several through
 * mpiexec. What it prints comes back through a pipe. */
#include "cli/launch.h"
#include "cli/procs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
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
    FAIL(LL_E_SYS, "%s cannot be run: %s", self, strerror(errno));
}

static ll_err read_all(int fd, char **out, size_t *bytes)
{
    size_t room = 1 << 16;
    *bytes = 0;
    *out = (char *)malloc(room);
    while (*out) {
        ssize_t n = read(fd, *out + *bytes, room - *bytes);
        if (n < 0 && errno == EINTR) continue;
        CHECK(n >= 0, LL_E_SYS, "a pipe cannot be read: %s", strerror(errno));
        if (n == 0) return LL_OK;
        *bytes += (size_t)n;
        if (*bytes < room) continue;
        char *more = (char *)realloc(*out, room *= 2);
        if (!more) free(*out);
        *out = more;
    }
    FAIL(LL_E_MEM, "not enough memory for a job's output: %zu bytes", room);
}

static ll_err start(int64_t ranks, int64_t threads, const char *const *words, int n, pid_t *child,
                    int *from)
{
    int ends[2];
    char **argv = (char **)calloc((size_t)n + 2, sizeof *argv);
    CHECK(argv && pipe(ends) == 0, LL_E_SYS, "a pipe to a job cannot be opened: %s",
          strerror(errno));
    argv[0] = (char *)"loopline";
    for (int i = 0; i < n; i++) argv[i + 1] = (char *)words[i];
    fflush(NULL);
    *child = fork();
    if (*child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (become_job(ranks, threads, n + 1, argv) != LL_OK)
            fprintf(stderr, "loopline: %s\n", ll_error_text());
        _exit(1);
    }
    close(ends[1]);
    free(argv);
    *from = ends[0];
    if (*child > 0) return LL_OK;
    close(ends[0]);
    FAIL(LL_E_SYS, "a process for a job cannot be started: %s", strerror(errno));
}

/* Waits for a signal that is one of these, or a child's end. */
static int next_signal(const sigset_t *of)
{
    siginfo_t about;
    int number;
    while ((number = sigwaitinfo(of, &about)) < 0 && errno == EINTR) continue;
    return number;
}

ll_err ll_cli_wait(int64_t ranks, const ll_care *)
{
    sigset_t wanted, old;
    ll_procs here = {0};
    int status = 0;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGCHLD);
    sigprocmask(SIG_BLOCK, &wanted, &old);
    pid_t child = fork();
    CHECK(child >= 0, LL_E_SYS, "a process for mpiexec cannot be started: %s", strerror(errno));
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &old, NULL);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setpgid(0, 0); /* away from the terminal's signals */
        if (ll_cli_mpiexec_run(&(ll_launch){.ranks = ranks}) != LL_OK)
            fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_text());
        _exit(1);
    }
    for (int asked = 0; waitpid(child, &status, WNOHANG) != child;) {
        int number = next_signal(&wanted);
        if (number != SIGTERM && number != SIGINT) continue;
        ll_procs_find(&here, child);
        /* Who asks twice does not want to wait. */
        if (asked++ || !ll_procs_signal(&here, SIGTERM)) kill(child, number);
    }
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

ll_err ll_cli_job(int64_t ranks, int64_t threads, const char *const *words, int n, char **out,
                  size_t *bytes)
{
    pid_t child;
    int from, status = 0;
    *out = NULL;
    TRY(start(ranks, threads, words, n, &child, &from));
    ll_err rc = read_all(from, out, bytes);
    close(from);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (rc == LL_OK && status == 0) return LL_OK;
    free(*out);
    *out = NULL;
    TRY(rc);
    FAIL(LL_E_SYS, "the job on %ld rank%s failed: see above", ranks, ranks == 1 ? "" : "s");
}
