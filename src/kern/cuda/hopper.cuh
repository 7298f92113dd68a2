/* hopper.cuh: products of bf16 matrices by a kernel of our own, for GPUs of compute capability 9.0
 * (hopper.cu). y = a b in f32, and then one of these; y is bf16, rows of all matrices are whole
 * multiples of 16 bytes. */
#pragma once
#include "kern/cuda/gemm.cuh"

typedef enum hopper_epilogue {
    HOPPER_BIAS,  /* y + bias */
    HOPPER_SLOPE, /* gelu(y + bias), and z = gelu'(y + bias) */
    HOPPER_TIMES, /* y z, and the sums of its columns where they are wanted */
    HOPPER_N_EPILOGUE
} hopper_epilogue;

enum { HOPPER_ROWS = 128 }; /* of a tile: sums[i] is of so many rows */

typedef struct hopper { /* row-major: a [rows, k], b [k, columns] or its transpose, y, z */
    hopper_epilogue epilogue;
    matrix a, b, y;
    const void *bias;
    void *z;
    float *sums; /* [ceil(rows / HOPPER_ROWS), columns], or NULL */
} hopper;

/* exp(a b + bias - from) in place of a b, from being a number for each row; and its sums over
 * HOPPER_COLUMNS columns each (hopper_exp.cu). b is [columns, k]. */
enum { HOPPER_COLUMNS = 192 };
typedef struct hopper_exp {
    matrix a, b, y;
    const void *bias; /* [columns], or NULL */
    const float *from;
    float *sums; /* [ceil(columns / HOPPER_COLUMNS), rows] */
} hopper_exp;

/* y = a b, and of its columns the sums and the sums of squares (hopper_stats.cu). b is [columns,
 * k]. */
typedef struct hopper_stats {
    matrix a, b, y;
    float *parts; /* [ll_hopper_stats_parts, 2, columns] */
} hopper_stats;

/* fits: whether it takes this product, on a GPU that has it. */
extern "C" {
bool ll_hopper_fits(const hopper *h);
ll_err ll_hopper_run(const ll_kcall *c, const hopper *h);
bool ll_hopper_exp_fits(const hopper_exp *h);
ll_err ll_hopper_exp_run(const ll_kcall *c, const hopper_exp *h);
bool ll_hopper_stats_fits(const ll_kcall *c, const hopper_stats *h);
int ll_hopper_stats_parts(const ll_kcall *c, const hopper_stats *h);
ll_err ll_hopper_stats_run(const ll_kcall *c, const hopper_stats *h);
}
