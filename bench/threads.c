/* bench_threads: what kern/cpu/team.h is made of, on this machine: the time of an empty parallel
 * region with 2, 4, ... threads, of regions of two sizes in turns (the OpenMP library may end and
 * start threads), and of loops shared by all threads beside the same loops on one.
 * usage: bench_threads [THREADS]     the best of many; other jobs on the cores spoil it */
#include "base/now.h"
#include "kern/cpu/row.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { TIMES = 200, REGIONS = 20, MOST = 1 << 20 };

/* Microseconds of a region, of a and of b threads in turns. */
static double region(int a, int b)
{
    double best = INFINITY;
    for (int i = 0; i < TIMES; i++) {
        double began = ll_now();
        for (int j = 0; j < REGIONS; j++) {
#pragma omp parallel num_threads(j % 2 ? a : b)
            __asm__ volatile("" ::: "memory");
        }
        best = fmin(best, (ll_now() - began) / REGIONS);
    }
    return 1e6 * best;
}

static void twice(const void *job, int64_t from, int64_t to)
{
    float *x = *(float *const *)job;
    for (int64_t i = from; i < to; i++) x[i] = 2 * x[i] + 1;
}

static double loop(int threads, int64_t n, float *x)
{
    double best = INFINITY;
    for (int i = 0; i < TIMES; i++) {
        double began = ll_now();
        for (int j = 0; j < REGIONS; j++) ll_in_parts(threads, n, twice, (const void *)&x);
        best = fmin(best, (ll_now() - began) / REGIONS);
    }
    return 1e6 * best;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : omp_get_max_threads();
    float *x = (float *)calloc(MOST, sizeof *x);
    if (!x || threads < 1) return 1;
    printf("%8s %14s %22s\n", "threads", "region, us", "in turns with all, us");
    for (int t = 1; t < 2 * threads; t *= 2) {
        int n = t < threads ? t : threads;
        printf("%8d %14.2f %22.2f\n", n, region(n, n), region(n, threads));
    }
    printf("\n%8s %14s %14s   the rule (elementary operations) takes\n", "numbers", "one, us",
           "all, us");
    for (int64_t n = 1 << 10; n <= MOST; n *= 4)
        printf("%8lld %14.2f %14.2f   %d\n", (long long)n, loop(1, n, x), loop(threads, n, x),
               ll_team_for(threads, n));
    free(x);
    return 0;
}
