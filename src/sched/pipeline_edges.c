/* pipeline_edges.c: edges between stages as lists of neighbours. */
#include "sched/pipeline_int.h"

static ll_hood make_hood(ll_arena *arena, int n_stage, const ll_edge *edges, int n_edge, bool after)
{
    ll_hood h = {LL_NEW_ARRAY(arena, int, n_stage + 2), LL_NEW_ARRAY(arena, int, n_edge),
                 LL_NEW_ARRAY(arena, int, n_edge)};
    for (int e = 0; e < n_edge; e++) h.first[(after ? edges[e].from : edges[e].to) + 2]++;
    for (int s = 0; s < n_stage; s++) h.first[s + 2] += h.first[s + 1];
    for (int e = 0; e < n_edge; e++) { /* first[s + 1] runs from where s begins to where it ends */
        int at = h.first[(after ? edges[e].from : edges[e].to) + 1]++;
        h.stage[at] = after ? edges[e].to : edges[e].from;
        h.edge[at] = e;
    }
    return h;
}

ll_err ll_hoods_make(ll_arena *arena, int n_stage, const ll_edge *edges, int n_edge, ll_hoods *out)
{
    if (!edges) {
        n_edge = n_stage - 1;
        ll_edge *line = LL_NEW_ARRAY(arena, ll_edge, n_stage);
        for (int s = 0; s < n_edge; s++) line[s] = (ll_edge){s, s + 1};
        edges = line;
    }
    for (int e = 0; e < n_edge; e++)
        CHECK(edges[e].from >= 0 && edges[e].from < edges[e].to && edges[e].to < n_stage, LL_E_ARG,
              "edge %d goes from stage %d to stage %d; of %d stages, to a later one would do", e,
              edges[e].from, edges[e].to, n_stage);
    out->before = make_hood(arena, n_stage, edges, n_edge, false);
    out->after = make_hood(arena, n_stage, edges, n_edge, true);
    return LL_OK;
}

ll_near_stages ll_hoods_of(const ll_hoods *hoods, ll_action_kind kind, int stage, bool reads)
{
    if (kind == LL_ACT_W) return (ll_near_stages){0};
    const ll_hood *h = (kind == LL_ACT_F) == reads ? &hoods->before : &hoods->after;
    int at = h->first[stage];
    return (ll_near_stages){h->stage + at, h->edge + at, h->first[stage + 1] - at};
}
