/* team.h: how many threads a kernel takes: the one rule, by how long the work would take on one.
 *
 * A parallel region has one thread or all of them. The OpenMP library (libgomp) ends the threads
 * that a smaller team leaves over and starts new ones for the next larger team: steps whose kernels
 * took 2, 9 and 16 threads in turns spent most of their time on that. Where there are fewer parts
 * than threads, the others go straight to the region's end. The rule reads no clock, for sums may
 * depend on the number of parts: the same call gives the same bits. `bench_threads` measures what
 * it is made of. */
#pragma once
#include <stdint.h>

/* Nanoseconds that a region takes: two meetings of all threads; and of one more thread in it. */
enum { LL_REGION_NS = 500, LL_REGION_THREAD_NS = 200 };
/* In a nanosecond on one thread: elementary operations of a loop over numbers; multiply-adds of a
 * product's tiles, edges and packing included. */
enum { LL_OPS_NS = 8, LL_PRODUCTS_NS = 32 };

/* One, or all where they are done sooner. */
static inline int ll_team_of(int threads, double ns)
{
    double region = LL_REGION_NS + (double)LL_REGION_THREAD_NS * threads;
    return threads > 1 && ns * (threads - 1) > region * threads ? threads : 1;
}

/* For so many elementary operations; for so many multiply-adds. */
static inline int ll_team_for(int threads, int64_t work)
{
    return ll_team_of(threads, (double)work / LL_OPS_NS);
}
static inline int ll_team_for_products(int threads, double work)
{
    return ll_team_of(threads, work / LL_PRODUCTS_NS);
}
