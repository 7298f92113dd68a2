/* delay.c: gradients of what parameters were a step before: what a pipeline whose steps overlap
 * trains by, written down as a graph, so that one process trains the same. */
#include "pass/pass.h"

/* Copies a node; what is not of the micro-batches reads the newest. next: [n_value] of inputs,
 * 0: there is one version. */
static ll_err copy(ll_rewrite *rw, const ll_node *n, bool micro, const ll_val *next)
{
    ll_val old[LL_MAX_IN];
    for (int k = 0; k < n->n_in; k++) {
        old[k] = rw->map[n->in[k].id];
        if (!micro && next[n->in[k].id].id) rw->map[n->in[k].id] = next[n->in[k].id];
    }
    TRY(ll_rewrite_copy(rw, n));
    for (int k = n->n_in - 1; k >= 0; k--) rw->map[n->in[k].id] = old[k];
    return LL_OK;
}

static ll_err delay(ll_rewrite *rw, ll_arena *arena)
{
    const ll_graph *g = rw->from;
    const bool *micro = ll_micro_nodes(g, arena);
    bool *read = LL_NEW_ARRAY(arena, bool, g->n_value);
    ll_val *next = LL_NEW_ARRAY(arena, ll_val, g->n_value);
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in && micro[i]; k++) read[g->nodes[i].in[k].id] = true;
    for (int i = 0; i < g->n_update; i++) {
        ll_val w = g->updates[i].input;
        const ll_value *v = ll_value_of(g, w);
        const char *name = ll_arena_printf(rw->to->arena, "%s" LL_NEXT, v->name);
        if (read[w.id]) next[w.id] = ll_input(rw->to, name, LL_STATE, v->type, v->init);
    }
    for (int i = 0; i < g->n_node; i++) TRY(copy(rw, &g->nodes[i], micro[i], next));
    LL_EACH (const ll_pair, u, g->updates, g->n_update) {
        ll_val newest = next[u->input.id], old = rw->map[u->input.id];
        ll_graph_update(rw->to, newest.id ? newest : old, rw->map[u->next.id]);
        if (newest.id) ll_graph_update(rw->to, old, newest);
    }
    return ll_graph_check(rw->to);
}

ll_err ll_delay(const ll_graph *g, ll_graph **out)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_graph plain = *g; /* updates are made here */
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    ll_err rc = delay(&rw, arena);
    plain.n_update = 0;
    rw.from = &plain;
    return ll_rewrite_end(&rw, rc, out);
}
