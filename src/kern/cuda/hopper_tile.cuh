/* hopper_tile.cuh: tiles of a product of bf16 matrices on Hopper, summed in registers, for kernels
 * with an epilogue each (hopper.cu).
 *
 * Warps are specialised. One thread of the first warp group asks TMA for tiles of a and b, four
 * stages ahead. The other two groups take turns: each makes a whole tile of y, 128 by 192, in
 * registers; while one is in its epilogue (through shared memory, and from there by TMA), the
 * tensor cores work on the other's. Blocks come in clusters of two, which work on tiles below each
 * other and so on the same of b: each asks for half of it, for both. Blocks stay until all tiles
 * are done.
 *
 *     group 1:  turn, 12 stages of tile 0 | epilogue       turn, 12 stages of tile 2 | ...
 *     group 2:                        turn, 12 stages of tile 1 | epilogue       turn, ...
 *
 * A turn ends when its last stage has arrived, so that stages are waited for in order: a barrier's
 * parity tells one phase from the next, and no more. Sizes are of any kind: TMA fills with zeros
 * what lies outside of a matrix, and does not write it. Every sum is made in one order. */
#pragma once
#include "kern/cuda/hopper.cuh"
#include "kern/cuda/sm90.cuh"
#include "kern/cuda/tile_map.cuh"

enum { ROWS = HOPPER_ROWS, COLUMNS = 192, DEPTH = 64, STAGES = 4, WIDE = 32, SLOTS = 4 };
enum { SQUARE = 64 };
enum { A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLUMNS * DEPTH * 2, SLOT = ROWS * WIDE * 2 };
enum { BARRIERS = 2 * STAGES + 2 * SLOTS + 2, ALIGN = 1024, LEAST = 64 };
enum { SHARED = STAGES * (A_BYTES + B_BYTES) + 2 * SLOTS * SLOT + BARRIERS * 8 + ALIGN };

typedef struct operands {
    CUtensorMap a, b, b_part; /* b_part: the last third of b's tile, half of its depth */
    int pairs, across, depth; /* of tiles: rows of two, columns; stages of a tile */
    int band;                 /* so many rows of two go through all columns together */
} operands;

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

typedef struct place {
    int row, column;
} place;

/* Of tile t in the order in which tiles are made: what is read of b by many is in the cache then.
 */
__device__ __forceinline__ place place_of(const operands &o, int t, int rank)
{
    int first = t / (o.band * o.across) * o.band, in = t - first * o.across;
    int high = o.pairs - first < o.band ? o.pairs - first : o.band;
    return place{((first + in % high) * 2 + rank) * ROWS, in / high * COLUMNS};
}

/* ---- the producer ---- */

template <bool TRANSPOSED> __device__ void fetch(const operands &o, const room &r, int rank)
{
    uint32_t at = 0;
    int step = gridDim.x / 2;
    for (int t = blockIdx.x / 2; t < o.pairs * o.across; t += step) {
        int row = place_of(o, t, rank).row, column = place_of(o, t, rank).column;
        for (int k = 0; k < o.depth; k++, at++) {
            uint32_t stage = at % STAGES;
            uint64_t *full = &r.full[stage];
            uint8_t *b = r.b + stage * B_BYTES;
            await_alike(&r.empty[stage], (at / STAGES & 1) ^ 1);
            expect(full, A_BYTES + B_BYTES);
            tile_load(r.a + stage * A_BYTES, &o.a, k * DEPTH, row, full);
            if (TRANSPOSED) {
                tile_load_both(b + rank * 8192, &o.b, column + rank * 64, k * DEPTH, full);
                tile_load_both(b + 16384 + rank * 4096, &o.b_part, column + 128,
                               k * DEPTH + rank * 32, full);
            } else
                tile_load_both(b + rank * (B_BYTES / 2), &o.b, k * DEPTH,
                               column + rank * (COLUMNS / 2), full);
        }
    }
}

/* ---- a consumer warp group ---- */

typedef struct worker {
    int group, thread, warp, lane, rank; /* group: 0 or 1 */
    uint8_t *slot;                       /* four of its own: 128 x 32, or 64 x 64 */
    uint32_t row_at, swizzle, half;      /* of the lane's row in a slot; which 8 columns of 16 */
    uint32_t square_at;                  /* the same, where a slot is a square */
    uint32_t stage, my_turn, aux;        /* stages met; parities */
} worker;

typedef float sums_t[2][COLUMNS / 2];

template <bool TRANSPOSED>
__device__ __forceinline__ void sum_tile(const operands &o, const room &r, worker &w, sums_t &sum)
{
    int before = -1;
    await_alike(&r.turn[w.group], w.my_turn);
    w.my_turn ^= 1;
    for (int k = 0; k < o.depth; k++, w.stage++) {
        uint32_t stage = w.stage % STAGES;
        const uint8_t *b = r.b + stage * B_BYTES;
        await_alike(&r.full[stage], w.stage / STAGES & 1);
        uint64_t at_a = operand(r.a + stage * A_BYTES),
                 at_b = TRANSPOSED ? operand_transposed(b) : operand(b);
        products_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) /* 64 rows of a are 8192 bytes */
                multiply<TRANSPOSED>(sum[h], at_a + i * 2 + h * 512,
                                     at_b + i * (TRANSPOSED ? 128 : 2), k > 0 || i > 0);
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
    w.stage += o.depth; /* the other group's */
}

/* A lane's 8 elements of 16 x 16: columns 2 (lane % 4), one more, and both 8 on, as pairs of rows.
 */
__device__ __forceinline__ void put(uint32_t at, const float *v)
{
    const uint32_t p[4] = {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])};
    put_16x16(at, p);
}

/* Of a slot of 128 rows of 32 columns. */
__device__ __forceinline__ uint32_t piece_at(const worker &w, int slot, int half, int i)
{
    return w.row_at + slot * SLOT + half * (SLOT / 2) + (((i * 2 + w.half) ^ w.swizzle) << 4);
}

/* Of a slot of 64 rows and columns. */
__device__ __forceinline__ uint32_t square_at(const worker &w, int slot, int i)
{
    return w.square_at + slot * SLOT + (((i * 2 + w.half) ^ (w.lane & 7)) << 4);
}

/* All have written, and of what was stored before all but LATER has been read: its slots are free.
 */
template <int LATER> __device__ __forceinline__ void written(const worker &w)
{
    written_for_tma();
    if (w.thread == 0) stores_read<LATER>();
    meet(1 + w.group, 128);
}

/* Adds up a lane's sums with those of the 8 lanes that hold the same columns of other rows: half of
 * 2 N change places with the lane that differs in this bit. */
template <int N> __device__ __forceinline__ void fold(float *c, int lane, int bit)
{
    bool up = lane & bit;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float given = up ? c[i] : c[i + N], kept = up ? c[i + N] : c[i];
        c[i] = kept + __shfl_xor_sync(0xffffffffu, given, bit);
    }
}

/* ---- a block's start ---- */

/* By all threads, before anything else. */
__device__ __forceinline__ void rooms_made(const room &r)
{
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) init_barrier(&r.full[i], 1), init_barrier(&r.empty[i], 2);
        for (int i = 0; i < 2 * SLOTS; i++) init_barrier(&r.aux[i], 1);
        for (int i = 0; i < 2; i++) init_barrier(&r.turn[i], 1);
        barriers_made();
    }
    cluster_sync();
}

/* Of threads 128 on. */
__device__ __forceinline__ worker worker_of(const room &r, int rank, int depth)
{
    worker w;
    int warp =
        __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); /* one for all lanes, the compiler sees */
    w.group = warp / 4 - 1, w.warp = warp % 4;
    w.thread = threadIdx.x % 128, w.lane = threadIdx.x % 32, w.rank = rank;
    w.slot = r.slots + w.group * SLOTS * SLOT;
    w.row_at = shared_at(w.slot) + (w.warp * 16 + w.lane % 16) * WIDE * 2;
    w.swizzle = w.lane / 2 % 4, w.half = w.lane / 16;
    w.square_at = shared_at(w.slot) + (w.warp * 16 + w.lane % 16) * SQUARE * 2;
    w.stage = w.group * depth, w.my_turn = w.group ^ 1, w.aux = 0;
    return w;
}

/* All of a block: the first group fetches, the others work(room, worker). FEW, MANY: registers that
 * these threads and those keep, of 168 at the start. */
template <int FEW, int MANY, bool TRANSPOSED, class F>
__device__ __forceinline__ void run_block(const operands &o, F work)
{
    room r = rooms();
    int rank = (int)cluster_rank();
    rooms_made(r);
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEW));
        if (threadIdx.x == 0) fetch<TRANSPOSED>(o, r, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MANY));
        worker w = worker_of(r, rank, o.depth);
        work(r, w);
    }
    cluster_sync(); /* nobody leaves while another may write to its memory */
}

/* ---- launching ---- */

/* Whether TMA takes it. */
static inline bool whole(const void *p, int64_t stride)
{
    return (uintptr_t)p % 16 == 0 && stride * (int64_t)sizeof(bf16) % 16 == 0;
}

/* Whether a product's operands fit; transposed: b's columns run fastest. */
static inline bool operands_fit(const matrix *a, const matrix *b, const matrix *y, bool transposed)
{
    int64_t least = ll_min64(ll_min64(y->rows, y->cols), a->cols);
    int64_t most = ll_max64(ll_max64(y->rows, y->cols), a->cols);
    return least >= LEAST && most <= INT32_MAX / 2 && a->cs == 1 && y->cs == 1 &&
           (transposed ? b->cs : b->rs) == 1 && whole(a->data, a->rs) &&
           whole(b->data, transposed ? b->rs : b->cs) && whole(y->data, y->rs) && y->rs == y->cols;
}

/* How TMA sees a row-major matrix, by tiles of so many columns and rows. */
static inline ll_err map_of(CUtensorMap *out, const void *data, int64_t rows, int64_t columns,
                            int64_t stride, int tile_columns, int tile_rows)
{
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)stride * sizeof(bf16)};
    const cuuint32_t tile[2] = {(cuuint32_t)tile_columns, (cuuint32_t)tile_rows};
    return ll_tile_map(out, data, 2, size, pitch, tile);
}

/* a [rows, k] with rows along k, b [k, columns] or its transpose (its columns run fastest). */
static inline ll_err operands_of(operands *o, const matrix *a, const matrix *b, bool transposed)
{
    int64_t rows = a->rows, columns = b->cols, k = a->cols;
    o->across = (int)ll_ceil_div(columns, COLUMNS);
    o->pairs = (int)ll_ceil_div(rows, 2 * ROWS);
    o->depth = (int)ll_ceil_div(k, DEPTH);
    o->band = 1;
    TRY(map_of(&o->a, a->data, rows, k, a->rs, DEPTH, ROWS));
    if (!transposed) return map_of(&o->b, b->data, columns, k, b->cs, DEPTH, COLUMNS / 2);
    TRY(map_of(&o->b, b->data, k, columns, b->rs, 64, DEPTH));
    return map_of(&o->b_part, b->data, k, columns, b->rs, 64, DEPTH / 2);
}

/* Clusters for all pairs of tiles, or as many as there is room for. */
template <class J> static ll_err launch_tiles(const ll_kcall *c, void (*kernel)(J), const J *j)
{
    int64_t pairs = (int64_t)j->o.pairs * j->o.across;
    return launch_shared(c, kernel, 2 * ll_min64(pairs, processors_of(c) / 2), 384, SHARED, *j);
}
