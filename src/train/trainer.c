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
#include "train/foresee.h"
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
                        t->report->predicted_s,
                        p->threads,
                        t->report->ranks,
                        t->report->mesh,
                        m->notes[precision],
                        t->resumed,
                        t->weights,
                        t->kept,
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
    TRY(ll_run_feed(&t->own, t->data, t->loader, t->s));
    t->fed = true;
    t->good.lost[LL_LOSS_DATA] += ll_now() - start;
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

static bool log_due(const trainer *t, int64_t done)
{
    return done % t->r->train.log_every == 0 || done == t->steps;
}

static void note_replicas(trainer *t)
{
    if (t->r->parallel.replicas == 1) return;
    ll_metrics_int(t->timing, "replica_bytes", t->sent - t->counted);
    t->counted = t->sent;
    if (!t->loose) return;
    ll_loose_count n = ll_loose_counted(t->loose);
    ll_metrics_int(t->timing, "exchanges", n.exchanges);
}

static ll_err record(trainer *t, const ll_train_step *s)
{
    if (!t->lead || (!log_due(t, s->step) && !t->s->skipped)) return LL_OK;
    ll_metrics_begin(t->metrics, s->step);
    ll_metrics_num(t->metrics, "loss", s->loss);
    ll_metrics_num(t->metrics, "grad_norm", s->grad_norm);
    ll_metrics_num(t->metrics, "lr", s->lr);
    if (t->s->skipped) ll_metrics_int(t->metrics, "skipped", 1);
    if (t->s->now != t->s) ll_metrics_int(t->metrics, "wide", 1);
    if (t->loose && ll_loose_due(t->loose, s->step))
        ll_metrics_num(t->metrics, "distance", ll_loose_counted(t->loose).distance);
    if (s->saturated >= 0) {
        ll_metrics_int(t->metrics, "saturated", s->saturated);
        TRY(ll_events_scalar(t->events, s->step, "train/saturated", (double)s->saturated));
    }
    const char *names[LL_MAX_METRICS + 1];
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
    t->good.wall = ll_trainer_wall(t);
    ll_goodput_note(&t->good, t->timing);
    if (s->dense_bytes) {
        ll_metrics_int(t->timing, "gradient_bytes", s->gradient_bytes);
        ll_metrics_int(t->timing, "gradient_bytes_f32", s->dense_bytes);
        TRY(ll_events_scalar(t->events, s->step, "speed/gradient_bytes",
                             (double)s->gradient_bytes));
    }
    note_replicas(t);
    TRY(ll_metrics_end(t->timing));
    TRY(ll_events_scalar(t->events, s->step, "train/loss", s->loss));
    TRY(ll_events_scalar(t->events, s->step, "train/grad_norm", s->grad_norm));
    TRY(ll_events_scalar(t->events, s->step, "train/lr", s->lr));
    return ll_events_scalar(t->events, s->step, "speed/samples_per_s", s->samples_per_s);
}

/* The step that this rank comes to after this one. */
static int64_t next_step(const trainer *t, int64_t step)
{
    return t->served ? ll_loose_hand(t->loose)[1].step : step + 1;
}

/* The next step's batch is set while this one may still be under way. */
static ll_err run_session(trainer *t, int64_t step, double lr)
{
    if (!t->fed) TRY(feed(t));
    TRY(ll_session_start(t->s, lr));
    t->fed = false;
    if (next_step(t, step) < t->until) TRY(feed(t));
    return ll_session_finish(t->s);
}

/* Its samples are made ahead. */
static void ask_share(trainer *t, const ll_ticket *x)
{
    int64_t micro = t->own.train.batch / ll_run_micro_batches(&t->own);
    if (x->step < t->until) ll_loader_ask(t->loader, x->step, x->place * micro);
}

/* A loss that is not finite is so on all ranks, which then fail together; of several replicas it is
 * the ranks' of one, and ends the others' too. */
static ll_err explain(trainer *t, ll_err rc, double lr)
{
    if (rc != LL_E_NUMERIC) return rc;
    rc = RAISE(rc, "%s; a lower train.lr (it was %g) or train.clip may help", ll_error_message(),
               lr);
    return t->loose ? rc : ll_ranks_agree(t->comm, rc);
}

/* A straggler: what it computed for so long takes as much longer. */
static void lag(const trainer *t, double seconds)
{
    if (t->opts->slow <= 1 || (t->comm ? ll_comm_rank(t->comm) : 0) != t->opts->slow_rank) return;
    double s = seconds * (t->opts->slow - 1);
    if (t->comm) ll_comm_slow(t->comm, true);
    nanosleep(&(struct timespec){(time_t)s, (long)(1e9 * (s - floor(s)))}, NULL);
    if (t->comm) ll_comm_slow(t->comm, false);
}

static ll_err exchange(trainer *t, int64_t done)
{
    if (!t->served && (!t->loose || !ll_loose_due(t->loose, done))) return LL_OK;
    ll_trainer_doing(t, "an exchange between replicas");
    if (!t->served) return ll_loose_exchange(t->loose, done);
    TRY(ll_loose_serve(t->loose));
    ask_share(t, &ll_loose_hand(t->loose)[1]);
    return LL_OK;
}

/* What has passed between replicas in a step; *s: of all of them, where it is told. */
static ll_err meet(trainer *t, ll_train_step *s)
{
    static const ll_coll_opts site = {.algorithm = "sharded", .site = "losses of replicas"};
    double v[] = {s->loss, s->grad_norm, 1};
    double *sum = t->served ? t->sums : v;
    if (!t->loose) {
        int64_t r = t->r->parallel.replicas, dense = 2 * (r - 1) * t->report->parameters * 4 / r;
        t->sent += s->dense_bytes ? s->gradient_bytes : dense;
        return LL_OK;
    }
    t->sent = ll_loose_counted(t->loose).bytes;
    s->apart = !log_due(t, s->step);
    if (s->apart) return LL_OK;
    TRY(ll_comm_allreduce(t->comm, sum, 3, LL_F64, LL_REDUCE_SUM, &site));
    s->loss = sum[0] / sum[2];
    s->grad_norm = sum[1] / sum[2];
    memset(t->sums, 0, sizeof t->sums);
    return LL_OK;
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

/* What is too large a norm in this step, by those of the steps before; and this one's. */
static void limit_norm(trainer *t, int64_t step)
{
    enum { FIRST = 20 };
    bool known = t->norm > 0 && step >= t->norm_from + FIRST;
    t->s->most_norm = known ? t->r->train.spike * t->norm : 0;
}

static void learn_norm(trainer *t)
{
    double now = t->r->train.spike > 0 ? ll_session_result(t->s, "grad_norm") : 0;
    t->report->skipped += t->s->skipped;
    t->report->wide += t->s->now != t->s;
    if (!t->s->skipped) t->norm = t->norm > 0 ? 0.98 * t->norm + 0.02 * now : now;
}

/* One step of this rank's; *s: what is to be told of it. */
static ll_err take_step(trainer *t, int64_t step, ll_train_step *s)
{
    const ll_data_info *info = ll_dataset_info(t->data);
    ll_trainer_doing(t, "a training step");
    if (t->tracer && step + 1 == t->trace_first) TRY(ll_tracer_start(t->tracer));
    double start = ll_now(),
           lr = ll_lr_at(&t->r->train.schedule, t->r->train.batch, t->steps, step);
    double waited = t->s->e->waited;
    if (t->served) TRY(ll_loose_ready(t->loose));
    limit_norm(t, step);
    TRY(explain(t, run_session(t, step, lr), lr));
    lag(t, ll_now() - start - (t->s->e->waited - waited));
    TRY(exchange(t, step + 1));
    learn_norm(t);
    if (t->tracer) ll_tracer_note(t->tracer, "step", step + 1, start);
    double seconds = ll_now() - start, batch = (double)t->r->train.batch;
    double loss = ll_session_result(t->s, "loss");
    if (t->report->first_step_s == 0) t->report->first_step_s = ll_now() - t->began;
    *s = (ll_train_step){step + 1,
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
                         t->s->e->saturated,
                         false};
    ll_exec_compressed(t->s->e, &s->gradient_bytes, &s->dense_bytes);
    t->report->gradient_bytes = s->gradient_bytes;
    t->report->dense_bytes = s->dense_bytes;
    t->sums[0] += s->loss;
    t->sums[1] += s->grad_norm;
    t->sums[2]++;
    return LL_OK;
}

/* Where replicas take shares, a step is all of their doing: time and rate are as it went on. */
static void tell_rate(trainer *t, ll_train_step *s, int64_t steps)
{
    double now = ll_now(), ratio = s->seconds * (double)steps / (now - t->told);
    s->seconds /= ratio;
    s->samples_per_s *= ratio;
    s->tokens_per_s *= ratio;
    s->gflops *= ratio;
}

/* Step `done` is over, and one of this rank's was the last before. */
static ll_err tell_step(trainer *t, int64_t done, int64_t steps, const ll_train_step *last)
{
    ll_train_step s = *last;
    s.step = done;
    if (t->served && s.seconds > 0) tell_rate(t, &s, steps);
    t->times[(done - 1 - t->first) % RECENT] = s.seconds;
    TRY(meet(t, &s));
    t->losses[(done - 1 - t->first) % RECENT] = s.loss;
    t->report->replica_bytes = t->sent;
    TRY(record(t, &s));
    if (t->lead && t->opts->watch.step) t->opts->watch.step(t->opts->watch.context, &s);
    return t->tracer && done == t->trace_last ? end_trace(t) : LL_OK;
}

/* Has any rank got a signal, is any writing a checkpoint? */
static ll_err listen(trainer *t)
{
    static const ll_coll_opts site = {.site = "signals"};
    int32_t any[] = {caught, ll_saver_busy(t->saver)};
    if (t->comm) TRY(ll_comm_allreduce(t->comm, any, 2, LL_I32, LL_REDUCE_MAX, &site));
    t->stop = any[0];
    t->writing = any[1];
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
    double began = ll_now();
    ll_trainer_doing(t, "validation");
    if (t->loose) TRY(ll_loose_swap(t->loose, true));
    TRY(ll_session_swap_averages(t->s));
    /* Replicas have different numbers of batches: they do not ask each other before each. */
    const ll_stop stop = {ask, t};
    ll_err rc = ll_evaluate(t->eval, t->r->train.eval_samples, t->loose ? NULL : &stop, &score);
    if (rc == LL_OK) rc = ll_session_swap_averages(t->s);
    if (rc == LL_OK && t->loose) rc = ll_loose_swap(t->loose, false);
    t->good.lost[LL_LOSS_VALIDATION] += ll_now() - began;
    if (rc == LL_E_NUMERIC && !t->loose) rc = ll_ranks_agree(t->comm, rc); /* it is so on all */
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

/* Replicas that are apart hear of each other where they meet anyway; and while a checkpoint is on
 * its way, which they bring to its end together. */
static bool meeting(const trainer *t, int64_t done)
{
    return !t->loose || !ll_saver_idle(t->saver) || ll_loose_due(t->loose, done) ||
           log_due(t, done) || validation_due(t, done) ||
           due(done, t->r->train.save_every, t->epoch_steps);
}

/* What follows step `done`. */
static ll_err settle(trainer *t, int64_t done, bool meets)
{
    t->better = false;
    if (meets && !ll_saver_idle(t->saver) && !t->writing)
        TRY(ll_trainer_saved(t, ll_saver_move(t->saver)));
    if (t->s->skipped && !strcmp(t->r->train.spike_action, "rollback"))
        TRY(ll_trainer_roll_back(t, done));
    if (t->r->train.compare && done % t->r->train.compare == 0)
        TRY(ll_copies_check(t->loose ? ll_loose_mine(t->loose) : t->comm, t->s, done));
    if (t->buddy && done % t->r->train.buddy == 0) TRY(ll_trainer_copy(t, done));
    if (validation_due(t, done)) TRY(validate(t, done, true));
    bool enough = out_of_patience(t);
    if (done == t->until || t->stop || enough)
        TRY(ll_trainer_save_last(t, done));
    else if (t->better || due(done, t->r->train.save_every, t->epoch_steps))
        TRY(ll_trainer_save(t, done, t->better));
    if (t->better) TRY(ll_ranks_agree(t->comm, ll_trainer_keep_best(t, done)));
    if (enough) {
        t->report->out_of_patience = true;
        t->steps = t->until = done;
    }
    return LL_OK;
}

/* From now on time is useful, but for what is lost to data. */
static void begin_useful(trainer *t)
{
    t->from_s = ll_now() - t->good.lost[LL_LOSS_DATA];
}

/* This rank is done with steps from+1 .. to, the last of its own being of the first of them. */
static ll_err pass(trainer *t, int64_t from, int64_t to, const ll_train_step *last)
{
    for (int64_t done = from + 1; done <= to && done <= t->until && !t->stop; done++) {
        bool meets = meeting(t, done);
        t->report->steps = done;
        if (t->served && meets) TRY(ll_loose_arrive(t->loose));
        TRY(tell_step(t, done, to - from, last));
        if (meets) TRY(listen(t)); /* until all ranks have made it */
        if (t->served && meets) TRY(ll_loose_meet(t->loose));
        t->good.useful += ll_now() - t->from_s - t->good.lost[LL_LOSS_DATA];
        TRY(settle(t, done, meets));
        begin_useful(t);
    }
    t->told = ll_now();
    return LL_OK;
}

static ll_err start_shares(trainer *t)
{
    t->served = true;
    TRY(ll_loose_start(t->loose, t->first, t->opts->replay));
    for (int i = 0; i < 2; i++) ask_share(t, &ll_loose_hand(t->loose)[i]);
    return LL_OK;
}

static ll_err loop(trainer *t)
{
    ll_train_step last = {.lr = NAN, .loss = NAN, .grad_norm = NAN, .saturated = -1};
    TRY(listen(t));
    if (out_of_patience(t)) t->report->out_of_patience = true, t->steps = t->until = t->first;
    if (t->loose && ll_loose_served(t->loose) && t->first < t->until) TRY(start_shares(t));
    int64_t step = t->first, next = t->served ? ll_loose_hand(t->loose)->step : step;
    t->told = ll_now();
    begin_useful(t);
    for (;; step = next, next = t->served ? ll_loose_hand(t->loose)->step : step + 1) {
        TRY(pass(t, step, next, &last));
        if (next >= t->until || t->stop) break;
        begin_useful(t);
        TRY(take_step(t, next, &last));
    }
    if (t->tracer) TRY(end_trace(t));
    bool saved = t->goes_on && !t->opts->resume_from && !t->in_memory;
    if (t->report->steps > t->first || saved) return LL_OK;
    return t->stop || t->in_memory ? ll_trainer_save_last(t, t->first) : LL_OK;
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

static double wide_bytes(const trainer *t, bool ran)
{
    return (double)(ll_session_wide_bytes(t->s, ran) + ll_evaluator_wide_bytes(t->eval, ran));
}

static ll_err plan_memory(trainer *t)
{
    ll_train_memory *m = &t->report->memory;
    int64_t count, first, micro = ll_run_micro_batches(t->r);
    ll_session_rows(t->s, &first, &count);
    m->tensors = (double)(ll_session_bytes(t->s) + ll_evaluator_bytes(t->eval) +
                          ll_exec_comm_bytes(t->s->e) + ll_evaluator_comm_bytes(t->eval) +
                          ll_residual_bytes(t->s));
    size_t between = 0;
    if (t->loose) TRY(ll_loose_comm_bytes(t->loose, &between));
    m->tensors += (double)between;
    m->copies = (double)(ll_saver_bytes(t->saver) + (t->loose ? ll_loose_bytes(t->loose) : 0));
    m->batches =
        (double)(ll_loader_bytes(t->data, micro * count) + ll_evaluator_batch_bytes(t->eval));
    const ll_data_info *d = ll_dataset_info(t->data);
    /* a sample brings the pages around it; those of validation lie one behind the other */
    double pages = (double)((t->steps - t->first + 3) * micro * count) * (1 << 16);
    int64_t val = t->r->train.eval_samples ? t->r->train.eval_samples : d->n[LL_VAL];
    pages += (double)val / (double)(d->n[LL_TRAIN] + d->n[LL_VAL]) * (double)d->bytes;
    m->data = (double)(d->bytes - d->mapped) + fmin((double)d->mapped, pages);
    m->planned = m->tensors;
    if (!t->s->machine->ask) m->planned += m->copies + m->batches + m->data + m->rest;
    TRY(ll_session_plan_wide(t->s));
    TRY(ll_evaluator_plan_wide(t->eval));
    m->wide = wide_bytes(t, false);
    double *const most[] = {&m->tensors, &m->copies, &m->batches, &m->data,
                            &m->rest,    &m->wide,   &m->planned};
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
    m->wide = wide_bytes(t, true);
    TRY(ll_ranks_max(t->comm, &m->wide));
    m->planned += m->wide;
    TRY(ll_ranks_max(t->comm, &m->used));
    return ll_ranks_max(t->comm, &m->tensors_used);
}

/* ---- the end ---- */

static ll_err count_stale(trainer *t)
{
    ll_loose_count n = ll_loose_counted(t->loose);
    for (int i = 0; i < LL_STALENESS; i++) t->report->stale[i] = (double)n.stale[i];
    return ll_comm_allreduce(ll_loose_peers(t->loose), t->report->stale, LL_STALENESS, LL_F64,
                             LL_REDUCE_SUM, &(ll_coll_opts){.site = "staleness"});
}

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
    if (t->served) TRY(count_stale(t));
    r->seconds = ll_now() - t->began;
    t->good.wall = ll_trainer_wall(t);
    r->goodput = t->good;
    r->signal = r->steps < t->until || t->owed ? t->stop : 0; /* else it was done all the same */
    return LL_OK;
}

static ll_err draw_curve(const trainer *t)
{
    TRY(ll_events_flush(t->events));
    TRY(ll_metrics_flush(t->metrics, true));
    TRY(ll_metrics_flush(t->timing, true));
    char n[LL_NUMBER_TEXT], d[LL_NUMBER_TEXT];
    const char *caption =
        ll_arena_printf(t->arena, "%s parameters, batch %" PRId64 ", %s, %s",
                        ll_text_count((double)t->report->parameters, n), t->r->train.batch,
                        t->r->train.optim.name, ll_text_duration(t->report->seconds, d));
    return ll_curve_of_run(t->r->out, t->r->name, caption);
}

static ll_err leave_pictures(const trainer *t)
{
    const ll_train_report *r = t->report;
    if (r->steps > t->first)
        TRY(ll_foresee_note(t->r->out, &(ll_foreseen){.model = t->r->model.name,
                                                      .mesh = r->mesh,
                                                      .ranks = r->ranks,
                                                      .steps = r->steps - t->first,
                                                      .predicted_s = r->predicted_s,
                                                      .measured_s = r->step_s,
                                                      .predicted_bytes = r->memory.tensors,
                                                      .measured_bytes = r->memory.tensors_used}));
    return draw_curve(t);
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
    TRY(ll_foresee_step(t->s, t->comm, &t->report->predicted_s));
    tell_start(t);
    ll_trainer_count_start(t);
    TRY(catch_up(t));
    TRY(loop(t));
    TRY(sum_up(t));
    return ll_ranks_agree(t->comm, t->lead ? leave_pictures(t) : LL_OK);
}

/* Closing may replace the message of what failed. */
static ll_err close_all(trainer *t, ll_err rc)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", ll_error_message());
    if (rc == LL_OK && t->buddy) ll_buddy_sweep(t->opts->start->job); /* the disk has it all */
    ll_trainer_close(t, rc != LL_OK && t->comm && ll_job_failure() == LL_FAILURE_ALONE);
    CHECK(rc == LL_OK || !strcmp(message, ll_error_message()), rc, "%s", message);
    return rc;
}

static ll_err train(const ll_run *r, const ll_train_opts *opts, int64_t until, ll_train_report *out)
{
    trainer t = {
        .r = r, .opts = opts, .report = out, .until = until, .began = ll_now(), .folder = -1};
    t.best = INFINITY;
    t.arena = ll_arena_new();
    memset(out, 0, sizeof *out);
    out->ranks = opts->comm ? ll_comm_size(opts->comm) : 1;
    if (out->ranks > 1) t.comm = opts->comm;
    t.lead = ll_ranks_lead(t.comm);
    return close_all(&t, run(&t));
}

/* The step that the run would go on after; 0: it begins. Collective. */
static ll_err find_step(const ll_run *r, const ll_train_opts *o, int64_t *step)
{
    LL_OWN(ll_st_file) f = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *note;
    *step = 0;
    if (o->start && o->start->number > 0)
        TRY(ll_checkpoint_open_whole(o->comm, r->out, 1, a, &note, &f));
    else if (o->resume && o->resume_from)
        TRY(ll_checkpoint_open(o->comm, o->resume_from, &f));
    else if (o->resume)
        TRY(ll_checkpoint_open_latest(o->comm, r->out, &f));
    return f ? ll_checkpoint_int(f, "step", step) : LL_OK;
}

/* Replicas that part after a while are synchronous until then: a run that ends there, and another
 * one that goes on from its checkpoint. */
static ll_err train_phases(const ll_run *r, const ll_train_opts *opts, ll_train_report *out)
{
    int64_t part = ll_run_loose(r) ? r->parallel.between.warm_up : 0, step;
    if (!part) return train(r, opts, 0, out);
    TRY(find_step(r, opts, &step));
    if (step >= part) return train(r, opts, 0, out);
    ll_run first = *r;
    first.parallel.between.what = "gradient";
    TRY(train(&first, opts, part, out));
    if (out->signal || out->out_of_patience || out->steps < part) return LL_OK;
    ll_train_opts then = *opts;
    then.resume = true;
    then.resume_from = NULL;
    return train(r, &then, 0, out);
}

ll_err ll_train(const ll_run *r, const ll_train_opts *opts, ll_train_report *out)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    enum { N = sizeof signals / sizeof *signals };
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old[N];
    caught = 0;
    for (int i = 0; i < N; i++) {
        sigaction(signals[i], &mine, &old[i]);
        if (signals[i] == SIGHUP && old[i].sa_handler == SIG_IGN) /* nohup */
            sigaction(signals[i], &old[i], NULL);
    }
    ll_err rc = train_phases(r, opts, out);
    for (int i = 0; i < N; i++) sigaction(signals[i], &old[i], NULL);
    return rc;
}
