/* hopper.cu: products of bf16 matrices whose results are not done when they are summed: a bias, an
 * activation with its slope, a factor with sums of columns. Such ends take a third as long as the
 * sums of a short product; here they run beside the next tile's (hopper_tile.cuh). */
#include "kern/cuda/hopper_tile.cuh"

typedef struct job {
    operands o;
    CUtensorMap y, z;
    int rows, columns;
    const bf16 *bias;
    float *sums;
} job;

/* Of the 32 columns from `column` on, those of a lane. */
typedef struct biases {
    uint32_t of[WIDE / 8];
} biases;

__device__ __forceinline__ biases bias_at(const job &j, const worker &w, int column)
{
    biases b;
#pragma unroll
    for (int i = 0; i < WIDE / 8; i++) {
        int c = column + i * 8 + (w.lane & 3) * 2;
        b.of[i] = c < j.columns ? __ldg((const uint32_t *)(j.bias + c)) : 0;
    }
    return b;
}

__device__ __forceinline__ void add_bias(const biases &b, int i, float *v)
{
#pragma unroll
    for (int q = 0; q < 2; q++) {
        float low = low_of(b.of[i * 2 + q]), high = high_of(b.of[i * 2 + q]);
        v[q * 4] += low, v[q * 4 + 1] += high, v[q * 4 + 2] += low, v[q * 4 + 3] += high;
    }
}

/* gelu and its slope of x; tanh to 2^-11, a quarter of what bf16 keeps of the result. */
__device__ __forceinline__ void gelu_slope(float x, float *y, float *slope)
{
    const float A = (float)LL_GELU_A, AB = (float)(LL_GELU_A * LL_GELU_B);
    float xx = x * x, half = 0.5f * x, t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(x * fmaf(AB, xx, A)));
    *y = fmaf(half, t, half);
    *slope = fmaf(half * fmaf(3 * AB, xx, A), fmaf(-t, t, 1.f), fmaf(0.5f, t, 0.5f));
}

/* y + bias, 32 columns through a slot, three slots in turn. */
__device__ __forceinline__ void end_bias(const job &j, worker &w, int row, int column, sums_t &sum)
{
    biases next = bias_at(j, w, column);
#pragma unroll
    for (int n = 0; n < COLUMNS / WIDE; n++) {
        biases b = next;
        if (n + 1 < COLUMNS / WIDE) next = bias_at(j, w, column + (n + 1) * WIDE);
#pragma unroll
        for (int i = 0; i < WIDE / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *v = sum[h] + (n * (WIDE / 16) + i) * 8;
                add_bias(b, i, v);
                put(piece_at(w, n % 3, h, i), v);
            }
        written<1>(w);
        if (w.thread == 0) tile_store(&j.y, column + n * WIDE, row, w.slot + n % 3 * SLOT);
    }
}

/* gelu(y + bias) through one slot, its slope through another, pairs of them in turn. */
__device__ __forceinline__ void end_slope(const job &j, worker &w, int row, int column, sums_t &sum)
{
    biases next = bias_at(j, w, column);
#pragma unroll
    for (int n = 0; n < COLUMNS / WIDE; n++) {
        int slot = n % (SLOTS / 2) * 2;
        biases b = next;
        if (n + 1 < COLUMNS / WIDE) next = bias_at(j, w, column + (n + 1) * WIDE);
#pragma unroll
        for (int i = 0; i < WIDE / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *v = sum[h] + (n * (WIDE / 16) + i) * 8, slope[8];
                add_bias(b, i, v);
#pragma unroll
                for (int e = 0; e < 8; e++) gelu_slope(v[e], &v[e], &slope[e]);
                put(piece_at(w, slot, h, i), v);
                put(piece_at(w, slot + 1, h, i), slope);
            }
        written<SLOTS - 4>(w);
        if (w.thread == 0) {
            tile_store(&j.y, column + n * WIDE, row, w.slot + slot * SLOT);
            tile_store(&j.z, column + n * WIDE, row, w.slot + (slot + 1) * SLOT);
        }
    }
}

__device__ __forceinline__ void ask_factor(const job &j, const room &r, const worker &w, int n,
                                           int row, int column)
{
    uint64_t *aux = &r.aux[w.group * SLOTS + n % SLOTS];
    expect(aux, SLOT);
    tile_load(w.slot + n % SLOTS * SLOT, &j.z, column + n * WIDE, row, aux);
}

/* Adds up a lane's sums with those of the 8 lanes that hold the same columns of other rows: half of
 * them change places at each step. Lane l is left with the sums from 24 (l / 16) + 12 (l / 8 % 2) +
 * 6 (l / 4 % 2) on. */
template <int N> __device__ __forceinline__ void fold(float *c, int lane, int bit)
{
    bool up = lane & bit;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float given = up ? c[i] : c[i + N], kept = up ? c[i + N] : c[i];
        c[i] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
    }
}

__device__ __forceinline__ void put_sums(const job &j, const worker &w, int row, int column,
                                         float *c)
{
    float *part = (float *)w.slot;
    fold<24>(c, w.lane, 16);
    fold<12>(c, w.lane, 8);
    fold<6>(c, w.lane, 4);
    int first = (w.lane & 16 ? 24 : 0) + (w.lane & 8 ? 12 : 0) + (w.lane & 4 ? 6 : 0);
    if (w.thread == 0) stores_read<0>();
    meet(1 + w.group, 128);
#pragma unroll
    for (int i = 0; i < 6; i += 2) {
        int s = first + i, at = s / 4 * 16 + s % 4 / 2 * 8 + (w.lane & 3) * 2;
        *(float2 *)&part[w.warp * COLUMNS + at] = make_float2(c[i], c[i + 1]);
    }
    meet(1 + w.group, 128);
    for (int i = w.thread; i < COLUMNS; i += 128)
        if (column + i < j.columns && row < j.rows)
            j.sums[(int64_t)(row / ROWS) * j.columns + column + i] =
                part[i] + part[COLUMNS + i] + part[2 * COLUMNS + i] + part[3 * COLUMNS + i];
}

/* y z, in place of z in a slot; sums of columns. A slot is asked for again when the one after it is
 * done. */
__device__ __forceinline__ void end_times(const job &j, const room &r, worker &w, int row,
                                          int column, sums_t &sum)
{
    float columns[COLUMNS / 4];
#pragma unroll
    for (int n = 0; n < COLUMNS / WIDE; n++) {
        int slot = n % SLOTS;
        await_alike(&r.aux[w.group * SLOTS + slot], w.aux >> slot & 1);
        w.aux ^= 1 << slot;
#pragma unroll
        for (int i = 0; i < WIDE / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int piece = n * (WIDE / 16) + i;
                float *v = sum[h] + piece * 8, *c = columns + piece * 4;
                uint32_t at = piece_at(w, slot, h, i), z[4];
                get_16x16(at, z);
#pragma unroll
                for (int q = 0; q < 4; q++) v[q * 2] *= low_of(z[q]), v[q * 2 + 1] *= high_of(z[q]);
                put(at, v);
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float s = v[q / 2 * 4 + q % 2] + v[q / 2 * 4 + q % 2 + 2];
                    c[q] = h ? c[q] + s : s;
                }
            }
        written<0>(w);
        if (w.thread == 0) {
            if (n > 0 && n - 1 + SLOTS < COLUMNS / WIDE)
                ask_factor(j, r, w, n - 1 + SLOTS, row, column);
            tile_store(&j.y, column + n * WIDE, row, w.slot + slot * SLOT);
        }
    }
    if (j.sums) put_sums(j, w, row, column, columns);
    written<0>(w);
}

template <bool TURNED, int END> __device__ void work(const job &j, const room &r, worker &w)
{
    int step = gridDim.x / 2;
    for (int t = blockIdx.x / 2 + w.group * step; t < j.o.pairs * j.o.across; t += 2 * step) {
        int row = (t / j.o.across * 2 + w.rank) * ROWS, column = t % j.o.across * COLUMNS;
        sums_t sum;
        if (END == HOPPER_TIMES && w.thread == 0)
            for (int n = 0; n < SLOTS; n++) ask_factor(j, r, w, n, row, column);
        sum_tile<TURNED>(j.o, r, w, sum);
        if (END == HOPPER_BIAS) end_bias(j, w, row, column, sum);
        if (END == HOPPER_SLOPE) end_slope(j, w, row, column, sum);
        if (END == HOPPER_TIMES) end_times(j, r, w, row, column, sum);
    }
    if (w.thread == 0) stores_done();
}

template <bool TURNED, int END>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    product_90(const __grid_constant__ job j)
{
    room r = rooms();
    int rank = (int)cluster_rank();
    rooms_made(r);
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) fetch<TURNED>(j.o, r, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        worker w = worker_of(r, rank, j.o.depth);
        work<TURNED, END>(j, r, w);
    }
    cluster_sync(); /* nobody leaves while another may write to its memory */
}

/* ---- launching ---- */

static bool turned(const hopper *h)
{
    return h->b.cs == 1;
}

bool ll_hopper_fits(const hopper *h)
{
    int64_t rows = h->y.rows, columns = h->y.cols, k = h->a.cols;
    bool small = rows < LEAST || columns < LEAST || k < LEAST || rows > INT32_MAX / 2 ||
                 columns > INT32_MAX / 2 || k > INT32_MAX / 2;
    return hopper_here() && !small && h->a.cs == 1 && h->y.cs == 1 &&
           (h->b.rs == 1 || h->b.cs == 1) && whole(h->a.data, h->a.rs) &&
           whole(h->b.data, turned(h) ? h->b.rs : h->b.cs) && whole(h->y.data, h->y.rs) &&
           whole(h->z, 0) && columns % 8 == 0 && h->y.rs == columns;
}

template <bool TURNED> static ll_err launch(const ll_kcall *c, const hopper *h, const job *j)
{
    typedef void (*kernel)(job);
    static const kernel ends[HOPPER_N_END] = {product_90<TURNED, HOPPER_BIAS>,
                                              product_90<TURNED, HOPPER_SLOPE>,
                                              product_90<TURNED, HOPPER_TIMES>};
    int device, units;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device));
    CUDA_TRY(
        cudaFuncSetAttribute(ends[h->end], cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED));
    int pairs = j->o.pairs * j->o.across, blocks = 2 * (pairs < units / 2 ? pairs : units / 2);
    ends[h->end]<<<blocks, 384, SHARED, stream_of(c)>>>(*j);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

ll_err ll_hopper_run(const ll_kcall *c, const hopper *h)
{
    job j = {};
    int64_t rows = h->y.rows, columns = h->y.cols;
    j.rows = (int)rows, j.columns = (int)columns;
    j.bias = (const bf16 *)h->bias;
    j.sums = h->sums;
    TRY(operands_of(&j.o, &h->a, &h->b, turned(h)));
    TRY(map_of(&j.y, h->y.data, rows, columns, columns, WIDE, ROWS));
    if (h->z) TRY(map_of(&j.z, h->z, rows, columns, columns, WIDE, ROWS));
    return turned(h) ? launch<true>(c, h, &j) : launch<false>(c, h, &j);
}
