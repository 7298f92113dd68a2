/* parts.h: a model's training step on a mesh, by the pieces that sessions are made of, so that it
 * can be lowered in more than one way: for tests and benchmarks of what happens below sessions. */
#pragma once
#include "base/rng.h"
#include "exec/session.h"

#include <stdlib.h>

typedef struct part { /* one rank's program, ready to run */
    ll_team *team;
    ll_program *p;
    ll_exec *e;
    uint64_t step;
} part;

typedef struct part_opts {
    const char *mesh;
    int zero, n_micro, threads;
    bool blocking, poison;
    size_t bucket_bytes, memory;
    bool subsets;
    ll_overlap overlap;
    const char *schedule; /* of axis pipe */
} part_opts;

/* A rank's graph and, of a pipeline, what it does of it. */
[[maybe_unused]] static ll_err part_cut(ll_comm *c, const ll_placement *place, const part_opts *o,
                                        ll_lower_opts *how, ll_graph **out)
{
    const ll_pipe_plan *plan;
    if (ll_mesh_axis(&place->mesh, LL_AXIS_PIPE) < 0)
        return ll_partition(place, ll_comm_rank(c), out);
    TRY(ll_pipe_make(place->g, &place->mesh,
                     &(ll_pipe_opts){.schedule = o->schedule, .n_micro = o->n_micro}, place->arena,
                     &plan));
    how->pipe = ll_pipe_of(plan, &place->mesh, ll_comm_rank(c), LL_WHOLE_STEP, place->arena);
    return ll_pipe_partition(plan, place, ll_comm_rank(c), out);
}

[[maybe_unused]] static ll_err part_open(ll_comm *c, const ll_graph *g, const part_opts *o,
                                         part *out)
{
    ll_mesh m;
    ll_placement *place;
    ll_graph *mine;
    *out = (part){0};
    TRY(ll_mesh_parse(o->mesh, &m));
    TRY(ll_team_open(c, &m, &out->team));
    TRY(ll_place(g, &(ll_place_opts){.mesh = &m, .zero = o->zero, .overlap = o->overlap}, &place));
    ll_lower_opts how = {.target = &ll_target_cpu, .threads = o->threads, .n_micro = o->n_micro};
    TRY(part_cut(c, place, o, &how, &mine));
    how.blocking = o->blocking;
    how.bucket_bytes = o->bucket_bytes;
    how.subsets = o->subsets;
    TRY(ll_lower(mine, &how, &out->p));
    ll_graph_free(mine);
    ll_placement_free(place);
    return ll_exec_open(out->p, &(ll_exec_opts){.seed = 5, .team = out->team, .poison = o->poison},
                        &out->e);
}

[[maybe_unused]] static void part_close(part *x)
{
    ll_exec_close(x->e);
    ll_program_free(x->p);
    ll_team_close(x->team);
}

/* Batch data: numbers of the rank's own, whole ones below limit; a step's rate. */
[[maybe_unused]] static void part_feed(part *x, uint64_t seed, int64_t limit)
{
    for (int i = 0; i < x->p->n_input; i++) {
        const ll_slot *s = &x->p->slots[x->p->inputs[i].slot];
        void *data = ll_exec_data(x->e, x->p->inputs[i].slot, 0);
        uint64_t stream = ll_stream(s->name, x->step);
        int64_t n = ll_numel(&s->type.shape) * x->p->n_micro;
        for (int64_t k = 0; k < n && s->kind == LL_BATCH; k++)
            ll_store(data, s->type.dtype, k,
                     s->type.dtype == LL_I32
                         ? (double)ll_below_at(seed, stream, (uint64_t)k, (uint64_t)limit)
                         : ll_normal_at(seed, stream, (uint64_t)k));
        if (s->kind == LL_STEP)
            ll_store(data, s->type.dtype, 0, strcmp(s->name, "lr") ? (double)x->step + 1 : 0.01);
    }
}

[[maybe_unused]] static ll_err part_step(part *x)
{
    for (int s = 0; s < LL_N_SECTION; s++) TRY(ll_exec_run(x->e, s, x->step));
    x->step++;
    return LL_OK;
}

/* A bundled model with its loss minimised. sizes: those that differ from its own. */
[[maybe_unused]] static ll_graph *part_model(const char *name, int64_t batch, const char *optimizer,
                                             double clip, const ll_size *sizes, int n)
{
    const ll_model *x = ll_model_find(name);
    ll_build b = {.batch = batch, .training = true};
    memcpy(b.sizes, x->sizes, sizeof b.sizes);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < LL_MAX_SIZES && b.sizes[k].name; k++)
            if (!strcmp(b.sizes[k].name, sizes[i].name)) b.sizes[k].value = sizes[i].value;
    ll_graph *g = ll_graph_new(name);
    ll_minimize(g, x->declare(g, &b), &(ll_optim){.name = optimizer, .clip = clip});
    return g;
}
