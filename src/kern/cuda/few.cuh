/* few.cuh: products of few rows, as generation has them: weights are read once, from memory. */
#pragma once
#include "kern/cuda/gemm.cuh"

typedef struct few {
    matrix a, b, y;
    ll_dtype in, out;
    const ll_tensor *bias; /* along y's columns; NULL: none */
    int act;               /* LL_ACT_NONE, _RELU or _GELU */
} few;

extern "C" {
bool ll_few_fits(const few *f);
ll_err ll_few_run(const ll_kcall *c, const few *f);
}
