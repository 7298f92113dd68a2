/* chain.h: the one engine of elementwise work on the cpu: runs a chain (kern/attr.h) tile by tile.
 */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

enum { LL_TILE = 1024 }; /* elements a step works on at once: a few tiles fit the first cache */

/* One step over n elements. y may be a, b or c. */
typedef void ll_step(float *y, const float *a, const float *b, const float *c, float k, float j,
                     int n);

/* What steps can be: the ops of LL_EW, and a product with a sum after it, both rounded. */
enum ll_step_op {
    LL_STEP_MUL_ADD = LL_N_EW, /* a b + c */
    LL_STEP_MUL_SUB,           /* a b - c */
    LL_STEP_SUB_MUL,           /* c - a b */
    LL_STEP_MUL_SHIFT,         /* a b + k */
    LL_STEP_SCALE_ADD,         /* k a + c */
    LL_STEP_SCALE_SUB,         /* k a - c */
    LL_STEP_SCALE_SHIFT,       /* k a + j */
    LL_N_STEP
};
extern ll_step *const ll_steps[LL_N_STEP];
ll_step ll_mul_add_step, ll_mul_sub_step, ll_sub_mul_step, ll_mul_shift_step, ll_scale_add_step,
    ll_scale_sub_step, ll_scale_shift_step; /* steps_pair.c */
/* About how many additions one element of an op costs, to decide on threads. */
int ll_step_cost(int op);

/* n elements of a tensor from element e on, as f32, and back. */
void ll_tile_load(const ll_tensor *x, int64_t e, int n, float *y);
void ll_tile_store(const ll_tensor *y, int64_t e, int n, const float *x);

/* One elementwise op in f64, its number k, for any element types. */
void ll_elementwise_f64(const ll_kcall *c, ll_ew op, double k);

/* Tensors in[] and out[] as f->n_in and f->n_out say. An output may be the very buffer of an input
 * that has its size and type. */
void ll_chain_run(const ll_fused_attr *f, const ll_tensor *in, const ll_tensor *out, int threads);
