/* share.h: the one way in which a range is cut into parts, equal or nearly: of blocks among ranks,
 * of dimensions along axes, of chunks into pieces. */
#pragma once
#include "base/err.h"

/* Part i of p of n elements: [*from, *to). */
static inline void ll_share(int64_t n, int p, int i, int64_t *from, int64_t *to)
{
    *from = n / p * i + n % p * i / p;
    *to = n / p * (i + 1) + n % p * (i + 1) / p;
}

/* Where the canonical tree over n parts is cut: the largest power of two below n. */
static inline int ll_tree_split(int n)
{
    int q = 1;
    while (2 * q < n) q *= 2;
    return q;
}
