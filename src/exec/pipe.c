/* pipe.c: pipelines planned. */
#include "exec/pipe.h"

#include "base/text.h"

#include <ctype.h>
#include <string.h>

static bool trains(const ll_graph *g)
{
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].of.phase == LL_BACKWARD) return true;
    return false;
}

/* Is it lines of actions, or cells, and no name? */
static bool is_text(const char *schedule)
{
    return strpbrk(schedule, "\n,") != NULL;
}

static ll_err read_schedule(ll_arena *a, const char *text, const ll_pipeline **out)
{
    const char *first = text + strspn(text, " \t\r\n");
    bool csv =
        isdigit((unsigned char)*first) || *first == ','; /* a cell; actions begin with a letter */
    return (csv ? ll_pipeline_parse_csv : ll_pipeline_parse)(a, text, strlen(text), "schedule",
                                                             out);
}

/* Stages of each rank. */
static int per_rank(const ll_pipe_opts *o, const char *name)
{
    static const char *const two[] = {"interleaved", "breadth-first", "zb-v", "dualpipe-v"};
    if (o->virtual_stages > 0) return o->virtual_stages;
    for (int i = 0; i < 4; i++)
        if (!strcmp(name, two[i])) return 2;
    return 1;
}

static void find_costs(ll_pipe_plan *p, const ll_graph *g, const ll_edge *edges, int n_edge,
                       ll_arena *a)
{
    int n = p->stages->n;
    const ll_stage_work *work = ll_stages_work(g, p->stages, a);
    double *send = LL_NEW_ARRAY(a, double, n_edge + 1), *f = LL_NEW_ARRAY(a, double, 3 * n);
    for (int i = 0; i < n; i++) {
        f[i] = work[i].f;
        f[n + i] = work[i].i;
        f[2 * n + i] = work[i].w;
    }
    for (int e = 0; e < n_edge; e++)
        send[e] = LL_FLOPS_PER_BYTE * p->stages->bytes[edges[e].from + 1];
    p->costs = (ll_pipeline_costs){.f = f, .i = f + n, .w = f + 2 * n, .edges = edges};
    p->costs.n_edge = n_edge;
    p->costs.send = send;
}

static const ll_edge *find_edges(const ll_graph *g, const ll_stages *s, ll_arena *a, int *n)
{
    ll_stage_edge *found;
    *n = ll_stages_edges(g, s, a, &found);
    ll_edge *edges = LL_NEW_ARRAY(a, ll_edge, *n + 1);
    for (int i = 0; i < *n; i++) edges[i] = (ll_edge){found[i].from - 1, found[i].to - 1};
    return edges;
}

static ll_err check_text(const ll_pipeline *p, const ll_mesh *m, int axis, const ll_pipe_opts *o)
{
    CHECK(p->n_rank == m->size[axis], LL_E_ARG,
          "the schedule is of %d ranks, and the mesh has pipe=%d: use pipe=%d", p->n_rank,
          m->size[axis], p->n_rank);
    CHECK(p->n_micro == o->n_micro, LL_E_ARG,
          "the schedule is of %d micro-batches, and there are %d: set train.micro_batch to a %s of "
          "the batch",
          p->n_micro, o->n_micro, p->n_micro == 1 ? "whole" : "part");
    return LL_OK;
}

static ll_err plan_schedule(ll_pipe_plan *p, const ll_graph *g, const char *name, int n_rank,
                            const ll_pipe_opts *o, ll_arena *a)
{
    int n_edge;
    const ll_edge *edges = find_edges(g, p->stages, a, &n_edge);
    find_costs(p, g, edges, n_edge, a);
    if (!strcmp(name, "auto"))
        TRY(ll_pipeline_auto(a, &p->costs, NULL, n_rank, p->stages->n, o->n_micro, &p->pipeline));
    else if (!p->pipeline)
        TRY(ll_pipeline_make(a, name, n_rank, p->stages->n, o->n_micro, &p->pipeline));
    TRY(ll_pipeline_check(p->pipeline, edges, n_edge, &p->report));
    p->rank_of = p->pipeline->rank_of;
    CHECK(
        p->report.ascending, LL_E_ARG,
        "the schedule takes micro-batches of a stage out of order: sums over them would be made in "
        "another order than the serial run's");
    return LL_OK;
}

static ll_err plan_stages(ll_pipe_plan *p, const ll_graph *g, const char *name, int n_rank,
                          const ll_pipe_opts *o, ll_arena *a)
{
    const ll_pipeline *any;
    int n = p->pipeline ? p->pipeline->n_stage : n_rank * per_rank(o, name);
    if (!p->pipeline && strcmp(name, "auto"))
        TRY(ll_pipeline_make(a, name, n_rank, n, o->n_micro, &any)); /* its name, before all else */
    TRY(ll_stages_find(g, n, o->stages, a, &p->stages));
    int *around = LL_NEW_ARRAY(a, int, n);
    for (int i = 0; i < n; i++) around[i] = i % n_rank;
    p->rank_of = p->pipeline ? p->pipeline->rank_of : strcmp(name, "auto") ? any->rank_of : around;
    return LL_OK;
}

ll_err ll_pipe_make(const ll_graph *g, const ll_mesh *m, const ll_pipe_opts *o, ll_arena *arena,
                    const ll_pipe_plan **out)
{
    const char *name = o->schedule ? o->schedule : "1f1b";
    int axis = ll_mesh_axis(m, LL_AXIS_PIPE), n_rank = m->size[axis];
    ll_pipe_plan *p = LL_NEW(arena, ll_pipe_plan);
    CHECK(n_rank <= LL_MAX_PIPE, LL_E_SHARD, "pipe=%d: at most %d ranks can be along axis pipe",
          n_rank, LL_MAX_PIPE);
    *out = p;
    if (is_text(name)) {
        TRY(read_schedule(arena, name, &p->pipeline));
        if (!o->like) TRY(check_text(p->pipeline, m, axis, o));
    }
    if (o->like) {
        p->stages = o->like->stages; /* of the same graph, unless it has no backward pass */
        if (!trains(g)) TRY(ll_stages_like(g, o->like->stages, arena, &p->stages));
        p->rank_of = o->like->rank_of;
    } else
        TRY(plan_stages(p, g, name, n_rank, o, arena));
    if (trains(g)) return plan_schedule(p, g, name, n_rank, o, arena);
    p->pipeline = NULL;
    return LL_OK;
}

const ll_pipe *ll_pipe_of(const ll_pipe_plan *p, const ll_mesh *m, int rank, ll_arena *arena)
{
    int me = ll_mesh_coord(m, ll_mesh_axis(m, LL_AXIS_PIPE), rank);
    ll_pipe *x = LL_NEW(arena, ll_pipe);
    if (p->pipeline) {
        *x = (ll_pipe){p->pipeline->actions[me], p->pipeline->n_action[me], p->report.slack};
        return x;
    }
    ll_action *list = LL_NEW_ARRAY(arena, ll_action, p->stages->n);
    for (int i = 0; i < p->stages->n; i++)
        if (p->rank_of[i] == me) list[x->n_action++] = (ll_action){LL_ACT_F, i, 0};
    x->actions = list;
    x->slack = x->n_action;
    return x;
}

ll_err ll_pipe_partition(const ll_pipe_plan *p, const ll_placement *place, int rank, ll_graph **out)
{
    ll_graph *whole, *simple;
    TRY(ll_partition(place, rank, &whole));
    ll_err rc = ll_simplify(whole, &simple);
    ll_graph_free(whole);
    TRY(rc);
    rc = ll_stages_cut(simple, p->stages, &place->mesh, rank, p->rank_of, out);
    ll_graph_free(simple);
    return rc;
}
