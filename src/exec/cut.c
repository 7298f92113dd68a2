/* cut.c: a graph cut for the ranks of a mesh. */
#include "exec/cut.h"

#include "comm/codec.h"
#include "exec/exec.h"
#include "pass/layouts.h"
#include "program/ways.h"

static bool has_pipe(const ll_mesh *m)
{
    return ll_mesh_axis(m, LL_AXIS_PIPE) >= 0;
}

static ll_err check_no_pipe(const ll_session_opts *o)
{
    CHECK(!o->schedule && !o->stages && o->virtual_stages <= 1, LL_E_ARG,
          "schedule, stages and virtual_stages need a pipeline: add pipe=2 or more to the mesh, or "
          "leave them out");
    return LL_OK;
}

/* Ranks of a pipeline have different gradients, and a checkpoint wants to know of all of them. */
static ll_err check_residual(const char *codec)
{
    LL_OWN(ll_codec) k = NULL;
    TRY(ll_codec_open(codec, "pipeline", 1, 0, &k));
    CHECK(!ll_codec_residual(k), LL_E_SHARD,
          "compress=%s cannot be combined with axis pipe, whose checkpoints do not hold residuals: "
          "use bf16, f16 or qsgd:4, or a mesh without pipe",
          codec);
    return LL_OK;
}

/* Compression is of gradients that an all-reduce over axis data sums. */
static ll_err check_compress(const ll_session_opts *o, const ll_mesh *m)
{
    if (!o->compress || !strcmp(o->compress, "none")) return LL_OK;
    const char *mesh = o->mesh ? o->mesh : "";
    CHECK(!o->exact, LL_E_ARG,
          "compress=%s cannot be combined with exact, as it changes sums: use one of them",
          o->compress);
    CHECK(ll_mesh_axis(m, LL_AXIS_DATA) >= 0, LL_E_SHARD,
          "compress=%s needs gradients that are summed over axis data, which mesh \"%s\" does not "
          "have: add data=2 or more, or use compress=none",
          o->compress, mesh);
    CHECK(!o->zero, LL_E_SHARD,
          "compress=%s cannot be combined with zero=%d, as no codec supports reduce-scatter: use "
          "zero 0, or compress none",
          o->compress, o->zero);
    return ll_codec_asked(o->compress) && has_pipe(m) ? check_residual(o->compress) : LL_OK;
}

/* Ranks that make the same value must come to the same bits; along axis data none do. */
static ll_err check_order(const ll_session_opts *o, const ll_mesh *m)
{
    int data = ll_mesh_axis(m, LL_AXIS_DATA);
    if (!o->any_order) return LL_OK;
    CHECK(!o->exact, LL_E_ARG,
          "exact sums cannot be combined with sums in any order: use one of them");
    CHECK(m->n_rank == 1 || (data >= 0 && m->size[data] == m->n_rank), LL_E_SHARD,
          "sums in any order cannot be combined with mesh \"%s\", as ranks computing the same "
          "value would differ: use only axis data, or sums in order",
          o->mesh);
    CHECK(m->n_rank == 1 || !o->layouts || !o->layouts->pattern, LL_E_SHARD,
          "sums in any order cannot be combined with layout %s, as ranks computing the same value "
          "would differ: use sums in order",
          o->layouts->pattern);
    return LL_OK;
}

static ll_err plan_stages(ll_cut *c, const ll_mesh *m, const ll_session_opts *asked,
                          const ll_cut_opts *o)
{
    ll_pipe_opts how = {.schedule = asked->schedule, .virtual_stages = asked->virtual_stages};
    how.stages = asked->stages;
    how.n_micro = asked->micro_batches;
    if (o->room && o->room->limit > 0) how.room = o->room;
    if (o->like) how.like = o->like->plan;
    return ll_pipe_make(c->whole, m, &how, c->arena, &c->plan);
}

/* Stages are planned before, for they do not find each other's values. */
static ll_err recompute(ll_cut *c, const ll_mesh *m, const ll_session_opts *asked,
                        const ll_cut_opts *o)
{
    ll_recompute_how how;
    TRY(ll_recompute_parse(asked->recompute, &how));
    if (how.policy == LL_RECOMPUTE_NONE) return LL_OK;
    if (has_pipe(m)) {
        TRY(plan_stages(c, m, asked, o));
        how.stage_of = c->plan->stages->of_at;
        how.n_at = c->plan->stages->n_at;
    }
    TRY(ll_recompute(c->whole, &how, &c->recomputed, &c->lean));
    c->whole = c->lean;
    return LL_OK;
}

static ll_err place(const ll_cut *c, const ll_mesh *m, const ll_session_opts *asked,
                    const ll_cut_opts *o, ll_placement **out)
{
    ll_place_opts how = {.mesh = m,
                         .exact = asked->exact,
                         .wide = o->wide,
                         .zero = asked->zero,
                         .layouts = asked->layouts};
    if (c->place)
        how.wide = true, how.like = c->place;
    else if (o->like)
        how.like = o->like->place;
    if (!o->alone) {
        how.near = ll_mesh_near(m, o->nodes, o->per_node);
        how.factors = ll_factors_of(asked->compress,
                                    asked->any_order || asked->micro_batches > 1 || o->canonical);
    }
    TRY(ll_overlap_parse(asked->overlap, &how.overlap));
    TRY(ll_turn_parse(asked->sequence, &how.sequence));
    return ll_place(c->whole, &how, out);
}

ll_err ll_cut_make(const ll_graph *g, const ll_session_opts *asked, const ll_cut_opts *o,
                   ll_cut **out)
{
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_cut) c = LL_NEW(a, ll_cut);
    const ll_pin **pins;
    ll_mesh m;
    c->arena = a;
    c->whole = g;
    TRY(ll_mesh_parse(asked->mesh ? asked->mesh : "", &m));
    if (!has_pipe(&m)) TRY(check_no_pipe(asked));
    if (!o->alone) TRY(check_compress(asked, &m));
    TRY(check_order(asked, &m));
    TRY(recompute(c, &m, asked, o));
    if (o->alone && !asked->exact) { /* nothing is cut, but a pattern must mean something */
        TRY(ll_pins_find(c->whole, &m, asked->layouts, o->like, a, &pins));
        return LL_HAND(out, c);
    }
    if ((has_pipe(&m) || asked->exact) && asked->micro_batches > 1) {
        TRY(ll_means_apart(c->whole, &c->apart));
        c->whole = c->apart;
    }
    TRY(place(c, &m, asked, o, &c->place));
    if (o->again) TRY(place(c, &m, asked, o, &c->wide));
    if (has_pipe(&m) && !c->plan && !o->unstaged) TRY(plan_stages(c, &m, asked, o));
    return LL_HAND(out, c);
}

void ll_cut_free(ll_cut *c)
{
    if (!c) return;
    ll_placement_free(c->wide);
    ll_placement_free(c->place);
    ll_graph_free(c->apart);
    ll_graph_free(c->lean);
    ll_arena_free(c->arena);
}

ll_err ll_cut_part(const ll_cut *c, const ll_placement *place, int rank, ll_graph **out)
{
    return c->plan ? ll_pipe_partition(c->plan, place, rank, out) : ll_partition(place, rank, out);
}

ll_err ll_cut_lowers(const ll_cut *c, const ll_session_opts *asked, const ll_machine *m,
                     ll_context *ctx, int rank, ll_pipe_span span, ll_lower_opts *out)
{
    ll_conv_how conv;
    *out = (ll_lower_opts){.target = m->target,
                           .threads = asked->threads,
                           .n_micro = asked->micro_batches,
                           .any_order = asked->any_order,
                           .flush = !asked->exact,
                           .ctx = ctx,
                           .level = ctx ? m->level(ctx) : 0,
                           .notes = {asked->note, asked->note_to},
                           .blocking = asked->blocking && !c->plan};
    TRY(ll_precision_parse(asked->precision, &out->precision));
    TRY(ll_conv_read(m->target, asked->conv, asked->workspace, &conv));
    out->solver = conv.solver;
    out->limited = conv.limited;
    out->workspace = conv.workspace;
    if (c->plan) out->pipe = ll_pipe_of(c->plan, &c->place->mesh, rank, span, c->arena);
    int data = c->place ? ll_mesh_axis(&c->place->mesh, LL_AXIS_DATA) : -1;
    if (data >= 0 && ll_codec_asked(asked->compress)) out->compress = 1 << data;
    return LL_OK;
}

ll_err ll_cut_bytes(const ll_session_opts *asked, const ll_program *p, double *bytes)
{
    LL_OWN(ll_codec) k = NULL;
    const char *codec = ll_codec_asked(asked->compress);
    *bytes = (double)p->bytes;
    if (!codec) return LL_OK;
    TRY(ll_codec_open(codec, "account", 1, 0, &k));
    bool keeps = ll_codec_residual(k);
    for (int i = 0; keeps && i < p->n_instr; i++)
        for (int o = 0; p->instrs[i].compressed && o < p->instrs[i].n_in; o++)
            *bytes += (double)p->slots[p->instrs[i].in[o]].bytes;
    return LL_OK;
}

ll_err ll_cut_beside(const ll_cut *c, const ll_lower_opts *how, int rank, double *bytes)
{
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_program) p = NULL;
    ll_lower_opts l = *how;
    l.memory = 0; /* nothing of it is laid aside */
    *bytes = 0;
    if (!c->wide) return LL_OK;
    TRY(ll_cut_part(c, c->wide, rank, &g));
    TRY(ll_lower(g, &l, &p));
    *bytes = (double)ll_exec_beside(p);
    return LL_OK;
}

/* Whether a result would show what a product lost, so that the step can be made again. */
static bool tells_of_lost_bits(const ll_graph *g)
{
    return ll_find_result(g, "loss").id || ll_find_result(g, "grad_norm").id;
}

ll_err ll_step_order_of(const ll_graph *g, const ll_session_opts *asked, ll_step_order *out)
{
    *out = (ll_step_order){0};
    TRY(ll_pipe_overlaps(g, asked->mesh, asked->schedule, &out->overlap));
    out->late = out->overlap || (asked->delay && g->n_update); /* of what trains */
    /* A step cannot be made again on all bits when the next one has begun: they are taken at once,
     * and so by who trains the same. */
    out->wide = asked->exact && (out->late || !tells_of_lost_bits(g));
    return LL_OK;
}
