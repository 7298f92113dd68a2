/* hopper.cu: products of bf16 matrices with an epilogue: a bias, an activation with its slope, a
 * factor with sums of columns. It runs beside the next tile's sums (hopper_tile.cuh), and takes as
 * long as those of a short product: an instruction takes four clocks there, so few of them are what
 * counts. */
#include "kern/cuda/hopper_tile.cuh"

typedef struct job {
    operands o;
    CUtensorMap y, z;
    int rows, columns;
    const bf16 *bias;
    float *sums;
} job;

/* A tile leaves in squares of 64 rows and columns, two below each other, then the next two; a lane
 * has four pieces of a square, 8 numbers of 16 columns each. */
enum { PIECES = SQUARE / 16, SQUARES = 2 * COLUMNS / SQUARE, AHEAD = 3 };

__device__ __forceinline__ float *piece_of(sums_t &sum, int square, int i)
{
    return sum[square % 2] + (square / 2 * PIECES + i) * 8;
}

__device__ __forceinline__ void store(const CUtensorMap &m, const worker &w, place p, int square,
                                      int slot)
{
    tile_store(&m, p.column + square / 2 * SQUARE, p.row + square % 2 * SQUARE,
               w.slot + slot * SLOT);
}

/* A lane's biases of a piece: two columns of 8, and two of the next 8. */
__device__ __forceinline__ void add_to_piece(const uint32_t *of, float *v)
{
#pragma unroll
    for (int q = 0; q < 2; q++) {
        float low = low_of(of[q]), high = high_of(of[q]);
        v[q * 4] += low, v[q * 4 + 1] += high, v[q * 4 + 2] += low, v[q * 4 + 3] += high;
    }
}

/* Of the 32 columns from `column` on, those of a lane. */
typedef struct wide_biases {
    uint32_t of[WIDE / 8];
} wide_biases;

__device__ __forceinline__ wide_biases wide_biases_at(const job &j, const worker &w, int column)
{
    wide_biases b;
#pragma unroll
    for (int i = 0; i < WIDE / 8; i++) {
        int c = column + i * 8 + (w.lane & 3) * 2;
        b.of[i] = c < j.columns ? __ldg((const uint32_t *)(j.bias + c)) : 0;
    }
    return b;
}

/* Of the columns of a tile's piece, those of a lane; beyond the last column, any. */
typedef struct biases {
    uint32_t of[2];
} biases;

__device__ __forceinline__ biases bias_at(const job &j, const worker &w, int column, int piece)
{
    biases b;
#pragma unroll
    for (int q = 0; q < 2; q++) {
        int c =
            column + piece / (2 * PIECES) * SQUARE + piece % PIECES * 16 + q * 8 + (w.lane & 3) * 2;
        b.of[q] = __ldg((const uint32_t *)(j.bias + min(c, j.columns - 2)));
    }
    return b;
}

/* Biases are asked for three pieces ahead. */
__device__ __forceinline__ void first_biases(const job &j, const worker &w, int column,
                                             biases (&b)[AHEAD])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) b[i] = bias_at(j, w, column, i);
}

__device__ __forceinline__ void add_bias(const job &j, const worker &w, int column, int piece,
                                         biases (&b)[AHEAD], float *v)
{
    biases &now = b[piece % AHEAD];
    add_to_piece(now.of, v);
    if (piece + AHEAD < SQUARES * PIECES) now = bias_at(j, w, column, piece + AHEAD);
}

/* gelu and its slope of x; tanh to 2^-11, a quarter of what bf16 keeps of the result. With u =
 * tanh's operand and s = (1 + tanh u) / 2, y = x s and y' = s + 2 x s (1 - s) u'. */
__device__ __forceinline__ void gelu_slope(float x, float *y, float *slope)
{
    const float A = (float)LL_GELU_A, AB = (float)(LL_GELU_A * LL_GELU_B);
    float by = fmaf(AB, x * x, A), t; /* u = x by, 2 u' = 6 by - 4 A */
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(x * by));
    float s = fmaf(0.5f, t, 0.5f), xs = x * s;
    *slope = fmaf(fmaf(-xs, s, xs), fmaf(6.f, by, -4 * A), s);
    *y = xs;
}

/* y + bias: 32 columns of all rows through a slot, three slots in turn. */
__device__ __forceinline__ void bias_epilogue(const job &j, worker &w, place p, sums_t &sum)
{
    wide_biases next = wide_biases_at(j, w, p.column);
#pragma unroll
    for (int n = 0; n < COLUMNS / WIDE; n++) {
        wide_biases b = next;
        if (n + 1 < COLUMNS / WIDE) next = wide_biases_at(j, w, p.column + (n + 1) * WIDE);
#pragma unroll
        for (int i = 0; i < WIDE / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float *v = sum[h] + (n * (WIDE / 16) + i) * 8;
                add_to_piece(b.of + i * 2, v);
                put(piece_at(w, n % 3, h, i), v);
            }
        written<1>(w);
        if (w.thread == 0) tile_store(&j.y, p.column + n * WIDE, p.row, w.slot + n % 3 * SLOT);
    }
}

/* gelu(y + bias) through one slot, its slope through another, pairs of them in turn. */
__device__ __forceinline__ void slope_epilogue(const job &j, worker &w, place p, sums_t &sum)
{
    biases b[AHEAD];
    first_biases(j, w, p.column, b);
#pragma unroll
    for (int s = 0; s < SQUARES; s++) {
        int slot = s % (SLOTS / 2) * 2;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            float *v = piece_of(sum, s, i), slope[8];
            add_bias(j, w, p.column, s * PIECES + i, b, v);
#pragma unroll
            for (int e = 0; e < 8; e++) gelu_slope(v[e], &v[e], &slope[e]);
            put(square_at(w, slot, i), v);
            put(square_at(w, slot + 1, i), slope);
        }
        written<SLOTS - 4>(w);
        if (w.thread == 0) {
            store(j.y, w, p, s, slot);
            store(j.z, w, p, s, slot + 1);
        }
    }
}

__device__ __forceinline__ void ask_factor(const job &j, const room &r, const worker &w, place p,
                                           int square)
{
    int slot = square % SLOTS;
    uint64_t *aux = &r.aux[w.group * SLOTS + slot];
    expect(aux, SLOT);
    tile_load(w.slot + slot * SLOT, &j.z, p.column + square / 2 * SQUARE,
              p.row + square % 2 * SQUARE, aux);
}

/* By way of a slot whose store is the fourth last. Lane l is left with the sums from 24 (l / 16) +
 * 12 (l / 8 % 2) + 6 (l / 4 % 2) on. */
__device__ __forceinline__ void put_sums(const job &j, const worker &w, place p, float *c)
{
    float *part = (float *)(w.slot + 2 * SLOT);
    fold<24>(c, w.lane, 16);
    fold<12>(c, w.lane, 8);
    fold<6>(c, w.lane, 4);
    int first = (w.lane & 16 ? 24 : 0) + (w.lane & 8 ? 12 : 0) + (w.lane & 4 ? 6 : 0);
    if (w.thread == 0) stores_read<3>();
    meet(1 + w.group, 128);
#pragma unroll
    for (int i = 0; i < 6; i += 2) {
        int s = first + i, at = s / 4 * 16 + s % 4 / 2 * 8 + (w.lane & 3) * 2;
        *(float2 *)&part[w.warp * COLUMNS + at] = make_float2(c[i], c[i + 1]);
    }
    meet(1 + w.group, 128);
    for (int i = w.thread; i < COLUMNS; i += 128)
        if (p.column + i < j.columns && p.row < j.rows)
            j.sums[(int64_t)(p.row / ROWS) * j.columns + p.column + i] =
                part[i] + part[COLUMNS + i] + part[2 * COLUMNS + i] + part[3 * COLUMNS + i];
}

/* Four pairs of two columns, of two rows each. */
__device__ __forceinline__ void times_piece(uint32_t at, float *v, float *c, bool add)
{
    uint32_t z[4];
    get_16x16(at, z);
#pragma unroll
    for (int q = 0; q < 4; q++) v[q * 2] *= low_of(z[q]), v[q * 2 + 1] *= high_of(z[q]);
    put(at, v);
#pragma unroll
    for (int q = 0; q < 4; q++) {
        float s = v[q / 2 * 4 + q % 2] + v[q / 2 * 4 + q % 2 + 2];
        c[q] = add ? c[q] + s : s;
    }
}

/* y z, in place of z in a slot; sums of columns. The first two slots are asked for again, each when
 * the next one is done: only then is a store waited for. */
__device__ __forceinline__ void times_epilogue(const job &j, const room &r, worker &w, place p,
                                               sums_t &sum)
{
    float columns[COLUMNS / 4];
#pragma unroll
    for (int s = 0; s < SQUARES; s++) {
        int slot = s % SLOTS;
        bool again = s > 0 && s - 1 + SLOTS < SQUARES;
        await_alike(&r.aux[w.group * SLOTS + slot], w.aux >> slot & 1);
        w.aux ^= 1 << slot;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            times_piece(square_at(w, slot, i), piece_of(sum, s, i),
                        columns + (s / 2 * PIECES + i) * 4, s % 2);
        if (again)
            written<0>(w);
        else
            written<SQUARES>(w);
        if (w.thread == 0) {
            if (again) ask_factor(j, r, w, p, s - 1 + SLOTS);
            store(j.y, w, p, s, slot);
        }
    }
    if (j.sums) put_sums(j, w, p, columns);
    written<0>(w);
}

template <bool TRANSPOSED, int EPILOGUE>
__device__ void work(const job &j, const room &r, worker &w)
{
    int step = gridDim.x / 2;
    for (int t = blockIdx.x / 2 + w.group * step; t < j.o.pairs * j.o.across; t += 2 * step) {
        unsigned row = (unsigned)t / (unsigned)j.o.across; /* place_of with a band of one */
        place p = {((int)row * 2 + w.rank) * ROWS, (t - (int)row * j.o.across) * COLUMNS};
        sums_t sum;
        if (EPILOGUE == HOPPER_TIMES && w.thread == 0)
            for (int s = 0; s < SLOTS; s++) ask_factor(j, r, w, p, s);
        sum_tile<TRANSPOSED>(j.o, r, w, sum);
        if (EPILOGUE == HOPPER_BIAS) bias_epilogue(j, w, p, sum);
        if (EPILOGUE == HOPPER_SLOPE) slope_epilogue(j, w, p, sum);
        if (EPILOGUE == HOPPER_TIMES) times_epilogue(j, r, w, p, sum);
    }
    if (w.thread == 0) stores_done();
}

template <bool TRANSPOSED, int EPILOGUE>
static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    product_90(const __grid_constant__ job j)
{
    run_block<24, 240, TRANSPOSED>(
        j.o, [&](const room &r, worker &w) { work<TRANSPOSED, EPILOGUE>(j, r, w); });
}

/* ---- launching ---- */

static bool transposed(const hopper *h)
{
    return h->b.cs == 1;
}

extern "C" bool ll_hopper_fits(const hopper *h)
{
    return operands_fit(&h->a, &h->b, &h->y, transposed(h)) && whole(h->z, 0) && h->y.cols % 8 == 0;
}

template <bool TRANSPOSED> static ll_err run(const ll_kcall *c, const hopper *h, const job *j)
{
    typedef void (*kernel)(job);
    static const kernel kernels[HOPPER_N_EPILOGUE] = {product_90<TRANSPOSED, HOPPER_BIAS>,
                                                      product_90<TRANSPOSED, HOPPER_SLOPE>,
                                                      product_90<TRANSPOSED, HOPPER_TIMES>};
    return launch_tiles(c, kernels[h->epilogue], j);
}

extern "C" ll_err ll_hopper_run(const ll_kcall *c, const hopper *h)
{
    job j = {};
    int64_t rows = h->y.rows, columns = h->y.cols;
    j.rows = (int)rows, j.columns = (int)columns;
    j.bias = (const bf16 *)h->bias;
    j.sums = h->sums;
    TRY(operands_of(&j.o, &h->a, &h->b, transposed(h)));
    if (h->epilogue == HOPPER_BIAS)
        TRY(map_of(&j.y, h->y.data, rows, columns, columns, WIDE, ROWS));
    else
        TRY(map_of(&j.y, h->y.data, rows, columns, columns, SQUARE, SQUARE));
    if (h->z) TRY(map_of(&j.z, h->z, rows, columns, columns, SQUARE, SQUARE));
    return transposed(h) ? run<true>(c, h, &j) : run<false>(c, h, &j);
}
