/* layernorm.cuh: one call of a layer or root-mean-square norm or its gradient; gradients are
 * layernorm_back.cu's, plain ways to answer at any size and element type layernorm_plain.cu's. */
#pragma once
#include "kern/cuda/gpu.cuh"

/* What a call reads and writes; what is NULL is not there. Statistics and gains are f32, f64 beside
 * f64. */
typedef struct norming {
    const void *x, *plus, *before, *dy, *skip; /* x + plus + before, of which before has n */
    const void *gain, *bias, *mean, *rstd;
    void *sum, *y, *mean_out, *rstd_out, *dx, *dgain, *dbias, *dsum;
    int64_t rows, n;
    double eps;
    bool centre; /* layer norm: rows have a mean */
    ll_dtype dtype;
} norming;

extern "C" {
/* The gradient, with the sums of columns that it asks for; fits: not by plain loops. */
bool ll_norm_back_fits(const ll_kcall *c, const norming *a);
ll_err ll_norm_back(const ll_kcall *c, const norming *a);
/* Bytes that so many sums take, with or without a tensor that is added. */
size_t ll_norm_back_scratch(const ll_kcall *c, const norming *a, int sums, bool skip);

/* By plain loops. */
ll_err ll_norm_plain(const ll_kcall *c, const norming *a);
/* Sums of columns, so many, go to the scratch as [blocks][sums][n]. */
ll_err ll_norm_back_plain(const ll_kcall *c, const norming *a, int blocks, int sums);
}
