/* parts.c: one rank's part of a node, and its pieces.
 *
 * A cut loop makes a part of a node: the op's split says which range of each operand it reads, and
 * with which attributes. Three kinds of parts are made in pieces, so that there is work to do while
 * ranks wait for each other, or the same for all:
 *
 * 1. A window reads rows of the neighbours at its borders alone. The rows of the result that need
 *    none of them (the interior) are made first, of this rank's own rows; the border rows when
 *    strips of the neighbours' rows have come; pieces are joined, or added where the loop is
 *    summed.
 *
 *       9 rows on 3 ranks, 3 taps, rank 1:  border 3 | interior 4 | border 5
 *                                  it reads      2 3 4    3 4 5        4 5 6
 *
 * 2. A product wants an operand gathered along a loop that it does not cut otherwise. Its parts
 *    travel around the ring of ranks, and each is multiplied when it is there (SUMMA's panels);
 *    products add up where the loop is summed, and are joined where it is free. The same bytes are
 *    sent, and two parts are held instead of all (panels.c).
 * 3. Parts of one loop differ in work: ranks swap halves (balance.c).
 *
 * Which of both is worth while is weighed in multiplications: what there is to hide, against the
 * copies that pieces cost. All ranks make the same nodes in the same order, empty ones too: who
 * decides by its own sizes would leave out a collective that others wait in. */
#include "pass/partition_int.h"

#include "base/num.h"

#include <stdio.h>

enum { TILE_ROWS = 4 }; /* that kernels make together */

ll_err ll_overlap_parse(const char *text, ll_overlap *out)
{
    static const char *const names[] = {"auto", "none", "all"};
    for (int i = LL_OVERLAP_AUTO; i <= LL_OVERLAP_ALL; i++) {
        *out = (ll_overlap)i;
        if (!strcmp(text ? text : names[0], names[i])) return LL_OK;
    }
    FAIL(LL_E_ARG, "overlap is '%s', expected auto, none or all", text);
}

ll_err ll_cut_emit(ll_cutter *c, const ll_op *op, const void *attr, ll_val in, ll_val *out)
{
    return ll_emit_all(c->to, op, attr, &in, 1, out);
}

ll_range ll_cut_range(const ll_cutter *c, ll_axes axes, int64_t n)
{
    ll_range r;
    ll_layout_range(c->m, axes, n, c->rank, &r.from, &r.to);
    return r;
}

/* ---- sizes, of a rank on average ---- */

ll_axes ll_job_axes(const ll_cutter *c, const ll_job *j, int loop)
{
    ll_axes axes = 0;
    for (int a = 0; loop >= 0 && a < c->m->n; a++)
        if (j->cuts[a] == loop) axes |= (ll_axes)(1u << a);
    return axes;
}

double ll_job_bytes(const ll_cutter *c, const ll_job *j, const ll_type *t,
                    const int8_t map[LL_MAX_DIMS])
{
    double n = (double)ll_type_bytes(t);
    for (int d = 0; d < t->shape.n; d++) n /= ll_mesh_group(c->m, ll_job_axes(c, j, map[d]));
    return n;
}

double ll_job_results(const ll_cutter *c, const ll_job *j)
{
    double sum = 0;
    for (int o = 0; o < j->n->n_out; o++)
        sum += ll_job_bytes(c, j, &ll_value_of(c->g, j->n->out[o])->type, j->l->out[o]);
    return sum;
}

double ll_job_flops(const ll_cutter *c, const ll_job *j)
{
    double n = ll_node_flops(c->g, j->n);
    for (int a = 0; a < c->m->n; a++)
        if (j->cuts[a] >= 0) n /= c->m->size[a];
    return n;
}

/* Is it worth a thought: do ranks of these axes wait for each other's messages? Where all of them
 * share a node and its cores, communication is work of the same cores, and nothing hides. */
bool ll_may_pay(const ll_cutter *c, ll_axes axes)
{
    return c->p->overlap == LL_OVERLAP_ALL ||
           (c->p->overlap == LL_OVERLAP_AUTO && (axes & ~c->p->near));
}

/* hidden: of what ranks wait for, in flops; lost: what pieces cost more. */
bool ll_pays(ll_cutter *c, const ll_job *j, const char *what, double hidden, double lost)
{
    bool yes = hidden > lost || (hidden > 0 && c->p->overlap == LL_OVERLAP_ALL);
    if (c->told)
        ll_buf_printf(c->told, "  %-36s %s %s: hides %sFLOP, costs %sFLOP\n", j->n->name,
                      yes ? "in" : "not in", what, LL_AMOUNT(hidden), LL_AMOUNT(lost));
    return yes;
}

/* ---- parts and pieces ---- */

ll_err ll_job_part(ll_cutter *c, const ll_job *j, int loop, ll_range r, const void *attr,
                   ll_part *x)
{
    *x = (ll_part){.attr = ll_arena_copy(c->arena, attr, j->n->op->attr_size)};
    for (int i = 0; i < j->n->n_in; i++) x->in[i] = r;
    return j->n->op->split ? j->n->op->split(attr, j->l, loop, r, j->in, x) : LL_OK;
}

static bool within(ll_range r, ll_range own)
{
    return r.from >= r.to || (r.from >= own.from && r.to <= own.to);
}

ll_err ll_cut_slice(ll_cutter *c, ll_val x, int dim, ll_range r, ll_val *out)
{
    ll_range_attr a = {dim, r.from, r.to};
    return ll_cut_emit(c, &ll_op_slice, &a, x, out);
}

/* Joins the results of pieces, or adds them up. */
static ll_err join(ll_cutter *c, const ll_job *j, int loop, ll_val (*piece)[LL_MAX_OUT], int n,
                   ll_val *out)
{
    for (int o = 0; o < j->n->n_out; o++) {
        int d = ll_dim_of(j->l->out[o], loop);
        ll_val all[LL_MAX_IN];
        for (int k = 0; k < n; k++) all[k] = piece[k][o];
        out[o] = all[0];
        if (d >= 0) out[o] = ll_concat(c->to, all, n, d);
        for (int k = 1; k < n && d < 0; k++)
            out[o] = j->l->combine[loop] == LL_MAX ? ll_max(c->to, out[o], all[k])
                                                   : ll_add(c->to, out[o], all[k]);
    }
    return ll_graph_check(c->to);
}

/* ---- ranges that members of a group read ---- */

static ll_taken *taken_as(const ll_cutter *c, ll_val x, const ll_halo_attr *what)
{
    ll_taken *t = c->taken;
    while (t && (t->from.id != x.id || memcmp(&t->what, what, sizeof *what))) t = t->next;
    return t;
}

/* Of x, which lies cut along a dimension, the ranges that each member is to have: a slice, or an
 * exchange where some member owns too little. */
ll_err ll_cut_take(ll_cutter *c, ll_val x, const ll_halo_attr *what, ll_val *out)
{
    ll_taken *t = taken_as(c, x, what);
    if (t) {
        *out = t->value;
        return LL_OK;
    }
    int size = ll_mesh_group(c->m, (ll_axes)what->axes);
    bool enough = true, same = true;
    ll_range mine = {0, 0};
    for (int k = 0; k < size; k++) {
        ll_range own = ll_share_of(what->extent, size, k);
        ll_range r = {what->need[2 * k], what->need[2 * k + 1]};
        enough &= within(r, own);
        same &= r.from == own.from && r.to == own.to;
        if (k == what->me && r.from < r.to) mine = (ll_range){r.from - own.from, r.to - own.from};
    }
    ll_halo_attr h = *what;
    h.serial = c->serial + 1;
    *out = x;
    if (!enough) {
        c->serial++;
        TRY(ll_cut_emit(c, ll_collective_op(LL_HALO), &h, x, out));
    } else if (!same) {
        TRY(ll_cut_slice(c, x, (int)what->dim, mine, out));
    }
    t = LL_NEW(c->arena, ll_taken);
    *t = (ll_taken){*what, x, *out, c->taken};
    c->taken = t;
    return LL_OK;
}

/* ---- windows ---- */

enum { BEFORE, INNER, AFTER, ALL, PIECES }; /* of a member's part of a loop */

typedef struct window {
    int loop, size, me;
    ll_axes axes;
    const void *attr;
    ll_range (*r)[PIECES]; /* [size] */
} window;

/* Does a row of the loop read, of every operand, only what member k owns? */
static ll_err is_inner(ll_cutter *c, const ll_job *j, const window *w, int k, int64_t row,
                       bool *yes)
{
    ll_part p;
    TRY(ll_job_part(c, j, w->loop, (ll_range){row, row + 1}, w->attr, &p));
    *yes = true;
    for (int i = 0; i < j->n->n_in; i++) {
        int d = ll_dim_of(j->l->in[i], w->loop);
        if (d >= 0 && !within(p.in[i], ll_share_of(j->in[i].shape.d[d], w->size, k))) *yes = false;
    }
    return LL_OK;
}

/* Border rows, rounded up: few rows are not made faster than a tile of them. */
static int64_t in_tiles(const ll_cutter *c, int64_t n)
{
    if (c->p->overlap == LL_OVERLAP_ALL) return n;
    return ll_round_up(n, TILE_ROWS);
}

static ll_err open_window(ll_cutter *c, const ll_job *j, int loop, const void *attr, window *w)
{
    *w = (window){.loop = loop, .axes = ll_job_axes(c, j, loop), .attr = attr};
    w->size = ll_mesh_group(c->m, w->axes);
    w->me = ll_mesh_member(c->m, w->axes, c->rank);
    CHECK(w->size <= LL_HALO_MAX, LL_E_SHARD, "%s: a window cut by %d ranks, expected at most %d",
          j->n->name, w->size, LL_HALO_MAX);
    w->r = (ll_range(*)[PIECES])ll_arena_alloc(c->arena, sizeof *w->r * (size_t)w->size);
    for (int k = 0; k < w->size; k++) {
        ll_range all = ll_share_of(j->l->extent[loop], w->size, k);
        int64_t a = all.from, b = all.to;
        bool yes = false;
        for (; a < b; a++) {
            TRY(is_inner(c, j, w, k, a, &yes));
            if (yes) break;
        }
        for (; b > a; b--) {
            TRY(is_inner(c, j, w, k, b - 1, &yes));
            if (yes) break;
        }
        int64_t first = in_tiles(c, a - all.from), last = in_tiles(c, all.to - b);
        a = first < all.to - all.from ? all.from + first : all.to;
        b = last < all.to - a ? all.to - last : a;
        w->r[k][BEFORE] = (ll_range){all.from, a};
        w->r[k][INNER] = (ll_range){a, b};
        w->r[k][AFTER] = (ll_range){b, all.to};
        w->r[k][ALL] = all;
    }
    return LL_OK;
}

/* What a piece of every member's part reads of operand i. */
static ll_err reads(ll_cutter *c, const ll_job *j, const window *w, int i, int piece,
                    ll_halo_attr *what)
{
    int d = ll_dim_of(j->l->in[i], w->loop);
    *what = (ll_halo_attr){.axes = w->axes, .dim = d, .extent = j->in[i].shape.d[d], .me = w->me};
    for (int k = 0; k < w->size; k++) {
        ll_part p;
        TRY(ll_job_part(c, j, w->loop, w->r[k][piece], w->attr, &p));
        what->need[2 * k] = p.in[i].from;
        what->need[2 * k + 1] = p.in[i].to;
    }
    return LL_OK;
}

/* Rows that members read and do not own, all together. */
static double missing(const window *w, const ll_halo_attr *what)
{
    double n = 0;
    for (int k = 0; k < w->size; k++) {
        ll_range own = ll_share_of(what->extent, w->size, k);
        int64_t from = what->need[2 * k], to = what->need[2 * k + 1];
        int64_t lo = from > own.from ? from : own.from, hi = to < own.to ? to : own.to;
        n += (double)(to - from - (hi > lo ? hi - lo : 0));
    }
    return n;
}

/* Is it all there from an earlier node: whole parts (-> *whole), or their borders (-> *strips)? */
static ll_err look_back(ll_cutter *c, const ll_job *j, const window *w, const ll_val *x,
                        bool *whole, bool *strips)
{
    *whole = *strips = true;
    for (int i = 0; i < j->n->n_in; i++) {
        ll_halo_attr what;
        if (ll_dim_of(j->l->in[i], w->loop) < 0) continue;
        TRY(reads(c, j, w, i, ALL, &what));
        if (missing(w, &what) == 0) continue;
        *whole &= taken_as(c, x[i], &what) != NULL;
        for (int t = BEFORE; t <= AFTER; t += AFTER - BEFORE) {
            TRY(reads(c, j, w, i, t, &what));
            *strips &= missing(w, &what) == 0 || taken_as(c, x[i], &what);
        }
    }
    return LL_OK;
}

/* Shall the interior be made apart from the borders? */
static ll_err goes_apart(ll_cutter *c, const ll_job *j, const window *w, const ll_val *x, bool *yes)
{
    double moved = 0, copied = 0, again = 0, inner = 0;
    bool whole, strips;
    *yes = false;
    if (!j->apart || !ll_may_pay(c, w->axes)) return LL_OK;
    for (int i = 0; i < j->n->n_in; i++) {
        ll_halo_attr what;
        double bytes = ll_job_bytes(c, j, &j->in[i], j->l->in[i]);
        /* others (filters) are read and packed for each piece, and gradients of them added up */
        if (ll_dim_of(j->l->in[i], w->loop) < 0) again += 6 * bytes;
        if (ll_dim_of(j->l->in[i], w->loop) < 0) continue;
        TRY(reads(c, j, w, i, ALL, &what));
        double rows = missing(w, &what);
        moved += what.extent ? bytes * rows / (double)what.extent : 0;
        copied += rows > 0 ? -2 * bytes : bytes; /* an exchange packs and unpacks its operand */
    }
    if (moved == 0) return LL_OK;
    TRY(look_back(c, j, w, x, &whole, &strips));
    *yes = strips && !whole;
    if (whole || strips) return LL_OK;
    for (int k = 0; k < w->size; k++) inner += (double)(w->r[k][INNER].to - w->r[k][INNER].from);
    inner /= (double)j->l->extent[w->loop];
    if (j->l->combine[w->loop] == LL_FREE) copied += ll_job_results(c, j);
    double lost = 2 * LL_PIECE_FLOPS + LL_COPY_FLOPS * (again + (copied > 0 ? copied : 0));
    char text[96];
    snprintf(text, sizeof text, "pieces, %.0f %% of %c inside", 100 * inner, j->l->letter[w->loop]);
    *yes = ll_pays(c, j, text,
                   fmin(LL_MESSAGE_FLOPS + LL_FLOPS_PER_BYTE * moved, inner * ll_job_flops(c, j)),
                   lost);
    return LL_OK;
}

/* The operands of a piece, and its attributes. */
static ll_err take_piece(ll_cutter *c, const ll_job *j, const window *w, int piece, const ll_val *x,
                         ll_val *y, void **attr)
{
    ll_part p;
    memcpy(y, x, sizeof *x * (size_t)j->n->n_in);
    for (int i = 0; i < j->n->n_in; i++) {
        ll_halo_attr what;
        if (ll_dim_of(j->l->in[i], w->loop) < 0) continue;
        TRY(reads(c, j, w, i, piece, &what));
        TRY(ll_cut_take(c, x[i], &what, &y[i]));
    }
    TRY(ll_job_part(c, j, w->loop, w->r[w->me][piece], w->attr, &p));
    *attr = p.attr;
    return LL_OK;
}

/* Strips are asked for first, and the interior made while they come. */
static ll_err make_apart(ll_cutter *c, const ll_job *j, const window *w, const ll_val *x,
                         ll_val *out)
{
    static const int order[] = {BEFORE, AFTER, INNER}, made[] = {INNER, BEFORE, AFTER};
    ll_val y[ALL][LL_MAX_IN], piece[ALL][LL_MAX_OUT];
    void *attr[ALL];
    ll_job border = *j;
    border.apart = false;
    for (int t = 0; t < ALL; t++)
        TRY(take_piece(c, j, w, order[t], x, y[order[t]], &attr[order[t]]));
    for (int t = 0; t < ALL; t++) {
        int k = made[t];
        TRY(ll_make_node(c, k == INNER ? j : &border, w->loop + 1, attr[k], y[k], piece[k]));
    }
    return join(c, j, w->loop, piece, ALL, out);
}

ll_err ll_make_node(ll_cutter *c, const ll_job *j, int loop, void *attr, const ll_val *x,
                    ll_val *out)
{
    ll_val y[LL_MAX_IN];
    memcpy(y, x, sizeof *x * (size_t)j->n->n_in);
    for (; loop < j->l->n; loop++) {
        ll_axes axes = ll_job_axes(c, j, loop);
        if (!axes || !j->n->op->split) continue;
        if (j->l->window[loop]) {
            window w;
            bool apart;
            TRY(open_window(c, j, loop, attr, &w));
            TRY(goes_apart(c, j, &w, y, &apart));
            if (apart) return make_apart(c, j, &w, y, out);
            TRY(take_piece(c, j, &w, ALL, y, y, &attr));
        } else {
            ll_part p;
            TRY(ll_job_part(c, j, loop, ll_cut_range(c, axes, j->l->extent[loop]), attr, &p));
            attr = p.attr;
        }
    }
    return ll_emit_all(c->to, j->n->op, attr, y, j->n->n_in, out);
}
