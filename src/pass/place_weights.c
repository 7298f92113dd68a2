/* place_weights.c: axes that cut weights: where they begin, and what `tensor` does besides.
 *
 * Such an axis begins at the first product with a weight that nothing has cut yet. Of the loops
 * that it may take, the one is best whose result need not be made whole soon.
 *
 * Axis `tensor` has two rules besides weighing bytes:
 *  1. A product with a weight that the axis cuts, and what makes that weight's gradient, is cut as
 *     the weight is. So the axis does not end up cutting samples, which moves fewer bytes where
 *     weights are small and leaves every rank with all of them.
 *  2. A product that sums over what the axis cuts in its weight owes a sum. Readers may have it cut
 *     along the dimension that they need not soon make whole again or turn: positions, samples or
 *     times, before a norm. A reduce-scatter now and an all-gather before the next product send
 *     what an all-reduce does. Norms, dropout and residuals in between then work on their part, and
 *     keep their part for the backward pass: Megatron's sequence parallelism (Korthikanti et al.,
 *     2022).
 *
 *     proj [b,t,f] x [c,f] -> [b,t,c], owed over tensor;  + bias, + residual, norm: b cut;
 *     fc   [b,t,c] gathered x [f,c], f cut */
#include "pass/place_int.h"

#include "base/num.h"

enum { PROBE_DEPTH = 8 };

/* ---- where axes that cut weights begin ---- */

/* What is lost further on if result v comes cut along dim: bytes of the first values that have to
 * be made whole again. */
static double probe(const placer *c, ll_val v, int dim, int p, int depth)
{
    double sum = 0;
    for (int k = value(c, v)->node + 1; k < c->g->n_node && depth < PROBE_DEPTH; k++) {
        const ll_node *n = &c->g->nodes[k];
        for (int i = 0; i < n->n_in; i++) {
            ll_loops l;
            if (n->in[i].id != v.id || ll_node_loops(c->g, n, &l) != LL_OK) continue;
            int loop = l.in[i][dim];
            if (loop < 0 || l.combine[loop] == LL_WHOLE)
                sum += ll_val_bytes(c->g, v) * (p - 1) / p;
            else if (l.combine[loop] == LL_FREE && n->op->flop <= 1 && n->n_out == 1)
                sum += probe(c, n->out[0], ll_dim_of(l.out[0], loop), p, depth + 1);
        }
    }
    return sum;
}

/* Is loop walked by operand i alone, of all operands? */
static bool only_in(const ll_node *n, const ll_loops *l, int loop, int i)
{
    for (int k = 0; k < n->n_in; k++)
        if (k != i && ll_dim_of(l->in[k], loop) >= 0) return false;
    return true;
}

bool ll_place_begins(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop,
                     double *cost)
{
    ll_axis_kind k = ll_mesh_kind(c->m, a);
    if (k != LL_AXIS_TENSOR && k != LL_AXIS_CHANNEL && k != LL_AXIS_FILTER && k != LL_AXIS_COLS &&
        k != LL_AXIS_DEPTH)
        return false;
    for (int i = 0; i < n->n_in; i++) {
        const ll_value *w = value(c, n->in[i]);
        if (w->kind != LL_PARAM || !undecided(c, n->in[i]) || w->type.shape.n < 2) continue;
        int d = ll_dim_of(l->in[i], loop), summed = 0, looked_up = -1;
        for (int s = 0; s < l->n; s++) {
            if (l->combine[s] != LL_SUM || ll_dim_of(l->in[i], s) < 0) continue;
            summed++;
            if (only_in(n, l, s, i)) looked_up = s;
        }
        if (d < 0 || !summed || l->extent[loop] < c->m->size[a]) continue;
        if (looked_up >= 0) return k == LL_AXIS_TENSOR && loop == looked_up;
        bool inputs = l->combine[loop] == LL_SUM;
        if (k == LL_AXIS_CHANNEL || k == LL_AXIS_DEPTH) return inputs;
        if (inputs || l->combine[loop] != LL_FREE) return false;
        int out = ll_dim_of(l->out[0], loop);
        *cost = out >= 0 ? probe(c, n->out[0], out, c->m->size[a], 0) : 0;
        return true;
    }
    return false;
}

bool ll_place_may_begin(const placer *c, const ll_node *n, const ll_loops *l, int a)
{
    double cost;
    for (int loop = 0; loop < l->n; loop++)
        if (ll_place_begins(c, n, l, a, loop, &cost)) return true;
    return false;
}

/* Axis `filter` cuts what layers make, never what they sum over. */
bool ll_place_forbidden(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop)
{
    ll_axis_kind k = ll_mesh_kind(c->m, a);
    if (k != LL_AXIS_FILTER || l->combine[loop] != LL_SUM) return false;
    for (int i = 0; i < n->n_in; i++)
        if (value(c, n->in[i])->kind == LL_PARAM && ll_dim_of(l->in[i], loop) >= 0) return true;
    return false;
}

/* ---- axis tensor ---- */

/* Is operand i a weight that the node multiplies with? */
static bool is_weight(const placer *c, const ll_node *n, const ll_loops *l, int i)
{
    const ll_value *w = ll_value_of(c->g, n->in[i]);
    if (w->kind != LL_PARAM || w->node >= 0 || w->type.shape.n < 2) return false;
    for (int s = 0; s < l->n; s++)
        if (l->combine[s] == LL_SUM && ll_dim_of(l->in[i], s) >= 0) return true;
    return false;
}

bool ll_place_weights_first(const placer *c, const ll_node *n, const ll_loops *l, int axis,
                            int loop, bool begins)
{
    if (ll_mesh_kind(c->m, axis) != LL_AXIS_TENSOR) return false;
    for (int i = 0; i < n->n_in; i++) {
        if (!is_weight(c, n, l, i) || ll_dim_of(l->in[i], loop) >= 0) continue;
        int w = n->in[i].id;
        if (c->decided[w] ? cut_dim(&c->p->seen[w], axis) >= 0 : begins) return true;
    }
    return false;
}

void ll_place_aim(placer *c, ll_val v, ll_val param, int depth)
{
    const ll_value *x = ll_value_of(c->g, v), *w = ll_value_of(c->g, param);
    if (x->node < 0 || depth > 64 || !ll_shape_equal(&x->type.shape, &w->type.shape)) return;
    c->aim[v.id] = param;
    const ll_node *n = &c->g->nodes[x->node];
    for (int i = 0; n->op->elementwise && n->op->linear && i < n->n_in; i++)
        ll_place_aim(c, n->in[i], param, depth + 1);
}

int ll_place_aimed(const placer *c, const ll_node *n, const ll_loops *l, int axis)
{
    ll_val param = c->aim[n->out[0].id];
    if (ll_mesh_kind(c->m, axis) != LL_AXIS_TENSOR || n->n_out != 1 || !param.id) return -1;
    int d = cut_dim(&c->p->seen[param.id], axis);
    int loop = d >= 0 ? l->out[0][d] : -1;
    return loop >= 0 && l->combine[loop] == LL_FREE ? loop : -1;
}

/* What readers of v lose if they have it cut along dim: bytes to make it whole again, or to turn it
 * to the cut of another operand. The way ends where it meets one. */
static double conflict(const placer *c, ll_val v, int dim, int axis, int depth)
{
    int p = c->m->size[axis];
    double sum = 0, bytes = ll_val_bytes(c->g, v) * (p - 1) / p;
    for (int k = value(c, v)->node + 1; k < c->g->n_node && depth < PROBE_DEPTH / 2; k++) {
        const ll_node *n = &c->g->nodes[k];
        for (int i = 0; i < n->n_in; i++) {
            ll_loops l;
            if (n->in[i].id != v.id || ll_node_loops(c->g, n, &l) != LL_OK) continue;
            int loop = l.in[i][dim];
            bool met = loop < 0 || l.combine[loop] == LL_WHOLE ||
                       ll_place_weights_first(c, n, &l, axis, loop, true);
            if (met) sum += bytes;
            for (int j = 0; j < n->n_in && !met; j++) {
                int d = cut_dim(&c->p->seen[n->in[j].id], axis);
                met = d >= 0;
                if (met && l.in[j][d] != loop) sum += bytes / p;
            }
            if (!met && l.combine[loop] == LL_FREE)
                sum += conflict(c, n->out[0], ll_dim_of(l.out[0], loop), axis, depth + 1);
        }
    }
    return sum;
}

/* The dimension of the result that is best cut by axis, from 1: with the least conflict, of even
 * parts; of equals the outermost, whose parts are one piece of memory. What weight w (-1: there is
 * none) walks is taken only where it meets its like. */
static int8_t positions_of(const placer *c, const ll_node *n, const ll_loops *l, int axis, int w)
{
    const ll_layout *at = &c->p->seen[n->out[0].id];
    const ll_shape *s = &value(c, n->out[0])->type.shape;
    int p = c->m->size[axis], best = -1;
    double least = INFINITY, even = INFINITY;
    for (int d = 0; d < s->n; d++) {
        int64_t left = s->d[d] / ll_mesh_group(c->m, at->split[d]);
        /* an axis joins a dimension inside of those that cut it (mesh.h) */
        int loop = l->out[0][d]; /* -1: has none */
        if (loop < 0 || l->window[loop] || at->split[d] >> axis || left < p) continue;
        double cost = conflict(c, n->out[0], d, axis, 0);
        double uneven = (double)ll_round_up(left, p) / (double)left; /* the longest part's excess */
        if (cost > least || (cost == least && uneven >= even)) continue;
        if (cost > 0 && w >= 0 && ll_dim_of(l->in[w], loop) >= 0) continue;
        best = d;
        least = cost;
        even = uneven;
    }
    return (int8_t)(best + 1);
}

/* With exact sums the gradients of keys and values are products that owe a sum over positions,
 * which no linear op passes on: readers have them cut, as the gradient of queries is. */
static bool is_of_keys(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop)
{
    return c->o->exact && ll_mesh_kind(c->m, a) == LL_AXIS_SEQUENCE && loop >= 0 &&
           l->combine[loop] == LL_SUM && n->n_in == 2 && !c->aim[n->out[0].id].id;
}

void ll_place_positions(placer *c, int node, const ll_loops *l)
{
    const ll_node *n = &c->g->nodes[node];
    for (int a = 0; a < c->m->n && n->n_out == 1; a++) {
        int loop = c->p->loop[node][a];
        int8_t *to = &c->positions[n->out[0].id][a];
        if (is_of_keys(c, n, l, a, loop)) *to = positions_of(c, n, l, a, -1);
        if (ll_mesh_kind(c->m, a) != LL_AXIS_TENSOR) continue;
        if (c->p->through[node] & bit(a) && n->op->elementwise) *to = c->positions[n->in[0].id][a];
        for (int i = 0; i < n->n_in; i++)
            if (loop >= 0 && l->combine[loop] == LL_SUM && ll_dim_of(l->in[i], loop) >= 0 &&
                is_weight(c, n, l, i))
                *to = positions_of(c, n, l, a, i);
    }
}
