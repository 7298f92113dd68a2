/* bench_overlap: how much of an all-reduce is hidden behind computing, by who moves its messages.
 *
 *     mpiexec -n 4 build/bench_overlap [BYTES] [COMPUTE_MS]     default: 4 MiB, 5 ms
 *
 * Each rank starts an all-reduce, computes for a while in a loop that touches no memory, and waits.
 *   none     nothing moves while computing, but what MPI does by itself
 *   poll     the computing is interrupted every 100 us by ll_comm_poll
 *   thread   a thread of the communicator moves it
 * Exposed is what the step takes longer than the computing alone: less is better, 0 is perfect. The
 * slowest rank counts; figures are medians, and the best in parentheses. */
#include "loopline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS = 41, PIECE_US = 100 };

typedef enum mode { NONE, POLL, THREAD, N_MODE } mode;
static const char *const mode_names[] = {"none", "poll", "thread"};

typedef struct bench {
    ll_comm *plain, *threaded;
    float *data;
    int64_t n;
    int64_t loops; /* that take a piece */
    int pieces;
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(ll_err rc)
{
    if (rc == LL_OK) return;
    fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
    exit(1);
}

static volatile double sink;

static void compute(int64_t loops)
{
    double a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int64_t i = 0; i < loops; i++)
        for (int k = 0; k < 8; k++) a[k] = a[k] * 0.999999 + 1e-3;
    double sum = 0;
    for (int k = 0; k < 8; k++) sum += a[k];
    sink = sum;
}

/* Loops that take so long while the other ranks do the same. */
static int64_t calibrate(bench *b, double seconds)
{
    int64_t loops = 100000;
    double best = 1e9;
    for (int k = 0; k < 20; k++) {
        must(ll_comm_barrier(b->plain));
        double began = now();
        compute(loops);
        double took = now() - began;
        if (took < best) best = took;
    }
    double mine = (double)loops * seconds / best;
    must(ll_comm_allreduce(b->plain, &mine, 1, LL_F64, LL_REDUCE_MAX, NULL));
    return (int64_t)mine;
}

/* One step: [with an all-reduce] and [with computing]. */
static double step(bench *b, mode m, bool computes, bool sends, const ll_coll_opts *how)
{
    ll_comm *c = m == THREAD ? b->threaded : b->plain;
    ll_request *r = NULL;
    must(ll_comm_barrier(c));
    double began = now();
    if (sends) must(ll_comm_allreduce_start(c, b->data, b->n, LL_F32, LL_REDUCE_MAX, how, &r));
    for (int k = 0; computes && k < b->pieces; k++) {
        compute(b->loops);
        if (sends && m == POLL) must(ll_comm_poll(c));
    }
    if (sends) must(ll_request_wait(r));
    double took = now() - began;
    must(ll_comm_allreduce(c, &took, 1, LL_F64, LL_REDUCE_MAX, NULL));
    return took;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct times {
    double median, best;
} times;

static times measure(bench *b, mode m, bool computes, bool sends, const ll_coll_opts *how)
{
    double t[REPEATS];
    step(b, m, computes, sends, how);
    for (int k = 0; k < REPEATS; k++) t[k] = step(b, m, computes, sends, how);
    qsort(t, REPEATS, sizeof *t, by_size);
    return (times){t[REPEATS / 2], t[0]};
}

static void report(bench *b, const char *algorithm)
{
    ll_coll_opts how = {.algorithm = algorithm};
    bool speaks = ll_comm_rank(b->plain) == 0;
    times alone = measure(b, NONE, true, false, &how), comm = measure(b, NONE, false, true, &how);
    if (speaks)
        printf("%s: computing alone %.2f ms (%.2f), all-reduce alone %.2f ms (%.2f)\n",
               algorithm ? algorithm : "chosen", alone.median * 1e3, alone.best * 1e3,
               comm.median * 1e3, comm.best * 1e3);
    for (mode m = NONE; m < N_MODE; m++) {
        times both = measure(b, m, true, true, &how);
        if (speaks)
            printf("  %-7s both %.2f ms (%.2f), exposed %.2f ms (%.2f)\n", mode_names[m],
                   both.median * 1e3, both.best * 1e3, (both.median - alone.median) * 1e3,
                   (both.best - alone.best) * 1e3);
    }
    if (speaks) fflush(stdout);
}

int main(int argc, char **argv)
{
    bench b = {.n = (argc > 1 ? atoll(argv[1]) : 4 << 20) / 4};
    double ms = argc > 2 ? atof(argv[2]) : 5;
    if (b.n < 0 || ms <= 0) {
        fprintf(stderr, "usage: bench_overlap [BYTES] [COMPUTE_MS]\n");
        return 2;
    }
    must(ll_comm_open(NULL, &b.plain));
    must(ll_comm_open(&(ll_comm_opts){.thread = true}, &b.threaded));
    b.data = (float *)calloc((size_t)b.n + 1, sizeof(float));
    b.pieces = (int)(ms * 1e3 / PIECE_US) + 1;
    b.loops = calibrate(&b, ms * 1e-3 / b.pieces);
    if (ll_comm_rank(b.plain) == 0)
        printf("%d ranks, %lld bytes\n", ll_comm_size(b.plain), (long long)b.n * 4);
    report(&b, NULL);
    report(&b, "ring");
    report(&b, "mpi");
    free(b.data);
    ll_comm_close(b.threaded);
    ll_comm_close(b.plain);
    return 0;
}
