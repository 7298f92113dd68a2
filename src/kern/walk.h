/* walk.h: a box of elements as several tensors see it: dimensions, and how far each steps in each
 * of them. */
#pragma once
#include "kern/both.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LL_WALKERS = 2 };

typedef struct ll_walk {
    int n, walkers;
    int64_t size[LL_MAX_DIMS], stride[LL_WALKERS][LL_MAX_DIMS]; /* in elements; 0: repeated */
} ll_walk;

/* Row-major strides of a shape. */
void ll_walk_strides(const ll_shape *s, int64_t stride[LL_MAX_DIMS]);
/* Leaves out dimensions of 1 and makes neighbours one that every walker walks as one; one dimension
 * is left. */
void ll_walk_merge(ll_walk *w);
/* Dimension d goes last, and those after it move up. */
void ll_walk_last(ll_walk *w, int d);
/* Where a walker is at point number `at` of the first n dimensions, the last of them fastest. */
static inline LL_BOTH int64_t ll_walk_at(const ll_walk *w, int walker, int n, int64_t at)
{
    int64_t sum = 0;
    for (int i = n - 1; i >= 0; i--) {
        sum += at % w->size[i] * w->stride[walker][i];
        at /= w->size[i];
    }
    return sum;
}

#ifdef __cplusplus
}
#endif
