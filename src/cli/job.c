/* job.c: the program once more, as a job of its own: on one rank as a process, on several through
 * mpiexec. What it prints comes back through a pipe. */
#include "cli/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
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
