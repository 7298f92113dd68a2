/* hopper.cu: products of bf16 matrices whose results are not done when they are summed: a bias, an
 * activation with its slope, a factor with sums of columns. Such ends take a third as long as the
 * sums of a short product; here they run beside the next tile's.
 *
 * A block has three groups of four warps. One thread of the first asks the copy engine for tiles of
 * a and b, four stages ahead. The other two groups take turns: each makes a whole tile of y, 128 by
 * 192, in registers; while one ends its tile (through shared memory, and from there by the copy
 * engine), the tensor cores work on the other's. Blocks come in clusters of two, which work on
 * tiles below each other and so on the same of b: each asks for half of it, for both. Blocks stay
 * until all tiles are done.
 *
 *     group 1:  turn, 12 stages of tile 0 | end of tile 0      turn, 12 stages of tile 2 | ...
 *     group 2:                        turn, 12 stages of tile 1 | end of tile 1       turn, ...
 *
 * A turn ends when its last stage has arrived, so that stages are waited for in order: a barrier's
 * parity tells one phase from the next, and no more. Sizes are of any kind: the engine fills with
 * zeros what lies outside of a matrix, and does not write it. Every sum is made in one order. */
#include "kern/cuda/hopper.cuh"
#include "kern/cuda/sm90.cuh"

enum { ROWS = HOPPER_ROWS, COLUMNS = 192, DEPTH = 64, STAGES = 4, WIDE = 32, SLOTS = 4 };
enum { A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, SLOT = ROWS * WIDE * 2 };
enum { BARRIERS = 2 * STAGES + 2 * SLOTS + 2, ALIGN = 1024, LEAST = 64 };
enum { SHARED = STAGES * (A_BYTES + B_BYTES) + 2 * SLOTS * SLOT + BARRIERS * 8 + ALIGN };

typedef struct job {
    CUtensorMap a, b, b_part, y, z; /* b_part: the last third of b's tile, half of its depth */
    int pairs, across, depth;       /* of tiles: rows of two, columns; stages of a tile */
    int rows, columns;
    const bf16 *bias;
    float *sums;
} job;

typedef struct room { /* shared memory */
    uint8_t *a, *b, *slots;
    uint64_t *full, *empty, *aux, *turn;
} room;

__device__ __forceinline__ room rooms(void)
{
    extern __shared__ uint8_t raw[];
    room r;
    r.a = raw + (ALIGN - shared_at(raw) % ALIGN) % ALIGN;
    r.b = r.a + STAGES * A_BYTES;
    r.slots = r.b + STAGES * B_BYTES;
    r.full = (uint64_t *)(r.slots + 2 * SLOTS * SLOT);
    r.empty = r.full + STAGES;
    r.aux = r.empty + STAGES;
    r.turn = r.aux + 2 * SLOTS;
    return r;
}

/* ---- the group that fetches ---- */

template <bool TURNED> __device__ void fetch(const job &j, const room &r, int rank)
{
    uint32_t at = 0;
    int step = gridDim.x / 2;
    for (int t = blockIdx.x / 2; t < j.pairs * j.across; t += step) {
        int row = (t / j.across * 2 + rank) * ROWS, column = t % j.across * COLUMNS;
        for (int k = 0; k < j.depth; k++, at++) {
            uint32_t stage = at % STAGES;
            uint64_t *full = &r.full[stage];
            uint8_t *b = r.b + stage * B_BYTES;
            await_alike(&r.empty[stage], (at / STAGES & 1) ^ 1);
            expect(full, A_BYTES + B_BYTES);
            tile_load(r.a + stage * A_BYTES, &j.a, k * DEPTH, row, full);
            if (TURNED) {
                tile_load_both(b + rank * 8192, &j.b, column + rank * 64, k * DEPTH, full);
                tile_load_both(b + 16384 + rank * 4096, &j.b_part, column + 128,
                               k * DEPTH + rank * 32, full);
            } else
                tile_load_both(b + rank * (B_BYTES / 2), &j.b, k * DEPTH,
                               column + rank * (COLUMNS / 2), full);
        }
    }
}

/* ---- a group that multiplies ---- */

typedef struct worker {
    int group, thread, warp, lane, rank; /* group: 0 or 1 */
    uint8_t *slot;                       /* four of its own, each 128 rows of 32 columns */
    uint32_t row_at, swizzle, half;      /* of the lane's row in a slot; which 8 columns of 16 */
    uint32_t stage, my_turn, aux;        /* stages met; parities */
} worker;

typedef float sums_t[2][COLUMNS / 2];

template <bool TURNED>
__device__ __forceinline__ void sum_tile(const job &j, const room &r, worker &w, sums_t &sum)
{
    int before = -1;
    await_alike(&r.turn[w.group], w.my_turn);
    w.my_turn ^= 1;
    for (int k = 0; k < j.depth; k++, w.stage++) {
        uint32_t stage = w.stage % STAGES;
        const uint8_t *b = r.b + stage * B_BYTES;
        await_alike(&r.full[stage], w.stage / STAGES & 1);
        uint64_t at_a = operand(r.a + stage * A_BYTES),
                 at_b = TURNED ? operand_turned(b) : operand(b);
        products_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) /* 64 rows of a are 8192 bytes */
                multiply<TURNED>(sum[h], at_a + i * 2 + h * 512, at_b + i * (TURNED ? 128 : 2),
                                 k > 0 || i > 0);
        products_commit();
        if (before >= 0) {
            products_wait<1>();
            if (w.thread < 2) arrive_at(&r.empty[before], w.thread);
        }
        before = stage;
    }
    if (w.thread == 0) arrive(&r.turn[w.group ^ 1]);
    products_wait<0>();
    if (w.thread < 2) arrive_at(&r.empty[before], w.thread);
    w.stage += j.depth; /* the other group's */
}

__device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
    return v;
}
__device__ __forceinline__ float low_of(uint32_t v)
{
    return __uint_as_float(v << 16);
}
__device__ __forceinline__ float high_of(uint32_t v)
{
    return __uint_as_float(v & 0xffff0000u);
}

/* A lane's 8 elements of 16 x 16: columns 2 (lane % 4), one more, and both 8 on, as pairs of rows.
 */
__device__ __forceinline__ void put(uint32_t at, const float *v)
{
    const uint32_t p[4] = {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])};
    put_16x16(at, p);
}

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

__device__ __forceinline__ uint32_t piece_at(const worker &w, int slot, int half, int i)
{
    return w.row_at + slot * SLOT + half * (SLOT / 2) + (((i * 2 + w.half) ^ w.swizzle) << 4);
}

/* All have written, and of what was stored before all but LATER has been read: its slots are free.
 */
template <int LATER> __device__ __forceinline__ void written(const worker &w)
{
    written_for_engine();
    if (w.thread == 0) stores_read<LATER>();
    meet(1 + w.group, 128);
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
    for (int t = blockIdx.x / 2 + w.group * step; t < j.pairs * j.across; t += 2 * step) {
        int row = (t / j.across * 2 + w.rank) * ROWS, column = t % j.across * COLUMNS;
        sums_t sum;
        if (END == HOPPER_TIMES && w.thread == 0)
            for (int n = 0; n < SLOTS; n++) ask_factor(j, r, w, n, row, column);
        sum_tile<TURNED>(j, r, w, sum);
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
    int group = threadIdx.x / 128, rank = (int)cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) init_barrier(&r.full[i], 1), init_barrier(&r.empty[i], 2);
        for (int i = 0; i < 2 * SLOTS; i++) init_barrier(&r.aux[i], 1);
        for (int i = 0; i < 2; i++) init_barrier(&r.turn[i], 1);
        barriers_made();
    }
    cluster_sync();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) fetch<TURNED>(j, r, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        worker w;
        w.group = group - 1, w.thread = threadIdx.x % 128;
        w.warp = w.thread / 32, w.lane = w.thread % 32, w.rank = rank;
        w.slot = r.slots + w.group * SLOTS * SLOT;
        w.row_at = shared_at(w.slot) + (w.warp * 16 + w.lane % 16) * WIDE * 2;
        w.swizzle = w.lane / 2 % 4, w.half = w.lane / 16;
        w.stage = w.group * j.depth, w.my_turn = w.group ^ 1, w.aux = 0;
        work<TURNED, END>(j, r, w);
    }
    cluster_sync(); /* nobody leaves while another may write to its memory */
}

/* ---- launching ---- */

typedef CUresult (*encoder)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static ll_err encoder_of(encoder *out)
{
    static encoder known;
    cudaDriverEntryPointQueryResult found;
    if (!known) {
        void *f = NULL;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                  cudaEnableDefault, &found));
        CHECK(f && found == cudaDriverEntryPointSuccess, LL_E_DEVICE,
              "the driver has no cuTensorMapEncodeTiled: want one of CUDA 12 or later");
        known = (encoder)f;
    }
    *out = known;
    return LL_OK;
}

/* How the engine sees a row-major matrix, by tiles of so many columns and rows. */
static ll_err map_of(CUtensorMap *out, const void *data, int64_t rows, int64_t columns,
                     int64_t stride, int tile_columns, int tile_rows)
{
    bool wide = tile_columns == DEPTH; /* rows of 128 bytes, or of 64 */
    encoder encode = NULL;
    TRY(encoder_of(&encode));
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)stride * sizeof(bf16)};
    const cuuint32_t tile[2] = {(cuuint32_t)tile_columns, (cuuint32_t)tile_rows}, each[2] = {1, 1};
    CUresult rc = encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)data, size, pitch, tile,
                         each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                         wide ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(rc == CUDA_SUCCESS, LL_E_DEVICE, "cuTensorMapEncodeTiled of [%lld,%lld]: error %d",
          (long long)rows, (long long)columns, (int)rc);
    return LL_OK;
}

static bool whole(const void *p, int64_t stride)
{
    return (uintptr_t)p % 16 == 0 && stride * (int64_t)sizeof(bf16) % 16 == 0;
}

static bool turned(const hopper *h)
{
    return h->b.cs == 1;
}

bool ll_hopper_fits(const hopper *h)
{
    static int known; /* 1: this GPU can, 2: it cannot */
    if (!known) {
        int device = 0, major = 0, minor = 1;
        cudaGetDevice(&device);
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        known = major == 9 && minor == 0 ? 1 : 2;
    }
    int64_t rows = h->y.rows, columns = h->y.cols, k = h->a.cols;
    bool small = rows < LEAST || columns < LEAST || k < LEAST || rows > INT32_MAX / 2 ||
                 columns > INT32_MAX / 2 || k > INT32_MAX / 2;
    return known == 1 && !small && h->a.cs == 1 && h->y.cs == 1 && (h->b.rs == 1 || h->b.cs == 1) &&
           whole(h->a.data, h->a.rs) && whole(h->b.data, turned(h) ? h->b.rs : h->b.cs) &&
           whole(h->y.data, h->y.rs) && whole(h->z, 0) && columns % 8 == 0 && h->y.rs == columns;
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
    int pairs = j->pairs * j->across, blocks = 2 * (pairs < units / 2 ? pairs : units / 2);
    ends[h->end]<<<blocks, 384, SHARED, stream_of(c)>>>(*j);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

ll_err ll_hopper_run(const ll_kcall *c, const hopper *h)
{
    job j = {};
    int64_t rows = h->y.rows, columns = h->y.cols, k = h->a.cols;
    j.across = (int)ceil_div(columns, COLUMNS);
    j.pairs = (int)ceil_div(rows, 2 * ROWS);
    j.depth = (int)ceil_div(k, DEPTH);
    j.rows = (int)rows, j.columns = (int)columns;
    j.bias = (const bf16 *)h->bias;
    j.sums = h->sums;
    TRY(map_of(&j.a, h->a.data, rows, k, h->a.rs, DEPTH, ROWS));
    TRY(map_of(&j.y, h->y.data, rows, columns, columns, WIDE, ROWS));
    if (h->z) TRY(map_of(&j.z, h->z, rows, columns, columns, WIDE, ROWS));
    if (!turned(h)) {
        TRY(map_of(&j.b, h->b.data, columns, k, h->b.cs, DEPTH, COLUMNS / 2));
        return launch<false>(c, h, &j);
    }
    TRY(map_of(&j.b, h->b.data, k, columns, h->b.rs, 64, DEPTH));
    TRY(map_of(&j.b_part, h->b.data, k, columns, h->b.rs, 64, DEPTH / 2));
    return launch<true>(c, h, &j);
}
