/* cross_entropy.cu: softmax, cross-entropy and its gradient, right answers.
 *
 * A block takes a row. Maximum and sum of exponentials are made together (a running pair), so that
 * logits are read once for them. Loss and gradient in one go (cross_entropy_back) read a row twice,
 * the second time mostly from the cache. */
#include "kern/cuda/vec.cuh"
#include "kern/rows.h"

#include <type_traits>

static int row_threads(int64_t n)
{
    return n <= 128 ? 32 : n <= 1024 ? 128 : n <= 8192 ? 256 : 1024;
}

/* ---- exponentials: of f32 and f64 as exact as the library's, of bf16 in base 2 ---- */

enum { PLAIN, WIDE }; /* elements one at a time, or 16 bytes */
#define LOG2E 1.4426950408889634f

/* exp(x - by) */
template <class T> struct power {
    typedef typename sum_of<T>::type S;
    S by;
    __device__ __forceinline__ explicit power(S by) : by(by) {}
    __device__ __forceinline__ S of(S x) const { return exp(x - by); }
};
template <> struct power<bf16> {
    float by;
    __device__ __forceinline__ explicit power(float by) : by(by * LOG2E) {}
    __device__ __forceinline__ float of(float x) const { return power_of_2(fmaf(x, LOG2E, -by)); }
};

/* Maximum and sum of exp(x - maximum), together. */
template <class S> struct lse_pair {
    S top, sum;
};
/* A warp's pairs as one, which every lane gets. */
template <class S> __device__ __forceinline__ lse_pair<S> join_warp(lse_pair<S> p)
{
    S top = warp_max(p.top), from = top == (S)-INFINITY ? (S)0 : top;
    return {top, warp_sum(p.sum ? p.sum * exp(p.top - from) : (S)0)};
}

/* A block's pairs as one, which every thread gets. */
template <class S> __device__ __forceinline__ lse_pair<S> join_block(lse_pair<S> p)
{
    __shared__ S tops[32], sums[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    p = join_warp(p);
    if (lane == 0) tops[warp] = p.top, sums[warp] = p.sum;
    __syncthreads();
    bool has = lane < (blockDim.x + 31) / 32;
    return join_warp(lse_pair<S>{has ? tops[lane] : (S)-INFINITY, has ? sums[lane] : (S)0});
}

/* Adds N numbers to a pair. Of nothing but -infinity the sum stays 0; a NaN goes into the sum. */
template <class T, int N>
__device__ __forceinline__ void add_some(lse_pair<float> &p, const float *v)
{
    float top = p.top;
#pragma unroll
    for (int i = 0; i < N; i++) top = fmaxf(top, v[i]);
    float from = top == -INFINITY ? 0.f : top, sum = p.sum * power<T>(from).of(p.top);
    power<T> e(from);
#pragma unroll
    for (int i = 0; i < N; i++) sum += e.of(v[i]);
    p = {top, sum};
}

template <class T, class S> __device__ lse_pair<S> row_pair_plain(const T *x, int64_t n)
{
    lse_pair<S> p = {(S)-INFINITY, 0};
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S v = (S)to_float(x[j]);
        if (v > p.top || v != v) {
            p.sum = p.sum ? p.sum * exp(p.top - v) : (S)0;
            p.top = v;
        }
        p.sum += exp(v - p.top);
    }
    return p;
}

/* This thread's pair of a row, from memory of any kind. */
template <class T, int HOW>
__device__ lse_pair<typename sum_of<T>::type> row_pair(const T *x, int64_t n)
{
    typedef typename sum_of<T>::type S;
    if constexpr (HOW == PLAIN)
        return row_pair_plain<T, S>(x, n);
    else {
        enum { N = wide<T>::N };
        lse_pair<float> p = {-INFINITY, 0};
#pragma unroll 4
        for (int j = threadIdx.x; j < (int)(n / N); j += blockDim.x) {
            float v[N];
            wide<T>::unpack(((const uint4 *)x)[j], v);
            add_some<T, N>(p, v);
        }
        return p;
    }
}

/* y = (exp(x - all) - (1 at label)) by, y perhaps on x; label -1: none. */
template <class T, int HOW>
__device__ void row_gradient(const T *x, T *y, int64_t n, typename sum_of<T>::type all,
                             int64_t label, typename sum_of<T>::type by)
{
    typedef typename sum_of<T>::type S;
    power<T> e(all);
    if constexpr (HOW == PLAIN)
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            y[j] = from_float<T>::of((e.of((S)to_float(x[j])) - (S)(j == label)) * by);
    else {
        enum { N = wide<T>::N };
#pragma unroll 4
        for (int j = threadIdx.x; j < (int)(n / N); j += blockDim.x) {
            float v[N];
            wide<T>::unpack(((const uint4 *)x)[j], v);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] = e.of(v[i]) * by;
            if (label >= 0 && label / N == j)
#pragma unroll
                for (int i = 0; i < N; i++) v[i] -= label % N == i ? by : 0.f;
            ((uint4 *)y)[j] = wide<T>::pack(v);
        }
    }
}

/* f(T{}, how) for logits of this type, in rows of n. */
template <class F> static ll_err with_rows(const ll_tensor *x, F f)
{
    typedef std::integral_constant<int, PLAIN> plain;
    typedef std::integral_constant<int, WIDE> by16;
    if (ll_rows(x) == 0) return LL_OK;
    if (is_wide(x->dtype, ll_cols(x)) && ll_cols(x) >= 64)
        return with_wide(x->dtype, [&](auto z) -> ll_err { return f(z, by16{}); });
    return with_float(x->dtype, [&](auto z) -> ll_err { return f(z, plain{}); });
}

/* ---- softmax ---- */

template <class T, int HOW> static __global__ void softmax(const T *x, T *y, int64_t n)
{
    typedef typename sum_of<T>::type S;
    int64_t at = blockIdx.x * n;
    lse_pair<S> p = join_block(row_pair<T, HOW>(x + at, n));
    row_gradient<T, HOW>(x + at, y + at, n, p.top, -1, (S)1 / p.sum);
}

static ll_err run_softmax(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t n = ll_cols(x);
    if (n == 0) return LL_OK;
    return with_rows(x, [&](auto z, auto how) -> ll_err {
        return launch(c, softmax<decltype(z), how.value>, ll_rows(x), row_threads(n), x->data,
                      c->out[0].data, n);
    });
}

/* ---- cross-entropy ---- */

template <class T, int HOW, class S>
static __global__ void cross_entropy_grad(const S *dloss, const T *x, const int32_t *label,
                                          const S *lse, T *y, int64_t n, int64_t *trouble)
{
    int64_t r = blockIdx.x, k = label_of(label, r, n, trouble);
    row_gradient<T, HOW>(x + r * n, y + r * n, n, lse[r], k, dloss[r]);
}

static ll_err run_grad(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[1];
    int64_t n = ll_cols(x);
    if (n == 0) return LL_OK;
    return with_rows(x, [&](auto z, auto how) -> ll_err {
        typedef decltype(z) T;
        return launch(c, cross_entropy_grad<T, how.value, typename sum_of<T>::type>, ll_rows(x),
                      row_threads(n), c->in[0].data, x->data, c->in[2].data, c->in[3].data,
                      c->out[0].data, n, c->trouble);
    });
}

/* ---- loss, and gradient with it ---- */

template <class T> struct both { /* of one call; y NULL: the loss alone */
    typedef typename sum_of<T>::type S;
    const T *x;
    const int32_t *label;
    const S *dloss;
    T *y;
    S *loss, *lse;
    int64_t rows, n, *trouble;
};

/* Row r, whose logits are at x. */
template <class T, int HOW> __device__ void row_both(const both<T> &a, int64_t r, const T *x)
{
    typedef typename sum_of<T>::type S;
    int64_t k = label_of(a.label, r, a.n, a.trouble);
    S picked = (S)to_float(x[k]); /* the gradient may lie on it */
    lse_pair<S> p = join_block(row_pair<T, HOW>(x, a.n));
    S all = p.top + log(p.sum);
    if (threadIdx.x == 0) {
        a.loss[r] = all - picked;
        a.lse[r] = all;
    }
    if (a.y) row_gradient<T, HOW>(x, a.y + r * a.n, a.n, all, k, a.dloss[r]);
}

template <class T, int HOW> static __global__ void __launch_bounds__(1024) back_rows(both<T> a)
{
    row_both<T, HOW>(a, blockIdx.x, a.x + blockIdx.x * a.n);
}

/* out: loss and lse; BACK: the gradient before them, and dloss in. */
template <bool BACK, class T> static both<T> both_of(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *loss = &c->out[BACK];
    typedef typename sum_of<T>::type S;
    both<T> a = {};
    a.x = (const T *)x->data, a.label = (const int32_t *)c->in[1].data;
    if (BACK) a.dloss = (const S *)c->in[2].data, a.y = (T *)c->out[0].data;
    a.loss = (S *)loss[0].data, a.lse = (S *)loss[1].data;
    a.rows = ll_rows(x), a.n = ll_cols(x), a.trouble = c->trouble;
    return a;
}

template <bool BACK> static ll_err run_rows(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    return with_rows(x, [&](auto z, auto how) -> ll_err {
        return launch(c, back_rows<decltype(z), how.value>, ll_rows(x), row_threads(ll_cols(x)),
                      both_of<BACK, decltype(z)>(c));
    });
}

/* ---- right answers ---- */

/* The first largest of a row is right, if it is the label; a NaN is never it. A warp a row. */
template <class T>
static __global__ void correct(const T *x, const int32_t *label, void *y, int yt, int64_t rows,
                               int64_t n, int64_t *trouble)
{
    int64_t r = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    int lane = threadIdx.x & 31;
    double best = 0;
    long long at = -1;
    for (int64_t j = lane; j < n; j += 32) {
        double v = (double)to_float(x[r * n + j]);
        if (v == v && (at < 0 || v > best)) best = v, at = j;
    }
    for (int o = 16; o; o >>= 1) {
        double v = __shfl_xor_sync(~0u, best, o);
        long long k = __shfl_xor_sync(~0u, at, o);
        if (k >= 0 && (at < 0 || v > best || (v == best && k < at))) best = v, at = k;
    }
    if (lane) return;
    int64_t want = label[r];
    if (want < 0 || want >= n) tell_trouble(trouble, LL_TROUBLE_LABEL, r, want);
    store_any(y, yt, r, at == want);
}

static ll_err run_correct(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x);
    if (rows == 0) return LL_OK;
    return with_float(x->dtype, [&](auto z) -> ll_err {
        return launch(c, correct<decltype(z)>, ll_ceil_div(rows, 4), 128, x->data, c->in[1].data,
                      c->out[0].data, c->out[0].dtype, rows, ll_cols(x), c->trouble);
    });
}

extern "C" const ll_solver softmax_cuda[] = {{.run = run_softmax}, {}},
                           cross_entropy_grad_cuda[] = {{.run = run_grad}, {}},
                           correct_cuda[] = {{.run = run_correct}, {}},
                           cross_entropy_cuda[] = {{.run = run_rows<false>}, {}},
                           cross_entropy_back_cuda[] = {{.run = run_rows<true>}, {}};
