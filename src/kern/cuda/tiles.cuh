/* tiles.cuh: attention of f32 in tiles, without the matrix of scores; how two tiles are multiplied
 * is said by S (attention_f32.cu, attention_tf32.cu). A block takes a tile of rows and walks the
 * others' tiles through shared memory, while the next is on its way; a warp has rows of its own.
 *
 * The gradient takes three passes: sums of do o; dk and dv with a tile of keys per block; dq with a
 * tile of queries. The last makes scores again rather than adding to dq from many blocks: each
 * element has one thread, so sums have one order.
 *
 * S has: D, which heads of fewer elements, in fours, are filled up to with zeros; ROWS, COLS of a
 * tile of scores; of these a thread keeps MI x NJ, c[i][j], and of results, ROWS x D, MI x DJ;
 * LANES neighbours have a row's others. row(i), col(j): where they are; out_col(g): of results g
 * to g+3. at(row, e): where four elements from e on lie in a tile, LD floats a row; settle: a tile
 * just fetched becomes what is multiplied. scores: c = a b', a a tile, or what left_of made of one
 * to multiply again and again. add_product: y += c b, with room for WORK floats. */
#pragma once
#include "kern/cuda/attention.cuh"

#include <cuda_pipeline.h>

enum { TILE_THREADS = 128 };

#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

struct tile_call {
    heads s;
    const float *qkv, *dout, *lse, *delta;
    float *o, *dqkv, *lse_out;
    float by; /* from products to scores, in units of log 2 */
};

/* A head's rows: one every `stride` floats; n 0: beyond its elements. */
struct head_rows {
    const float *p;
    int64_t stride, n;
};

__device__ __forceinline__ int64_t qkv_at(const heads &s, int64_t bh, int z)
{
    return ((bh / s.h * s.t * 3 + z) * s.h + bh % s.h) * s.d;
}

__device__ __forceinline__ int64_t o_at(const heads &s, int64_t bh)
{
    return (bh / s.h * s.t * s.h + bh % s.h) * s.d;
}

/* For the elements that this thread fetches. */
template <class S> __device__ __forceinline__ int64_t rows_of(const tile_call &a)
{
    return (int)(threadIdx.x % (S::D / 4) * 4) < (int)a.s.d ? a.s.t : 0;
}

template <class S>
__device__ __forceinline__ head_rows rows_in(const tile_call &a, int64_t bh, int z)
{
    return head_rows{a.qkv + qkv_at(a.s, bh, z), 3 * a.s.h * a.s.d, rows_of<S>(a)};
}

template <class S> __device__ __forceinline__ head_rows grads_in(const tile_call &a, int64_t bh)
{
    return head_rows{a.dout + o_at(a.s, bh), a.s.h * a.s.d, rows_of<S>(a)};
}

/* A tile's rows from `first` on are asked for; after the last there are zeros. */
template <class S, int ROWS>
__device__ __forceinline__ void fetch(float *to, const head_rows &from, int64_t first)
{
    enum { PIECES = S::D / 4, STEP = TILE_THREADS / PIECES };
    int row = threadIdx.x / PIECES, e = threadIdx.x % PIECES * 4;
    const float *p = from.p + (first + row) * from.stride + e;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++, row += STEP) {
        bool in = first + row < from.n;
        __pipeline_memcpy_async(to + S::at(row, e), in ? p + i * STEP * from.stride : from.p, 16,
                                in ? 0 : 16);
    }
    __pipeline_commit();
}

/* What this thread fetched is there; each settles what it fetched itself. */
template <class S, int ROWS> __device__ __forceinline__ void arrive(float *tile)
{
    enum { PIECES = S::D / 4, STEP = TILE_THREADS / PIECES };
    __pipeline_wait_prior(0);
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++)
        S::settle(tile + S::at(threadIdx.x / PIECES + i * STEP, threadIdx.x % PIECES * 4));
}

template <class S>
__device__ __forceinline__ void write_rows(float *p, int64_t stride, int64_t left, int d,
                                           const float (&y)[S::MI][S::DJ], const float (&by)[S::MI])
{
#pragma unroll
    for (int i = 0; i < S::MI; i++) {
        int row = S::row(i);
        if (row >= left) continue;
#pragma unroll
        for (int g = 0; g < S::DJ; g += 4)
            if (S::out_col(g) < d)
                *(float4 *)(p + row * stride + S::out_col(g)) = make_float4(
                    y[i][g] * by[i], y[i][g + 1] * by[i], y[i][g + 2] * by[i], y[i][g + 3] * by[i]);
    }
}

template <class S>
__device__ __forceinline__ void write_grads(const tile_call &a, int64_t bh, int z, int64_t first,
                                            const float (&y)[S::MI][S::DJ], float by)
{
    float same[S::MI];
#pragma unroll
    for (int i = 0; i < S::MI; i++) same[i] = by;
    int64_t stride = 3 * a.s.h * a.s.d;
    write_rows<S>(a.dqkv + qkv_at(a.s, bh, z) + first * stride, stride, a.s.t - first, (int)a.s.d,
                  y, same);
}

/* ---- forward ---- */

template <class S> struct softmax { /* of this thread's rows; sum: of its columns alone */
    float top[S::MI], sum[S::MI];
};

template <int LANES> __device__ __forceinline__ float lanes_sum(float v)
{
#pragma unroll
    for (int o = 1; o < LANES; o *= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

template <int LANES> __device__ __forceinline__ float lanes_max(float v)
{
#pragma unroll
    for (int o = 1; o < LANES; o *= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

/* Scores become exp(score - the largest so far); results are rescaled by how much that grew. ahead:
 * how far the first column is after the first row, in time: columns after their row do not count.
 */
template <class S>
__device__ __forceinline__ void fold_scores(softmax<S> &m, float (&c)[S::MI][S::NJ],
                                            float (&y)[S::MI][S::DJ], int ahead, float by)
{
    bool masked = ahead + S::COLS > 1 + S::first_row();
#pragma unroll
    for (int i = 0; i < S::MI; i++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < S::NJ; j++) {
            if (masked && ahead + S::col(j) > S::row(i)) c[i][j] = -INFINITY;
            top = fmaxf(top, c[i][j]);
        }
        top = fmaxf(m.top[i], lanes_max<S::LANES>(top) * by);
        float rescale = power_of_2(m.top[i] - top);
#pragma unroll
        for (int j = 0; j < S::NJ; j++) {
            c[i][j] = power_of_2(fmaf(c[i][j], by, -top));
            sum += c[i][j];
        }
        m.top[i] = top;
        m.sum[i] = m.sum[i] * rescale + sum;
#pragma unroll
        for (int g = 0; g < S::DJ; g++) y[i][g] *= rescale;
    }
}

/* Keys are fetched while values are used, and the other way round. */
template <class S>
static __global__ void __launch_bounds__(TILE_THREADS, S::BLOCKS)
    forward_tiles(const tile_call a, int tiles)
{
    extern __shared__ __align__(128) float shared[];
    float *q = shared, *k = q + S::ROWS * S::LD, *v = k + S::COLS * S::LD;
    float *work = v + S::COLS * S::LD;
    int64_t bh = blockIdx.x / tiles, first = (int64_t)(tiles - 1 - blockIdx.x % tiles) * S::ROWS;
    int64_t end = min(first + S::ROWS, a.s.t);
    head_rows keys = rows_in<S>(a, bh, 1), values = rows_in<S>(a, bh, 2);
    float c[S::MI][S::NJ], y[S::MI][S::DJ] = {}, by[S::MI];
    softmax<S> m;
#pragma unroll
    for (int i = 0; i < S::MI; i++) m.top[i] = -INFINITY, m.sum[i] = 0;
    fetch<S, S::ROWS>(q, rows_in<S>(a, bh, 0), first);
    fetch<S, S::COLS>(k, keys, 0);
    arrive<S, S::ROWS>(q);
    __syncthreads();
    typename S::left left = S::left_of(q);
    for (int64_t at = 0; at < end; at += S::COLS) {
        bool used = at <= first + S::last_row();
        arrive<S, S::COLS>(k);
        __syncthreads();
        fetch<S, S::COLS>(v, values, at);
        if (used) {
            S::scores(left, k, c);
            fold_scores<S>(m, c, y, (int)(at - first), a.by);
        }
        arrive<S, S::COLS>(v);
        __syncthreads();
        if (at + S::COLS < end) fetch<S, S::COLS>(k, keys, at + S::COLS);
        if (used) S::add_product(c, v, y, work);
    }
#pragma unroll
    for (int i = 0; i < S::MI; i++) {
        float sum = lanes_sum<S::LANES>(m.sum[i]);
        int64_t t = first + S::row(i);
        by[i] = 1 / sum;
        if (S::col(0) == 0 && t < a.s.t) a.lse_out[bh * a.s.t + t] = (m.top[i] + log2f(sum)) * LN_2;
    }
    int64_t stride = a.s.h * a.s.d;
    write_rows<S>(a.o + o_at(a.s, bh) + first * stride, stride, a.s.t - first, (int)a.s.d, y, by);
}

/* ---- backward ---- */

/* A tile of keys: rows of scores are keys, columns are queries. */
template <class S>
static __global__ void __launch_bounds__(TILE_THREADS, S::BLOCKS)
    grad_keys(const tile_call a, int tiles)
{
    extern __shared__ __align__(128) float shared[];
    float *k = shared, *v = k + S::ROWS * S::LD, *q = v + S::ROWS * S::LD;
    float *g = q + S::COLS * S::LD, *work = g + S::COLS * S::LD;
    int64_t bh = blockIdx.x / tiles, first = (int64_t)(blockIdx.x % tiles) * S::ROWS;
    head_rows queries = rows_in<S>(a, bh, 0), grads = grads_in<S>(a, bh);
    float c[S::MI][S::NJ], ds[S::MI][S::NJ], dk[S::MI][S::DJ] = {}, dv[S::MI][S::DJ] = {};
    fetch<S, S::ROWS>(k, rows_in<S>(a, bh, 1), first);
    fetch<S, S::ROWS>(v, rows_in<S>(a, bh, 2), first);
    fetch<S, S::COLS>(g, grads, first);
    arrive<S, S::ROWS>(k);
    arrive<S, S::ROWS>(v);
    for (int64_t at = first; at < a.s.t; at += S::COLS) {
        bool used = at + S::COLS > first + S::first_row();
        arrive<S, S::COLS>(g);
        __syncthreads();
        fetch<S, S::COLS>(q, queries, at);
        if (used) S::scores(v, g, ds);
        arrive<S, S::COLS>(q);
        __syncthreads();
        if (used) {
            S::scores(k, q, c);
            int ahead = (int)(at - first), left = (int)min(a.s.t - at, (int64_t)S::COLS);
            bool masked = ahead < S::last_row() || left < S::COLS;
#pragma unroll
            for (int j = 0; j < S::NJ; j++) {
                int64_t from = bh * a.s.t + at + min(S::col(j), left - 1);
                float lse = a.lse[from] * LOG2_E, delta = a.delta[from];
#pragma unroll
                for (int i = 0; i < S::MI; i++) {
                    c[i][j] = power_of_2(fmaf(c[i][j], a.by, -lse));
                    if (masked && (S::col(j) >= left || ahead + S::col(j) < S::row(i))) c[i][j] = 0;
                    ds[i][j] = c[i][j] * (ds[i][j] - delta);
                }
            }
            S::add_product(c, g, dv, work);
        }
        __syncthreads();
        if (at + S::COLS < a.s.t) fetch<S, S::COLS>(g, grads, at + S::COLS);
        if (used) S::add_product(ds, q, dk, work);
    }
    write_grads<S>(a, bh, 1, first, dk, a.by * LN_2);
    write_grads<S>(a, bh, 2, first, dv, 1);
}

/* A tile of queries. */
template <class S>
static __global__ void __launch_bounds__(TILE_THREADS, S::BLOCKS)
    grad_queries(const tile_call a, int tiles)
{
    extern __shared__ __align__(128) float shared[];
    float *q = shared, *g = q + S::ROWS * S::LD, *k = g + S::ROWS * S::LD;
    float *v = k + S::COLS * S::LD, *work = v + S::COLS * S::LD;
    int64_t bh = blockIdx.x / tiles, first = (int64_t)(tiles - 1 - blockIdx.x % tiles) * S::ROWS;
    int64_t end = min(first + S::ROWS, a.s.t);
    head_rows keys = rows_in<S>(a, bh, 1), values = rows_in<S>(a, bh, 2);
    float c[S::MI][S::NJ], ds[S::MI][S::NJ], dq[S::MI][S::DJ] = {}, lse[S::MI], delta[S::MI];
#pragma unroll
    for (int i = 0; i < S::MI; i++) {
        int64_t from = bh * a.s.t + min(first + S::row(i), a.s.t - 1);
        lse[i] = a.lse[from] * LOG2_E, delta[i] = a.delta[from];
    }
    fetch<S, S::ROWS>(q, rows_in<S>(a, bh, 0), first);
    fetch<S, S::ROWS>(g, grads_in<S>(a, bh), first);
    fetch<S, S::COLS>(v, values, 0);
    arrive<S, S::ROWS>(q);
    arrive<S, S::ROWS>(g);
    for (int64_t at = 0; at < end; at += S::COLS) {
        bool used = at <= first + S::last_row();
        arrive<S, S::COLS>(v);
        __syncthreads();
        fetch<S, S::COLS>(k, keys, at);
        if (used) S::scores(g, v, ds);
        arrive<S, S::COLS>(k);
        __syncthreads();
        if (at + S::COLS < end) fetch<S, S::COLS>(v, values, at + S::COLS);
        if (!used) continue;
        S::scores(q, k, c);
        int ahead = (int)(at - first);
        bool masked = ahead + S::COLS > 1 + S::first_row();
#pragma unroll
        for (int i = 0; i < S::MI; i++)
#pragma unroll
            for (int j = 0; j < S::NJ; j++) {
                float p = power_of_2(fmaf(c[i][j], a.by, -lse[i]));
                if (masked && ahead + S::col(j) > S::row(i)) p = 0;
                ds[i][j] = p * (ds[i][j] - delta[i]);
            }
        S::add_product(ds, k, dq, work);
    }
    write_grads<S>(a, bh, 0, first, dq, a.by * LN_2);
}

/* ---- calls ---- */

enum { DELTA_WARPS = 8 };

static __global__ void sums_of_rows(heads s, const float *dout, const float *o, float *delta)
{
    int64_t row = blockIdx.x * (int64_t)DELTA_WARPS + threadIdx.x / 32; /* [b,t,h] */
    if (row >= s.b * s.t * s.h) return;
    float sum = 0;
    for (int64_t e = threadIdx.x % 32; e < s.d; e += 32)
        sum = fmaf(dout[row * s.d + e], o[row * s.d + e], sum);
    sum = warp_sum(sum);
    int64_t h = row % s.h, t = row / s.h % s.t, b = row / s.h / s.t;
    if (threadIdx.x % 32 == 0) delta[(b * s.h + h) * s.t + t] = sum;
}

static tile_call call_of(const ll_kcall *c)
{
    tile_call a = {};
    a.s = heads_of(c);
    a.by = LOG2_E / sqrtf((float)a.s.d);
    a.qkv = (const float *)qkv_of(c)->data;
    if (c->n_in > 1) {
        a.dout = (const float *)c->in[0].data;
        a.lse = (const float *)c->in[3].data;
        a.delta = (const float *)c->scratch;
        a.dqkv = (float *)c->out[0].data;
    } else {
        a.o = (float *)c->out[0].data;
        a.lse_out = (float *)c->out[1].data;
    }
    return a;
}

template <class S> static size_t tile_bytes(int row_tiles)
{
    return 4 * (size_t)(row_tiles * S::ROWS * S::LD + 2 * S::COLS * S::LD + S::WORK);
}

template <class S, class K>
static ll_err launch_tiles(const ll_kcall *c, K kernel, const tile_call &a, int row_tiles)
{
    int64_t tiles = ll_ceil_div(a.s.t, S::ROWS);
    return launch_shared(c, kernel, tiles * a.s.b * a.s.h, TILE_THREADS, tile_bytes<S>(row_tiles),
                         a, tiles);
}

template <class S> static ll_err forward_of(const ll_kcall *c)
{
    return launch_tiles<S>(c, forward_tiles<S>, call_of(c), 1);
}

template <class S> static ll_err backward_of(const ll_kcall *c)
{
    tile_call a = call_of(c);
    TRY(launch(c, sums_of_rows, ll_ceil_div(a.s.b * a.s.t * a.s.h, DELTA_WARPS), 32 * DELTA_WARPS,
               a.s, a.dout, c->in[2].data, c->scratch));
    TRY(launch_tiles<S>(c, grad_keys<S>, a, 2));
    return launch_tiles<S>(c, grad_queries<S>, a, 2);
}
