/* pipe.c: a session's pipeline: into how many stages, in which order they take micro-batches. */
#include "exec/session.h"

#include <string.h>

static bool trains(const ll_graph *g)
{
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].of.phase == LL_BACKWARD) return true;
    return false;
}

/* Stages of each rank. */
static int per_rank(const ll_session_opts *o, const char *schedule)
{
    bool v = !strcmp(schedule, "zb-v") || !strcmp(schedule, "dualpipe-v");
    bool several = v || !strcmp(schedule, "interleaved") || !strcmp(schedule, "breadth-first");
    return o->virtual_stages > 0 ? o->virtual_stages : several ? 2 : 1;
}

/* Without a backward pass: each stage once, one after another. */
static void plan_forward(ll_session *s, int me)
{
    ll_action *list = LL_NEW_ARRAY(s->arena, ll_action, s->stages->n);
    ll_pipe *pipe = LL_NEW(s->arena, ll_pipe);
    for (int i = 0; i < s->stages->n; i++)
        if (s->rank_of[i] == me) list[pipe->n_action++] = (ll_action){LL_ACT_F, i, 0};
    pipe->actions = list;
    pipe->slack = pipe->n_action;
    s->pipe = pipe;
}

/* The schedule, shown to end for what these stages send each other. */
static ll_err plan_schedule(ll_session *s, const ll_graph *g, const char *name, int n_rank, int me)
{
    ll_stage_edge *found;
    int n = ll_stages_edges(g, s->stages, s->arena, &found);
    ll_edge *edges = LL_NEW_ARRAY(s->arena, ll_edge, n + 1);
    for (int i = 0; i < n; i++) edges[i] = (ll_edge){found[i].from - 1, found[i].to - 1};
    ll_pipeline_report *report = LL_NEW(s->arena, ll_pipeline_report);
    ll_pipe *pipe = LL_NEW(s->arena, ll_pipe);
    TRY(ll_pipeline_make(s->arena, name, n_rank, s->stages->n, s->opts.micro_batches,
                         &s->pipeline));
    TRY(ll_pipeline_check(s->pipeline, edges, n, report));
    s->rank_of = s->pipeline->rank_of;
    *pipe = (ll_pipe){s->pipeline->actions[me], s->pipeline->n_action[me], report->slack};
    s->pipe = pipe;
    return LL_OK;
}

ll_err ll_session_plan_pipe(ll_session *s, const ll_graph *g, const ll_mesh *m, int rank)
{
    const ll_session_opts *o = &s->opts;
    const ll_session *like = o->share;
    const char *name = o->schedule ? o->schedule : "1f1b";
    int axis = ll_mesh_axis(m, LL_AXIS_PIPE), n_rank = m->size[axis];
    int me = ll_mesh_coord(m, axis, rank);
    CHECK(n_rank <= LL_MAX_PIPE, LL_E_SHARD, "pipe=%d: at most %d ranks can be along axis pipe",
          n_rank, LL_MAX_PIPE);
    if (like && like->stages) {
        TRY(ll_stages_like(g, like->stages, s->arena, &s->stages));
        s->rank_of = like->rank_of;
    } else {
        const ll_pipeline *p;
        int n_stage = n_rank * per_rank(o, name);
        TRY(ll_pipeline_make(s->arena, name, n_rank, n_stage, o->micro_batches, &p));
        TRY(ll_stages_find(g, n_stage, o->stages, s->arena, &s->stages));
        s->rank_of = p->rank_of;
    }
    if (trains(g)) return plan_schedule(s, g, name, n_rank, me);
    plan_forward(s, me);
    return LL_OK;
}
