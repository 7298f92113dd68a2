/* session.c: a graph compiled and ready to run step by step (session_step.c): the public face of
 * exec. */
#include "exec/session.h"

#include "pass/layouts.h"

#include <omp.h>

/* Through this process's memory, from where on a larger message is no faster. */
static size_t bucket_bytes(const ll_session *s)
{
    if (!s->team || s->devices.direct) return 0;
    return ll_choose_bucket_bytes(ll_comm_table(s->team->c));
}

static int64_t compressed_axes(const ll_session *s)
{
    int data = s->opts.compress ? ll_mesh_axis(&s->team->m, LL_AXIS_DATA) : -1;
    return data < 0 ? 0 : 1 << data;
}

static ll_graph *whole(const ll_session *s)
{
    return s->lean ? s->lean : s->g;
}

ll_err ll_session_lower(const ll_session *s, bool no_fuse, ll_program **out)
{
    ll_precision precision;
    TRY(ll_precision_parse(s->opts.precision, &precision));
    return ll_lower(s->part ? s->part : whole(s),
                    &(ll_lower_opts){.target = s->machine->target,
                                     .precision = precision,
                                     .threads = s->opts.threads,
                                     .n_micro = s->opts.micro_batches,
                                     .any_order = s->opts.any_order,
                                     .ctx = s->ctx,
                                     .level = s->ctx ? s->machine->level(s->ctx) : 0,
                                     .no_fuse = no_fuse,
                                     .bucket_bytes = bucket_bytes(s),
                                     .subsets = s->team && !s->devices.direct && !s->pipe &&
                                                !ll_comm_has_window(s->team->c),
                                     .memory = no_fuse ? 0 : ll_room_aside(&s->room),
                                     .pipe = s->pipe,
                                     .solver = s->conv.solver,
                                     .ways = s->ways.n ? &s->ways : NULL,
                                     .limited = s->conv.limited,
                                     .workspace = s->conv.workspace,
                                     .blocking = s->opts.blocking && !s->pipe,
                                     .compress = compressed_axes(s)},
                    out);
}

/* The team of the session that it shares with, where it is of the same mesh: each set of axes then
 * has one communicator, with one window. */
static ll_err find_team(ll_session *s, const ll_mesh *m)
{
    const ll_session *like = s->opts.share;
    char mine[LL_MESH_TEXT], other[LL_MESH_TEXT] = "";
    if (like && like->team && like->team->c == s->opts.comm) ll_mesh_text(&like->team->m, other);
    s->guest = !strcmp(ll_mesh_text(m, mine), other);
    if (!s->guest) return ll_team_open(s->opts.comm, m, &s->team);
    s->team = like->team;
    return LL_OK;
}

static ll_err plan_stages(ll_session *s, const ll_graph *g, const ll_mesh *m)
{
    const ll_session_opts *o = &s->opts;
    ll_pipe_opts how = {.schedule = o->schedule, .virtual_stages = o->virtual_stages};
    how.stages = o->stages;
    how.n_micro = o->micro_batches;
    if (s->room.limit > 0) how.room = &s->room;
    if (o->share) how.like = o->share->plan;
    TRY(ll_pipe_make(g, m, &how, s->arena, &s->plan));
    int ranks = m->size[ll_mesh_axis(m, LL_AXIS_PIPE)];
    bool round = false; /* from the last rank to the first */
    for (int i = 1; i < s->plan->stages->n; i++)
        round |= s->plan->rank_of[i] < s->plan->rank_of[i - 1] - 1;
    CHECK(!round || !s->devices.direct, LL_E_ARG,
          "transport nccl does not carry stages that go round %d ranks (interleaved, "
          "breadth-first), which were seen to hang on GPUs: use host, or a schedule that does not "
          "(1f1b, zb-h2, zb-v, dualpipe-v)",
          ranks);
    return LL_OK;
}

/* Of this rank's part of the graph, what its stages do. */
static ll_err cut_stages(ll_session *s, const ll_graph *g, int rank)
{
    const ll_mesh *m = &s->place->mesh;
    if (!s->plan) TRY(plan_stages(s, g, m));
    s->pipe = ll_pipe_of(s->plan, m, rank, s->span, s->arena);
    return ll_pipe_partition(s->plan, s->place, rank, &s->part);
}

static ll_err check_no_pipe(const ll_session_opts *o)
{
    CHECK(!o->schedule && !o->stages && o->virtual_stages <= 1, LL_E_ARG,
          "schedule, stages and virtual_stages are of a pipeline: add pipe=2 or more to the mesh, "
          "or leave them out");
    return LL_OK;
}

/* Stages are planned before, for they do not find each other's values. */
static ll_err recompute(ll_session *s, const ll_mesh *m)
{
    ll_recompute_how how;
    TRY(ll_recompute_parse(s->opts.recompute, &how));
    if (how.policy == LL_RECOMPUTE_NONE) return LL_OK;
    if (ll_mesh_axis(m, LL_AXIS_PIPE) >= 0) {
        TRY(plan_stages(s, s->g, m));
        how.stage_of = s->plan->stages->of_at;
        how.n_at = s->plan->stages->n_at;
    }
    return ll_recompute(s->g, &how, &s->recomputed, &s->lean);
}

/* This rank's part of the graph. */
static ll_err partition(ll_session *s)
{
    const ll_session_opts *o = &s->opts;
    ll_mesh m;
    TRY(ll_mesh_parse(o->mesh ? o->mesh : "", &m));
    bool alone = !o->comm || ll_comm_size(o->comm) == 1;
    CHECK(!alone || m.n_rank == 1, LL_E_SHARD,
          "mesh \"%s\" is of %d ranks, but there is one: use -n %d", o->mesh, m.n_rank, m.n_rank);
    bool piped = ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0;
    if (!piped) TRY(check_no_pipe(o));
    TRY(recompute(s, &m));
    const ll_session *like = o->share;
    const ll_pin **pins;
    if (alone && !o->exact) /* nothing is cut, but a pattern must mean something */
        return ll_pins_find(whole(s), &m, o->layouts, like, s->arena, &pins);
    if (!alone) TRY(find_team(s, &m));
    ll_place_opts how = {.mesh = &m, .exact = o->exact, .zero = o->zero, .layouts = o->layouts};
    how.wide = s->wide;
    if (like) how.like = like->place;
    if (!alone) how.near = ll_mesh_near(&m, ll_comm_nodes(o->comm), 0);
    if (!alone)
        how.factors = ll_factors_of(o->compress, o->any_order || o->micro_batches > 1 ||
                                                     ll_comm_options(o->comm)->canonical);
    TRY(ll_overlap_parse(o->overlap, &how.overlap));
    TRY(ll_turn_parse(o->sequence, &how.sequence));
    if ((piped || o->exact) && o->micro_batches > 1) TRY(ll_means_apart(whole(s), &s->apart));
    const ll_graph *g = s->apart ? s->apart : whole(s);
    int rank = alone ? 0 : ll_comm_rank(o->comm);
    TRY(ll_place(g, &how, &s->place));
    if (piped) return cut_stages(s, g, rank);
    return ll_partition(s->place, rank, &s->part);
}

/* Ranks of a pipeline have different gradients, and a checkpoint wants to know of all of them. */
static ll_err check_residual(const char *codec)
{
    LL_OWN(ll_codec) k = NULL;
    TRY(ll_codec_open(codec, "pipeline", 1, 0, &k));
    CHECK(!ll_codec_residual(k), LL_E_SHARD,
          "compress %s keeps what it has not sent, which checkpoints of a pipeline do not hold: "
          "use bf16, f16 or qsgd:4, or a mesh without axis pipe",
          codec);
    return LL_OK;
}

/* Compression is of gradients that an all-reduce over axis data sums. */
static ll_err check_compress(ll_session *s)
{
    ll_session_opts *o = &s->opts;
    if (!o->compress || !strcmp(o->compress, "none")) {
        o->compress = NULL;
        return LL_OK;
    }
    const char *mesh = o->mesh ? o->mesh : "";
    CHECK(!o->exact, LL_E_ARG, "compress %s changes sums that exact keeps exact: use one of them",
          o->compress);
    CHECK(s->team, LL_E_SHARD,
          "compress %s is of gradients that ranks sum, and there is one rank: use -n 2 or more, or "
          "compress none",
          o->compress);
    CHECK(ll_mesh_axis(&s->team->m, LL_AXIS_DATA) >= 0, LL_E_SHARD,
          "compress %s is of gradients that are summed over axis data, which mesh \"%s\" does not "
          "have: add data=2 or more to it, or use compress none",
          o->compress, mesh);
    CHECK(!o->zero, LL_E_SHARD,
          "compress %s with zero %d: gradients that are kept in parts are summed by "
          "reduce-scatter, which no codec does: use zero 0, or compress none",
          o->compress, o->zero);
    if (!strcmp(o->compress, "factors")) o->compress = NULL; /* was a matter of the layout */
    bool piped = ll_mesh_axis(&s->team->m, LL_AXIS_PIPE) >= 0;
    return o->compress && piped ? check_residual(o->compress) : LL_OK;
}

/* Ranks that make the same value must come to the same bits; along axis data none do. */
static ll_err check_order(const ll_session *s)
{
    const ll_session_opts *o = &s->opts;
    const ll_mesh *m = s->team ? &s->team->m : NULL;
    int data = m ? ll_mesh_axis(m, LL_AXIS_DATA) : -1;
    if (!o->any_order) return LL_OK;
    CHECK(!o->exact, LL_E_ARG, "exact sums and sums in any order: use one or the other");
    CHECK(!m || (data >= 0 && m->size[data] == m->n_rank), LL_E_SHARD,
          "sums in any order with mesh \"%s\": ranks that make the same value would come to other "
          "bits: use axis data alone, or sums in order",
          o->mesh);
    CHECK(!m || !o->layouts || !o->layouts->pattern, LL_E_SHARD,
          "sums in any order with layout %s: ranks that make the same value would come to other "
          "bits: use sums in order",
          o->layouts->pattern);
    return LL_OK;
}

static ll_err check_offload(const ll_session *s)
{
    const ll_session_opts *o = &s->opts;
    CHECK(!o->offload || o->share || o->memory, LL_E_ARG,
          "offload lays aside what memory has no room for: say how much that is");
    CHECK(!o->offload || s->machine->map_aside, LL_E_ARG,
          "machine %s lays nothing aside: leave out offload, or use recompute",
          s->machine->target->name);
    char text[LL_ASIDE_TEXT];
    const char *why = o->offload ? ll_aside_refused(s->machine->target, o->offload, text) : NULL;
    CHECK(!why, LL_E_ARG, "offload %s: %s", o->offload, why);
    return LL_OK;
}

static ll_err compile(ll_session *s)
{
    CHECK(!s->opts.exact || !strcmp(s->opts.precision, "f32"), LL_E_ARG,
          "exact sums are of f32 numbers, and precision is %s: use one or the other",
          s->opts.precision);
    TRY(check_offload(s));
    TRY(partition(s));
    TRY(check_compress(s));
    TRY(check_order(s));
    TRY(ll_conv_read(s->machine->target, s->opts.conv, s->opts.workspace, &s->conv));
    if (s->machine->open_context) TRY(s->machine->open_context(s->devices.mine, &s->ctx));
    return ll_session_lower(s, false, &s->p);
}

/* What ranks do by themselves they agree on, before any goes on to what all do together. */
static ll_err agree(const ll_session *s, ll_err mine)
{
    return s->opts.comm ? ll_comm_agree(s->opts.comm, mine) : mine;
}

/* Which device is this rank's, and how they talk. */
static ll_err place_devices(ll_session *s)
{
    ll_comm *c = s->opts.comm && ll_comm_size(s->opts.comm) > 1 ? s->opts.comm : NULL;
    const char *transport = s->opts.transport, *codec = s->opts.compress;
    ll_device_ask ask = {.transport = transport,
                         .codec = codec && strcmp(codec, "none"),
                         .eight = !strcmp(s->opts.precision, "fp8")};
    TRY(agree(s, ll_machine_find(s->opts.machine, &s->machine)));
    if (!s->machine->place) {
        CHECK(!transport || !strcmp(transport, "auto"), LL_E_ARG,
              "transport %s is of devices, and machine %s has none", transport,
              s->machine->target->name);
        return LL_OK;
    }
    if (c) ask.canonical = ll_comm_options(c)->canonical;
    ll_mesh m;
    TRY(ll_mesh_parse(s->opts.mesh ? s->opts.mesh : "", &m));
    ask.pipe = ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0;
    return s->machine->place(c, &ask, s->arena, &s->devices);
}

ll_exec_opts ll_session_exec_opts(const ll_session *s)
{
    return (ll_exec_opts){.seed = s->opts.seed,
                          .undrawn = s->opts.undrawn,
                          .team = s->team,
                          .compress = s->opts.compress,
                          .offload = s->opts.offload,
                          .device = s->devices.mine,
                          .link = s->machine->links[s->devices.direct]};
}

/* Convolutions by what is quickest here. Exact sums are f64's, which has none to choose from. */
static ll_err choose_ways(ll_session *s)
{
    if (!s->conv.fast || s->opts.exact) return LL_OK;
    const char *path;
    s->ways.arena = s->arena;
    TRY(ll_choose_ways(s->p, s->opts.comm, s->conv.limited, &s->ways, &path));
    ll_program_free(s->p);
    s->p = NULL;
    return agree(s, ll_session_lower(s, false, &s->p));
}

/* What compiling has made. */
static void forget(ll_session *s)
{
    ll_program_free(s->p);
    ll_graph_free(s->part);
    ll_graph_free(s->apart);
    ll_graph_free(s->lean);
    ll_placement_free(s->place);
    if (!s->guest) ll_team_close(s->team);
    if (s->ctx) s->machine->close_context(s->ctx);
    s->p = NULL;
    s->part = s->apart = s->lean = NULL;
    s->place = NULL;
    s->team = NULL;
    s->ctx = NULL;
    s->plan = NULL;
}

static ll_err new_session(ll_graph *g, const ll_session_opts *opts, bool wide, ll_pipe_span span,
                          ll_session **out)
{
    *out = NULL;
    ll_session *s = (ll_session *)calloc(1, sizeof *s);
    CHECK(s, LL_E_MEM, "no memory for a session");
    s->g = g;
    s->opts = *opts;
    s->wide = wide;
    s->span = span;
    s->arena = ll_arena_new();
    if (!s->opts.precision) s->opts.precision = "f32";
    if (!s->opts.share) s->room.limit = (double)s->opts.memory;
    s->room.offload = s->opts.offload != NULL;
    s->room.recompute = s->opts.recompute;
    s->room.schedule = s->opts.schedule;
    if (s->opts.threads <= 0) s->opts.threads = omp_get_max_threads();
    if (s->opts.micro_batches <= 0) s->opts.micro_batches = 1;
    *out = s;
    return LL_OK;
}

ll_session_opts ll_session_wide_opts(ll_session *s)
{
    ll_session_opts o = s->opts;
    o.share = s;
    o.reuse = false;
    o.delay = false; /* of a graph that has it */
    return o;
}

/* What the program of a step that is made again with all bits takes beside this one's. */
static ll_err measure_wide(ll_session *s)
{
    LL_OWN(ll_session) w = NULL;
    ll_session_opts o = ll_session_wide_opts(s);
    TRY(new_session(s->g, &o, true, LL_WHOLE_STEP, &w));
    TRY(place_devices(w));
    TRY(agree(s, compile(w)));
    s->room.beside = (double)ll_exec_beside(w->p);
    return LL_OK;
}

/* Whether every rank's program is within the limit. */
static ll_err judge(ll_session *s, bool *again)
{
    double used[LL_MAX_PIPE] = {0};
    const ll_mesh *m = s->plan ? &s->team->m : NULL;
    *again = false;
    if (s->room.limit <= 0) return LL_OK;
    double *mine = &used[m ? ll_mesh_coord(m, ll_mesh_axis(m, LL_AXIS_PIPE), s->team->rank) : 0];
    s->room.wide = s->opts.exact && !s->wide;
    if (s->room.wide) TRY(measure_wide(s));
    *mine = (double)s->p->bytes + s->room.beside;
    if (s->team)
        TRY(ll_comm_allreduce(s->opts.comm, used, LL_MAX_PIPE, LL_F64, LL_REDUCE_MAX, NULL));
    return agree(s, ll_room_judge(&s->room, s->plan, used, again));
}

static ll_err open_parts(ll_session *s)
{
    TRY(place_devices(s));
    for (bool again = true; again;) {
        forget(s);
        TRY(agree(s, compile(s)));
        TRY(choose_ways(s));
        TRY(judge(s, &again));
    }
    ll_exec_opts o = ll_session_exec_opts(s);
    o.share = s->opts.share ? s->opts.share->e : NULL;
    o.reuse = s->opts.reuse;
    TRY(ll_exec_open(s->p, &o, &s->e));
    s->given = LL_NEW_ARRAY(s->arena, uint64_t, s->p->n_slot);
    s->kept = LL_NEW_ARRAY(s->arena, int, s->p->n_input + 1);
    for (int i = 0; i < s->p->n_input; i++) {
        ll_kind k = s->p->slots[s->p->inputs[i].slot].kind;
        if (k == LL_PARAM || k == LL_STATE) s->kept[s->n_kept++] = s->p->inputs[i].slot;
    }
    return LL_OK;
}

ll_err ll_session_compile(ll_graph *g, const ll_session_opts *opts, bool wide, ll_pipe_span span,
                          ll_session **out)
{
    LL_OWN(ll_session) s = NULL;
    *out = NULL;
    TRY(new_session(g, opts, wide, span, &s));
    if (s->opts.delay) TRY(ll_delay(g, &s->late));
    if (s->late) s->g = s->late;
    TRY(open_parts(s));
    return LL_HAND(out, s);
}

/* Whether a result would show what a product lost, so that the step can be made again. */
static bool tells_of_lost_bits(const ll_graph *g)
{
    return ll_find_result(g, "loss").id || ll_find_result(g, "grad_norm").id;
}

static ll_err check_after(const ll_graph *g, const ll_session_opts *o, bool overlaps)
{
    ll_mesh m;
    if (!o->post_validation || !g->n_update) return LL_OK;
    TRY(ll_mesh_parse(o->mesh ? o->mesh : "", &m));
    CHECK(ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0, LL_E_ARG,
          "post_validation is of a pipeline, whose stages would wait for each other: add pipe=2 or "
          "more to the mesh, or leave it out");
    CHECK(
        !overlaps, LL_E_ARG,
        "steps of schedule 2bw overlap, and nobody waits at their ends: leave out post_validation");
    CHECK(!o->offload && !o->memory, LL_E_ARG,
          "post_validation keeps parameters and state as they were, which memory and offload do "
          "not reckon with: use one or the other");
    return LL_OK;
}

/* Whether steps of this graph overlap. */
static ll_err find_overlap(const ll_graph *g, const ll_session_opts *o, bool *out)
{
    TRY(ll_pipe_overlaps(g, o->mesh, o->schedule, out));
    CHECK(!*out || !o->offload, LL_E_ARG,
          "offload lays aside what one step reads again, and steps of schedule 2bw overlap: use "
          "one of them");
    CHECK(!*out || !o->memory, LL_E_ARG,
          "memory is a limit of stages and schedules whose steps do not overlap: leave it out, or "
          "use another schedule than 2bw");
    return LL_OK;
}

/* What one step leaves for the next must be the same for all programs of them. */
static ll_err check_carries(const ll_session *s, const ll_session *other)
{
    int mine = 0, theirs = 0;
    for (int i = 0; i < s->p->n_input; i++)
        mine += s->p->slots[s->p->inputs[i].slot].kind == LL_CARRY;
    for (int i = 0; i < other->p->n_input; i++) {
        const ll_slot *x = &other->p->slots[other->p->inputs[i].slot];
        if (x->kind != LL_CARRY) continue;
        theirs++;
        CHECK(ll_program_input(s->p, x->name) >= 0, LL_E_GRAPH, "%s is left by no step", x->name);
    }
    CHECK(mine == theirs, LL_E_GRAPH, "%d values are left by a step, and %d found by another", mine,
          theirs);
    return LL_OK;
}

/* The ends of a row of steps that overlap. They work in this session's memory. */
static ll_err open_ends(ll_session *s)
{
    ll_session_opts o = s->opts;
    CHECK(!s->machine->wait, LL_E_ARG,
          "machine %s runs no steps that overlap: use machine cpu, or another schedule than 2bw",
          s->machine->target->name);
    o.share = s;
    o.reuse = true;
    o.delay = false; /* of a graph that has it */
    TRY(ll_session_compile(s->g, &o, s->wide, LL_FIRST_STEP, &s->first));
    TRY(ll_session_compile(s->g, &o, s->wide, LL_LEFT_OVER, &s->rest));
    ll_err rc = check_carries(s, s->first);
    return agree(s, rc == LL_OK ? check_carries(s, s->rest) : rc);
}

ll_err ll_session_open(ll_graph *g, const ll_session_opts *opts, ll_session **out)
{
    bool overlaps;
    ll_session_opts o = *opts;
    *out = NULL;
    ll_err fits = find_overlap(g, opts, &overlaps);
    if (fits == LL_OK) fits = check_after(g, opts, overlaps);
    TRY(opts->comm ? ll_comm_agree(opts->comm, fits) : fits);
    o.delay = overlaps || (o.delay && g->n_update); /* of what trains */
    /* A step cannot be made again on all bits when the next one has begun: they are taken at once,
     * and so by who trains the same. */
    bool wide = opts->exact && (o.delay || !tells_of_lost_bits(g));
    LL_OWN(ll_session) s = NULL;
    TRY(ll_session_compile(g, &o, wide, overlaps ? LL_ANY_STEP : LL_WHOLE_STEP, &s));
    if (overlaps) TRY(open_ends(s));
    if (o.post_validation && g->n_update) TRY(agree(s, ll_after_open(s)));
    return LL_HAND(out, s);
}

void ll_session_close(ll_session *s)
{
    if (!s) return;
    ll_session_close(s->more);
    ll_session_close(s->first);
    ll_session_close(s->rest);
    ll_after_close(s);
    ll_exec_close(s->e);
    forget(s);
    ll_graph_free(s->late);
    ll_arena_free(s->arena);
    free(s);
}

ll_axes ll_session_copies(const ll_session *s, const ll_layout *l)
{
    int pipe = ll_mesh_axis(&s->place->mesh, LL_AXIS_PIPE);
    ll_axes used = ll_layout_axes(l);
    return (ll_axes) ~(pipe < 0 ? used : used | 1u << pipe);
}

size_t ll_session_aside_bytes(const ll_session *s)
{
    size_t sum = 0;
    for (int i = 0; i < s->p->n_slot; i++)
        if (s->p->slots[i].region == LL_ASIDE && s->p->slots[i].kind == LL_STATE)
            sum += s->p->slots[i].bytes;
    return sum;
}

size_t ll_session_bytes(const ll_session *s)
{
    return s->p->bytes + s->e->extra_bytes;
}

void ll_session_rows(const ll_session *s, int64_t *first, int64_t *count)
{
    const ll_value *v = s->g->values + 1, *end = s->g->values + s->g->n_value;
    while (v < end && !ll_is_batch(v)) v++;
    LL_ASSERT(v < end && v->type.shape.n > 0);
    int64_t n = v->type.shape.d[0], to = n;
    ll_val there = s->team ? ll_find(s->place->g, v->name) : (ll_val){0};
    *first = 0;
    if (there.id) {
        const ll_layout *l = &s->place->made[there.id];
        ll_layout_range(&s->place->mesh, l->split[0], n, s->team->rank, first, &to);
    }
    *count = to - *first;
}
