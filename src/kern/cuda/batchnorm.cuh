/* batchnorm.cuh: how kernels of batch norms walk over memory, and make sums of channels; they only
 * move memory, so all of them do it the same way.
 *
 * A tensor is rows of n channels. A thread has one place in a row, V neighbouring channels (8 or 16
 * bytes), and walks down the rows with its block's other rows beside it, U rows at a time; what it
 * needs of a channel stays in registers. How many rows, and how many blocks share a processor (B),
 * follows from that: about 64 KB must be under way on each, and registers must do. Sums over rows
 * are made per thread, per block, and then over blocks by a second small kernel, always in the same
 * order.
 *
 * Two passes read a tensor, and the second walks it the other way round: what the first read last
 * is still in the cache. */
#pragma once
#include "kern/cuda/gpu.cuh"
#include "kern/rows.h"

#include <type_traits>

enum { THREADS = 256, MOST_B = 3, FOLD = 32 };

/* A number per channel, in the type of its tensor. */
struct channels {
    void *data;
    int type;
};
static inline channels per_channel(const ll_tensor *t)
{
    return channels{t->data, t->dtype};
}
template <class S> __device__ __forceinline__ S at(const channels &c, int64_t i)
{
    return c.type == LL_F32 ? (S)((const float *)c.data)[i] : (S)load_any(c.data, c.type, i);
}
__device__ __forceinline__ void put(const channels &c, int64_t i, double v)
{
    store_any(c.data, c.type, i, v);
}

template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) pack {
    T v[V];
};

/* ---- the walk ---- */

struct walk {
    int64_t rows, n;
    int tx, ty;      /* a block's threads: places in a row, rows */
    unsigned gx, gy; /* blocks */
};

/* Of a tensor of x's shape: v channels and u rows a thread, b blocks a processor. */
static inline walk walk_of(const ll_kcall *c, const ll_tensor *x, int v, int u, int b)
{
    walk w = {ll_rows(x), ll_cols(x), 1, 1, 1, 1};
    int64_t places = ll_ceil_div(w.n, v);
    while (w.tx < 32 && w.tx < places) w.tx *= 2;
    w.ty = THREADS / w.tx;
    w.gx = (unsigned)ll_ceil_div(places, w.tx);
    int64_t deep = ll_ceil_div(w.rows, w.ty * u), most = processors_of(c) * b / w.gx;
    w.gy = (unsigned)ll_max64(1, ll_min64(most, deep));
    return w;
}

/* The first channel of this thread; n or more: it has none. */
template <int V> __device__ __forceinline__ int64_t my_channel(const walk &w)
{
    return (blockIdx.x * (int64_t)w.tx + threadIdx.x % w.tx) * V;
}

/* Calls f(how many, where) for this thread's rows: U at a time, w.ty rows apart, from an element
 * on; the last ones singly. */
template <int U, bool DOWN, class F>
__device__ __forceinline__ void each_rows(const walk &w, int64_t j, F f)
{
    const int step = w.ty * U, tiles = (int)((w.rows + step - 1) / step);
    const int row = threadIdx.x / w.tx;
    for (int i = blockIdx.y; i < tiles; i += gridDim.y) {
        int64_t first = (int64_t)(DOWN ? tiles - 1 - i : i) * step, r = first + row;
        if (first + step <= w.rows)
            f(std::integral_constant<int, U>{}, r * w.n + j);
        else
            for (; r < w.rows; r += w.ty) f(std::integral_constant<int, 1>{}, r * w.n + j);
    }
}

template <class T, int V, int K>
__device__ __forceinline__ void load_rows(const walk &w, const void *from, int64_t at,
                                          pack<T, V> (&to)[K])
{
    const T *p = (const T *)from + at;
#pragma unroll
    for (int k = 0; k < K; k++, p += w.ty * w.n) to[k] = *(const pack<T, V> *)p;
}

template <class T, int V, int K>
__device__ __forceinline__ void store_rows(const walk &w, void *to, int64_t at,
                                           const pack<T, V> (&from)[K])
{
    T *p = (T *)to + at;
#pragma unroll
    for (int k = 0; k < K; k++, p += w.ty * w.n) *(pack<T, V> *)p = from[k];
}

/* ---- sums ---- */

/* A block's sums of its threads' rows, to part blockIdx.y: [N][n]. */
template <class S, int N, int V>
__device__ __forceinline__ void fold_block(const walk &w, const S (&sums)[N][V], S *parts)
{
    __shared__ S all[N][THREADS * V];
    int columns = w.tx * V, x = threadIdx.x % w.tx, y = threadIdx.x / w.tx;
    for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++) all[i][y * columns + x * V + v] = sums[i][v];
    __syncthreads();
    for (int i = threadIdx.x; i < N * columns; i += THREADS) {
        int which = i / columns, c = i % columns;
        int64_t j = blockIdx.x * (int64_t)columns + c;
        S sum = 0;
        for (int k = 0; k < w.ty; k++) sum += all[which][k * columns + c];
        if (j < w.n) parts[(blockIdx.y * N + which) * w.n + j] = sum;
    }
}

/* The sums of all parts, for this thread's channel; f(j, sums) is called once for each. */
template <int N, class S, class F>
__device__ __forceinline__ void add_parts(const S *parts, int n_part, int64_t n, F f)
{
    int64_t j = blockIdx.x * 32 + threadIdx.x;
    double sums[N];
    for (int i = 0; i < N; i++)
        sums[i] = fold_parts<FOLD, 4>(
            j < n ? n_part : 0, 0.0, [&](int k) { return (double)parts[(N * k + i) * n + j]; },
            [](double a, double b) { return a + b; });
    if (threadIdx.y == 0 && j < n) f(j, sums);
}

/* What a norm's channels have: y = (x - mean) scale + bias, with scale = gain rstd. */
struct scaling {
    channels gain, bias, mean, var;
    double eps;
};
template <class S> __device__ __forceinline__ S rstd_of(const scaling &k, int64_t j)
{
    return (S)1 / sqrt(at<S>(k.var, j) + (S)k.eps);
}
template <class S> __device__ __forceinline__ S scale_of(const scaling &k, int64_t j)
{
    return at<S>(k.gain, j) * rstd_of<S>(k, j);
}

/* ---- sums of gradients ---- */

/* What a gradient's kernels read and write. MASK: of dy, only where the result was above 0: that is
 * made again from x (BY_X), or read (BY_BITS). SUM: dy has two parts. With BY_BITS the masked
 * gradient is written too: the residual wants it, and the second pass reads it in place of dy. */
enum mask { NONE, BY_X, BY_BITS };

struct backward {
    const void *dy, *other, *x;
    const uint8_t *bits;
    scaling k;
    channels dgain, dbias;
    void *dx, *g;
};

template <class T, class S, int V, int U, int B, mask MASK, bool SUM>
static __global__ void __launch_bounds__(THREADS, B) sum_dy(walk w, backward o, S *parts)
{
    int64_t j = my_channel<V>(w);
    S sums[2][V] = {}, m[V], scale[V], shift[V];
    if (j < w.n) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            m[v] = at<S>(o.k.mean, j + v);
            if (MASK != BY_X) continue;
            scale[v] = scale_of<S>(o.k, j + v);
            shift[v] = at<S>(o.k.bias, j + v);
        }
        each_rows<U, true>(w, j, [&](auto count, int64_t at) {
            constexpr int K = decltype(count)::value;
            pack<T, V> ds[K], es[K], xs[K];
            unsigned on[K];
            load_rows<T, V, K>(w, o.dy, at, ds);
            if (SUM) load_rows<T, V, K>(w, o.other, at, es);
            load_rows<T, V, K>(w, o.x, at, xs);
#pragma unroll
            for (int k = 0; k < K; k++)
                if (MASK == BY_BITS) on[k] = o.bits[(at + k * w.ty * w.n) / 8];
#pragma unroll
            for (int k = 0; k < K; k++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    S g = (S)to_float(ds[k].v[v]), u = (S)to_float(xs[k].v[v]) - m[v];
                    if (SUM) g += (S)to_float(es[k].v[v]);
                    if (MASK == BY_X && !(u * scale[v] + shift[v] > 0)) g = 0;
                    if (MASK == BY_BITS) {
                        ds[k].v[v] = from_float<T>::of(on[k] >> v & 1 ? g : (S)0);
                        g = (S)to_float(ds[k].v[v]); /* as the second pass reads it */
                    }
                    sums[0][v] += g;
                    sums[1][v] += g * u;
                }
            if (MASK == BY_BITS) store_rows<T, V, K>(w, o.g, at, ds);
        });
    }
    fold_block(w, sums, parts);
}

template <class S>
static __global__ void gather_dy(const S *parts, int n_part, int64_t n, backward o)
{
    add_parts<2>(parts, n_part, n, [&](int64_t j, const double(&sums)[2]) {
        put(o.dbias, j, sums[0]);
        put(o.dgain, j, sums[1] * rstd_of<double>(o.k, j));
    });
}

/* ---- calls ---- */

/* May all of these be read 16 bytes at a time? */
static inline bool in_packs(int v, int64_t n, const ll_tensor *t, int n_tensor)
{
    for (int i = 0; i < n_tensor; i++)
        if (t[i].shape.n > 1 && (uintptr_t)t[i].data % 16) return false;
    return n % v == 0;
}

/* For N sums of each channel, whatever the packs: the first operand is an image. */
template <int N> static size_t sums_scratch(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    unsigned most = 0;
    for (int v = 16 / (int)ll_dtype_bytes(x->dtype); v; v /= 2) {
        unsigned parts = walk_of(c, x, v, 1, MOST_B).gy;
        if (parts > most) most = parts;
    }
    return N * (size_t)most * (size_t)ll_cols(x) *
           (x->dtype == LL_F64 ? sizeof(double) : sizeof(float));
}

/* Rows at a time, where a row's pack may be more than 16 bytes. */
template <class T, int V> constexpr int fewer_rows(int u)
{
    int bytes = V * (int)sizeof(T);
    return bytes <= 16 ? u : u * 16 < bytes ? 1 : u * 16 / bytes;
}

/* f(T{}, pack size): packs of so many bytes where the call's tensors allow them. */
template <int BYTES, class F> static ll_err with_packs(const ll_kcall *c, const ll_tensor *x, F f)
{
    return with_float(x->dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        constexpr int V = sizeof(T) == 8 ? 1 : BYTES / (int)sizeof(T); /* f64 is for tests */
        int64_t n = ll_cols(x);
        if (in_packs(V, n, c->in, c->n_in) && in_packs(V, n, c->out, c->n_out))
            return f(z, std::integral_constant<int, V>{});
        return f(z, std::integral_constant<int, 1>{});
    });
}

/* Two results of channels, t and the next: sums over no rows. */
static inline ll_err clear_two(const ll_tensor *t, const ll_kcall *c)
{
    for (int i = 0; i < 2; i++) {
        size_t bytes = ll_tensor_bytes(t[i].dtype, &t[i].shape);
        if (bytes) CUDA_TRY(cudaMemsetAsync(t[i].data, 0, bytes, stream_of(c)));
    }
    return LL_OK;
}
