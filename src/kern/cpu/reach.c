/* reach on the CPU: levels are bytes, and a term's is their sum, so a vector holds many.
 *
 * 1. The loops are folded as those of a product (kern/einsum.h). A task is a panel of columns of
 *    one of them: its part of B is packed, rows of bytes, for all that is summed. Where columns are
 *    few and rows many, they change places.
 * 2. Level 0 becomes one that no other can lift above 0: sums below that are no term's.
 * 3. Most results have a large term among the first few: a row ends once all of its have, and no
 *    more is packed than was looked at. */
#include "kern/attr.h"
#include "kern/cpu/team.h"
#include "kern/einsum.h"

#include <math.h>

ll_kernel reach_cpu;
ll_scratch reach_cpu_scratch;

enum { PANEL = 256, FEW = 64, NONE = -LL_REACH_BITS - 1, AT_ONCE = 4, LOOK = 16, SOME = 64 };

typedef struct plan {
    ll_einsum_plan l;
    int64_t products, sums, depth, panels; /* depth: of all sums, in whole steps of AT_ONCE */
    size_t room;                           /* scratch bytes of a thread */
    int threads;
    int a, b;   /* the operand whose loop rows are, and that of columns */
    int enough; /* the level of a term from which on more is no matter */
} plan;

static plan make_plan(const ll_kcall *c)
{
    const ll_reach_attr *attr = (const ll_reach_attr *)c->attr;
    plan p = {.a = LL_EINSUM_A, .b = LL_EINSUM_B, .enough = 2 * LL_REACH_BITS - (int)attr->enough};
    ll_einsum_fold(attr->spec, &c->in[0].shape, &c->in[1].shape, &c->out[0].shape, &p.l);
    if (p.l.column.extent < FEW && p.l.row.extent > p.l.column.extent) {
        ll_einsum_loop row = p.l.row;
        p.l.row = p.l.column;
        p.l.column = row;
        p.a = LL_EINSUM_B;
        p.b = LL_EINSUM_A;
    }
    p.products = ll_einsum_points(p.l.around, p.l.n_around);
    p.sums = ll_einsum_points(p.l.sums, p.l.n_sums);
    p.depth = (p.sums * p.l.sum.extent + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    p.panels = (p.l.column.extent + PANEL - 1) / PANEL;
    p.room = (size_t)p.depth * (PANEL + 1);
    p.room = (p.room + 63) / 64 * 64;
    double work = (double)p.products * (double)p.panels * (double)p.l.row.extent * (double)p.depth;
    int64_t tasks = p.products * p.panels;
    p.threads = tasks > 1 ? ll_team_of(c->threads, work) : 1;
    return p;
}

size_t reach_cpu_scratch(const ll_kcall *c)
{
    plan p = make_plan(c);
    return p.room * (size_t)p.threads;
}

static inline int8_t level(uint8_t x)
{
    return (int8_t)(x + (x == 0) * NONE);
}

/* n levels, so far apart. */
static void levels(const uint8_t *restrict x, int64_t apart, int64_t n, int8_t *restrict to)
{
    if (apart == 1)
        for (int64_t i = 0; i < n; i++) to[i] = level(x[i]);
    else
        for (int64_t i = 0; i < n; i++) to[i] = level(x[i * apart]);
}

/* What is packed so far of B's panel, of n columns, and of a row of A: so many terms. */
typedef struct packed {
    const plan *p;
    const uint8_t *a, *b;
    int8_t *row, *panel;
    int64_t n, rows, panels;
} packed;

/* Where an operand has term t, and how many follow it evenly. */
static int64_t terms_at(const plan *p, int operand, int64_t t, int64_t *many)
{
    int64_t k = p->l.sum.extent, off[3];
    *many = k - t % k;
    ll_einsum_offsets(p->l.sums, p->l.n_sums, t / k, off);
    return off[operand] + t % k * p->l.sum.stride[operand];
}

/* Terms beyond the last are none. */
static void pack_more(packed *x, int64_t to)
{
    const plan *p = x->p;
    int64_t all = p->sums * p->l.sum.extent, many;
    while (x->panels < to && x->panels < all) {
        const uint8_t *b = x->b + terms_at(p, p->b, x->panels, &many);
        for (; many-- && x->panels < to; x->panels++, b += p->l.sum.stride[p->b]) {
            int8_t *panel = x->panel + x->panels * PANEL;
            levels(b, p->l.column.stride[p->b], x->n, panel);
            memset(panel + x->n, panel[0], (size_t)(PANEL - x->n));
        }
    }
    for (; x->panels < to; x->panels++) memset(x->panel + x->panels * PANEL, NONE, PANEL);
    while (x->rows < to && x->rows < all) {
        const uint8_t *a = x->a + terms_at(p, p->a, x->rows, &many);
        if (many > to - x->rows) many = to - x->rows;
        levels(a, p->l.sum.stride[p->a], many, x->row + x->rows);
        x->rows += many;
    }
    for (; x->rows < to; x->rows++) x->row[x->rows] = NONE;
}

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

static void run_row(packed *x, int8_t most[PANEL])
{
    const plan *p = x->p;
    const int8_t *a = x->row;
    memset(most, 0, PANEL);
    for (int64_t k = 0; k < p->depth; k += AT_ONCE) {
        if (k >= x->rows) pack_more(x, k + SOME < p->depth ? k + SOME : p->depth);
        bool any = a[k] > 0 || a[k + 1] > 0 || a[k + 2] > 0 || a[k + 3] > 0;
        if (any) take(x->panel + k * PANEL, a + k, most);
        if (k % LOOK == 0 && least(most) >= p->enough) return;
    }
}

/* Panel number `at` of all products. */
static void run_panel(const ll_kcall *c, const plan *p, int64_t at, const float *value,
                      int8_t *scratch)
{
    int64_t off[3], from = at % p->panels * PANEL, n = p->l.column.extent - from;
    const int64_t *column = p->l.column.stride, *row = p->l.row.stride;
    int8_t most[PANEL];
    if (n > PANEL) n = PANEL;
    ll_einsum_offsets(p->l.around, p->l.n_around, at / p->panels, off);
    packed x = {.p = p, .row = scratch + p->depth * PANEL, .panel = scratch, .n = n};
    x.b = (const uint8_t *)c->in[p->b].data + off[p->b] + from * column[p->b];
    for (int64_t i = 0; i < p->l.row.extent; i++) {
        float *y = (float *)c->out[0].data + off[LL_EINSUM_C] + i * row[LL_EINSUM_C] +
                   from * column[LL_EINSUM_C];
        x.a = (const uint8_t *)c->in[p->a].data + off[p->a] + i * row[p->a];
        x.rows = 0;
        run_row(&x, most);
        if (column[LL_EINSUM_C] == 1)
            for (int64_t j = 0; j < n; j++) y[j] = value[most[j]];
        else
            for (int64_t j = 0; j < n; j++) y[j * column[LL_EINSUM_C]] = value[most[j]];
    }
}

ll_err reach_cpu(const ll_kcall *c)
{
    plan p = make_plan(c);
    float value[2 * LL_REACH_BITS + 1] = {0};
    for (int s = 2; s <= 2 * LL_REACH_BITS; s++)
        value[s] = ldexpf(1, (s < p.enough ? s : p.enough) - 2 * LL_REACH_BITS);
#pragma omp parallel for num_threads(p.threads) schedule(static) if (p.threads > 1)
    for (int t = 0; t < p.threads; t++) {
        int64_t tasks = p.products * p.panels;
        for (int64_t i = tasks * t / p.threads; i < tasks * (t + 1) / p.threads; i++)
            run_panel(c, &p, i, value, (int8_t *)c->scratch + p.room * (size_t)t);
    }
    return LL_OK;
}
