/* einsum.h: the loops of a product "btc,nc->btn" with the stride each has in a, b and c. */
#pragma once
#include "kern/both.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LL_EINSUM_LOOPS = 2 * LL_MAX_DIMS };
enum { LL_EINSUM_A, LL_EINSUM_B, LL_EINSUM_C };

typedef struct ll_einsum_loop {
    int64_t extent;
    int64_t stride[3]; /* elements of a, b, c; 0 where the operand does not have it */
    bool has[3];
} ll_einsum_loop;

/* The letters in order: the result's first, then the summed ones. Returns how many. The op has
 * checked the spec: letters alone, none twice in one operand, shapes that fit. */
int ll_einsum_read(const char *spec, const ll_shape *a, const ll_shape *b, const ll_shape *c,
                   ll_einsum_loop loop[LL_EINSUM_LOOPS]);

/* The loops folded into one strided matrix product C[row,column] = sum A[row,sum] B[sum,column] and
 * what is left: loops around it, and sums of several such products. Loops of one kind that lie side
 * by side in both tensors become one; the longest of each kind is the product's. */
typedef struct ll_einsum_plan {
    ll_einsum_loop row, column, sum;
    ll_einsum_loop around[LL_EINSUM_LOOPS], sums[LL_EINSUM_LOOPS];
    int n_around, n_sums;
} ll_einsum_plan;
void ll_einsum_fold(const char *spec, const ll_shape *a, const ll_shape *b, const ll_shape *c,
                    ll_einsum_plan *out);
/* Offsets into a, b, c of point number `at` of these loops, the last one fastest. */
static inline LL_BOTH void ll_einsum_offsets(const ll_einsum_loop *l, int n, int64_t at,
                                             int64_t off[3])
{
    off[0] = off[1] = off[2] = 0;
    for (int i = n - 1; i >= 0; i--) {
        int64_t x = at % l[i].extent;
        at /= l[i].extent;
        for (int t = 0; t < 3; t++) off[t] += x * l[i].stride[t];
    }
}
int64_t ll_einsum_points(const ll_einsum_loop *loop, int n);

#ifdef __cplusplus
}
#endif
