/* layernorm.cu: layer and root-mean-square normalisation and their gradients.
 *
 * A row stays in registers: a warp has it, 16 bytes a lane at a time, or 8 warps where it is long.
 * So every tensor is read once and written once. Gradients of gain and bias, sums over rows, are
 * made along the way: a warp walks rows far apart and keeps the sums of its columns in registers;
 * those of a block's warps are added in order, written, and added up in order by a second kernel.
 * Rows that are no multiple of 16 bytes, very long ones, and f64, take plain loops. */
#include "kern/cuda/vec.cuh"
#include "kern/rows.h"

extern "C" {
ll_kernel layernorm_cuda, layernorm_dx_cuda, layernorm_dw_cuda, add_layernorm_cuda,
    layernorm_back_cuda;
ll_kernel rmsnorm_cuda, rmsnorm_dx_cuda, rmsnorm_dw_cuda;
ll_scratch layernorm_dw_cuda_scratch;
}

enum { FILL = 132 * 4, LANES = 32, DEEP = 16 };

/* What a call reads and writes; what is NULL is not there. Statistics and gains are f32, f64 beside
 * f64. */
typedef struct norming {
    const void *x, *plus, *dy, *skip;
    const void *gain, *bias, *mean, *rstd;
    void *sum, *y, *mean_out, *rstd_out, *dx, *dgain, *dbias;
    int64_t rows, n;
    double eps;
    bool centre; /* layer norm: rows have a mean */
    ll_dtype dtype;
} norming;

/* ---- rows in registers ---- */

enum { WARPS = 8 };

/* The sum over the W warps that have a row. */
template <int W> __device__ __forceinline__ float row_sum(float v)
{
    return W == 1 ? warp_sum(v) : block_sum(v);
}

template <int W> __device__ __forceinline__ int64_t first_row()
{
    return W == 1 ? blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
}

template <class T, int K, int W>
static __global__ void __launch_bounds__(W == 1 ? 128 : 32 * W) norm_rows(norming a)
{
    enum { N = wide<T>::N };
    int64_t r = first_row<W>();
    if (r >= a.rows) return;
    int lane = W == 1 ? threadIdx.x & 31 : threadIdx.x, n = (int)a.n, step = 32 * W;
    float v[K][N], sum = 0, mean = 0, square = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int j = (lane + k * step) * N;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (j < n) w = *(const uint4 *)((const T *)a.x + r * n + j);
        wide<T>::unpack(w, v[k]);
    }
    if (a.plus) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            if (j >= n) continue;
            float b[N];
            wide<T>::unpack(*(const uint4 *)((const T *)a.plus + r * n + j), b);
#pragma unroll
            for (int i = 0; i < N; i++) b[i] += v[k][i];
            uint4 w = wide<T>::pack(b); /* the norm is of the sum as it is kept */
            *(uint4 *)((T *)a.sum + r * n + j) = w;
            wide<T>::unpack(w, v[k]);
        }
    }
    if (a.centre) {
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) sum += v[k][i];
        mean = row_sum<W>(sum) / (float)n;
    }
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int i = 0; i < N; i++) {
            v[k][i] -= mean;
            square += (lane + k * step) * N < n ? v[k][i] * v[k][i] : 0.f;
        }
    float rstd = 1.f / sqrtf(row_sum<W>(square) / (float)n + (float)a.eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int j = (lane + k * step) * N;
        if (j >= n) continue;
        float g[N], b[N];
        load_floats<N>((const float *)a.gain + j, g);
        if (a.bias) load_floats<N>((const float *)a.bias + j, b);
#pragma unroll
        for (int i = 0; i < N; i++) v[k][i] = v[k][i] * rstd * g[i] + (a.bias ? b[i] : 0.f);
        *(uint4 *)((T *)a.y + r * n + j) = wide<T>::pack(v[k]);
    }
    if (lane) return;
    if (a.mean_out) ((float *)a.mean_out)[r] = mean;
    ((float *)a.rstd_out)[r] = rstd;
}

/* This block's sums of each column, its warps' in order. sums: 2 n floats of shared memory. */
template <int K, int N>
static __device__ void add_warps(const float (&dg)[K][N], const float (&db)[K][N], int n,
                                 float *sums, float *out)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    for (int w = 0; w < warps; w++) {
        __syncthreads();
        if (w != warp) continue;
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) {
                int j = (lane + 32 * k) * N + i;
                if (j >= n) continue;
                sums[j] = (w ? sums[j] : 0.f) + dg[k][i];
                sums[n + j] = (w ? sums[n + j] : 0.f) + db[k][i];
            }
    }
    __syncthreads();
    for (int j = threadIdx.x; j < 2 * n; j += blockDim.x) out[j] = sums[j];
}

/* u = dy gain; dx = rstd (u - mean u - xhat mean(u xhat)) + skip; without a centre, no mean u.
 * DW: also this block's sums of dy xhat and dy, [blocks][2][n]. */
template <class T, int K, int W, bool DW>
static __global__ void __launch_bounds__(W == 1 ? 128 : 32 * W) norm_back(norming a, float *parts)
{
    enum { N = wide<T>::N };
    extern __shared__ float sums[];
    int lane = W == 1 ? threadIdx.x & 31 : threadIdx.x, n = (int)a.n, step = 32 * W;
    float dg[K][N] = {}, db[K][N] = {}, by = 1.f / (float)n;
    int64_t stride = (int64_t)gridDim.x * (W == 1 ? blockDim.x / 32 : 1);
    for (int64_t r = first_row<W>(); r < a.rows; r += stride) {
        uint4 wd[K], wx[K], ws[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            wd[k] = wx[k] = ws[k] = make_uint4(0, 0, 0, 0);
            if (j >= n) continue;
            wd[k] = *(const uint4 *)((const T *)a.dy + r * n + j);
            wx[k] = *(const uint4 *)((const T *)a.x + r * n + j);
            if (a.skip) ws[k] = *(const uint4 *)((const T *)a.skip + r * n + j);
        }
        float mean = a.centre ? ((const float *)a.mean)[r] : 0.f;
        float rstd = ((const float *)a.rstd)[r], p = 0, q = 0;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            if (j >= n) continue;
            float d[N], x[N], g[N];
            wide<T>::unpack(wd[k], d);
            wide<T>::unpack(wx[k], x);
            if (a.dx) load_floats<N>((const float *)a.gain + j, g);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float xhat = (x[i] - mean) * rstd, u = a.dx ? d[i] * g[i] : 0.f;
                p += u;
                q += u * xhat;
                if (DW) dg[k][i] += d[i] * xhat, db[k][i] += d[i];
            }
        }
        if (!a.dx) continue;
        p = a.centre ? row_sum<W>(p) * by : 0.f;
        q = row_sum<W>(q) * by;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            if (j >= n) continue;
            float d[N], x[N], g[N], s[N];
            wide<T>::unpack(wd[k], d);
            wide<T>::unpack(wx[k], x);
            wide<T>::unpack(ws[k], s);
            load_floats<N>((const float *)a.gain + j, g);
#pragma unroll
            for (int i = 0; i < N; i++) {
                float xhat = (x[i] - mean) * rstd;
                s[i] += rstd * (d[i] * g[i] - p - xhat * q);
            }
            *(uint4 *)((T *)a.dx + r * n + j) = wide<T>::pack(s);
        }
    }
    if (!DW) return;
    float *out = parts + blockIdx.x * 2 * (int64_t)n;
    if constexpr (W == 1)
        add_warps<K, N>(dg, db, n, sums, out);
    else
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            if (j >= n) continue;
            store_floats<N>(out + j, dg[k]);
            store_floats<N>(out + n + j, db[k]);
        }
}

/* ---- plain loops: a block for each row; blocks of 32 columns for sums over rows ---- */

template <class T> static __global__ void norm_rows_plain(norming a)
{
    typedef typename sum_of<T>::type S;
    int64_t n = a.n, at = blockIdx.x * n;
    const T *row = (const T *)a.x + at;
    if (a.plus) { /* the sum may lie on what is added: each thread reads only what it wrote */
        T *sum = (T *)a.sum + at;
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            sum[j] = from_float<T>::of(to_float(row[j]) + to_float(((const T *)a.plus)[at + j]));
        row = sum;
    }
    S mean = 0, square = 0;
    if (a.centre) {
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) mean += (S)to_float(row[j]);
        mean = block_sum<S>(mean) / (S)n;
    }
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S d = (S)to_float(row[j]) - mean;
        square += d * d;
    }
    S rstd = (S)1 / sqrt(block_sum<S>(square) / (S)n + (S)a.eps);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S v = ((S)to_float(row[j]) - mean) * rstd * ((const S *)a.gain)[j];
        if (a.bias) v += ((const S *)a.bias)[j];
        ((T *)a.y)[at + j] = from_float<T>::of(v);
    }
    if (threadIdx.x) return;
    if (a.mean_out) ((S *)a.mean_out)[blockIdx.x] = mean;
    ((S *)a.rstd_out)[blockIdx.x] = rstd;
}

template <class T> static __global__ void norm_dx_plain(norming a)
{
    typedef typename sum_of<T>::type S;
    int64_t n = a.n, at = blockIdx.x * n;
    const T *dy = (const T *)a.dy + at, *x = (const T *)a.x + at;
    const S *gain = (const S *)a.gain;
    S mean = a.centre ? ((const S *)a.mean)[blockIdx.x] : (S)0;
    S rstd = ((const S *)a.rstd)[blockIdx.x], p = 0, q = 0;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S u = (S)to_float(dy[j]) * gain[j];
        p += u;
        q += u * ((S)to_float(x[j]) - mean) * rstd;
    }
    p = a.centre ? block_sum<S>(p) / (S)n : (S)0;
    q = block_sum<S>(q) / (S)n;
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
        S xhat = ((S)to_float(x[j]) - mean) * rstd;
        S v = rstd * ((S)to_float(dy[j]) * gain[j] - p - xhat * q);
        if (a.skip) v += (S)to_float(((const T *)a.skip)[at + j]);
        ((T *)a.dx)[at + j] = from_float<T>::of(v);
    }
}

template <class T>
static __global__ void norm_dw_plain(norming a, typename sum_of<T>::type *parts)
{
    typedef typename sum_of<T>::type S;
    __shared__ S part[2][DEEP][LANES];
    int64_t n = a.n, j = blockIdx.x * (int64_t)LANES + threadIdx.x;
    int64_t from = a.rows * blockIdx.y / gridDim.y, to = a.rows * (blockIdx.y + 1) / gridDim.y;
    S p = 0, q = 0;
    for (int64_t r = from + threadIdx.y; j < n && r < to; r += DEEP) {
        S mean = a.centre ? ((const S *)a.mean)[r] : (S)0, d = (S)to_float(((const T *)a.dy)[r * n + j]);
        p += d * ((S)to_float(((const T *)a.x)[r * n + j]) - mean) * ((const S *)a.rstd)[r];
        q += d;
    }
    part[0][threadIdx.y][threadIdx.x] = p;
    part[1][threadIdx.y][threadIdx.x] = q;
    __syncthreads();
    if (threadIdx.y || j >= n) return;
    for (int k = 1; k < DEEP; k++) {
        p += part[0][k][threadIdx.x];
        q += part[1][k][threadIdx.x];
    }
    parts[(blockIdx.y * 2 + 0) * n + j] = p;
    parts[(blockIdx.y * 2 + 1) * n + j] = q;
}

/* Adds up the parts [parts][2][n] of both sums. */
template <class S>
static __global__ void add_parts(const S *parts, int n_part, int64_t n, S *dgain, S *dbias)
{
    __shared__ S part[DEEP][LANES];
    int64_t j = blockIdx.x * (int64_t)LANES + threadIdx.x;
    S sum = 0;
    if (j < 2 * n)
        for (int k = threadIdx.y; k < n_part; k += DEEP) sum += parts[k * 2 * n + j];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || j >= 2 * n) return;
    for (int k = 1; k < DEEP; k++) sum += part[k][threadIdx.x];
    if (j < n)
        dgain[j] = sum;
    else if (dbias)
        dbias[j - n] = sum;
}

/* ---- which way ---- */

typedef struct way {
    int k, warps; /* k 16-byte pieces for each lane of so many warps a row; 0: plain loops */
    int blocks;   /* of the gradient: so many parts of the sums over rows */
} way;

static way way_of(ll_dtype t, int64_t rows, int64_t n)
{
    way w = {0, 1, 0};
    int64_t pieces = is_wide(t, n) ? n / (16 / (int64_t)ll_dtype_bytes(t)) : 0;
    if (pieces && pieces <= 32 * 7) {
        w.k = (int)ceil_div(pieces, 32);
        if (w.k == 6) w.k = 7;
    } else if (pieces && pieces <= 32 * WARPS * 4) {
        w.warps = WARPS;
        w.k = (int)ceil_div(pieces, 32 * WARPS);
        if (w.k == 3) w.k = 4;
    }
    int64_t fill = FILL, most = ceil_div(rows, w.warps == 1 ? 16 : 4);
    if (w.k == 0) { /* blocks of columns share the chip */
        fill = n ? ceil_div(FILL * 2, ceil_div(n, LANES)) : 1;
        most = ceil_div(rows, DEEP * 4);
    }
    w.blocks = (int)(most < 1 ? 1 : most < fill ? most : fill);
    return w;
}

static int row_threads(int64_t n)
{
    return n <= 128 ? 32 : n <= 1024 ? 128 : 256;
}

template <int K, int W> struct pieces {
    enum { k = K, warps = W };
};

/* f(pieces<k, warps>{}). */
template <class F> static ll_err with_pieces(way w, F f)
{
    if (w.warps == WARPS) {
        if (w.k == 1) return f(pieces<1, WARPS>{});
        return w.k == 2 ? f(pieces<2, WARPS>{}) : f(pieces<4, WARPS>{});
    }
    switch (w.k) {
    case 1: return f(pieces<1, 1>{});
    case 2: return f(pieces<2, 1>{});
    case 3: return f(pieces<3, 1>{});
    case 4: return f(pieces<4, 1>{});
    case 5: return f(pieces<5, 1>{});
    default: return f(pieces<7, 1>{});
    }
}

static ll_err run_forward(const ll_kcall *c, norming a)
{
    a.eps = ((const ll_norm_attr *)c->attr)->eps;
    way w = way_of(a.dtype, a.rows, a.n);
    if (a.rows == 0) return LL_OK;
    if (w.k == 0)
        TRY(with_float(a.dtype, [&](auto z) -> ll_err {
            norm_rows_plain<decltype(z)>
                <<<(unsigned)a.rows, row_threads(a.n), 0, stream_of(c)>>>(a);
            return LL_OK;
        }));
    else
        TRY(with_wide(a.dtype, [&](auto z) -> ll_err {
            typedef decltype(z) T;
            return with_pieces(w, [&](auto p) -> ll_err {
                typedef decltype(p) P;
                unsigned blocks = (unsigned)(w.warps == 1 ? ceil_div(a.rows, 4) : a.rows);
                norm_rows<T, P::k, P::warps>
                    <<<blocks, P::warps == 1 ? 128 : 32 * WARPS, 0, stream_of(c)>>>(a);
                return LL_OK;
            });
        }));
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

static ll_err run_plain_back(const ll_kcall *c, const norming &a, way w)
{
    return with_float(a.dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        typedef typename sum_of<T>::type S;
        dim3 grid((unsigned)ceil_div(a.n, LANES), (unsigned)w.blocks);
        if (a.dgain)
            norm_dw_plain<T><<<grid, dim3(LANES, DEEP), 0, stream_of(c)>>>(a, (S *)c->scratch);
        if (a.dx && a.rows)
            norm_dx_plain<T><<<(unsigned)a.rows, row_threads(a.n), 0, stream_of(c)>>>(a);
        return LL_OK;
    });
}

static ll_err run_wide_back(const ll_kcall *c, const norming &a, way w)
{
    return with_wide(a.dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        return with_pieces(w, [&](auto p) -> ll_err {
            typedef decltype(p) P;
            int threads = P::warps == 1 ? 128 : 32 * WARPS;
            size_t shared = P::warps == 1 ? 2 * (size_t)a.n * sizeof(float) : 0;
            if (a.dgain)
                norm_back<T, P::k, P::warps, true>
                    <<<(unsigned)w.blocks, threads, shared, stream_of(c)>>>(a, (float *)c->scratch);
            else
                norm_back<T, P::k, P::warps, false>
                    <<<blocks_for(a.rows, P::warps == 1 ? 4 : 1, 132 * 16), threads, 0,
                       stream_of(c)>>>(a, NULL);
            return LL_OK;
        });
    });
}

static ll_err run_back(const ll_kcall *c, const norming &a)
{
    way w = way_of(a.dtype, a.rows, a.n);
    if (a.n == 0) return LL_OK;
    TRY(w.k ? run_wide_back(c, a, w) : run_plain_back(c, a, w));
    CUDA_TRY(cudaGetLastError());
    if (!a.dgain) return LL_OK;
    return with_float(a.dtype == LL_F64 ? LL_F64 : LL_F32, [&](auto z) -> ll_err {
        typedef decltype(z) S;
        add_parts<S><<<(unsigned)ceil_div(2 * a.n, LANES), dim3(LANES, DEEP), 0, stream_of(c)>>>(
            (const S *)c->scratch, w.blocks, a.n, (S *)a.dgain, (S *)a.dbias);
        CUDA_TRY(cudaGetLastError());
        return LL_OK;
    });
}

size_t layernorm_dw_cuda_scratch(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[1];
    way w = way_of(x->dtype, ll_rows(x), ll_cols(x));
    return 2 * (size_t)w.blocks * (size_t)ll_cols(x) *
           (x->dtype == LL_F64 ? sizeof(double) : sizeof(float));
}

/* ---- the ops ---- */

static norming norm_of(const ll_tensor *x, bool centre)
{
    norming a = {};
    a.x = x->data;
    a.rows = ll_rows(x), a.n = ll_cols(x), a.dtype = x->dtype;
    a.centre = centre;
    return a;
}

ll_err layernorm_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[0], true);
    a.gain = c->in[1].data, a.bias = c->in[2].data;
    a.y = c->out[0].data, a.mean_out = c->out[1].data, a.rstd_out = c->out[2].data;
    return run_forward(c, a);
}

ll_err add_layernorm_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[0], true);
    a.plus = c->in[1].data, a.gain = c->in[2].data, a.bias = c->in[3].data;
    a.sum = c->out[0].data, a.y = c->out[1].data;
    a.mean_out = c->out[2].data, a.rstd_out = c->out[3].data;
    return run_forward(c, a);
}

ll_err rmsnorm_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[0], false);
    a.gain = c->in[1].data, a.y = c->out[0].data, a.rstd_out = c->out[1].data;
    return run_forward(c, a);
}

ll_err layernorm_back_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[1], true);
    a.dy = c->in[0].data, a.gain = c->in[2].data;
    a.mean = c->in[3].data, a.rstd = c->in[4].data;
    a.skip = c->n_in > 5 ? c->in[5].data : NULL;
    a.dx = c->out[0].data;
    if (c->n_out > 1) a.dgain = c->out[1].data, a.dbias = c->out[2].data;
    return run_back(c, a);
}

ll_err layernorm_dx_cuda(const ll_kcall *c)
{
    return layernorm_back_cuda(c);
}

ll_err layernorm_dw_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[1], true);
    a.dy = c->in[0].data, a.mean = c->in[2].data, a.rstd = c->in[3].data;
    a.dgain = c->out[0].data, a.dbias = c->out[1].data;
    return run_back(c, a);
}

ll_err rmsnorm_dx_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[1], false);
    a.dy = c->in[0].data, a.gain = c->in[2].data, a.rstd = c->in[3].data;
    a.dx = c->out[0].data;
    return run_back(c, a);
}

ll_err rmsnorm_dw_cuda(const ll_kcall *c)
{
    norming a = norm_of(&c->in[1], false);
    a.dy = c->in[0].data, a.rstd = c->in[2].data, a.dgain = c->out[0].data;
    return run_back(c, a);
}
