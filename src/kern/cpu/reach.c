/* reach and reach_over (fuse/reach_over.c) on the CPU: levels are bytes, and a term's is their sum,
 * so a vector holds many.
 *
 * 1. The loops are folded as those of a product (kern/einsum.h). A task is a panel of columns of
 *    one of them: its part of B is packed, rows of bytes, for all that is summed. Where columns are
 *    few and rows many, they change places.
 * 2. Level 0 becomes one that no other can lift above 0: sums below that are no term's.
 * 3. Most results have a large term among the first few, or, where a mask hides those, the last
 *    few: a row ends once all of its have, and no more is packed than was looked at. So levels
 *    that are made here, of numbers and scales and of those terms alone, cost less than a pass.
 * 4. reach_over counts results by levels, and need not look at rows that ended. */
#include "base/num.h"
#include "kern/cpu/team.h"
#include "kern/einsum.h"
#include "kern/grid.h"

LL_KERNELS(reach, reach_over)

enum { PANEL = 256, FEW = 64, NONE = -LL_REACH_BITS - 1, AT_ONCE = 4, LOOK = 16, SOME = 16 };
enum { LEVELS = 2 * LL_REACH_BITS + 1 }; /* of terms; 0: there is none */

/* An operand: levels, or numbers and their scales. */
typedef struct factor {
    const uint8_t *level;
    const float *x, *scale; /* NULL: levels */
    /* of scales along the loops of the product and around it */
    int64_t row, column, around[LL_EINSUM_LOOPS];
} factor;

typedef struct plan {
    ll_einsum_plan l;
    factor in[2];
    int64_t products, sums, depth, panels; /* depth: of all sums, in whole steps of SOME */
    size_t room;                           /* scratch bytes of a thread */
    int threads;
    int a, b;   /* the operand whose loop rows are, and that of columns */
    int enough; /* the level of a term from which on more is no matter */
} plan;

static ll_shape result_of(const char *spec, const ll_shape *a, const ll_shape *b)
{
    const char *comma = strchr(spec, ','), *letter = strstr(spec, "->") + 2;
    ll_shape y = {.n = 0};
    for (; *letter; letter++) {
        const char *in_a = (const char *)memchr(spec, *letter, (size_t)a->n);
        y.d[y.n++] = in_a ? a->d[in_a - spec] : b->d[strchr(comma, *letter) - comma - 1];
    }
    return y;
}

static plan make_plan(const ll_kcall *c, const char *spec, int enough)
{
    plan p = {.a = LL_EINSUM_A, .b = LL_EINSUM_B, .enough = 2 * LL_REACH_BITS - enough};
    const ll_shape *a = &c->in[0].shape, *b = &c->in[1].shape;
    ll_shape y = result_of(spec, a, b);
    ll_einsum_fold(spec, a, b, &y, &p.l);
    if (p.l.column.extent < FEW && p.l.row.extent > p.l.column.extent) {
        ll_einsum_loop row = p.l.row;
        p.l.row = p.l.column;
        p.l.column = row;
        p.a = LL_EINSUM_B;
        p.b = LL_EINSUM_A;
    }
    for (int k = 0; k < 2; k++) p.in[k].level = (const uint8_t *)c->in[k].data;
    p.products = ll_einsum_points(p.l.around, p.l.n_around);
    p.sums = ll_einsum_points(p.l.sums, p.l.n_sums);
    p.depth = ll_round_up(p.sums * p.l.sum.extent, SOME);
    p.panels = ll_ceil_div(p.l.column.extent, PANEL);
    p.room = ll_align64((size_t)p.depth * (PANEL + 1));
    double work = (double)p.products * (double)p.panels * (double)p.l.row.extent * (double)p.depth;
    int64_t tasks = p.products * p.panels;
    p.threads = tasks > 1 ? ll_team_of(c->threads, work) : 1;
    return p;
}

static plan plan_of_reach(const ll_kcall *c)
{
    const ll_reach_attr *a = (const ll_reach_attr *)c->attr;
    return make_plan(c, a->spec, (int)a->enough);
}

size_t reach_cpu_scratch(const ll_kcall *c)
{
    plan p = plan_of_reach(c);
    return p.room * (size_t)p.threads;
}

/* ---- levels ---- */

static inline int8_t level(uint8_t x)
{
    return (int8_t)(x + (x == 0) * NONE);
}

/* By how much exponents of numbers with this scale are shifted (ll_grid_level). */
static int shift_of(float m)
{
    int64_t e = ll_grid_exponent((double)m);
    return ll_grid_finite(e) ? LL_REACH_BITS - (int)e : 1 << 12;
}

/* What f32 holds as subnormal is lifted. */
static inline int8_t level_of(float x, int shift)
{
    float v = fabsf(x), up = v < 0x1p-64f ? v * 0x1p64f : v;
    int32_t bits;
    memcpy(&bits, &up, 4);
    int e = (bits >> 23) - 126 + shift - (v < 0x1p-64f) * 64;
    e = e < 1 ? 1 : e > LL_REACH_BITS ? LL_REACH_BITS : e;
    return (int8_t)(v == 0 ? NONE : e);
}

/* n levels from `at` on, so far apart, each with its shift where they are made of numbers. By
 * SOME, which is a loop of one vector. */
static void levels(const factor *f, int64_t at, int64_t apart, int64_t n, const int *shift,
                   int8_t *restrict to)
{
    for (int64_t i = 0; !f->x && i < n; i++) to[i] = level(f->level[at + i * apart]);
    for (int64_t i = 0; f->x && i < n; i += SOME) {
        const float *x = f->x + at + i * apart;
        float some[SOME] = {0};
        int8_t y[SOME];
        int m = (int)ll_min64(SOME, n - i);
        if (apart == 1 && m == SOME)
            memcpy(some, x, sizeof some);
        else
            for (int k = 0; k < m; k++) some[k] = x[k * apart];
#pragma omp simd
        for (int k = 0; k < SOME; k++) y[k] = level_of(some[k], shift[i + k]);
        memcpy(to + i, y, (size_t)m);
    }
}

/* ---- packing ---- */

/* What is packed so far of B's panel, of n columns, and of a row of A: so many terms. */
typedef struct packed {
    const plan *p;
    int64_t a, b; /* where the operands have the row and the panel */
    int8_t *row, *panel;
    int64_t n, rows, panels;
    int row_shift[SOME], shift[PANEL];
} packed;

/* Where an operand has term t, and how many follow it evenly. */
static int64_t terms_at(const plan *p, int operand, int64_t t, int64_t *many)
{
    int64_t k = p->l.sum.extent, off[3];
    *many = k - t % k;
    ll_einsum_offsets(p->l.sums, p->l.n_sums, t / k, off);
    return off[operand] + t % k * p->l.sum.stride[operand];
}

/* SOME terms more: the first, the last, and those between them. Terms beyond the last are none. */
static void pack_more(packed *x)
{
    const plan *p = x->p;
    const factor *a = &p->in[p->a], *b = &p->in[p->b];
    int64_t at = x->rows == 0 ? 0 : x->rows == SOME ? p->depth - SOME : x->rows - SOME;
    int64_t end = ll_min64(at + SOME, p->sums * p->l.sum.extent), many;
    int8_t *row = x->row + x->rows, *panel = x->panel + x->rows * PANEL;
    memset(row, NONE, SOME);
    for (int64_t t = at; t < end; t += many) {
        int64_t from = x->a + terms_at(p, p->a, t, &many);
        many = ll_min64(many, end - t);
        levels(a, from, p->l.sum.stride[p->a], many, x->row_shift, row + t - at);
    }
    x->rows += SOME;
    if (x->rows <= x->panels) return;
    memset(panel, NONE, SOME * PANEL);
    for (int64_t t = at; t < end; t++, panel += PANEL) {
        int64_t from = x->b + terms_at(p, p->b, t, &many);
        levels(b, from, p->l.column.stride[p->b], x->n, x->shift, panel);
        memset(panel + x->n, panel[0], (size_t)(PANEL - x->n));
    }
    x->panels += SOME;
}

/* ---- rows of results ---- */

static inline int8_t larger(int8_t a, int8_t b)
{
    return a > b ? a : b;
}

/* AT_ONCE steps of the sum. */
static void take(const int8_t *restrict b, const int8_t a[AT_ONCE], int8_t *restrict most)
{
    int8_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
#pragma omp simd
    for (int j = 0; j < PANEL; j++) {
        int8_t s = larger((int8_t)(b[j] + a0), (int8_t)(b[j + PANEL] + a1));
        int8_t t = larger((int8_t)(b[j + 2 * PANEL] + a2), (int8_t)(b[j + 3 * PANEL] + a3));
        most[j] = larger(most[j], larger(s, t));
    }
}

static int8_t least(const int8_t *x)
{
    int8_t y = INT8_MAX;
    for (int j = 0; j < PANEL; j++) y = x[j] < y ? x[j] : y;
    return y;
}

/* True: all of the row's results are enough. */
static bool run_row(packed *x, int8_t most[PANEL])
{
    const plan *p = x->p;
    const int8_t *a = x->row;
    memset(most, 0, PANEL);
    for (int64_t k = 0; k < p->depth; k += AT_ONCE) {
        if (k == x->rows) pack_more(x);
        bool any = a[k] > 0 || a[k + 1] > 0 || a[k + 2] > 0 || a[k + 3] > 0;
        if (any) take(x->panel + k * PANEL, a + k, most);
        if (k % LOOK == 0 && least(most) >= p->enough) return true;
    }
    return false;
}

/* What an operand's scales are at point `at` of the loops around. */
static const float *scales_at(const plan *p, int operand, int64_t at)
{
    const factor *f = &p->in[operand];
    int64_t off = 0;
    for (int i = p->l.n_around - 1; i >= 0; i--) {
        off += at % p->l.around[i].extent * f->around[i];
        at /= p->l.around[i].extent;
    }
    return f->scale + off;
}

/* Panel number `at` of all products: y[row, column], value of their levels; or count of them. */
static void run_panel(const plan *p, int64_t at, float *y, const float *value, int64_t *count,
                      int8_t *scratch)
{
    int64_t off[3], from = at % p->panels * PANEL, n = p->l.column.extent - from;
    const int64_t *column = p->l.column.stride, *row = p->l.row.stride;
    const factor *a = &p->in[p->a], *b = &p->in[p->b];
    const float *scale = a->x ? scales_at(p, p->a, at / p->panels) : NULL;
    int8_t most[PANEL];
    if (n > PANEL) n = PANEL;
    ll_einsum_offsets(p->l.around, p->l.n_around, at / p->panels, off);
    packed x = {.p = p, .row = scratch + p->depth * PANEL, .panel = scratch, .n = n};
    x.b = off[p->b] + from * column[p->b];
    if (b->x) {
        const float *m = scales_at(p, p->b, at / p->panels) + from * b->column;
        for (int64_t j = 0; j < n; j++) x.shift[j] = shift_of(m[j * b->column]);
    }
    for (int64_t i = 0; i < p->l.row.extent; i++) {
        x.a = off[p->a] + i * row[p->a];
        x.rows = 0;
        int shift = a->x ? shift_of(scale[i * a->row]) : 0;
        for (int k = 0; k < SOME; k++) x.row_shift[k] = shift;
        bool enough = run_row(&x, most);
        float *to = y + off[LL_EINSUM_C] + i * row[LL_EINSUM_C] + from * column[LL_EINSUM_C];
        if (count && enough)
            count[p->enough] += n;
        else if (count)
            for (int64_t j = 0; j < n; j++) count[most[j]]++;
        else
            for (int64_t j = 0; j < n; j++) to[j * column[LL_EINSUM_C]] = value[most[j]];
    }
}

/* What levels of terms are. */
static void values(const plan *p, float value[LEVELS])
{
    value[0] = value[1] = 0;
    for (int s = 2; s < LEVELS; s++)
        value[s] = ldexpf(1, (s < p->enough ? s : p->enough) - 2 * LL_REACH_BITS);
}

/* A share of the panels for each thread, which counts by itself. */
static void run_all(const ll_kcall *c, const plan *p, const float *value, int64_t *count)
{
    int64_t tasks = p->products * p->panels;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
    for (int t = 0; t < p->threads; t++)
        for (int64_t i = tasks * t / p->threads; i < tasks * (t + 1) / p->threads; i++)
            run_panel(p, i, (float *)c->out[0].data, value, count ? count + t * LEVELS : NULL,
                      (int8_t *)c->scratch + p->room * (size_t)t);
}

ll_err reach_cpu(const ll_kcall *c)
{
    plan p = plan_of_reach(c);
    float value[LEVELS];
    values(&p, value);
    run_all(c, &p, value, NULL);
    return LL_OK;
}

/* ---- reach_over ---- */

static int64_t scale_stride(const char *grid, const ll_shape *x, const ll_einsum_loop *l, int k)
{
    return ll_grid_scale_stride(grid, x, l->extent, l->stride[k]);
}

static plan plan_of_over(const ll_kcall *c)
{
    const ll_reach_over_attr *a = (const ll_reach_over_attr *)c->attr;
    plan p = make_plan(c, a->spec, (int)a->enough);
    for (int k = 0; k < 2 && c->n_in > 2; k++) {
        const char *grid = k ? a->b : a->a;
        const ll_shape *x = &c->in[k].shape;
        factor *f = &p.in[k];
        f->x = (const float *)c->in[k].data;
        f->scale = (const float *)c->in[2 + k].data;
        f->row = scale_stride(grid, x, &p.l.row, k);
        f->column = scale_stride(grid, x, &p.l.column, k);
        for (int i = 0; i < p.l.n_around; i++)
            f->around[i] = scale_stride(grid, x, &p.l.around[i], k);
    }
    return p;
}

size_t reach_over_cpu_scratch(const ll_kcall *c)
{
    plan p = plan_of_over(c);
    return (p.room + sizeof(int64_t[LEVELS])) * (size_t)p.threads;
}

ll_err reach_over_cpu(const ll_kcall *c)
{
    plan p = plan_of_over(c);
    float value[LEVELS], most = (float)((const ll_reach_over_attr *)c->attr)->most;
    int64_t *count = (int64_t *)(void *)((char *)c->scratch + p.room * (size_t)p.threads);
    values(&p, value);
    memset(count, 0, sizeof(int64_t[LEVELS]) * (size_t)p.threads);
    run_all(c, &p, NULL, count);
    double all = 0;
    for (int s = 2; s < LEVELS; s++) {
        int64_t n = 0;
        for (int t = 0; t < p.threads; t++) n += count[t * LEVELS + s];
        all += (double)n * (double)(1 / fmaxf(value[s], 0x1p-40f) - most);
    }
    *(double *)c->out[0].data = all;
    return LL_OK;
}
