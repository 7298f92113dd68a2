/* exact.c: sums whose bits do not depend on their order, and so not on the mesh.
 *
 * Floating-point sums depend on their order, and every way of cutting a sum over ranks or threads
 * is another one. Here sums are made exact instead: of each node that sums (its loop dims say so),
 * the operands are rounded to fixed point, whole numbers small enough that all products and sums of
 * the node are below 2^53, which f64 holds exactly. An exact sum is the same in any order: cut
 * anyhow, by any collective, on any number of threads. Then the result is rounded, once.
 *
 *     y = matmul(x, w)   becomes   mx = absmax(x), mw = absmax(w)       per row, per column
 *                                  z  = matmul(grid(x, mx), grid(w, mw))    in f64, exact
 *                                  y  = ungrid(z, mx, mw)
 *
 * 1. With K terms in a sum, an operand has q bits: 2 q + log2 K <= 53 for a product of two, q +
 *    log2 K <= 53 for a plain sum. They are counted from the largest magnitude of all elements that
 *    meet in one result: there is a scale for each row, filter or channel, as far as the result
 *    walks the operand's loops one for one.
 * 2. What sums only in its kernel (softmax, norms, attention) is expanded first, always: a serial
 *    run does what a cut one does. Windows that overlap sum in a fixed order.
 * 3. The graph is simplified before it is cut. No later pass may change arithmetic by what a cut
 *    has left: simplifying again finds nothing, and fused chains round as single ops do.
 *    A mean is rounded once too: its sum stays in f64 until it is scaled.
 * 4. Partial sums are never read: ungrid is not linear, and ll_place lets no partial value through
 *    a linear op. Sums over ranks are made in f64, in each micro-batch.
 * 5. An operand keeps its bits below the largest of its group: what is 2^q times smaller is lost.
 *    For a group as a whole that is about what f32 keeps, unless its largest elements meet zeros.
 *    So the largest term of every result is looked for (guard_terms; of windows: guard). Where
 *    results have too few bits left, a scale is made infinite, and the session makes the step
 *    again, wide: each operand in limbs,
 *    of q bits each, of what the limbs before it leave; products of limbs p and q with p + q below
 *    their number, each exact, are added up in f64, in one order. So all that f32 holds over WIDE
 *    bits counts; it takes ten times as long.
 *
 * Placing comes first, on the graph without grids, so that layouts are those of a run that is not
 * exact; then the nodes are replaced and their placement with them. */
#include "op/op_int.h"
#include "pass/partition.h"

#include <math.h>
#include <stdio.h>

/* f64 holds whole numbers up to 2^WIDTH; fewer than LEAST bits an operand are no longer f32. */
enum { WIDTH = 53, MOST = 50, LEAST = 11, WIDE = 96, MOST_LIMBS = 9 };

/* Where results have lost too much (guard_terms): the mean of how many times smaller the largest
 * term of a result is than the largest factors could make is above 2^MEAN. Terms within 2^-ENOUGH
 * need not be told apart, nor those that are lost altogether. In training it is 2^3.5 at most (the
 * gradient that comes out of a GPT's last product), 2^2 usually. */
enum { ENOUGH = 4, MEAN = 5, MOST_LOST = 26 };

/* What is too little to be left of convolutions (guard): of the largest element of a group that
 * meets anything GOOD bits, and 2^LOST less than if it met the largest (2^LOST_FEW of few terms, of
 * which f32 loses little); of what came of a group FAINT bits above rounding; of an image one
 * element in PART with less than GOOD bits. And of any gradient (guard_whole): GOOD bits above
 * rounding, and not 2^SLACK less than its factors could have made. */
enum { GOOD = 8, LOST = 6, FEW_TERMS = 24, LOST_FEW = 5, FAINT = 4, SLACK = 7, PART = 8 };

/* Of so many bits; sums that keep FEW_TERMS are of 32 terms at most. */
static int may_lose(int bits)
{
    int most = bits >= FEW_TERMS ? LOST_FEW : LOST;
    return bits - GOOD < most ? bits - GOOD : most;
}

/* ---- before placing ---- */

static ll_err expand_all(const ll_graph *g, ll_graph **out, bool *any)
{
    ll_rewrite rw;
    ll_err rc = LL_OK;
    ll_rewrite_begin(&rw, g);
    *any = false;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        *any |= n->op->expand != NULL;
        rc = n->op->expand ? ll_rewrite_expand(&rw, n) : ll_rewrite_copy(&rw, n);
    }
    return ll_rewrite_end(&rw, rc, out);
}

ll_err ll_exact_prepare(const ll_graph *g, ll_graph **out)
{
    ll_graph *now, *next;
    TRY(ll_simplify(g, &now));
    for (bool any = true; any;) {
        ll_err rc = expand_all(now, &next, &any);
        ll_graph_free(now);
        TRY(rc);
        rc = ll_simplify(next, &now);
        ll_graph_free(next);
        TRY(rc);
    }
    *out = now;
    return LL_OK;
}

/* ---- which nodes, how many bits ---- */

/* Terms of one sum of the node; 0: it makes no sums. */
static double terms(const ll_graph *g, const ll_node *n, const ll_loops *l)
{
    double k = 1;
    bool any = false;
    if (!n->op->sum || n->op->picks || n->n_out != 1) return 0;
    if (!ll_dtype_is_float(ll_graph_dtype(g, n->out[0]))) return 0;
    for (int i = 0; i < l->n; i++) {
        if (ll_dim_of(l->out[0], i) >= 0) continue;
        any = true;
        if (l->extent[i] > 1) k *= (double)l->extent[i];
    }
    return any ? k : 0;
}

static ll_err bits_for(const ll_graph *g, const ll_node *n, double k, int *bits, int *n_factor)
{
    *n_factor = 0;
    for (int i = 0; i < n->n_in; i++) *n_factor += ll_dtype_is_float(ll_graph_dtype(g, n->in[i]));
    CHECK(*n_factor == 1 || *n_factor == 2, LL_E_GRAPH,
          "%s multiplies %d operands: exact sums are of one or two", n->name, *n_factor);
    *bits = (WIDTH - (int)ceil(log2(k))) / *n_factor;
    if (*bits > MOST) *bits = MOST;
    CHECK(*bits >= LEAST, LL_E_GRAPH,
          "%s sums %.3g terms, of which exact mode would keep %d bits: use a smaller micro-batch",
          n->name, k, *bits);
    return LL_OK;
}

/* ---- nodes and their placement ---- */

typedef struct gridder {
    ll_placement *p; /* the old one, of which g is read */
    ll_rewrite rw;
    ll_placement next; /* arrays of the new graph */
    int *reader;       /* [old n_value] the first node that reads it, or -1 */
    bool *gradient;    /* [old n_value] all that comes of it is one parameter's gradient */
    bool *mean;        /* [old n_value] a sum that is scaled, and read by nobody else */
    bool wide;         /* operands in as many limbs as f32 may need */
    ll_val lost;       /* 1: a scale was made infinite in this micro-batch, on any rank */
} gridder;

/* A part of an operand's bits: as fixed point, and its scales. */
typedef struct ll_limb {
    ll_val x;
    ll_grid_scale m, own;
} ll_limb;

static ll_layout splits_of(const ll_layout *l)
{
    ll_layout s = *l;
    s.sum = s.max = 0;
    return s;
}

static void set_value(gridder *c, ll_val v, const ll_layout *made, const ll_layout *seen)
{
    c->next.made[v.id] = *made;
    c->next.seen[v.id] = *seen;
}

/* The last node emitted is cut as its first operand in layout l. */
static ll_err cut_like(gridder *c, const ll_layout *l, bool micro)
{
    int k = c->rw.to->n_node - 1;
    ll_loops loops;
    TRY(ll_node_loops(c->rw.to, &c->rw.to->nodes[k], &loops));
    for (int a = 0; a < LL_MAX_AXES; a++) {
        c->next.loop[k][a] = -1;
        for (int d = 0; d < LL_MAX_DIMS; d++)
            if (l->split[d] >> a & 1) c->next.loop[k][a] = loops.in[0][d];
    }
    c->next.micro[k] = micro;
    return LL_OK;
}

/* The last node emitted runs where old node i does. */
static void place_as(gridder *c, int i)
{
    int k = c->rw.to->n_node - 1;
    memcpy(c->next.loop[k], c->p->loop[i], sizeof c->next.loop[k]);
    c->next.through[k] = c->p->through[i];
    c->next.micro[k] = c->p->micro[i];
}

static ll_err copy_node(gridder *c, int i)
{
    const ll_node *n = &c->p->g->nodes[i];
    TRY(ll_rewrite_copy(&c->rw, n));
    place_as(c, i);
    for (int o = 0; o < n->n_out; o++)
        set_value(c, c->rw.map[n->out[o].id], &c->p->made[n->out[o].id], &c->p->seen[n->out[o].id]);
    if (n->n_in != 1 || !c->mean[n->in[0].id]) return LL_OK;
    ll_val y = n->out[0], *now = &c->rw.map[y.id]; /* rounded once, here */
    set_value(c, *now, &c->p->made[y.id], &c->p->made[y.id]);
    *now = ll_cast(c->rw.to, *now, ll_graph_dtype(c->p->g, y));
    TRY(ll_graph_check(c->rw.to));
    place_as(c, i);
    set_value(c, *now, &c->p->made[y.id], &c->p->seen[y.id]);
    return LL_OK;
}

/* A limb of operand x of node i, which lies as `from`: its scales, and itself as fixed point in
 * layout want. m: the scales, by dimensions of the node's result; own: by those of x. */
static ll_err grid_limb(gridder *c, int i, int operand, const ll_loops *l, ll_val x,
                        const ll_layout *from, const ll_layout *want, int bits, ll_limb *out)
{
    ll_graph *to = c->rw.to;
    ll_layout least = {0};
    char spec[LL_SPEC_MAX] = {0}, *at = spec;
    int n_dim = ll_graph_shape(to, x).n;
    *out = (ll_limb){0};
    for (int d = 0; d < n_dim; d++) *at++ = (char)('a' + d);
    *at++ = '-', *at++ = '>';
    for (int d = 0; d < n_dim; d++) {
        int loop = l->in[operand][d], result = ll_dim_of(l->out[0], loop);
        if (result < 0 || l->window[loop]) continue;
        *at++ = (char)('a' + d);
        least.split[out->own.n] = from->split[d];
        out->own.dim[out->own.n++] = d;
        out->m.dim[out->m.n++] = result;
    }
    out->m.value = out->own.value = ll_absmax(to, x, spec);
    TRY(ll_graph_check(to));
    TRY(cut_like(c, from, c->p->micro[i]));
    ll_layout made = least;
    made.max = (ll_axes)(ll_layout_axes(from) & ~ll_layout_axes(&least));
    set_value(c, out->own.value, &made, &least);
    out->x = ll_to_grid(to, x, &out->own, bits, LL_F64);
    TRY(ll_graph_check(to));
    set_value(c, out->x, want, want);
    return cut_like(c, want, c->p->micro[i]);
}

/* An operand of node i as n limbs, each what those before it leave. */
static ll_err grid_operand(gridder *c, int i, int operand, const ll_loops *l, int bits, int n,
                           ll_limb *out)
{
    ll_graph *to = c->rw.to;
    ll_val old = c->p->g->nodes[i].in[operand], x = c->rw.map[old.id];
    ll_layout want = ll_place_wanted(c->p, i, operand, l);
    /* What is stored cut for memory's sake need not be gathered for its largest element. */
    bool stored = ll_value_of(c->p->g, old)->node < 0 &&
                  !ll_layout_equal(&c->p->made[old.id], &c->p->seen[old.id]);
    ll_layout from = stored ? c->p->made[old.id] : want;
    for (int k = 0; k < n; k++) {
        TRY(grid_limb(c, i, operand, l, x, &from, &want, bits, &out[k]));
        if (k + 1 == n) break;
        ll_val taken = ll_from_grid(to, out[k].x, &out[k].own, 1, bits, ll_graph_dtype(to, x));
        TRY(ll_graph_check(to));
        TRY(cut_like(c, &want, c->p->micro[i]));
        set_value(c, taken, &want, &want);
        x = ll_sub(to, x, taken); /* exact: what is left of f32's bits */
        TRY(ll_graph_check(to));
        TRY(cut_like(c, &want, c->p->micro[i]));
        set_value(c, x, &want, &want);
        from = want;
    }
    return LL_OK;
}

/* ---- what nothing is left of ---- */

/* Nodes emitted since `first` run where old node i does; what is no scalar lies as l says. */
static ll_err place_since(gridder *c, int first, int i, const ll_layout *l)
{
    for (int k = first; k < c->rw.to->n_node; k++) {
        const ll_node *n = &c->rw.to->nodes[k];
        ll_loops loops;
        c->next.micro[k] = c->p->micro[i];
        if (!ll_graph_shape(c->rw.to, n->out[0]).n) continue;
        TRY(ll_node_loops(c->rw.to, n, &loops));
        for (int a = 0; a < LL_MAX_AXES; a++)
            for (int d = 0; d < LL_MAX_DIMS; d++)
                if (l->split[d] >> a & 1) c->next.loop[k][a] = loops.out[0][d];
        set_value(c, n->out[0], l, l);
    }
    return LL_OK;
}

/* An operand of a product: in the new graph, and how the product wants it. */
typedef struct ll_factor {
    int operand;
    ll_val x;
    ll_layout want;
} ll_factor;

/* The largest magnitude of v (or the sum: of counts), in layout l, over all but its dimensions
 * `keep`. */
static ll_err reduce(gridder *c, int i, ll_val v, const ll_layout *l, const int *keep, int n,
                     bool sum, ll_val *out)
{
    char spec[LL_SPEC_MAX] = "abcdefgh", *at = spec + ll_graph_shape(c->rw.to, v).n;
    ll_layout made = {0}, seen;
    at = stpcpy(at, "->");
    for (int d = 0; d < n; d++) {
        *at++ = (char)('a' + keep[d]);
        made.split[d] = l->split[keep[d]];
    }
    *at = '\0';
    seen = made;
    *(sum ? &made.sum : &made.max) = (ll_axes)(ll_layout_axes(l) & ~ll_layout_axes(&seen));
    *out = (sum ? ll_sum : ll_absmax)(c->rw.to, v, spec);
    TRY(ll_graph_check(c->rw.to));
    set_value(c, *out, &made, &seen);
    return cut_like(c, l, c->p->micro[i]);
}

static ll_err largest(gridder *c, int i, ll_val v, const ll_layout *l, const int *keep, int n,
                      ll_val *out)
{
    return reduce(c, i, v, l, keep, n, false, out);
}

/* Of each group of x, the largest element times the largest of y that it meets (met), and what that
 * would be if all met all (most). Magnitudes of y count as powers of two. Rows of an image meet all
 * rows of a filter. */
static ll_err meet(gridder *c, int i, const ll_loops *l, const ll_factor *x, const ll_factor *y,
                   const ll_limb *limb, ll_val *met, ll_val *most)
{
    ll_graph *g = c->rw.to;
    ll_grid_scale peak = {0}, top = {0};
    int in_y[LL_MAX_DIMS], in_peak[LL_MAX_DIMS];
    for (int d = 0; d < ll_graph_shape(g, y->x).n; d++) {
        int loop = l->in[y->operand][d];
        int e = loop < 0 || l->window[loop] ? -1 : ll_dim_of(l->in[x->operand], loop);
        if (e < 0) continue;
        for (int o = 0; o < limb->own.n; o++)
            if (limb->own.dim[o] == e) in_peak[top.n] = peak.n, top.dim[top.n++] = o;
        in_y[peak.n] = d;
        peak.dim[peak.n++] = e;
    }
    TRY(largest(c, i, y->x, &y->want, in_y, peak.n, &peak.value));
    TRY(largest(c, i, peak.value, &c->next.seen[peak.value.id], in_peak, top.n, &top.value));
    int first = g->n_node;
    ll_val product = ll_from_grid(g, x->x, &peak, 1, 1, LL_F32);
    TRY(ll_graph_check(g));
    TRY(place_since(c, first, i, &x->want));
    TRY(largest(c, i, product, &x->want, limb->own.dim, limb->own.n, met));
    first = g->n_node;
    *most = ll_from_grid(g, limb->own.value, &top, 1, 1, LL_F32);
    TRY(ll_graph_check(g));
    return place_since(c, first, i, &c->next.seen[limb->own.value.id]);
}

/* The largest magnitudes of z for each of the groups of scale m. */
static ll_err largest_of_groups(gridder *c, int i, ll_val z, const ll_layout *held,
                                const ll_grid_scale *m, ll_val *out)
{
    ll_graph *g = c->rw.to;
    int sorted[LL_MAX_DIMS], n = 0;
    char spec[LL_SPEC_MAX], *at = spec;
    for (int d = 0; d < ll_graph_shape(g, z).n; d++)
        for (int k = 0; k < m->n; k++)
            if (m->dim[k] == d) sorted[n++] = d;
    TRY(largest(c, i, z, held, sorted, n, out));
    if (!memcmp(sorted, m->dim, (size_t)n * sizeof *sorted)) return LL_OK;
    for (int k = 0; k < n; k++) *at++ = (char)('a' + sorted[k]);
    at = stpcpy(at, "->");
    for (int k = 0; k < n; k++) *at++ = (char)('a' + m->dim[k]);
    *at = '\0';
    int first = g->n_node;
    *out = ll_transpose(g, *out, spec);
    TRY(ll_graph_check(g));
    return place_since(c, first, i, &c->next.seen[m->value.id]);
}

/* Does a result's element see only a window of a group of x? */
static bool sees_part(const gridder *c, const ll_loops *l, const ll_factor *x)
{
    bool part = false;
    for (int d = 0; d < ll_graph_shape(c->rw.to, x->x).n; d++) {
        int loop = l->in[x->operand][d];
        part |= loop >= 0 && l->window[loop] && ll_dim_of(l->out[0], loop) >= 0;
    }
    return part;
}

/* 1 where of more than one in PART of a group's elements, zeros apart, less is left than GOOD bits.
 */
static ll_err mostly_small(gridder *c, int i, const ll_factor *x, const ll_limb *limb, int bits,
                           ll_val *out)
{
    ll_graph *g = c->rw.to;
    const ll_grid_scale *own = &limb->own;
    ll_shape shape = ll_graph_shape(g, x->x);
    char groups[LL_SPEC_MAX] = {0}, spec[LL_SPEC_MAX];
    for (int k = 0; k < own->n; k++) groups[k] = (char)('a' + own->dim[k]);
    snprintf(spec, sizeof spec, "%s->%.*s", groups, shape.n, "abcdefgh");
    int first = g->n_node;
    ll_val least = ll_scale(g, own->value, ldexp(1, GOOD - bits));
    TRY(ll_graph_check(g));
    TRY(place_since(c, first, i, &c->next.seen[own->value.id]));
    first = g->n_node;
    ll_val size = ll_abs(g, x->x), some = ll_less(g, ll_fill(g, LL_F32, shape, 0), size);
    ll_val few = ll_mul(g, some, ll_less(g, size, ll_broadcast(g, least, spec, shape)));
    TRY(ll_graph_check(g));
    TRY(place_since(c, first, i, &x->want));
    TRY(reduce(c, i, some, &x->want, own->dim, own->n, true, &some));
    TRY(reduce(c, i, few, &x->want, own->dim, own->n, true, &few));
    first = g->n_node;
    *out = ll_less(g, some, ll_scale(g, few, PART));
    TRY(ll_graph_check(g));
    return place_since(c, first, i, &c->next.seen[own->value.id]);
}

/* Infinite (or not a number) where lost is 1. */
static ll_val spoil(ll_graph *g, ll_val x, ll_val lost)
{
    ll_shape shape = ll_graph_shape(g, x);
    return ll_div(g, x, ll_sub(g, ll_fill(g, LL_F32, shape, 1), lost));
}

/* Where lost is 1, scale m becomes infinite, and so does the loss in the end: a comparison on the
 * way would make a number again of what is none. first: of the nodes that made `lost`. */
static ll_err poison(gridder *c, int i, int first, ll_val lost, ll_grid_scale *m)
{
    ll_graph *g = c->rw.to;
    ll_layout lies = c->next.seen[m->value.id];
    m->value = spoil(g, m->value, lost);
    TRY(ll_graph_check(g));
    TRY(place_since(c, first, i, &lies));
    TRY(largest(c, i, lost, &lies, NULL, 0, &lost));
    first = g->n_node;
    c->lost = c->lost.id ? ll_max(g, c->lost, lost) : lost;
    TRY(ll_graph_check(g));
    return place_since(c, first, i, &(ll_layout){0});
}

/* Scale m of factor x becomes infinite where too few bits of a group of x are left of all that
 * meets anything in y, or where all that came of the group is hardly more than rounding can
 * have made (noise): a few elements are very much larger than others, and meet zeros, or what is
 * lost in y. A group that meets nothing is 0, and right. */
static ll_err guard(gridder *c, int i, const ll_loops *l, const ll_factor *x, const ll_factor *y,
                    ll_val z, const ll_layout *held, int bits, double noise, const ll_limb *limb,
                    ll_grid_scale *m)
{
    ll_graph *g = c->rw.to;
    ll_shape shape = ll_graph_shape(g, m->value);
    ll_val met, most, top, small = {0};
    TRY(meet(c, i, l, x, y, limb, &met, &most));
    TRY(largest_of_groups(c, i, z, held, m, &top));
    bool part = sees_part(c, l, x);
    if (part) TRY(mostly_small(c, i, x, limb, bits, &small));
    int first = g->n_node;
    ll_val any = ll_less(g, ll_fill(g, LL_F32, shape, 0), met);
    ll_val few = ll_less(g, ll_scale(g, met, ldexp(1, may_lose(bits))), most);
    ll_val none = ll_less(g, top, ll_fill(g, LL_F64, shape, noise));
    if (part) few = ll_max(g, few, small);
    ll_val lost = ll_mul(g, any, ll_max(g, few, ll_cast(g, none, LL_F32)));
    return poison(c, i, first, lost, m);
}

/* The same of a parameter's gradient, judged as a whole: all of scale m[0] becomes infinite where
 * the largest result is less than `least` of the product of the largest factors. */
static ll_err guard_whole(gridder *c, int i, ll_val z, const ll_layout *held, int bits,
                          double least, ll_grid_scale m[2])
{
    ll_graph *g = c->rw.to;
    ll_shape shape = ll_graph_shape(g, m->value);
    char spec[LL_SPEC_MAX];
    ll_val top, most[2];
    snprintf(spec, sizeof spec, "->%.*s", shape.n, "abcdefgh");
    int first = g->n_node;
    ll_val y = ll_from_grid(g, z, m, 2, 2 * bits, LL_F32);
    TRY(ll_graph_check(g));
    TRY(place_since(c, first, i, held));
    TRY(largest(c, i, y, held, NULL, 0, &top));
    for (int s = 0; s < 2; s++)
        TRY(largest(c, i, m[s].value, &c->next.seen[m[s].value.id], NULL, 0, &most[s]));
    first = g->n_node;
    ll_val could = ll_mul(g, ll_cast(g, most[0], LL_F64), ll_cast(g, most[1], LL_F64));
    ll_val none = ll_less(g, ll_cast(g, top, LL_F64), ll_scale(g, could, least));
    ll_val lost = ll_broadcast(g, ll_cast(g, none, LL_F32), spec, shape);
    lost = ll_mul(g, lost, ll_less(g, ll_fill(g, LL_F32, shape, 0), m->value));
    return poison(c, i, first, lost, m);
}

/* Are its results sums of products of two, as the spec of a matmul says? */
static bool is_product(const ll_node *n)
{
    return n->op == &ll_op_matmul;
}

/* All of scale m[0] becomes infinite where results have lost too much in the mean: a result whose
 * largest term is 2^-l of what the largest factors of its row and column would make has lost l
 * bits of its own. */
static ll_err guard_terms(gridder *c, int i, const ll_factor x[2], ll_limb *const limb[2],
                          ll_grid_scale m[2])
{
    ll_graph *g = c->rw.to;
    const ll_node *n = &c->p->g->nodes[i];
    ll_val level[2], sum;
    ll_shape shape = ll_graph_shape(g, m->value);
    char spec[LL_SPEC_MAX];
    snprintf(spec, sizeof spec, "->%.*s", shape.n, "abcdefgh");
    for (int s = 0; s < 2; s++) {
        int first = g->n_node;
        level[s] = ll_to_grid(g, x[s].x, &limb[s]->own, LL_REACH_BITS, LL_U8);
        TRY(ll_graph_check(g));
        TRY(place_since(c, first, i, &x[s].want));
    }
    ll_val reach = ll_reach(g, ((const ll_matmul_attr *)n->attr)->spec, level[0], level[1], ENOUGH);
    TRY(ll_graph_check(g));
    ll_layout made = c->p->made[n->out[0].id], lies = splits_of(&made);
    made.max = made.sum, made.sum = 0;
    place_as(c, i);
    set_value(c, reach, &made, &lies);
    int first = g->n_node;
    shape = ll_graph_shape(g, reach);
    ll_val some = ll_less(g, ll_fill(g, LL_F32, shape, 0), reach);
    ll_val least = ll_fill(g, LL_F32, shape, ldexp(1, -MOST_LOST));
    ll_val times = ll_div(g, some, ll_max(g, reach, least));
    ll_val over = ll_sub(g, times, ll_scale(g, some, ldexp(1, MEAN)));
    over = ll_cast(g, over, LL_F64);
    TRY(ll_graph_check(g));
    TRY(place_since(c, first, i, &lies));
    TRY(reduce(c, i, over, &lies, NULL, 0, true, &sum));
    first = g->n_node;
    shape = ll_graph_shape(g, m->value);
    ll_val lost = ll_cast(g, ll_less(g, ll_fill(g, LL_F64, LL_SCALAR, 0), sum), LL_F32);
    lost = ll_broadcast(g, lost, spec, shape);
    return poison(c, i, first, lost, m);
}

/* How the result is held once its sums are made: as later nodes see it, or else cut where the first
 * of them wants it cut. */
static ll_err whole_layout(const gridder *c, ll_val y, ll_layout *out)
{
    const ll_layout *made = &c->p->made[y.id], *seen = &c->p->seen[y.id];
    int reader = c->reader[y.id];
    *out = splits_of(made->sum && !seen->sum ? seen : made);
    if (!seen->sum) return LL_OK;
    if (reader < 0 || !made->sum) return LL_OK;
    const ll_node *n = &c->p->g->nodes[reader];
    ll_loops l;
    TRY(ll_node_loops(c->p->g, n, &l));
    for (int k = 0; k < n->n_in; k++) {
        if (n->in[k].id != y.id) continue;
        ll_layout want = ll_place_wanted(c->p, reader, k, &l);
        for (int d = 0; d < LL_MAX_DIMS; d++) out->split[d] |= want.split[d] & made->sum;
        break;
    }
    return LL_OK;
}

/* The node on one limb of each operand; ops that have kernels for whole numbers are told. */
static ll_err make_sum(gridder *c, int i, const ll_val *in, int bits, ll_val *z)
{
    const ll_node *n = &c->p->g->nodes[i];
    const ll_layout *made = &c->p->made[n->out[0].id];
    ll_arena *arena = c->rw.to->arena;
    char *attr = (char *)ll_arena_copy(arena, ll_attr_retype(arena, n, LL_F64), n->op->attr_size);
    for (const ll_attr_field *f = n->op->attrs; f && f->name; f++)
        if (f->kind == LL_A_BITS) *(int64_t *)(void *)(attr + f->offset) = bits;
    TRY(ll_emit_all(c->rw.to, n->op, attr, in, n->n_in, z));
    place_as(c, i);
    set_value(c, *z, made, made);
    return LL_OK;
}

static ll_err grid_node(gridder *c, int i, const ll_loops *l, double k)
{
    ll_graph *to = c->rw.to;
    const ll_node *n = &c->p->g->nodes[i];
    ll_val in[LL_MAX_IN], y = n->out[0], sum = {0};
    int bits, n_factor, at[2] = {0}, f = 0;
    TRY(bits_for(c->p->g, n, k, &bits, &n_factor));
    if (n_factor == 2 && (!c->p->bits || bits < c->p->bits)) c->p->bits = bits;
    /* Products of an update (Muon's) are always wide: it comes after the loss was looked at. */
    bool wide = c->wide || (n_factor == 2 && !c->p->micro[i]);
    int limbs = wide ? (WIDE + bits - 1) / bits : 1;
    ll_limb x[2][MOST_LIMBS];
    ll_factor factor[2];
    ll_layout held;
    ll_rewrite_at(&c->rw, n);
    for (int o = 0; o < n->n_in; o++) {
        in[o] = c->rw.map[n->in[o].id];
        if (!ll_dtype_is_float(ll_graph_dtype(c->p->g, n->in[o]))) continue;
        TRY(grid_operand(c, i, o, l, bits, limbs, x[f]));
        factor[f] = (ll_factor){o, in[o], ll_place_wanted(c->p, i, o, l)};
        at[f++] = o;
    }
    TRY(whole_layout(c, y, &held));
    ll_dtype type = c->mean[y.id] ? LL_F64 : ll_graph_dtype(c->p->g, y);
    for (int p = 0; p < limbs; p++)
        for (int q = 0; q < (n_factor == 2 ? limbs - p : 1); q++) {
            ll_grid_scale m[2] = {x[0][p].m, x[1][q].m};
            ll_val z;
            in[at[0]] = x[0][p].x;
            if (n_factor == 2) in[at[1]] = x[1][q].x;
            TRY(make_sum(c, i, in, bits, &z));
            bool guarded = n_factor == 2 && !wide;
            double noise = ldexp(sqrt(k), bits - 1); /* half units, as so many add up */
            if (guarded && c->gradient[y.id])
                TRY(guard_whole(c, i, z, &held, bits,
                                fmax(ldexp(noise, GOOD - 2 * bits), ldexp(1, -SLACK)), m));
            bool whole = guarded && c->gradient[y.id], terms = guarded && !whole && is_product(n);
            if (terms) TRY(guard_terms(c, i, factor, (ll_limb *const[]){x[0], x[1]}, m));
            for (int s = 0; s < 2 && guarded && !whole && !terms; s++)
                TRY(guard(c, i, l, &factor[s], &factor[1 - s], z, &held, bits, ldexp(noise, FAINT),
                          x[s], &m[s]));
            ll_val part = ll_from_grid(to, z, m, n_factor, bits * n_factor, wide ? LL_F64 : type);
            TRY(ll_graph_check(to));
            TRY(cut_like(c, &held, c->p->micro[i]));
            set_value(c, part, &held, &held);
            if (sum.id) {
                part = ll_add(to, sum, part);
                TRY(cut_like(c, &held, c->p->micro[i]));
                set_value(c, part, &held, &held);
            }
            sum = part;
        }
    if (wide) {
        sum = ll_cast(to, sum, type);
        TRY(ll_graph_check(to));
        TRY(cut_like(c, &held, c->p->micro[i]));
    }
    set_value(c, sum, &held, c->p->seen[y.id].sum ? &held : &c->p->seen[y.id]);
    ll_rewrite_map(&c->rw, y, sum);
    return LL_OK;
}

/* Results are numbers only if nothing was lost in any micro-batch. */
static ll_err spoil_results(gridder *c)
{
    const ll_graph *g = c->p->g;
    ll_graph *to = c->rw.to;
    bool means = false;
    int first = to->n_node;
    if (!c->lost.id) return LL_OK;
    for (int i = 0; i < g->n_node; i++) means |= g->nodes[i].op == &ll_op_accum;
    if (means) {
        c->lost = ll_accum(to, c->lost);
        TRY(ll_graph_check(to));
        c->next.micro[first++] = true;
        c->lost = ll_less(to, ll_fill(to, LL_F32, LL_SCALAR, 0), c->lost);
    }
    for (int i = 0; i < g->n_result; i++) {
        ll_val y = g->results[i].value, *now = &c->rw.map[y.id];
        bool scalar = !ll_graph_shape(g, y).n && ll_graph_dtype(g, y) == LL_F32;
        if (scalar && !c->next.seen[now->id].sum) *now = spoil(to, *now, c->lost);
    }
    TRY(ll_graph_check(to));
    for (int k = first; k < to->n_node; k++) c->next.micro[k] = !means;
    return LL_OK;
}

static ll_err grid_all(gridder *c)
{
    const ll_graph *g = c->p->g;
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0) set_value(c, c->rw.map[i], &c->p->made[i], &c->p->seen[i]);
    for (int i = 0; i < g->n_node; i++) {
        ll_loops l;
        TRY(ll_node_loops(g, &g->nodes[i], &l));
        double k = terms(g, &g->nodes[i], &l);
        TRY(k > 0 ? grid_node(c, i, &l, k) : copy_node(c, i));
    }
    return spoil_results(c);
}

/* Are its terms single numbers, not products? */
static bool is_plain_sum(const ll_graph *g, const ll_node *n)
{
    ll_loops l;
    return n->n_in == 1 && ll_node_loops(g, n, &l) == LL_OK && terms(g, n, &l) > 0;
}

static void find_gradients(gridder *c)
{
    const ll_graph *g = c->p->g;
    c->gradient = LL_NEW_ARRAY(c->p->arena, bool, g->n_value);
    for (int i = 0; i < g->n_value; i++) c->gradient[i] = c->reader[i] >= 0;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool is = ll_value_of(g, n->out[0])->gradient_of;
        is |= n->op->linear && c->gradient[n->out[0].id];
        for (int k = 0; k < n->n_in; k++) c->gradient[n->in[k].id] &= is;
    }
}

static void find_readers(gridder *c)
{
    const ll_graph *g = c->p->g;
    int *readers = LL_NEW_ARRAY(c->p->arena, int, g->n_value);
    c->reader = LL_NEW_ARRAY(c->p->arena, int, g->n_value);
    c->mean = LL_NEW_ARRAY(c->p->arena, bool, g->n_value);
    for (int i = 0; i < g->n_value; i++) c->reader[i] = -1;
    for (int i = 0; i < g->n_result; i++) readers[g->results[i].value.id]++;
    for (int i = 0; i < g->n_update; i++) readers[g->updates[i].next.id]++;
    for (int i = g->n_node - 1; i >= 0; i--)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            c->reader[g->nodes[i].in[k].id] = i;
            readers[g->nodes[i].in[k].id]++;
        }
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        c->mean[i] = v->node >= 0 && readers[i] == 1 && v->type.dtype == LL_F32 &&
                     is_plain_sum(g, &g->nodes[v->node]) && c->reader[i] >= 0 &&
                     g->nodes[c->reader[i]].op == ll_ew_op(LL_EW_scale);
    }
}

ll_err ll_exact_place(ll_placement *p, bool wide)
{
    const ll_graph *g = p->g;
    gridder c = {.p = p, .wide = wide};
    int room = g->n_node + 4 * g->n_result + 4;
    for (int i = 0; i < g->n_node; i++) /* limbs, their products, guards: of nodes that may sum */
        if (g->nodes[i].op->sum && !g->nodes[i].op->picks) room += wide || !p->micro[i] ? 320 : 120;
    c.next.made = LL_NEW_ARRAY(p->arena, ll_layout, g->n_value + room);
    c.next.seen = LL_NEW_ARRAY(p->arena, ll_layout, g->n_value + room);
    c.next.loop = (int8_t(*)[LL_MAX_AXES])ll_arena_alloc(p->arena, (size_t)room * LL_MAX_AXES);
    memset(c.next.loop, -1, (size_t)room * LL_MAX_AXES);
    c.next.through = LL_NEW_ARRAY(p->arena, ll_axes, room);
    c.next.micro = LL_NEW_ARRAY(p->arena, bool, room);
    find_readers(&c);
    find_gradients(&c);
    ll_rewrite_begin(&c.rw, g);
    ll_graph *made;
    TRY(ll_rewrite_end(&c.rw, grid_all(&c), &made));
    ll_graph_free(p->g);
    p->g = made;
    p->made = c.next.made;
    p->seen = c.next.seen;
    p->loop = c.next.loop;
    p->through = c.next.through;
    p->micro = c.next.micro;
    return LL_OK;
}
