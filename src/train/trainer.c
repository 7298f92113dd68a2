/* trainer.c: the training loop.
 *
 * 1. Everything that metrics.jsonl and checkpoints hold is a function of the run file alone: two
 *    runs give the same bytes, and so does a run that was stopped and resumed. Times go elsewhere.
 * 2. A checkpoint after step k has all that step k+1 needs; data position is the step number.
 * 3. A signal (SIGINT, SIGTERM, SIGHUP, or SIGUSR1, which launchers pass on) ends the loop after
 *    the step under way, a validation at once; the checkpoint is then written as usual. A
 *    validation cut short is owed: the resumed run begins with it.
 * 4. Ranks take the same steps and decisions: what may differ between them (files, signals) is
 *    agreed on. Rank 0 alone writes to the run folder, but for the tensors of checkpoints. */
#include "train/trainer_int.h"

#include "base/file.h"
#include "base/now.h"
#include "base/process.h"
#include "base/stats.h"
#include "train/curve.h"
#include "train/residual.h"

#include <inttypes.h>
#include <math.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>

static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
    caught = sig == SIGUSR1 ? SIGTERM : sig;
}

static void tell_start(const trainer *t)
{
    const ll_program *p = t->s->p;
    const ll_machine *m = t->s->machine;
    ll_precision precision = LL_PRECISION_f32;
    ll_err rc = ll_precision_parse(t->r->train.precision, &precision);
    LL_ASSERT(rc == LL_OK); /* the session was opened with it */
    ll_train_start s = {t->r,
                        ll_dataset_info(t->data),
                        t->report->parameters,
                        t->steps,
                        t->first,
                        t->report->memory,
                        t->flops,
                        p->threads,
                        t->report->ranks,
                        t->report->mesh,
                        m->notes[precision],
                        t->resumed,
                        t->weights,
                        t->doomed,
                        m,
                        t->s->devices.n ? &t->s->devices : NULL,
                        t->s->lean ? &t->s->recomputed : NULL,
                        t->s->plan ? t->s->plan->pipeline : NULL};
    if (t->lead && t->opts->watch.start) t->opts->watch.start(t->opts->watch.context, &s);
}

/* ---- one step, and what follows some steps ---- */

static ll_err feed(trainer *t)
{
    double start = ll_now();
    TRY(ll_run_feed(t->r, t->data, t->loader, t->s));
    t->fed = true;
    if (t->tracer) ll_tracer_note(t->tracer, "data", -1, start);
    return LL_OK;
}

static ll_err metric_event(trainer *t, int64_t step, const char *split, const char *name,
                           double value)
{
    char tag[LL_METRIC_NAME + 8];
    snprintf(tag, sizeof tag, "%s/%.*s", split, LL_METRIC_NAME, name);
    return ll_events_scalar(t->events, step, tag, value);
}

static ll_err record(trainer *t, const ll_train_step *s)
{
    bool last = s->step == t->steps;
    if (!t->lead) return LL_OK;
    if (s->step % t->r->train.log_every && !last) return LL_OK;
    ll_metrics_begin(t->metrics, s->step);
    ll_metrics_num(t->metrics, "loss", s->loss);
    ll_metrics_num(t->metrics, "grad_norm", s->grad_norm);
    ll_metrics_num(t->metrics, "lr", s->lr);
    if (s->saturated >= 0) {
        ll_metrics_int(t->metrics, "saturated", s->saturated);
        TRY(ll_events_scalar(t->events, s->step, "train/saturated", (double)s->saturated));
    }
    const char *names[LL_MAX_METRICS];
    int n_metric = ll_run_metrics(t->g, names);
    for (int i = 0; i < n_metric; i++) {
        double value = ll_session_result(t->s, names[i]);
        ll_metrics_num(t->metrics, names[i], value);
        TRY(metric_event(t, s->step, "train", names[i], value));
    }
    TRY(ll_metrics_end(t->metrics));
    ll_metrics_begin(t->timing, s->step);
    ll_metrics_num(t->timing, "step_ms", 1e3 * s->seconds);
    if (t->comm) ll_metrics_num(t->timing, "waited_ms", 1e3 * s->waited);
    ll_metrics_num(t->timing, "samples_per_s", s->samples_per_s);
    if (s->dense_bytes) {
        ll_metrics_int(t->timing, "gradient_bytes", s->gradient_bytes);
        ll_metrics_int(t->timing, "gradient_bytes_f32", s->dense_bytes);
        TRY(ll_events_scalar(t->events, s->step, "speed/gradient_bytes",
                             (double)s->gradient_bytes));
    }
    TRY(ll_metrics_end(t->timing));
    TRY(ll_events_scalar(t->events, s->step, "train/loss", s->loss));
    TRY(ll_events_scalar(t->events, s->step, "train/grad_norm", s->grad_norm));
    TRY(ll_events_scalar(t->events, s->step, "train/lr", s->lr));
    return ll_events_scalar(t->events, s->step, "speed/samples_per_s", s->samples_per_s);
}

/* The next step's batch is set while this one may still be under way. */
static ll_err run_session(trainer *t, int64_t step, double lr)
{
    if (!t->fed) TRY(feed(t));
    TRY(ll_session_start(t->s, lr));
    t->fed = false;
    if (step + 1 < t->steps) TRY(feed(t));
    return ll_session_finish(t->s);
}

/* A loss that is not finite is so on all ranks, which then fail together. */
static ll_err explain(trainer *t, ll_err rc, double lr)
{
    if (rc != LL_E_NUMERIC) return rc;
    rc = RAISE(rc, "%s; a lower train.lr (it was %g) or train.clip may help", ll_error_message(),
               lr);
    return ll_ranks_agree(t->comm, rc);
}

static ll_err end_trace(trainer *t)
{
    TRY(ll_tracer_write(t->tracer));
    const ll_timeline *line = ll_tracer_timeline(t->tracer);
    if (!line || !isnan(t->report->bubble)) return LL_OK;
    t->report->bubble = line->bubble;
    if (t->lead && t->opts->watch.timeline) t->opts->watch.timeline(t->opts->watch.context, line);
    return LL_OK;
}

static ll_err take_step(trainer *t, int64_t step)
{
    const ll_data_info *info = ll_dataset_info(t->data);
    ll_trainer_doing(t, "a training step");
    if (t->tracer && step + 1 == t->trace_first) TRY(ll_tracer_start(t->tracer));
    double start = ll_now(),
           lr = ll_lr_at(&t->r->train.schedule, t->r->train.batch, t->steps, step);
    double waited = t->s->e->waited;
    TRY(explain(t, run_session(t, step, lr), lr));
    if (t->tracer) ll_tracer_note(t->tracer, "step", step + 1, start);
    double seconds = ll_now() - start, batch = (double)t->r->train.batch;
    double loss = ll_session_result(t->s, "loss");
    if (step == t->first) t->report->first_step_s = ll_now() - t->began;
    t->times[(step - t->first) % RECENT] = seconds;
    t->losses[(step - t->first) % RECENT] = loss;
    ll_train_step s = {step + 1,
                       t->steps,
                       loss,
                       ll_session_result(t->s, "grad_norm"),
                       lr,
                       seconds,
                       batch / seconds,
                       info->kind == LL_TOKENS ? batch * (double)info->seq / seconds : 0,
                       1e-9 * t->flops / seconds,
                       0,
                       0,
                       t->s->e->waited - waited,
                       t->s->e->saturated};
    ll_exec_compressed(t->s->e, &s.gradient_bytes, &s.dense_bytes);
    t->report->gradient_bytes = s.gradient_bytes;
    t->report->dense_bytes = s.dense_bytes;
    TRY(record(t, &s));
    if (t->lead && t->opts->watch.step) t->opts->watch.step(t->opts->watch.context, &s);
    return t->tracer && step + 1 == t->trace_last ? end_trace(t) : LL_OK;
}

/* Has any rank got a signal? */
static ll_err listen(trainer *t)
{
    static const ll_coll_opts site = {.site = "signals"};
    int32_t signal = caught;
    if (t->comm) TRY(ll_comm_allreduce(t->comm, &signal, 1, LL_I32, LL_REDUCE_MAX, &site));
    t->stop = signal;
    return LL_OK;
}

static ll_err ask(void *context, bool *stop)
{
    trainer *t = (trainer *)context;
    TRY(listen(t));
    *stop = t->stop;
    return LL_OK;
}

static ll_err note_score(trainer *t, int64_t done, const ll_score *score)
{
    if (!t->lead) return LL_OK;
    ll_metrics_begin(t->metrics, done);
    ll_metrics_num(t->metrics, "val_loss", score->loss);
    if (!isnan(score->accuracy)) ll_metrics_num(t->metrics, "val_accuracy", score->accuracy);
    for (int i = 0; i < score->n_metric; i++) {
        char key[LL_METRIC_NAME + 8];
        snprintf(key, sizeof key, "val_%s", score->names[i]);
        ll_metrics_num(t->metrics, key, score->metrics[i]);
        TRY(metric_event(t, done, "val", score->names[i], score->metrics[i]));
    }
    TRY(ll_metrics_end(t->metrics));
    TRY(ll_events_scalar(t->events, done, "val/loss", score->loss));
    if (isnan(score->accuracy)) return LL_OK;
    return ll_events_scalar(t->events, done, "val/accuracy", score->accuracy);
}

/* The figure that train.best names, the smaller the better; NaN: there is none. */
static double figure(const trainer *t, double (*value)(const void *from, const char *name),
                     const void *from)
{
    const char *best = t->r->train.best, *name = best;
    bool largest = !strcmp(best, "accuracy") || !strncmp(best, "max:", 4);
    if (strchr(best, ':')) name = strchr(best, ':') + 1;
    double v = *best ? value(from, name) : NAN;
    return largest ? -v : v;
}

static double of_score(const void *from, const char *name)
{
    const ll_score *s = (const ll_score *)from;
    if (!strcmp(name, "loss")) return s->loss;
    if (!strcmp(name, "accuracy")) return s->accuracy;
    for (int i = 0; i < s->n_metric; i++)
        if (!strcmp(s->names[i], name)) return s->metrics[i];
    return NAN;
}

static double of_line(const void *from, const char *name)
{
    char key[LL_METRIC_NAME + 8];
    snprintf(key, sizeof key, "val_%s", name);
    const json_t *v = json_object_get((const json_t *)from, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static void judge_figure(trainer *t, double v)
{
    t->better = v < t->best;
    t->since = t->better ? 0 : t->since + 1;
    if (t->better) t->best = v;
}

static ll_err judge(trainer *t, const ll_score *s)
{
    if (!*t->r->train.best) return LL_OK;
    double v = figure(t, of_score, s);
    CHECK(!isnan(v), LL_E_CONFIG, "train.best is %s, which validation of model %s does not give",
          t->r->train.best, t->r->model.name);
    judge_figure(t, v);
    return LL_OK;
}

/* note: not where the metrics have it already. */
static ll_err validate(trainer *t, int64_t done, bool note)
{
    ll_score score;
    ll_trainer_doing(t, "validation");
    TRY(ll_session_swap_averages(t->s));
    ll_err rc = ll_evaluate(t->eval, t->r->train.eval_samples, &(ll_stop){ask, t}, &score);
    if (rc == LL_OK) rc = ll_session_swap_averages(t->s);
    if (rc == LL_E_NUMERIC) rc = ll_ranks_agree(t->comm, rc); /* it is so on all */
    TRY(rc);
    t->owed = score.samples == 0;
    if (t->owed) return LL_OK;
    t->report->val = score;
    TRY(judge(t, &score));
    if (note) TRY(note_score(t, done, &score));
    if (t->lead && t->opts->watch.evaluated)
        t->opts->watch.evaluated(t->opts->watch.context, done, &score);
    return LL_OK;
}

static ll_err save(trainer *t, int64_t done)
{
    ll_trainer_doing(t, "a checkpoint");
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_tensor *tensors;
    ll_st_part *parts;
    int n = ll_session_all_tensors(t->s, a, &tensors, &parts);
    ll_st_pair meta[LL_TRAINER_META];
    ll_checkpoint c = {.step = done,
                       .tensors = tensors,
                       .n_tensors = n,
                       .meta = meta,
                       .n_meta = ll_trainer_meta(t, a, meta),
                       .parts = parts,
                       .is_first = !t->saved,
                       .comm = t->comm};
    if (t->comm) ll_comm_slow(t->comm, true);
    ll_err rc = ll_checkpoint_save(t->r->out, &c, (int)t->r->train.keep);
    if (t->comm) ll_comm_slow(t->comm, false);
    TRY(rc);
    t->saved = true;
    if (!t->lead) return LL_OK;
    if (c.is_first && !t->opts->resume) TRY(ll_events_alone(t->events));
    return ll_events_flush(t->events);
}

/* A second name for the checkpoint, that outlives the first. */
static ll_err keep_best(const trainer *t, int64_t done)
{
    if (!t->lead) return LL_OK;
    const char *from = ll_checkpoint_path(t->arena, t->r->out, done);
    const char *to = ll_trainer_file(t, "checkpoints/best.safetensors");
    const char *temporary = ll_arena_printf(t->arena, "%s.new", to);
    unlink(temporary);
    CHECK(link(from, temporary) == 0 && rename(temporary, to) == 0, LL_E_IO,
          "%s cannot be made another name of %s: %s", to, from, strerror(errno));
    return LL_OK;
}

static bool due(int64_t done, int64_t every, int64_t otherwise)
{
    return done % (every ? every : otherwise) == 0;
}

static bool validation_due(const trainer *t, int64_t done)
{
    return done >= t->steps || due(done, t->r->train.eval_every, t->epoch_steps);
}

/* Do the metrics have the validation of the step resumed after? */
static void see_score(void *context, int64_t step, const json_t *line)
{
    trainer *t = (trainer *)context;
    t->scored |= step == t->first && json_object_get(line, "val_loss");
    double v = figure(t, of_line, line);
    if (!isnan(v)) judge_figure(t, v);
}

/* The validation of the step resumed after, where its run was stopped before it had one; and of a
 * run that was over, for the report. */
static ll_err catch_up(trainer *t)
{
    if (t->first == 0) return LL_OK;
    const char *path = ll_trainer_file(t, "metrics.jsonl");
    size_t kept;
    ll_err rc = t->lead ? ll_metrics_lines(path, t->first, see_score, t, &kept) : LL_OK;
    TRY(ll_ranks_agree(t->comm, rc));
    TRY(ll_ranks_share(t->comm, &t->scored, sizeof t->scored));
    TRY(ll_ranks_share(t->comm, &t->best, sizeof t->best));
    TRY(ll_ranks_share(t->comm, &t->since, sizeof t->since));
    t->better = false;
    if (!validation_due(t, t->first) || (t->scored && t->first < t->steps)) return LL_OK;
    int64_t since = t->since; /* the same one again is no new one */
    bool scored = t->scored;
    TRY(validate(t, t->first, !scored));
    if (scored) t->since = since;
    return LL_OK;
}

static bool out_of_patience(const trainer *t)
{
    return t->r->train.patience && t->since >= t->r->train.patience;
}

static ll_err loop(trainer *t)
{
    TRY(listen(t));
    if (out_of_patience(t)) t->report->out_of_patience = true, t->steps = t->first;
    for (int64_t step = t->first; step < t->steps && !t->stop; step++) {
        TRY(take_step(t, step));
        int64_t done = step + 1;
        t->report->steps = done;
        TRY(listen(t));
        t->better = false;
        if (validation_due(t, done)) TRY(validate(t, done, true));
        bool enough = out_of_patience(t);
        if (done == t->steps || t->stop || enough || t->better ||
            due(done, t->r->train.save_every, t->epoch_steps))
            TRY(save(t, done));
        if (t->better) TRY(ll_ranks_agree(t->comm, keep_best(t, done)));
        if (enough) {
            t->report->out_of_patience = true;
            t->steps = done;
        }
    }
    if (t->tracer) TRY(end_trace(t));
    bool saved = t->report->steps > t->first || (t->opts->resume && !t->opts->resume_from);
    return t->stop && !saved ? save(t, t->first) : LL_OK;
}

/* ---- memory ---- */

static double used_bytes(const trainer *t)
{
    const ll_machine *m = t->s->machine;
    ll_device_facts f = {0};
    if (!m->ask) return (double)ll_process_peak();
    ll_err rc = m->ask(t->s->devices.mine, LL_PRECISION_f32, &f);
    return rc == LL_OK ? (double)(f.bytes - f.free_bytes) : 0;
}

static ll_err plan_memory(trainer *t)
{
    ll_train_memory *m = &t->report->memory;
    int64_t count, first, micro = ll_run_micro_batches(t->r);
    ll_session_rows(t->s, &first, &count);
    m->tensors = (double)(ll_session_bytes(t->s) + ll_evaluator_bytes(t->eval) +
                          ll_exec_comm_bytes(t->s->e) + ll_evaluator_comm_bytes(t->eval) +
                          ll_residual_bytes(t->s));
    m->batches =
        (double)(ll_loader_bytes(t->data, micro * count) + ll_evaluator_batch_bytes(t->eval));
    m->data = (double)ll_dataset_info(t->data)->bytes;
    m->planned = m->tensors;
    if (!t->s->machine->ask) m->planned += m->batches + m->data + m->rest;
    double *const most[] = {&m->tensors, &m->batches, &m->data, &m->rest, &m->planned};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) TRY(ll_ranks_max(t->comm, most[i]));
    return LL_OK;
}

static ll_err measure_memory(trainer *t)
{
    ll_train_memory *m = &t->report->memory;
    m->used = used_bytes(t);
    m->tensors_used =
        (double)(ll_exec_bytes(t->s->e) + ll_evaluator_bytes(t->eval) + ll_residual_bytes(t->s));
    if (t->comm) m->tensors_used += (double)ll_comm_used(t->comm).held;
    TRY(ll_ranks_max(t->comm, &m->used));
    return ll_ranks_max(t->comm, &m->tensors_used);
}

/* ---- the end ---- */

static ll_err sum_up(trainer *t)
{
    ll_train_report *r = t->report;
    const ll_data_info *info = ll_dataset_info(t->data);
    int64_t all = r->steps - t->first, n = all < RECENT ? all : RECENT;
    int64_t tail = n < t->r->train.log_every ? n : t->r->train.log_every;
    r->train_loss = n ? 0 : NAN;
    for (int64_t i = all - tail; i < all; i++)
        r->train_loss += t->losses[i % RECENT] / (double)tail;
    ll_stats_sort(t->times, n);
    r->step_s = n ? t->times[n / 2] : NAN;
    r->samples_per_s = (double)t->r->train.batch / r->step_s;
    r->tokens_per_s = info->kind == LL_TOKENS ? r->samples_per_s * (double)info->seq : 0;
    TRY(measure_memory(t));
    r->seconds = ll_now() - t->began;
    r->signal = r->steps < t->steps || t->owed ? t->stop : 0; /* else it was done all the same */
    return LL_OK;
}

static ll_err draw_curve(const trainer *t)
{
    TRY(ll_events_flush(t->events));
    char n[LL_NUMBER_TEXT], d[LL_NUMBER_TEXT];
    const char *caption =
        ll_arena_printf(t->arena, "%s parameters, batch %" PRId64 ", %s, %s",
                        ll_text_count((double)t->report->parameters, n), t->r->train.batch,
                        t->r->train.optim.name, ll_text_duration(t->report->seconds, d));
    return ll_curve_of_run(t->r->out, t->r->name, caption);
}

static ll_err run(trainer *t)
{
    t->report->memory.rest = (double)ll_process_bytes();
    TRY(ll_trainer_open(t));
    TRY(plan_memory(t));
    t->flops = t->s->p->flops;
    TRY(ll_ranks_sum(t->comm, &t->flops));
    t->report->parameters = ll_session_parameters(t->s);
    t->report->steps = t->report->first = t->first;
    t->report->val = (ll_score){NAN, NAN, 0};
    t->report->bubble = NAN;
    tell_start(t);
    TRY(catch_up(t));
    TRY(loop(t));
    TRY(sum_up(t));
    return ll_ranks_agree(t->comm, t->lead ? draw_curve(t) : LL_OK);
}

/* Closing may replace the message of what failed. */
static ll_err close_all(trainer *t, ll_err rc)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", ll_error_message());
    ll_trainer_close(t, rc != LL_OK && t->comm && ll_job_failure() == LL_FAILURE_ALONE);
    CHECK(rc == LL_OK || !strcmp(message, ll_error_message()), rc, "%s", message);
    return rc;
}

ll_err ll_train(const ll_run *r, const ll_train_opts *opts, ll_train_report *out)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    enum { N = sizeof signals / sizeof *signals };
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old[N];
    trainer t = {
        .r = r, .opts = opts, .report = out, .began = ll_now(), .folder = -1, .best = INFINITY};
    t.arena = ll_arena_new();
    memset(out, 0, sizeof *out);
    out->ranks = opts->comm ? ll_comm_size(opts->comm) : 1;
    if (out->ranks > 1) t.comm = opts->comm;
    t.lead = ll_ranks_lead(t.comm);
    caught = 0;
    for (int i = 0; i < N; i++) {
        sigaction(signals[i], &mine, &old[i]);
        if (signals[i] == SIGHUP && old[i].sa_handler == SIG_IGN) /* nohup */
            sigaction(signals[i], &old[i], NULL);
    }
    ll_err rc = close_all(&t, run(&t));
    for (int i = 0; i < N; i++) sigaction(signals[i], &old[i], NULL);
    return rc;
}
