/* only.c: the part of a graph that makes one value: without what else it gives, and without the
 * inputs that only that reads. */
#include "pass/pass.h"

static ll_err copy(ll_rewrite *rw, ll_val v, const char *name, const bool *live)
{
    const ll_graph *g = rw->from;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *x = &g->values[i];
        if (x->node < 0 && live[i])
            rw->map[i] = ll_input(rw->to, x->name, x->kind, x->type, x->init);
    }
    for (int i = 0; i < g->n_node; i++)
        if (live[g->nodes[i].out[0].id]) TRY(ll_rewrite_copy(rw, &g->nodes[i]));
    rw->to->scope[0] = '\0';
    ll_graph_result(rw->to, name, rw->map[v.id]);
    TRY(ll_graph_check(rw->to));
    return ll_verify(rw->to);
}

ll_err ll_only(const ll_graph *g, ll_val v, const char *name, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw = {.from = g, .to = ll_graph_new(g->name)};
    rw.map = LL_NEW_ARRAY(rw.to->arena, ll_val, g->n_value);
    rw.to->of.at = -1;
    bool *live = LL_NEW_ARRAY(rw.to->arena, bool, g->n_value);
    live[v.id] = true;
    ll_err rc = copy(&rw, v, name, ll_needed(g, live));
    if (rc == LL_OK)
        *out = rw.to;
    else
        ll_graph_free(rw.to);
    return rc;
}
