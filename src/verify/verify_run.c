/* verify_run.c: what a run feeds both sides of verify: its data, or random batches, another one in
 * each step. Every rank makes the whole batch and sets its own part of it. */
#include "verify/verify.h"

#include "base/rng.h"
#include "machine/bind.h"
#include "train/prune.h"
#include "run/setup.h"

typedef struct feeder {
    const ll_run *r;
    const ll_graph *g;
    ll_dataset *set; /* NULL: random */
    int64_t n_micro;
    ll_arena *arena;
    void *data[LL_MAX_FIELDS]; /* of a batch; random: of one micro-batch */
} feeder;

static ll_err set_random(const feeder *f, ll_session *s, const ll_value *v, int64_t number, int m)
{
    ll_run_random(f->r, (uint64_t)f->r->train.seed, ll_stream(v->name, (uint64_t)number),
                  v->type.dtype, ll_numel(&v->type.shape), f->data[0]);
    return ll_session_set(s, v->name, m, f->data[0],
                          ll_tensor_bytes(v->type.dtype, &v->type.shape));
}

static ll_err prune(const feeder *f, ll_session *s, int64_t step)
{
    const ll_run_train *t = &f->r->train;
    ll_pruned is;
    return ll_prune_step(t->prune, t->prune_steps, step - 1, s, &is);
}

static ll_err feed_random(void *context, ll_session *s, int64_t step)
{
    const feeder *f = (const feeder *)context;
    TRY(prune(f, s, step));
    for (int m = 0; m < f->n_micro; m++)
        for (int i = 1; i < f->g->n_value; i++)
            if (ll_is_batch(&f->g->values[i]))
                TRY(set_random(f, s, &f->g->values[i], step * f->n_micro + m, m));
    return LL_OK;
}

static ll_err feed_data(void *context, ll_session *s, int64_t step)
{
    const feeder *f = (const feeder *)context;
    ll_sampling how = ll_run_sampling(f->r);
    int64_t batch = f->r->train.batch;
    TRY(prune(f, s, step));
    TRY(ll_dataset_read(f->set, &how, (step - 1) * batch, batch, f->data));
    for (int m = 0; m < f->n_micro; m++)
        TRY(ll_run_set_batch(ll_dataset_info(f->set), s, m, batch / f->n_micro,
                             (const void *const *)f->data));
    return LL_OK;
}

static ll_err begin(void *context, ll_session *s)
{
    const feeder *f = (const feeder *)context;
    ll_pruned is;
    const ll_run_train *t = &f->r->train;
    return t->optim.masked ? ll_prune_begin(t->prune, t->prune_steps, s, &is) : LL_OK;
}

static ll_err verify(feeder *f, ll_graph *g, const ll_verify_opts *given, ll_verify_report *out)
{
    const ll_run *r = f->r;
    size_t most = 1, batch = (size_t)r->train.batch;
    for (int i = 1; i < g->n_value; i++)
        if (ll_is_batch(&g->values[i])) {
            size_t bytes = ll_tensor_bytes(g->values[i].type.dtype, &g->values[i].type.shape);
            most = bytes > most ? bytes : most;
        }
    f->g = g;
    f->data[0] = ll_arena_alloc(f->arena, most);
    for (int i = 0; f->set && i < ll_dataset_info(f->set)->n_field; i++)
        f->data[i] = ll_arena_alloc(f->arena, batch * ll_dataset_info(f->set)->field_bytes[i]);
    ll_verify_opts o = *given;
    o.feed = f->set ? feed_data : feed_random;
    o.begin = begin;
    o.context = f;
    o.lr = r->train.schedule.lr;
    o.session = ll_run_session(r, given->session.comm, given->session.mesh);
    o.session.any_order = false; /* sums in order, whatever the run says */
    TRY(ll_bind_rank(o.session.comm, &o.session.threads));
    return ll_verify_graph(g, &o, out);
}

ll_err ll_verify_run(const ll_run *r, const ll_verify_opts *o, bool random, ll_verify_report *out)
{
    feeder f = {.r = r, .n_micro = ll_run_micro_batches(r), .arena = ll_arena_new()};
    ll_graph *g = NULL;
    ll_err rc = random ? LL_OK : ll_run_dataset(r, &f.set);
    if (rc == LL_OK) rc = ll_run_graph(r, r->train.batch / f.n_micro, &r->train.optim, &g);
    rc = ll_comm_agree(o->session.comm, rc);
    if (rc == LL_OK) rc = verify(&f, g, o, out);
    ll_graph_free(g);
    ll_dataset_close(f.set);
    ll_arena_free(f.arena);
    return rc;
}
