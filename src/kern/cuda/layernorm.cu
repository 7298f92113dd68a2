/* layernorm.cu: layer and root-mean-square normalisation and their gradients.
 *
 * A row stays in registers: a warp has it, 16 bytes a lane at a time, or 8 warps where it is long
 * (in the gradient: in shared memory). So every tensor is read once and written once. Gradients of gain and bias, sums over rows, are
 * made along the way: a warp walks rows far apart and keeps the sums of its columns in registers;
 * those of a block's warps are added in order, written, and added up in order by a second kernel.
 * Rows that are no multiple of 16 bytes, very long ones, and f64, take plain loops. */
#include "kern/cuda/layernorm.cuh"
#include "kern/cuda/vec.cuh"
#include "kern/rows.h"

extern "C" {
ll_kernel layernorm_cuda, layernorm_dx_cuda, layernorm_dw_cuda, add_layernorm_cuda,
    layernorm_back_cuda;
ll_kernel rmsnorm_cuda, rmsnorm_dx_cuda, rmsnorm_dw_cuda;
ll_scratch layernorm_dw_cuda_scratch;
}

enum { PROCESSORS = 132, LANES = 32 };

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
    uint4 w[K]; /* as it lies in memory: half the registers */
    float v[N], sum = 0, square = 0;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int j = (lane + k * step) * N;
        w[k] = make_uint4(0, 0, 0, 0);
        if (j < n) w[k] = *(const uint4 *)((const T *)a.x + r * n + j);
    }
    if (a.plus) {
        uint4 p[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            p[k] = make_uint4(0, 0, 0, 0);
            if (j < n) p[k] = *(const uint4 *)((const T *)a.plus + r * n + j);
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * step) * N;
            float b[N], c[N] = {};
            if (j >= n) continue;
            if (a.before) load_floats<N>((const float *)a.before + j, c);
            wide<T>::unpack(w[k], v);
            wide<T>::unpack(p[k], b);
#pragma unroll
            for (int i = 0; i < N; i++) v[i] += b[i] + c[i];
            w[k] = wide<T>::pack(v); /* the norm is of the sum as it is kept */
            *(uint4 *)((T *)a.sum + r * n + j) = w[k];
        }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        wide<T>::unpack(w[k], v);
#pragma unroll
        for (int i = 0; i < N; i++) sum += v[i];
    }
    float mean = a.centre ? row_sum<W>(sum) / (float)n : 0.f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if ((lane + k * step) * N >= n) continue;
        wide<T>::unpack(w[k], v);
#pragma unroll
        for (int i = 0; i < N; i++) square += (v[i] - mean) * (v[i] - mean);
    }
    float rstd = 1.f / sqrtf(row_sum<W>(square) / (float)n + (float)a.eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int j = (lane + k * step) * N;
        if (j >= n) continue;
        float g[N], b[N];
        wide<T>::unpack(w[k], v);
        load_floats<N>((const float *)a.gain + j, g);
        if (a.bias) load_floats<N>((const float *)a.bias + j, b);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = (v[i] - mean) * rstd * g[i] + (a.bias ? b[i] : 0.f);
        *(uint4 *)((T *)a.y + r * n + j) = wide<T>::pack(v);
    }
    if (lane) return;
    if (a.mean_out) ((float *)a.mean_out)[r] = mean;
    ((float *)a.rstd_out)[r] = rstd;
}

/* Sums of columns are handed on in the order in which lanes hold them: [M][K][N][step], of which
 * [m][k][i][lane] is column (lane + k step) N + i. */

/* This block's M sums of each column, its warps' in order; sums: room for those of each warp. */
template <int M, int K, int N>
static __device__ void add_warps(const float (&of)[M][K][N], float *sums, float *out)
{
    enum { ALL = M * K * N * 32 };
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    float *mine = sums + threadIdx.x / 32 * ALL + lane;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) mine[((m * K + k) * N + i) * 32] = of[m][k][i];
    __syncthreads();
    for (int j = threadIdx.x; j < ALL; j += blockDim.x) {
        float sum = sums[j];
        for (int w = 1; w < warps; w++) sum += sums[w * ALL + j];
        out[j] = sum;
    }
}

/* The part of a row's gradient that a lane has, of the pieces of dy, x and skip: what it adds to the
 * row's two sums (p, q) and to the columns' first two (of). */
template <class T, int M>
__device__ __forceinline__ void add_terms(const norming &a, uint4 wd, uint4 wx, int j, float2 stats,
                                          float2 &pq, float *dg, float *db)
{
    enum { N = wide<T>::N };
    float d[N], x[N], g[N];
    wide<T>::unpack(wd, d);
    wide<T>::unpack(wx, x);
    if (a.dx) load_floats<N>((const float *)a.gain + j, g);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float xhat = (x[i] - stats.x) * stats.y, u = a.dx ? d[i] * g[i] : 0.f;
        pq.x += u;
        pq.y += u * xhat;
        if (M >= 2) dg[i] += d[i] * xhat, db[i] += d[i];
    }
}

/* ... and dx, from the row's sums, with the columns' third. */
template <class T, int M>
__device__ __forceinline__ void put_dx(const norming &a, uint4 wd, uint4 wx, uint4 ws, int64_t r,
                                       int j, float2 stats, float2 pq, float *ds)
{
    enum { N = wide<T>::N };
    float d[N], x[N], s[N], g[N];
    wide<T>::unpack(wd, d);
    wide<T>::unpack(wx, x);
    wide<T>::unpack(ws, s);
    load_floats<N>((const float *)a.gain + j, g);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float xhat = (x[i] - stats.x) * stats.y;
        s[i] += stats.y * (d[i] * g[i] - pq.x - xhat * pq.y);
        if (M == 3) ds[i] += s[i];
    }
    *(uint4 *)((T *)a.dx + r * a.n + j) = wide<T>::pack(s);
}

__device__ __forceinline__ float2 statistics_of(const norming &a, int64_t r)
{
    if (r >= a.rows) return make_float2(0, 0);
    return make_float2(a.centre ? ((const float *)a.mean)[r] : 0.f, ((const float *)a.rstd)[r]);
}

/* u = dy gain; dx = rstd (u - mean u - xhat mean(u xhat)) + skip; without a centre, no mean u.
 * M: how many sums this block makes of each column: of dy xhat, dy and dx. A warp has a row. */
template <class T, int K, int M>
static __global__ void __launch_bounds__(128) norm_back(norming a, float *parts)
{
    enum { N = wide<T>::N };
    extern __shared__ uint4 shared[];
    int lane = threadIdx.x & 31, n = (int)a.n;
    float of[M ? M : 1][K][N] = {}, by = 1.f / (float)n;
    int64_t stride = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t r = first_row<1>(); r < a.rows; r += stride) {
        uint4 wd[K], wx[K], ws[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * 32) * N;
            wd[k] = wx[k] = ws[k] = make_uint4(0, 0, 0, 0);
            if (j >= n) continue;
            wd[k] = *(const uint4 *)((const T *)a.dy + r * n + j);
            wx[k] = *(const uint4 *)((const T *)a.x + r * n + j);
            if (a.skip) ws[k] = *(const uint4 *)((const T *)a.skip + r * n + j);
        }
        float2 stats = statistics_of(a, r), pq = {0, 0};
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * 32) * N;
            if (j < n)
                add_terms<T, M>(a, wd[k], wx[k], j, stats, pq, of[0][k], of[M >= 2][k]);
        }
        if (!a.dx) continue;
        pq.x = a.centre ? warp_sum(pq.x) * by : 0.f;
        pq.y = warp_sum(pq.y) * by;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * 32) * N;
            if (j < n)
                put_dx<T, M>(a, wd[k], wx[k], ws[k], r, j, stats, pq, of[M == 3 ? 2 : 0][k]);
        }
    }
    if constexpr (M > 0)
        add_warps(of, (float *)shared, parts + blockIdx.x * (int64_t)(M * K * N * 32));
}

/* ---- long rows: in shared memory; a block has a row ---- */

__device__ __forceinline__ void bring(uint4 *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from)
                 : "memory");
}

/* Starts to bring this lane's pieces of row r of dy, x and skip: to[3][K][step], of which a lane
 * reads no others than it brought. */
template <class T, int K>
__device__ __forceinline__ void bring_row(const norming &a, int64_t r, int lane, int step, uint4 *to)
{
    enum { N = wide<T>::N };
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t j = (lane + k * step) * N, at = r * a.n + j;
        uint4 *here = to + k * step + lane;
        if (r >= a.rows || j >= a.n) continue;
        bring(here, (const T *)a.dy + at);
        bring(here + K * step, (const T *)a.x + at);
        if (a.skip) bring(here + 2 * K * step, (const T *)a.skip + at);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Both sums over a block, with one wait: the room for them is used by turns. */
__device__ __forceinline__ float2 block_sums(float2 v, int turn)
{
    __shared__ float2 part[2][WARPS];
    v.x = warp_sum(v.x), v.y = warp_sum(v.y);
    if (threadIdx.x % 32 == 0) part[turn][threadIdx.x / 32] = v;
    __syncthreads();
    v = part[turn][0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) v.x += part[turn][w].x, v.y += part[turn][w].y;
    return v;
}

/* As norm_back. The next row is on its way while this one is worked on: sums of columns take the
 * registers that would hold it. */
template <class T, int K, int M>
static __global__ void __launch_bounds__(32 * WARPS) norm_back_long(norming a, float *parts)
{
    enum { N = wide<T>::N, STEP = 32 * WARPS };
    extern __shared__ uint4 stage[]; /* [2][3][K][STEP] */
    int lane = threadIdx.x, n = (int)a.n;
    float of[M ? M : 1][K][N] = {}, by = 1.f / (float)n;
    int64_t r = blockIdx.x;
    float2 next = statistics_of(a, r);
    bring_row<T, K>(a, r, lane, STEP, stage);
    for (int turn = 0; r < a.rows; r += gridDim.x, turn ^= 1) {
        const uint4 *row = stage + turn * 3 * K * STEP + lane;
        float2 stats = next, pq = {0, 0};
        bring_row<T, K>(a, r + gridDim.x, lane, STEP, stage + (turn ^ 1) * 3 * K * STEP);
        next = statistics_of(a, r + gridDim.x);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * STEP) * N;
            if (j < n)
                add_terms<T, M>(a, row[k * STEP], row[(K + k) * STEP], j, stats, pq, of[0][k],
                                of[M >= 2][k]);
        }
        if (!a.dx) continue;
        pq = block_sums(pq, turn);
        pq.x = a.centre ? pq.x * by : 0.f;
        pq.y *= by;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * STEP) * N;
            uint4 skip = a.skip ? row[(2 * K + k) * STEP] : make_uint4(0, 0, 0, 0);
            if (j < n)
                put_dx<T, M>(a, row[k * STEP], row[(K + k) * STEP], skip, r, j, stats, pq,
                             of[M == 3 ? 2 : 0][k]);
        }
    }
    float *out = parts + blockIdx.x * (int64_t)(M * K * N * STEP) + lane;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int i = 0; i < N; i++) out[((m * K + k) * N + i) * STEP] = of[m][k][i];
}

/* ---- sums of all blocks ---- */

/* Adds up the parts [parts][M][K][N][step]; of a result that is not wanted nothing is written. */
template <class S>
static __global__ void __launch_bounds__(1024)
    add_parts(const S *parts, int n_part, int64_t n, int m, int k, int each, int step, S *dgain,
              S *dbias, S *dsum)
{
    __shared__ S part[32][LANES];
    int64_t at = blockIdx.x * (int64_t)LANES + threadIdx.x, one = (int64_t)k * each * step;
    S sum = 0;
    if (at < m * one)
#pragma unroll 8
        for (int p = threadIdx.y; p < n_part; p += 32) sum += parts[p * m * one + at];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || at >= m * one) return;
    for (int p = 1; p < 32; p++) sum += part[p][threadIdx.x];
    S *out = at < one ? dgain : at < 2 * one ? dbias : dsum;
    int64_t in_one = at % one, lane = in_one % step, i = in_one / step % each;
    int64_t j = (lane + in_one / step / each * step) * each + i;
    if (out && j < n) out[j] = sum;
}

/* ---- which way ---- */

typedef struct way {
    int k, warps; /* k 16-byte pieces for each lane of so many warps a row; 0: plain loops */
    int blocks;   /* of the gradient: so many parts of the sums over rows */
} way;

static way way_of(ll_dtype t, int64_t rows, int64_t n, int sums)
{
    /* blocks of the gradient that a multiprocessor has room for, with 2 sums and with 3 */
    static const int at_once[2][6] = {{0, 8, 5, 4, 3, 2}, {0, 7, 4, 3, 2, 2}};
    static const int at_once_long[2][5] = {{0, 5, 3, 2, 2}, {0, 4, 2, 1, 1}};
    way w = {0, 1, 0};
    int64_t pieces = is_wide(t, n) ? n / (16 / (int64_t)ll_dtype_bytes(t)) : 0, fill;
    if (pieces && pieces <= 32 * 5) {
        w.k = (int)ceil_div(pieces, 32);
        fill = PROCESSORS * at_once[sums > 2][w.k];
    } else if (pieces && pieces <= 32 * WARPS * 4) {
        w.warps = WARPS;
        w.k = (int)ceil_div(pieces, 32 * WARPS);
        if (w.k == 3) w.k = 4;
        fill = PROCESSORS * at_once_long[sums > 2][w.k];
    } else /* blocks of columns share the chip */
        fill = n ? ceil_div(PROCESSORS * 8, ceil_div(n, LANES)) : 1;
    int64_t most = ceil_div(rows, w.k == 0 ? 64 : w.warps == 1 ? 16 : 4);
    w.blocks = (int)(most < 1 ? 1 : most < fill ? most : fill);
    return w;
}

/* Forward, rows of up to 7 pieces for a lane are a warp's. */
static way way_forward(ll_dtype t, int64_t rows, int64_t n)
{
    way w = way_of(t, rows, n, 0);
    int64_t pieces = w.k ? n / (16 / (int64_t)ll_dtype_bytes(t)) : 0;
    if (w.warps == 1 || pieces > 32 * 7) return w;
    w.warps = 1;
    w.k = 7;
    return w;
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
    default: return f(pieces<5, 1>{});
    }
}

static ll_err run_forward(const ll_kcall *c, norming a)
{
    a.eps = ((const ll_norm_attr *)c->attr)->eps;
    way w = way_forward(a.dtype, a.rows, a.n);
    if (a.rows == 0) return LL_OK;
    if (w.k == 0)
        TRY(ll_norm_plain(c, &a));
    else
        TRY(with_wide(a.dtype, [&](auto z) -> ll_err {
            typedef decltype(z) T;
            auto launch = [&](auto p) -> ll_err {
                typedef decltype(p) P;
                unsigned blocks = (unsigned)(w.warps == 1 ? ceil_div(a.rows, 4) : a.rows);
                norm_rows<T, P::k, P::warps>
                    <<<blocks, P::warps == 1 ? 128 : 32 * WARPS, 0, stream_of(c)>>>(a);
                return LL_OK;
            };
            return w.k == 7 ? launch(pieces<7, 1>{}) : with_pieces(w, launch);
        }));
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

/* Sums of each column that a call makes. */
static int sums_of(const norming &a)
{
    return a.dsum ? 3 : a.dgain ? 2 : 0;
}

template <class F> static ll_err allow_shared(F kernel, size_t bytes)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return LL_OK;
}

template <class T, class P, int M>
static ll_err launch_back(const ll_kcall *c, const norming &a, int blocks)
{
    float *parts = (float *)c->scratch;
    if constexpr (P::warps == 1) {
        size_t bytes = 4 * M * P::k * 32 * 16 / sizeof(T) * sizeof(float);
        TRY(allow_shared(norm_back<T, P::k, M>, bytes));
        norm_back<T, P::k, M><<<(unsigned)blocks, 128, bytes, stream_of(c)>>>(a, parts);
    } else {
        size_t bytes = 2 * 3 * P::k * 32 * WARPS * sizeof(uint4);
        TRY(allow_shared(norm_back_long<T, P::k, M>, bytes));
        norm_back_long<T, P::k, M>
            <<<(unsigned)blocks, 32 * WARPS, bytes, stream_of(c)>>>(a, parts);
    }
    return LL_OK;
}

static ll_err run_wide_back(const ll_kcall *c, const norming &a, way w)
{
    return with_wide(a.dtype, [&](auto z) -> ll_err {
        typedef decltype(z) T;
        return with_pieces(w, [&](auto p) -> ll_err {
            typedef decltype(p) P;
            if (a.dsum) return launch_back<T, P, 3>(c, a, w.blocks);
            if (a.dgain) return launch_back<T, P, 2>(c, a, w.blocks);
            return launch_back<T, P, 0>(c, a, (int)blocks_for(a.rows, P::warps == 1 ? 4 : 1));
        });
    });
}

/* Elements of one sum of all columns, in parts: whole pieces for each lane. */
static int64_t one_sum(const norming &a, way w)
{
    return w.k ? w.k * 32 * w.warps * (16 / (int64_t)ll_dtype_bytes(a.dtype)) : a.n;
}

template <class S> static void launch_add_parts(const ll_kcall *c, const norming &a, way w)
{
    int sums = sums_of(a), each = w.k ? 16 / (int)ll_dtype_bytes(a.dtype) : 1;
    int step = w.k ? 32 * w.warps : (int)a.n;
    unsigned blocks = (unsigned)ceil_div(sums * one_sum(a, w), LANES);
    add_parts<S><<<blocks, dim3(LANES, 32), 0, stream_of(c)>>>(
        (const S *)c->scratch, w.blocks, a.n, sums, w.k ? w.k : 1, each, step, (S *)a.dgain,
        (S *)a.dbias, (S *)a.dsum);
}

static ll_err run_back(const ll_kcall *c, const norming &a)
{
    way w = way_of(a.dtype, a.rows, a.n, sums_of(a));
    if (a.n == 0) return LL_OK;
    TRY(w.k ? run_wide_back(c, a, w) : ll_norm_back_plain(c, &a, w.blocks, sums_of(a)));
    CUDA_TRY(cudaGetLastError());
    if (!a.dgain) return LL_OK;
    if (a.dtype == LL_F64)
        launch_add_parts<double>(c, a, w);
    else
        launch_add_parts<float>(c, a, w);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
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

/* Of layernorm_dw, rmsnorm_dw, layernorm_back and layernorm_back_sum. */
size_t layernorm_dw_cuda_scratch(const ll_kcall *c)
{
    int sums = c->n_out > 3 ? 3 : 2;
    norming a = norm_of(&c->in[1], true);
    way w = way_of(a.dtype, a.rows, a.n, sums);
    return (size_t)(sums * w.blocks * one_sum(a, w)) *
           (a.dtype == LL_F64 ? sizeof(double) : sizeof(float));
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
    a.before = c->n_in > 4 ? c->in[4].data : NULL;
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
    if (c->n_out > 3) a.dsum = c->out[3].data;
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
