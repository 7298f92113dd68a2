/* num.h: small arithmetic of whole numbers that every folder needs. */
#pragma once
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline int64_t ll_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t ll_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
/* a / b rounded up, for a >= 0. */
static inline int64_t ll_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
/* a rounded up to a multiple of `to`. */
static inline int64_t ll_round_up(int64_t a, int64_t to)
{
    return ll_ceil_div(a, to) * to;
}
/* Bytes rounded up to whole cache lines. */
static inline size_t ll_align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Sums of products of whole numbers, from -2^bits to 2^bits - 1 and held in f64, where all of them
 * are below 2^63 (pass/exact.c): f64 holds the sum of so many terms; such sums, or single terms,
 * are added in 64 bits. A NaN counts as 0: whoever reads the sum knows of it from elsewhere. */
enum { LL_WHOLE_BITS = 23 };
static inline int64_t ll_whole_terms(int64_t bits)
{
    return (int64_t)1 << (53 - 2 * bits);
}
static inline int64_t ll_whole_add(int64_t sum, double more)
{
    return (int64_t)((uint64_t)sum + (uint64_t)(int64_t)(more == more ? more : 0));
}

#ifdef __cplusplus
}
#endif
