/* num.h: small arithmetic of whole numbers that every folder needs. */
#pragma once
#include "base/err.h"

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
/* a / b rounded down, for any a and b > 0. */
static inline int64_t ll_floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}
/* a rounded up to a multiple of `to`. */
static inline int64_t ll_round_up(int64_t a, int64_t to)
{
    return ll_ceil_div(a, to) * to;
}
/* A number of so many bytes (at most 8), the least one first, or last. */
static inline uint64_t ll_le(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    while (bytes--) v = v << 8 | p[bytes];
    return v;
}
static inline uint64_t ll_be(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v = v << 8 | p[i];
    return v;
}
/* FNV-1a of so many bytes more; begin with LL_HASH. */
#define LL_HASH 14695981039346656037u
static inline uint64_t ll_hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const uint8_t *)data)[i]) * 1099511628211u;
    return h;
}
/* A hash with a number more, cheaper than ll_hash; begin with anything. */
static inline uint64_t ll_mix64(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}
/* Bytes rounded up to whole cache lines. */
static inline size_t ll_align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Sums of products in f64 that are the same in any order: they start here, with fused multiply-adds
 * all the way, and it is taken away again at the end. From 2^(52 + bits) to twice that neighbours
 * in f64 are 2^bits apart. So while a sum is less than 2^(51 + bits) away from its start, adding a
 * product rounds it to a multiple of 2^bits, whatever was summed before; but for products half way
 * between two multiples, which go to the even one. There are none where factors are odd whole
 * numbers, or 0, and bits is 2 or more. What is left without the start is exact, and so are sums
 * of such parts. 0: plain sums. */
enum { LL_MOST_ROUNDED = 100 }; /* of bits */
static inline double ll_sum_start(int64_t bits)
{
    return bits ? __builtin_ldexp(1.5, 52 + (int)bits) : 0;
}
