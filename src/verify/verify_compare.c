/* verify_compare.c: pieces of ranks held against whole serial tensors, all of each and in blocks:
 * the ranges of one dimension, of MOST at most, of no fewer than FEW elements. */
#include "verify/verify_int.h"

#include <float.h>

static const double FLOOR[2] = {1e-6, 1e-8}; /* as it is, in f64 */
static const double DIGITS = 1e-3, SMALL = 1e-2, SHARE = 1e-3;
static const double ROUGH = 0.1, HALF = 0.5; /* in bf16, beside SMALL and DIGITS */
static const double STILL[2] = {2e-2,
                                1e-9}; /* some units of the last place over the usual tolerance */
/* Of a tensor's norm, and of a kept one's value: what a block is always allowed. */
static const double LEAST[2] = {1e-7, 1e-13}, UNITS[2] = {0x1p-22, 0x1p-51};

static double at(const void *data, ll_dtype t, int64_t i)
{
    return t == LL_F32 ? (double)((const float *)data)[i] : ll_load(data, t, i);
}

/* Of results, as the step left them that was made again on all bits, where exact sums had to. of:
 * its slot, may be NULL. */
void *ll_verify_data(const ll_session *s, const item *x, int slot, const ll_slot **of)
{
    if (!ll_verify_kept(x) && s->now && s->now != s) {
        s = s->now;
        slot = ll_program_result(s->p, x->name);
    }
    if (of) *of = &s->p->slots[slot];
    return ll_exec_data(s->e, slot, 0);
}

ll_err ll_verify_fetch(verifier *v, const item *x, const void **out)
{
    void *data = v->buffer;
    if (v->alone) data = ll_verify_data(v->again ? v->nudged : v->alone, x, x->serial, NULL);
    *out = data;
    if (v->n_rank == 1 || !ll_tensor_bytes(x->type.dtype, &x->type.shape)) return LL_OK;
    return ll_comm_broadcast(v->c, data, (int64_t)ll_tensor_bytes(x->type.dtype, &x->type.shape),
                             LL_U8, 0, &(ll_coll_opts){.site = x->name});
}

/* ---- one tensor ---- */

/* Neighbours in the last dimension: what differs is added to sum and noted in f. */
static void segment(const item *x, const void *whole, int64_t first, const void *piece, int64_t in,
                    int64_t n, const uint8_t *left_out, finding *f, double sum[2])
{
    ll_dtype t = x->type.dtype;
    size_t elem = ll_dtype_bytes(t);
    const char *a0 = (const char *)whole + (size_t)first * elem;
    const char *b0 = (const char *)piece + (size_t)in * elem;
    for (int64_t i = 0; i < n; i++) {
        const char *ai = a0 + (size_t)i * elem, *bi = b0 + (size_t)i * elem;
        bool alike = elem == 4 ? !memcmp(ai, bi, 4) : !memcmp(ai, bi, elem); /* 4: no call */
        if ((alike && f->worst >= 0) || (left_out && left_out[first + i])) continue;
        double a = at(a0, t, i), b = at(b0, t, i), d = a == b ? 0 : fabs(a - b);
        if (isnan(d)) d = INFINITY;
        if (!alike) {
            f->bits++;
            d = fmax(d, DBL_TRUE_MIN); /* zeros of two signs */
        }
        sum[0] += d * d;
        sum[1] += d < INFINITY ? (b - a) * a : 0;
        if (d > f->worst) *f = (finding){0, 0, d, (double)(first + i), a, b, f->bits};
    }
}

static void squares(const item *x, const void *piece, int64_t in, int64_t n, double sum[2])
{
    for (int64_t i = in; i < in + n; i++) {
        double b = at(piece, x->type.dtype, i);
        sum[0] += b * b;
    }
}

/* Where a piece lies in the whole, dimension by dimension. */
typedef struct place {
    int n;
    int64_t from[LL_MAX_DIMS], len[LL_MAX_DIMS], of[LL_MAX_DIMS];
    int64_t base[LL_MAX_DIMS]; /* of the dimension's blocks */
} place;
typedef struct compared {
    const item *x;
    place l;
    const void *whole, *piece;
    const uint8_t *left_out; /* may be NULL */
    double (*sums)[2];       /* of each block */
} compared;

static place place_of(const item *x, const ll_slot *s)
{
    const ll_shape *p = &s->type.shape, *w = s->piece ? &s->piece->whole : p;
    place l = {.n = p->n};
    for (int d = 0, base = 1; d < p->n; d++) {
        l.from[d] = s->piece ? s->piece->at[d] : 0;
        l.len[d] = p->d[d];
        l.of[d] = w->d[d];
        l.base[d] = base;
        base += (int)x->cuts[d];
    }
    return l;
}

/* One row, that begins at element `first` of the whole: by the blocks of its own dimension. */
static void compare_row(const compared *c, int64_t first, int64_t in, finding *f, double sum[2])
{
    const place *l = &c->l;
    int last = l->n - 1;
    int64_t row = last < 0 ? 1 : l->len[last], cuts = last < 0 ? 0 : c->x->cuts[last];
    for (int64_t i = 0, n; i < row; i += n) {
        double part[2] = {0}, *to = sum;
        n = row;
        if (cuts) {
            int64_t of = l->of[last], k = (l->from[last] + i) * cuts / of;
            n = ll_ceil_div((k + 1) * of, cuts) - l->from[last] - i;
            if (n > row - i) n = row - i;
            to = c->sums[l->base[last] + k];
        }
        if (c->whole)
            segment(c->x, c->whole, first + i, c->piece, in + i, n, c->left_out, f, part);
        else
            squares(c->x, c->piece, in + i, n, part);
        for (int t = 0; t < 2; t++) {
            to[t] += part[t];
            if (to != sum) sum[t] += part[t];
        }
    }
}

finding ll_verify_compare(const item *x, const ll_slot *s, const void *whole, const void *piece,
                          bool all, double (*sums)[2])
{
    const compared c = {.x = x,
                        .l = place_of(x, s),
                        .whole = whole,
                        .piece = piece,
                        .left_out = x->kind != GRADIENT && !all ? x->left_out : NULL,
                        .sums = sums};
    const place *l = &c.l;
    finding f = {.worst = -1};
    int64_t n = ll_numel(&s->type.shape), row = l->n ? l->len[l->n - 1] : 1;
    memset(sums, 0, sizeof *sums * (size_t)x->n_block);
    for (int64_t r = 0; r * row < n; r++) {
        int64_t stride = l->n ? l->of[l->n - 1] : 1, left = r, first = l->n ? l->from[l->n - 1] : 0;
        int64_t i[LL_MAX_DIMS];
        double sum[2] = {0};
        for (int d = l->n - 2; d >= 0; left /= l->len[d], d--) {
            i[d] = l->from[d] + left % l->len[d];
            first += i[d] * stride;
            stride *= l->of[d];
        }
        compare_row(&c, first, r * row, &f, sum);
        for (int t = 0; t < 2; t++) {
            sums[0][t] += sum[t];
            for (int d = 0; d < l->n - 1; d++)
                if (x->cuts[d]) sums[l->base[d] + i[d] * x->cuts[d] / l->of[d]][t] += sum[t];
        }
    }
    f.off = sums[0][0];
    f.along = sums[0][1];
    return f;
}

/* Notes elements of a gradient that are rounding alone. */
static void leave_out(const verifier *v, item *x, const void *serial, const void *parallel)
{
    int64_t n = ll_numel(&x->type.shape);
    double all = ll_session_result(v->cut, "grad_norm");
    double small = SMALL * fmax(x->size, SHARE * all) / sqrt((double)n + 1);
    for (int64_t i = 0; i < n; i++) {
        double a = at(serial, x->type.dtype, i), b = at(parallel, x->type.dtype, i);
        double larger = fmax(fabs(a), fabs(b));
        bool half = v->narrow && larger < ROUGH / SMALL * small && fabs(a - b) > HALF * larger;
        if (half || (larger < small && fabs(a - b) > DIGITS * larger)) x->left_out[i] = 1;
    }
}

/* Is element i of the whole in the block? */
static bool is_in(const item *x, int64_t i, int64_t block)
{
    int64_t base = 1, stride = ll_numel(&x->type.shape);
    bool in = !block;
    for (int d = 0; d < x->type.shape.n && !in; base += x->cuts[d++]) {
        int64_t of = x->type.shape.d[d];
        stride /= of;
        in = x->cuts[d] && base + i / stride % of * x->cuts[d] / of == block;
    }
    return in;
}

ll_err ll_verify_worst_in(verifier *v, const item *x, int64_t block, int rank, finding *out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    item only = *x; /* all but the block is left out */
    int64_t n = ll_numel(&x->type.shape);
    double(*sums)[2] = (double(*)[2])ll_arena_alloc(a, sizeof *sums * (size_t)x->n_block);
    const void *serial;
    const ll_slot *s;
    only.kind = STATE;
    only.left_out = (uint8_t *)ll_arena_alloc(a, (size_t)n + 1);
    for (int64_t i = 0; i < n; i++) only.left_out[i] = !is_in(x, i, block);
    TRY(ll_verify_fetch(v, x, &serial));
    if (v->rank == rank) {
        const void *mine = ll_verify_data(v->cut, x, x->parallel, &s);
        *out = ll_verify_compare(&only, s, serial, mine, false, sums);
    }
    if (v->n_rank == 1) return LL_OK;
    return ll_comm_broadcast(v->c, out, N_FINDING, LL_F64, rank, NULL);
}

/* ---- all of them ---- */

double ll_verify_scale(const verifier *v, const item *x)
{
    return fmax(fmax(x->size, x->kind == GRADIENT ? FLOOR[v->wide] * v->all : 0), 1e-30);
}

static void find_norm_of_all(verifier *v)
{
    v->all = 0;
    for (int i = 0; i < v->n_item; i++)
        if (v->items[i].kind == GRADIENT && v->items[i].left_out)
            v->all = hypot(v->all, v->items[i].size);
}

/* On rank 0: of every tensor and block what differences are over. */
static void size_of(verifier *v, item *x)
{
    const ll_slot *s;
    const void *serial = ll_verify_data(v->alone, x, x->serial, &s);
    block *b = &v->blocks[x->first];
    double(*sums)[2] = &v->part[x->first];
    ll_verify_compare(x, s, NULL, serial, true, sums);
    for (int64_t k = 0; k < x->n_block; k++) b[k].size = sqrt(sums[k][0]);
    x->size = b[0].size;
    if (!x->start) return;
    for (int64_t k = 0; k < x->n_block; k++) b[k].least = UNITS[v->wide] * b[k].size;
    ll_verify_compare(x, s, x->start, serial, true, sums);
    for (int64_t k = 0; k < x->n_block; k++) b[k].size = sqrt(sums[k][0]);
    x->size = fmax(b[0].size, STILL[v->wide] * x->size);
}

static ll_err find_sizes(verifier *v)
{
    block *whole = v->blocks + v->n_block; /* of each tensor, what its own difference is over */
    for (int i = 0; i < v->n_item && v->alone; i++) {
        size_of(v, &v->items[i]);
        whole[i].size = v->items[i].size;
    }
    if (v->n_rank > 1)
        TRY(ll_comm_broadcast(v->c, v->blocks, (v->n_block + v->n_item) * N_BLOCK, LL_F64, 0,
                              &(ll_coll_opts){.site = "blocks"}));
    for (int i = 0; i < v->n_item; i++) v->items[i].size = whole[i].size;
    find_norm_of_all(v);
    LL_EACH (const item, x, v->items, v->n_item) {
        double least = LEAST[v->wide] * ll_verify_scale(v, x);
        for (int64_t k = x->first; k < x->first + x->n_block; k++)
            v->blocks[k].least = fmax(ll_verify_kept(x) ? v->blocks[k].least : 0, least);
    }
    return LL_OK;
}

void ll_verify_compare_item(verifier *v, int i, const void *serial, bool init)
{
    item *x = &v->items[i];
    if (x->parallel < 0) return; /* another stage's */
    const ll_slot *s;
    const void *parallel = ll_verify_data(v->cut, x, x->parallel, &s);
    if (x->kind == GRADIENT && x->left_out && !v->o->session.exact && !v->again)
        leave_out(v, x, serial, parallel);
    v->found[i * v->n_rank + v->rank] =
        ll_verify_compare(x, s, serial, parallel, init || v->o->session.exact, &v->part[x->first]);
}

void ll_verify_forget(verifier *v)
{
    memset(v->found, 0, sizeof *v->found * (size_t)(v->n_item * v->n_rank));
    memset(v->part, 0, sizeof *v->part * (size_t)v->n_block);
}

ll_err ll_verify_compare_all(verifier *v, bool init)
{
    if (!init && !v->again) TRY(find_sizes(v));
    ll_verify_forget(v);
    for (int i = 0; i < v->n_item; i++) {
        const void *serial;
        if (init && !ll_verify_kept(&v->items[i])) continue;
        TRY(ll_verify_fetch(v, &v->items[i], &serial));
        ll_verify_compare_item(v, i, serial, init);
    }
    if (v->n_rank == 1) return LL_OK;
    return ll_comm_allreduce(v->c, v->found, (int64_t)v->n_item * v->n_rank * N_FINDING, LL_F64,
                             LL_REDUCE_SUM, &(ll_coll_opts){.site = "findings"});
}

/* How far the copy of x that is furthest off is, and along x; each has a piece on several ranks. */
static void worst_copy(const verifier *v, int i, double out[2])
{
    out[0] = out[1] = 0;
    ll_axes copies = (ll_axes)~ll_layout_axes(&v->items[i].layout);
    for (int r = 0; r < v->n_rank; r++) {
        double off = 0, along = 0;
        for (int q = 0; q < v->n_rank; q++)
            if (ll_mesh_member(&v->m, copies, q) == ll_mesh_member(&v->m, copies, r)) {
                off += v->found[i * v->n_rank + q].off;
                along += v->found[i * v->n_rank + q].along;
            }
        out[0] = fmax(out[0], sqrt(off));
        out[1] = fmax(out[1], fabs(along));
    }
}

bool ll_verify_measure_item(const verifier *v, int i, double rel[2])
{
    double scale = ll_verify_scale(v, &v->items[i]);
    worst_copy(v, i, rel);
    rel[0] /= scale;
    rel[1] = ll_verify_kept(&v->items[i]) ? 0 : rel[1] / (scale * scale);
    for (int r = 0; r < v->n_rank && v->o->session.exact; r++)
        if (v->found[i * v->n_rank + r].bits > 0) rel[0] = fmax(rel[0], DBL_MIN);
    return !(rel[0] <= v->o->tolerance);
}

bool ll_verify_measure(const verifier *v, double (*rel)[2])
{
    bool any = false;
    for (int i = 0; i < v->n_item; i++) any |= ll_verify_measure_item(v, i, rel[i]);
    return any;
}
