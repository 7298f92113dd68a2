/* crew.c: work in even parts, one for each thread: in a region of OpenMP's, or by a crew, whose
 * threads stay in one region for many kernels. A meeting of a crew is a line of memory that the
 * first writes and the others read, and one of each of the others that the first reads: 0.13 us
 * beside 0.65 of a region, two threads. */
#include "kern/cpu/crew.h"

#include "base/num.h"
#include "kern/cpu/row.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* So often a thread looks before it lets others have its core, and as often again before it sleeps
 * in between: longer than single threads work between parts, shorter than a time slice. */
enum { LOOKS = 1000, SLEEP_NS = 20000, LINE = 64 };

typedef struct line {
    _Alignas(LINE) _Atomic uint32_t times;
} line;

typedef struct crew {
    int threads;
    bool over;
    ll_thread_part *part;
    const void *job;
    int64_t n, parts;
    line given; /* how often there was work */
    line *done; /* of each thread: how often it was through with it */
} crew;

static _Thread_local crew *led; /* by this thread */

static void look_again(void)
{
#if defined(__aarch64__)
    __asm__ __volatile__("yield");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void wait_for(_Atomic uint32_t *x, uint32_t value)
{
    for (int i = 0; atomic_load_explicit(x, memory_order_acquire) != value; i += i < 2 * LOOKS) {
        if (i < LOOKS)
            look_again();
        else if (i < 2 * LOOKS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

static void make_parts(const crew *c, int number)
{
    for (int64_t t = number; t < c->parts; t += c->threads)
        c->part(c->job, c->n * t / c->parts, c->n * (t + 1) / c->parts);
}

static void give(crew *c)
{
    atomic_store_explicit(&c->given.times, c->given.times + 1, memory_order_release);
}

static void follow(crew *c, int number)
{
    for (uint32_t seen = 1;; seen++) {
        wait_for(&c->given.times, seen);
        if (c->over) return;
        make_parts(c, number);
        atomic_store_explicit(&c->done[number].times, seen, memory_order_release);
    }
}

/* Threads that wait are to sleep: crews look, and so lose their turns where others want the cores.
 */
static bool passive(void)
{
    const char *policy = getenv("OMP_WAIT_POLICY");
    return policy && !strcasecmp(policy, "passive");
}

void ll_crew(int threads, void (*lead)(void *), void *given)
{
    if (threads < 2 || omp_in_parallel() || passive()) {
        lead(given);
        return;
    }
    line done[threads];
    memset(done, 0, sizeof done);
    crew c = {.done = done};
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() > 0)
        follow(&c, omp_get_thread_num());
    else {
        c.threads = omp_get_num_threads();
        led = &c;
        lead(given);
        led = NULL;
        c.over = true;
        give(&c);
    }
}

void ll_in_parts(int threads, int64_t n, ll_thread_part *part, const void *job)
{
    int64_t parts = ll_min64(threads, n);
    if (parts <= 1) {
        part(job, 0, n);
        return;
    }
    if (led) {
        crew *c = led;
        c->part = part, c->job = job, c->n = n, c->parts = parts;
        give(c);
        led = NULL; /* a part has no parts */
        make_parts(c, 0);
        led = c;
        for (int i = 1; i < c->threads; i++) wait_for(&c->done[i].times, c->given.times);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < parts; t++) part(job, n * t / parts, n * (t + 1) / parts);
}

typedef struct numbered {
    ll_numbered_part *part;
    const void *job;
    int64_t n, parts;
} numbered;

static void some_numbers(const void *given, int64_t from, int64_t to)
{
    const numbered *x = (const numbered *)given;
    for (int64_t t = from; t < to; t++)
        x->part(x->job, (int)t, x->n * t / x->parts, x->n * (t + 1) / x->parts);
}

void ll_in_numbered_parts(int threads, int64_t n, ll_numbered_part *part, const void *job)
{
    int64_t parts = ll_max64(ll_min64(threads, n), 1);
    ll_in_parts(threads, parts, some_numbers, &(numbered){part, job, n, parts});
}
