/* place_detour.c: what to do where operands are cut along a loop that must be whole.
 *
 * One way is the op's expansion, whose nodes gather what they need: attention over a cut sequence
 * then gathers keys and values. The other is a detour: operands are brought to a cut along a free
 * loop by all-to-alls, the op runs as it is, and its results are brought back to where those of
 * the expansion would lie. Of attention's heads that makes DeepSpeed-Ulysses (Jacobs et al., 2023).
 *
 *     p ranks, qkv [b,t,3,h,d] cut along t, each rank's bytes in units of [b,t,h,d] (p-1)/p:
 *     expansion   2 (keys, values) forward; backward 3 (queries, do; dq), the keys staying cut
 *     detour      3/p there, 1/p back; 1/p there (qkv is still held), 3/p back
 *
 * Both are priced by bytes sent and arithmetic of the rank with most of it. The expansion is priced
 * by placing and cutting it, alone in a graph. No op is known here. */
#include "pass/place_int.h"

#include "base/num.h"

#include <stdio.h>

enum { WHOLE_BIT = 15 };

bool ll_place_holds(const placer *c, ll_val v, int axis, int dim)
{
    return c->held[v.id][axis] >> (dim < 0 ? WHOLE_BIT : dim) & 1;
}

static void hold(placer *c, ll_val v, int axis, int dim)
{
    c->held[v.id][axis] |= (uint16_t)(1u << (dim < 0 ? WHOLE_BIT : dim));
}

void ll_place_hold(placer *c, int node, const ll_loops *l)
{
    const ll_node *n = &c->g->nodes[node];
    for (int a = 0; a < c->m->n; a++) {
        if (c->p->through[node] & bit(a)) continue;
        for (int i = 0; i < n->n_in; i++) {
            int v = n->in[i].id;
            bool dropped = ll_value_of(c->g, n->in[i])->node < 0 &&
                           !ll_layout_equal(&c->p->made[v], &c->p->seen[v]);
            if (!dropped) hold(c, n->in[i], a, ll_dim_of(l->in[i], c->p->loop[node][a]));
        }
        for (int o = 0; o < n->n_out && c->home[a] >= 0; o++)
            hold(c, n->out[o], a, ll_dim_of(l->out[o], c->p->loop[node][a]));
    }
}

/* ---- layouts ---- */

/* The loops that axes cut: as chosen so far, axis as said, later ones as the operands are cut. */
static void cuts_with(const placer *c, int node, const ll_loops *l, int axis, int loop,
                      int8_t cuts[LL_MAX_AXES])
{
    const ll_node *n = &c->g->nodes[node];
    for (int a = 0; a < c->m->n; a++) {
        cuts[a] = a < axis ? c->p->loop[node][a] : -1;
        for (int i = 0; i < n->n_in && a > axis; i++) {
            int d = cut_dim(&c->p->seen[n->in[i].id], a);
            if (d >= 0 && cuts[a] < 0) cuts[a] = l->in[i][d];
        }
    }
    cuts[axis] = (int8_t)loop;
}

static double bytes_between(const placer *c, ll_val v, const ll_layout *from, const ll_layout *to)
{
    const ll_shape *s = &ll_value_of(c->g, v)->type.shape;
    ll_move moves[LL_MAX_MOVES];
    int n;
    double sum = 0;
    if (ll_reshard(c->m, s, ll_val_bytes(c->g, v), from, to, moves, &n) != LL_OK) return INFINITY;
    for (int i = 0; i < n; i++) sum += moves[i].bytes;
    return sum;
}

/* ---- the detour ---- */

/* Can all operands that axis cuts be cut along loop instead, and come back? */
static bool can_turn(const placer *c, int node, const ll_loops *l, int axis, int loop)
{
    const ll_node *n = &c->g->nodes[node];
    int64_t left = l->extent[loop];
    if (l->combine[loop] != LL_FREE || l->window[loop]) return false;
    for (int a = 0; a < c->m->n; a++)
        if (a < axis && c->p->loop[node][a] == loop) left /= c->m->size[a];
    if (left < c->m->size[axis]) return false;
    for (int i = 0; i < n->n_in; i++)
        if (cut_dim(&c->p->seen[n->in[i].id], axis) >= 0 && ll_dim_of(l->in[i], loop) < 0)
            return false;
    for (int o = 0; o < n->n_out; o++)
        if (ll_dim_of(l->out[o], loop) < 0) return false;
    return true;
}

/* There, and back to how results lie when home is cut. */
static double price_detour(const placer *c, int node, const ll_loops *l, int axis, int home,
                           int loop)
{
    const ll_node *n = &c->g->nodes[node];
    double bytes = 0, flops = ll_node_flops(c->g, n);
    int8_t there[LL_MAX_AXES], back[LL_MAX_AXES];
    cuts_with(c, node, l, axis, loop, there);
    cuts_with(c, node, l, axis, home, back);
    for (int i = 0; i < n->n_in; i++) {
        int d = ll_dim_of(l->in[i], loop);
        const ll_layout *from = &c->p->seen[n->in[i].id];
        ll_layout to = *from;
        if (ll_place_holds(c, n->in[i], axis, d)) continue;
        for (int k = 0; k < LL_MAX_DIMS; k++) to.split[k] &= (ll_axes)~bit(axis);
        to.sum &= (ll_axes)~bit(axis);
        to.max &= (ll_axes)~bit(axis);
        if (d >= 0) to.split[d] |= bit(axis);
        bytes += bytes_between(c, n->in[i], from, &to);
    }
    for (int o = 0; o < n->n_out; o++) {
        ll_layout from = ll_place_result(c, node, l, o, there);
        ll_layout to = ll_place_result(c, node, l, o, back);
        bytes += bytes_between(c, n->out[o], &from, &to);
    }
    for (int a = 0; a < c->m->n; a++) {
        int64_t all = there[a] >= 0 ? l->extent[there[a]] : 1, p = c->m->size[a];
        if (there[a] >= 0) flops *= (double)ll_ceil_div(all, p) / (double)all;
    }
    return bytes + flops / LL_FLOPS_PER_BYTE;
}

/* ---- the expansion ---- */

/* The node's expansion as a graph, with where its operands lie and results should. */
static ll_err expansion_alone(const placer *c, int node, const ll_loops *l,
                              const int8_t cuts[LL_MAX_AXES], ll_graph *g, ll_layout *at)
{
    const ll_node *n = &c->g->nodes[node];
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT] = {{0}};
    char name[32];
    for (int i = 0; i < n->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        in[i] = ll_input(g, name, LL_STATE, ll_value_of(c->g, n->in[i])->type, (ll_init){0});
        at[in[i].id] = c->p->seen[n->in[i].id];
        at[in[i].id].sum = at[in[i].id].max = 0;
    }
    for (int o = 0; o < n->n_out; o++) {
        snprintf(name, sizeof name, "out%d", o);
        out[o] = ll_input(g, name, LL_STATE, ll_value_of(c->g, n->out[o])->type, (ll_init){0});
        at[out[o].id] = ll_place_result(c, node, l, o, cuts);
    }
    ll_val made[LL_MAX_OUT] = {{0}};
    n->op->expand(g, n->attr, in, n->n_in, made);
    for (int o = 0; o < n->n_out; o++) ll_graph_update(g, out[o], made[o]);
    return ll_graph_check(g);
}

/* Of the last rank, whose parts are the longest. */
static ll_err price_graph(const placer *c, const ll_graph *whole, ll_layout *at, double *price)
{
    LL_OWN(ll_placement) p = NULL;
    LL_OWN(ll_graph) all = NULL;
    LL_OWN(ll_graph) g = NULL;
    ll_placement like = {.g = (ll_graph *)whole, .made = at, .seen = at};
    TRY(ll_place(whole, &(ll_place_opts){.mesh = c->m, .like = &like}, &p));
    TRY(ll_partition(p, c->m->n_rank - 1, &all));
    TRY(ll_sweep(all, &g));
    *price = 0;
    LL_EACH (const ll_node, n, g->nodes, g->n_node)
        *price += n->op->collective ? ll_collective_sent(c->m, n->op->collective, n->attr,
                                                         &ll_value_of(g, n->in[0])->type)
                                    : ll_node_flops(g, n) / LL_FLOPS_PER_BYTE;
    return LL_OK;
}

static ll_err price_expansion(const placer *c, int node, const ll_loops *l, int axis, int loop,
                              double *price)
{
    int8_t cuts[LL_MAX_AXES];
    ll_layout at[LL_MAX_IN + LL_MAX_OUT + 1] = {0};
    LL_OWN(ll_graph) g = ll_graph_new("expansion");
    cuts_with(c, node, l, axis, loop, cuts);
    TRY(expansion_alone(c, node, l, cuts, g, at));
    return price_graph(c, g, at, price);
}

/* ---- both ---- */

ll_err ll_turn_parse(const char *text, ll_turn *out)
{
    static const char *const names[] = {"auto", "heads", "rows"};
    for (int i = LL_TURN_AUTO; i <= LL_TURN_ROWS; i++) {
        *out = (ll_turn)i;
        if (!strcmp(text ? text : names[0], names[i])) return LL_OK;
    }
    FAIL(LL_E_ARG, "sequence is '%s', expected auto, heads or rows", text);
}

ll_err ll_place_detour(const placer *c, int node, const ll_loops *l, int axis, int loop,
                       int8_t *turn)
{
    const ll_node *n = &c->g->nodes[node];
    double best = INFINITY, expansion;
    ll_turn how = ll_mesh_kind(c->m, axis) == LL_AXIS_SEQUENCE ? c->o->sequence : LL_TURN_AUTO;
    *turn = -1;
    if (how == LL_TURN_ROWS) return LL_OK;
    for (int o = 0; o < n->n_out; o++)
        if (ll_dim_of(l->out[o], loop) < 0) return LL_OK; /* results would not know the way back */
    for (int k = 0; k < l->n; k++) {
        if (k == loop || !can_turn(c, node, l, axis, k)) continue;
        double price = price_detour(c, node, l, axis, loop, k);
        if (price <= best) *turn = (int8_t)k; /* of equals the later: heads rather than samples */
        best = fmin(best, price);
    }
    CHECK(*turn >= 0 || how != LL_TURN_HEADS, LL_E_SHARD,
          "%s: too few heads for %s=%d: use sequence=rows, or auto", n->name, c->m->name[axis],
          c->m->size[axis]);
    if (*turn < 0 || how == LL_TURN_HEADS) return LL_OK;
    TRY(price_expansion(c, node, l, axis, loop, &expansion));
    /* In favour of the detour: of what it holds the backward pass has most. */
    if (expansion <= 0.8 * best) *turn = -1;
    return LL_OK;
}
