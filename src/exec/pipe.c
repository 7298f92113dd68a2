/* pipe.c: pipelines planned. */
#include "exec/pipe.h"

#include "base/num.h"
#include "base/text.h"

#include <stdio.h>

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
          "the schedule is for %d ranks, but the mesh has pipe=%d: use pipe=%d", p->n_rank,
          m->size[axis], p->n_rank);
    CHECK(p->n_micro == o->n_micro, LL_E_ARG,
          "the schedule is for %d micro-batches, but there are %d: make a micro-batch a %s "
          "of the batch",
          p->n_micro, o->n_micro, p->n_micro == 1 ? "whole" : "part");
    return LL_OK;
}

/* ---- memory ---- */

/* Plans for one aim, and aims, each a part of the one before. */
enum { TRIES = 8, AIMS = 4 };
static const double next_aim = 0.88;

/* Bytes that a rank has for what the account of stages knows of. */
static double room_of(const ll_room *room, int rank)
{
    return room->limit * pow(next_aim, room->n_try / TRIES) - room->over[rank];
}

/* What each rank holds: its stages' own, and of micro-batches as many as the schedule says. */
static ll_err find_held(ll_pipe_plan *p, ll_arena *a)
{
    ll_pipeline_times t;
    ll_pipeline_costs costs = p->costs;
    costs.bytes = p->stages->kept + 1;
    TRY(ll_pipeline_simulate(a, p->pipeline, &costs, &t));
    double *held = LL_NEW_ARRAY(a, double, p->pipeline->n_rank);
    for (int r = 0; r < p->pipeline->n_rank; r++) held[r] = t.peak[r];
    for (int s = 0; s < p->stages->n; s++) held[p->rank_of[s]] += p->stages->fixed[s + 1];
    p->held = held;
    return LL_OK;
}

/* By costs, and within the room that stages leave for activations; of one micro-batch at least. */
static ll_err plan_auto(ll_pipe_plan *p, int n_rank, const ll_pipe_opts *o, ll_arena *a)
{
    int n = p->stages->n;
    if (!o->room || !o->room->n_try)
        return ll_pipeline_auto(a, &p->costs, NULL, n_rank, n, o->n_micro, &p->pipeline);
    ll_pipeline_costs costs = p->costs;
    double *limit = LL_NEW_ARRAY(a, double, n_rank), *one = LL_NEW_ARRAY(a, double, n_rank);
    for (int r = 0; r < n_rank; r++) limit[r] = room_of(o->room, r);
    for (int s = 0; s < n; s++) {
        limit[s % n_rank] -= p->stages->fixed[s + 1];
        one[s % n_rank] += p->stages->kept[s + 1];
    }
    for (int r = 0; r < n_rank; r++) limit[r] = fmax(limit[r], one[r]);
    costs.bytes = p->stages->kept + 1;
    return ll_pipeline_auto(a, &costs, limit, n_rank, n, o->n_micro, &p->pipeline);
}

/* Micro-batches that each stage holds at once, at most. */
static const int *find_in_flight(const ll_pipeline *p, ll_arena *a)
{
    int *most = LL_NEW_ARRAY(a, int, p->n_stage), *now = LL_NEW_ARRAY(a, int, p->n_stage);
    for (int r = 0; r < p->n_rank; r++)
        LL_EACH (const ll_action, x, p->actions[r], p->n_action[r]) {
            if (x->kind != LL_ACT_I) now[x->stage] += x->kind == LL_ACT_F ? 1 : -1;
            if (now[x->stage] > most[x->stage]) most[x->stage] = now[x->stage];
        }
    return most;
}

/* Of the stages of a rank each has its share. */
static const ll_stage_room *stage_room(const ll_room *room, const ll_pipeline *p, ll_arena *a)
{
    ll_stage_room *x = LL_NEW(a, ll_stage_room);
    double *limit = LL_NEW_ARRAY(a, double, p->n_stage);
    for (int s = 0; s < p->n_stage; s++)
        limit[s] = room_of(room, p->rank_of[s]) * p->n_rank / p->n_stage;
    *x = (ll_stage_room){limit, find_in_flight(p, a)};
    return x;
}

ll_room ll_room_of(const ll_session_opts *asked, const ll_graph *g)
{
    ll_room room = {.arena = g->arena,
                    .limit = (double)asked->memory,
                    .offload = asked->offload,
                    .recompute = asked->recompute,
                    .schedule = asked->schedule,
                    .whole = true};
    LL_EACH (const ll_value, v, g->values + 1, g->n_value - 1)
        if (ll_is_batch(v) && v->type.shape.n && v->type.shape.d[0] > 1) room.whole = false;
    return room;
}

size_t ll_room_aside(const ll_room *room)
{
    return room->aside ? (size_t)fmax(room->limit - room->beside, 1) : 0;
}

static bool is(const char *asked, const char *what)
{
    return asked && !strcmp(asked, what);
}

/* What would make it less, and was not asked for. */
static const char *tell_ways(const ll_room *room, bool piped, char out[128])
{
    int n = snprintf(out, 128, "%s%s%s%s", room->offload ? "" : "offload, ",
                     is(room->recompute, "full") ? "" : "recompute full, ",
                     room->whole ? "" : "smaller micro-batches, ",
                     piped && !is(room->schedule, "auto") ? "schedule auto, " : "");
    snprintf(out + n, 128 - (size_t)n, "%smore %s", n ? "or " : "", piped ? "stages" : "ranks");
    return out;
}

/* With a limit that is told to do, plans are made anew: what fits one may not be found by another.
 */
static void ask_for_more(ll_room *room)
{
    double limit = fmax(room->least, room->limit * (1 + room->step));
    ll_room more = {.arena = room->arena,
                    .seen = room->seen,
                    .n_seen = room->n_seen,
                    .cap_seen = room->cap_seen,
                    .offload = room->offload,
                    .recompute = room->recompute,
                    .schedule = room->schedule,
                    .whole = room->whole,
                    .refused = room->refused > 0 ? room->refused : room->limit,
                    .step = fmax(2 * room->step, 1. / 32)};
    ll_text_to_bytes(LL_BYTES_UP(limit), &more.limit);
    *room = more;
}

static ll_err refuse(const ll_room *room, bool piped)
{
    char ways[128];
    FAIL(LL_E_MEM, "memory %s is too little: %s takes %s%s%s: allow that, or try %s",
         LL_BYTES_DOWN(room->refused),
         piped ? "of the stages and schedules tried, with the best the fullest rank"
               : "a rank's program",
         LL_BYTES_UP(room->limit),
         room->wide ? ", counting steps of exact sums repeated with all bits" : "",
         room->offload ? " besides what is offloaded" : "", tell_ways(room, piped, ways));
}

static bool is_piped(const ll_pipe_plan *p)
{
    return p && p->held;
}

/* All that ranks' programs follow from, of what changes from try to try. */
static uint64_t key_of(const ll_room *room, const ll_pipe_plan *p)
{
    double aside = room->aside ? room->limit : 0;
    uint64_t h = ll_hash(LL_HASH, &aside, sizeof aside);
    if (!is_piped(p)) return h;
    const ll_pipeline *x = p->pipeline;
    h = ll_hash(h, p->stages->of_at, sizeof(int) * (size_t)(p->stages->n_at + 1));
    h = ll_hash(h, x->rank_of, sizeof(int) * (size_t)x->n_stage);
    for (int r = 0; r < x->n_rank; r++)
        h = ll_hash(h, x->actions[r], sizeof(ll_action) * (size_t)x->n_action[r]);
    return h;
}

const double *ll_room_knows(const ll_room *room, const ll_pipe_plan *p)
{
    uint64_t key = room->n_seen ? key_of(room, p) : 0;
    LL_EACH (const ll_room_seen, x, room->seen, room->n_seen)
        if (x->key == key) return x->used;
    return NULL;
}

/* But with steps made again, whose bytes are those of the try before where values lie aside. */
static void remember(ll_room *room, const ll_pipe_plan *p, const double *used, int n)
{
    const double *kept = (const double *)ll_arena_copy(room->arena, used, sizeof *used * (size_t)n);
    if (!room->wide && !ll_room_knows(room, p))
        LL_PUSH(room->arena, room->seen, room->n_seen, room->cap_seen,
                (ll_room_seen){key_of(room, p), kept});
}

ll_err ll_room_judge(ll_room *room, const ll_pipe_plan *p, const double *used, bool *again)
{
    bool piped = is_piped(p);
    int n = piped ? p->pipeline->n_rank : 1;
    double most = 0;
    for (int r = 0; r < n; r++) most = fmax(most, used[r]);
    *again = false;
    if (room->limit <= 0 || most <= room->limit)
        return room->refused > 0 ? refuse(room, piped) : LL_OK;
    remember(room, p, used, n);
    room->least = room->least > 0 ? fmin(room->least, most) : most;
    *again = true;
    if (room->offload && !room->aside) {
        room->aside = true; /* ranks that lay aside run nodes in another order: may take more */
        return LL_OK;
    }
    for (int r = 0; r < n && piped; r++) {
        double excess = used[r] - room->limit; /* stages and schedules move by leaps */
        int nth = room->n_try % TRIES;
        if (nth == TRIES - 1)
            room->push[r] = 0; /* from one leap to the next may be too far: with another aim */
        else if (nth && excess > 0)
            room->push[r] += fmax(excess / 2, 0.01 * nth * room->limit);
        room->over[r] = used[r] - p->held[r] + room->push[r];
    }
    room->n_try++;
    bool far = room->n_try == TRIES && room->least > 2 * room->limit; /* no aim comes so near */
    if (!piped || far || room->n_try >= TRIES * AIMS) ask_for_more(room);
    return LL_OK;
}

static ll_err plan_schedule(ll_pipe_plan *p, const ll_graph *g, const char *name, int n_rank,
                            const ll_pipe_opts *o, ll_arena *a)
{
    int n_edge;
    const ll_edge *edges = find_edges(g, p->stages, a, &n_edge);
    find_costs(p, g, edges, n_edge, a);
    if (!strcmp(name, "auto"))
        TRY(plan_auto(p, n_rank, o, a));
    else if (!p->pipeline)
        TRY(ll_pipeline_make(a, name, n_rank, p->stages->n, o->n_micro, &p->pipeline));
    TRY(ll_pipeline_check(p->pipeline, edges, n_edge, &p->report));
    p->rank_of = p->pipeline->rank_of;
    CHECK(strcmp(name, "2bw") || p->pipeline->overlaps, LL_E_ARG,
          "schedule 2bw, whose steps overlap, needs 2 micro-batches or more on 2 ranks or more: "
          "make a micro-batch a part of the batch");
    if (o->room) TRY(find_held(p, a));
    CHECK(p->report.ascending, LL_E_ARG,
          "the schedule takes micro-batches of a stage out of order, so sums over them would "
          "differ from a serial run's: keep them in order");
    return LL_OK;
}

static ll_err plan_stages(ll_pipe_plan *p, const ll_graph *g, const char *name, int n_rank,
                          const ll_pipe_opts *o, ll_arena *a)
{
    const ll_pipeline *any = p->pipeline;
    int each = o->virtual_stages > 0 ? o->virtual_stages : ll_pipeline_stages(name);
    int n = any ? any->n_stage : n_rank * each;
    bool any_order = !strcmp(name, "auto"); /* stands for it while stages are cut */
    if (!any)                               /* its name, before all else */
        TRY(ll_pipeline_make(a, any_order ? "interleaved" : name, n_rank, n, o->n_micro, &any));
    const ll_stage_room *room = o->room && o->room->n_try ? stage_room(o->room, any, a) : NULL;
    TRY(ll_stages_find(g, n, o->stages, room, a, &p->stages));
    p->rank_of = any->rank_of;
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
        TRY(ll_pipeline_parse(arena, name, strlen(name), "schedule", &p->pipeline));
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

ll_err ll_pipe_overlaps(const ll_graph *g, const char *mesh, const char *schedule, bool *out)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_pipeline *p;
    ll_mesh m;
    *out = false;
    TRY(ll_mesh_parse(mesh ? mesh : "", &m));
    if (!schedule || !trains(g) || ll_mesh_axis(&m, LL_AXIS_PIPE) < 0) return LL_OK;
    *out = !strcmp(schedule, "2bw");
    if (!is_text(schedule)) return LL_OK;
    TRY(ll_pipeline_parse(a, schedule, strlen(schedule), "schedule", &p));
    *out = p->overlaps;
    return LL_OK;
}

/* Of a rank's actions, where steps overlap, those of a span. */
static ll_pipe *span_of(const ll_pipe_plan *p, int me, ll_pipe_span span, ll_arena *arena)
{
    const ll_pipeline *all = p->pipeline;
    ll_action *list = LL_NEW_ARRAY(arena, ll_action, all->n_action[me] + 1);
    ll_pipe *x = LL_NEW(arena, ll_pipe);
    *x = (ll_pipe){.actions = list, .slack = p->report.slack, .span = span, .all = all};
    for (int k = 0; k < all->n_action[me]; k++)
        if (span == LL_ANY_STEP || all->actions[me][k].before == (span == LL_LEFT_OVER))
            list[x->n_action++] = all->actions[me][k];
    for (int r = 0; r < all->n_rank; r++)
        for (int k = 0; k < all->n_action[r]; k++)
            if (all->actions[r][k].before && k >= x->settled) x->settled = k + 1;
    if (span == LL_FIRST_STEP) x->left = span_of(p, me, LL_LEFT_OVER, arena);
    return x;
}

const ll_pipe *ll_pipe_of(const ll_pipe_plan *p, const ll_mesh *m, int rank, ll_pipe_span span,
                          ll_arena *arena)
{
    int me = ll_mesh_coord(m, ll_mesh_axis(m, LL_AXIS_PIPE), rank);
    if (p->pipeline && p->pipeline->overlaps)
        return span_of(p, me, span == LL_WHOLE_STEP ? LL_ANY_STEP : span, arena);
    ll_pipe *x = LL_NEW(arena, ll_pipe);
    if (p->pipeline) {
        x->actions = p->pipeline->actions[me];
        x->n_action = p->pipeline->n_action[me];
        x->slack = p->report.slack;
        return x;
    }
    ll_action *list = LL_NEW_ARRAY(arena, ll_action, p->stages->n);
    for (int i = 0; i < p->stages->n; i++)
        if (p->rank_of[i] == me) list[x->n_action++] = (ll_action){LL_ACT_F, i, 0, 0};
    x->actions = list;
    x->slack = x->n_action;
    return x;
}

ll_err ll_pipe_partition(const ll_pipe_plan *p, const ll_placement *place, int rank, ll_graph **out)
{
    LL_OWN(ll_graph) whole = NULL;
    LL_OWN(ll_graph) simple = NULL;
    TRY(ll_partition(place, rank, &whole));
    TRY(ll_simplify(whole, &simple));
    return ll_stages_cut(simple, p->stages, &place->mesh, rank, p->rank_of, out);
}
