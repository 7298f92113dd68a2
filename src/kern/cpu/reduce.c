/* reduce.c: sum, amax, absmax and sumsq (the sum of squares) on the cpu.
 *
 * Dimensions are merged. The last of them, of L elements, decides the inner loop: if
 * it stays, whole rows of L are added up (column sums: bias gradients); if it vanishes, each run of
 * L collapses. Of the other dimensions O is the product of those that stay and J of those that
 * vanish:
 *
 *     "nhwc->c"   rows of c,   O = 1,  J = nhw       "nc->n"   runs of c,  O = n,  J = 1
 *     "nhwc->nc"  rows of c,   O = n,  J = hw        "nc->"    one run of nc
 *
 * Rows narrower than a few vectors are taken several at a time as one wider row. J rows, or a long
 * run, are cut into blocks of fixed size; a block adds in f32 in several lanes, the blocks' sums
 * are added in double. So the result does not depend on the number of threads, and the error does
 * not grow with the count.
 *
 * This text is for f32, and bf16 whose sums are f32; reduce_f64.c compiles it for f64 (real.h), and
 * for f32 that is added up as fixed point in f64 (grid_sum, fuse/grid_sum.c): a scale for each
 * result, sums that are exact in any order. */
#include "base/num.h"
#include "base/spec.h"
#include "kern/attr.h"
#include "kern/cpu/real.h"
#include "kern/cpu/row.h"
#include "kern/grid.h"
#include "kern/walk.h"

#include <math.h>

LL_KERNELS(sum, amax, absmax, sumsq, grid_sum)
ll_scratch reduce_cpu_scratch;

typedef enum how { SUM, LARGEST, MAGNITUDE, SQUARES, GRID } how;
ll_err ll_reduce_f32(const ll_kcall *c, how how), ll_reduce_f64(const ll_kcall *c, how how);
size_t ll_reduce_scratch_f32(const ll_kcall *c, how how);
size_t ll_reduce_scratch_f64(const ll_kcall *c, how how);

enum {
    LANES = 128 / sizeof(ll_real), /* of a run: several vectors, to hide the latency of addition */
    GRID_LANES = 64,   /* the same of fixed point, whose lanes do not show in its bits */
    RUN_BLOCK = 8192,  /* elements of a run added up in one type */
    ROW_CHUNK = 2048,  /* columns added up at once: the sums stay in the first cache */
    BLOCK_WORK = 32768 /* elements of a block of rows, about */
};

/* What is widened as it is added up: bf16; of f64, f32 that becomes fixed point. */
#ifdef LL_REAL_F64
typedef float narrow;
#else
typedef uint16_t narrow;
#endif

typedef struct plan {
    bool rows, max, square;
    bool magnitude; /* with max: of absolute values */
    bool plain;     /* row or run number o J + j; otherwise the dimensions say */
    ll_walk
        w; /* of the operand (0), and the result (1): dimensions that stay and vanish, in turns */
    int64_t O, J, L;
    int64_t fold, width;    /* rows taken as one, and the elements of that */
    int64_t block, n_block; /* rows (of width), or elements of a run, in a block */
    int64_t n_chunk;        /* parts of a row */
    const ll_real *x;
    const narrow *half; /* in place of x: sums */
    const float *scale; /* of fixed point, of each result */
    int64_t bits;
    double most;
    ll_real *y;
    ll_real *row_sums; /* [O, n_block, width], or NULL: written to y at once */
    double *run_sums;  /* [O, n_block] */
} plan;

/* ---- the plan ---- */

enum { FROM, TO };

/* Does dimension i of the walk stay? */
static bool kept(const plan *p, int i)
{
    return p->w.stride[TO][i] != 0;
}

/* Without elements no loop is run: as of a single one. */
static void walk_of(const ll_kcall *c, const ll_spec *s, ll_walk *w)
{
    const ll_shape *x = &c->in[0].shape;
    bool any = ll_numel(x) > 0;
    int64_t to[LL_MAX_DIMS];
    *w = (ll_walk){.n = x->n, .walkers = 2};
    ll_walk_strides(x, w->stride[FROM]);
    ll_walk_strides(&c->out[0].shape, to);
    for (int i = 0; i < x->n; i++) {
        w->size[i] = any ? x->d[i] : 1;
        w->stride[TO][i] = s->to[i] < 0 ? 0 : to[s->to[i]];
    }
    ll_walk_merge(w);
}

static ll_err make_plan(const ll_kcall *c, how how, plan *p)
{
    const ll_grid_sum_attr *grid = how == GRID ? c->attr : NULL;
    ll_spec s;
    TRY(ll_spec_parse(grid ? grid->spec : ((const ll_spec_attr *)c->attr)->spec, &s));
    walk_of(c, &s, &p->w);
    int last = p->w.n - 1;
    p->max = how == LARGEST || how == MAGNITUDE;
    p->magnitude = how == MAGNITUDE;
    p->square = how == SQUARES;
    p->rows = kept(p, last);
    p->L = p->w.size[last];
    p->O = p->J = 1;
    for (int i = 0; i < last; i++) *(kept(p, i) ? &p->O : &p->J) *= p->w.size[i];
    p->plain = last <= 1 || (last == 2 && p->rows);
    p->fold = p->n_chunk = 1;
    p->width = p->L;
    if (p->rows) {
        int64_t narrow_row = grid ? GRID_LANES : LANES;
        if (p->plain && p->L < narrow_row) p->fold = 2 * narrow_row / p->L;
        if (p->fold > p->J) p->fold = p->J;
        p->width = p->fold * p->L;
        p->block = ll_min64(ll_max64(BLOCK_WORK / p->width, 64), 512);
        p->n_block = ll_ceil_div(p->J / p->fold, p->block);
        p->n_chunk = ll_ceil_div(p->width, ROW_CHUNK);
    } else {
        p->block = RUN_BLOCK;
        p->n_block = p->J == 1 ? ll_ceil_div(p->L, RUN_BLOCK) : 1;
    }
    p->x = c->in[0].data;
    p->half = grid || c->in[0].dtype == LL_BF16 ? c->in[0].data : NULL;
    p->scale = grid ? c->in[1].data : NULL;
    p->bits = grid ? grid->bits : 0;
    p->most = ll_grid_most(p->bits);
    p->y = c->out[0].data;
    p->row_sums = NULL;
    p->run_sums = NULL;
    return LL_OK;
}

static bool needs_row_sums(const plan *p)
{
    return p->rows && (p->n_block > 1 || p->fold > 1);
}

size_t LL_REAL(ll_reduce_scratch)(const ll_kcall *c, how how)
{
    plan p;
    if (make_plan(c, how, &p) != LL_OK) return 0;
    if (needs_row_sums(&p)) return sizeof(ll_real) * (size_t)(p.O * p.n_block * p.width);
    return !p.rows && p.n_block > 1 ? sizeof(double) * (size_t)(p.O * p.n_block) : 0;
}

/* Where row or run j of result o starts. */
static int64_t start(const plan *p, int64_t o, int64_t j)
{
    if (p->plain) return (o * p->J + j) * p->L;
    int64_t at = 0;
    for (int i = p->w.n - 2; i >= 0; i--) {
        int64_t *index = kept(p, i) ? &o : &j;
        at += *index % p->w.size[i] * p->w.stride[FROM][i];
        *index /= p->w.size[i];
    }
    return at;
}

/* ---- numbers that are widened ---- */

/* What the numbers of result i are multiplied by. */
static ll_real factor(const plan *p, int64_t i)
{
    return p->scale ? (ll_real)ll_grid_factor((double)p->scale[i], p->bits) : 1;
}

static inline ll_real widened(narrow x, ll_real by, double most)
{
#ifdef LL_REAL_F64
    double v = rint((double)x * by);
    return v > most ? most : v;
#else
    (void)by, (void)most;
    return ll_bf16_to_f32(x);
#endif
}

/* ---- rows ---- */

static inline ll_real larger(ll_real a, ll_real b)
{
    return b > a || b != b ? b : a; /* NaN is the largest */
}

static inline double fold(const plan *p, double all, double v)
{
    return !p->max ? all + v : v > all || v != v ? v : all;
}

/* Of magnitudes the bits tell as much, and cost less: NaN is the largest there too. */
typedef ll_real_mask word __attribute__((may_alias));
static const word MAGNITUDE_BITS = (word)(((uint64_t)1 << (8 * sizeof(word) - 1)) - 1);

static inline word larger_word(word a, word b)
{
    return a > b ? a : b;
}

static void take_row(const plan *p, int64_t at, const ll_real *by, int64_t n, ll_real *y)
{
    const ll_real *x = p->x + at;
    if (p->half) {
        const narrow *h = p->half + at;
        const double most = p->most;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] += widened(h[i], by[i], most);
    } else if (p->magnitude) {
        const word *from = (const word *)x;
        word *to = (word *)y;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = larger_word(to[i], from[i] & MAGNITUDE_BITS);
    } else if (p->max) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] = larger(y[i], x[i]);
    } else if (p->square) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] += x[i] * x[i];
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) y[i] += x[i];
    }
}

/* Four rows at once: fewer loads and stores of y, and shorter chains of roundings. */
static void add_4_rows(const plan *p, const int64_t at[4], const ll_real *by, int64_t n, ll_real *y)
{
    const double most = p->most;
#define FOUR(from, as)                                                                             \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] +=                                    \
        (as((from)[at[0] + i]) + as((from)[at[1] + i])) +                                          \
        (as((from)[at[2] + i]) + as((from)[at[3] + i]))
#define WIDENED(x) widened(x, by[i], most)
    if (p->half)
        FOUR(p->half, WIDENED);
    else
        FOUR(p->x, );
#undef WIDENED
#undef FOUR
}

/* Block b of result row o, columns from..to, into y. */
static void reduce_rows(const plan *p, int64_t o, int64_t b, int64_t from, int64_t to, ll_real *y)
{
    int64_t all = p->J / p->fold, j = b * p->block, end = j + p->block < all ? j + p->block : all;
    ll_real by[ROW_CHUNK];
    for (int64_t i = from; i < to && p->scale; i++) by[i - from] = factor(p, o * p->L + i % p->L);
    for (int64_t i = 0; i < to - from; i++) y[i] = p->max && !p->magnitude ? -INFINITY : 0;
    for (; !p->max && !p->square && j + 4 <= end; j += 4) {
        int64_t at[4];
        for (int i = 0; i < 4; i++) at[i] = start(p, o, (j + i) * p->fold) + from;
        add_4_rows(p, at, by, to - from, y);
    }
    for (; j < end; j++) take_row(p, start(p, o, j * p->fold) + from, by, to - from, y);
    if (end == all && all * p->fold < p->J) /* the rows that do not fill a wide one */
        take_row(p, start(p, o, all * p->fold), by, (p->J - all * p->fold) * p->L, y);
}

/* Items are (o, block, chunk), in this order. */
static void row_items(const plan *p, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        int64_t chunk = i % p->n_chunk, ob = i / p->n_chunk;
        int64_t o = ob / p->n_block, b = ob % p->n_block, at = chunk * ROW_CHUNK;
        int64_t end = at + ROW_CHUNK < p->width ? at + ROW_CHUNK : p->width;
        ll_real *y = p->row_sums ? p->row_sums + ob * p->width : p->y + o * p->L;
        reduce_rows(p, o, b, at, end, y + at);
    }
}

/* Elements from..to of the result, from the sums of blocks and of folded rows. */
static void join_rows(const plan *p, int64_t from, int64_t to)
{
    for (int64_t e = from; e < to; e++) {
        int64_t o = e / p->L, k = e % p->L;
        const ll_real *x = p->row_sums + o * p->n_block * p->width + k;
        double all = p->max ? -INFINITY : 0;
        for (int64_t i = 0; i < p->n_block * p->fold; i++) all = fold(p, all, x[i * p->L]);
        p->y[e] = (ll_real)all;
    }
}

/* ---- runs ---- */

enum { PER_VEC = 16 / sizeof(ll_real) };
typedef ll_real vec __attribute__((vector_size(16), aligned(sizeof(ll_real)), may_alias));

/* Always inlined, with square a constant: two loops, without a choice in them. */
static inline __attribute__((always_inline)) double add_run(const ll_real *x, int64_t n,
                                                            bool square)
{
    double all = 0;
    while (n >= LANES) {
        int64_t m = n < RUN_BLOCK ? n / LANES * LANES : RUN_BLOCK;
        vec sum[LANES / PER_VEC] = {{0}};
        for (const ll_real *end = x + m; x < end; x += LANES)
            for (int k = 0; k < LANES / PER_VEC; k++) {
                vec v = ((const vec *)x)[k];
                if (square) v *= v;
                sum[k] += v;
            }
        vec a = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
        double lanes = 0;
        for (int k = 0; k < PER_VEC; k++) lanes += (double)a[k];
        all += lanes;
        n -= m;
    }
    for (int64_t i = 0; i < n; i++) all += square ? (double)x[i] * (double)x[i] : (double)x[i];
    return all;
}

/* Fixed point is exact in any order. */
static double add_halves(const narrow *h, int64_t n, ll_real by, double most)
{
    double all = 0;
#ifdef LL_REAL_F64
#pragma omp simd reduction(+ : all)
    for (int64_t i = 0; i < n; i++) all += widened(h[i], by, most);
#else
    for (int64_t m; n > 0; h += m, n -= m) {
        ll_real wide[ROW_CHUNK];
        m = ll_min64(n, ROW_CHUNK);
#pragma omp simd
        for (int64_t i = 0; i < m; i++) wide[i] = widened(h[i], by, most);
        all += add_run(wide, m, false);
    }
#endif
    return all;
}

static double max_run(const ll_real *x, int64_t n)
{
    ll_real all = -INFINITY;
    if (n >= LANES) {
        ll_real lane[LANES];
        for (int k = 0; k < LANES; k++) lane[k] = x[k];
        for (; n >= LANES; x += LANES, n -= LANES)
#pragma omp simd
            for (int k = 0; k < LANES; k++) lane[k] = larger(lane[k], x[k]);
        for (int k = 0; k < LANES; k++) all = larger(all, lane[k]);
    }
    for (int64_t i = 0; i < n; i++) all = larger(all, x[i]);
    return all;
}

static double magnitude_run(const ll_real *x, int64_t n)
{
    const word *from = (const word *)x;
    word all = 0;
    ll_real f;
#pragma omp simd reduction(max : all)
    for (int64_t i = 0; i < n; i++) all = larger_word(all, from[i] & MAGNITUDE_BITS);
    memcpy(&f, &all, sizeof f);
    return (double)f;
}

/* Items are (o, block). */
static void run_items(const plan *p, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        int64_t o = i / p->n_block, at = i % p->n_block * p->block;
        int64_t n = p->n_block == 1 || p->L - at < p->block ? p->L - at : p->block;
        double all = p->max ? -INFINITY : 0;
        ll_real by = factor(p, o);
        for (int64_t j = 0; j < p->J; j++) {
            int64_t first = start(p, o, j) + at;
            const ll_real *x = p->x + first;
            double v = p->half     ? add_halves(p->half + first, n, by, p->most)
                       : p->max    ? (p->magnitude ? magnitude_run : max_run)(x, n)
                       : p->square ? add_run(x, n, true)
                                   : add_run(x, n, false);
            all = fold(p, all, v);
        }
        if (p->run_sums)
            p->run_sums[i] = all;
        else
            p->y[o] = (ll_real)all;
    }
}

static void join_runs(const plan *p)
{
    for (int64_t o = 0; o < p->O; o++) {
        double all = p->max ? -INFINITY : 0;
        for (int64_t b = 0; b < p->n_block; b++)
            all = fold(p, all, p->run_sums[o * p->n_block + b]);
        p->y[o] = (ll_real)all;
    }
}

/* ---- the kernels ---- */

static void do_items(const void *p, int64_t from, int64_t to)
{
    (((const plan *)p)->rows ? row_items : run_items)((const plan *)p, from, to);
}

static void do_rows(const void *p, int64_t from, int64_t to)
{
    join_rows((const plan *)p, from, to);
}

ll_err LL_REAL(ll_reduce)(const ll_kcall *c, how how)
{
    plan p;
    TRY(make_plan(c, how, &p));
    int64_t n = ll_numel(&c->in[0].shape), results = ll_numel(&c->out[0].shape);
    if (n == 0) {
        for (int64_t i = 0; i < results; i++) p.y[i] = how == LARGEST ? -INFINITY : 0;
        return LL_OK;
    }
    if (needs_row_sums(&p)) p.row_sums = c->scratch;
    if (!p.rows && p.n_block > 1) p.run_sums = c->scratch;
    int64_t items = p.O * p.n_block * p.n_chunk;
    int threads = items > 1 ? ll_team_for(c->threads, n) : 1;
    ll_in_parts(threads, items, do_items, &p);
    if (p.row_sums) ll_in_parts(threads, results, do_rows, &p);
    if (p.run_sums) join_runs(&p);
    /* Of zeros the largest is +0, in whatever order they come. */
    for (int64_t i = 0; i < results && p.max; i++) p.y[i] += (ll_real)0;
    return LL_OK;
}

#ifndef LL_REAL_F64
size_t reduce_cpu_scratch(const ll_kcall *c)
{
    return (c->in[0].dtype == LL_F64 ? ll_reduce_scratch_f64 : ll_reduce_scratch_f32)(c, SUM);
}

size_t grid_sum_cpu_scratch(const ll_kcall *c)
{
    return ll_reduce_scratch_f64(c, GRID);
}

ll_err grid_sum_cpu(const ll_kcall *c)
{
    return ll_reduce_f64(c, GRID);
}

/* f32 and f64, and f32 sums of bf16. */
#define KERNEL(name, how)                                                                          \
    bool name##_cpu_fits(const ll_kcall *c)                                                        \
    {                                                                                              \
        ll_dtype t = c->in[0].dtype, to = c->out[0].dtype;                                         \
        return t == LL_F32 || t == LL_F64 || ((how) == SUM && t == LL_BF16 && to == LL_F32);       \
    }                                                                                              \
    ll_err name##_cpu(const ll_kcall *c)                                                           \
    {                                                                                              \
        return (c->in[0].dtype == LL_F64 ? ll_reduce_f64 : ll_reduce_f32)(c, how);                 \
    }
KERNEL(sum, SUM)
KERNEL(amax, LARGEST)
KERNEL(absmax, MAGNITUDE)
KERNEL(sumsq, SQUARES)
#endif
