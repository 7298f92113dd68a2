/* all_reduce.c: ranks that sum a vector, by every way of doing it. Alone it is one rank; as four:
 *     mpirun -n 4 ./all_reduce
 * Every algorithm must give the same sum; the tuner's choice (no name) is one of them. */
#include <loopline.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N = 1 << 20, TIMES = 20 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, ll_error_text());
    return 1;
}

int main(void)
{
    static const char *const names[] = {"ring", "rabenseifner", "tree", "sharded", NULL};
    ll_comm *c;
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 30, .table = ""}, &c) != LL_OK)
        return stop("opening");
    int rank = ll_comm_rank(c), size = ll_comm_size(c), wrong = 0;
    float *x = (float *)malloc(N * sizeof *x);
    if (!x) return 1;
    for (int a = 0; a < 5; a++) {
        ll_coll_opts o = {.algorithm = names[a], .site = "example"};
        double best = 1e9;
        for (int k = 0; k < TIMES; k++) {
            for (int i = 0; i < N; i++) x[i] = (float)(rank + i % 7);
            double t = now();
            if (ll_comm_allreduce(c, x, N, LL_F32, LL_REDUCE_SUM, &o) != LL_OK)
                return stop("all-reduce");
            if (now() - t < best) best = now() - t;
        }
        for (int i = 0; i < N; i++)
            wrong += x[i] != (float)(size * (size - 1) / 2 + size * (i % 7));
        if (rank == 0)
            printf("%-14s %d ranks, 4 MiB: %.3f ms\n", names[a] ? names[a] : "chosen", size,
                   1e3 * best);
    }
    free(x);
    ll_comm_close(c);
    if (wrong) printf("rank %d: %d wrong sums\n", rank, wrong);
    return wrong != 0;
}
