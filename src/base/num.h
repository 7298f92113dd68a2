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

#ifdef __cplusplus
}
#endif
