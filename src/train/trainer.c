/* trainer.c: the training loop.
 *
 * 1. Everything that metrics.jsonl and checkpoints hold is a function of the run file alone: two
 *    runs give the same bytes, and so does a run that was stopped and resumed. Times go elsewhere.
 * 2. A checkpoint after step k has all that step k+1 needs; data position is the step number.
 * 3. A signal ends the loop after the step under way; the checkpoint is then written as usual. */
#include "train/trainer.h"

#include "base/file.h"
#include "base/text.h"
#include "kern/cpu/gemm.h"
#include "train/checkpoint.h"
#include "train/curve.h"
#include "train/events.h"
#include "train/metrics.h"
#include "train/state.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct trainer {
    const ll_run *r;
    const ll_train_opts *opts;
    ll_train_report *report;
    ll_arena *arena;
    ll_dataset *data;
    ll_graph *g;
    ll_session *s;
    ll_evaluator *eval;
    ll_loader *loader;
    ll_metrics *metrics, *timing;
    ll_events *events;
    int64_t micro, n_micro, steps, first, epoch_steps;
    double *times, *losses; /* of the steps done here, by step - first */
    double began;
} trainer;

static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
    caught = sig;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *in_folder(const trainer *t, const char *name)
{
    return ll_arena_printf(t->arena, "%s/%s", t->r->out, name);
}

/* ---- setting up ---- */

static ll_err open_model(trainer *t)
{
    const ll_run *r = t->r;
    t->n_micro = ll_run_micro_batches(r);
    t->micro = r->train.batch / t->n_micro;
    TRY(ll_run_graph(r, t->micro, &r->train.optim, &t->g));
    ll_session_opts o = {.threads = (int)r->train.threads,
                         .micro_batches = (int)t->n_micro,
                         .precision = r->train.precision,
                         .seed = (uint64_t)r->train.seed};
    TRY(ll_session_open(t->g, &o, &t->s));
    return ll_evaluator_open(r, t->data, t->s, &t->eval);
}

/* A run can go on only with the settings that decide which data a step sees. */
static ll_err check_same(const ll_st_file *f, const char *key, int64_t now)
{
    int64_t then;
    TRY(ll_checkpoint_int(f, key, &then));
    CHECK(then == now, LL_E_CONFIG,
          "%s was made with train.%s %lld, this run has %lld: resume with "
          "--set train.%s=%lld",
          ll_st_path(f), key, (long long)then, (long long)now, key, (long long)then);
    return LL_OK;
}

static ll_err load_from(trainer *t, const ll_st_file *f)
{
    ll_st_tensor *tensors;
    int n = ll_session_tensors(t->s, t->arena, &tensors);
    TRY(check_same(f, "seed", t->r->train.seed));
    TRY(check_same(f, "batch", t->r->train.batch));
    TRY(ll_checkpoint_load(f, tensors, n, true));
    TRY(ll_checkpoint_int(f, "step", &t->first));
    ll_session_set_step(t->s, (uint64_t)t->first);
    return ll_checkpoint_drop_after(t->r->out, t->first);
}

static ll_err resume(trainer *t)
{
    ll_st_file *f;
    if (t->opts->resume_from)
        TRY(ll_checkpoint_open(t->opts->resume_from, &f));
    else
        TRY(ll_checkpoint_open_latest(t->r->out, &f));
    CHECK(f, LL_E_IO, "%s has no checkpoint to resume from: train without --resume", t->r->out);
    ll_err rc = load_from(t, f);
    ll_st_close(f);
    return rc;
}

static ll_err open_outputs(trainer *t)
{
    char *text = ll_run_print(t->r, t->arena);
    TRY(ll_mkdirs(t->r->out));
    TRY(ll_file_write(in_folder(t, "run.yaml"), text, strlen(text)));
    int64_t keep = t->opts->resume ? t->first : -1;
    TRY(ll_metrics_open(in_folder(t, "metrics.jsonl"), keep, &t->metrics));
    TRY(ll_metrics_open(in_folder(t, "timing.jsonl"), keep, &t->timing));
    return ll_events_open(t->r->out, t->first + 1, &t->events);
}

static ll_err set_up(trainer *t)
{
    const ll_run *r = t->r;
    TRY(ll_run_dataset(r, &t->data));
    const ll_data_info *info = ll_dataset_info(t->data);
    t->steps = ll_run_steps(r, info->n[LL_TRAIN]);
    t->epoch_steps = (info->n[LL_TRAIN] + r->train.batch - 1) / r->train.batch;
    TRY(open_model(t));
    if (t->opts->resume) TRY(resume(t));
    TRY(open_outputs(t));
    int64_t n = t->steps > t->first ? t->steps - t->first : 0;
    t->times = (double *)calloc((size_t)n + 1, sizeof(double));
    t->losses = (double *)calloc((size_t)n + 1, sizeof(double));
    CHECK(t->times && t->losses, LL_E_MEM, "no memory to note %" PRId64 " steps", n);
    ll_loader_opts lo = {
        .batch = r->train.batch,
        .start = t->first,
        .how = {LL_TRAIN, (uint64_t)r->train.seed, r->data.flip, (int)r->data.crop}};
    return ll_loader_open(t->data, &lo, &t->loader);
}

static void tear_down(trainer *t)
{
    ll_loader_close(t->loader);
    ll_events_close(t->events);
    ll_metrics_close(t->metrics);
    ll_metrics_close(t->timing);
    ll_evaluator_close(t->eval);
    ll_session_close(t->s);
    ll_graph_free(t->g);
    ll_dataset_close(t->data);
    free(t->times);
    free(t->losses);
    ll_arena_free(t->arena);
}

static void tell_start(const trainer *t)
{
    const ll_program *p = ll_session_program(t->s);
    const char *note = NULL;
    if (!strcmp(t->r->train.precision, "bf16")) note = "products of bf16 numbers, summed in f32";
    ll_train_start s = {t->r,
                        ll_dataset_info(t->data),
                        t->report->parameters,
                        t->steps,
                        t->first,
                        ll_session_bytes(t->s),
                        p->flops,
                        p->threads,
                        note};
    if (t->opts->watch.start) t->opts->watch.start(t->opts->watch.context, &s);
}

/* ---- one step, and what follows some steps ---- */

static ll_err feed(trainer *t)
{
    ll_data_batch b;
    TRY(ll_loader_next(t->loader, &b));
    size_t x = b.x_bytes / (size_t)t->n_micro, y = b.y_bytes / (size_t)t->n_micro;
    for (int m = 0; m < t->n_micro; m++) {
        TRY(ll_session_set(t->s, "x", m, (const char *)b.x + (size_t)m * x, x));
        TRY(ll_session_set(t->s, "y", m, (const char *)b.y + (size_t)m * y, y));
    }
    return LL_OK;
}

static ll_err record(trainer *t, const ll_train_step *s)
{
    bool last = s->step == t->steps;
    if (s->step % t->r->train.log_every && !last) return LL_OK;
    ll_metrics_begin(t->metrics, s->step);
    ll_metrics_num(t->metrics, "loss", s->loss);
    ll_metrics_num(t->metrics, "grad_norm", s->grad_norm);
    ll_metrics_num(t->metrics, "lr", s->lr);
    TRY(ll_metrics_end(t->metrics));
    ll_metrics_begin(t->timing, s->step);
    ll_metrics_num(t->timing, "step_ms", 1e3 * s->seconds);
    ll_metrics_num(t->timing, "samples_per_s", s->samples_per_s);
    TRY(ll_metrics_end(t->timing));
    TRY(ll_events_scalar(t->events, s->step, "train/loss", s->loss));
    TRY(ll_events_scalar(t->events, s->step, "train/grad_norm", s->grad_norm));
    TRY(ll_events_scalar(t->events, s->step, "train/lr", s->lr));
    return ll_events_scalar(t->events, s->step, "speed/samples_per_s", s->samples_per_s);
}

static ll_err take_step(trainer *t, int64_t step)
{
    const ll_data_info *info = ll_dataset_info(t->data);
    double start = now(), lr = ll_lr_at(&t->r->train.schedule, t->r->train.batch, t->steps, step);
    TRY(feed(t));
    TRY(ll_session_run(t->s, lr));
    double seconds = now() - start, batch = (double)t->r->train.batch;
    if (step == t->first) t->report->first_step_s = now() - t->began;
    t->times[step - t->first] = seconds;
    t->losses[step - t->first] = ll_session_result(t->s, "loss");
    ll_train_step s = {step + 1,
                       t->steps,
                       t->losses[step - t->first],
                       ll_session_result(t->s, "grad_norm"),
                       lr,
                       seconds,
                       batch / seconds,
                       info->kind == LL_TOKENS ? batch * (double)info->seq / seconds : 0,
                       1e-9 * ll_session_program(t->s)->flops / seconds};
    TRY(record(t, &s));
    if (t->opts->watch.step) t->opts->watch.step(t->opts->watch.context, &s);
    return LL_OK;
}

static ll_err validate(trainer *t, int64_t done, bool last)
{
    ll_score score;
    TRY(ll_evaluate(t->eval, last ? 0 : t->r->train.eval_samples, &score));
    t->report->val = score;
    ll_metrics_begin(t->metrics, done);
    ll_metrics_num(t->metrics, "val_loss", score.loss);
    if (!isnan(score.accuracy)) ll_metrics_num(t->metrics, "val_accuracy", score.accuracy);
    TRY(ll_metrics_end(t->metrics));
    TRY(ll_events_scalar(t->events, done, "val/loss", score.loss));
    if (!isnan(score.accuracy))
        TRY(ll_events_scalar(t->events, done, "val/accuracy", score.accuracy));
    if (t->opts->watch.evaluated) t->opts->watch.evaluated(t->opts->watch.context, done, &score);
    return LL_OK;
}

static ll_err save(trainer *t, int64_t done)
{
    ll_arena *a = ll_arena_new();
    ll_st_tensor *tensors;
    int n = ll_session_tensors(t->s, a, &tensors);
    const ll_st_pair meta[] = {
        {"model", t->r->model.name},
        {"seed", ll_arena_printf(a, "%" PRId64, t->r->train.seed)},
        {"batch", ll_arena_printf(a, "%" PRId64, t->r->train.batch)},
    };
    ll_checkpoint c = {done, tensors, n, meta, 3};
    ll_err rc = ll_checkpoint_save(t->r->out, &c, (int)t->r->train.keep);
    ll_arena_free(a);
    TRY(rc);
    TRY(ll_events_flush(t->events));
    if (t->opts->watch.saved) t->opts->watch.saved(t->opts->watch.context, done, t->r->out);
    return LL_OK;
}

static bool due(int64_t done, int64_t every, int64_t otherwise)
{
    return done % (every ? every : otherwise) == 0;
}

static ll_err loop(trainer *t)
{
    for (int64_t step = t->first; step < t->steps; step++) {
        TRY(take_step(t, step));
        int64_t done = step + 1;
        bool last = done == t->steps;
        t->report->steps = done;
        if (last || due(done, t->r->train.eval_every, t->epoch_steps)) TRY(validate(t, done, last));
        if (last || caught || due(done, t->r->train.save_every, t->epoch_steps)) TRY(save(t, done));
        if (caught) break;
    }
    return LL_OK;
}

/* ---- the end ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sum_up(trainer *t)
{
    ll_train_report *r = t->report;
    const ll_data_info *info = ll_dataset_info(t->data);
    int64_t n = r->steps - t->first, tail = n < t->r->train.log_every ? n : t->r->train.log_every;
    r->train_loss = n ? 0 : NAN;
    for (int64_t i = n - tail; i < n; i++) r->train_loss += t->losses[i] / (double)tail;
    qsort(t->times, (size_t)n, sizeof *t->times, by_value);
    r->step_s = n ? t->times[n / 2] : NAN;
    r->samples_per_s = (double)t->r->train.batch / r->step_s;
    r->tokens_per_s = info->kind == LL_TOKENS ? r->samples_per_s * (double)info->seq : 0;
    r->bytes_planned = ll_session_bytes(t->s);
    r->bytes_used = ll_exec_bytes(ll_session_exec(t->s));
    r->seconds = now() - t->began;
    r->signal = caught;
}

static ll_err run(trainer *t)
{
    TRY(set_up(t));
    t->report->parameters = ll_session_parameters(t->s);
    t->report->steps = t->first;
    t->report->val = (ll_score){NAN, NAN, 0};
    tell_start(t);
    TRY(loop(t));
    if (t->first >= t->steps) TRY(validate(t, t->first, true)); /* nothing was left to do */
    sum_up(t);
    TRY(ll_events_flush(t->events));
    char n[LL_NUMBER_TEXT], d[LL_NUMBER_TEXT];
    const char *caption =
        ll_arena_printf(t->arena, "%s parameters, batch %" PRId64 ", %s, %s",
                        ll_text_count((double)t->report->parameters, n), t->r->train.batch,
                        t->r->train.optim.name, ll_text_duration(t->report->seconds, d));
    return ll_curve_of_run(t->r->out, t->r->name, caption);
}

ll_err ll_train(const ll_run *r, const ll_train_opts *opts, ll_train_report *out)
{
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old_int, old_term;
    trainer t = {.r = r, .opts = opts, .report = out, .arena = ll_arena_new(), .began = now()};
    memset(out, 0, sizeof *out);
    caught = 0;
    sigaction(SIGINT, &mine, &old_int);
    sigaction(SIGTERM, &mine, &old_term);
    ll_err rc = run(&t);
    tear_down(&t);
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    return rc;
}
