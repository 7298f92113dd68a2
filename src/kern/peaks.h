/* peaks.h: which row of the operand a tap reads; shared by the kernels of peaks. */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

#ifdef __CUDACC__
#define LL_ANYWHERE static __host__ __device__ inline
#else
#define LL_ANYWHERE static inline
#endif

/* Of row (k = 0) or column (k = 1) `at` of the result, under tap t; -1: none of n. */
LL_ANYWHERE int64_t ll_tap_reads(const ll_peaks_attr *a, int k, int64_t at, int64_t t, int64_t n)
{
    int64_t by = t * a->dilation[k] - a->pad[2 * k];
    int64_t i = a->back ? at - by : at * a->stride[k] + by;
    if (a->back && (i < 0 || i % a->stride[k])) return -1;
    if (a->back) i /= a->stride[k];
    return i < 0 || i >= n ? -1 : i;
}
