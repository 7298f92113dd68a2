/* trainer.c: the training loop.
 *
 * 1. Everything that metrics.jsonl and checkpoints hold is a function of the run file alone: two
 *    runs give the same bytes, and so does a run that was stopped and resumed. Times go elsewhere.
 * 2. A checkpoint after step k has all that step k+1 needs; data position is the step number.
 * 3. A signal (SIGINT, SIGTERM, or SIGUSR1, which launchers pass on) ends the loop after the step
 *    under way, a validation at once; the checkpoint is then written as usual. A validation cut
 *    short is owed: the resumed run begins with it.
 * 4. What is in the run folder is left alone until everything that can be refused has been.
 * 5. Ranks take the same steps and decisions: what may differ between them (files, signals) is
 *    agreed on. Rank 0 alone writes to the run folder, but for the tensors of checkpoints. */
#include "train/trainer.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"
#include "comm/job.h"
#include "train/checkpoint.h"
#include "train/curve.h"
#include "train/events.h"
#include "train/metrics.h"
#include "train/residual.h"
#include "train/state.h"
#include "train/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { RECENT = 1 << 16 }; /* steps whose time and loss are remembered */

typedef struct trainer {
    const ll_run *r;
    const ll_train_opts *opts;
    ll_train_report *report;
    ll_comm *comm; /* NULL: alone */
    bool lead;     /* alone, or rank 0 */
    ll_arena *arena;
    ll_dataset *data;
    ll_graph *g;
    ll_session *s;
    ll_evaluator *eval;
    ll_loader *loader;
    ll_metrics *metrics, *timing;
    ll_events *events;
    ll_tracer *tracer; /* NULL: nothing is traced */
    int64_t micro, n_micro, steps, first, epoch_steps;
    int64_t trace_first, trace_last; /* steps, 1 is the first */
    double *times, *losses;          /* [RECENT], of step i at (i - first) % RECENT */
    double began;
    double flops;        /* of a step, all ranks together */
    int folder;          /* open and locked; -1: not yet */
    const char *resumed; /* what a person should know of it, or NULL */
    int stop;            /* a signal that some rank has got, as agreed */
    bool owed;           /* a validation was cut short */
    int64_t at;          /* the step that is run */
    bool fed;            /* the next step's batch is set already */
} trainer;

static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
    caught = sig == SIGUSR1 ? SIGTERM : sig;
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
    int threads = (int)r->train.threads;
    t->n_micro = ll_run_micro_batches(r);
    t->micro = r->train.batch / t->n_micro;
    if (t->comm) TRY(ll_bind_rank(t->comm, &threads));
    TRY(ll_ranks_agree(t->comm, ll_run_graph(r, t->micro, &r->train.optim, &t->g)));
    ll_session_opts o = {.threads = threads,
                         .micro_batches = (int)t->n_micro,
                         .machine = r->train.machine,
                         .precision = r->train.precision,
                         .any_order = !r->train.deterministic,
                         .seed = (uint64_t)r->train.seed,
                         .comm = t->comm,
                         .mesh = t->report->mesh,
                         .zero = (int)r->parallel.zero,
                         .exact = r->parallel.exact,
                         .compress = r->parallel.compress,
                         .layouts = r->layouts,
                         .overlap = r->parallel.overlap,
                         .transport = r->parallel.transport};
    TRY(ll_session_open(t->g, &o, &t->s));
    TRY(ll_evaluator_open(r, t->data, t->s, &t->eval));
    TRY(ll_evaluator_plan(t->eval, r->train.eval_samples));
    return ll_evaluator_plan(t->eval, 0);
}

/* One process at a time: two would mix their metrics and remove each other's checkpoints. Where
 * the file system has no locks there are none. */
static ll_err lock_folder(trainer *t)
{
    const char *out = t->r->out;
    if (!t->opts->resume || t->opts->resume_from) TRY(ll_mkdirs(out));
    t->folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(t->folder >= 0 || (t->opts->resume && errno == ENOENT), LL_E_IO, "%s: %s", out,
          strerror(errno));
    CHECK(t->folder < 0 || flock(t->folder, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK,
          LL_E_IO, "%s: another process is training there; --out DIR goes elsewhere", out);
    return LL_OK;
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

static ll_err check_same_word(const ll_st_file *f, const char *key, const char *now)
{
    const char *then = ll_st_meta(f, key);
    CHECK(!then || !strcmp(then, now), LL_E_CONFIG,
          "%s was made with %s %.40s, this run has %s: resume with the settings it began with",
          ll_st_path(f), key, then, now);
    return LL_OK;
}

static ll_err load_from(trainer *t, const ll_st_file *f)
{
    ll_st_tensor *tensors;
    ll_st_part *parts;
    int n = ll_session_tensors(t->s, t->arena, &tensors, &parts);
    TRY(check_same_word(f, "model", t->r->model.name));
    TRY(check_same_word(f, "optimizer", t->r->train.optim.name));
    TRY(check_same(f, "seed", t->r->train.seed));
    TRY(check_same(f, "batch", t->r->train.batch));
    TRY(ll_checkpoint_load_parts(f, tensors, parts, n, true));
    TRY(ll_residual_load(t->s, f, t->arena, &t->resumed));
    TRY(ll_session_loaded(t->s));
    TRY(ll_checkpoint_int(f, "step", &t->first));
    ll_session_set_step(t->s, (uint64_t)t->first);
    return LL_OK;
}

static ll_err no_checkpoint(const trainer *t)
{
    FAIL(LL_E_IO, "%s has no checkpoint to resume from: train %s", t->r->out,
         t->folder < 0 ? "without --resume" : "with --overwrite in place of --resume");
}

static ll_err resume(trainer *t)
{
    ll_st_file *f;
    if (t->opts->resume_from)
        TRY(ll_checkpoint_open(t->comm, t->opts->resume_from, &f));
    else
        TRY(ll_checkpoint_open_latest(t->comm, t->r->out, &f));
    ll_err rc = f ? load_from(t, f) : no_checkpoint(t);
    ll_st_close(f);
    return ll_ranks_agree(t->comm, rc);
}

/* Files of the run, without what an earlier one left there of steps that are still to come. */
static ll_err open_outputs(trainer *t)
{
    char *text = ll_run_print(t->r, t->arena);
    int64_t keep = t->opts->resume ? t->first : -1;
    TRY(ll_checkpoint_drop_after(t->r->out, keep));
    if (!t->opts->resume) TRY(ll_events_drop(t->r->out));
    TRY(ll_file_write(in_folder(t, "run.yaml"), text, strlen(text)));
    TRY(ll_metrics_open(in_folder(t, "metrics.jsonl"), keep, &t->metrics));
    TRY(ll_metrics_open(in_folder(t, "timing.jsonl"), keep, &t->timing));
    return ll_events_open(t->r->out, t->first + 1, &t->events);
}

static ll_err open_data(trainer *t)
{
    TRY(ll_run_dataset(t->r, &t->data));
    const ll_data_info *info = ll_dataset_info(t->data);
    t->steps = ll_run_steps(t->r, info->n[LL_TRAIN]);
    t->epoch_steps = (info->n[LL_TRAIN] + t->r->train.batch - 1) / t->r->train.batch;
    t->times = (double *)calloc(RECENT, sizeof(double));
    t->losses = (double *)calloc(RECENT, sizeof(double));
    CHECK(t->times && t->losses, LL_E_MEM, "no memory to note %d steps", RECENT);
    return LL_OK;
}

/* Each rank reads its own samples of each micro-batch. */
static ll_err open_loader(trainer *t)
{
    const ll_run *r = t->r;
    ll_loader_opts o = {
        .batch = r->train.batch,
        .start = t->first,
        .every = t->micro,
        .how = {LL_TRAIN, (uint64_t)r->train.seed, r->data.flip, (int)r->data.crop}};
    ll_session_rows(t->s, "x", &o.first, &o.count);
    return ll_loader_open(t->data, &o, &t->loader);
}

/* For the report that names a rank which the others wait for. */
static void doing(const trainer *t, const char *what)
{
    if (t->comm) ll_comm_doing(t->comm, what);
}

/* Ranks of several nodes may have found other files. */
static ll_err check_alike(trainer *t)
{
    const char *text = ll_run_print(t->r, t->arena);
    const ll_data_info *d = ll_dataset_info(t->data);
    const int64_t sizes[] = {d->n[LL_TRAIN], d->n[LL_VAL], (int64_t)d->bytes};
    TRY(ll_ranks_same(t->comm, ll_crc32c(0, text, strlen(text)), "the run"));
    return ll_ranks_same(t->comm, ll_crc32c(0, sizes, sizeof sizes), "the data");
}

static ll_err open_trace(trainer *t)
{
    const ll_train_opts *o = t->opts;
    t->trace_first = o->trace_first;
    t->trace_last = o->trace_last;
    if (!t->trace_first && !t->trace_last) {
        t->trace_first = t->first + (t->first + 1 < t->steps ? 2 : 1);
        t->trace_last = t->trace_first + 2 < t->steps ? t->trace_first + 2 : t->steps;
    }
    CHECK(t->trace_first > t->first && t->trace_last >= t->trace_first && t->trace_last <= t->steps,
          LL_E_ARG, "a trace of steps %lld to %lld: this run does steps %lld to %lld",
          (long long)t->trace_first, (long long)t->trace_last, (long long)t->first + 1,
          (long long)t->steps);
    return ll_tracer_open(t->comm, t->s, o->trace, t->r->name, &t->tracer);
}

static ll_err set_up(trainer *t)
{
    TRY(ll_ranks_agree(t->comm, ll_run_mesh(t->r, t->report->ranks, t->report->mesh)));
    doing(t, "opening of the data");
    TRY(ll_ranks_agree(t->comm, open_data(t)));
    if (t->comm) TRY(check_alike(t));
    doing(t, "compilation");
    TRY(open_model(t));
    doing(t, "set-up of the run folder");
    TRY(ll_ranks_agree(t->comm, t->lead ? lock_folder(t) : LL_OK));
    if (t->opts->resume) TRY(resume(t));
    if (t->opts->trace) TRY(open_trace(t));
    TRY(ll_ranks_agree(t->comm, t->lead ? open_outputs(t) : LL_OK));
    TRY(ll_ranks_see(t->comm, in_folder(t, "run.yaml"), strlen(ll_run_print(t->r, t->arena))));
    return ll_ranks_agree(t->comm, open_loader(t));
}

/* alone: the others will not come to close what is shared. */
static void tear_down(trainer *t, bool alone)
{
    ll_loader_close(t->loader);
    ll_tracer_close(t->tracer);
    ll_events_close(t->events);
    ll_metrics_close(t->metrics);
    ll_metrics_close(t->timing);
    if (!alone) {
        ll_evaluator_close(t->eval);
        ll_session_close(t->s);
        ll_graph_free(t->g);
    }
    ll_dataset_close(t->data);
    free(t->times);
    free(t->losses);
    if (t->folder >= 0) close(t->folder);
    ll_arena_free(t->arena);
}

static void tell_start(const trainer *t)
{
    const ll_program *p = ll_session_program(t->s);
    const char *note = NULL;
    bool gpu = !strcmp(t->r->train.machine, "cuda");
    if (!strcmp(t->r->train.precision, "bf16"))
        note = gpu ? "activations of bf16; parameters, their gradients and sums f32"
                   : "products of bf16 numbers, summed in f32";
    if (!strcmp(t->r->train.precision, "fp8"))
        note = "large products of 8-bit floats with scales, but for logits; activations of bf16; "
               "parameters, their gradients and sums f32; validation in bf16";
    if (!strcmp(t->r->train.precision, "tf32"))
        note = "operands of products, convolutions and attention rounded to tf32, summed in f32";
    ll_train_start s = {t->r,
                        ll_dataset_info(t->data),
                        t->report->parameters,
                        t->steps,
                        t->first,
                        t->report->bytes_planned,
                        t->flops,
                        p->threads,
                        t->report->ranks,
                        t->report->mesh,
                        note,
                        t->resumed,
                        ll_session_seats(t->s)};
    if (t->lead && t->opts->watch.start) t->opts->watch.start(t->opts->watch.context, &s);
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

/* The next step's batch, while a GPU works on this one's. */
static ll_err feed_next(void *context)
{
    trainer *t = (trainer *)context;
    if (t->at + 1 >= t->steps) return LL_OK;
    TRY(feed(t));
    t->fed = true;
    return LL_OK;
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

/* A loss that is not finite is so on all ranks, which then fail together. */
static ll_err run_session(trainer *t, double lr)
{
    ll_err rc = ll_session_run(t->s, lr);
    if (rc != LL_E_NUMERIC) return rc;
    rc =
        ll_raise(rc, __FILE__, __LINE__, __func__,
                 "%s; a lower train.lr (it was %g) or train.clip may help", ll_error_message(), lr);
    return ll_ranks_agree(t->comm, rc);
}

static ll_err take_step(trainer *t, int64_t step)
{
    const ll_data_info *info = ll_dataset_info(t->data);
    doing(t, "a training step");
    if (t->tracer && step + 1 == t->trace_first) TRY(ll_tracer_start(t->tracer));
    double start = now(), lr = ll_lr_at(&t->r->train.schedule, t->r->train.batch, t->steps, step);
    if (!t->fed) TRY(feed(t));
    t->fed = false;
    t->at = step;
    if (t->tracer) ll_tracer_note(t->tracer, "data", -1, start);
    double waited = ll_exec_waited(ll_session_exec(t->s));
    TRY(run_session(t, lr));
    if (t->tracer) ll_tracer_note(t->tracer, "step", step + 1, start);
    double seconds = now() - start, batch = (double)t->r->train.batch;
    double loss = ll_session_result(t->s, "loss");
    if (step == t->first) t->report->first_step_s = now() - t->began;
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
                       ll_exec_waited(ll_session_exec(t->s)) - waited};
    ll_exec_compressed(ll_session_exec(t->s), &s.gradient_bytes, &s.dense_bytes);
    t->report->gradient_bytes = s.gradient_bytes;
    t->report->dense_bytes = s.dense_bytes;
    if (t->tracer && step + 1 == t->trace_last) TRY(ll_tracer_write(t->tracer));
    TRY(record(t, &s));
    if (t->lead && t->opts->watch.step) t->opts->watch.step(t->opts->watch.context, &s);
    return LL_OK;
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
    TRY(ll_metrics_end(t->metrics));
    TRY(ll_events_scalar(t->events, done, "val/loss", score->loss));
    if (isnan(score->accuracy)) return LL_OK;
    return ll_events_scalar(t->events, done, "val/accuracy", score->accuracy);
}

/* note: not where the metrics have it already. */
static ll_err validate(trainer *t, int64_t done, bool note)
{
    ll_score score;
    int64_t samples = done >= t->steps ? 0 : t->r->train.eval_samples;
    doing(t, "validation");
    ll_err rc = ll_evaluate(t->eval, samples, &(ll_stop){ask, t}, &score);
    if (rc == LL_E_NUMERIC) rc = ll_ranks_agree(t->comm, rc); /* it is so on all */
    TRY(rc);
    t->owed = score.samples == 0;
    if (t->owed) return LL_OK;
    t->report->val = score;
    if (note) TRY(note_score(t, done, &score));
    if (t->lead && t->opts->watch.evaluated)
        t->opts->watch.evaluated(t->opts->watch.context, done, &score);
    return LL_OK;
}

static ll_err save(trainer *t, int64_t done)
{
    doing(t, "a checkpoint");
    ll_arena *a = ll_arena_new();
    ll_st_tensor *tensors;
    ll_st_part *parts;
    int n = ll_session_all_tensors(t->s, a, &tensors, &parts);
    const ll_st_pair meta[] = {
        {"model", t->r->model.name},
        {"optimizer", t->r->train.optim.name},
        {"seed", ll_arena_printf(a, "%" PRId64, t->r->train.seed)},
        {"batch", ll_arena_printf(a, "%" PRId64, t->r->train.batch)},
    };
    ll_checkpoint c = {done, tensors, n, meta, sizeof meta / sizeof *meta, parts, t->comm};
    if (t->comm) ll_comm_slow(t->comm, true);
    ll_err rc = ll_checkpoint_save(t->r->out, &c, (int)t->r->train.keep);
    if (t->comm) ll_comm_slow(t->comm, false);
    ll_arena_free(a);
    TRY(rc);
    if (!t->lead) return LL_OK;
    TRY(ll_events_flush(t->events));
    if (t->opts->watch.saved) t->opts->watch.saved(t->opts->watch.context, done, t->r->out);
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
static ll_err has_score(const trainer *t, int64_t *has)
{
    uint8_t *text;
    size_t n;
    TRY(ll_file_read(in_folder(t, "metrics.jsonl"), SIZE_MAX / 4, &text, &n));
    *has =
        strstr((char *)text,
               ll_arena_printf(t->arena, "{\"step\":%" PRId64 ",\"val_loss\":", t->first)) != NULL;
    free(text);
    return LL_OK;
}

/* The validation of the step resumed after, where its run was stopped before it had one; and of a
 * run that was over, for the report. */
static ll_err catch_up(trainer *t)
{
    if (t->first == 0 || !validation_due(t, t->first)) return LL_OK;
    int64_t has = 0;
    TRY(ll_ranks_agree(t->comm, t->lead ? has_score(t, &has) : LL_OK));
    TRY(ll_ranks_number(t->comm, &has));
    return has && t->first < t->steps ? LL_OK : validate(t, t->first, !has);
}

static ll_err loop(trainer *t)
{
    ll_session_meanwhile(t->s, feed_next, t);
    TRY(listen(t));
    for (int64_t step = t->first; step < t->steps && !t->stop; step++) {
        TRY(take_step(t, step));
        int64_t done = step + 1;
        t->report->steps = done;
        TRY(listen(t));
        if (validation_due(t, done)) TRY(validate(t, done, true));
        if (done == t->steps || t->stop || due(done, t->r->train.save_every, t->epoch_steps))
            TRY(save(t, done));
    }
    if (t->tracer) TRY(ll_tracer_write(t->tracer));
    bool saved = t->report->steps > t->first || (t->opts->resume && !t->opts->resume_from);
    return t->stop && !saved ? save(t, t->first) : LL_OK;
}

/* ---- the end ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    qsort(t->times, (size_t)n, sizeof *t->times, by_value);
    r->step_s = n ? t->times[n / 2] : NAN;
    r->samples_per_s = (double)t->r->train.batch / r->step_s;
    r->tokens_per_s = info->kind == LL_TOKENS ? r->samples_per_s * (double)info->seq : 0;
    double used = (double)(ll_exec_bytes(ll_session_exec(t->s)) + ll_evaluator_bytes(t->eval));
    if (t->comm) used += (double)ll_comm_used(t->comm).held;
    TRY(ll_ranks_max(t->comm, &used));
    r->bytes_used = (size_t)used;
    r->seconds = now() - t->began;
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
    TRY(set_up(t));
    double planned =
        (double)(ll_session_bytes(t->s) + ll_evaluator_bytes(t->eval) +
                 ll_exec_comm_bytes(ll_session_exec(t->s)) + ll_evaluator_comm_bytes(t->eval));
    t->flops = ll_session_program(t->s)->flops;
    TRY(ll_ranks_max(t->comm, &planned));
    TRY(ll_ranks_sum(t->comm, &t->flops));
    t->report->parameters = ll_session_parameters(t->s);
    t->report->steps = t->report->first = t->first;
    t->report->val = (ll_score){NAN, NAN, 0};
    t->report->bytes_planned = (size_t)planned;
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
    tear_down(t, rc != LL_OK && t->comm && ll_job_failure() == LL_FAILURE_ALONE);
    CHECK(rc == LL_OK || !strcmp(message, ll_error_message()), rc, "%s", message);
    return rc;
}

ll_err ll_train(const ll_run *r, const ll_train_opts *opts, ll_train_report *out)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old[3];
    trainer t = {.r = r, .opts = opts, .report = out, .began = now(), .folder = -1};
    t.arena = ll_arena_new();
    memset(out, 0, sizeof *out);
    out->ranks = opts->comm ? ll_comm_size(opts->comm) : 1;
    if (out->ranks > 1) t.comm = opts->comm;
    t.lead = ll_ranks_lead(t.comm);
    caught = 0;
    for (int i = 0; i < 3; i++) sigaction(signals[i], &mine, &old[i]);
    ll_err rc = close_all(&t, run(&t));
    for (int i = 0; i < 3; i++) sigaction(signals[i], &old[i], NULL);
    return rc;
}
