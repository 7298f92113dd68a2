/* few.cuh: products of a size for kernels of our own. few.cu: of few rows, as generation has them:
 * weights are read once, from memory. small.cu: of f32 that a launch costs more than arithmetic. */
#pragma once
#include "kern/cuda/gemm.cuh"

typedef struct few {
    matrix a, b, y;
    ll_dtype in, out;
    const ll_tensor *bias; /* along y's columns; NULL: none */
    int act;               /* LL_ACT_NONE, _RELU or _GELU */
} few;

extern "C" {
bool ll_few_fits(const ll_kcall *c, const few *f);
ll_err ll_few_run(const ll_kcall *c, const few *f);
bool ll_small_fits(const ll_kcall *c, const few *f);
ll_err ll_small_run(const ll_kcall *c, const few *f);
}

/* As solvers: `of` says what product a call is, if it is a plain one. */
typedef bool few_of_call(const ll_kcall *c, few *f);
template <few_of_call *of> bool few_fits(const ll_kcall *c)
{
    few f;
    return of(c, &f) && ll_few_fits(c, &f);
}
template <few_of_call *of> bool small_fits(const ll_kcall *c)
{
    few f;
    return of(c, &f) && ll_small_fits(c, &f);
}
template <few_of_call *of> ll_err run_few(const ll_kcall *c)
{
    few f;
    CHECK(of(c, &f), LL_E_ARG, "a product's sizes have changed");
    return ll_few_run(c, &f);
}
template <few_of_call *of> ll_err run_small(const ll_kcall *c)
{
    few f;
    CHECK(of(c, &f), LL_E_ARG, "a product's sizes have changed");
    return ll_small_run(c, &f);
}

/* ---- what is done with a result ---- */

typedef struct ending {
    const void *bias;
    int bias_type, act, type;
    void *y;
    int64_t rs, cs;
} ending;

static inline ending ending_of(const few *f)
{
    ending e = {};
    if (f->bias) e.bias = f->bias->data, e.bias_type = f->bias->dtype;
    e.act = f->act, e.type = f->out, e.y = (void *)f->y.data, e.rs = f->y.rs, e.cs = f->y.cs;
    return e;
}

static __device__ __forceinline__ void end(const ending &e, int64_t i, int64_t j, float v)
{
    if (e.bias) v += (float)load_any(e.bias, e.bias_type, j);
    if (e.act == LL_ACT_RELU) v = v <= 0 ? 0 : v;
    if (e.act == LL_ACT_GELU)
        v = 0.5f * v * (1 + tanhf((float)LL_GELU_A * (v + (float)LL_GELU_B * v * v * v)));
    store_any(e.y, e.type, i * e.rs + j * e.cs, v);
}
