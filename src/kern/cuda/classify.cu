/* classify.cu: a classifier's product, its cross-entropy and its gradient (fuse/classify.c).
 *
 * By a kernel of our own where it fits (hopper_exp.cu): first the logits of the labels, a dot
 * product for each row; then all exponentials, as the product makes them; then each row's sums are
 * added up, and rows whose sum is too large for a float are made again, slowly. Otherwise as
 * products of some rows at a time, in f32, and a kernel after each. */
#include "kern/cuda/hopper.cuh"
#include "kern/cuda/vec.cuh"
#include "kern/notes.h"
#include "kern/rows.h"

/* ---- by our own kernel ---- */

enum { WARPS = 8, TOGETHER = 32 };

typedef struct rows_of { /* a call; k is a multiple of 8 */
    const bf16 *x, *w, *bias;
    const int32_t *label;
    const float *dloss;
    bf16 *e;
    float *scale, *loss, *from, *sums; /* from: the labels' logits; sums: [tiles, rows] */
    int64_t rows, n, k, *trouble;
} rows_of;

#ifdef LL_HOPPER
/* A logit, by a warp. */
static __device__ __forceinline__ float logit(const rows_of &a, int64_t r, int64_t v)
{
    const uint4 *x = (const uint4 *)(a.x + r * a.k), *w = (const uint4 *)(a.w + v * a.k);
    float sum = 0;
    for (int i = threadIdx.x & 31; i < (int)(a.k / 8); i += 32) {
        float p[8], q[8];
        wide<bf16>::unpack(x[i], p);
        wide<bf16>::unpack(w[i], q);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = fmaf(p[j], q[j], sum);
    }
    return warp_sum(sum) + (a.bias ? to_float(a.bias[v]) : 0.f);
}

static __global__ void label_logits(rows_of a)
{
    int64_t r = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32;
    if (r >= a.rows) return;
    float l = logit(a, r, label_of(a.label, r, a.n, a.trouble));
    if ((threadIdx.x & 31) == 0) a.from[r] = l;
}

/* A row again, from its largest logit, by a block. */
static __device__ void make_again(const rows_of &a, int64_t r)
{
    __shared__ float tops[WARPS], sums[WARPS];
    int warp = threadIdx.x / 32;
    int64_t label = a.label[r];
    float top = -INFINITY, sum = 0;
    for (int64_t v = warp; v < a.n; v += WARPS) {
        float l = logit(a, r, v);
        if (l > top) sum *= expf(top - l), top = l;
        sum += expf(l - top);
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) tops[warp] = top, sums[warp] = sum;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) top = fmaxf(top, tops[i]);
    sum = 0;
    for (int i = 0; i < WARPS; i++) sum += sums[i] > 0 ? sums[i] * expf(tops[i] - top) : 0.f;
    for (int64_t v = warp; v < a.n; v += WARPS) {
        float e = expf(logit(a, r, v) - top) - (v == label ? sum : 0.f);
        if ((threadIdx.x & 31) == 0) a.e[r * a.n + v] = __float2bfloat16_rn(e);
    }
    if (threadIdx.x == 0) a.scale[r] = a.dloss[r] / sum, a.loss[r] = logf(sum) + top - a.from[r];
}

/* The sums of TOGETHER rows, a warp some tiles of each, and what is known then. */
static __global__ void __launch_bounds__(32 * WARPS) add_up(rows_of a, int tiles)
{
    __shared__ float part[WARPS][TOGETHER];
    __shared__ unsigned again;
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int64_t first = blockIdx.x * (int64_t)TOGETHER, r = first + lane;
    float sum = 0;
    if (r < a.rows)
#pragma unroll 8
        for (int t = warp; t < tiles; t += WARPS) sum += a.sums[t * a.rows + r];
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = part[0][lane];
        for (int i = 1; i < WARPS; i++) sum += part[i][lane];
        if (r < a.rows) {
            int64_t k = a.label[r];
            if (k >= 0 && k < a.n) a.e[r * a.n + k] = __float2bfloat16_rn(1.f - sum);
            a.scale[r] = a.dloss[r] / sum;
            a.loss[r] = logf(sum);
        }
        unsigned mask = __ballot_sync(0xffffffffu, r < a.rows && sum > (float)LL_CLASSIFY_MOST);
        if (lane == 0) again = mask;
    }
    __syncthreads();
    for (unsigned mask = again; mask; mask &= mask - 1) make_again(a, first + __ffs(mask) - 1);
}

static matrix matrix_of(const ll_tensor *t)
{
    return matrix{t->data, ll_rows(t), ll_cols(t), ll_cols(t), 1, 0};
}

/* Whether the call is one for it. */
static bool own_of(const ll_kcall *c, hopper_exp *h)
{
    if (!is_hopper(c) || c->in[0].dtype != LL_BF16 || ll_numel(&c->out[0].shape) == 0) return false;
    matrix w = matrix_of(&c->in[1]);
    *h = hopper_exp{
        matrix_of(&c->in[0]), ll_blas_transposed(&w), matrix_of(&c->out[0]), NULL, NULL, NULL};
    if (c->n_in == 5) h->bias = c->in[4].data;
    return ll_hopper_exp_fits(h);
}

static bool own_fits(const ll_kcall *c)
{
    hopper_exp h;
    return own_of(c, &h);
}

static size_t own_scratch(const ll_kcall *c) /* `from`, and sums of tiles */
{
    int64_t tiles = ll_ceil_div(ll_cols(&c->out[0]), HOPPER_COLUMNS);
    return (size_t)(ll_rows(&c->out[0]) * (1 + tiles)) * sizeof(float) + LL_WORKSPACE_SLACK;
}

static ll_err run_own(const ll_kcall *c)
{
    hopper_exp h;
    rows_of a = {};
    CHECK(own_of(c, &h), LL_E_ARG, "a product's tensors do not start at multiples of 16 bytes");
    a.x = (const bf16 *)c->in[0].data, a.w = (const bf16 *)c->in[1].data;
    a.bias = (const bf16 *)h.bias;
    a.label = (const int32_t *)c->in[2].data, a.dloss = (const float *)c->in[3].data;
    a.e = (bf16 *)c->out[0].data;
    a.scale = (float *)c->out[1].data, a.loss = (float *)c->out[2].data;
    a.rows = h.y.rows, a.n = h.y.cols, a.k = h.a.cols, a.trouble = c->trouble;
    a.from = (float *)workspace_of(c), a.sums = a.from + a.rows;
    h.from = a.from, h.sums = a.sums;
    TRY(launch(c, label_logits, ll_ceil_div(a.rows, WARPS), 32 * WARPS, a));
    TRY(ll_hopper_exp_run(c, &h));
    return launch(c, add_up, ll_ceil_div(a.rows, TOGETHER), 32 * WARPS, a,
                  ll_ceil_div(a.n, HOPPER_COLUMNS));
}
#endif

/* ---- as a product and a kernel, some rows at a time ---- */

enum { LOGITS = 64 << 20 }; /* so many in f32 */

static int64_t rows_at_once(const ll_kcall *c)
{
    int64_t rows = ll_rows(&c->out[0]), n = ll_cols(&c->out[0]);
    int64_t some = n ? LOGITS / n : rows;
    return some < 1 ? 1 : some < rows ? some : rows;
}

/* Logits l as they become exponentials; a block has a row. */
template <class T>
static __global__ void finish_rows(const float *l, const T *bias, const int32_t *label,
                                   const float *dloss, T *e, float *scale, float *loss, int64_t n,
                                   int64_t *trouble)
{
    int64_t r = blockIdx.x, k = label[r] >= 0 && label[r] < n ? label[r] : 0;
    if (threadIdx.x == 0) label_of(label, r, n, trouble);
    auto at = [&](int64_t v) { return l[r * n + v] + (bias ? to_float(bias[v]) : 0.f); };
    float top = -INFINITY, sum = 0, picked = at(k);
    for (int64_t v = threadIdx.x; v < n; v += blockDim.x) top = fmaxf(top, at(v));
    top = block_max(top);
    for (int64_t v = threadIdx.x; v < n; v += blockDim.x) sum += expf(at(v) - top);
    sum = block_sum(sum);
    float with = sum * expf(top - picked);
    bool large = with > (float)LL_CLASSIFY_MOST;
    float from = large ? top : picked;
    if (!large) sum = with;
    for (int64_t v = threadIdx.x; v < n; v += blockDim.x)
        e[r * n + v] = from_float<T>::of(expf(at(v) - from) - (v == k ? sum : 0.f));
    if (threadIdx.x == 0) scale[r] = dloss[r] / sum, loss[r] = logf(sum) + from - picked;
}

static ll_err as_kernels(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *e = &c->out[0];
    int64_t rows = ll_rows(e), n = ll_cols(e), k = ll_cols(x), some = rows_at_once(c);
    if (n == 0) return LL_OK;
    float *logits = (float *)((char *)workspace_of(c) + GEMM_WORKSPACE + LL_WORKSPACE_SLACK);
    for (int64_t r = 0; r < rows; r += some) {
        int64_t m = rows - r < some ? rows - r : some;
        ll_tensor in[2] = {*x, c->in[1]}, out = {logits, LL_F32, LL_SHAPE(m, n)};
        in[0].data = (char *)x->data + (size_t)(r * k) * ll_dtype_bytes(x->dtype);
        in[0].shape = LL_SHAPE(m, k);
        ll_kcall product = *c;
        product.in = in, product.out = &out;
        TRY(ll_blas_product(&product, "rk,nk->rn"));
        TRY(with_wide(x->dtype, [&](auto z) -> ll_err {
            typedef decltype(z) T;
            return launch(c, finish_rows<T>, m, n > 1024 ? 512 : 128, logits,
                          c->n_in == 5 ? c->in[4].data : NULL, (int32_t *)c->in[2].data + r,
                          (float *)c->in[3].data + r, (T *)e->data + r * n,
                          (float *)c->out[1].data + r, (float *)c->out[2].data + r, n, c->trouble);
        }));
    }
    return LL_OK;
}

static size_t kernels_scratch(const ll_kcall *c)
{
    size_t logits = (size_t)(rows_at_once(c) * ll_cols(&c->out[0])) * sizeof(float);
    return GEMM_WORKSPACE + 2 * LL_WORKSPACE_SLACK + logits;
}

/* Fits all; a person is told that one kernel would do. */
static bool kernels_fit(const ll_kcall *)
{
    ll_kern_note("logits and their loss take a product and a kernel for some rows at a time: the "
                 "one kernel is for GPUs of compute capability 9.0");
    return true;
}

extern "C" const ll_solver classify_cuda[] = {
#ifdef LL_HOPPER
    {"sm90", own_fits, own_scratch, run_own},
#endif
    {"kernels", kernels_fit, kernels_scratch, as_kernels},
    {}};
