/* layernorm_both.cu: a residual's sum, its norm, and that as 8-bit floats, also transposed.
 *
 * A block has 64 rows at a time (32 where they are very long). The sum and the 8-bit rows leave at
 * once; 8-bit rows stay in shared memory too, and when the block's rows are there, they leave
 * transposed: 64 bytes of each column. Two ways to get there:
 *
 *     rows up to 1024   a warp has one row at a time, in registers; two blocks a multiprocessor
 *     longer ones       one block, whose groups of warps take 4 rows at a time, which TMA
 *                       has brought while others were worked on; a lane has 8 columns
 *
 * The scale is a bound that every block finds in gain and bias. */
#include "kern/cuda/layernorm.cuh"
#include "kern/cuda/staged.cuh"

enum { BLOCK = 256, WARPS = BLOCK / 32, WIDEST = 10 * 256 };

static norming both_of(const ll_kcall *c)
{
    norming a = norm_of(c, 0, true);
    a.plus = c->in[1].data, a.gain = c->in[2].data, a.bias = c->in[3].data;
    a.before = c->n_in > 4 ? c->in[4].data : NULL;
    a.sum = c->out[0].data, a.q = (uint8_t *)c->out[1].data, a.t = (uint8_t *)c->out[2].data;
    a.scale = (float *)c->out[3].data;
    a.mean_out = c->out[4].data, a.rstd_out = c->out[5].data;
    a.eps = ((const ll_norm_attr *)c->attr)->eps;
    return a;
}

/* ---- rows of bf16 that 16 divides, in length and number ---- */

/* Where word w of a row lies in shared memory: lanes that read four rows' groups of 16 side by side
 * meet no bank twice. */
__device__ __forceinline__ int word_at(int row, int w, int pitch)
{
    return row * pitch + (w ^ ((row >> 4 & 3) << 3));
}

template <int R>
__device__ __forceinline__ void write_transposed(const norming &a, const unsigned *tile,
                                                 int64_t row0, int pitch)
{
    enum { GROUPS = R / 16 };
    int words = (int)a.n / 4, g = threadIdx.x % GROUPS;
    if (row0 + g * 16 >= a.rows) return;
    for (int w = threadIdx.x / GROUPS; w < words; w += blockDim.x / GROUPS) {
        unsigned of[16];
        uint4 out[4];
#pragma unroll
        for (int r = 0; r < 16; r++) of[r] = tile[word_at(g * 16 + r, w, pitch)];
        transpose_16(of, out);
#pragma unroll
        for (int k = 0; k < 4; k++)
            __stcs((uint4 *)(a.t + (int64_t)(4 * w + k) * a.rows + row0 + g * 16), out[k]);
    }
}

template <int K, int R>
static __global__ void __launch_bounds__(BLOCK, 2) tall(norming a, int pitch)
{
    extern __shared__ unsigned tile[]; /* [R][pitch] */
    int warp = threadIdx.x / 32;
    int64_t row0 = blockIdx.x * (int64_t)R;
    row_pieces<bf16, K, 1> p;
    if (row0 + warp < a.rows) p.load_both(a, row0 + warp);
    float by = 1 / eight_scale(a);
    for (int i = warp; i < R && row0 + i < a.rows; i += WARPS) {
        int64_t r = row0 + i;
        p.add_up(a, r);
        float2 s = p.statistics(a, r);
#pragma unroll
        for (int k = 0; k < K; k++) {
            int at = p.column(k);
            float v[8];
            if (at >= (int)a.n) continue;
            p.norm(a, k, s, v);
            uint2 w = round_eight<__NV_E4M3>(v, by);
            __stcs((uint2 *)(a.q + r * a.n + at), w);
            *(uint2 *)(tile + word_at(i, at / 4, pitch)) = w;
        }
        if (i + WARPS < R && r + WARPS < a.rows) p.load_both(a, r + WARPS);
    }
    __syncthreads();
    write_transposed<R>(a, tile, row0, pitch);
}

template <int K, int R> static ll_err run_tall(const ll_kcall *c)
{
    norming a = both_of(c);
    int pitch = (int)ll_ceil_div(a.n, 128) * 32;
    return launch_shared(c, tall<K, R>, ll_ceil_div(a.rows, R), BLOCK, R * pitch * sizeof(unsigned),
                         a, pitch);
}

/* ---- the same, where rows are long ---- */

enum { MOST = 512, MOST_GROUPS = 8, STAGES = 8, SLACK = 5 * 1024 };
enum { ROWS = 4, TILE = 64, STAGED = 2048 }; /* STAGED: elements of a row at most */

/* How rows are shared out. */
typedef struct cut {
    int lanes, groups; /* a lane has 8 columns; a group's lanes have a row; groups: a power of 2 */
    int stages;        /* how often 4 rows of a group are there or under way */
    int pitch;         /* words of an 8-bit row in shared memory */
} cut;

typedef struct walk { /* what a group is at */
    char *room;
    uint64_t *full;
    int group, at; /* at: stage */
    unsigned phase;
} walk;

/* A group takes its batches of 4 rows in turn; number s is of this tile, and these are its rows. */
__device__ __forceinline__ int64_t tile_of(const cut &c, int s)
{
    return blockIdx.x + s / (TILE / ROWS / c.groups) * (int64_t)gridDim.x;
}
__device__ __forceinline__ int row_in_tile(const cut &c, const walk &w, int s)
{
    return (s % (TILE / ROWS / c.groups) * c.groups + w.group) * ROWS;
}

__device__ __forceinline__ unsigned batch_bytes(const norming &a)
{
    return (unsigned)(ROWS * a.n * sizeof(bf16));
}

/* Asks for batch s; those past the last row come last. */
__device__ __forceinline__ void ask(const norming &a, const cut &c, const walk &w, int s, int to)
{
    int64_t row = tile_of(c, s) * TILE + row_in_tile(c, w, s);
    if (row >= a.rows) return;
    unsigned bytes = batch_bytes(a);
    char *into = w.room + to * 2 * bytes;
    fetch(into, (const bf16 *)a.x + row * a.n, bytes, &w.full[to]);
    fetch(into + bytes, (const bf16 *)a.plus + row * a.n, bytes, &w.full[to]);
    expect(&w.full[to], 2 * bytes);
}

/* The sums over a group of 4 numbers, from all its lanes: a lane gets number lane % 4. */
__device__ __forceinline__ float group_sums(float (&v)[ROWS], float (*told)[ROWS], int group,
                                            int lanes)
{
    int l = threadIdx.x & 31, warps = lanes / 32;
    float sum = warp_sums<ROWS>(v);
    if (l % (32 / ROWS) == 0) told[threadIdx.x / 32][l / (32 / ROWS)] = sum;
    meet(1 + group, lanes);
    sum = 0;
#pragma unroll
    for (int i = 0; i < MOST / 32; i++)
        if (i < warps) sum += told[group * warps + i][l % ROWS];
    return sum;
}

typedef struct params { /* of a lane's columns; gain and bias as 8-bit numbers want them */
    float gain[8], bias[8], before[8];
} params;

__device__ __forceinline__ void load_params(const norming &a, int column, float by, params *p)
{
    load_floats<8>((const float *)a.gain + column, p->gain);
    load_floats<8>((const float *)a.bias + column, p->bias);
    if (a.before) load_floats<8>((const float *)a.before + column, p->before);
#pragma unroll
    for (int i = 0; i < 8; i++) p->gain[i] *= by, p->bias[i] *= by;
}

/* This lane's pieces of 4 rows as they are kept, written, and what it gives to the rows' sums. */
__device__ __forceinline__ void add_rows(const char *from, int row_bytes, const params &p, char *to,
                                         float (&v)[ROWS][8], float (&sum)[ROWS])
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float e[8];
        wide<bf16>::unpack(*(const uint4 *)(from + r * row_bytes), v[r]);
        wide<bf16>::unpack(*(const uint4 *)(from + (ROWS + r) * row_bytes), e);
#pragma unroll
        for (int i = 0; i < 8; i++) v[r][i] += e[i] + p.before[i];
        uint4 kept = wide<bf16>::pack(v[r]);
        *(uint4 *)(to + r * (int64_t)row_bytes) = kept;
        wide<bf16>::unpack(kept, v[r]); /* the norm is of the sum as it is kept */
#pragma unroll
        for (int i = 0; i < 8; i++) sum[r] += v[r][i];
    }
}

/* What it gives to their sums of squares, from the means, which lanes 0 to 3 have. */
__device__ __forceinline__ void add_squares(const float (&v)[ROWS][8], float mean, bool in,
                                            float (&square)[ROWS])
{
    float m[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) m[r] = __shfl_sync(~0u, mean, r);
    if (!in) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < 8; i++) square[r] += (v[r][i] - m[r]) * (v[r][i] - m[r]);
}

/* 8-bit rows, to memory and to the tile, from `row` and `word` on. */
__device__ __forceinline__ void put_norms(const params &p, const float (&v)[ROWS][8], float mean,
                                          float rstd, bool in, uint8_t *to, int n, unsigned *tile,
                                          int row, int word, int pitch)
{
    float s[ROWS], off[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        s[r] = __shfl_sync(~0u, rstd, r);
        off[r] = -__shfl_sync(~0u, mean, r) * s[r];
    }
    if (!in) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = fmaf(fmaf(v[r][i], s[r], off[r]), p.gain[i], p.bias[i]);
        uint2 e = round_eight<__NV_E4M3>(y, 1);
        __stcs((uint2 *)(to + r * (int64_t)n), e);
        *(uint2 *)(tile + word_at(row + r, word, pitch)) = e;
    }
}

/* Batch s of a group, whose first row is `row`. */
__device__ __forceinline__ void one_batch(const norming &a, const cut &c, walk &w, const params &p,
                                          int64_t row, int s, unsigned *tile,
                                          float (*told)[MOST / 32][ROWS])
{
    int lane = threadIdx.x % c.lanes, n = (int)a.n;
    int64_t at = row * n + lane * 8;
    bool in = lane * 8 < n;
    float v[ROWS][8], sum[ROWS] = {}, square[ROWS] = {}, by = 1.f / (float)n;
    await(&w.full[w.at], w.phase);
    if (in)
        add_rows(w.room + w.at * 2 * batch_bytes(a) + lane * 16, n * 2, p,
                 (char *)((bf16 *)a.sum + at), v, sum);
    float mean = group_sums(sum, told[0], w.group, c.lanes) * by;
    if (lane < FETCHERS) ask(a, c, w, s + c.stages, w.at); /* all have read */
    if (++w.at == c.stages) w.at = 0, w.phase ^= 1;
    add_squares(v, mean, in, square);
    float rstd = 1.f / sqrtf(group_sums(square, told[1], w.group, c.lanes) * by + (float)a.eps);
    if (lane < ROWS)
        ((float *)a.mean_out)[row + lane] = mean, ((float *)a.rstd_out)[row + lane] = rstd;
    put_norms(p, v, mean, rstd, in, a.q + at, n, tile, row_in_tile(c, w, s), lane * 2, c.pitch);
}

static __global__ void __launch_bounds__(MOST, 1) staged(norming a, cut c)
{
    extern __shared__ __align__(128) char room[];
    __shared__ uint64_t full[MOST_GROUPS][STAGES];
    __shared__ float told[2][MOST / 32][ROWS];
    unsigned *tile = (unsigned *)room;
    int lane = threadIdx.x % c.lanes;
    params p = {};
    walk w = {};
    w.group = threadIdx.x / c.lanes, w.full = full[w.group];
    w.room = room + TILE * c.pitch * 4 + w.group * c.stages * 2 * batch_bytes(a);
    if (threadIdx.x == 0) {
        for (int g = 0; g < c.groups; g++)
            for (int s = 0; s < c.stages; s++) init_barrier(&full[g][s], FETCHERS);
        barriers_made();
    }
    __syncthreads();
    if (lane < FETCHERS)
        for (int s = 0; s < c.stages; s++) ask(a, c, w, s, s);
    float by = 1 / eight_scale(a);
    if (lane * 8 < a.n) load_params(a, lane * 8, by, &p);
    for (int s = 0; tile_of(c, s) * TILE < a.rows; s++) {
        int64_t row0 = tile_of(c, s) * TILE, row = row0 + row_in_tile(c, w, s);
        if (row < a.rows) one_batch(a, c, w, p, row, s, tile, told);
        if ((s + 1) % (TILE / ROWS / c.groups)) continue;
        __syncthreads();
        write_transposed<TILE>(a, tile, row0, c.pitch);
        __syncthreads();
    }
}

static cut cut_of(const norming &a, size_t room, size_t *shared)
{
    cut t = {};
    t.lanes = (int)ll_ceil_div(a.n, 256) * 32;
    t.pitch = (int)ll_ceil_div(a.n, 128) * 32;
    size_t one = 2 * ROWS * (size_t)a.n * sizeof(bf16), tile = TILE * (size_t)t.pitch * 4;
    for (t.groups = MOST_GROUPS;
         t.groups > 1 && (t.groups * t.lanes > MOST || tile + 2 * t.groups * one > room);)
        t.groups /= 2;
    for (t.stages = STAGES; t.stages > 1 && tile + t.stages * t.groups * one > room;) t.stages--;
    *shared = tile + t.stages * t.groups * one;
    return t;
}

static ll_err run_staged(const ll_kcall *c)
{
    size_t bytes;
    norming a = both_of(c);
    cut t = cut_of(a, shared_of(c) - SLACK, &bytes);
    return launch_shared(c, staged, blocks_for(c, a.rows, TILE, 1), t.lanes * t.groups, bytes, a,
                         t);
}

static ll_err run_plain(const ll_kcall *c)
{
    norming a = both_of(c);
    return ll_norm_plain(c, &a);
}

/* ---- the ways ---- */

/* Rows of bf16 that 16 divides, in length and number, so long at most. */
template <int MOST_N> static bool even_fits(const ll_kcall *c)
{
    int64_t rows = ll_rows(&c->in[0]), n = ll_cols(&c->in[0]);
    return c->in[0].dtype == LL_BF16 && rows % 16 == 0 && n % 16 == 0 && rows && n && n <= MOST_N;
}

static bool staged_fits(const ll_kcall *c)
{
    size_t bytes, room = shared_of(c) - SLACK;
    if (!even_fits<STAGED>(c)) return false;
    cut_of(both_of(c), room, &bytes);
    return bytes <= room;
}

extern "C" const ll_solver layernorm_both_cuda[] = {
    {"registers", even_fits<512>, NULL, run_tall<2, 64>},
    {"registers", even_fits<768>, NULL, run_tall<3, 64>},
    {"registers", even_fits<1024>, NULL, run_tall<4, 64>},
    {"TMA", staged_fits, NULL, run_staged},
    {"registers", even_fits<WIDEST>, NULL, run_tall<10, 32>},
    {"plain", NULL, NULL, run_plain},
    {}};
