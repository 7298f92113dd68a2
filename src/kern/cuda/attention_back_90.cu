/* attention_back_90.cu: the gradient of causal attention for GPUs of compute capability 9.0, heads
 * of 64 in bf16. Two kernels, each of which walks the lower half of the scores in tiles of 128 by
 * 128 and makes them anew:
 *
 *     queries:  s = q k^T, dp = do v^T    p = exp(s - lse), ds = p (dp - delta)    dq += ds k
 *     keys:     s = k q^T, dp = v do^T    the same, transposed              dv += p do, dk += ds q
 *
 * Seven products for the five that there are, but nothing is added up across blocks: no atomic
 * additions, no sums in f32 that pass through memory, and one order of all sums.
 *
 * Blocks of 128 queries or keys are taken as they come, the long ones first. A block holds one pair
 * of tiles (of q and do, or of k and v), the other pair streams by. Warps are specialised: one
 * thread asks TMA for tiles; two warp groups have 64 rows each and work on their own: while one
 * makes ds of scores, the tensor cores have the other's products. Results take the place of what is
 * held, and leave while the next block begins. The first kernel makes delta = sum(do o) too, and
 * leaves it with lse for the second. */
#include "kern/cuda/attention.cuh"
#include "kern/cuda/tile_map.cuh"
#include "kern/cuda/wgmma.cuh"

#include <math.h>

enum {
    SIDE = 128,
    WIDTH = 64,
    HALF = SIDE / 2,
    HALF_TILE = HALF * WIDTH * 2,
    TILE = 2 * HALF_TILE
};
enum { STAGES = 3, HELD = 2, HELD_TILES = 3, STATS = SIDE * 8, ALIGN = 1024 };
enum { TELLERS = 64, STORER = 96 }; /* threads of the first group */
enum {
    BARRIERS = 2 * STAGES + 4 * HELD,
    TILES = HELD * (HELD_TILES * TILE + STATS) + STAGES * (2 * TILE + STATS),
    SHARED = TILES + BARRIERS * 8 + HELD * 4 + ALIGN
};

static const float LOG2_E = 1.4426950408889634f;

typedef struct job {
    CUtensorMap qkv, go, o, dqkv;   /* by 64 rows of a head: element, head, part, time, batch */
    int heads, time, blocks, tasks; /* blocks of 128: of a head, of all */
    float scale;
    int *counter; /* tasks begun */
    const float *lse;
    float *stats; /* for each head and block, 128 of lse / ln 2 and 128 of delta */
} job;

typedef struct room { /* shared memory */
    uint8_t *held, *stage, *held_stats, *stage_stats;
    uint64_t *full, *empty, *held_full, *held_empty, *told, *made;
    int *task; /* of what is held; -1: there is none left */
} room;

__device__ __forceinline__ room rooms(void)
{
    extern __shared__ uint8_t raw[];
    room r;
    r.held = raw + (ALIGN - shared_at(raw) % ALIGN) % ALIGN;
    r.stage = r.held + HELD * HELD_TILES * TILE;
    r.held_stats = r.stage + STAGES * 2 * TILE;
    r.stage_stats = r.held_stats + HELD * STATS;
    r.full = (uint64_t *)(r.stage_stats + STAGES * STATS);
    r.empty = r.full + STAGES;
    r.held_full = r.empty + STAGES;
    r.held_empty = r.held_full + HELD;
    r.told = r.held_empty + HELD;
    r.made = r.told + HELD;
    r.task = (int *)(r.made + HELD);
    return r;
}

typedef struct place {
    int head, batch, block, tiles; /* tiles: of scores, on the diagonal and beside it */
} place;

/* Blocks with many tiles come first, so that the last ones are short; but so many heads at a time
 * that theirs stay in the cache. */
template <bool KEYS> __device__ __forceinline__ place place_of(const job &j, int task)
{
    enum { TOGETHER = 16 };
    int all = j.tasks / j.blocks, first = task / (TOGETHER * j.blocks) * TOGETHER,
        n = all - first < TOGETHER ? all - first : TOGETHER, of = task - first * j.blocks;
    int head = first + of % n, rank = of / n;
    place p;
    p.head = head % j.heads, p.batch = head / j.heads;
    p.block = KEYS ? rank : j.blocks - 1 - rank;
    p.tiles = j.blocks - rank;
    return p;
}

/* ---- the producer ---- */

__device__ __forceinline__ void fetch_tile(uint8_t *to, const CUtensorMap *m, int part, int block,
                                           const place &p, uint64_t *full)
{
    for (int i = 0; i < 2; i++)
        tile_load_5(to + i * HALF_TILE, m, p.head, part, block * SIDE + i * HALF, p.batch, full);
}

template <bool KEYS> __device__ void fetch(const job &j, const room &r)
{
    uint32_t at = 0;
    for (uint32_t held = 0;; held++) {
        uint32_t slot = held % HELD;
        uint64_t *full = &r.held_full[slot];
        uint8_t *tile = r.held + slot * HELD_TILES * TILE;
        int task = atomicAdd(j.counter, 1);
        await(&r.held_empty[slot], (held / HELD & 1) ^ 1);
        r.task[slot] = task < j.tasks ? task : -1;
        if (task >= j.tasks) {
            arrive(full);
            return;
        }
        place p = place_of<KEYS>(j, task);
        if (KEYS) {
            expect(full, 2 * TILE);
            fetch_tile(tile, &j.qkv, 1, p.block, p, full);
            fetch_tile(tile + TILE, &j.qkv, 2, p.block, p, full);
        } else {
            expect(full, 3 * TILE);
            fetch_tile(tile, &j.qkv, 0, p.block, p, full);
            fetch_tile(tile + TILE, &j.go, 0, p.block, p, full);
            fetch_tile(tile + 2 * TILE, &j.o, 0, p.block, p, full);
        }
        for (int i = 0; i < p.tiles; i++, at++) {
            uint32_t s = at % STAGES;
            int block = KEYS ? p.block + i : p.block - i;
            tile = r.stage + s * 2 * TILE;
            full = &r.full[s];
            await(&r.empty[s], (at / STAGES & 1) ^ 1);
            expect(full, 2 * TILE + (KEYS ? STATS : 0));
            if (KEYS) {
                int64_t of = (int64_t)(p.batch * j.heads + p.head) * j.blocks + block;
                fetch_tile(tile, &j.qkv, 0, block, p, full);
                fetch_tile(tile + TILE, &j.go, 0, block, p, full);
                ::fetch(r.stage_stats + s * STATS, j.stats + of * 2 * SIDE, STATS, full);
            } else {
                fetch_tile(tile, &j.qkv, 1, block, p, full);
                fetch_tile(tile + TILE, &j.qkv, 2, block, p, full);
            }
        }
    }
}

/* ---- two warps beside it: lse and delta of a block's rows, for this kernel and the other ---- */

static __device__ void tell(const job &j, const room &r, int thread)
{
    for (uint32_t held = 0;; held++) {
        uint32_t slot = held % HELD;
        await(&r.held_full[slot], held / HELD & 1);
        if (r.task[slot] < 0) return;
        place p = place_of<false>(j, r.task[slot]);
        const uint8_t *go = r.held + slot * HELD_TILES * TILE + TILE, *o = go + TILE;
        int64_t of = p.batch * j.heads + p.head;
        float *near = (float *)(r.held_stats + slot * STATS),
              *far = j.stats + (of * j.blocks + p.block) * 2 * SIDE;
        for (int row = thread; row < SIDE; row += TELLERS) {
            int t = p.block * SIDE + row;
            float lse = t < j.time ? __ldg(j.lse + of * j.time + t) * LOG2_E : INFINITY, sum = 0;
#pragma unroll 2
            for (int i = 0; i < 8; i++) {
                int at = row * 128 + ((i ^ (row % 8)) << 4);
                uint4 x = *(const uint4 *)(go + at), y = *(const uint4 *)(o + at);
                const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    sum = fmaf(low_of(a[e]), low_of(b[e]), sum);
                    sum = fmaf(high_of(a[e]), high_of(b[e]), sum);
                }
            }
            near[row] = far[row] = lse;
            near[SIDE + row] = far[SIDE + row] = sum;
        }
        arrive(&r.told[slot]);
    }
}

/* ---- a thread beside it: results, which took the place of held tiles, leave ---- */

template <bool KEYS> __device__ void store(const job &j, const room &r)
{
    for (uint32_t held = 0;; held++) {
        uint32_t slot = held % HELD;
        await(&r.held_full[slot], held / HELD & 1);
        if (r.task[slot] < 0) break;
        place p = place_of<KEYS>(j, r.task[slot]);
        await(&r.made[slot], held / HELD & 1);
        for (int i = 0; i < (KEYS ? 4 : 2); i++)
            tile_store_5(&j.dqkv, p.head, KEYS ? 1 + i / 2 : 0, p.block * SIDE + i % 2 * HALF,
                         p.batch, r.held + slot * HELD_TILES * TILE + i * HALF_TILE);
        stores_read<0>();
        arrive(&r.held_empty[slot]);
    }
    stores_done();
}

/* ---- a consumer warp group ---- */

typedef struct worker {
    int group, warp, lane;
    int row, column;               /* of a lane's first element of a tile of scores */
    uint32_t stage, before, phase; /* of the stage at hand, and the one before */
    uint32_t held;
} worker;

/* How a group's 64 rows of scores meet a tile of 128 columns. On the diagonal, where time of rows
 * and columns is the same, one group has the diagonal in one half of the columns and all of the
 * other half; the other group has nothing to do with one half of them, so that its tile is NARROW,
 * 64 by 64. */
typedef enum meeting { INNER, WIDE, NARROW } meeting;

template <meeting M> struct columns {
    enum { N = M == NARROW ? HALF : SIDE, EIGHTS = N / 8 };
};
/* Where a tile's columns begin, and which of them, by eights, the diagonal crosses. */
template <bool KEYS, meeting M> __device__ __forceinline__ constexpr int first_column(void)
{
    return M == NARROW && KEYS ? HALF : 0;
}
template <bool KEYS, meeting M> __device__ __forceinline__ constexpr bool is_diagonal(int eighth)
{
    return M == NARROW || (M == WIDE && (KEYS ? eighth < 8 : eighth >= 8));
}

/* Of the held tile z and the one that streams by: s = a b^T. */
template <bool KEYS, meeting M>
__device__ __forceinline__ void ask_scores(const uint8_t *held, const uint8_t *stage, int z,
                                           const worker &w, float (&s)[64])
{
    uint64_t a = operand(held + z * TILE + w.group * HALF_TILE),
             b = operand(stage + z * TILE + first_column<KEYS, M>() * WIDTH * 2);
    products_begin();
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) score<columns<M>::N>(s, a + i * 2, b + i * 2, i > 0);
    products_commit();
}

/* d += a b, summed over the tile's columns, which are rows of b. */
template <bool KEYS, meeting M>
__device__ __forceinline__ void ask_sums(float (&d)[32], const uint32_t (&a)[32], const uint8_t *b,
                                         int add)
{
    uint64_t at = operand_transposed(b + first_column<KEYS, M>() * WIDTH * 2);
    products_begin();
#pragma unroll
    for (int i = 0; i < columns<M>::N / 16; i++) gather(d, a + i * 4, at + i * 128, add || i > 0);
    products_commit();
}

typedef struct rows { /* of a lane */
    float lse[2], delta[2];
} rows;

/* s becomes p = exp(s - lse). */
template <bool KEYS, meeting M>
__device__ __forceinline__ void exponentials(const job &j, const worker &w, const rows &of,
                                             const float *stats, float (&s)[64])
{
    float by = j.scale * LOG2_E;
    stats += first_column<KEYS, M>() + w.column;
#pragma unroll
    for (int i = 0; i < columns<M>::EIGHTS; i++) {
        float2 lse = KEYS ? *(const float2 *)(stats + i * 8) : make_float2(0, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = w.row + e / 2 * 8, column = i % 8 * 8 + w.column + e % 2; /* of 64 by 64 */
            float less = KEYS ? (e & 1 ? lse.y : lse.x) : of.lse[e / 2];
            float x = fmaf(s[i * 4 + e], by, -less);
            if (is_diagonal<KEYS, M>(i)) x = (KEYS ? row > column : column > row) ? -INFINITY : x;
            s[i * 4 + e] = power_of_2(x);
        }
    }
}

/* ds = p (dp - delta), with p in s; of keys, which have no registers left, as it was rounded. */
template <bool KEYS, meeting M>
__device__ __forceinline__ void slopes(const worker &w, const rows &of, const float *stats,
                                       const float (&s)[64], const uint32_t (&p)[32],
                                       const float (&dp)[64], uint32_t (&ds)[32])
{
    stats += SIDE + first_column<KEYS, M>() + w.column;
#pragma unroll
    for (int i = 0; i < columns<M>::EIGHTS; i++) {
        float2 delta = KEYS ? *(const float2 *)(stats + i * 8) : make_float2(0, 0);
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            uint32_t two = KEYS ? p[i * 2 + e / 2] : 0;
            float one = KEYS ? (e & 1 ? high_of(two) : low_of(two)) : s[i * 4 + e];
            v[e] = one * (dp[i * 4 + e] - (KEYS ? (e & 1 ? delta.y : delta.x) : of.delta[e / 2]));
        }
        ds[i * 2] = pack(v[0], v[1]), ds[i * 2 + 1] = pack(v[2], v[3]);
    }
}

/* A group's 64 rows of a result, in place of the tile they were made from, and from there home. */
__device__ __forceinline__ void put_result(const worker &w, const float (&v)[32], float by,
                                           uint8_t *half)
{
    int row = w.warp * 16 + w.lane % 16;
    uint32_t at = shared_at(half) + row * 128;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *x = v + i * 8;
        const uint32_t two[4] = {pack(x[0] * by, x[1] * by), pack(x[2] * by, x[3] * by),
                                 pack(x[4] * by, x[5] * by), pack(x[6] * by, x[7] * by)};
        put_16x16(at + (((i * 2 + w.lane / 16) ^ (row % 8)) << 4), two);
    }
}

__device__ __forceinline__ uint8_t *held_at(const room &r, const worker &w)
{
    return r.held + w.held % HELD * HELD_TILES * TILE;
}
__device__ __forceinline__ uint8_t *stage_at(const room &r, const worker &w)
{
    return r.stage + w.stage * 2 * TILE;
}
__device__ __forceinline__ const float *stats_at(const room &r, const worker &w)
{
    return (const float *)(r.stage_stats + w.stage * STATS);
}
__device__ __forceinline__ void next_stage(worker &w)
{
    w.before = w.stage;
    if (++w.stage == STAGES) w.stage = 0, w.phase ^= 1;
}

typedef struct sums { /* of a block: dq; or dk, and dv in more */
    float sum[32], more[32];
} sums;

/* A block's results take the place of its tiles. */
template <bool KEYS>
__device__ __forceinline__ void put_results(const job &j, const room &r, const worker &w,
                                            const sums &from)
{
    uint8_t *half = held_at(r, w) + w.group * HALF_TILE;
    meet(1 + w.group, 128); /* all have read them */
    put_result(w, from.sum, j.scale, half);
    if (KEYS) put_result(w, from.more, 1, half + TILE);
    written_for_tma();
    arrive(&r.made[w.held % HELD]);
}

__device__ __forceinline__ rows rows_of(const room &r, const worker &w)
{
    const float *at =
        (const float *)(r.held_stats + w.held % HELD * STATS) + w.group * HALF + w.row;
    await_alike(&r.told[w.held % HELD], w.held / HELD & 1);
    return rows{{at[0], at[8]}, {at[SIDE], at[SIDE + 8]}};
}

/* A tile of scores, the first product of which has been asked for. */
template <bool KEYS, meeting M>
__device__ __forceinline__ void step(const job &j, const room &r, const worker &w, const rows &of,
                                     float (&s)[64], sums &to)
{
    float dp[64];
    uint32_t p[32], ds[32];
    const uint8_t *tiles = stage_at(r, w);
    const bool add = M == INNER;
    products_wait<0>();
    settle(s);
    if (M == INNER && w.lane == 0) arrive(&r.empty[w.before]);
    ask_scores<KEYS, M>(held_at(r, w), tiles, 1, w, dp);
    exponentials<KEYS, M>(j, w, of, stats_at(r, w), s);
    if (KEYS) {
        /* A wait for what is there: without it the compiler rounds exponentials one by one, and
         * waits for each. */
        await_alike(&r.full[w.stage], w.phase);
#pragma unroll
        for (int i = 0; i < columns<M>::EIGHTS * 2; i++) p[i] = pack(s[i * 2], s[i * 2 + 1]);
        ask_sums<KEYS, M>(to.more, p, tiles + TILE, add);
    }
    products_wait<0>();
    settle(dp);
    slopes<KEYS, M>(w, of, stats_at(r, w), s, p, dp, ds);
    ask_sums<KEYS, M>(to.sum, ds, tiles, add);
}

/* FIRST: how the group's rows meet a block's first tile. */
template <bool KEYS, meeting FIRST> __device__ void work(const job &j, const room &r, worker &w)
{
    float s[64];
    sums to;
    rows of = {};
    for (;; w.held++) {
        await_alike(&r.held_full[w.held % HELD], w.held / HELD & 1);
        int task = r.task[w.held % HELD];
        if (task < 0) return;
        int tiles = place_of<KEYS>(j, task).tiles;
        await_alike(&r.full[w.stage], w.phase);
        ask_scores<KEYS, FIRST>(held_at(r, w), stage_at(r, w), 0, w, s);
        if (!KEYS) of = rows_of(r, w);
        step<KEYS, FIRST>(j, r, w, of, s, to);
        next_stage(w);
        for (int i = 1; i < tiles; i++) {
            await_alike(&r.full[w.stage], w.phase);
            ask_scores<KEYS, INNER>(held_at(r, w), stage_at(r, w), 0, w, s);
            step<KEYS, INNER>(j, r, w, of, s, to);
            next_stage(w);
        }
        products_wait<0>();
        settle(to.sum);
        if (KEYS) settle(to.more);
        if (w.lane == 0) arrive(&r.empty[w.before]);
        put_results<KEYS>(j, r, w, to);
    }
}

template <bool KEYS>
static __global__ void __launch_bounds__(384, 1) attention_back(const __grid_constant__ job j)
{
    room r = rooms();
    int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) init_barrier(&r.full[i], 1), init_barrier(&r.empty[i], 8);
        for (int i = 0; i < HELD; i++)
            init_barrier(&r.held_full[i], 1), init_barrier(&r.held_empty[i], 1),
                init_barrier(&r.told[i], TELLERS), init_barrier(&r.made[i], 256);
        barriers_made();
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEYS ? 24 : 40));
        if (threadIdx.x == 0) fetch<KEYS>(j, r);
        if (threadIdx.x == STORER) store<KEYS>(j, r);
        if (!KEYS && threadIdx.x >= 32 && threadIdx.x < 32 + TELLERS) tell(j, r, threadIdx.x - 32);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEYS ? 240 : 232));
        worker w;
        w.group = group - 1, w.warp = threadIdx.x / 32 % 4, w.lane = threadIdx.x % 32;
        w.row = w.warp * 16 + w.lane / 4, w.column = w.lane % 4 * 2;
        w.stage = w.phase = w.held = 0, w.before = STAGES - 1;
        if (w.group == (KEYS ? 1 : 0))
            work<KEYS, NARROW>(j, r, w);
        else
            work<KEYS, WIDE>(j, r, w);
    }
}

/* ---- launching ---- */

/* Heads of 64, as tiles of 64 rows: parts is 3 of qkv, 1 of o. */
static ll_err map_of(CUtensorMap *out, const void *data, const heads *s, int parts)
{
    cuuint64_t row = (cuuint64_t)(s->h * WIDTH) * sizeof(bf16);
    const cuuint64_t size[5] = {WIDTH, (cuuint64_t)s->h, (cuuint64_t)parts, (cuuint64_t)s->t,
                                (cuuint64_t)s->b};
    const cuuint64_t pitch[4] = {WIDTH * sizeof(bf16), row, row * parts, row * parts * s->t};
    const cuuint32_t tile[5] = {WIDTH, 1, 1, HALF, 1};
    return ll_tile_map(out, data, 5, size, pitch, tile);
}

static int64_t blocks_of(const heads *s)
{
    return ll_ceil_div(s->t, SIDE);
}

bool attention_grad_cuda_90_fits(const ll_kcall *c)
{
    heads s = heads_of(c);
    return s.d == WIDTH && qkv_of(c)->dtype == LL_BF16 && lse_of(c)->dtype == LL_F32 &&
           is_hopper(c) && s.b * s.h * s.t > 0 && s.b * s.h * blocks_of(&s) < INT32_MAX / 2;
}

size_t attention_grad_cuda_90_scratch(const ll_kcall *c)
{
    heads s = heads_of(c);
    return (size_t)(s.b * s.h * blocks_of(&s) * STATS) + 2 * sizeof(int) + LL_WORKSPACE_SLACK;
}

ll_err attention_grad_cuda_90(const ll_kcall *c)
{
    job j = {};
    heads s = heads_of(c);
    TRY(map_of(&j.go, c->in[0].data, &s, 1));
    TRY(map_of(&j.qkv, c->in[1].data, &s, 3));
    TRY(map_of(&j.o, c->in[2].data, &s, 1));
    TRY(map_of(&j.dqkv, c->out[0].data, &s, 3));
    j.heads = (int)s.h, j.time = (int)s.t, j.blocks = (int)blocks_of(&s);
    j.tasks = (int)(s.b * s.h) * j.blocks;
    j.scale = 1 / sqrtf((float)s.d);
    j.lse = (const float *)c->in[3].data, j.stats = (float *)workspace_of(c);
    j.counter = (int *)(j.stats + (size_t)j.tasks * 2 * SIDE);
    CUDA_TRY(cudaMemsetAsync(j.counter, 0, 2 * sizeof(int), stream_of(c)));
    unsigned blocks = (unsigned)ll_min64(j.tasks, processors_of(c));
    TRY(launch_shared(c, attention_back<false>, blocks, 384, SHARED, j));
    j.counter++;
    return launch_shared(c, attention_back<true>, blocks, 384, SHARED, j);
}
