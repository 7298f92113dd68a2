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
 * 4. Partial sums are never read: ungrid is not linear, and ll_place lets no partial value through
 *    a linear op. Sums over ranks are made in f64, in each micro-batch.
 *
 * Placing comes first, on the graph without grids, so that layouts are those of a run that is not
 * exact; then the nodes are replaced and their placement with them. */
#include "op/op_int.h"
#include "pass/partition.h"

#include <math.h>

/* f64 holds whole numbers up to 2^WIDTH; fewer than LEAST bits an operand are no longer f32. */
enum { WIDTH = 53, MOST = 50, LEAST = 11 };

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

static int dim_of(const int8_t map[LL_MAX_DIMS], int loop)
{
    for (int d = 0; d < LL_MAX_DIMS; d++)
        if (loop >= 0 && map[d] == loop) return d;
    return -1;
}

/* Terms of one sum of the node; 0: it makes no sums. */
static double terms(const ll_graph *g, const ll_node *n, const ll_loops *l)
{
    double k = 1;
    bool any = false;
    if (!n->op->sum || n->op->picks || n->n_out != 1) return 0;
    if (!ll_dtype_is_float(ll_graph_dtype(g, n->out[0]))) return 0;
    for (int i = 0; i < l->n; i++) {
        if (dim_of(l->out[0], i) >= 0) continue;
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
} gridder;

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
    return LL_OK;
}

/* An operand of node i: its scales and itself as fixed point. m: the scales, by dimensions of the
 * node's result. */
static ll_err grid_operand(gridder *c, int i, int operand, const ll_loops *l, int bits,
                           ll_grid_scale *m, ll_val *out)
{
    ll_graph *to = c->rw.to;
    const ll_node *n = &c->p->g->nodes[i];
    ll_val old = n->in[operand], x = c->rw.map[old.id];
    ll_layout want = ll_place_wanted(c->p, i, operand, l), least = {0};
    /* What is stored cut for memory's sake need not be gathered for its largest element. */
    bool stored = ll_value_of(c->p->g, old)->node < 0 &&
                  !ll_layout_equal(&c->p->made[old.id], &c->p->seen[old.id]);
    ll_layout from = stored ? c->p->made[old.id] : want;
    ll_grid_scale own = {0};
    char spec[LL_SPEC_MAX] = {0}, *at = spec;
    int n_dim = ll_graph_shape(to, x).n;
    *m = (ll_grid_scale){0};
    for (int d = 0; d < n_dim; d++) *at++ = (char)('a' + d);
    *at++ = '-', *at++ = '>';
    for (int d = 0; d < n_dim; d++) {
        int loop = l->in[operand][d], result = dim_of(l->out[0], loop);
        if (result < 0 || l->window[loop]) continue;
        *at++ = (char)('a' + d);
        least.split[own.n] = from.split[d];
        own.dim[own.n++] = d;
        m->dim[m->n++] = result;
    }
    m->value = own.value = ll_absmax(to, x, spec);
    TRY(ll_graph_check(to));
    TRY(cut_like(c, &from, c->p->micro[i]));
    ll_layout made = least;
    made.max = (ll_axes)(ll_layout_axes(&from) & ~ll_layout_axes(&least));
    set_value(c, own.value, &made, &least);
    *out = ll_to_grid(to, x, &own, bits);
    TRY(ll_graph_check(to));
    set_value(c, *out, &want, &want);
    return cut_like(c, &want, c->p->micro[i]);
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

static ll_err grid_node(gridder *c, int i, const ll_loops *l, double k)
{
    ll_graph *to = c->rw.to;
    const ll_node *n = &c->p->g->nodes[i];
    ll_val in[LL_MAX_IN], z, y = n->out[0];
    ll_grid_scale m[LL_MAX_IN];
    int bits, n_factor, n_scale = 0;
    TRY(bits_for(c->p->g, n, k, &bits, &n_factor));
    ll_rewrite_at(&c->rw, n);
    for (int o = 0; o < n->n_in; o++) {
        in[o] = c->rw.map[n->in[o].id];
        if (ll_dtype_is_float(ll_graph_dtype(c->p->g, n->in[o])))
            TRY(grid_operand(c, i, o, l, bits, &m[n_scale++], &in[o]));
    }
    const void *attr = ll_attr_retype(to->arena, n, LL_F64);
    TRY(ll_emit_all(to, n->op, attr, in, n->n_in, &z));
    place_as(c, i);
    set_value(c, z, &c->p->made[y.id], &c->p->made[y.id]);
    ll_layout held;
    TRY(whole_layout(c, y, &held));
    ll_val made = ll_from_grid(to, z, m, n_scale, bits * n_factor, ll_graph_dtype(c->p->g, y));
    TRY(ll_graph_check(to));
    TRY(cut_like(c, &held, c->p->micro[i]));
    set_value(c, made, &held, c->p->seen[y.id].sum ? &held : &c->p->seen[y.id]);
    ll_rewrite_map(&c->rw, y, made);
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
    return LL_OK;
}

static void find_readers(gridder *c)
{
    const ll_graph *g = c->p->g;
    c->reader = LL_NEW_ARRAY(c->p->arena, int, g->n_value);
    for (int i = 0; i < g->n_value; i++) c->reader[i] = -1;
    for (int i = g->n_node - 1; i >= 0; i--)
        for (int k = 0; k < g->nodes[i].n_in; k++) c->reader[g->nodes[i].in[k].id] = i;
}

ll_err ll_exact_place(ll_placement *p)
{
    const ll_graph *g = p->g;
    gridder c = {.p = p};
    int room = g->n_node + 1; /* for each operand two nodes, for each node one more */
    for (int i = 0; i < g->n_node; i++) room += 2 * g->nodes[i].n_in + 1;
    c.next.made = LL_NEW_ARRAY(p->arena, ll_layout, g->n_value + room);
    c.next.seen = LL_NEW_ARRAY(p->arena, ll_layout, g->n_value + room);
    c.next.loop = (int8_t(*)[LL_MAX_AXES])ll_arena_alloc(p->arena, (size_t)room * LL_MAX_AXES);
    c.next.through = LL_NEW_ARRAY(p->arena, ll_axes, room);
    c.next.micro = LL_NEW_ARRAY(p->arena, bool, room);
    find_readers(&c);
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
