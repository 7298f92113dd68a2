/* place_loops.c: what cutting a node's loops says of its operands and results. */
#include "pass/place_int.h"

static bool in_all_results(const ll_node *n, const ll_loops *l, int loop)
{
    for (int o = 0; o < n->n_out; o++)
        if (ll_dim_of(l->out[o], loop) < 0) return false;
    return true;
}

bool ll_place_cuttable(const placer *c, int node, const ll_loops *l, int loop)
{
    const ll_node *n = &c->g->nodes[node];
    if (l->combine[loop] == LL_WHOLE && !n->op->expand) return false;
    if (l->combine[loop] == LL_FREE && !in_all_results(n, l, loop)) return false;
    for (int b = 0; l->window[loop] && b < c->m->n; b++)
        if (c->p->loop[node][b] == loop) return false;
    return true;
}

ll_layout ll_place_wanted(const ll_placement *p, int node, int operand, const ll_loops *l)
{
    ll_layout w = {.sum = p->through[node]};
    for (int a = 0; a < p->mesh.n; a++) {
        int d = ll_dim_of(l->in[operand], p->loop[node][a]);
        if (d >= 0) w.split[d] |= bit(a);
    }
    return w;
}

ll_layout ll_place_result(const placer *c, int node, const ll_loops *l, int out,
                          const int8_t cuts[LL_MAX_AXES])
{
    ll_layout r = {.sum = c->p->through[node]};
    for (int a = 0; a < c->m->n; a++) {
        int loop = cuts[a], d = ll_dim_of(l->out[out], loop);
        if (loop < 0) continue;
        if (d >= 0)
            r.split[d] |= bit(a);
        else if (l->combine[loop] == LL_SUM)
            r.sum |= bit(a);
        else if (l->combine[loop] == LL_MAX)
            r.max |= bit(a);
    }
    return r;
}
