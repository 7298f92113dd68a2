/* topk.h: the k largest of input + residual, in one pass over memory. */
#pragma once
#include "base/arena.h"

typedef struct ll_topk ll_topk;

/* For vectors of n elements (fewer than 2^32), of which k (1..n, or 0 where n is 0) are taken. */
ll_err ll_topk_open(int64_t n, int64_t k, ll_topk **out);
void ll_topk_close(ll_topk *t);
LL_OWNED(ll_topk, ll_topk_close);

/* Adds data [n] to residual [n]; moves the k elements of the sum that are largest by magnitude,
 * ties to the lower index, to (index, value) [k], indices ascending; leaves zeros in data and, at
 * the moved elements, in residual. NaN counts as larger than infinity. A moved -0 becomes 0.
 * *norm2: the square of the sum's 2-norm, to about 6 digits (for reports). */
void ll_topk_take(ll_topk *t, float *data, float *residual, uint32_t *index, float *value,
                  double *norm2);
