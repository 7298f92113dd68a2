/* trainer_memory.c: the bytes that a run plans, and those that it took, on the fullest rank. */
#include "train/trainer_int.h"

#include "weights/residual.h"

static double used_bytes(const trainer *t)
{
    const ll_machine *m = t->s->machine;
    ll_device_facts f = {0};
    if (!m->device) return (double)ll_process_peak();
    ll_err rc = m->ask(t->s->devices.mine, LL_PRECISION_f32, &f);
    return rc == LL_OK ? (double)(f.bytes - f.free_bytes) : 0;
}

static double wide_bytes(const trainer *t, bool ran)
{
    return (double)(ll_session_wide_bytes(t->s, ran) + ll_evaluator_wide_bytes(t->eval, ran));
}

/* Of mapped files: a sample brings what is around it, which another may have brought; those of
 * validation lie one behind the other. The steps, those that are rehearsed or read ahead. */
static double paged(const trainer *t, double batch)
{
    const ll_data_info *d = ll_dataset_info(t->data);
    double all = (double)d->mapped, samples = (double)(d->n[LL_TRAIN] + d->n[LL_VAL]);
    double bytes = all > 0 ? (double)(t->steps - t->first + 5) * batch * LL_FAULT_BYTES : 0;
    int64_t val = t->r->train.eval_samples ? t->r->train.eval_samples : d->n[LL_VAL];
    double in_turn = fmax((double)val / samples * (double)d->bytes, (double)d->looked_at);
    return all > 0 ? fmin(all, all * (1 - exp(-bytes / all)) + in_turn) : 0;
}

/* Of what the ranks of this node hold together. */
static double own_share(const trainer *t, double bytes)
{
    const int *node = t->comm ? ll_comm_nodes(t->comm) : NULL;
    int here = !node, me = t->comm ? ll_comm_rank(t->comm) : 0;
    for (int i = 0; node && i < ll_comm_size(t->comm); i++) here += node[i] == node[me];
    return bytes / here;
}

ll_err ll_trainer_plan_memory(trainer *t)
{
    ll_train_memory *m = &t->report->memory;
    int64_t count, first, micro = ll_run_micro_batches(t->r);
    ll_session_rows(t->s, &first, &count);
    size_t between = 0;
    if (t->loose) TRY(ll_loose_comm_bytes(t->loose, &between));
    m->step = (double)(t->s->p->bytes + ll_residual_bytes(t->s));
    m->comm = (double)(ll_exec_comm_bytes(t->s->e) + ll_evaluator_comm_bytes(t->eval) + between);
    m->tensors =
        m->step + m->comm + (double)t->s->e->extra_bytes + (double)ll_evaluator_bytes(t->eval);
    m->copies = (double)(ll_saver_bytes(t->saver) + ll_session_aside_bytes(t->s) +
                         (t->loose ? ll_loose_bytes(t->loose) : 0));
    m->copies += (double)ll_exec_seen_bytes(t->s->e);
    if (t->buddy) m->copies += own_share(t, (double)ll_buddy_bytes(t->buddy));
    m->batches =
        (double)(ll_loader_bytes(t->data, micro * count) + ll_evaluator_batch_bytes(t->eval));
    const ll_data_info *d = ll_dataset_info(t->data);
    m->data = (double)(d->bytes - d->mapped) + paged(t, (double)(micro * count));
    m->aside = (double)t->s->p->aside_bytes;
    m->rest += (double)ll_process_code(); /* most of it has run by now */
    m->planned = m->tensors;
    if (!t->s->machine->device) m->planned += m->copies + m->batches + m->data + m->rest;
    if (!ll_trainer_is_restart(t)) { /* compiles it: the first start has, and told */
        TRY(ll_session_plan_wide(t->s));
        TRY(ll_evaluator_plan_wide(t->eval));
    }
    m->wide = wide_bytes(t, false);
    if (!t->s->machine->device) /* compiling may take more than training */
        m->planned = fmax(m->planned, (double)ll_process_peak());
    double *const most[] = {&m->step, &m->comm, &m->tensors, &m->copies, &m->batches,
                            &m->data, &m->rest, &m->aside,   &m->wide,   &m->planned};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) TRY(ll_ranks_max(t->comm, most[i]));
    return LL_OK;
}

ll_err ll_trainer_measure_memory(trainer *t)
{
    ll_train_memory *m = &t->report->memory;
    m->used = used_bytes(t);
    m->of_all = t->s->machine->device;
    m->tensors_used =
        (double)(ll_exec_bytes(t->s->e) + ll_evaluator_bytes(t->eval) + ll_residual_bytes(t->s));
    if (t->comm) m->tensors_used += (double)ll_comm_used(t->comm).held;
    m->wide = wide_bytes(t, true);
    TRY(ll_ranks_max(t->comm, &m->wide));
    m->planned += m->wide;
    TRY(ll_ranks_max(t->comm, &m->used));
    return ll_ranks_max(t->comm, &m->tensors_used);
}
