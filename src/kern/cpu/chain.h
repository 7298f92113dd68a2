/* chain.h: the one engine of elementwise work on the cpu: runs a chain (kern/attr.h) tile by tile.
 */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

enum { LL_TILE = 1024 }; /* elements a step works on at once: a few tiles fit the first cache */

/* One step over n elements. y may be a, b or c. */
typedef void ll_chain_step(float *y, const float *a, const float *b, const float *c, float k,
                           float j, int n);

/* A product with a sum after it, both rounded: X(name, operands, value at element i) */
#define LL_PAIRS(X)                                                                                \
    X(mul_add, 3, a[i] * b[i] + c[i])                                                              \
    X(mul_sub, 3, a[i] * b[i] - c[i])                                                              \
    X(sub_mul, 3, c[i] - a[i] * b[i])                                                              \
    X(mul_shift, 2, a[i] * b[i] + k)                                                               \
    X(scale_add, 3, k *a[i] + c[i])                                                                \
    X(scale_sub, 3, k *a[i] - c[i])                                                                \
    X(scale_shift, 1, k *a[i] + j)

/* What steps can be: the ops of LL_EW, and pairs. */
enum ll_step_op {
    LL_STEP_before = LL_N_EW - 1,
#define X(name, operands, value) LL_STEP_##name,
    LL_PAIRS(X)
#undef X
        LL_N_STEP
};
extern ll_chain_step *const ll_chain_steps[LL_N_STEP];
#define X(name, operands, value) extern ll_chain_step ll_##name##_step; /* steps_pair.c */
LL_PAIRS(X)
#undef X
/* About how many additions one element of an op costs, to decide on threads. */
int ll_step_cost(int op);

/* n elements of a tensor from element e on, as f32, and back. */
void ll_tile_load(const ll_tensor *x, int64_t e, int n, float *y);
void ll_tile_store(const ll_tensor *y, int64_t e, int n, const float *x);

/* One elementwise op in f64, its number k, for any element types. */
void ll_elementwise_f64(const ll_kcall *c, ll_ew op, double k);

/* The call's tensors as f->n_in and f->n_out say. An output may be the very buffer of an input that
 * has its size and type. */
void ll_chain_run(const ll_fused_attr *f, const ll_kcall *c);
