/* test_begin: a process whose others do not come says so in time, and ends; one whose others come
 * goes on. */
#include "comm/begin.h"
#include "comm/watch_int.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* MPI_Init may be writing the environment: our thread must not read it. */
static pthread_t reader;
extern char **environ;

char *getenv(const char *name)
{
    size_t n = strlen(name);
    if (reader && !pthread_equal(reader, pthread_self())) fprintf(stderr, "getenv %s\n", name);
    for (char **e = environ; e && *e; e++)
        if (!strncmp(*e, name, n) && (*e)[n] == '=') return *e + n + 1;
    return NULL;
}

/* Signals are the program's: is this one left to it by all other threads? */
static bool signals_are_blocked(void)
{
    bool blocked = true;
    char path[300], line[100];
    unsigned long long mask;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
        FILE *f = atoi(d->d_name) && atoi(d->d_name) != getpid() ? fopen(path, "r") : NULL;
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "SigBlk: %llx", &mask) == 1)
                blocked &= mask >> (SIGTERM - 1) & mask >> (SIGUSR1 - 1) & 1;
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return blocked;
}

/* A rank of three that waits 0.3 s for the others, or long where they come within a second: after
 * so many milliseconds. Returns its exit status; text: what it said. */
static int wait_as(const char *rank, int ms, char text[600])
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
        setenv("OMPI_COMM_WORLD_RANK", rank, 1);
        reader = pthread_self();
        ll_begin *b = ll_begin_guard(&(ll_begin_opts){.seconds = ms > 1000 ? 0.3 : 100,
                                                      .exactly = true,
                                                      .what = "MPI_Init",
                                                      .library = "Some MPI 1"});
        bool blocked = false;
        for (int i = 0; i < 500 && !blocked; i++) { /* a new thread may not have come so far */
            usleep(20000);
            blocked = signals_are_blocked();
        }
        if (!blocked) fprintf(stderr, "the thread takes signals\n");
        usleep((unsigned)ms * 1000);
        ll_begin_over(b);
        _exit(7);
    }
    close(ends[1]);
    ssize_t n = 0, got;
    while ((got = read(ends[0], text + n, (size_t)(599 - n))) > 0) n += got;
    text[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void missing_rank_is_said(void **state)
{
    (void)state;
    char text[600];
    assert_int_equal(wait_as("0", 60000, text), 1);
    int end = 0;
    sscanf(text, "loopline: rank 0 of 3 waited %*d s in%n", &end);
    assert_string_equal(text + end,
                        " MPI_Init for the others: one has not started, has ended early, "
                        "or is not a program of Some MPI 1\n");
}

/* Later than rank 0 would have. */
static void other_ranks_leave_it_to_the_first(void **state)
{
    (void)state;
    char text[600];
    double began = ll_now();
    assert_int_equal(wait_as("1", 60000, text), 1);
    assert_true(ll_now() - began > 1);
    assert_non_null(strstr(text, "rank 1 of 3 waited"));
}

static void who_is_met_goes_on(void **state)
{
    (void)state;
    char text[600];
    assert_int_equal(wait_as("2", 50, text), 7);
    assert_string_equal(text, "");
    ll_begin_over(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_rank_is_said),
        cmocka_unit_test(other_ranks_leave_it_to_the_first),
        cmocka_unit_test(who_is_met_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
