/* layernorm.cuh: one call of a layer or root-mean-square norm or its gradient; gradients are
 * layernorm_back.cu's, plain ways to answer at any size and element type layernorm_plain.cu's. */
#pragma once
#include "kern/cuda/eight.cuh"
#include "kern/rows.h"

/* What a call reads and writes; what is NULL is not there. Statistics and gains are f32, f64 beside
 * f64. */
typedef struct norming {
    const void *x, *plus, *before, *dy, *skip; /* x + plus + before, of which before has n */
    const void *gain, *bias, *mean, *rstd;
    void *sum, *y, *mean_out, *rstd_out, *dx, *dgain, *dbias, *dsum;
    uint8_t *q, *t; /* in y's place: as 8-bit floats, and these transposed */
    float *scale;
    int64_t rows, n;
    double eps;
    bool centre; /* layer norm: rows have a mean */
    ll_dtype dtype;
} norming;

static inline norming norm_of(const ll_kcall *c, int x, bool centre)
{
    norming a = {};
    a.x = c->in[x].data;
    a.rows = ll_rows(&c->in[x]), a.n = ll_cols(&c->in[x]), a.dtype = c->in[x].dtype;
    a.centre = centre;
    return a;
}

/* ---- a row in the registers of W warps, K pieces of 16 bytes for each lane ---- */

template <class T, int K, int W> struct row_pieces {
    enum { N = wide<T>::N };
    uint4 x[K], plus[K]; /* as they lie in memory: half the registers */

    static __device__ __forceinline__ int lane(void)
    {
        return W == 1 ? threadIdx.x & 31 : threadIdx.x;
    }
    static __device__ __forceinline__ int column(int k) { return (lane() + k * 32 * W) * N; }
    static __device__ __forceinline__ float all(float v)
    {
        return W == 1 ? warp_sum(v) : block_sum(v);
    }
    __device__ __forceinline__ void load(const norming &a, const void *from, int64_t r,
                                         uint4 (&to)[K])
    {
#pragma unroll
        for (int k = 0; k < K; k++) {
            to[k] = make_uint4(0, 0, 0, 0);
            if (column(k) < (int)a.n)
                to[k] = *(const uint4 *)((const T *)from + r * (int)a.n + column(k));
        }
    }
    __device__ __forceinline__ void load_both(const norming &a, int64_t r)
    {
        load(a, a.x, r, x);
        load(a, a.plus, r, plus);
    }
    /* x + plus + before, in x and in memory; the norm is of the sum as it is kept. */
    __device__ __forceinline__ void add_up(const norming &a, int64_t r)
    {
#pragma unroll
        for (int k = 0; k < K; k++) {
            float v[N], b[N], c[N] = {};
            if (column(k) >= (int)a.n) continue;
            if (a.before) load_floats<N>((const float *)a.before + column(k), c);
            wide<T>::unpack(x[k], v);
            wide<T>::unpack(plus[k], b);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += b[i] + c[i];
            x[k] = wide<T>::pack(v);
            *(uint4 *)((T *)a.sum + r * (int)a.n + column(k)) = x[k];
        }
    }
    /* Mean and reciprocal deviation, also to memory. */
    __device__ __forceinline__ float2 statistics(const norming &a, int64_t r) const
    {
        float v[N], sum = 0, square = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            wide<T>::unpack(x[k], v);
#pragma unroll
            for (int i = 0; i < N; i++) sum += v[i];
        }
        float mean = a.centre ? all(sum) / (float)(int)a.n : 0.f;
#pragma unroll
        for (int k = 0; k < K; k++) {
            if (column(k) >= (int)a.n) continue;
            wide<T>::unpack(x[k], v);
#pragma unroll
            for (int i = 0; i < N; i++) square += (v[i] - mean) * (v[i] - mean);
        }
        float rstd = 1.f / sqrtf(all(square) / (float)(int)a.n + (float)a.eps);
        if (lane() == 0 && a.mean_out) ((float *)a.mean_out)[r] = mean;
        if (lane() == 0) ((float *)a.rstd_out)[r] = rstd;
        return make_float2(mean, rstd);
    }
    /* Piece k of the norm. */
    __device__ __forceinline__ void norm(const norming &a, int k, float2 s, float (&v)[N]) const
    {
        float g[N], b[N];
        wide<T>::unpack(x[k], v);
        load_floats<N>((const float *)a.gain + column(k), g);
        if (a.bias) load_floats<N>((const float *)a.bias + column(k), b);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = (v[i] - s.x) * s.y * g[i] + (a.bias ? b[i] : 0.f);
    }
};

/* The scale of 8-bit floats, a bound from gain and bias, by all threads of a block of any size; one
 * block writes it. */
static __device__ float eight_scale(const norming &a)
{
    __shared__ unsigned most[2];
    unsigned g = 0, b = 0;
    if (threadIdx.x == 0) most[0] = most[1] = 0;
    for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) {
        g = max(g, magnitude(((const float *)a.gain)[i]));
        b = max(b, magnitude(((const float *)a.bias)[i]));
    }
    __syncthreads();
    atomicMax(&most[0], __reduce_max_sync(~0u, g));
    atomicMax(&most[1], __reduce_max_sync(~0u, b));
    __syncthreads();
    float v = sqrtf((float)a.n) * __uint_as_float(most[0]) + __uint_as_float(most[1]);
    v = v > 0 || v != v ? v / 448 : 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) *a.scale = v;
    return v;
}

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
