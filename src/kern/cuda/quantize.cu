/* quantize.cu: 8-bit floats with a scale, as they lie and turned. First the largest magnitude, of
 * all rows or of some (as bits of floats that are not negative, so that any order gives it); then
 * tiles of 128 x 128 that are rounded, written, written again turned through shared memory, and
 * whose columns are summed; sums of tiles are added up in order by a last kernel. */
#include "kern/cuda/gpu.cuh"

#include <cuda_fp8.h>

extern "C" {
ll_kernel quantize_cuda;
ll_scratch quantize_cuda_scratch;
}

enum { TILE = 128, BLOCK = 256, WORDS = TILE / 4, GROUPS = BLOCK / 16, HEAD = 256 };

typedef struct job {
    const void *x, *pre; /* pre: NULL, or x is times gelu's slope at it */
    int64_t n, rows, cols, sample;
    uint8_t *q, *t; /* NULL: not wanted */
    float *scale, *sum, *parts;
    unsigned *most;
    float largest, margin;
} job;

template <class T> struct __align__(16) eight
{ /* elements of one thread's load */
    T v[8];
};

/* The hardware's tanh is right to 2^-11: far more than 8-bit floats show. */
__device__ __forceinline__ float slope_of(float x)
{
    float t, u = (float)LL_GELU_A * (x + (float)LL_GELU_B * x * x * x);
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
    return 0.5f * (1 + t) +
           0.5f * x * (1 - t * t) * (float)LL_GELU_A * (1 + 3 * (float)LL_GELU_B * x * x);
}

template <class T, bool PRE> __device__ __forceinline__ float value_at(const job &j, int64_t i)
{
    float v = to_float(((const T *)j.x)[i]);
    return PRE ? v * slope_of(to_float(((const bf16 *)j.pre)[i])) : v;
}

/* Eight elements from i on, which 8 divides, as they lie in memory: all that is read is asked for
 * before any of it is used. */
template <class T, bool PRE> struct raw {
    eight<T> x;
    eight<bf16> pre;
    __device__ __forceinline__ void load(const job &j, int64_t i)
    {
        x = *(const eight<T> *)((const T *)j.x + i);
        if (PRE) pre = *(const eight<bf16> *)((const bf16 *)j.pre + i);
    }
    __device__ __forceinline__ void values(float v[8]) const
    {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = to_float(x.v[k]);
            if (PRE) v[k] *= slope_of(to_float(pre.v[k]));
        }
    }
};

/* ---- the largest magnitude ---- */

__device__ __forceinline__ void keep_largest(float v, float &top, bool &nan)
{
    v = fabsf(v);
    nan |= v != v;
    top = fmaxf(top, v);
}

template <class T, bool PRE, bool WIDE> static __global__ void find_largest(job j)
{
    enum { EACH = WIDE ? 8 : 1 };
    float top = 0;
    bool nan = false;
    int64_t wide = j.cols / EACH;
    GRID_STRIDE(i, ((j.rows + j.sample - 1) / j.sample) * wide)
    {
        int64_t at = (i / wide * j.sample * wide + i % wide) * EACH;
        if (WIDE) {
            raw<T, PRE> r;
            float v[8];
            r.load(j, at);
            r.values(v);
#pragma unroll
            for (int k = 0; k < 8; k++) keep_largest(v[k], top, nan);
        } else {
            keep_largest(value_at<T, PRE>(j, at), top, nan);
        }
    }
    top = block_max<float>(nan ? NAN : top);
    if (threadIdx.x == 0) atomicMax(j.most, __float_as_uint(fabsf(top)));
}

__device__ __forceinline__ float scale_of(const job &j)
{
    float v = __uint_as_float(*j.most) * j.margin;
    return v > 0 || v != v ? v / j.largest : 1;
}

/* ---- any shape ---- */

template <class T, bool PRE> static __global__ void plain(job j, __nv_fp8_interpretation_t kind)
{
    float s = scale_of(j);
    if (blockIdx.x == 0 && threadIdx.x == 0) *j.scale = s;
    GRID_STRIDE(i, j.n)
    {
        uint8_t b = __nv_cvt_float_to_fp8(value_at<T, PRE>(j, i) / s, __NV_SATFINITE, kind);
        if (j.q) j.q[i] = b;
        if (j.t) j.t[i % j.cols * j.rows + i / j.cols] = b;
    }
}

template <class T, bool PRE> static __global__ void plain_sums(job j)
{
    GRID_STRIDE(c, j.cols)
    {
        float sum = 0;
        for (int64_t r = 0; r < j.rows; r++) sum += value_at<T, PRE>(j, r * j.cols + c);
        j.sum[c] = sum;
    }
}

/* ---- tiles: rows and columns that 16 divides ---- */

/* Where the word of rows 4 w to 4 w + 3 of a column lies: threads that write eight columns each
 * meet no bank twice. */
__device__ __forceinline__ int word_at(int column, int w)
{
    return column * WORDS + (w ^ ((column >> 3 & 15) << 1));
}

template <__nv_fp8_interpretation_t KIND>
__device__ __forceinline__ uint2 rounded(const float v[8], float by)
{
    unsigned h[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        h[k] = __nv_cvt_float2_to_fp8x2(make_float2(v[2 * k] * by, v[2 * k + 1] * by),
                                        __NV_SATFINITE, KIND);
    return make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
}

template <class T, bool PRE, bool Q, bool TURNED, bool SUM, __nv_fp8_interpretation_t KIND>
static __global__ __launch_bounds__(BLOCK) void tiles(job j)
{
    __shared__ unsigned tile[TURNED ? TILE * WORDS : 1];
    __shared__ float sums[SUM ? GROUPS * TILE : 1];
    float s = scale_of(j), by = 1 / s, sum[8] = {};
    int rows = (int)j.rows, cols = (int)j.cols;
    int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    if (row0 == 0 && col0 == 0 && threadIdx.x == 0) *j.scale = s;
    int lane = threadIdx.x & 15, group = threadIdx.x >> 4; /* 16 threads a row */
    int col = col0 + lane * 8;
    for (int pass = 0; pass < TILE / 64; pass++) {
        int row = row0 + (pass * 16 + group) * 4, w = pass * 16 + group;
        if (row >= rows || col >= cols) continue;
        raw<T, PRE> in[4];
        uint2 b[4];
#pragma unroll
        for (int r = 0; r < 4; r++) in[r].load(j, (int64_t)(row + r) * cols + col);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float v[8];
            in[r].values(v);
            b[r] = rounded<KIND>(v, by);
#pragma unroll
            for (int k = 0; SUM && k < 8; k++) sum[k] += v[k];
            if (Q) *(uint2 *)(j.q + (int64_t)(row + r) * cols + col) = b[r];
        }
#pragma unroll
        for (int k = 0; TURNED && k < 8; k++) {
            unsigned word = 0;
#pragma unroll
            for (int r = 0; r < 4; r++)
                word |= ((k < 4 ? b[r].x : b[r].y) >> 8 * (k & 3) & 255u) << 8 * r;
            tile[word_at(lane * 8 + k, w)] = word;
        }
    }
#pragma unroll
    for (int k = 0; SUM && k < 8; k++) sums[group * TILE + lane * 8 + k] = sum[k];
    if (TURNED || SUM) __syncthreads();
    int w = threadIdx.x & 31;
    for (int c = threadIdx.x >> 5; TURNED && c < TILE; c += BLOCK / 32) {
        if (col0 + c >= cols || row0 + 4 * w >= rows) continue;
        *(unsigned *)(j.t + (int64_t)(col0 + c) * rows + row0 + 4 * w) = tile[word_at(c, w)];
    }
    int c = threadIdx.x;
    if (!SUM || c >= TILE || col0 + c >= cols) return;
    float all = 0;
    for (int g = 0; g < GROUPS; g++) all += sums[g * TILE + c];
    j.parts[(int64_t)blockIdx.y * cols + col0 + c] = all;
}

static __global__ void add_parts(const float *parts, int n, int64_t cols, float *sum)
{
    __shared__ float deep[8][32];
    int64_t c = blockIdx.x * 32 + threadIdx.x;
    float all = 0;
    for (int i = threadIdx.y; i < n && c < cols; i += 8) all += parts[i * cols + c];
    deep[threadIdx.y][threadIdx.x] = all;
    __syncthreads();
    if (threadIdx.y || c >= cols) return;
    for (int k = 1; k < 8; k++) all += deep[k][threadIdx.x];
    sum[c] = all;
}

template <class T, bool PRE, __nv_fp8_interpretation_t KIND>
static void run_tiles(const job &j, cudaStream_t on)
{
    int down = (int)ceil_div(j.rows, TILE);
    dim3 grid((unsigned)ceil_div(j.cols, TILE), (unsigned)down);
    if (j.sum) {
        tiles<T, PRE, true, true, true, KIND><<<grid, BLOCK, 0, on>>>(j);
        add_parts<<<(unsigned)ceil_div(j.cols, 32), dim3(32, 8), 0, on>>>(j.parts, down, j.cols,
                                                                          j.sum);
    } else if (j.q && j.t)
        tiles<T, PRE, true, true, false, KIND><<<grid, BLOCK, 0, on>>>(j);
    else if (j.q)
        tiles<T, PRE, true, false, false, KIND><<<grid, BLOCK, 0, on>>>(j);
    else
        tiles<T, PRE, false, true, false, KIND><<<grid, BLOCK, 0, on>>>(j);
}

template <class T, bool PRE> static ll_err run(const ll_kcall *c, const job &j, bool e4m3)
{
    cudaStream_t on = stream_of(c);
    bool even = j.rows % 16 == 0 && j.cols % 16 == 0 && j.n > 0 && j.rows < INT32_MAX &&
                j.cols < INT32_MAX && ceil_div(j.rows, TILE) < 65536;
    unsigned blocks =
        blocks_for(ceil_div(ceil_div(j.rows, j.sample) * j.cols, even ? 8 : 1), BLOCK);
    if (even)
        find_largest<T, PRE, true><<<blocks, BLOCK, 0, on>>>(j);
    else if (j.n)
        find_largest<T, PRE, false><<<blocks, BLOCK, 0, on>>>(j);
    if (even && e4m3)
        run_tiles<T, PRE, __NV_E4M3>(j, on);
    else if (even)
        run_tiles<T, PRE, __NV_E5M2>(j, on);
    else {
        plain<T, PRE><<<blocks_for(j.n, BLOCK), BLOCK, 0, on>>>(j, e4m3 ? __NV_E4M3 : __NV_E5M2);
        if (j.sum) plain_sums<T, PRE><<<blocks_for(j.cols, BLOCK), BLOCK, 0, on>>>(j);
    }
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

static job job_of(const ll_kcall *c)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)c->attr;
    bool both = c->n_out > 2;
    job j = {};
    j.x = c->in[0].data;
    if (c->n_in > 1) j.pre = c->in[1].data;
    j.n = ll_numel(&c->in[0].shape);
    j.rows = 1;
    for (int d = 0; d < a->rows; d++) j.rows *= c->in[0].shape.d[d];
    j.cols = j.rows ? j.n / j.rows : 0;
    j.sample = a->sample;
    j.q = both || !a->turned ? (uint8_t *)c->out[0].data : NULL;
    j.t = both ? (uint8_t *)c->out[1].data : a->turned ? (uint8_t *)c->out[0].data : NULL;
    j.scale = (float *)c->out[both ? 2 : 1].data;
    if (c->n_out == 4) j.sum = (float *)c->out[3].data;
    j.most = (unsigned *)c->scratch;
    j.parts = (float *)((char *)c->scratch + HEAD);
    j.largest = a->dtype == LL_F8_E4M3 ? 448 : 57344;
    j.margin = a->sample > 1 ? LL_QUANTIZE_MARGIN : 1;
    return j;
}

size_t quantize_cuda_scratch(const ll_kcall *c)
{
    job j = job_of(c);
    size_t parts = (size_t)ceil_div(j.rows, TILE) * (size_t)j.cols * sizeof(float);
    return HEAD + (c->n_out == 4 ? parts : 0);
}

ll_err quantize_cuda(const ll_kcall *c)
{
    bool e4m3 = ((const ll_quantize_attr *)c->attr)->dtype == LL_F8_E4M3;
    job j = job_of(c);
    CUDA_TRY(cudaMemsetAsync(j.most, 0, sizeof *j.most, stream_of(c)));
    if (j.pre) return run<bf16, true>(c, j, e4m3);
    if (c->in[0].dtype == LL_BF16) return run<bf16, false>(c, j, e4m3);
    return run<float, false>(c, j, e4m3);
}
