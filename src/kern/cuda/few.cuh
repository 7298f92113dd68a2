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

/* As solvers: `of` says what product a call is, if it is one of few rows. */
typedef bool few_of_call(const ll_kcall *c, few *f);
template <few_of_call *of> bool few_fits(const ll_kcall *c)
{
    few f;
    return of(c, &f);
}
template <few_of_call *of> ll_err run_few(const ll_kcall *c)
{
    few f;
    CHECK(of(c, &f), LL_E_ARG, "a product's sizes have changed");
    return ll_few_run(c, &f);
}
