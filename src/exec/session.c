/* session.c: a graph compiled and ready to run step by step (session_step.c): the public face of
 * exec. */
#include "exec/session.h"

#include "pass/layouts.h"

#include <omp.h>

/* Through this process's memory, from where on a larger message is no faster. */
static size_t bucket_bytes(const ll_session *s)
{
    if (!s->team || s->devices.link != LL_BY_HOST) return 0;
    return ll_choose_bucket_bytes(ll_comm_table(s->team->c));
}

static int my_rank(const ll_session *s)
{
    return s->team ? s->team->rank : 0;
}

ll_err ll_session_lower(const ll_session *s, bool no_fuse, ll_program **out)
{
    ll_lower_opts l;
    TRY(ll_cut_lowers(s->cut, &s->opts, s->machine, s->ctx, my_rank(s), s->span, &l));
    l.no_fuse = no_fuse;
    l.bucket_bytes = bucket_bytes(s);
    ll_link_kind link = s->devices.link;
    bool windows = link == LL_BY_HOST && s->team && ll_comm_has_window(s->team->c);
    l.subsets = s->team && link != LL_BY_NCCL && !l.pipe && !windows;
    l.memory = no_fuse ? 0 : ll_room_aside(&s->room);
    l.ways = s->ways.n ? &s->ways : NULL;
    return ll_lower(s->part ? s->part : s->cut->whole, &l, out);
}

/* The team of the session that it shares with, where it is of the same mesh: each set of axes then
 * has one communicator, with one window. */
static ll_err find_team(ll_session *s, const ll_mesh *m)
{
    const ll_session *like = s->opts.share;
    s->borrowed = like && like->team && like->team->c == s->opts.comm &&
                  !strcmp(LL_MESH(m), LL_MESH(&like->team->m));
    if (!s->borrowed) return ll_team_open(s->opts.comm, m, &s->team);
    s->team = like->team;
    return LL_OK;
}

/* The whole graph cut over the mesh. */
static ll_err cut_whole(ll_session *s)
{
    const ll_session_opts *o = &s->opts;
    ll_mesh m;
    TRY(ll_mesh_parse(o->mesh ? o->mesh : "", &m));
    bool alone = !o->comm || ll_comm_size(o->comm) == 1;
    CHECK(!alone || m.n_rank == 1, LL_E_SHARD,
          "mesh \"%s\" needs %d ranks, but there is one: start %d", o->mesh, m.n_rank, m.n_rank);
    CHECK(!alone || !o->compress || !strcmp(o->compress, "none"), LL_E_SHARD,
          "compress=%s needs gradients that ranks sum, but there is one rank: use 2 or more, or "
          "compress=none",
          o->compress);
    if (!alone) TRY(find_team(s, &m));
    ll_cut_opts how = {.alone = alone, .wide = s->wide, .room = &s->room};
    if (!alone) how.nodes = ll_comm_nodes(o->comm);
    if (!alone) how.canonical = ll_comm_options(o->comm)->canonical;
    if (o->share) how.like = o->share->cut;
    return ll_cut_make(s->g, o, &how, &s->cut);
}

static ll_err check_offload(const ll_session *s)
{
    const ll_session_opts *o = &s->opts;
    CHECK(!o->offload || o->share || o->memory, LL_E_ARG,
          "offload needs a limit of memory: set memory too");
    CHECK(!o->offload || s->machine->map_aside, LL_E_ARG,
          "machine %s does not support offload: leave it out, or use recompute",
          s->machine->target->name);
    char text[LL_ASIDE_TEXT];
    const char *why = o->offload ? ll_aside_refused(s->machine->target, o->offload, text) : NULL;
    CHECK(!why, LL_E_ARG, "offload %s: %s", o->offload, why);
    return LL_OK;
}

/* Makes no program where how many bytes it takes is known, and too many. */
static ll_err compile(ll_session *s)
{
    CHECK(!s->opts.exact || !strcmp(s->opts.precision, "f32"), LL_E_ARG,
          "exact sums need precision f32, not %s: use one of them", s->opts.precision);
    TRY(check_offload(s));
    TRY(cut_whole(s));
    if (ll_room_knows(&s->room, s->cut->plan)) return LL_OK;
    if (s->cut->place) TRY(ll_cut_part(s->cut, s->cut->place, my_rank(s), &s->part));
    if (s->machine->open_context) TRY(s->machine->open_context(s->devices.mine, &s->ctx));
    return ll_session_lower(s, false, &s->p);
}

/* Which device is this rank's, and how they talk. */
static ll_err place_devices(ll_session *s)
{
    ll_comm *c = s->opts.comm && ll_comm_size(s->opts.comm) > 1 ? s->opts.comm : NULL;
    const char *transport = s->opts.transport;
    ll_device_ask ask = {.transport = transport, .codec = ll_codec_asked(s->opts.compress) != NULL};
    TRY(ll_comm_agree(s->opts.comm, ll_precision_parse(s->opts.precision, &ask.precision)));
    TRY(ll_comm_agree(s->opts.comm, ll_machine_find(s->opts.machine, &s->machine)));
    if (!s->machine->place) {
        CHECK(!transport || !strcmp(transport, "auto"), LL_E_ARG,
              "transport=%s needs devices, which machine %s does not have", transport,
              s->machine->target->name);
        return LL_OK;
    }
    if (c) ask.canonical = ll_comm_options(c)->canonical;
    if (c) ask.loose = ll_comm_options(c)->thread;
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
                          .compress = ll_codec_asked(s->opts.compress),
                          .offload = s->opts.offload,
                          .device = s->devices.mine,
                          .link = s->machine->links[s->devices.link]};
}

/* Convolutions by what is quickest here. Exact sums are f64's, which has none to choose from. */
static ll_err choose_ways(ll_session *s)
{
    ll_conv_how conv;
    const char *path;
    TRY(ll_conv_read(s->machine->target, s->opts.conv, s->opts.workspace, &conv));
    if (!conv.fast || s->opts.exact) return LL_OK;
    s->ways.arena = s->arena;
    TRY(ll_choose_ways(s->p, s->opts.comm, conv.limited, &s->ways, &path));
    if (s->opts.note && path && s->ways.n > s->ways.kept)
        s->opts.note(s->opts.note_to,
                     ll_arena_printf(s->arena,
                                     "convolutions were timed for train.conv=fast; the times are "
                                     "kept in %s: remove it if other programs were busy meanwhile",
                                     path));
    ll_program_free(s->p);
    s->p = NULL;
    return ll_comm_agree(s->opts.comm, ll_session_lower(s, false, &s->p));
}

/* What compiling has made. */
static void forget(ll_session *s)
{
    ll_program_free(s->p);
    ll_graph_free(s->part);
    ll_cut_free(s->cut);
    if (!s->borrowed) ll_team_close(s->team);
    if (s->ctx) s->machine->close_context(s->ctx);
    s->p = NULL;
    s->part = NULL;
    s->cut = NULL;
    s->team = NULL;
    s->ctx = NULL;
}

static ll_err new_session(ll_graph *g, const ll_session_opts *opts, bool wide, ll_pipe_span span,
                          ll_session **out)
{
    *out = NULL;
    ll_session *s = (ll_session *)calloc(1, sizeof *s);
    CHECK(s, LL_E_MEM, "not enough memory for a session");
    s->g = g;
    s->opts = *opts;
    s->wide = wide;
    s->span = span;
    s->arena = ll_arena_new();
    if (!s->opts.precision) s->opts.precision = "f32";
    s->room = ll_room_of(opts, g);
    if (opts->share) s->room.limit = 0;
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
    TRY(ll_comm_agree(s->opts.comm, compile(w)));
    s->room.beside = (double)ll_exec_beside(w->p);
    return LL_OK;
}

/* Whether every rank's program is within the limit. */
static ll_err judge(ll_session *s, bool *again)
{
    double used[LL_MAX_PIPE] = {0};
    const ll_mesh *m = s->cut->plan ? &s->team->m : NULL;
    *again = false;
    if (s->room.limit <= 0) return LL_OK;
    if (!s->p) {
        const double *known = ll_room_knows(&s->room, s->cut->plan);
        return ll_comm_agree(s->opts.comm, ll_room_judge(&s->room, s->cut->plan, known, again));
    }
    double *mine = &used[m ? ll_mesh_coord(m, ll_mesh_axis(m, LL_AXIS_PIPE), s->team->rank) : 0];
    s->room.wide = s->opts.exact && !s->wide;
    if (s->room.wide) TRY(measure_wide(s));
    TRY(ll_comm_agree(s->opts.comm, ll_cut_bytes(&s->opts, s->p, mine)));
    *mine += s->room.beside;
    if (s->team)
        TRY(ll_comm_allreduce(s->opts.comm, used, LL_MAX_PIPE, LL_F64, LL_REDUCE_MAX, NULL));
    return ll_comm_agree(s->opts.comm, ll_room_judge(&s->room, s->cut->plan, used, again));
}

static ll_err open_parts(ll_session *s)
{
    TRY(place_devices(s));
    for (bool again = true; again;) {
        forget(s);
        TRY(ll_comm_agree(s->opts.comm, compile(s)));
        if (s->p) TRY(choose_ways(s));
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

static ll_err check_after(const ll_graph *g, const ll_session_opts *o, bool overlaps)
{
    ll_mesh m;
    if (!o->post_validation || !g->n_update) return LL_OK;
    TRY(ll_mesh_parse(o->mesh ? o->mesh : "", &m));
    CHECK(ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0, LL_E_ARG,
          "post_validation needs a pipeline: add pipe=2 or more to the mesh, or leave it out");
    CHECK(!overlaps, LL_E_ARG,
          "post_validation cannot be combined with schedule 2bw, whose steps already overlap: "
          "leave out post_validation");
    CHECK(!o->offload && !o->memory, LL_E_ARG,
          "post_validation cannot be combined with memory and offload, which do not count the "
          "copies it keeps: use one of them");
    return LL_OK;
}

static ll_err find_steps(const ll_graph *g, const ll_session_opts *o, ll_step_order *out)
{
    TRY(ll_step_order_of(g, o, out));
    for (int i = 0; i < g->n_result && o->micro_batches > 1; i++) {
        ll_dtype t = ll_value_of(g, g->results[i].value)->type.dtype;
        CHECK(ll_dtype_is_float(t), LL_E_ARG,
              "result %s is %s, of which %d micro-batches have no mean: cast it, or use one",
              g->results[i].name, ll_dtype_name(t), o->micro_batches);
    }
    CHECK(!out->overlap || !o->offload, LL_E_ARG,
          "offload cannot be combined with schedule 2bw, whose steps overlap: use one of them");
    CHECK(!out->overlap || !o->memory, LL_E_ARG,
          "memory cannot be combined with schedule 2bw, whose steps overlap: leave it out, or use "
          "another schedule than 2bw");
    return check_after(g, o, out->overlap);
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
        CHECK(ll_program_input(s->p, x->name) >= 0, LL_E_GRAPH, "%s is not left by any step",
              x->name);
    }
    CHECK(mine == theirs, LL_E_GRAPH, "%d values are left by a step, but another finds %d", mine,
          theirs);
    return LL_OK;
}

/* The ends of a row of steps that overlap. They work in this session's memory. */
static ll_err open_ends(ll_session *s)
{
    ll_session_opts o = s->opts;
    CHECK(s->machine->overlaps, LL_E_ARG,
          "machine %s does not support overlapping steps: use machine cpu, or another schedule "
          "than 2bw",
          s->machine->target->name);
    o.share = s;
    o.reuse = true;
    o.delay = false; /* of a graph that has it */
    TRY(ll_session_compile(s->g, &o, s->wide, LL_FIRST_STEP, &s->first));
    TRY(ll_session_compile(s->g, &o, s->wide, LL_LEFT_OVER, &s->rest));
    ll_err rc = check_carries(s, s->first);
    return ll_comm_agree(s->opts.comm, rc == LL_OK ? check_carries(s, s->rest) : rc);
}

ll_err ll_session_open(ll_graph *g, const ll_session_opts *opts, ll_session **out)
{
    ll_step_order steps;
    const ll_session_opts usual = {0};
    CHECK(out, LL_E_ARG, "argument out is NULL, expected where the session is to go");
    if (!opts) opts = &usual;
    ll_session_opts o = *opts;
    *out = NULL;
    TRY(ll_comm_agree(opts->comm, g ? find_steps(g, opts, &steps) : ll_graph_check(g)));
    o.delay = steps.late;
    LL_OWN(ll_session) s = NULL;
    TRY(ll_session_compile(g, &o, steps.wide, LL_WHOLE_STEP, &s));
    if (steps.overlap) TRY(open_ends(s));
    if (o.post_validation && g->n_update) TRY(ll_comm_agree(s->opts.comm, ll_after_open(s)));
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
    int pipe = ll_mesh_axis(&s->cut->place->mesh, LL_AXIS_PIPE);
    ll_axes used = ll_layout_axes(l);
    return (ll_axes) ~(pipe < 0 ? used : used | 1u << pipe);
}

size_t ll_session_aside_bytes(const ll_session *s)
{
    size_t sum = 0;
    LL_EACH (const ll_slot, slot, s->p->slots, s->p->n_slot)
        if (slot->region == LL_ASIDE && slot->kind == LL_STATE) sum += slot->bytes;
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
    ll_val there = s->team ? ll_find(s->cut->place->g, v->name) : (ll_val){0};
    *first = 0;
    if (there.id) {
        const ll_layout *l = &s->cut->place->made[there.id];
        ll_layout_range(&s->cut->place->mesh, l->split[0], n, s->team->rank, first, &to);
    }
    *count = to - *first;
}
