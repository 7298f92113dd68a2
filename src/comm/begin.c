/* begin.c: the clock beside MPI_Init.
 *
 * Of N ranks one may never start, run another program, or end before MPI_Init; the others are then
 * inside MPI_Init, which has no timeout, and launchers do not mind (Open MPI's mpirun: not even
 * where the one that is missing has ended, if it did so with status 0). Who tells? Rank 0 at once;
 * the others a little later, when most launchers have ended them already: one line, not N. */
#include "comm/begin.h"

#include "base/thread.h"
#include "comm/job.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct ll_begin {
    ll_begin_opts opts;
    int rank, size; /* as of before the thread: MPI_Init writes the environment */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
};

/* Does not return. In one write, so that lines of several processes do not mix. */
static void end_process(const ll_begin *b, double waited)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "loopline: rank %d of %d waited %.0f s in %s for the others: one has not "
                     "started, has ended early, or is no program of %s\n",
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
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(seconds + pause);
    until.tv_nsec += (long)(1e9 * (seconds + pause - (double)(time_t)(seconds + pause)));
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&b->lock);
    int rc = 0;
    while (!b->over && rc != ETIMEDOUT) rc = pthread_cond_timedwait(&b->changed, &b->lock, &until);
    bool over = b->over;
    pthread_mutex_unlock(&b->lock);
    if (!over) end_process(b, seconds);
    return NULL;
}

ll_begin *ll_begin_guard(const ll_begin_opts *opts)
{
    ll_begin *b = (ll_begin *)calloc(1, sizeof *b);
    if (!b) return NULL;
    b->opts = *opts;
    b->rank = ll_job_rank();
    b->size = ll_job_size();
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (ll_thread_start(&b->thread, watch_clock, b)) return b;
    free(b);
    return NULL;
}

void ll_begin_over(ll_begin *b)
{
    if (!b) return;
    pthread_mutex_lock(&b->lock);
    b->over = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}
