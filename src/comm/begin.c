/* begin.c: the clock beside MPI_Init.
 *
 * Of N ranks one may never start, run another program, or end before MPI_Init; the others are then
 * inside MPI_Init, which has no timeout, and launchers do not mind (Open MPI's mpirun: not even
 * where the one that is missing has ended, if it did so with status 0). Who tells? Rank 0 at once;
 * the others a little later, when most launchers have ended them already: one line, not N. */
#define _GNU_SOURCE /* sem_clockwait */
#include "comm/begin.h"

#include "base/now.h"
#include "base/thread.h"
#include "comm/job.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct ll_begin {
    ll_begin_opts opts;
    int rank, size; /* as of before the thread: MPI_Init writes the environment */
    pthread_t thread;
    sem_t over;
};

/* Does not return. In one write, so that lines of several processes do not mix. */
static void end_process(const ll_begin *b, double waited)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "loopline: rank %d of %d waited %.0f s in %s for the others: one has not "
                     "started, has ended early, or is not a program of %s\n",
                     b->rank, b->size, waited, b->opts.what, b->opts.library);
    if (write(STDERR_FILENO, text, (size_t)n) < 0) _exit(1);
    ll_job_lose();
    ll_job_abort_unbegun(ll_job_status(1));
    _exit(ll_job_status(1));
}

static void *watch_clock(void *arg)
{
    ll_begin *b = (ll_begin *)arg;
    double pause = 1.5 * (b->rank < 3 ? b->rank : 3);
    double seconds = b->opts.seconds;
    if (!b->opts.exactly && seconds < LL_BEGIN_SECONDS) seconds = LL_BEGIN_SECONDS;
    double end = ll_now() + seconds + pause;
    struct timespec until = {(time_t)end, (long)(1e9 * (end - (double)(time_t)end))};
    int rc;
    do rc = sem_clockwait(&b->over, CLOCK_MONOTONIC, &until);
    while (rc && errno == EINTR);
    if (rc) end_process(b, seconds);
    return NULL;
}

ll_begin *ll_begin_guard(const ll_begin_opts *opts)
{
    ll_begin *b = (ll_begin *)calloc(1, sizeof *b);
    if (!b) return NULL;
    b->opts = *opts;
    b->rank = ll_job_rank();
    b->size = ll_job_size();
    sem_init(&b->over, 0, 0);
    if (ll_thread_start(&b->thread, watch_clock, b)) return b;
    free(b);
    return NULL;
}

void ll_begin_over(ll_begin *b)
{
    if (!b) return;
    sem_post(&b->over);
    pthread_join(b->thread, NULL);
    sem_destroy(&b->over);
    free(b);
}
