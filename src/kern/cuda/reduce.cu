/* reduce.cu: sum, largest value and sum of squares over the dimensions whose letters vanish.
 *
 * Dimensions are merged, so that most reductions are rows (the innermost vanishes) or columns (it
 * stays). Rows: a block for each result element. Columns: a block for 32 of them. Either way the
 * vanishing elements are shared among as many blocks as fill the chip; parts are then combined in
 * order by a second kernel, so bits do not depend on timing. Where what is walked lies side by side
 * in multiples of 16 bytes, so much is read at a time. */
#include "kern/cuda/vec.cuh"

#include "base/spec.h"

#include <type_traits>

enum how { SUM, LARGEST, MAGNITUDE, SQUARES };
enum { BLOCK = 256, LANES = 32, DEEP = 8, FILL = 4 }; /* FILL: blocks a processor */
enum { AHEAD = 8 };         /* 16-byte pieces that a thread asks for at once */
enum { SHORT = 128 };       /* pieces of a row that part of a warp takes */
enum { CHUNK = 32 * 1024 }; /* elements of a part, where all elements give one number */

typedef struct side { /* dimensions that stay, or that vanish: extents and operand strides */
    int n;
    int64_t d[LL_MAX_DIMS], stride[LL_MAX_DIMS], points;
} side;

typedef struct plan {
    side kept, gone;
    bool columns, wide;
    int parts;
} plan;

static void add_dim(side *s, int64_t d, int64_t stride)
{
    s->points *= d;
    if (d == 1) return;
    if (s->n && s->stride[s->n - 1] == d * stride) {
        s->d[s->n - 1] *= d;
        s->stride[s->n - 1] = stride;
        return;
    }
    s->d[s->n] = d;
    s->stride[s->n++] = stride;
}

/* One number of all elements: parts do not depend on what else there is to do. */
static bool is_whole(const plan *p)
{
    return p->kept.points == 1 && !p->columns;
}

static ll_err make_plan(const ll_kcall *c, plan *p)
{
    const ll_shape *x = &c->in[0].shape;
    ll_spec s;
    int64_t stride[LL_MAX_DIMS], step = 1;
    TRY(ll_spec_parse(((const ll_spec_attr *)c->attr)->spec, &s));
    for (int i = x->n - 1; i >= 0; i--) {
        stride[i] = step;
        step *= x->d[i];
    }
    *p = plan{};
    p->kept.points = p->gone.points = 1;
    for (int i = 0; i < x->n; i++) add_dim(s.to[i] < 0 ? &p->gone : &p->kept, x->d[i], stride[i]);
    p->columns = p->kept.n && p->kept.stride[p->kept.n - 1] == 1 && p->gone.n;
    if (p->columns)
        p->wide = p->kept.n == 1 && p->gone.n == 1 && is_wide(c->in[0].dtype, p->kept.points);
    else
        p->wide =
            p->gone.n == 1 && p->gone.stride[0] == 1 && is_wide(c->in[0].dtype, p->gone.points);
    int64_t across = LANES * (p->wide ? 16 / (int64_t)ll_dtype_bytes(c->in[0].dtype) : 1);
    int64_t blocks = p->columns ? ll_ceil_div(p->kept.points, across) : p->kept.points;
    int64_t most = ll_ceil_div(p->gone.points, p->columns ? DEEP * 8 : BLOCK * 16);
    int64_t fill = processors_of(c) * FILL; /* all at the same time */
    int64_t want = blocks >= fill || blocks == 0 ? 1 : fill / blocks;
    p->parts = (int)(want < most ? want : most < 1 ? 1 : most);
    if (is_whole(p)) {
        want = ll_ceil_div(p->gone.points, CHUNK);
        p->parts = (int)(want < 1 ? 1 : want > 65535 ? 65535 : want);
    }
    return LL_OK;
}

static size_t scratch(const ll_kcall *c)
{
    plan p;
    if (make_plan(c, &p) != LL_OK || p.parts == 1) return 0;
    return (size_t)p.parts * (size_t)p.kept.points * sizeof(double);
}

__device__ __forceinline__ int64_t offset_of(const side &s, int64_t e)
{
    int64_t off = 0;
#pragma unroll
    for (int i = LL_MAX_DIMS - 1; i >= 0; i--) {
        if (i >= s.n) continue;
        int64_t at = i ? e % s.d[i] : e;
        e /= s.d[i];
        off += at * s.stride[i];
    }
    return off;
}

template <int HOW, class S> __device__ __forceinline__ S none()
{
    return HOW == LARGEST ? (S)-INFINITY : (S)0; /* of magnitudes: 0 */
}
template <int HOW, class S> __device__ __forceinline__ S join(S a, S b)
{
    if (HOW == LARGEST || HOW == MAGNITUDE) return b > a || b != b ? b : a;
    return a + b;
}
template <int HOW, class S> __device__ __forceinline__ S of_one(S v)
{
    return HOW == SQUARES ? v * v : HOW == MAGNITUDE ? (v < 0 ? -v : v) : v;
}

template <int HOW, class S> __device__ __forceinline__ S join_block(S v)
{
    return HOW == LARGEST || HOW == MAGNITUDE ? block_max<S>(v) : block_sum<S>(v);
}

/* Where results go: of the op's type, or parts, of the type that sums are made in. */
typedef struct results {
    void *data;
    int type;
    __device__ __forceinline__ void put(int64_t i, double v) const { store_any(data, type, i, v); }
} results;

/* Of the elements that vanish number from, from + step, ... before `to`, taken N that lie side by
 * side at a time (N > 1: 16 bytes; number i is i strides from the first): N results. */
template <int HOW, int N, class T, class S>
__device__ __forceinline__ void walk(const T *at, const side &gone, int64_t from, int64_t to,
                                     int step, int64_t stride, S (&some)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) some[k] = none<HOW, S>();
    if constexpr (N == 1)
        for (int64_t i = from; i < to; i += step)
            some[0] = join<HOW, S>(some[0], of_one<HOW, S>((S)to_float(at[offset_of(gone, i)])));
    else
        for (int64_t i = from; i < to; i += AHEAD * step) {
            uint4 w[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; a++)
                if (i + a * step < to) w[a] = ((const uint4 *)at)[(i + a * step) * stride];
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                float v[N];
                if (i + a * step >= to) continue;
                wide<T>::unpack(w[a], v);
#pragma unroll
                for (int k = 0; k < N; k++)
                    some[k] = join<HOW, float>(some[k], of_one<HOW, float>(v[k]));
            }
        }
}

/* All of [from, to) by one block; every thread gets the result. */
template <int HOW, int N, class T>
__device__ __forceinline__ auto part_of(const T *at, const side &gone, int64_t from, int64_t to)
{
    typename sum_of<T>::type some[N];
    walk<HOW, N>(at, gone, from + threadIdx.x, to, blockDim.x, 1, some);
#pragma unroll
    for (int k = 1; k < N; k++) some[0] = join<HOW>(some[0], some[k]);
    return join_block<HOW>(some[0]);
}

template <int HOW, int N, class T>
static __global__ void __launch_bounds__(BLOCK) rows(side kept, side gone, const T *x, results y)
{
    int64_t n = gone.points / N, from = n * blockIdx.y / gridDim.y;
    int64_t to = n * (blockIdx.y + 1) / gridDim.y;
    let_next_come();
    for (int64_t e = blockIdx.x; e < kept.points; e += gridDim.x) {
        auto all = part_of<HOW, N>(x + offset_of(kept, e), gone, from, to);
        if (threadIdx.x == 0) y.put(blockIdx.y * kept.points + e, all);
        __syncthreads();
    }
}

/* Short rows: some lanes of a warp have one, a power of two. */
template <int HOW, int N, class T>
static __global__ void __launch_bounds__(BLOCK)
    short_rows(side kept, side gone, const T *x, results y, int lanes)
{
    int64_t e = (blockIdx.x * (int64_t)BLOCK + threadIdx.x) / lanes;
    bool in = e < kept.points;
    typename sum_of<T>::type some[N];
    let_next_come();
    walk<HOW, N>(x + offset_of(kept, in ? e : 0), gone, threadIdx.x % lanes,
                 in ? gone.points / N : 0, lanes, 1, some);
#pragma unroll
    for (int k = 1; k < N; k++) some[0] = join<HOW>(some[0], some[k]);
    for (int o = lanes / 2; o; o /= 2)
        some[0] = join<HOW>(some[0], __shfl_xor_sync(0xffffffffu, some[0], o));
    if (in && threadIdx.x % lanes == 0) y.put(e, some[0]);
}

/* A thread has N columns, a block 32 N of them. By block (across, part) of so many parts. */
template <int HOW, int N, class T>
static __device__ __forceinline__ void some_columns(const side &kept, const side &gone, const T *x,
                                                    const results &y, int64_t across, int64_t at,
                                                    int64_t parts)
{
    typedef typename sum_of<T>::type S;
    __shared__ S part[DEEP][N][LANES];
    int64_t from = gone.points * at / parts, to = gone.points * (at + 1) / parts;
    int64_t j = (across * LANES + threadIdx.x) * N;
    S some[N];
    walk<HOW, N>(x + (N == 1 ? offset_of(kept, j) : j), gone, from + threadIdx.y,
                 j < kept.points ? to : 0, DEEP, kept.points / N, some);
#pragma unroll
    for (int k = 0; k < N; k++) part[threadIdx.y][k][threadIdx.x] = some[k];
    __syncthreads();
    if (j >= kept.points) return;
    for (int k = threadIdx.y; k < N; k += DEEP) {
        S all = part[0][k][threadIdx.x];
        for (int d = 1; d < DEEP; d++) all = join<HOW>(all, part[d][k][threadIdx.x]);
        y.put(at * kept.points + j + k, all);
    }
}

template <int HOW, int N, class T>
static __global__ void __launch_bounds__(BLOCK, FILL)
    columns(side kept, side gone, const T *x, results y)
{
    let_next_come();
    some_columns<HOW, N>(kept, gone, x, y, blockIdx.x, blockIdx.y, gridDim.y);
}

/* ---- parts ---- */

template <int HOW, class S>
static __global__ void combine(int parts, int64_t n, const S *x, results y)
{
    int64_t e = blockIdx.x * (int64_t)LANES + threadIdx.x;
    await_kernel();
    S all = fold_parts<DEEP, AHEAD>(
        e < n ? parts : 0, none<HOW, S>(), [&](int k) { return x[k * n + e]; }, join<HOW, S>);
    if (threadIdx.y == 0 && e < n) y.put(e, all);
}

/* The parts of one number, by a block. */
template <int HOW, class S> __device__ __forceinline__ S all_parts(const S *x, int parts)
{
    S some = none<HOW, S>();
#pragma unroll 8
    for (int k = threadIdx.x; k < parts; k += blockDim.x) some = join<HOW, S>(some, x[k]);
    return join_block<HOW>(some);
}

template <int HOW, class S> static __global__ void combine_whole(int parts, const S *x, results y)
{
    await_kernel();
    S all = all_parts<HOW, S>(x, parts);
    if (threadIdx.x == 0) y.put(0, all);
}

template <int HOW, int N, class T>
static ll_err first_pass(const ll_kcall *c, const plan *p, results y)
{
    int64_t n = p->kept.points;
    const void *x = c->in[0].data;
    int64_t pieces = p->gone.points / N, lanes = 1;
    if (!p->columns && p->parts == 1 && pieces <= SHORT && n > 1) {
        while (lanes < pieces && lanes < 32) lanes *= 2;
        return launch(c, short_rows<HOW, N, T>, ll_ceil_div(n * lanes, BLOCK), BLOCK, p->kept,
                      p->gone, x, y, lanes);
    }
    dim3 grid(p->columns ? ll_ceil_div(n, LANES * N) : ll_min64(n, 65535), p->parts);
    return p->columns
               ? launch(c, columns<HOW, N, T>, grid, dim3(LANES, DEEP), p->kept, p->gone, x, y)
               : launch(c, rows<HOW, N, T>, grid, BLOCK, p->kept, p->gone, x, y);
}

static results results_of(const ll_kcall *c)
{
    return results{c->out[0].data, c->out[0].dtype};
}

template <int HOW> static ll_err reduce(const ll_kcall *c)
{
    plan p;
    TRY(make_plan(c, &p));
    if (p.kept.points == 0) return LL_OK;
    return with_float(c->in[0].dtype, [&](auto a) -> ll_err {
        typedef decltype(a) T;
        typedef typename sum_of<T>::type S;
        constexpr int N = std::is_same<T, double>::value ? 1 : wide<T>::N;
        results to = results_of(c), parts = {c->scratch, sizeof(S) == 8 ? LL_F64 : LL_F32};
        if (p.parts > 1) to = parts;
        TRY((p.wide ? first_pass<HOW, N, T>(c, &p, to) : first_pass<HOW, 1, T>(c, &p, to)));
        if (p.parts == 1) return LL_OK;
        if (is_whole(&p))
            return launch_early(c, combine_whole<HOW, S>, 1, BLOCK, p.parts, c->scratch,
                                results_of(c));
        return launch_early(c, combine<HOW, S>, ll_ceil_div(p.kept.points, LANES),
                            dim3(LANES, DEEP), p.parts, p.kept.points, c->scratch, results_of(c));
    });
}

/* ---- sums of squares of several tensors, each of all its elements: what a gradient's norm is
 * made of. Parts as above, and joined as above: a block for each, then one for each tensor. ---- */

typedef struct whole {
    const void *x;
    results y;
    side gone;
    uint32_t first, parts;
} whole;

typedef struct chunk_of { /* what a block works on */
    const void *x;
    uint32_t pieces, row; /* 0 pieces: not by 16 bytes; the row of the table says more */
} chunk_of;

template <class T>
static __global__ void __launch_bounds__(BLOCK)
    many_parts(const whole *rows, const chunk_of *chunks, typename sum_of<T>::type *part)
{
    let_next_come();
    chunk_of mine = chunks[blockIdx.x];
    constexpr int N = std::is_same<T, double>::value ? 1 : wide<T>::N;
    const whole *w = &rows[mine.row];
    int64_t k = blockIdx.x - w->first, n = w->gone.points;
    auto all = mine.pieces ? part_of<SQUARES, N>((const T *)mine.x, w->gone, 0, mine.pieces)
                           : part_of<SQUARES, 1>((const T *)w->x, w->gone, n * k / w->parts,
                                                 n * (k + 1) / w->parts);
    if (threadIdx.x == 0) part[blockIdx.x] = all;
}

template <class S> static __global__ void many_combine(const whole *rows, const S *part)
{
    await_kernel();
    const whole *w = &rows[blockIdx.x];
    S all = all_parts<SQUARES, S>(part + w->first, (int)w->parts);
    if (threadIdx.x == 0) w->y.put(0, all);
}

static bool wholly(const ll_kcall *c)
{
    plan p;
    return make_plan(c, &p) == LL_OK && is_whole(&p);
}

static bool alike(const ll_kcall *a, const ll_kcall *b)
{
    return a->in[0].dtype == b->in[0].dtype && wholly(a) && wholly(b);
}

typedef struct layout { /* of the table: rows, parts, chunks */
    size_t parts, chunks, bytes;
    unsigned blocks;
} layout;

static void put_row(const ll_kcall *c, const plan *p, uint32_t i, uint32_t at, whole *row,
                    chunk_of *chunks)
{
    int64_t size = (int64_t)ll_dtype_bytes(c->in[0].dtype);
    int64_t pieces = p->wide ? p->gone.points * size / 16 : 0, n = p->parts;
    const char *x = (const char *)c->in[0].data;
    *row = whole{x, results_of(c), p->gone, at, (uint32_t)n};
    for (int64_t k = 0; k < n; k++) {
        int64_t from = pieces * k / n, to = pieces * (k + 1) / n;
        chunks[at + k] = chunk_of{x + from * 16, (uint32_t)(to - from), i};
    }
}

static layout lay_out(const ll_kcall *const *calls, int n, char *out)
{
    layout l = {};
    plan p;
    for (int round = 0; round < 2; round++) { /* how many blocks, then which */
        unsigned at = 0;
        for (int i = 0; i < n; i++) {
            if (make_plan(calls[i], &p) != LL_OK) return l; /* a graph was made of it before */
            if (out && round)
                put_row(calls[i], &p, (uint32_t)i, at, (whole *)out + i,
                        (chunk_of *)(out + l.chunks));
            at += (unsigned)p.parts;
        }
        l.blocks = at;
        l.parts = ((size_t)n * sizeof(whole) + 63) / 64 * 64;
        l.chunks = l.parts + (at * sizeof(double) + 63) / 64 * 64;
        l.bytes = l.chunks + at * sizeof(chunk_of);
    }
    return l;
}

static size_t table(const ll_kcall *const *calls, int n, void *out)
{
    return lay_out(calls, n, (char *)out).bytes;
}

static ll_err run_many(const ll_kcall *const *calls, int n, void *table)
{
    const ll_kcall *c = calls[0];
    layout l = lay_out(calls, n, NULL);
    void *part = (char *)table + l.parts;
    return with_float(c->in[0].dtype, [&](auto a) -> ll_err {
        typedef decltype(a) T;
        TRY(launch(c, many_parts<T>, l.blocks, BLOCK, table, (char *)table + l.chunks, part));
        return launch_early(c, many_combine<typename sum_of<T>::type>, n, BLOCK, table, part);
    });
}

static const ll_many many = {alike, table, run_many};

/* ---- sums of columns of several tensors, as biases' gradients are: blocks as above ---- */

typedef struct heap { /* a tensor that is summed */
    const void *x;
    side kept, gone;
    results y;
    size_t room; /* where its parts are in the table */
    uint32_t parts, at, across,
        end; /* blocks of the first launch from `at`, of the second to end */
    bool wide;
} heap;

static bool of_columns(const ll_kcall *c, plan *p)
{
    return make_plan(c, p) == LL_OK && p->columns && p->kept.points > 0;
}

static bool alike_columns(const ll_kcall *a, const ll_kcall *b)
{
    plan p;
    return a->in[0].dtype == b->in[0].dtype && of_columns(a, &p) && of_columns(b, &p);
}

template <class T>
static __global__ void __launch_bounds__(BLOCK, FILL) many_columns(const heap *table)
{
    typedef typename sum_of<T>::type S;
    constexpr int N = std::is_same<T, double>::value ? 1 : wide<T>::N;
    let_next_come();
    const heap *h = table;
    while (blockIdx.x >= h->at + h->across * h->parts) h++;
    int64_t b = blockIdx.x - h->at, across = b % h->across, at = b / h->across;
    results to = {(char *)table + h->room, sizeof(S) == 8 ? LL_F64 : LL_F32};
    if (h->parts == 1) to = h->y;
    if (h->wide)
        some_columns<SUM, N>(h->kept, h->gone, (const T *)h->x, to, across, at, h->parts);
    else
        some_columns<SUM, 1>(h->kept, h->gone, (const T *)h->x, to, across, at, h->parts);
}

static __host__ __device__ __forceinline__ int64_t last_blocks(int64_t parts, int64_t columns)
{
    return parts > 1 ? (columns + LANES - 1) / LANES : 0;
}

template <class S> static __global__ void many_combine_columns(const heap *table)
{
    await_kernel();
    const heap *h = table;
    while (blockIdx.x >= h->end) h++;
    int64_t n = h->kept.points, from = h->end - last_blocks(h->parts, n);
    int64_t e = (blockIdx.x - from) * LANES + threadIdx.x;
    const S *x = (const S *)((const char *)table + h->room);
    S all = fold_parts<DEEP, AHEAD>(
        e < n ? (int)h->parts : 0, (S)0, [&](int k) { return x[k * n + e]; }, join<SUM, S>);
    if (threadIdx.y == 0 && e < n) h->y.put(e, all);
}

/* The table's bytes: heaps, and behind them room for parts. blocks: of both launches. */
static size_t heaps(const ll_kcall *const *calls, int n, heap *out, unsigned blocks[2])
{
    size_t room = (size_t)ll_round_up((int64_t)n * (int64_t)sizeof(heap), 64);
    blocks[0] = blocks[1] = 0;
    for (int i = 0; i < n; i++) {
        const ll_kcall *c = calls[i];
        plan p = {};
        if (!of_columns(c, &p)) return 0; /* alike: they are */
        int64_t wide = p.wide ? 16 / (int64_t)ll_dtype_bytes(c->in[0].dtype) : 1;
        heap h = {c->in[0].data, p.kept, p.gone, results_of(c), room, (uint32_t)p.parts, blocks[0]};
        h.across = (uint32_t)ll_ceil_div(p.kept.points, LANES * wide);
        h.wide = p.wide;
        blocks[0] += h.across * h.parts;
        blocks[1] += (unsigned)last_blocks(p.parts, p.kept.points);
        h.end = blocks[1];
        if (p.parts > 1) room += (size_t)ll_round_up(8 * p.parts * p.kept.points, 64);
        if (out) out[i] = h;
    }
    return room;
}

static size_t table_of_columns(const ll_kcall *const *calls, int n, void *out)
{
    unsigned blocks[2];
    return heaps(calls, n, (heap *)out, blocks);
}

static ll_err run_many_columns(const ll_kcall *const *calls, int n, void *table)
{
    const ll_kcall *c = calls[0];
    unsigned blocks[2];
    heaps(calls, n, NULL, blocks);
    return with_float(c->in[0].dtype, [&](auto a) -> ll_err {
        typedef decltype(a) T;
        TRY(launch(c, many_columns<T>, blocks[0], dim3(LANES, DEEP), table));
        if (!blocks[1]) return LL_OK;
        return launch_early(c, many_combine_columns<typename sum_of<T>::type>, blocks[1],
                            dim3(LANES, DEEP), table);
    });
}

static const ll_many many_of_columns = {alike_columns, table_of_columns, run_many_columns};
extern "C" const ll_solver
    sum_cuda[] = {{.scratch = scratch, .run = reduce<SUM>, .many = &many_of_columns}, {}},
    amax_cuda[] = {{.scratch = scratch, .run = reduce<LARGEST>}, {}},
    absmax_cuda[] = {{.scratch = scratch, .run = reduce<MAGNITUDE>}, {}},
    sumsq_cuda[] = {{.scratch = scratch, .run = reduce<SQUARES>, .many = &many}, {}};
