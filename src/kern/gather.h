/* gather.h: a gather's result as it lies in its operands (see op/gather.c,
 * op/embedding.c). */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_gather_walk {
    int n;                      /* dimensions of y */
    int64_t d[LL_MAX_DIMS];     /* its extents */
    int64_t x[LL_MAX_DIMS];     /* strides in x, 0: it is not there; */
    int64_t index[LL_MAX_DIMS]; /* and in the index */
    int64_t v, step, from;      /* of x's picked dimension: extent, stride, first index */
    int64_t whole;              /* indices from here on, and those below 0, are wrong */
} ll_gather_walk;
ll_err ll_gather_of(const ll_gather_attr *a, const ll_shape *x, const ll_shape *index,
                    const ll_shape *y, ll_gather_walk *out);
/* The same of an embedding: rows of a table [v,c]. */
ll_gather_walk ll_gather_rows(const ll_embedding_attr *a, const ll_shape *table,
                              const ll_shape *index);

#ifdef __cplusplus
}
#endif
