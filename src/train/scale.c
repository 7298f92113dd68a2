/* scale.c: a few training steps, as the trainer does them, with a clock beside them. Ranks do not
 * meet between steps but where their programs do; what each noted is put together at the end. */
#include "train/scale.h"

#include "comm/job.h"
#include "exec/session.h"
#include "machine/bind.h"
#include "train/evaluate.h"
#include "train/ranks.h"
#include "train/state.h"
#include "train/trace.h"

#include <sys/resource.h>

typedef struct scaler {
    const ll_run *r;
    const ll_scale_opts *opts;
    ll_comm *c; /* NULL: alone */
    ll_scale_point *out;
    ll_dataset *data;
    ll_graph *g;
    ll_session *s;
    ll_loader *loader;
    ll_tracer *tracer;
    int64_t n_micro;
} scaler;

static ll_err open_session(scaler *x)
{
    const ll_run *r = x->r;
    int threads = (int)r->train.threads;
    x->n_micro = ll_run_micro_batches(r);
    if (x->c) TRY(ll_bind_rank(x->c, &threads));
    TRY(ll_ranks_agree(x->c, ll_run_graph(r, r->train.batch / x->n_micro, &r->train.optim, &x->g)));
    ll_session_opts o = {.threads = threads,
                         .micro_batches = (int)x->n_micro,
                         .machine = r->train.machine,
                         .precision = r->train.precision,
                         .any_order = !r->train.deterministic,
                         .seed = (uint64_t)r->train.seed};
    o.comm = x->c;
    o.mesh = x->out->mesh;
    o.zero = (int)r->parallel.zero;
    o.exact = r->parallel.exact;
    o.overlap = r->parallel.overlap;
    o.transport = r->parallel.transport;
    o.layouts = r->layouts;
    if (x->c) o.compress = r->parallel.compress; /* the baseline has no sums */
    return ll_session_open(x->g, &o, &x->s);
}

/* Each rank reads its own samples of each micro-batch. */
static ll_err open_loader(scaler *x)
{
    const ll_run *r = x->r;
    ll_loader_opts o = {
        .batch = r->train.batch,
        .every = r->train.batch / x->n_micro,
        .how = {LL_TRAIN, (uint64_t)r->train.seed, r->data.flip, (int)r->data.crop}};
    ll_session_rows(x->s, "x", &o.first, &o.count);
    return ll_loader_open(x->data, &o, &x->loader);
}

static ll_err set_up(scaler *x)
{
    TRY(ll_ranks_agree(x->c, ll_run_mesh(x->r, x->out->ranks, x->out->mesh)));
    TRY(ll_ranks_agree(x->c, ll_run_dataset(x->r, &x->data)));
    TRY(open_session(x));
    TRY(ll_ranks_agree(x->c, open_loader(x)));
    if (!x->opts->trace) return LL_OK;
    return ll_tracer_open(x->c, x->s, x->opts->trace, x->r->name, &x->tracer);
}

static ll_err take_step(scaler *x, int64_t step, double *seconds)
{
    double start = ll_now();
    ll_data_batch b;
    TRY(ll_loader_next(x->loader, &b));
    size_t xn = b.x_bytes / (size_t)x->n_micro, yn = b.y_bytes / (size_t)x->n_micro;
    for (int m = 0; m < x->n_micro; m++) {
        TRY(ll_session_set(x->s, "x", m, (const char *)b.x + (size_t)m * xn, xn));
        TRY(ll_session_set(x->s, "y", m, (const char *)b.y + (size_t)m * yn, yn));
    }
    if (x->tracer) ll_tracer_note(x->tracer, "data", -1, start);
    TRY(ll_session_run(x->s, x->r->train.schedule.lr));
    if (x->tracer) ll_tracer_note(x->tracer, "step", step + 1, start);
    if (seconds) *seconds = ll_now() - start;
    return LL_OK;
}

static ll_comm_usage used(const scaler *x)
{
    return x->c ? ll_comm_used(x->c) : (ll_comm_usage){0};
}

static ll_err steps(scaler *x)
{
    ll_scale_point *p = x->out;
    for (int64_t i = 0; i < x->opts->warm_up; i++) TRY(take_step(x, i, NULL));
    if (x->tracer) TRY(ll_tracer_start(x->tracer));
    if (x->c) TRY(ll_comm_barrier(x->c)); /* nobody's first step waits for another's last */
    ll_comm_usage before = used(x);
    for (int i = 0; i < p->n_step; i++) TRY(take_step(x, x->opts->warm_up + i, &p->times[i]));
    ll_comm_usage after = used(x);
    if (x->tracer) TRY(ll_tracer_write(x->tracer));
    double n = p->n_step;
    p->exposed_s = p->most_exposed_s = (after.seconds - before.seconds) / n;
    p->sent = (double)(after.count.bytes - before.count.bytes) / n;
    p->read = (double)(after.count.read - before.count.read) / n;
    p->collectives = (double)(after.count.collectives - before.count.collectives) / n;
    p->library = (double)(after.count.library - before.count.library) / n;
    return LL_OK;
}

/* Of all ranks. */
static ll_err put_together(scaler *x)
{
    ll_scale_point *p = x->out;
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    p->planned_bytes = (double)(ll_session_bytes(x->s) + ll_exec_comm_bytes(x->s->e));
    p->used_bytes = (double)(ll_exec_bytes(x->s->e) + used(x).held);
    p->resident_bytes = 1024.0 * (double)u.ru_maxrss;
    p->flops = x->s->p->flops;
    p->loss = ll_session_result(x->s, "loss");
    if (!x->c) return LL_OK;
    double *const most[] = {&p->most_exposed_s, &p->sent,          &p->read,
                            &p->collectives,    &p->library,       &p->planned_bytes,
                            &p->used_bytes,     &p->resident_bytes};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) TRY(ll_ranks_max(x->c, most[i]));
    TRY(ll_ranks_sum(x->c, &p->exposed_s));
    p->exposed_s /= p->ranks;
    TRY(ll_ranks_sum(x->c, &p->flops));
    return ll_comm_allreduce(x->c, p->times, p->n_step, LL_F64, LL_REDUCE_MAX, NULL);
}

static ll_err measure(scaler *x)
{
    TRY(set_up(x));
    ll_scale_point *p = x->out;
    const ll_data_info *info = ll_dataset_info(x->data);
    p->batch = x->r->train.batch;
    p->seq = info->kind == LL_TOKENS ? info->seq : 0;
    p->parameters = ll_session_parameters(x->s);
    p->threads = x->s->p->threads;
    TRY(steps(x));
    return put_together(x);
}

static int count_nodes(const ll_comm *c)
{
    const int *node = ll_comm_nodes(c);
    int n = 0;
    for (int i = 0; i < ll_comm_size(c); i++) {
        int first = 0;
        while (node[first] != node[i]) first++;
        n += first == i;
    }
    return n;
}

ll_err ll_scale_measure(const ll_run *r, ll_comm *c, const ll_scale_opts *opts, ll_arena *arena,
                        ll_scale_point *out)
{
    CHECK(opts->steps >= 1 && opts->steps <= 1000000, LL_E_ARG,
          "%lld steps to time: want 1 to 1000000", (long long)opts->steps);
    *out = (ll_scale_point){.ranks = ll_comm_size(c), .nodes = count_nodes(c)};
    out->n_step = (int)opts->steps;
    out->times = LL_NEW_ARRAY(arena, double, out->n_step);
    scaler x = {.r = r, .opts = opts, .out = out, .c = out->ranks > 1 ? c : NULL};
    ll_err rc = measure(&x);
    bool alone = rc != LL_OK && x.c && ll_job_failure() == LL_FAILURE_ALONE;
    ll_loader_close(x.loader);
    ll_tracer_close(x.tracer);
    if (!alone) { /* else the others do not come to close what is shared */
        ll_session_close(x.s);
        ll_graph_free(x.g);
    }
    ll_dataset_close(x.data);
    return rc;
}
