/* sparse.cu: products with weights that are 2:4, by Hopper's sparse tensor cores, which multiply
 * the numbers that are no zeros alone: at most twice as fast, and less as they read all of x in
 * half of the time.
 *
 * The sparse operand is the first, so a tile is one of y': 128 features by 192 rows of x. Two warp
 * groups take turns as in hopper_tile.cuh, blocks of two share x; a stage is 64 deep: 32 kept
 * numbers of a feature, of which metadata says where they were. First w is packed, by a kernel of
 * its own.
 *
 * Metadata as threads hand it over: a word has 16 of k of a row of 16 (low half) and of the row 8
 * below it, 4 bits for each four, the two places in order. Of a quad the first two threads have the
 * first 32 of k, the others the next. Memory has them in that order: 128 words for 64 features. */
#include "kern/cuda/hopper_tile.cuh"
#include "kern/cuda/sparse.cuh"

enum { KEPT_BYTES = ROWS * DEPTH, PLACE_BYTES = ROWS * DEPTH / 8, X_BYTES = COLUMNS * DEPTH * 2 };
enum { DEEP = 5, OUT_SLOTS = 2 }; /* stages; squares of y that wait for TMA, of each group */
enum { SPARSE_BARRIERS = 2 * DEEP + 2 };
enum {
    SPARSE_SHARED = DEEP * (KEPT_BYTES + PLACE_BYTES + X_BYTES) + 2 * OUT_SLOTS * SLOT +
                    SPARSE_BARRIERS * 8 + ALIGN
};

typedef struct sparse_job {
    operands o; /* a: what is kept of w; b: x */
    CUtensorMap y;
    const uint32_t *places;
    const bf16 *bias;
    int features;
} sparse_job;

typedef struct sparse_room {
    uint8_t *kept, *x, *slots, *places;
    uint64_t *full, *empty, *turn;
} sparse_room;

__device__ __forceinline__ sparse_room sparse_rooms(void)
{
    extern __shared__ uint8_t raw[];
    sparse_room r;
    r.kept = raw + (ALIGN - shared_at(raw) % ALIGN) % ALIGN;
    r.x = r.kept + DEEP * KEPT_BYTES;
    r.slots = r.x + DEEP * X_BYTES;
    r.places = r.slots + 2 * OUT_SLOTS * SLOT;
    r.full = (uint64_t *)(r.places + DEEP * PLACE_BYTES);
    r.empty = r.full + DEEP;
    r.turn = r.empty + DEEP;
    return r;
}

/* operand of sm90.cuh where rows have 64 bytes. */
__device__ __forceinline__ uint64_t operand_64(const void *p)
{
    return (uint64_t)((shared_at(p) & 0x3ffff) >> 4) | 1ull << 16 | 32ull << 32 | 2ull << 62;
}

/* d += a b, or d = a b: 64 rows, 192 columns, 32 summed, of which a has 16. */
template <int SELECTED>
__device__ __forceinline__ void multiply_kept(float (&d)[96], uint64_t a, uint64_t b,
                                              uint32_t places, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %99, 0;\n"
                 "wgmma.mma_async.sp.sync.aligned.m64n192k32.f32.bf16.bf16 {" NUMBERS_96
                 "}, %96, %97, %98, %100, p, 1, 1, 0, 0;\n}"
                 : REGISTERS_96
                 : "l"(a), "l"(b), "r"(places), "r"(add), "n"(SELECTED));
}

/* ---- the producer ---- */

__device__ void fetch_kept(const sparse_job &j, const sparse_room &r, int rank)
{
    uint32_t at = 0;
    const operands &o = j.o;
    for (int t = blockIdx.x / 2; t < o.pairs * o.across; t += gridDim.x / 2) {
        place p = place_of(o, t, rank);
        const uint8_t *places =
            (const uint8_t *)j.places + (int64_t)(p.row / ROWS) * o.depth * PLACE_BYTES;
        for (int k = 0; k < o.depth; k++, at++) {
            uint32_t stage = at % DEEP;
            uint64_t *full = &r.full[stage];
            await_alike(&r.empty[stage], (at / DEEP & 1) ^ 1);
            expect(full, KEPT_BYTES + PLACE_BYTES + X_BYTES);
            tile_load(r.kept + stage * KEPT_BYTES, &o.a, k * (DEPTH / 2), p.row, full);
            fetch(r.places + stage * PLACE_BYTES, places + k * PLACE_BYTES, PLACE_BYTES, full);
            tile_load_both(r.x + stage * X_BYTES + rank * (X_BYTES / 2), &o.b, k * DEPTH,
                           p.column + rank * (COLUMNS / 2), full);
        }
    }
}

/* ---- a consumer warp group ---- */

/* Registers with places are read until a product is done: those of a stage stay as they are while
 * the next one's are read. */
__device__ __forceinline__ void keep(uint32_t (&places)[2])
{
    asm volatile("" : "+r"(places[0]), "+r"(places[1]));
}

__device__ __forceinline__ void sum_kept(const operands &o, const sparse_room &r, worker &w,
                                         sums_t &sum)
{
    int before = -1;
    uint32_t places[2][2] = {};
    await_alike(&r.turn[w.group], w.my_turn);
    w.my_turn ^= 1;
    for (int from = 0; from < o.depth; from += 2) {
#pragma unroll
        for (int u = 0; u < 2; u++) {
            if (from + u >= o.depth) break;
            uint32_t stage = w.stage % DEEP;
            await_alike(&r.full[stage], w.stage / DEEP & 1);
            const uint32_t *at = (const uint32_t *)(r.places + stage * PLACE_BYTES) + w.thread;
            places[u][0] = at[0], places[u][1] = at[128];
            uint64_t a = operand_64(r.kept + stage * KEPT_BYTES),
                     b = operand(r.x + stage * X_BYTES);
            products_begin();
#pragma unroll
            for (int h = 0; h < 2; h++) /* 64 features are 4096 bytes */
                multiply_kept<0>(sum[h], a + h * 256, b, places[u][h], from + u > 0);
#pragma unroll
            for (int h = 0; h < 2; h++)
                multiply_kept<1>(sum[h], a + 2 + h * 256, b + 4, places[u][h], 1);
            products_commit();
            if (before >= 0) {
                products_wait<1>();
                keep(places[u ^ 1]);
                if (w.thread < 2) arrive_at(&r.empty[before], w.thread);
            }
            before = stage;
            w.stage++;
        }
    }
    if (w.thread == 0) arrive(&r.turn[w.group ^ 1]);
    products_wait<0>();
    keep(places[0]);
    keep(places[1]);
    if (w.thread < 2) arrive_at(&r.empty[before], w.thread);
    w.stage += o.depth; /* the other group's */
}

/* put of hopper_tile.cuh, transposed: 16 features by 16 rows of x. */
__device__ __forceinline__ void put_transposed(uint32_t at, const float *v)
{
    uint32_t p[4] = {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])};
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3])
                 : "memory");
}

/* y leaves in squares of 64 rows of x by 64 features, through two slots in turn. */
__device__ __forceinline__ void leave(const sparse_job &j, const worker &w, place p, sums_t &sum)
{
    int row = w.lane / 16 * 8 + w.lane % 8, piece = w.warp * 2 + w.lane / 8 % 2;
    float bias[2][2] = {};
    for (int h = 0; h < 2 && j.bias; h++)
        for (int q = 0; q < 2; q++) {
            int feature = p.row + h * 64 + w.warp * 16 + q * 8 + w.lane / 4;
            if (feature < j.features) bias[h][q] = __bfloat162float(j.bias[feature]);
        }
#pragma unroll
    for (int s = 0; s < 2 * COLUMNS / SQUARE; s++) {
        int h = s % 2, slot = s % OUT_SLOTS;
        if (w.thread == 0) stores_read<OUT_SLOTS - 1>(); /* the slot's last store */
        meet(1 + w.group, 128);
#pragma unroll
        for (int i = 0; i < SQUARE / 16; i++) {
            float *v = sum[h] + (s / 2 * (SQUARE / 16) + i) * 8;
#pragma unroll
            for (int e = 0; e < 8; e++) v[e] += bias[h][e / 2 % 2];
            int at = i * 16 + row;
            put_transposed(shared_at(w.slot) + slot * SLOT + at * 128 + ((piece ^ (at & 7)) << 4),
                           v);
        }
        written_for_tma();
        meet(1 + w.group, 128);
        if (w.thread == 0)
            tile_store(&j.y, p.row + h * SQUARE, p.column + s / 2 * SQUARE, w.slot + slot * SLOT);
    }
}

static __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
    sparse_90(const __grid_constant__ sparse_job j)
{
    sparse_room r = sparse_rooms();
    int rank = (int)cluster_rank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < DEEP; i++) init_barrier(&r.full[i], 1), init_barrier(&r.empty[i], 2);
        for (int i = 0; i < 2; i++) init_barrier(&r.turn[i], 1);
        barriers_made();
    }
    cluster_sync();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) fetch_kept(j, r, rank);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        room slots = {};
        slots.slots = r.slots;
        worker w = worker_of(slots, rank, j.o.depth);
        w.slot = r.slots + w.group * OUT_SLOTS * SLOT;
        int step = gridDim.x / 2;
        for (int t = blockIdx.x / 2 + w.group * step; t < j.o.pairs * j.o.across; t += 2 * step) {
            sums_t sum;
            sum_kept(j.o, r, w, sum);
            leave(j, w, place_of(j.o, t, rank), sum);
        }
        if (w.thread == 0) stores_done();
    }
    cluster_sync(); /* nobody leaves while another may write to its memory */
}

/* ---- packing ---- */

/* Of four numbers the places of the two largest, in order: 4 bits. more: a third is no zero. */
__device__ __forceinline__ uint32_t places_of(const uint32_t (&size)[4], bool *more)
{
    int n = 0, at[2] = {0, 1};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        int before = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) before += size[k] > size[e] || (size[k] == size[e] && k < e);
        if (before < 2)
            at[n++] = e;
        else
            *more |= size[e] != 0;
    }
    return (uint32_t)(at[0] | at[1] << 2);
}

/* 16 numbers of k: the 8 that are kept, and where they were. */
__device__ __forceinline__ uint32_t pack_16(const uint4 (&from)[2], uint4 *to, bool *more)
{
    const uint32_t in[8] = {from[0].x, from[0].y, from[0].z, from[0].w,
                            from[1].x, from[1].y, from[1].z, from[1].w};
    uint32_t out[4], places = 0;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const uint32_t v[4] = {in[2 * q] & 0xffff, in[2 * q] >> 16, in[2 * q + 1] & 0xffff,
                               in[2 * q + 1] >> 16};
        const uint32_t size[4] = {v[0] & 0x7fff, v[1] & 0x7fff, v[2] & 0x7fff, v[3] & 0x7fff};
        uint32_t p = places_of(size, more), kept[2] = {};
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            if (e == (p & 3)) kept[0] = v[e];
            if (e == p >> 2) kept[1] = v[e];
        }
        out[q] = kept[0] | kept[1] << 16;
        places |= p << (q * 4);
    }
    *to = make_uint4(out[0], out[1], out[2], out[3]);
    return places;
}

/* One word of metadata each. */
static __global__ void pack_kept(const bf16 *w, int64_t features, int64_t k, int depth,
                                 int64_t words, bf16 *kept, uint32_t *places, int64_t *trouble)
{
    GRID_STRIDE(i, words)
    {
        int64_t first = i / (256 * depth) * ROWS + i / 128 % 2 * 64 + i / 32 % 4 * 16 + i % 32 / 4;
        int64_t from = i / 256 % depth * DEPTH + i % 4 * 16;
        uint32_t word = 0;
        for (int h = 0; h < 2; h++) {
            int64_t feature = first + h * 8;
            uint32_t p = 0x4444; /* of nothing, too, two different places */
            if (feature < features && from < k) {
                const uint4 *at = (const uint4 *)(w + feature * k + from);
                const uint4 in[2] = {at[0], at[1]};
                bool more = false;
                p = pack_16(in, (uint4 *)(kept + (feature * k + from) / 2), &more);
                if (more) tell_trouble(trouble, LL_TROUBLE_DENSE, feature, from);
            }
            word |= p << (h * 16);
        }
        places[i] = word;
    }
}

/* ---- launching ---- */

static int64_t words_of(const sparse *s)
{
    return ll_ceil_div(s->w.rows, 2 * ROWS) * 2 * ll_ceil_div(s->w.cols, DEPTH) * 256;
}

static size_t kept_bytes(const sparse *s)
{
    return (size_t)ll_round_up(s->w.rows * s->w.cols, LL_WORKSPACE_SLACK);
}

extern "C" size_t ll_sparse_scratch(const sparse *s)
{
    return kept_bytes(s) + (size_t)words_of(s) * sizeof(uint32_t) + LL_WORKSPACE_SLACK;
}

extern "C" bool ll_sparse_fits(const sparse *s)
{
    bool plain = s->x.cs == 1 && s->w.cs == 1 && s->y.cs == 1 && s->x.rs == s->x.cols &&
                 s->w.rs == s->w.cols && s->y.rs == s->y.cols;
    bool sizes = s->w.cols % 16 == 0 && s->w.rows % 8 == 0 && s->w.cols >= DEPTH &&
                 s->w.rows >= LEAST && s->x.rows >= LEAST && s->x.rows < INT32_MAX &&
                 s->w.rows < INT32_MAX && s->w.cols < INT32_MAX;
    return plain && sizes && (uint64_t)s->x.data % 16 == 0 && (uint64_t)s->w.data % 16 == 0 &&
           (uint64_t)s->y.data % 16 == 0;
}

/* Measured: alone it saves a quarter of a dense product's time where its last wave of tiles is
 * full, but at the power limit, as part of a step, nothing of small ones. Packing w is a pass over
 * memory, which rows enough make up for. */
extern "C" bool ll_sparse_pays(const sparse *s, int processors)
{
    int64_t at_once = processors / 2;
    int64_t tiles = ll_ceil_div(s->w.rows, 2 * ROWS) * ll_ceil_div(s->x.rows, COLUMNS);
    double full = (double)s->w.rows * (double)s->x.rows /
                  (double)(ll_round_up(tiles, at_once) * 2 * ROWS * COLUMNS);
    return s->x.rows >= 4096 && s->w.cols >= 1024 && s->w.rows >= 1024 && full > 0.8;
}

extern "C" ll_err ll_sparse_run(const ll_kcall *c, const sparse *s)
{
    sparse_job j = {};
    int64_t features = s->w.rows, rows = s->x.rows, k = s->w.cols;
    bf16 *kept = (bf16 *)workspace_of(c);
    uint32_t *places = (uint32_t *)((char *)kept + kept_bytes(s));
    j.places = places, j.bias = (const bf16 *)s->bias, j.features = (int)features;
    j.o.across = (int)ll_ceil_div(rows, COLUMNS);
    j.o.pairs = (int)ll_ceil_div(features, 2 * ROWS);
    j.o.depth = (int)ll_ceil_div(k, DEPTH);
    j.o.band = 8;
    TRY(map_of(&j.o.a, kept, features, k / 2, k / 2, DEPTH / 2, ROWS));
    TRY(map_of(&j.o.b, s->x.data, rows, k, k, DEPTH, COLUMNS / 2));
    TRY(map_of(&j.y, s->y.data, rows, features, features, SQUARE, SQUARE));
    TRY(launch_each(c, words_of(s), pack_kept, s->w.data, features, k, j.o.depth, words_of(s), kept,
                    places, c->trouble));
    int64_t pairs = (int64_t)j.o.pairs * j.o.across;
    return launch_shared(c, sparse_90, 2 * ll_min64(pairs, processors_of(c) / 2), 384,
                         SPARSE_SHARED, j);
}
