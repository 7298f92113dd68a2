/* einsum.h: the loops of a product "btc,nc->btn" with the stride each has in a, b and c. */
#pragma once
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

#ifdef __cplusplus
}
#endif
