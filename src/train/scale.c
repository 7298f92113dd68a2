/* scale.c: a few training steps, as the trainer does them, with a clock beside them. Ranks do not
 * meet between steps but where their programs do; what each noted is put together at the end. */
#include "train/scale.h"

#include "base/process.h"
#include "comm/job.h"
#include "run/ranks.h"
#include "run/setup.h"
#include "weights/state.h"
#include "train/trace.h"

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
} scaler;

static ll_err set_up(scaler *x)
{
    TRY(ll_ranks_agree(x->c, ll_run_mesh(x->r, x->out->ranks, x->out->mesh)));
    TRY(ll_ranks_agree(x->c, ll_run_dataset(x->r, &x->data)));
    ll_session_opts o = ll_run_session(x->r, x->c, x->out->mesh);
    if (!x->c) o.compress = NULL; /* the baseline has no sums */
    TRY(ll_run_compile(x->r, &o, &x->g, &x->s));
    TRY(ll_ranks_agree(x->c, ll_run_loader(x->r, x->data, x->s, 0, &x->loader)));
    if (!x->opts->trace) return LL_OK;
    const ll_tracer_opts how = {.path = x->opts->trace, .title = x->r->name};
    return ll_tracer_open(x->c, x->s, &how, &x->tracer);
}

static ll_err take_step(scaler *x, int64_t step, double *seconds)
{
    double start = ll_now();
    TRY(ll_run_feed(x->r, x->data, x->loader, x->s));
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
    p->planned_bytes = (double)(ll_session_bytes(x->s) + ll_exec_comm_bytes(x->s->e));
    p->used_bytes = (double)(ll_exec_bytes(x->s->e) + used(x).held);
    p->resident_bytes = (double)ll_process_peak();
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

ll_err ll_scale_measure(const ll_run *r, ll_comm *c, const ll_scale_opts *opts, ll_arena *arena,
                        ll_scale_point *out)
{
    CHECK(opts->steps >= 1 && opts->steps <= 1000000, LL_E_ARG,
          "steps to time is %ld, expected 1 to 1000000", opts->steps);
    *out = (ll_scale_point){.ranks = ll_comm_size(c), .nodes = ll_ranks_nodes(c)};
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
