/* session.c: a graph compiled and ready to run step by step: the public face of exec.
 *
 * A step is: every micro-batch, then what results need, then a look at them, then the update. A
 * loss or gradient that is not finite stops the step before parameters change; the step is then
 * run again node by node on the same data to name the first op that went wrong. */
#include "exec/session.h"

#include "comm/codec.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

/* Through this process's memory, from where on a larger message is no faster. */
static size_t bucket_bytes(const ll_session *s)
{
    if (!s->team || s->devices.direct) return 0;
    return ll_choose_bucket_bytes(ll_comm_table(ll_team_comm(s->team)));
}

static int64_t compressed_axes(const ll_session *s)
{
    int data = s->opts.compress ? ll_mesh_axis(ll_team_mesh(s->team), LL_AXIS_DATA) : -1;
    return data < 0 ? 0 : 1 << data;
}

static ll_graph *whole(const ll_session *s)
{
    return s->lean ? s->lean : s->g;
}

static ll_err lower(const ll_session *s, bool no_fuse, ll_program **out)
{
    ll_precision precision;
    TRY(ll_precision_parse(s->opts.precision, &precision));
    return ll_lower(
        s->part ? s->part : whole(s),
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
                                    !ll_comm_has_window(ll_team_comm(s->team)),
                         .memory = no_fuse || !s->opts.offload ? 0 : (size_t)s->room.limit,
                         .pipe = s->pipe,
                         .solver = s->conv.solver,
                         .ways = s->ways.n ? &s->ways : NULL,
                         .limited = s->conv.limited,
                         .workspace = s->conv.workspace,
                         .compress = compressed_axes(s)},
        out);
}

/* The team of the session that it shares with, where it is of the same mesh: each set of axes then
 * has one communicator, with one window. */
static ll_err find_team(ll_session *s, const ll_mesh *m)
{
    const ll_session *like = s->opts.share;
    char mine[LL_MESH_TEXT], other[LL_MESH_TEXT] = "";
    if (like && like->team && ll_team_comm(like->team) == s->opts.comm)
        ll_mesh_text(ll_team_mesh(like->team), other);
    s->guest = !strcmp(ll_mesh_text(m, mine), other);
    if (!s->guest) return ll_team_open(s->opts.comm, m, &s->team);
    s->team = like->team;
    return LL_OK;
}

/* The axes along which no rank's neighbours are on another node. */
static ll_axes near_axes(const ll_mesh *m, const ll_comm *c)
{
    const int *node = ll_comm_nodes(c);
    ll_axes near = 0;
    for (int a = 0; a < m->n; a++) {
        ll_axes axis = (ll_axes)(1u << a);
        bool all = true;
        for (int r = 0; r < m->n_rank; r++) all &= node[r] == node[ll_mesh_rank_of(m, axis, r, 0)];
        if (all) near |= axis;
    }
    return near;
}

static ll_err plan_stages(ll_session *s, const ll_graph *g, const ll_mesh *m)
{
    const ll_session_opts *o = &s->opts;
    ll_pipe_opts how = {.schedule = o->schedule, .virtual_stages = o->virtual_stages};
    how.stages = o->stages;
    how.n_micro = o->micro_batches;
    if (s->room.limit > 0) how.room = &s->room;
    if (o->share) how.like = o->share->plan;
    return ll_pipe_make(g, m, &how, s->arena, &s->plan);
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
    CHECK(
        !o->schedule && !o->stages && o->virtual_stages <= 1, LL_E_ARG,
        "schedule, stages and virtual_stages are of a pipeline: add pipe=2 or more to the mesh, or "
        "leave them out");
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
    if (alone && !o->exact) return LL_OK;
    const ll_session *like = o->share;
    if (!alone) TRY(find_team(s, &m));
    ll_place_opts how = {.mesh = &m, .exact = o->exact, .zero = o->zero, .layouts = o->layouts};
    how.wide = s->wide;
    if (like) how.like = like->place;
    if (!alone) how.near = near_axes(&m, o->comm);
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
    ll_codec *k;
    TRY(ll_codec_open(codec, "pipeline", 1, 0, &k));
    bool keeps = ll_codec_residual(k) != NULL;
    ll_codec_close(k);
    CHECK(
        !keeps, LL_E_SHARD,
        "compress %s keeps what it has not sent, which checkpoints of a pipeline do not hold: use "
        "bf16, f16 or qsgd:4, or a mesh without axis pipe",
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
    CHECK(ll_mesh_axis(ll_team_mesh(s->team), LL_AXIS_DATA) >= 0, LL_E_SHARD,
          "compress %s is of gradients that are summed over axis data, which mesh \"%s\" does not "
          "have: add data=2 or more to it, or use compress none",
          o->compress, mesh);
    CHECK(
        !o->zero, LL_E_SHARD,
        "compress %s with zero %d: gradients that are kept in parts are summed by reduce-scatter, "
        "which no codec does: use zero 0, or compress none",
        o->compress, o->zero);
    if (!strcmp(o->compress, "factors")) o->compress = NULL; /* was a matter of the layout */
    bool piped = ll_mesh_axis(ll_team_mesh(s->team), LL_AXIS_PIPE) >= 0;
    return o->compress && piped ? check_residual(o->compress) : LL_OK;
}

/* Ranks that make the same value must come to the same bits; along axis data none do. */
static ll_err check_order(const ll_session *s)
{
    const ll_session_opts *o = &s->opts;
    const ll_mesh *m = s->team ? ll_team_mesh(s->team) : NULL;
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
    return lower(s, false, &s->p);
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

static ll_exec_opts exec_opts(const ll_session *s)
{
    return (ll_exec_opts){.seed = s->opts.seed,
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
    return agree(s, lower(s, false, &s->p));
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

/* Whether every rank's program is within the limit. */
static ll_err judge(ll_session *s, bool *again)
{
    double used[LL_MAX_PIPE] = {0};
    const ll_mesh *m = s->plan ? ll_team_mesh(s->team) : NULL;
    *again = false;
    if (s->room.limit <= 0) return LL_OK;
    used[m ? ll_mesh_coord(m, ll_mesh_axis(m, LL_AXIS_PIPE), ll_team_rank(s->team)) : 0] =
        (double)s->p->bytes;
    if (s->team)
        TRY(ll_comm_allreduce(s->opts.comm, used, LL_MAX_PIPE, LL_F64, LL_REDUCE_MAX, NULL));
    return ll_room_judge(&s->room, s->plan, used, again);
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
    ll_exec_opts o = exec_opts(s);
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

static ll_err open_session(ll_graph *g, const ll_session_opts *opts, bool wide, ll_pipe_span span,
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
    if (s->opts.threads <= 0) s->opts.threads = omp_get_max_threads();
    if (s->opts.micro_batches <= 0) s->opts.micro_batches = 1;
    ll_err rc = s->opts.delay ? ll_delay(g, &s->late) : LL_OK;
    if (s->late) s->g = s->late;
    if (rc == LL_OK) rc = open_parts(s);
    if (rc != LL_OK) {
        ll_session_close(s);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    *out = s;
    return LL_OK;
}

/* Whether a result would show what a product lost, so that the step can be made again. */
static bool tells_of_lost_bits(const ll_graph *g)
{
    return ll_find_result(g, "loss").id || ll_find_result(g, "grad_norm").id;
}

/* Whether steps of this graph overlap. */
static ll_err find_overlap(const ll_graph *g, const ll_session_opts *o, bool *out)
{
    TRY(ll_pipe_overlaps(g, o->mesh, o->schedule, out));
    CHECK(
        !*out || !o->offload, LL_E_ARG,
        "offload lays aside what one step reads again, and steps of schedule 2bw overlap: use one "
        "of them");
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
    TRY(open_session(s->g, &o, s->wide, LL_FIRST_STEP, &s->first));
    TRY(open_session(s->g, &o, s->wide, LL_LEFT_OVER, &s->rest));
    ll_err rc = check_carries(s, s->first);
    return agree(s, rc == LL_OK ? check_carries(s, s->rest) : rc);
}

ll_err ll_session_open(ll_graph *g, const ll_session_opts *opts, ll_session **out)
{
    bool overlaps;
    ll_session_opts o = *opts;
    *out = NULL;
    TRY(find_overlap(g, opts, &overlaps));
    o.delay = overlaps || (o.delay && g->n_update); /* of what trains */
    /* A step cannot be made again on all bits when the next one has begun: they are taken at once,
     * and so by who trains the same. */
    bool wide = opts->exact && (o.delay || !tells_of_lost_bits(g));
    TRY(open_session(g, &o, wide, overlaps ? LL_ANY_STEP : LL_WHOLE_STEP, out));
    ll_err rc = overlaps ? open_ends(*out) : LL_OK;
    if (rc == LL_OK) return LL_OK;
    ll_session_close(*out);
    *out = NULL;
    return ll_frame(rc, __FILE__, __LINE__, __func__);
}

void ll_session_close(ll_session *s)
{
    if (!s) return;
    ll_session_close(s->more);
    ll_session_close(s->first);
    ll_session_close(s->rest);
    ll_exec_close(s->e);
    forget(s);
    ll_graph_free(s->late);
    ll_arena_free(s->arena);
    free(s);
}

static size_t whole_bytes(const ll_slot *x)
{
    return x->piece ? (size_t)ll_numel(&x->piece->whole) * ll_dtype_bytes(x->type.dtype) : x->bytes;
}

/* Of dimension 0 what this rank holds, of the others all. */
static ll_piece rows_piece(const ll_slot *x)
{
    ll_piece p = *x->piece;
    if (p.whole.n) p.whole.d[0] = x->type.shape.d[0];
    p.at[0] = 0;
    return p;
}

static size_t rows_bytes(const ll_slot *x)
{
    if (!x->piece) return x->bytes;
    ll_piece p = rows_piece(x);
    return (size_t)ll_numel(&p.whole) * ll_dtype_bytes(x->type.dtype);
}

ll_axes ll_session_copies(const ll_session *s, const ll_layout *l)
{
    int pipe = ll_mesh_axis(&s->place->mesh, LL_AXIS_PIPE);
    ll_axes used = ll_layout_axes(l);
    return (ll_axes) ~(pipe < 0 ? used : used | 1u << pipe);
}

/* An input that another stage of the pipeline has. */
static bool is_elsewhere(const ll_session *s, const char *name)
{
    return s->pipe && ll_program_input(s->p, name) < 0 && ll_program_result(s->p, name) < 0 &&
           ll_find(s->g, name).id;
}

static ll_err find_slot(const ll_session *s, const char *name, size_t bytes, int micro, bool set,
                        int *slot)
{
    *slot = ll_program_input(s->p, name);
    if (*slot < 0) *slot = ll_program_result(s->p, name);
    CHECK(*slot >= 0, LL_E_ARG, "the graph has no input or result named %s", name);
    const ll_slot *x = &s->p->slots[*slot];
    char shape[LL_SHAPE_TEXT];
    CHECK(bytes == x->bytes || bytes == whole_bytes(x) || (set && bytes == rows_bytes(x)), LL_E_ARG,
          "%s is %s%s, %zu bytes; %zu were given", name, ll_dtype_name(x->type.dtype),
          ll_shape_print(&x->type.shape, shape), x->bytes, bytes);
    CHECK(micro >= 0 && micro < (x->kind == LL_BATCH ? s->p->n_micro : 1), LL_E_ARG,
          "%s has no micro-batch %d", name, micro);
    return LL_OK;
}

ll_err ll_session_set(ll_session *s, const char *name, int micro, const void *data, size_t bytes)
{
    int slot;
    if (is_elsewhere(s, name)) return LL_OK;
    TRY(find_slot(s, name, bytes, micro, true, &slot));
    CHECK(!s->ahead || !ll_kind_stays(s->p->slots[slot].kind), LL_E_ARG,
          "%s is read by a step that is under way: ll_session_settle ends it", name);
    s->given[slot] |= 1ull << (micro % 64);
    const ll_slot *x = &s->p->slots[slot];
    if (bytes == x->bytes && !(x->piece && bytes == whole_bytes(x)))
        return ll_exec_put(s->e, slot, micro, data);
    void *to = ll_exec_data(s->e, slot, micro);
    ll_piece rows = bytes == whole_bytes(x) ? *x->piece : rows_piece(x);
    ll_piece_cut(&x->type, &rows, data, to);
    return ll_exec_changed(s->e, slot);
}

ll_err ll_session_get(ll_session *s, const char *name, void *data, size_t bytes)
{
    int slot = 0;
    bool result = ll_find_result(s->g, name).id;
    if (!result) TRY(ll_session_settle(s));
    if (s->now && result) s = s->now; /* of the last step */
    bool elsewhere = is_elsewhere(s, name);
    if (!elsewhere) TRY(find_slot(s, name, bytes, 0, false, &slot));
    const ll_slot *x = &s->p->slots[slot];
    ll_val v = s->team ? ll_find(s->place->g, name) : (ll_val){0};
    if (v.id && (elsewhere || bytes == whole_bytes(x))) {
        const ll_layout *l = &s->place->made[v.id];
        const ll_type *whole = &ll_value_of(s->place->g, v)->type;
        /* Of several that hold the same piece the first speaks. */
        bool first =
            ll_mesh_member(&s->place->mesh, ll_session_copies(s, l), ll_team_rank(s->team)) == 0;
        return ll_team_collect(s->team, l, whole,
                               elsewhere || !first ? NULL : ll_exec_data(s->e, slot, 0), data);
    }
    if (bytes) memcpy(data, ll_exec_data(s->e, slot, 0), bytes);
    return LL_OK;
}

double ll_session_result(ll_session *s, const char *name)
{
    if (s->now) s = s->now;
    int slot = ll_program_result(s->p, name);
    if (slot >= 0 && s->p->slots[slot].type.shape.n == 0) return ll_exec_scalar(s->e, slot);
    ll_err rc = RAISE(LL_E_ARG,
                      slot < 0 ? "the graph has no result %s"
                               : "result %s is no scalar: "
                                 "ll_session_get has it",
                      name);
    return rc == LL_OK ? 0 : NAN;
}

static ll_err set_scalar(ll_exec *e, const ll_program *p, const char *name, double v)
{
    int slot = ll_program_input(p, name);
    double room;
    if (slot < 0 || p->slots[slot].kind != LL_STEP) return LL_OK;
    ll_store(&room, p->slots[slot].type.dtype, 0, v);
    return ll_exec_put(e, slot, 0, &room);
}

/* Copies batch data and per-step scalars to the program that looks for the culprit. */
static ll_err copy_inputs(const ll_session *s, ll_exec *to, const ll_program *p)
{
    for (int i = 0; i < p->n_input; i++) {
        int a = ll_program_input(s->p, p->inputs[i].name), b = p->inputs[i].slot;
        if (a < 0 || ll_kind_stays(p->slots[b].kind)) continue;
        TRY(ll_exec_read(s->e, a, ll_exec_data(to, b, 0)));
        TRY(ll_exec_changed(to, b));
    }
    return LL_OK;
}

static ll_err run_until_bad(const ll_session *s, ll_exec *e)
{
    TRY(ll_exec_run_checked(e, LL_MICRO, s->step));
    return ll_exec_run_checked(e, LL_REPORT, s->step);
}

/* The step once more, node by node, in the memory of the one that failed where it fits. */
static ll_err run_again(ll_session *s, const ll_program *p)
{
    ll_exec *e;
    ll_exec_opts o = exec_opts(s);
    o.share = s->e;
    o.reuse = true;
    TRY(ll_exec_open(p, &o, &e));
    ll_err rc = copy_inputs(s, e, p);
    if (rc == LL_OK) rc = run_until_bad(s, e);
    ll_exec_close(e);
    return rc;
}

/* Names the first op whose result is not finite. */
static ll_err find_culprit(ll_session *s, const char *what, double value)
{
    ll_program *p = NULL;
    ll_err rc = lower(s, true, &p);
    if (rc == LL_OK) rc = run_again(s, p);
    ll_program_free(p);
    if (rc == LL_E_COMM) return rc;
    const char *found = rc == LL_OK          ? "every single op is finite when run again by itself"
                        : rc == LL_E_NUMERIC ? "the first op that went wrong: "
                                             : "which op went wrong could not be found out: ";
    FAIL(LL_E_NUMERIC, "step %llu: %s is %g; %s%s", (unsigned long long)s->step + 1, what, value,
         found, rc == LL_OK ? "" : ll_error_message());
}

/* A result that is not finite; NULL: none. */
static const char *not_finite(ll_session *s)
{
    static const char *const watched[] = {"loss", "grad_norm"};
    for (int i = 0; i < 2; i++)
        if (ll_program_result(s->p, watched[i]) >= 0 && !isfinite(ll_session_result(s, watched[i])))
            return watched[i];
    return NULL;
}

static ll_err open_wide(ll_session *s)
{
    ll_session_opts o = s->opts;
    o.share = s;
    o.reuse = false;
    o.delay = false; /* of a graph that has it */
    if (s->more) return LL_OK;
    size_t before = ll_arena_total();
    TRY(open_session(s->g, &o, true, LL_WHOLE_STEP, &s->more));
    const ll_session *w = s->more;
    size_t team = w->team ? ll_team_bytes(w->team) : 0; /* counted by the session that has it */
    s->wide_bytes = ll_exec_bytes(w->e) + ll_exec_comm_bytes(w->e) - team;
    s->wide_bytes += ll_arena_total() - before; /* its graphs: of exact sums they are large */
    return LL_OK;
}

ll_err ll_session_plan_wide(ll_session *s)
{
    if (!s->opts.exact || s->wide) return LL_OK;
    TRY(open_wide(s));
    ll_session_close(s->more); /* its graphs take memory too, and it is seldom needed */
    s->more = NULL;
    return LL_OK;
}

size_t ll_session_aside_bytes(const ll_session *s)
{
    size_t sum = 0;
    for (int i = 0; i < s->p->n_slot; i++)
        if (s->p->slots[i].region == LL_ASIDE && s->p->slots[i].kind == LL_STATE)
            sum += s->p->slots[i].bytes;
    return sum;
}

size_t ll_session_wide_bytes(const ll_session *s, bool ran)
{
    return ran && !s->n_wide ? 0 : s->wide_bytes;
}

/* The step once more, on all bits of its numbers. Every rank comes here, or none: results are the
 * same on all. */
static ll_err run_wide(ll_session *s)
{
    TRY(open_wide(s));
    s->n_wide++;
    s->now = s->more;
    s->now->step = s->step;
    TRY(copy_inputs(s, s->now->e, s->now->p));
    TRY(ll_exec_run(s->now->e, LL_MICRO, s->step));
    TRY(ll_exec_run(s->now->e, LL_REPORT, s->step));
    return ll_exec_wait(s->now->e);
}

/* Looks at the results, then updates. */
static ll_err complete(ll_session *s)
{
    TRY(ll_exec_wait(s->e));
    if (s->opts.exact && !s->wide && not_finite(s)) TRY(run_wide(s));
    const char *bad = not_finite(s);
    if (bad) TRY(find_culprit(s->now, bad, ll_session_result(s, bad)));
    s->skipped = s->most_norm > 0 && ll_session_result(s, "grad_norm") > s->most_norm;
    if (!s->skipped) TRY(ll_exec_run(s->now->e, LL_UPDATE, s->step));
    s->told = ++s->step;
    return LL_OK;
}

/* Steps that overlap: looks at the results, which are of the step before, then updates. */
static ll_err complete_late(ll_session *s)
{
    TRY(ll_exec_wait(s->now->e));
    const char *bad = s->now == s->first ? NULL : not_finite(s);
    CHECK(!bad, LL_E_NUMERIC,
          "step %llu: %s is %g; where steps overlap, the op that went wrong is not looked for: "
          "another schedule than 2bw would name it",
          (unsigned long long)s->step, bad, ll_session_result(s, bad));
    TRY(ll_exec_run(s->now->e, LL_UPDATE, s->step));
    s->told = s->now == s->first ? 0 : s->step;
    return LL_OK;
}

/* A step while the one before is not over; the first begins a row of them. */
static ll_err start_late(ll_session *s)
{
    s->now = s->ahead ? s : s->first;
    if (!s->ahead) TRY(copy_inputs(s, s->now->e, s->now->p));
    TRY(ll_exec_run(s->now->e, LL_MICRO, s->step));
    return ll_exec_run(s->now->e, LL_REPORT, s->step);
}

static ll_err finish_late(ll_session *s)
{
    TRY(complete_late(s));
    s->ahead = true;
    s->step++;
    return LL_OK;
}

ll_err ll_session_settle(ll_session *s)
{
    if (!s->ahead) return LL_OK;
    s->now = s->rest;
    s->ahead = false;
    TRY(ll_exec_run(s->now->e, LL_MICRO, s->step));
    TRY(ll_exec_run(s->now->e, LL_REPORT, s->step));
    return complete_late(s);
}

/* Batch data that nobody set would be zeros. */
static ll_err check_given(ll_session *s)
{
    int n = s->p->n_micro < 64 ? s->p->n_micro : 64;
    for (int i = 0; i < s->p->n_input && !s->checked; i++) {
        int slot = s->p->inputs[i].slot;
        if (s->p->slots[slot].kind != LL_BATCH || !s->p->slots[slot].bytes) continue;
        for (int m = 0; m < n; m++)
            CHECK(s->given[slot] >> m & 1, LL_E_ARG,
                  "batch data %s was never set%s: ll_session_set does", s->p->inputs[i].name,
                  m ? " for every micro-batch" : "");
    }
    s->checked = true;
    return LL_OK;
}

/* On machines that do not work beside this process the whole step is done here: whatever is set
 * after it is the next one's. */
ll_err ll_session_start(ll_session *s, double lr)
{
    ll_session *other = s->opts.share;
    if (other) TRY(ll_session_settle(other)); /* it reads that one's parameters */
    s->now = s;
    TRY(check_given(s));
    TRY(set_scalar(s->e, s->p, "lr", lr));
    TRY(set_scalar(s->e, s->p, "t", (double)s->step + 1));
    if (s->first) {
        TRY(start_late(s));
        return s->machine->wait ? LL_OK : finish_late(s);
    }
    TRY(ll_exec_run(s->e, LL_MICRO, s->step));
    TRY(ll_exec_run(s->e, LL_REPORT, s->step));
    return s->machine->wait ? LL_OK : complete(s);
}

ll_err ll_session_finish(ll_session *s)
{
    if (!s->machine->wait) return LL_OK;
    return s->first ? finish_late(s) : complete(s);
}

ll_err ll_session_run(ll_session *s, double lr)
{
    TRY(ll_session_start(s, lr));
    return ll_session_finish(s);
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
        ll_layout_range(&s->place->mesh, l->split[0], n, ll_team_rank(s->team), first, &to);
    }
    *count = to - *first;
}
