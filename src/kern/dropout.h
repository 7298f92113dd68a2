/* dropout.h: which random number belongs to an element: shared by the kernels of dropout. */
#pragma once
#include "kern/attr.h"

/* Element i of a part of this shape as an index in the whole tensor, after all earlier
 * micro-batches. */
static inline LL_BOTH uint64_t ll_dropout_index(const ll_dropout_attr *a, const ll_shape *s,
                                                int64_t micro, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int d = s->n - 1; d >= 0; d--) {
        index += (i % s->d[d] + a->at[d]) * stride;
        i /= s->d[d];
        stride *= a->whole.d[d];
    }
    return (uint64_t)(index + micro * stride);
}
