/* exact.c: sums whose bits do not depend on their order, and so not on the mesh.
 *
 * Floating-point sums depend on their order, and every way of cutting a sum over ranks or threads
 * is another one. Here the operands of each node that sums (its loop dims say so) are rounded to
 * fixed point, whole numbers in f64, and the terms so that all sums of them are exact: the same in
 * any order, cut anyhow, by any collective, on any number of threads. The result is rounded once.
 *
 *     y = matmul(x, w)   becomes   mx = absmax(x), mw = absmax(w)       per row, per column
 *                                  z  = matmul(grid(x, mx), grid(w, mw))    in f64, exact
 *                                  y  = ungrid(z, mx, mw)
 *
 * 1. Products of two are rounded, each by itself, to multiples of a power of two such that f64
 *    holds the sum of K of them: by where the sum starts, a multiply-add a term (base/num.h).
 *    Factors are odd numbers of up to 40 bits, with log2 K 52 at most. Plain sums are of q bits, q
 *    + log2 K <= 53. Bits are counted from the largest magnitude of all elements that meet in one
 *    result: there is a scale for each row, filter or channel, as far as the result walks the
 *    operand's loops one for one. K is that of the whole sum, so that all ranks round alike.
 * 2. What sums only in its kernel (softmax, norms, attention) is expanded first, always: a serial
 *    run does what a cut one does. Windows that overlap sum in a fixed order.
 * 3. The graph is simplified before it is cut. No later pass may change arithmetic by what a cut
 *    has left: simplifying again finds nothing, and fused chains round as single ops do. A mean is
 *    rounded once too: its sum stays in f64 until it is scaled.
 * 4. Partial sums are never read: ungrid is not linear, and ll_place lets no partial value through
 *    a linear op. Sums over ranks are made in each micro-batch.
 * 5. What is 2^40 times smaller than the largest of its group is lost. Where results have less
 *    left than f32's (pass/exact_guard.c), the session makes the step again, wide: each operand in
 *    limbs, each of what the limbs before it leave, of so few bits, 2 q + log2 K <= 53, that
 *    products need no rounding; those of limbs p and q with p + q below their number are added up
 *    in f64, in one order. So all that f32 holds over WIDE bits counts; it takes ten times as
 *    long.
 * 6. What is between the sums of a wide step is f64 too, until gradients are summed over
 *    micro-batches: expansions take differences of what is nearly equal (a row less its mean),
 *    which kernels make of numbers that were never rounded to f32.
 *
 * Placing comes first, on the graph without grids, so that layouts are those of a run that is not
 * exact; then the nodes are replaced and their placement with them. */
#include "pass/exact_int.h"

#include "base/num.h"

/* f64 holds whole numbers up to 2^WIDTH, of which operands have MOST bits. Factors of products that
 * are rounded have FINE, or so many fewer that rounding K products up leaves their sum below
 * 2^(51 + rounded): K ((2^bits - 1)^2 + 2^(rounded - 1)) <= K 4^bits where rounded <= bits + 1,
 * which is bits + log2 K <= ROUNDED. Fewer than LEAST are no longer f32. */
enum { WIDTH = 53, MOST = 50, ROUNDED = 52, FINE = 40, LEAST = 11, WIDE = 96, MOST_LIMBS = 9 };

/* ---- before placing ---- */

static bool has_no_more(const ll_op *op)
{
    return !op->expand;
}

ll_err ll_exact_prepare(const ll_graph *g, ll_graph **out)
{
    return ll_expand(g, has_no_more, "exact", out);
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

/* The field that tells the op to round its products; or NULL. */
static const ll_attr_field *rounding_field(const ll_op *op)
{
    const ll_attr_field *f = op->attrs;
    while (f && f->name && f->kind != LL_A_BITS) f++;
    return f && f->name ? f : NULL;
}

/* How a node's sums of k terms are made. */
typedef struct sums {
    int n_factor, bits; /* of an operand */
    int limbs;
    int rounded; /* products are to multiples of 2^rounded; 0: they are not */
} sums;

static ll_err sums_of(const ll_gridder *c, int i, double k, sums *s)
{
    const ll_graph *g = c->p->g;
    const ll_node *n = &g->nodes[i];
    int log_k = (int)ceil(log2(k));
    *s = (sums){.limbs = 1};
    for (int o = 0; o < n->n_in; o++) s->n_factor += ll_dtype_is_float(ll_graph_dtype(g, n->in[o]));
    CHECK(s->n_factor == 1 || s->n_factor == 2, LL_E_GRAPH,
          "%s multiplies %d operands, but exact sums support only one or two", n->name,
          s->n_factor);
    /* Products of an update (Muon's) are always wide: it comes after the loss was looked at. */
    bool wide = c->wide || (s->n_factor == 2 && !c->p->micro[i]);
    s->bits = (WIDTH - log_k) / s->n_factor;
    if (s->n_factor == 2 && !wide && rounding_field(n->op)) {
        s->bits = ROUNDED - log_k < FINE ? ROUNDED - log_k : FINE;
        s->rounded = 2 * s->bits + log_k - (ROUNDED - 1);
    }
    if (s->bits > MOST) s->bits = MOST;
    CHECK(s->bits >= LEAST, LL_E_GRAPH,
          "%s sums %.3g terms, so exact mode would keep only %d bits: use a smaller micro-batch",
          n->name, k, s->bits);
    if (wide) s->limbs = ll_ceil_div(WIDE, s->bits);
    return LL_OK;
}

/* ---- nodes and their placement ---- */

/* The last node emitted runs where old node i does. */
static void place_as(ll_gridder *c, int i)
{
    int k = c->rw.to->n_node - 1;
    memcpy(c->next.loop[k], c->p->loop[i], sizeof c->next.loop[k]);
    c->next.through[k] = c->p->through[i];
    c->next.micro[k] = c->p->micro[i];
}

/* Is what old node i makes f64 in place of f32? */
static bool widens(const ll_gridder *c, int i)
{
    return c->wide && c->p->micro[i] && c->p->g->nodes[i].op != &ll_op_accum;
}

/* Old value v as old node i reads it; an input is f32 as yet. */
static ll_val now_of(const ll_gridder *c, int i, ll_val v)
{
    return c->own[v.id].id && !widens(c, i) ? c->own[v.id] : c->rw.map[v.id];
}

/* The last node emitted made v of old node i, in layout l. */
static ll_err put(ll_gridder *c, int i, ll_val v, const ll_layout *l, const ll_layout *seen)
{
    TRY(ll_graph_check(c->rw.to));
    ll_gridder_set(c, v, l, seen);
    return ll_gridder_cut(c, l, c->p->micro[i]);
}

/* Old value y of old node i is now v; where that is f64, and others want it as it was, it is cast
 * for them. */
static ll_err map_result(ll_gridder *c, int i, ll_val y, ll_val v)
{
    ll_dtype type = ll_graph_dtype(c->p->g, y);
    if (!widens(c, i) || !c->wanted[y.id] || ll_graph_dtype(c->rw.to, v) == type) {
        ll_rewrite_map(&c->rw, y, v);
        return LL_OK;
    }
    const ll_layout *made = &c->next.made[v.id], *seen = &c->next.seen[v.id];
    bool part = made->sum || made->max, partly = seen->sum || seen->max;
    ll_layout lies = ll_gridder_splits(part && !partly ? seen : made);
    ll_val own = ll_cast(c->rw.to, v, type);
    TRY(put(c, i, own, &lies, partly ? &lies : seen));
    ll_rewrite_map(&c->rw, y, own);
    c->own[y.id] = own;
    c->rw.map[y.id] = v;
    return LL_OK;
}

/* Operand k of old node i, which is not made anew. */
static ll_err operand(ll_gridder *c, int i, int k, const ll_loops *l, ll_val *out)
{
    *out = now_of(c, i, c->p->g->nodes[i].in[k]);
    if (!widens(c, i) || ll_graph_dtype(c->rw.to, *out) != LL_F32) return LL_OK;
    ll_layout want = ll_place_wanted(c->p, i, k, l);
    *out = ll_cast(c->rw.to, *out, LL_F64);
    return put(c, i, *out, &want, &want);
}

static ll_err copy_node(ll_gridder *c, int i, const ll_loops *l)
{
    const ll_node *n = &c->p->g->nodes[i];
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT], y = n->out[0];
    const void *attr = widens(c, i) ? ll_attr_retype(c->rw.to->arena, n, LL_F64) : n->attr;
    ll_graph_at(c->rw.to, n);
    for (int k = 0; k < n->n_in; k++) TRY(operand(c, i, k, l, &in[k]));
    TRY(ll_emit_all(c->rw.to, n->op, attr, in, n->n_in, out));
    place_as(c, i);
    bool mean = n->n_in == 1 && c->mean[n->in[0].id] && !widens(c, i); /* rounded once, here */
    for (int o = 0; o < n->n_out; o++)
        ll_gridder_set(c, out[o], &c->p->made[n->out[o].id],
                       mean ? &c->p->made[y.id] : &c->p->seen[n->out[o].id]);
    if (mean) {
        out[0] = ll_cast(c->rw.to, out[0], ll_graph_dtype(c->p->g, y));
        TRY(ll_graph_check(c->rw.to));
        place_as(c, i);
        ll_gridder_set(c, out[0], &c->p->made[y.id], &c->p->seen[y.id]);
    }
    for (int o = 0; o < n->n_out; o++) TRY(map_result(c, i, n->out[o], out[o]));
    return LL_OK;
}

/* A limb of operand x of node i, which lies as `from`: its scales, and itself as fixed point in
 * layout want. m: the scales, by dimensions of the node's result; own: by those of x. */
static ll_err grid_limb(ll_gridder *c, int i, int operand, const ll_loops *l, ll_val x,
                        const ll_layout *from, const ll_layout *want, const sums *s, ll_limb *out)
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
    TRY(ll_gridder_cut(c, from, c->p->micro[i]));
    ll_layout made = least;
    made.max = (ll_axes)(ll_layout_axes(from) & ~ll_layout_axes(&least));
    ll_gridder_set(c, out->own.value, &made, &least);
    out->x = ll_to_grid(to, x, &out->own, s->bits, s->rounded, LL_F64);
    return put(c, i, out->x, want, want);
}

/* An operand of node i as limbs, each what those before it leave. */
static ll_err grid_operand(ll_gridder *c, int i, int operand, const ll_loops *l, const sums *s,
                           ll_limb *out)
{
    ll_graph *to = c->rw.to;
    ll_val old = c->p->g->nodes[i].in[operand], x = now_of(c, i, old);
    ll_layout want = ll_place_wanted(c->p, i, operand, l);
    /* What is stored cut for memory's sake need not be gathered for its largest element. */
    bool stored = ll_value_of(c->p->g, old)->node < 0 &&
                  !ll_layout_equal(&c->p->made[old.id], &c->p->seen[old.id]);
    ll_layout from = stored ? c->p->made[old.id] : want;
    for (int k = 0; k < s->limbs; k++) {
        TRY(grid_limb(c, i, operand, l, x, &from, &want, s, &out[k]));
        if (k + 1 == s->limbs) break;
        ll_val taken = ll_from_grid(to, out[k].x, &out[k].own, 1, s->bits, ll_graph_dtype(to, x));
        TRY(put(c, i, taken, &want, &want));
        x = ll_sub(to, x, taken); /* exact: what is left of its bits */
        TRY(put(c, i, x, &want, &want));
        from = want;
    }
    return LL_OK;
}

/* How the result is held once its sums are made: as later nodes see it, or else cut where the first
 * of them wants it cut. */
static ll_err whole_layout(const ll_gridder *c, ll_val y, ll_layout *out)
{
    const ll_layout *made = &c->p->made[y.id], *seen = &c->p->seen[y.id];
    int reader = c->reader[y.id];
    *out = ll_gridder_splits(made->sum && !seen->sum ? seen : made);
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

/* The node on one limb of each operand. */
static ll_err make_sum(ll_gridder *c, int i, const ll_val *in, int rounded, ll_val *z)
{
    const ll_node *n = &c->p->g->nodes[i];
    const ll_layout *made = &c->p->made[n->out[0].id];
    ll_arena *arena = c->rw.to->arena;
    const void *own = ll_attr_retype(arena, n, LL_F64);
    char *attr = (char *)ll_arena_copy(arena, own, n->op->attr_size);
    if (rounded) *(int64_t *)(void *)(attr + rounding_field(n->op)->offset) = rounded;
    TRY(ll_emit_all(c->rw.to, n->op, attr, in, n->n_in, z));
    place_as(c, i);
    ll_gridder_set(c, *z, made, made);
    return LL_OK;
}

static ll_err grid_node(ll_gridder *c, int i, const ll_loops *l, double k)
{
    ll_graph *to = c->rw.to;
    const ll_node *n = &c->p->g->nodes[i];
    ll_val in[LL_MAX_IN], y = n->out[0], sum = {0};
    int at[2] = {0}, f = 0;
    sums s;
    TRY(sums_of(c, i, k, &s));
    bool two = s.n_factor == 2, wide = s.limbs > 1;
    if (two && (!c->p->bits || s.bits < c->p->bits)) c->p->bits = s.bits;
    ll_limb x[2][MOST_LIMBS];
    ll_factor factor[2];
    ll_layout held;
    ll_graph_at(c->rw.to, n);
    for (int o = 0; o < n->n_in; o++) {
        in[o] = now_of(c, i, n->in[o]);
        if (!ll_dtype_is_float(ll_graph_dtype(c->p->g, n->in[o]))) continue;
        TRY(grid_operand(c, i, o, l, &s, x[f]));
        factor[f] = (ll_factor){o, in[o], ll_place_wanted(c->p, i, o, l)};
        at[f++] = o;
    }
    TRY(whole_layout(c, y, &held));
    ll_dtype type = c->mean[y.id] || widens(c, i) ? LL_F64 : ll_graph_dtype(c->p->g, y);
    for (int p = 0; p < s.limbs; p++)
        for (int q = 0; q < (two ? s.limbs - p : 1); q++) {
            ll_grid_scale m[2] = {x[0][p].m, x[1][q].m};
            ll_val z;
            in[at[0]] = x[0][p].x;
            if (two) in[at[1]] = x[1][q].x;
            TRY(make_sum(c, i, in, s.rounded, &z));
            ll_val part =
                ll_from_grid(to, z, m, s.n_factor, s.bits * s.n_factor, wide ? LL_F64 : type);
            TRY(put(c, i, part, &held, &held));
            if (two && !wide)
                TRY(ll_guard_product(c, i, factor, x[0], x[1], part, &held, s.bits, k, m));
            if (sum.id) {
                part = ll_add(to, sum, part);
                TRY(put(c, i, part, &held, &held));
            }
            sum = part;
        }
    if (ll_graph_dtype(to, sum) != type) {
        sum = ll_cast(to, sum, type);
        TRY(put(c, i, sum, &held, &held));
    }
    ll_gridder_set(c, sum, &held, c->p->seen[y.id].sum ? &held : &c->p->seen[y.id]);
    return map_result(c, i, y, sum);
}

static ll_err grid_all(ll_gridder *c)
{
    const ll_graph *g = c->p->g;
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0) ll_gridder_set(c, c->rw.map[i], &c->p->made[i], &c->p->seen[i]);
    for (int i = 0; i < g->n_node; i++) {
        ll_loops l;
        TRY(ll_node_loops(g, &g->nodes[i], &l));
        double k = terms(g, &g->nodes[i], &l);
        TRY(k > 0 ? grid_node(c, i, &l, k) : copy_node(c, i, &l));
    }
    for (int i = 1; i < g->n_value; i++)
        if (c->own[i].id) c->rw.map[i] = c->own[i];
    return ll_guard_results(c);
}

/* Are its terms single numbers, not products? */
static bool is_plain_sum(const ll_graph *g, const ll_node *n)
{
    ll_loops l;
    return n->n_in == 1 && ll_node_loops(g, n, &l) == LL_OK && terms(g, n, &l) > 0;
}

static void find_gradients(ll_gridder *c)
{
    const ll_graph *g = c->p->g;
    for (int i = 0; i < g->n_value; i++) c->gradient[i] = c->reader[i] >= 0;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool is = ll_value_of(g, n->out[0])->gradient_of;
        is |= n->op->linear && c->gradient[n->out[0].id];
        for (int k = 0; k < n->n_in; k++) c->gradient[n->in[k].id] &= is;
    }
}

static void find_readers(ll_gridder *c)
{
    const ll_graph *g = c->p->g;
    const int *uses = ll_uses(g, c->p->arena);
    for (int i = 0; i < g->n_value; i++) c->reader[i] = -1;
    for (int i = g->n_node - 1; i >= 0; i--)
        for (int k = 0; k < g->nodes[i].n_in; k++) c->reader[g->nodes[i].in[k].id] = i;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        c->mean[i] = v->node >= 0 && uses[i] == 1 && v->type.dtype == LL_F32 &&
                     is_plain_sum(g, &g->nodes[v->node]) && c->reader[i] >= 0 &&
                     g->nodes[c->reader[i]].op == ll_ew_op(LL_EW_scale);
    }
}

/* Values that are read as they are where others are f64. */
static void find_wanted(ll_gridder *c)
{
    const ll_graph *g = c->p->g;
    for (int i = 0; i < g->n_result; i++) c->wanted[g->results[i].value.id] = true;
    for (int i = 0; i < g->n_update; i++) c->wanted[g->updates[i].next.id] = true;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in && !widens(c, i); k++)
            c->wanted[g->nodes[i].in[k].id] = true;
}

ll_err ll_exact_place(ll_placement *p, bool wide)
{
    const ll_graph *g = p->g;
    ll_gridder c = {.p = p, .wide = wide};
    int room = g->n_node + 4 * g->n_result + 4;
    for (int i = 0; i < g->n_node; i++) { /* limbs, products, guards: of nodes that may sum */
        if (g->nodes[i].op->sum && !g->nodes[i].op->picks) room += wide || !p->micro[i] ? 320 : 180;
        if (wide) room += g->nodes[i].n_in + g->nodes[i].n_out; /* casts */
    }
    LL_ARRAYS(p->arena, g->n_value + room, c.next.made, c.next.seen);
    LL_ARRAYS(p->arena, room, c.next.loop, c.next.through, c.next.micro);
    memset(c.next.loop, -1, (size_t)room * LL_MAX_AXES);
    LL_ARRAYS(p->arena, g->n_value, c.reader, c.mean, c.gradient, c.own, c.wanted);
    find_readers(&c);
    find_gradients(&c);
    find_wanted(&c);
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
