/* hopper_stats.cu: a product of bf16 matrices, and of each of its columns the sum and the sum of
 * squares: what a batch norm must know of a convolution by one tap, from the registers that it is
 * made in.
 *
 * A block has the same N columns from its first tile to its last, and so all of b that it needs
 * stays in shared memory: only a streams. For each of two groups of four warps a thread asks TMA
 * for pieces of a, 64 by 64, some ahead; the group makes tiles of y, 64 by N, in registers, and
 * stores them by TMA from three rooms of 64 by 64 in turn: stores run beside the next tile's
 * product, and one group's beside the other's. Its sums stay in registers, up to 64 a lane. Sizes
 * are of any kind: TMA fills with zeros what lies outside of a matrix, and does not write it.
 *
 * Squares are of numbers as they are, not less a mean: sums are f32 over some thousand rows, their
 * sums f64. The variance so loses mean^2 / variance of what f32 keeps, 2^-24. Of numbers kept in
 * bf16 the rounding alone has mean^2 2^-18 / 3 of variance, 20 times as much. */
#include "kern/cuda/hopper_tile.cuh"
#include "kern/cuda/wgmma.cuh"

enum { PIECE = SQUARE * SQUARE * 2, ROOMS = 3, STRIP = 32 };
enum { MOST_AHEAD = 8, BOUNDS = 2 * 2 * MOST_AHEAD + 1 };
enum { FIXED = ALIGN + 2 * ROOMS * PIECE + BOUNDS * 8, MOST_SHARED = 227 * 1024 };

typedef struct job {
    CUtensorMap a, b, y;
    int columns, across, tiles; /* tiles: of 64 rows; across: of N columns */
    int depth, ahead;           /* pieces of a row of a; of a group's, on their way or there */
    float *parts;
} job;

/* What one of the two groups has of a block. */
typedef struct share {
    uint8_t *a, *b, *out;
    uint64_t *full, *empty, *b_full;
    int group, column, first, step; /* its tiles */
} share;

/* The next piece of a: where, and the parity of its barriers. */
typedef struct ring {
    int stage;
    uint32_t phase;
} ring;

__device__ __forceinline__ void next(ring &at, int n)
{
    if (++at.stage == n) at.stage = 0, at.phase ^= 1;
}

template <int N> __device__ __forceinline__ share share_of(const job &j, int group)
{
    extern __shared__ uint8_t raw[];
    share s;
    s.b = raw + (ALIGN - shared_at(raw) % ALIGN) % ALIGN;
    uint8_t *a = s.b + j.depth * N * DEPTH * 2, *out = a + 2 * j.ahead * PIECE;
    s.b_full = (uint64_t *)(out + 2 * ROOMS * PIECE);
    s.full = s.b_full + 1 + group * 2 * MOST_AHEAD, s.empty = s.full + MOST_AHEAD;
    s.a = a + group * j.ahead * PIECE, s.out = out + group * ROOMS * PIECE;
    s.group = group, s.column = (int)blockIdx.x % j.across * N;
    s.first = (int)blockIdx.x / j.across * 2 + group, s.step = (int)gridDim.x / j.across * 2;
    return s;
}

/* By one thread of each group's. */
template <int N> __device__ void fetch(const job &j, const share &s)
{
    ring at = {0, 0};
    if (s.group == 0) {
        expect(s.b_full, j.depth * N * DEPTH * 2);
        for (int k = 0; k < j.depth; k++)
            tile_load(s.b + k * N * DEPTH * 2, &j.b, k * DEPTH, s.column, s.b_full);
    }
    for (int t = s.first; t < j.tiles; t += s.step)
        for (int k = 0; k < j.depth; k++, next(at, j.ahead)) {
            await_alike(&s.empty[at.stage], at.phase ^ 1);
            expect(&s.full[at.stage], PIECE);
            tile_load(s.a + at.stage * PIECE, &j.a, k * DEPTH, t * SQUARE, &s.full[at.stage]);
        }
}

/* ---- a group ---- */

typedef struct member {
    int thread, warp, lane;
    uint32_t row_at, half; /* its row of the first room; which 8 columns of 16 */
} member;

template <int N>
__device__ __forceinline__ void sum_tile(const job &j, const share &s, const member &m, ring &at,
                                         float (&sum)[N / 2])
{
    int before = -1;
    for (int k = 0; k < j.depth; k++, next(at, j.ahead)) {
        uint64_t a = operand(s.a + at.stage * PIECE), b = operand(s.b + k * N * DEPTH * 2);
        await_alike(&s.full[at.stage], at.phase);
        products_begin();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) accumulate(sum, a + i * 2, b + i * 2, k > 0 || i > 0);
        products_commit();
        if (before >= 0) {
            products_wait<1>();
            if (m.thread == 0) arrive(&s.empty[before]);
        }
        before = at.stage;
    }
    products_wait<0>();
    if (m.thread == 0) arrive(&s.empty[before]);
    settle(sum);
}

/* What a lane keeps of each 32 columns: the sums and squares' of its 8 columns; where that takes
 * too many registers, either those or these, with those of the lane 16 on. */
template <int N> struct totals {
    enum { KEPT = N == 256 ? 8 : 16 };
    float v[N / STRIP][KEPT];
};

template <int N>
__device__ __forceinline__ void add_strip(const float *sum, int lane, totals<N> &total, int strip)
{
    float c[16];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float u = sum[i / 2 * 4 + i % 2], v = sum[i / 2 * 4 + i % 2 + 2]; /* 8 rows on */
        c[i] = u + v, c[8 + i] = fmaf(u, u, v * v);
    }
    if constexpr (totals<N>::KEPT == 8) fold<8>(c, lane, 16);
#pragma unroll
    for (int i = 0; i < totals<N>::KEPT; i++) total.v[strip][i] += c[i];
}

/* 64 columns at a time by way of a room, and their sums while it is stored. */
template <int N>
__device__ __forceinline__ void put_tile(const job &j, const share &s, const member &m, int row,
                                         const float (&sum)[N / 2], int &room, totals<N> &total)
{
#pragma unroll
    for (int q = 0; q < N / SQUARE; q++) {
        if (s.column + q * SQUARE >= j.columns) break;
#pragma unroll
        for (int i = 0; i < SQUARE / 16; i++)
            put(m.row_at + room * PIECE + (((i * 2 + m.half) ^ (m.lane & 7)) << 4),
                sum + (q * (SQUARE / 16) + i) * 8);
        written_for_tma();
        if (m.thread == 0) stores_read<ROOMS - 2>(); /* of the room that is next */
        meet(1 + s.group, 128);
        if (m.thread == 0) tile_store(&j.y, s.column + q * SQUARE, row, s.out + room * PIECE);
        room = room == ROOMS - 1 ? 0 : room + 1;
#pragma unroll
        for (int n = q * 2; n < q * 2 + 2; n++) add_strip<N>(sum + n * 16, m.lane, total, n);
    }
}

/* A group's part: its four warps' totals, by way of its rooms. In the end a lane has those of
 * column 2 (lane % 16) of 32 and the next, lanes from 16 on the squares'. */
template <int N>
__device__ __forceinline__ void put_totals(const job &j, const share &s, const member &m,
                                           totals<N> &total)
{
    float *warps = (float *)s.out, *mine = warps + m.warp * 2 * N;
    int64_t part = (int)blockIdx.x / j.across * 2 + s.group;
    if (m.thread == 0) stores_done();
    meet(1 + s.group, 128);
#pragma unroll
    for (int n = 0; n < N / STRIP; n++) {
        float *c = total.v[n];
        if constexpr (totals<N>::KEPT == 16) fold<8>(c, m.lane, 16);
        fold<4>(c, m.lane, 8);
        fold<2>(c, m.lane, 4);
        *(float2 *)&mine[m.lane / 16 * N + n * STRIP + m.lane % 16 * 2] = make_float2(c[0], c[1]);
    }
    meet(1 + s.group, 128);
    for (int i = m.thread; i < 2 * N; i += 128) {
        int c = s.column + i % N;
        float sum = (warps[i] + warps[2 * N + i]) + (warps[4 * N + i] + warps[6 * N + i]);
        if (c < j.columns) j.parts[(part * 2 + i / N) * j.columns + c] = sum;
    }
}

template <int N> __device__ __forceinline__ void work(const job &j, const share &s, int warp)
{
    member m;
    ring at = {0, 0};
    int room = 0;
    totals<N> total = {};
    m.thread = threadIdx.x % 128, m.warp = warp % 4, m.lane = threadIdx.x % 32;
    m.row_at = shared_at(s.out) + (m.warp * 16 + m.lane % 16) * SQUARE * 2, m.half = m.lane / 16;
    await_alike(s.b_full, 0);
    for (int t = s.first; t < j.tiles; t += s.step) {
        float sum[N / 2];
        sum_tile<N>(j, s, m, at, sum);
        put_tile<N>(j, s, m, t * SQUARE, sum, room, total);
    }
    put_totals<N>(j, s, m, total);
}

template <int N>
static __global__ void __launch_bounds__(384, 1) stats_90(const __grid_constant__ job j)
{
    /* one for all lanes, the compiler sees */
    int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        uint64_t *b = share_of<N>(j, 0).b_full;
        for (int i = 0; i < BOUNDS; i++) init_barrier(b + i, 1);
        barriers_made();
    }
    __syncthreads();
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp < 2 && threadIdx.x % 32 == 0) fetch<N>(j, share_of<N>(j, warp));
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        work<N>(j, share_of<N>(j, warp / 4 - 1), warp);
    }
}

/* ---- launching ---- */

typedef struct layout {
    int wide, across, depth, ahead;
    int64_t lanes; /* blocks of the same columns */
} layout;

/* The widest tiles of which b has room beside two pieces of a for each group, and of which less
 * than a half is beyond the last column. */
static bool layout_of(const ll_kcall *c, const hopper_stats *h, layout *l)
{
    int64_t columns = h->y.cols, depth = ll_ceil_div(h->a.cols, DEPTH);
    for (int n = 256; n >= SQUARE; n /= 2) {
        int64_t across = ll_ceil_div(columns, n);
        int64_t left = MOST_SHARED - FIXED - depth * n * DEPTH * 2, ahead = left / (2 * PIECE);
        if (left < 4 * PIECE || (n > SQUARE && 2 * (across * n - columns) >= n)) continue;
        int64_t lanes = ll_min64(processors_of(c) / across, ll_ceil_div(h->y.rows, 2 * SQUARE));
        *l = layout{n, (int)across, (int)depth, (int)ll_min64(ahead, MOST_AHEAD), lanes};
        return lanes > 0;
    }
    return false;
}

extern "C" bool ll_hopper_stats_fits(const ll_kcall *c, const hopper_stats *h)
{
    layout l;
    return operands_fit(&h->a, &h->b, &h->y, false) && h->y.cols % 8 == 0 && layout_of(c, h, &l);
}

extern "C" int ll_hopper_stats_parts(const ll_kcall *c, const hopper_stats *h)
{
    layout l;
    return layout_of(c, h, &l) ? (int)l.lanes * 2 : 0;
}

template <int N> static ll_err run(const ll_kcall *c, const job *j, const layout *l)
{
    size_t bytes = FIXED + (size_t)l->depth * N * DEPTH * 2 + (size_t)l->ahead * 2 * PIECE;
    return launch_shared(c, stats_90<N>, (unsigned)(l->lanes * l->across), 384, bytes, *j);
}

extern "C" ll_err ll_hopper_stats_run(const ll_kcall *c, const hopper_stats *h)
{
    layout l;
    job j = {};
    int64_t rows = h->y.rows, columns = h->y.cols, k = h->a.cols;
    CHECK(layout_of(c, h, &l), LL_E_ARG, "no room for %lld columns of %lld", (long long)columns,
          (long long)k);
    TRY(map_of(&j.a, h->a.data, rows, k, h->a.rs, DEPTH, SQUARE));
    TRY(map_of(&j.b, h->b.data, columns, k, h->b.cs, DEPTH, l.wide));
    TRY(map_of(&j.y, h->y.data, rows, columns, columns, SQUARE, SQUARE));
    j.columns = (int)columns, j.across = l.across, j.tiles = (int)ll_ceil_div(rows, SQUARE);
    j.depth = l.depth, j.ahead = l.ahead, j.parts = h->parts;
    return l.wide == 256   ? run<256>(c, &j, &l)
           : l.wide == 128 ? run<128>(c, &j, &l)
                           : run<64>(c, &j, &l);
}
