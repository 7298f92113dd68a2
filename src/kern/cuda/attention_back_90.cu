/* attention_back_90.cu: the gradient of attention for GPUs of compute capability 9.0, heads of 64
 * or 128 in bf16, packed or not, groups of heads, causal or seeing all. Two kernels, each of which
 * walks the scores in tiles (of a causal one the lower half of them) and makes them anew:
 *
 *     queries:  s = q k^T, dp = do v^T    p = exp(s - lse), ds = p (dp - delta)    dq += ds k
 *     keys:     s = k q^T, dp = v do^T    the same, transposed              dv += p do, dk += ds q
 *
 * Seven products for the five that there are, but nothing is added up across blocks: no atomic
 * additions, no sums in f32 that pass through memory, and one order of all sums.
 *
 * Blocks of 128 queries or keys are taken as they come, the long ones first. A block holds one pair
 * of tiles (of q and do, or of k and v), the other pair streams by, of all heads that share keys.
 * Warps are specialised: one thread asks TMA for tiles; two warp groups have 64 rows each and work
 * on their own: while one makes ds of scores, the tensor cores have the other's products. Results
 * take the place of what is held, and leave while the next block begins. delta = sum(do o) comes
 * from the first kernel, which has o too and leaves it with lse for the second; where that has no
 * room, or delta is given, from one before. */
#include "kern/cuda/attention.cuh"
#include "kern/cuda/tile_map.cuh"
#include "kern/cuda/wgmma.cuh"
#include "kern/heads.h"

#include <math.h>

enum { SIDE = 128, HALF = SIDE / 2, PANEL = HALF * 128 }; /* panel: 64 rows of 64 elements */
enum { HELD = 2, ALIGN = 1024 };
enum { DELTA_THREADS = 64, STORE_THREAD = 96 }; /* threads of the first group */

/* Heads of D, of which STEP rows stream by at a time; HAS_O: the first kernel has o. */
template <int D_, bool HAS_O_> struct way {
    enum { D = D_, HAS_O = HAS_O_, STEP = D == 64 ? SIDE : HALF, EACH = SIDE / STEP };
    enum { PANELS = D / 64, HALF_TILE = PANELS * PANEL, TILE = 2 * HALF_TILE };
    enum {
        STEP_TILE = STEP / HALF * HALF_TILE,
        STATS = STEP * 8,
        HELD_STATS = HAS_O ? SIDE * 8 : 0
    };
    enum { STAGES = 3, HELD_TILES = HAS_O ? 3 : 2, BARRIERS = 2 * STAGES + 4 * HELD };
    enum {
        SHARED = HELD * (HELD_TILES * TILE + HELD_STATS) + STAGES * (2 * STEP_TILE + STATS) +
                 BARRIERS * 8 + HELD * 4 + ALIGN
    };
};

static const float LOG2_E = 1.4426950408889634f;

typedef struct job {
    CUtensorMap q, k, v, go, o, dq, dk, dv; /* by 64 rows of 64 elements of a head */
    int heads, shared, time;                /* of queries; heads that share one of keys */
    int blocks, tasks, tiles;               /* of 128 of a head, of all; of the other side's */
    int chunks;                             /* of stats, of a head */
    bool causal;
    float scale;
    int *counter; /* tasks begun */
    const float *lse;
    float *stats; /* for each head, by STEP rows: lse / ln 2 of them, delta of them */
} job;

typedef struct smem { /* shared memory */
    uint8_t *held, *stage, *held_stats, *stage_stats;
    uint64_t *full, *empty, *held_full, *held_empty, *deltas, *made;
    int *task; /* of what is held; -1: there is none left */
} smem;

template <class W> __device__ __forceinline__ smem smem_of(void)
{
    extern __shared__ uint8_t raw[];
    smem r;
    r.held = raw + (ALIGN - shared_at(raw) % ALIGN) % ALIGN;
    r.stage = r.held + HELD * W::HELD_TILES * W::TILE;
    r.held_stats = r.stage + W::STAGES * 2 * W::STEP_TILE;
    r.stage_stats = r.held_stats + HELD * W::HELD_STATS;
    r.full = (uint64_t *)(r.stage_stats + W::STAGES * W::STATS);
    r.empty = r.full + W::STAGES;
    r.held_full = r.empty + W::STAGES;
    r.held_empty = r.held_full + HELD;
    r.deltas = r.held_empty + HELD;
    r.made = r.deltas + HELD;
    r.task = (int *)(r.made + HELD);
    return r;
}

typedef struct place {
    int head, batch, block;
    int tiles, first; /* of the other side, of one head; keys go up from the first, queries down */
} place;

/* Of packed tensors, which are causal and share no heads, the compiler knows both. */
template <class W> __device__ __forceinline__ int shared_of(const job &j)
{
    return W::HAS_O ? 1 : j.shared;
}
template <class W> __device__ __forceinline__ bool is_causal(const job &j)
{
    return W::HAS_O || j.causal;
}

/* Blocks with many tiles come first, so that the last ones are short; but so many heads at a time
 * that theirs stay in the cache. */
template <class W, bool KEYS> __device__ __forceinline__ place place_of(const job &j, int task)
{
    enum { TOGETHER = 16 };
    int all = j.tasks / j.blocks, first = task / (TOGETHER * j.blocks) * TOGETHER,
        n = all - first < TOGETHER ? all - first : TOGETHER, of = task - first * j.blocks;
    int head = first + of % n, rank = of / n, heads = KEYS ? j.heads / shared_of<W>(j) : j.heads;
    place p;
    p.head = head % heads, p.batch = head / heads;
    p.block = KEYS ? rank : j.blocks - 1 - rank;
    p.tiles = is_causal<W>(j) ? (j.blocks - rank) * W::EACH : j.tiles;
    p.first = !KEYS ? p.tiles - 1 : is_causal<W>(j) ? rank * W::EACH : 0;
    return p;
}

/* Where stats of a head of queries lie from a chunk on. */
template <class W>
__device__ __forceinline__ int64_t stats_of(const job &j, int batch, int head, int chunk)
{
    return (((int64_t)batch * j.heads + head) * j.chunks + chunk) * 2 * W::STEP;
}

/* ---- the producer ---- */

template <class W>
__device__ __forceinline__ void fetch_tile(uint8_t *to, const CUtensorMap *m, int rows, int at,
                                           int head, int batch, uint64_t *full)
{
    for (int i = 0; i < rows / HALF; i++)
        for (int p = 0; p < W::PANELS; p++)
            tile_load_head(to + i * W::HALF_TILE + p * PANEL, m, p * 64, head, at + i * HALF, batch,
                           full);
}

/* The tiles of one head of queries that a block meets. */
template <class W, bool KEYS>
__device__ __forceinline__ void fetch_head(const job &j, const smem &r, const place &p, int head,
                                           uint32_t &at)
{
    for (int i = 0; i < p.tiles; i++, at++) {
        uint32_t s = at % W::STAGES;
        int n = KEYS ? p.first + i : p.first - i;
        uint8_t *tile = r.stage + s * 2 * W::STEP_TILE;
        uint64_t *full = &r.full[s];
        await(&r.empty[s], (at / W::STAGES & 1) ^ 1);
        expect(full, 2 * W::STEP_TILE + (KEYS ? W::STATS : 0));
        int from = KEYS ? head : head / shared_of<W>(j);
        fetch_tile<W>(tile, KEYS ? &j.q : &j.k, W::STEP, n * W::STEP, from, p.batch, full);
        fetch_tile<W>(tile + W::STEP_TILE, KEYS ? &j.go : &j.v, W::STEP, n * W::STEP, from, p.batch,
                      full);
        if (KEYS)
            fetch(r.stage_stats + s * W::STATS, j.stats + stats_of<W>(j, p.batch, head, n),
                  W::STATS, full);
    }
}

template <class W, bool KEYS> __device__ void fetch_all(const job &j, const smem &r)
{
    uint32_t at = 0;
    for (uint32_t held = 0;; held++) {
        uint32_t slot = held % HELD;
        uint64_t *full = &r.held_full[slot];
        uint8_t *tile = r.held + slot * W::HELD_TILES * W::TILE;
        int task = atomicAdd(j.counter, 1);
        await(&r.held_empty[slot], (held / HELD & 1) ^ 1);
        r.task[slot] = task < j.tasks ? task : -1;
        if (task >= j.tasks) {
            arrive(full);
            return;
        }
        place p = place_of<W, KEYS>(j, task);
        const CUtensorMap *const of[3] = {KEYS ? &j.k : &j.q, KEYS ? &j.v : &j.go, &j.o};
        int tiles = !KEYS && W::HAS_O ? 3 : 2;
        expect(full, tiles * W::TILE);
        for (int i = 0; i < tiles; i++)
            fetch_tile<W>(tile + i * W::TILE, of[i], SIDE, p.block * SIDE, p.head, p.batch, full);
        int n = KEYS ? shared_of<W>(j) : 1;
        for (int h = 0; h < n; h++) fetch_head<W, KEYS>(j, r, p, p.head * n + h, at);
    }
}

/* ---- two warps beside it: lse and delta of a block's rows, for this kernel and the other ---- */

template <class W> __device__ void tell(const job &j, const smem &r, int thread)
{
    for (uint32_t held = 0;; held++) {
        uint32_t slot = held % HELD;
        await(&r.held_full[slot], held / HELD & 1);
        if (r.task[slot] < 0) return;
        place p = place_of<W, false>(j, r.task[slot]);
        const uint8_t *go = r.held + slot * W::HELD_TILES * W::TILE + W::TILE, *o = go + W::TILE;
        int64_t of = p.batch * j.heads + p.head;
        float *near = (float *)(r.held_stats + slot * W::HELD_STATS),
              *far = j.stats + stats_of<W>(j, p.batch, p.head, p.block);
        for (int row = thread; row < SIDE; row += DELTA_THREADS) {
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
        arrive(&r.deltas[slot]);
    }
}

/* ---- a thread beside it: results, which took the place of held tiles, leave ---- */

template <class W, bool KEYS> __device__ void store(const job &j, const smem &r)
{
    for (uint32_t held = 0;; held++) {
        uint32_t slot = held % HELD;
        await(&r.held_full[slot], held / HELD & 1);
        if (r.task[slot] < 0) break;
        place p = place_of<W, KEYS>(j, r.task[slot]);
        await(&r.made[slot], held / HELD & 1);
        for (int i = 0; i < (KEYS ? 4 : 2) * W::PANELS; i++) {
            int half = i / W::PANELS;
            tile_store_head(!KEYS      ? &j.dq
                            : half < 2 ? &j.dk
                                       : &j.dv,
                            i % W::PANELS * 64, p.head, p.block * SIDE + half % 2 * HALF, p.batch,
                            r.held + slot * W::HELD_TILES * W::TILE + i * PANEL);
        }
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

/* How a group's 64 rows of scores meet a tile of STEP columns. On the diagonal of 128 by 128, where
 * time of rows and columns is the same, one group has the diagonal in one half of the columns and
 * all of the other half; the other group has nothing to do with one half of them: its tile is
 * NARROW, 64 by 64. Of tiles of 64 columns it has nothing to do with the first. */
typedef enum meeting { INNER, WIDE, NARROW } meeting;

template <class W, meeting M> struct columns {
    enum { N = M == NARROW ? HALF : W::STEP, EIGHTS = N / 8 };
};
/* Where a tile's columns begin, and which of them, by eights, the diagonal crosses. */
template <class W, bool KEYS, meeting M> __device__ __forceinline__ constexpr int first_column(void)
{
    return M == NARROW && KEYS && W::STEP == SIDE ? HALF : 0;
}
template <class W, bool KEYS, meeting M>
__device__ __forceinline__ constexpr bool is_diagonal(int eighth)
{
    if (M == NARROW || W::STEP == HALF) return M != INNER;
    return M == WIDE && (KEYS ? eighth < 8 : eighth >= 8);
}

/* Of the held tile z and the one that streams by: s = a b^T. */
template <class W, bool KEYS, meeting M>
__device__ __forceinline__ void ask_scores(const uint8_t *held, const uint8_t *stage, int z,
                                           const worker &w, float (&s)[W::STEP / 2])
{
    uint64_t a = operand(held + z * W::TILE + w.group * W::HALF_TILE),
             b = operand(stage + z * W::STEP_TILE + first_column<W, KEYS, M>() * 128);
    products_begin();
#pragma unroll
    for (int i = 0; i < W::D / 16; i++) {
        int at = i / 4 * (PANEL / 16) + i % 4 * 2;
        score<columns<W, M>::N>(s, a + at, b + at, i > 0);
    }
    products_commit();
}

/* d += a b, summed over the tile's columns, which are rows of b. */
template <class W, bool KEYS, meeting M>
__device__ __forceinline__ void ask_sums(float (&d)[W::D / 2], const uint32_t (&a)[W::STEP / 4],
                                         const uint8_t *b, int add)
{
    uint64_t at = operand_transposed(b + first_column<W, KEYS, M>() * 128);
    products_begin();
#pragma unroll
    for (int i = 0; i < columns<W, M>::N / 16; i++)
        gather(d, a + i * 4, at + i * 128, add || i > 0);
    products_commit();
}

typedef struct rows { /* of a lane */
    float lse[2], delta[2];
} rows;

/* s becomes p = exp(s - lse). */
template <class W, bool KEYS, meeting M>
__device__ __forceinline__ void exponentials(const job &j, const worker &w, const rows &of,
                                             const float *stats, float (&s)[W::STEP / 2])
{
    float by = j.scale * LOG2_E;
    stats += first_column<W, KEYS, M>() + w.column;
#pragma unroll
    for (int i = 0; i < columns<W, M>::EIGHTS; i++) {
        float2 lse = KEYS ? *(const float2 *)(stats + i * 8) : make_float2(0, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int row = w.row + e / 2 * 8, column = i % 8 * 8 + w.column + e % 2; /* of 64 by 64 */
            float less = KEYS ? (e & 1 ? lse.y : lse.x) : of.lse[e / 2];
            float x = fmaf(s[i * 4 + e], by, -less);
            if (is_diagonal<W, KEYS, M>(i))
                x = (KEYS ? row > column : column > row) ? -INFINITY : x;
            s[i * 4 + e] = power_of_2(x);
        }
    }
}

/* ds = p (dp - delta), with p in s; of keys, which have no registers left, as it was rounded. */
template <class W, bool KEYS, meeting M>
__device__ __forceinline__ void slopes(const worker &w, const rows &of, const float *stats,
                                       const float (&s)[W::STEP / 2],
                                       const uint32_t (&p)[W::STEP / 4],
                                       const float (&dp)[W::STEP / 2], uint32_t (&ds)[W::STEP / 4])
{
    stats += W::STEP + first_column<W, KEYS, M>() + w.column;
#pragma unroll
    for (int i = 0; i < columns<W, M>::EIGHTS; i++) {
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
template <int N>
__device__ __forceinline__ void put_result(const worker &w, const float (&v)[N], float by,
                                           uint8_t *half)
{
    int row = w.warp * 16 + w.lane % 16;
    uint32_t at = shared_at(half) + row * 128;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float *x = v + i * 8;
        const uint32_t two[4] = {pack(x[0] * by, x[1] * by), pack(x[2] * by, x[3] * by),
                                 pack(x[4] * by, x[5] * by), pack(x[6] * by, x[7] * by)};
        put_16x16(at + i / 4 * PANEL + (((i % 4 * 2 + w.lane / 16) ^ (row % 8)) << 4), two);
    }
}

template <class W> __device__ __forceinline__ uint8_t *held_at(const smem &r, const worker &w)
{
    return r.held + w.held % HELD * W::HELD_TILES * W::TILE;
}
template <class W> __device__ __forceinline__ uint8_t *stage_at(const smem &r, const worker &w)
{
    return r.stage + w.stage * 2 * W::STEP_TILE;
}
template <class W> __device__ __forceinline__ const float *stats_at(const smem &r, const worker &w)
{
    return (const float *)(r.stage_stats + w.stage * W::STATS);
}
template <class W> __device__ __forceinline__ void next_stage(worker &w)
{
    w.before = w.stage;
    if (++w.stage == W::STAGES) w.stage = 0, w.phase ^= 1;
}

template <class W> struct sums { /* of a block: dq; or dk, and dv in more */
    float sum[W::D / 2], more[W::D / 2];
};

/* A block's results take the place of its tiles. */
template <class W, bool KEYS>
__device__ __forceinline__ void put_results(const job &j, const smem &r, const worker &w,
                                            const sums<W> &from)
{
    uint8_t *half = held_at<W>(r, w) + w.group * W::HALF_TILE;
    meet(1 + w.group, 128); /* all have read them */
    put_result(w, from.sum, j.scale, half);
    if (KEYS) put_result(w, from.more, 1, half + W::TILE);
    written_for_tma();
    arrive(&r.made[w.held % HELD]);
}

template <class W>
__device__ __forceinline__ rows rows_of(const job &j, const smem &r, const worker &w,
                                        const place &p)
{
    enum { DELTA = W::HAS_O ? SIDE : W::STEP };
    int row = w.group * HALF + w.row;
    const float *at = (const float *)(r.held_stats + w.held % HELD * W::HELD_STATS) + row;
    if (W::HAS_O)
        await_alike(&r.deltas[w.held % HELD], w.held / HELD & 1);
    else
        at = j.stats + stats_of<W>(j, p.batch, p.head, p.block * W::EACH + row / W::STEP) +
             row % W::STEP;
    return rows{{at[0], at[8]}, {at[DELTA], at[DELTA + 8]}};
}

/* A tile of scores, the first product of which has been asked for. add: to what is there; later:
 * not the head's first, so that the one before is done with now. */
template <class W, bool KEYS, meeting M>
__device__ __forceinline__ void step(const job &j, const smem &r, const worker &w, const rows &of,
                                     float (&s)[W::STEP / 2], sums<W> &to, bool add, bool later)
{
    float dp[W::STEP / 2];
    uint32_t p[W::STEP / 4], ds[W::STEP / 4];
    const uint8_t *tiles = stage_at<W>(r, w);
    products_wait<0>();
    settle(s);
    if (later && w.lane == 0) arrive(&r.empty[w.before]);
    ask_scores<W, KEYS, M>(held_at<W>(r, w), tiles, 1, w, dp);
    exponentials<W, KEYS, M>(j, w, of, stats_at<W>(r, w), s);
    if (KEYS) {
        /* A wait for what is there: without it the compiler rounds exponentials one by one, and
         * waits for each. */
        await_alike(&r.full[w.stage], w.phase);
#pragma unroll
        for (int i = 0; i < columns<W, M>::EIGHTS * 2; i++) p[i] = pack(s[i * 2], s[i * 2 + 1]);
        ask_sums<W, KEYS, M>(to.more, p, tiles + W::STEP_TILE, add);
    }
    products_wait<0>();
    settle(dp);
    slopes<W, KEYS, M>(w, of, stats_at<W>(r, w), s, p, dp, ds);
    ask_sums<W, KEYS, M>(to.sum, ds, tiles, add);
}

/* The tiles of one head of queries. FIRST: how the group's rows meet the first that they see. */
template <class W, bool KEYS, meeting FIRST>
__device__ __forceinline__ void meet_head(const job &j, const smem &r, worker &w, const rows &of,
                                          int tiles, float (&s)[W::STEP / 2], sums<W> &to, bool add)
{
    int i = 1;
    await_alike(&r.full[w.stage], w.phase);
    if (FIRST == NARROW && W::STEP == HALF) {
        if (w.lane == 0) arrive(&r.empty[w.stage]);
        next_stage<W>(w);
        await_alike(&r.full[w.stage], w.phase);
        i = 2;
    }
    ask_scores<W, KEYS, FIRST>(held_at<W>(r, w), stage_at<W>(r, w), 0, w, s);
    step<W, KEYS, FIRST>(j, r, w, of, s, to, add, false);
    next_stage<W>(w);
    for (; i < tiles; i++) {
        await_alike(&r.full[w.stage], w.phase);
        ask_scores<W, KEYS, INNER>(held_at<W>(r, w), stage_at<W>(r, w), 0, w, s);
        step<W, KEYS, INNER>(j, r, w, of, s, to, true, true);
        next_stage<W>(w);
    }
    products_wait<0>();
    settle(to.sum);
    if (KEYS) settle(to.more);
    if (w.lane == 0) arrive(&r.empty[w.before]);
}

template <class W, bool KEYS, meeting FIRST>
__device__ void work(const job &j, const smem &r, worker &w)
{
    const bool SHARED = KEYS && !W::HAS_O; /* heads' sums are added up */
    float s[W::STEP / 2];
    sums<W> to;
    rows of = {};
    for (;; w.held++) {
        await_alike(&r.held_full[w.held % HELD], w.held / HELD & 1);
        int task = r.task[w.held % HELD];
        if (task < 0) return;
        place p = place_of<W, KEYS>(j, task);
        if (!KEYS) of = rows_of<W>(j, r, w, p);
        if (SHARED)
#pragma unroll
            for (int i = 0; i < W::D / 2; i++) to.sum[i] = to.more[i] = 0;
        for (int h = SHARED ? j.shared : 1; h > 0; h--)
            meet_head<W, KEYS, FIRST>(j, r, w, of, p.tiles, s, to, SHARED);
        put_results<W, KEYS>(j, r, w, to);
    }
}

template <class W, bool KEYS, bool CAUSAL>
static __global__ void __launch_bounds__(384, 1) attention_back(const __grid_constant__ job j)
{
    smem r = smem_of<W>();
    int group = threadIdx.x / 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < W::STAGES; i++)
            init_barrier(&r.full[i], 1), init_barrier(&r.empty[i], 8);
        for (int i = 0; i < HELD; i++)
            init_barrier(&r.held_full[i], 1), init_barrier(&r.held_empty[i], 1),
                init_barrier(&r.deltas[i], DELTA_THREADS), init_barrier(&r.made[i], 256);
        barriers_made();
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(KEYS ? 24 : 40));
        if (threadIdx.x == 0) fetch_all<W, KEYS>(j, r);
        if (threadIdx.x == STORE_THREAD) store<W, KEYS>(j, r);
        if (!KEYS && W::HAS_O && threadIdx.x >= 32 && threadIdx.x < 32 + DELTA_THREADS)
            tell<W>(j, r, threadIdx.x - 32);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEYS ? 240 : 232));
        worker w;
        w.group = group - 1, w.warp = threadIdx.x / 32 % 4, w.lane = threadIdx.x % 32;
        w.row = w.warp * 16 + w.lane / 4, w.column = w.lane % 4 * 2;
        w.stage = w.phase = w.held = 0, w.before = W::STAGES - 1;
        if (!CAUSAL)
            work<W, KEYS, INNER>(j, r, w);
        else if (w.group == (KEYS ? 1 : 0))
            work<W, KEYS, NARROW>(j, r, w);
        else
            work<W, KEYS, WIDE>(j, r, w);
    }
}

/* ---- stats before both, where delta is given or o has no room ---- */

/* LANES a row: one where delta is given, a warp where rows of D of do and o are multiplied. */
template <class W, int LANES>
static __global__ void tell_before(job j, const bf16 *go, const bf16 *o, const float *delta)
{
    int of = (int)blockIdx.y, lane = (int)(threadIdx.x % LANES),
        t = (int)((blockIdx.x * blockDim.x + threadIdx.x) / LANES);
    if (t >= j.chunks * W::STEP) return;
    float sum = 0, lse = t < j.time ? j.lse[(int64_t)of * j.time + t] * LOG2_E : INFINITY;
    if (t < j.time && LANES == 1) sum = delta[(int64_t)of * j.time + t];
    if (t < j.time && LANES > 1) {
        int64_t at = (((int64_t)(of / j.heads) * j.time + t) * j.heads + of % j.heads) * W::D;
        for (int e = lane * 2; e < W::D; e += 2 * LANES) {
            uint32_t a = *(const uint32_t *)(go + at + e), b = *(const uint32_t *)(o + at + e);
            sum = fmaf(low_of(a), low_of(b), fmaf(high_of(a), high_of(b), sum));
        }
    }
    for (int x = LANES / 2; x > 0; x /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, x);
    if (lane) return;
    float *to = j.stats + stats_of<W>(j, of / j.heads, of % j.heads, t / W::STEP) + t % W::STEP;
    to[0] = lse, to[W::STEP] = sum;
}

/* ---- launching ---- */

/* Heads as tiles of 64 rows of 64 elements; rows are `row` elements apart. */
static ll_err map_of(CUtensorMap *out, const void *data, int64_t b, int64_t t, int64_t heads,
                     int64_t d, int64_t row)
{
    cuuint64_t bytes = (cuuint64_t)row * sizeof(bf16);
    const cuuint64_t size[4] = {(cuuint64_t)d, (cuuint64_t)heads, (cuuint64_t)t, (cuuint64_t)b};
    const cuuint64_t pitch[3] = {(cuuint64_t)d * sizeof(bf16), bytes, bytes * (cuuint64_t)t};
    const cuuint32_t tile[4] = {64, 1, HALF, 1};
    return ll_tile_map(out, data, 4, size, pitch, tile);
}

/* What attention_grad and attend_grad have; o or delta, and where q's, k's and v's gradients go. */
typedef struct call {
    ll_att p;
    const void *go, *o, *delta, *lse;
    void *dq, *dk, *dv;
} call;

static call call_of(const ll_kcall *c)
{
    call a = {};
    a.go = c->in[0].data;
    if (c->n_out == 3) {
        a.p = ll_att_of(&c->in[1], c->n_in > 6 ? &c->in[6] : NULL, c->attr);
        a.lse = c->in[4].data, a.delta = c->in[5].data;
        a.dq = c->out[0].data, a.dk = c->out[1].data, a.dv = c->out[2].data;
    } else {
        bf16 *d = (bf16 *)c->out[0].data;
        a.p = ll_att_packed(&c->in[1]);
        a.o = c->in[2].data, a.lse = c->in[3].data;
        int64_t part = d ? a.p.h * a.p.d : 0;
        a.dq = d, a.dk = d + part, a.dv = d + 2 * part;
    }
    return a;
}

static int64_t chunks_of(const ll_att &p) /* of 128 queries */
{
    return ll_ceil_div(p.t, SIDE);
}

/* Causal and square, or all seen, keys in whole tiles. */
static bool fits(const ll_kcall *c, const ll_att &p)
{
    bool square = p.ahead == 0 && p.t == p.s, all = p.ahead >= p.s && p.s % SIDE == 0;
    return is_hopper(c) && (p.d == 64 || p.d == 128) && p.d == p.e && (square || all) &&
           p.b * p.h * p.t * p.s > 0 && p.b * p.h < 65536 &&
           p.b * p.h * ll_ceil_div(ll_max64(p.t, p.s), SIDE) < INT32_MAX / 2;
}

/* Long heads are cuDNN's where any order will do: its five products are then quicker than seven. */
extern "C" bool attention_grad_cuda_90_fits(const ll_kcall *c)
{
    ll_att p = ll_att_packed(qkv_of(c));
    bool long_heads = p.t * p.d >= (int64_t)64 * 8192;
    return qkv_of(c)->dtype == LL_BF16 && lse_of(c)->dtype == LL_F32 && fits(c, p) &&
           !(c->any_order && long_heads);
}

extern "C" bool attend_grad_cuda_90_fits(const ll_kcall *c)
{
    for (int i = 0; i < 4; i++)
        if (c->in[i].dtype != LL_BF16) return false;
    return c->n_in == 6 && c->in[4].dtype == LL_F32 && c->in[5].dtype == LL_F32 &&
           fits(c, ll_att_of(&c->in[1], NULL, c->attr));
}

extern "C" size_t attention_grad_cuda_90_scratch(const ll_kcall *c)
{
    ll_att p = call_of(c).p;
    return (size_t)(p.b * p.h * chunks_of(p) * SIDE * 8) + 2 * sizeof(int) + LL_WORKSPACE_SLACK;
}

template <class W, bool CAUSAL> static ll_err launch_both(const ll_kcall *c, const call &a, job &j)
{
    const ll_att &p = a.p;
    int64_t queries = chunks_of(p), keys = ll_ceil_div(p.s, SIDE);
    j.chunks = (int)queries * W::EACH;
    if (!W::HAS_O) {
        enum { THREADS = 256 };
        int64_t rows = queries * SIDE, lanes = a.o ? 32 : 1;
        dim3 grid((unsigned)ll_ceil_div(rows * lanes, THREADS), (unsigned)(p.b * p.h));
        TRY(launch(c, a.o ? tell_before<W, 32> : tell_before<W, 1>, grid, THREADS, j, a.go, a.o,
                   a.delta));
    }
    j.blocks = (int)queries, j.tasks = (int)(p.b * p.h * queries), j.tiles = (int)keys * W::EACH;
    TRY(launch_shared(c, attention_back<W, false, CAUSAL>,
                      (unsigned)ll_min64(j.tasks, processors_of(c)), 384, W::SHARED, j));
    j.counter++;
    j.blocks = (int)keys, j.tasks = (int)(p.b * p.n * keys), j.tiles = (int)queries * W::EACH;
    return launch_shared(c, attention_back<W, true, CAUSAL>,
                         (unsigned)ll_min64(j.tasks, processors_of(c)), 384, W::SHARED, j);
}

extern "C" ll_err attention_grad_cuda_90(const ll_kcall *c)
{
    job j = {};
    call a = call_of(c);
    const ll_att &p = a.p;
    int64_t row = p.h * p.d;
    TRY(map_of(&j.q, p.q, p.b, p.t, p.h, p.d, p.q_row));
    TRY(map_of(&j.k, p.k, p.b, p.s, p.n, p.d, p.k_row));
    TRY(map_of(&j.v, p.v, p.b, p.s, p.n, p.d, p.v_row));
    TRY(map_of(&j.go, a.go, p.b, p.t, p.h, p.d, row));
    if (a.o) TRY(map_of(&j.o, a.o, p.b, p.t, p.h, p.d, row));
    TRY(map_of(&j.dq, a.dq, p.b, p.t, p.h, p.d, p.q_row));
    TRY(map_of(&j.dk, a.dk, p.b, p.s, p.n, p.d, p.k_row));
    TRY(map_of(&j.dv, a.dv, p.b, p.s, p.n, p.d, p.v_row));
    j.heads = (int)p.h, j.shared = (int)(p.h / p.n), j.time = (int)p.t;
    j.causal = p.ahead == 0 && p.t == p.s;
    j.scale = (float)p.scale;
    j.lse = (const float *)a.lse, j.stats = (float *)workspace_of(c);
    j.counter = (int *)(j.stats + (size_t)(p.b * p.h * chunks_of(p)) * 2 * SIDE);
    CUDA_TRY(cudaMemsetAsync(j.counter, 0, 2 * sizeof(int), stream_of(c)));
    if (p.d == 64 && a.o) return launch_both<way<64, true>, true>(c, a, j);
    if (p.d == 64)
        return j.causal ? launch_both<way<64, false>, true>(c, a, j)
                        : launch_both<way<64, false>, false>(c, a, j);
    return j.causal ? launch_both<way<128, false>, true>(c, a, j)
                    : launch_both<way<128, false>, false>(c, a, j);
}
