/* rewrite.c: the common part of passes: copying a graph node by node; facts about values. */
#include "kern/attr.h"
#include "pass/pass.h"

void ll_rewrite_bare(ll_rewrite *rw, const ll_graph *from)
{
    *rw = (ll_rewrite){.from = from, .to = ll_graph_new(from->name)};
    rw->map = LL_NEW_ARRAY(rw->to->arena, ll_val, from->n_value);
    rw->to->of.at = -1;
}

void ll_rewrite_begin(ll_rewrite *rw, const ll_graph *from)
{
    ll_rewrite_bare(rw, from);
    for (int i = 1; i < from->n_value; i++)
        if (from->values[i].node < 0) rw->map[i] = ll_input_like(rw->to, &from->values[i]);
}

ll_err ll_rewrite_copy(ll_rewrite *rw, const ll_node *n)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    for (int i = 0; i < n->n_in; i++) in[i] = rw->map[n->in[i].id];
    ll_graph_at(rw->to, n);
    TRY(ll_emit_like(rw->to, rw->from, n, in, out));
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(rw, n->out[o], out[o]);
    return LL_OK;
}

ll_err ll_rewrite_expand(ll_rewrite *rw, const ll_node *n)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT] = {{0}};
    for (int i = 0; i < n->n_in; i++) in[i] = rw->map[n->in[i].id];
    ll_graph_at(rw->to, n);
    n->op->expand(rw->to, n->attr, in, n->n_in, out);
    TRY(ll_graph_check(rw->to));
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(rw, n->out[o], out[o]);
    return LL_OK;
}

void ll_rewrite_map(ll_rewrite *rw, ll_val old, ll_val new_value)
{
    rw->map[old.id] = new_value;
    ll_value_stands_for(rw->to, new_value, ll_value_of(rw->from, old));
}

static ll_err finish(ll_rewrite *rw)
{
    const ll_graph *g = rw->from;
    rw->to->scope[0] = '\0';
    rw->to->of = (ll_origin){.block = g->of.block, .at = -1, .phase = g->of.phase};
    for (int i = 0; i < g->n_result; i++)
        ll_graph_result(rw->to, g->results[i].name, rw->map[g->results[i].value.id]);
    for (int i = 0; i < g->n_update; i++)
        ll_graph_update(rw->to, rw->map[g->updates[i].input.id], rw->map[g->updates[i].next.id]);
    return ll_verify(rw->to);
}

ll_err ll_rewrite_end(ll_rewrite *rw, ll_err so_far, ll_graph **out)
{
    if (so_far == LL_OK) so_far = finish(rw);
    if (so_far != LL_OK) {
        ll_graph_free(rw->to);
        return ll_frame(so_far, __FILE__, __LINE__, __func__);
    }
    *out = rw->to;
    return LL_OK;
}

void ll_mark_results(const ll_graph *g, bool *marked)
{
    for (int i = 0; i < g->n_result; i++) {
        int m = ll_value_of(g, g->results[i].value)->node;
        if (m >= 0) marked[m] = true;
    }
}

void ll_mark_makers(const ll_graph *g, bool *marked)
{
    for (int i = g->n_node - 1; i >= 0; i--)
        for (int k = 0; marked[i] && k < g->nodes[i].n_in; k++) {
            int m = ll_value_of(g, g->nodes[i].in[k])->node;
            if (m >= 0) marked[m] = true;
        }
}

bool *ll_micro_nodes(const ll_graph *g, ll_arena *arena)
{
    bool *micro = LL_NEW_ARRAY(arena, bool, g->n_node + 1);
    for (int i = 0; i < g->n_node; i++) micro[i] = ll_is_mean(&g->nodes[i]);
    ll_mark_makers(g, micro);
    return micro;
}

const bool *ll_varying(const ll_graph *g, ll_arena *arena)
{
    bool *varies = LL_NEW_ARRAY(arena, bool, g->n_value);
    for (int i = 1; i < g->n_value; i++)
        varies[i] = g->values[i].node < 0 && g->values[i].kind == LL_BATCH;
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        bool any = n->op->random;
        if (n->op->collective == LL_RECV)
            any = ((const ll_message_attr *)n->attr)->when == LL_EACH_MICRO;
        for (int k = 0; k < n->n_in; k++) any |= varies[n->in[k].id];
        any &= n->op != &ll_op_accum;
        for (int o = 0; o < n->n_out; o++) varies[n->out[o].id] = any;
    }
    return varies;
}

const int *ll_uses(const ll_graph *g, ll_arena *arena)
{
    int *uses = LL_NEW_ARRAY(arena, int, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) uses[g->nodes[i].in[k].id]++;
    for (int i = 0; i < g->n_result; i++) uses[g->results[i].value.id]++;
    for (int i = 0; i < g->n_update; i++) uses[g->updates[i].next.id]++;
    return uses;
}
