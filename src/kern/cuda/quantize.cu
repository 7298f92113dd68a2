/* quantize.cu: 8-bit floats with a scale, as they lie and transposed. First the largest magnitude
 * of all rows or of some: one of each block of a first kernel, which the warps of the next look
 * through. That one asks for its part of the tensor before it waits for them. A thread has 16 rows
 * of 8 columns, which it transposes in registers; a block 128 rows of 128 columns, which it writes
 * as they come, and transposed by way of shared memory, 128 bytes of each column at a time, past
 * the cache (the tensors are larger than it); it sums its columns too, and sums of blocks are added
 * up in order by a last kernel. */
#include "kern/cuda/eight.cuh"

#include <type_traits>

enum {
    TILE = 128,
    BLOCK = 128,
    FIND = 256,
    FINDERS = 256,
    HEAD = FINDERS * sizeof(unsigned),
    DEEP = 16
};

typedef struct job {
    const void *x, *pre; /* pre: where x is times gelu's slope at it */
    int64_t n, rows, cols, sample;
    uint8_t *q, *t; /* NULL: not wanted */
    float *scale, *sum, *parts;
    unsigned *most; /* of each block that looked for it */
    const uint64_t *clock;
    int64_t *trouble;
    unsigned finders;
    bool even; /* in tiles */
    float largest, margin;
} job;

/* The hardware's tanh is right to 2^-11: far more than 8-bit floats show. Of A (x + B x^3). */
__device__ __forceinline__ float tanh_of(float x)
{
    const float a = (float)LL_GELU_A, ab = (float)(LL_GELU_A * LL_GELU_B);
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(x * fmaf(ab, x * x, a)));
    return t;
}

__device__ __forceinline__ float gelu_of(float x)
{
    float half = 0.5f * x;
    return fmaf(half, tanh_of(x), half);
}

/* (1 + t) / 2 + x (1 - t^2) (A + 3 A B x^2) / 2 */
__device__ __forceinline__ float slope_of(float x)
{
    const float a = (float)(LL_GELU_A / 2), b = (float)(1.5 * LL_GELU_A * LL_GELU_B);
    float t = tanh_of(x);
    return fmaf(x * fmaf(b, x * x, a), fmaf(-t, t, 1.f), fmaf(0.5f, t, 0.5f));
}

template <class T, int ACT> __device__ __forceinline__ float value_at(const job &j, int64_t i)
{
    float v = to_float(((const T *)j.x)[i]);
    if (ACT == LL_ACT_GELU) return gelu_of(v);
    return ACT == LL_ACT_DGELU ? v * slope_of(to_float(((const bf16 *)j.pre)[i])) : v;
}

/* Eight elements as they lie in memory: half the registers. They are read once. */
template <class T> struct eight {
    enum { N = wide<T>::N };
    uint4 w[8 / N];
    __device__ __forceinline__ void load(const void *p, int64_t i)
    {
#pragma unroll
        for (int k = 0; k < 8 / N; k++) w[k] = __ldcs((const uint4 *)((const T *)p + i) + k);
    }
    __device__ __forceinline__ void values(float v[8]) const
    {
#pragma unroll
        for (int k = 0; k < 8 / N; k++) wide<T>::unpack(w[k], v + k * N);
    }
};

template <class T, int ACT> struct operands {
    eight<T> x;
    eight<bf16> pre;
    __device__ __forceinline__ void load(const job &j, int64_t i)
    {
        x.load(j.x, i);
        if (ACT == LL_ACT_DGELU) pre.load(j.pre, i);
    }
    __device__ __forceinline__ void values(float v[8]) const
    {
        float p[8];
        x.values(v);
        if (ACT == LL_ACT_DGELU) pre.values(p);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (ACT == LL_ACT_GELU) v[k] = gelu_of(v[k]);
            if (ACT == LL_ACT_DGELU) v[k] *= slope_of(p[k]);
        }
    }
};

/* Of so many finite numbers that were too large. */
__device__ __forceinline__ void tell_saturated(const job &j, unsigned n)
{
    if (n && j.trouble)
        atomicAdd((unsigned long long *)j.trouble + LL_TROUBLE_SATURATED, (unsigned long long)n);
}

/* ---- the largest magnitude ---- */

/* WIDE: columns that 8 divides, and less than 2^32 of these eights. */
template <class T, bool WIDE>
__device__ __forceinline__ void find_largest(const job &j, unsigned block)
{
    enum { EACH = WIDE ? 8 : 1, AT_ONCE = 4 };
    typedef typename std::conditional<WIDE, unsigned, int64_t>::type index;
    __shared__ unsigned most;
    if (threadIdx.x == 0) most = 0;
    let_next_come();
    unsigned top = 0;
    int64_t first = j.sample > 1 && j.clock ? LL_QUANTIZE_FIRST(j.clock[0], j.rows, j.sample) : 0;
    index wide = (index)(j.cols / EACH);
    index all = (index)((j.rows - first + j.sample - 1) / j.sample) * wide;
    index step = (index)j.finders * blockDim.x;
    for (index i = block * blockDim.x + threadIdx.x; i < all; i += AT_ONCE * step) {
        eight<T> x[AT_ONCE];
        float v[8];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            index e = i + u * step < all ? i + u * step : i;
            int64_t at = (((int64_t)(e / wide) * j.sample + first) * wide + e % wide) * EACH;
            if (WIDE)
                x[u].load(j.x, at);
            else
                top = max(top, magnitude(to_float(((const T *)j.x)[at])));
        }
#pragma unroll
        for (int u = 0; WIDE && u < AT_ONCE; u++) {
            x[u].values(v);
#pragma unroll
            for (int k = 0; k < 8; k++) top = max(top, magnitude(v[k]));
        }
    }
    __syncthreads();
    top = __reduce_max_sync(~0u, top);
    if (threadIdx.x % 32 == 0) atomicMax(&most, top);
    __syncthreads();
    if (threadIdx.x == 0) j.most[block] = most;
}

template <class T, bool WIDE> static __global__ __launch_bounds__(FIND) void find_one(job j)
{
    find_largest<T, WIDE>(j, blockIdx.x);
}

/* By a whole warp, when the kernel before this one is done. Block 0 writes it. */
__device__ __forceinline__ float scale_of(const job &j, unsigned block)
{
    unsigned top = 0;
    for (unsigned i = threadIdx.x % 32; i < j.finders; i += 32) top = max(top, __ldcg(j.most + i));
    float v = __uint_as_float(__reduce_max_sync(~0u, top)) * j.margin;
    v = v > 0 || v != v ? v / j.largest : 1;
    if (block == 0 && threadIdx.x == 0) *j.scale = v;
    return v;
}

/* ---- any shape ---- */

template <class T, int ACT> static __global__ void plain(job j, eight_kind kind)
{
    await_kernel();
    float s = scale_of(j, blockIdx.x);
    GRID_STRIDE(i, j.n)
    {
        float x = value_at<T, ACT>(j, i), v = isinf(x) ? x - x : x / s;
        tell_saturated(
            j, fabsf(v) >= (kind == __NV_E4M3 ? too_large<__NV_E4M3>() : too_large<__NV_E5M2>()));
        uint8_t b = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, kind);
        if (j.q) j.q[i] = b;
        if (j.t) j.t[i % j.cols * j.rows + i / j.cols] = b;
    }
}

template <class T, int ACT> static __global__ void plain_sums(job j)
{
    GRID_STRIDE(c, j.cols)
    {
        float sum = 0;
        for (int64_t r = 0; r < j.rows; r++) sum += value_at<T, ACT>(j, r * j.cols + c);
        j.sum[c] = sum;
    }
}

/* ---- tiles: rows and columns that 16 divides ---- */

/* Where rows 16 g to 16 g + 15 of a column lie, of threads that have eight columns each: those that
 * write together, and those that read together, meet no bank twice. */
__device__ __forceinline__ int piece_at(int column, int g)
{
    return column * (TILE / 16) + (g ^ (column >> 3 & 7));
}

template <class T, int ACT, bool Q, bool TRANSPOSED, bool SUM, eight_kind KIND>
__device__ __forceinline__ void one_tile(const job &j, unsigned block)
{
    enum { ROWS = ACT == LL_ACT_DGELU || sizeof(T) == 4 ? 8 : 16 }; /* asked for at once */
    __shared__ uint4 tile[TRANSPOSED ? TILE * TILE / 16 : 1];
    __shared__ float sums[SUM ? TILE / 16 * TILE : 1];
    int lane = threadIdx.x & 15, group = threadIdx.x >> 4; /* 16 threads a row */
    int rows = (int)j.rows, cols = (int)j.cols, beside = (cols + TILE - 1) / TILE;
    int row0 = block / beside * TILE, col0 = block % beside * TILE;
    int row = row0 + group * 16, col = col0 + lane * 8;
    bool in = row < rows && col < cols;
    float by = 1, sum[8] = {};
    unsigned saturated = 0;
    unsigned b[2][16]; /* columns 0 to 3, and 4 to 7 */
#pragma unroll
    for (int r0 = 0; r0 < 16; r0 += ROWS) {
        operands<T, ACT> x[ROWS];
        if (in)
#pragma unroll
            for (int r = 0; r < ROWS; r++) x[r].load(j, (int64_t)(row + r0 + r) * cols + col);
        if (r0 == 0) {
            await_kernel();
            by = 1 / scale_of(j, block);
        }
        if (in)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float v[8];
                x[r].values(v);
                uint2 w = round_counted<KIND>(v, by, saturated);
                b[0][r0 + r] = w.x, b[1][r0 + r] = w.y;
#pragma unroll
                for (int k = 0; SUM && k < 8; k++) sum[k] += v[k];
                if (Q) __stcs((uint2 *)(j.q + (int64_t)(row + r0 + r) * cols + col), w);
            }
    }
    tell_saturated(j, saturated);
#pragma unroll
    for (int h = 0; TRANSPOSED && h < 2; h++) {
        uint4 out[4];
        if (in) transpose_16(b[h], out);
#pragma unroll
        for (int k = 0; k < 4 && in; k++) tile[piece_at(lane * 8 + 4 * h + k, group)] = out[k];
    }
#pragma unroll
    for (int k = 0; SUM && k < 8; k++) sums[group * TILE + lane * 8 + k] = sum[k];
    if (TRANSPOSED || SUM) __syncthreads();
    int g = threadIdx.x & 7;
#pragma unroll
    for (int c = threadIdx.x >> 3; TRANSPOSED && c < TILE; c += BLOCK / 8)
        if (col0 + c < cols && row0 + 16 * g < rows)
            __stcs((uint4 *)(j.t + (int64_t)(col0 + c) * rows + row0 + 16 * g),
                   tile[piece_at(c, g)]);
    int c = threadIdx.x;
    if (!SUM || col0 + c >= cols) return;
    float all = 0;
    for (int k = 0; k < TILE / 16; k++) all += sums[k * TILE + c];
    j.parts[(int64_t)(row0 / TILE) * cols + col0 + c] = all;
}

template <class T, int ACT, bool Q, bool TRANSPOSED, bool SUM, eight_kind KIND>
static __global__ __launch_bounds__(BLOCK, 4) void tiles(job j)
{
    one_tile<T, ACT, Q, TRANSPOSED, SUM, KIND>(j, blockIdx.x);
}

static __global__ void add_parts(const float *parts, int n, int64_t cols, float *sum)
{
    int64_t c = blockIdx.x * 32 + threadIdx.x;
    await_kernel();
    float all = fold_parts<DEEP, 8>(
        c < cols ? n : 0, 0.f, [&](int i) { return parts[i * cols + c]; },
        [](float a, float b) { return a + b; });
    if (threadIdx.y == 0 && c < cols) sum[c] = all;
}

static unsigned tiles_of(const job &j)
{
    return (unsigned)(ll_ceil_div(j.rows, TILE) * ll_ceil_div(j.cols, TILE));
}

template <class T, int ACT, eight_kind KIND>
static ll_err run_tiles(const ll_kcall *c, const job &j)
{
    unsigned grid = tiles_of(j);
    if (j.q && !j.t)
        return launch_early(c, tiles<T, ACT, true, false, false, KIND>, grid, BLOCK, j);
    if (!j.q) return launch_early(c, tiles<T, ACT, false, true, false, KIND>, grid, BLOCK, j);
    if (!j.sum) return launch_early(c, tiles<T, ACT, true, true, false, KIND>, grid, BLOCK, j);
    TRY(launch_early(c, tiles<T, ACT, true, true, true, KIND>, grid, BLOCK, j));
    return launch_early(c, add_parts, ll_ceil_div(j.cols, 32), dim3(32, DEEP), j.parts,
                        ll_ceil_div(j.rows, TILE), j.cols, j.sum);
}

template <class T, int ACT> static ll_err run(const ll_kcall *c, const job &j, bool e4m3)
{
    constexpr bool gradient = ACT == LL_ACT_DGELU, parameter = sizeof(T) == 4;
    if constexpr (!parameter || ACT == LL_ACT_NONE)
        if (j.even) { /* see made_in_tiles */
            TRY(launch(c, find_one<T, true>, j.finders, FIND, j));
            if constexpr (!parameter && ACT == LL_ACT_NONE)
                if (!e4m3) return run_tiles<T, ACT, __NV_E5M2>(c, j);
            return run_tiles < T, ACT, gradient ? __NV_E5M2 : __NV_E4M3 > (c, j);
        }
    TRY(launch(c, find_one<T, false>, j.finders, FIND, j));
    TRY(launch_early(c, plain<T, ACT>, blocks_for(c, j.n, BLOCK), BLOCK, j,
                     e4m3 ? __NV_E4M3 : __NV_E5M2));
    return j.sum ? launch_each(c, j.cols, plain_sums<T, ACT>, j) : LL_OK;
}

/* What fuse/fp8.c makes: of f32 parameters alone, of gelu in the forward pass (e4m3), of its
 * gradient in the backward pass (e5m2). */
static bool made_in_tiles(const ll_kcall *c)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)c->attr;
    bool e4m3 = a->dtype == LL_F8_E4M3;
    if (c->in[0].dtype == LL_F32) return e4m3 && a->act == LL_ACT_NONE;
    return a->act == LL_ACT_NONE || e4m3 == (a->act == LL_ACT_GELU);
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
    j.sample = a->sample, j.clock = c->clock, j.trouble = c->trouble;
    j.q = both || !a->transposed ? (uint8_t *)c->out[0].data : NULL;
    j.t = both ? (uint8_t *)c->out[1].data : a->transposed ? (uint8_t *)c->out[0].data : NULL;
    j.scale = (float *)c->out[both ? 2 : 1].data;
    if (c->n_out == 4) j.sum = (float *)c->out[3].data;
    j.most = (unsigned *)c->scratch;
    j.parts = (float *)((char *)c->scratch + HEAD);
    j.largest = a->dtype == LL_F8_E4M3 ? 448 : 57344;
    j.margin = a->sample > 1 ? LL_QUANTIZE_MARGIN : 1;
    if (a->act == LL_ACT_DGELU) j.margin *= (float)LL_DGELU_MOST;
    int64_t looked_at = ll_ceil_div(j.rows, j.sample) * j.cols;
    j.even = made_in_tiles(c) && j.rows % 16 == 0 && j.cols % 16 == 0 && j.n > 0 &&
             looked_at / 8 < INT32_MAX &&
             ll_ceil_div(j.rows, TILE) * ll_ceil_div(j.cols, TILE) < INT32_MAX / TILE;
    int64_t finders = ll_ceil_div(ll_ceil_div(looked_at, j.even ? 32 : 4), FIND);
    j.finders = (unsigned)ll_max64(1, ll_min64(finders, FINDERS));
    return j;
}

static size_t scratch(const ll_kcall *c)
{
    job j = job_of(c);
    size_t parts = (size_t)ll_ceil_div(j.rows, TILE) * (size_t)j.cols * sizeof(float);
    return HEAD + (c->n_out == 4 ? parts : 0);
}

static ll_err run_any(const ll_kcall *c)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)c->attr;
    bool e4m3 = a->dtype == LL_F8_E4M3, narrow = c->in[0].dtype == LL_BF16;
    job j = job_of(c);
    if (a->act == LL_ACT_DGELU) return run<bf16, LL_ACT_DGELU>(c, j, e4m3);
    if (a->act == LL_ACT_GELU)
        return narrow ? run<bf16, LL_ACT_GELU>(c, j, e4m3) : run<float, LL_ACT_GELU>(c, j, e4m3);
    return narrow ? run<bf16, LL_ACT_NONE>(c, j, e4m3) : run<float, LL_ACT_NONE>(c, j, e4m3);
}

static bool tiles_fit(const ll_kcall *c)
{
    return job_of(c).even;
}

/* ---- several as one: parameters, as they lie and transposed ---- */

typedef struct layout { /* of the table: jobs, blocks' jobs (first of find, then of tiles), most */
    unsigned finders, tiles;
    size_t first, map, most, bytes;
} layout;

static bool merges(const ll_kcall *c)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)c->attr;
    return c->n_out == 3 && a->act == LL_ACT_NONE && a->dtype == LL_F8_E4M3 &&
           c->in[0].dtype == LL_F32 && job_of(c).even;
}

static bool alike(const ll_kcall *a, const ll_kcall *b)
{
    return merges(a) && merges(b);
}

static layout lay_out(const ll_kcall *const *calls, int n)
{
    layout l = {};
    for (int i = 0; i < n; i++) {
        job j = job_of(calls[i]);
        l.finders += j.finders;
        l.tiles += tiles_of(j);
    }
    l.first = sizeof(job) * (size_t)n;
    l.map = l.first + 2 * sizeof(uint32_t) * (size_t)n;
    l.most = l.map + sizeof(uint32_t) * ((size_t)l.finders + l.tiles);
    l.bytes = l.most + sizeof(unsigned) * l.finders;
    return l;
}

/* most is given by where it lies in the table, for the table's own place is not known yet. */
static size_t table(const ll_kcall *const *calls, int n, void *out)
{
    layout l = lay_out(calls, n);
    uint32_t at[2] = {0, l.finders};
    for (int i = 0; out && i < n; i++) {
        job j = job_of(calls[i]);
        uint32_t *first = (uint32_t *)((char *)out + l.first),
                 *map = (uint32_t *)((char *)out + l.map);
        unsigned blocks[2] = {j.finders, tiles_of(j)};
        j.most = (unsigned *)(uintptr_t)(l.most + at[0] * sizeof(unsigned));
        ((job *)out)[i] = j;
        for (int k = 0; k < 2; k++) {
            first[2 * i + k] = at[k];
            for (unsigned b = 0; b < blocks[k]; b++) map[at[k] + b] = (uint32_t)i;
            at[k] += blocks[k];
        }
    }
    return l.bytes;
}

/* The job of block number `at` of the map; which of the job's blocks it is. */
__device__ __forceinline__ job job_at(const char *table, const layout &l, unsigned at, int k,
                                      unsigned *block)
{
    unsigned i = ((const uint32_t *)(table + l.map))[at];
    job j = ((const job *)table)[i];
    j.most = (unsigned *)(table + (uintptr_t)j.most);
    *block = at - ((const uint32_t *)(table + l.first))[2 * i + k];
    return j;
}

static __global__ __launch_bounds__(FIND) void find_many(const char *table, layout l)
{
    unsigned block;
    job j = job_at(table, l, blockIdx.x, 0, &block);
    find_largest<float, true>(j, block);
}

static __global__ __launch_bounds__(BLOCK, 4) void tiles_many(const char *table, layout l)
{
    unsigned block;
    job j = job_at(table, l, l.finders + blockIdx.x, 1, &block);
    one_tile<float, LL_ACT_NONE, true, true, false, __NV_E4M3>(j, block);
}

static ll_err run_many(const ll_kcall *const *calls, int n, void *table)
{
    layout l = lay_out(calls, n);
    TRY(launch(calls[0], find_many, l.finders, FIND, table, l));
    return launch_early(calls[0], tiles_many, l.tiles, BLOCK, table, l);
}

static const ll_many many = {alike, table, run_many};
extern "C" const ll_solver quantize_cuda[] = {
    {"tiles", tiles_fit, scratch, run_any, &many}, {"plain", NULL, scratch, run_any}, {}};
