/* exact_guard.c: whether enough is left of the bits of exact sums (pass/exact.c, 5).
 *
 * Fixed point loses what is 2^bits below the largest of a row or column. That is less than f32
 * loses, unless the largest meet zeros, or are hidden from what follows. So of every product each
 * result's largest term is looked for, beside what the largest factors of its row and column would
 * make (reach: op/matmul.c; of convolutions what a window has, times what the filter has anywhere):
 * 2^-l of that, and the result has l bits less. Where that leaves less than f32 has, in the mean of
 * 2^l over all results, too much is lost. Gradients of parameters are judged as a whole: is the
 * largest result so far above what rounding makes of the largest factors?
 *
 * That something was lost, in any product, on any rank and in any micro-batch, makes the loss and
 * other results infinite, by a flag of its own: a comparison on the way would make a number again
 * of what is none. It is decided from what ranks share, and comes out the same on every mesh. */
#include "pass/exact_int.h"

/* What f32 rounds a term to, in bits; what is left of a parameter's gradient above rounding. */
enum { TERM = 25, GOOD = 25 };

/* Long sums are of many terms, of which each is rounded, in f32 as well: so much may be lost at
 * least. Terms that are lost altogether need not be told apart. */
enum { LEAST_LOST = 5, MOST_LOST = 40 };

/* Taps of a filter differ by 2^TAPS at most, in the mean over filters (guard_taps). By chance they
 * differ by more in one of 4,000 sets of filters of 9 taps and one channel; with more, in less. */
enum { TAPS = 16 };

/* ---- placing nodes of the new graph ---- */

ll_layout ll_gridder_splits(const ll_layout *l)
{
    ll_layout s = *l;
    s.sum = s.max = 0;
    return s;
}

void ll_gridder_set(ll_gridder *c, ll_val v, const ll_layout *made, const ll_layout *seen)
{
    c->next.made[v.id] = *made;
    c->next.seen[v.id] = *seen;
}

ll_err ll_gridder_cut(ll_gridder *c, const ll_layout *l, bool micro)
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

/* Nodes emitted since the last call run where old node i does; what is no scalar lies as l says. */
static ll_err place_new(ll_gridder *c, int i, const ll_layout *l)
{
    TRY(ll_graph_check(c->rw.to));
    for (; c->placed < c->rw.to->n_node; c->placed++) {
        int k = c->placed;
        const ll_node *n = &c->rw.to->nodes[k];
        ll_loops loops;
        c->next.micro[k] = c->p->micro[i];
        if (!ll_graph_shape(c->rw.to, n->out[0]).n) continue;
        TRY(ll_node_loops(c->rw.to, n, &loops));
        for (int a = 0; a < LL_MAX_AXES; a++)
            for (int d = 0; d < LL_MAX_DIMS; d++)
                if (l->split[d] >> a & 1) c->next.loop[k][a] = loops.out[0][d];
        ll_gridder_set(c, n->out[0], l, l);
    }
    return LL_OK;
}

/* The same of nodes whose loops have the letters of old node i's: they are cut as that is. What
 * they do not keep of a cut loop they are a part of the largest of. */
static ll_err place_by_letters(ll_gridder *c, int i)
{
    ll_loops old, now;
    TRY(ll_graph_check(c->rw.to));
    TRY(ll_node_loops(c->p->g, &c->p->g->nodes[i], &old));
    for (; c->placed < c->rw.to->n_node; c->placed++) {
        int k = c->placed;
        const ll_node *n = &c->rw.to->nodes[k];
        ll_layout made = {0}, seen;
        TRY(ll_node_loops(c->rw.to, n, &now));
        for (int a = 0; a < c->p->mesh.n; a++) {
            int cut = c->p->loop[i][a], loop = 0;
            if (cut < 0) continue;
            while (loop < now.n && now.letter[loop] != old.letter[cut]) loop++;
            if (loop == now.n) continue;
            int d = ll_dim_of(now.out[0], loop);
            *(d < 0 ? &made.max : &made.split[d]) |= (ll_axes)(1u << a);
            c->next.loop[k][a] = (int8_t)loop;
        }
        seen = ll_gridder_splits(&made);
        c->next.micro[k] = c->p->micro[i];
        ll_gridder_set(c, n->out[0], &made, &seen);
    }
    return LL_OK;
}

/* The largest magnitude of v, or the sum, in layout l, over all but its dimensions `keep`. */
static ll_err reduce(ll_gridder *c, int i, ll_val v, const ll_layout *l, const int *keep, int n,
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
    ll_gridder_set(c, *out, &made, &seen);
    c->placed = c->rw.to->n_node;
    return ll_gridder_cut(c, l, c->p->micro[i]);
}

static ll_err largest(ll_gridder *c, int i, ll_val v, const ll_layout *l, ll_val *out)
{
    return reduce(c, i, v, l, NULL, 0, false, out);
}

/* Something is lost where scalar a is less than b. */
static ll_err lost_if_less(ll_gridder *c, int i, ll_val a, ll_val b)
{
    ll_graph *g = c->rw.to;
    ll_val lost = ll_cast(g, ll_less(g, a, b), LL_F32);
    c->lost = c->lost.id ? ll_max(g, c->lost, lost) : lost;
    return place_new(c, i, &(ll_layout){0});
}

/* A parameter's gradient: is the largest result less than `least` of the product of the largest
 * factors? */
static ll_err guard_whole(ll_gridder *c, int i, ll_val y, const ll_layout *held, double least,
                          const ll_grid_scale m[2])
{
    ll_graph *g = c->rw.to;
    ll_val top, most[2];
    TRY(largest(c, i, y, held, &top));
    for (int s = 0; s < 2; s++)
        TRY(largest(c, i, m[s].value, &c->next.seen[m[s].value.id], &most[s]));
    ll_val could = ll_mul(g, ll_cast(g, most[0], LL_F64), ll_cast(g, most[1], LL_F64));
    return lost_if_less(c, i, ll_cast(g, top, LL_F64), ll_scale(g, could, least));
}

/* 1 / x of f32's magnitudes, subnormal ones as the least that is not; of 0, 0. */
static ll_val inverse(ll_graph *g, ll_val x)
{
    ll_shape shape = ll_graph_shape(g, x);
    ll_dtype t = ll_graph_dtype(g, x);
    ll_val some = ll_less(g, ll_fill(g, t, shape, 0), x);
    ll_val by = ll_add(g, x, ll_sub(g, ll_fill(g, t, shape, 1), some));
    return ll_div(g, some, ll_clamp(g, by, 0x1p-126, 0x1p126));
}

/* Taps of a filter, w in layout l, are taken by their largest, which meets padding where the others
 * do not: are the least (but zeros), over channels the largest of these, too far below it, in the
 * mean over filters? keep: all dimensions but the taps'; filters: their dimensions among these. */
static ll_err guard_taps(ll_gridder *c, int i, ll_val w, const ll_layout *l, const int *keep, int n,
                         ll_val largest_tap, const ll_grid_scale *filters)
{
    ll_graph *g = c->rw.to;
    ll_val least, top, sum, small = inverse(g, ll_abs(g, w));
    TRY(place_new(c, i, l));
    TRY(reduce(c, i, small, l, keep, n, false, &least));
    const ll_layout lies = c->next.seen[least.id];
    least = ll_cast(g, inverse(g, least), LL_F64);
    largest_tap = ll_cast(g, largest_tap, LL_F64);
    TRY(place_new(c, i, &lies));
    TRY(reduce(c, i, largest_tap, &lies, filters->dim, filters->n, false, &top));
    TRY(reduce(c, i, least, &lies, filters->dim, filters->n, false, &least));
    const ll_layout by_filter = c->next.seen[least.id];
    ll_val some = ll_less(g, ll_fill(g, LL_F64, ll_graph_shape(g, least), 0), least);
    ll_val times = ll_mul(g, top, inverse(g, least));
    ll_val over = ll_sub(g, times, ll_scale(g, some, ldexp(1, TAPS)));
    TRY(place_new(c, i, &by_filter));
    TRY(reduce(c, i, over, &by_filter, NULL, 0, true, &sum));
    return lost_if_less(c, i, ll_fill(g, LL_F64, LL_SCALAR, 0), sum);
}

/* The levels of factor s of old node i beside its scales: the largest over what neither the other
 * factor nor the result has. */
static ll_err level_of(ll_gridder *c, int i, const ll_loops *l, const ll_factor *x,
                       const ll_factor *other, const ll_grid_scale *own, ll_val *out)
{
    ll_graph *g = c->rw.to;
    ll_grid_scale scale = {.value = own->value, .n = own->n};
    ll_layout lies = x->want;
    ll_val of = x->x;
    int keep[LL_MAX_DIMS], n = 0, n_dim = ll_graph_shape(g, of).n;
    for (int d = 0; d < n_dim; d++) {
        int loop = l->in[x->operand][d];
        for (int k = 0; k < own->n; k++)
            if (own->dim[k] == d) scale.dim[k] = n;
        if (loop < 0 || ll_dim_of(l->out[0], loop) >= 0 ||
            ll_dim_of(l->in[other->operand], loop) >= 0)
            keep[n++] = d;
    }
    if (n < n_dim) {
        TRY(reduce(c, i, of, &x->want, keep, n, false, &of));
        lies = c->next.seen[of.id];
        TRY(guard_taps(c, i, x->x, &x->want, keep, n, of, &scale));
    }
    *out = ll_to_grid(g, of, &scale, LL_REACH_BITS, false, LL_U8);
    return place_new(c, i, &lies);
}

/* Is the mean of 2^l above `most`? */
static ll_err guard_terms(ll_gridder *c, int i, const ll_factor x[2], const ll_limb *const limb[2],
                          double most)
{
    ll_graph *g = c->rw.to;
    const ll_node *n = &c->p->g->nodes[i];
    ll_val level[2], sum;
    ll_type in[2];
    ll_loops l;
    TRY(ll_node_loops(c->p->g, n, &l));
    for (int s = 0; s < 2; s++) {
        TRY(level_of(c, i, &l, &x[s], &x[1 - s], &limb[s]->own, &level[s]));
        in[s] = ll_value_of(c->p->g, n->in[x[s].operand])->type;
    }
    /* Terms within a quarter of that need not be told apart. */
    ll_val reach = n->op->reach(g, n->attr, in, level, (int)log2(most) - 2);
    TRY(place_by_letters(c, i));
    ll_shape shape = ll_graph_shape(g, reach);
    ll_val some = ll_less(g, ll_fill(g, LL_F32, shape, 0), reach);
    ll_val least = ll_fill(g, LL_F32, shape, ldexp(1, -MOST_LOST));
    ll_val times = ll_div(g, some, ll_max(g, reach, least));
    ll_val over = ll_sub(g, times, ll_scale(g, some, most));
    over = ll_cast(g, over, LL_F64);
    ll_layout lies = c->next.seen[reach.id];
    TRY(place_new(c, i, &lies));
    TRY(reduce(c, i, over, &lies, NULL, 0, true, &sum));
    return lost_if_less(c, i, ll_fill(g, LL_F64, LL_SCALAR, 0), sum);
}

ll_err ll_guard_product(ll_gridder *c, int i, const ll_factor factor[2], const ll_limb *a,
                        const ll_limb *b, ll_val y, const ll_layout *held, int bits, double k,
                        const ll_grid_scale m[2])
{
    const ll_node *n = &c->p->g->nodes[i];
    c->placed = c->rw.to->n_node;
    /* Of the largest product: factors are off by a unit, products by half of one, and k add up. */
    double noise = sqrt(k) * (ldexp(1, -bits) + ldexp(k, -52));
    if (c->gradient[n->out[0].id]) return guard_whole(c, i, y, held, ldexp(noise, GOOD), m);
    CHECK(n->op->reach, LL_E_GRAPH, "%s: exact sums cannot tell what %s loses", n->name,
          n->op->name);
    return guard_terms(c, i, factor, (const ll_limb *const[]){a, b},
                       fmax(ldexp(1 / noise, -TERM), ldexp(1, LEAST_LOST)));
}

ll_err ll_guard_results(ll_gridder *c)
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
    ll_val kept = ll_sub(to, ll_fill(to, LL_F32, LL_SCALAR, 1), c->lost);
    for (int i = 0; i < g->n_result; i++) {
        ll_val y = g->results[i].value, *now = &c->rw.map[y.id];
        if (ll_graph_shape(g, y).n || ll_graph_dtype(g, y) != LL_F32) continue;
        CHECK(!c->next.seen[now->id].sum, LL_E_GRAPH, "%s is a part of a sum", g->results[i].name);
        *now = ll_div(to, *now, kept);
    }
    TRY(ll_graph_check(to));
    for (int k = first; k < to->n_node; k++) c->next.micro[k] = !means;
    return LL_OK;
}
