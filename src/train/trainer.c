/* trainer.c: a training run, from its first word to its report.
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
#include "base/stats.h"
#include "train/curve.h"
#include "train/foresee.h"

#include <fcntl.h>
#include <malloc.h>

static void on_signal(int sig)
{
    ll_trainer_caught = sig == SIGUSR1 ? SIGTERM : sig;
}

static void tell_start(const trainer *t)
{
    ll_train_start s = {.run = t->r,
                        .data = ll_dataset_info(t->data),
                        .session = t->s,
                        .report = t->report,
                        .steps = t->steps,
                        .first_step = t->first,
                        .flops = t->flops,
                        .note = t->s->machine->notes[t->r->train.precision],
                        .resumed = t->resumed,
                        .weights = t->weights,
                        .kept = t->kept,
                        .doomed = t->doomed};
    if (t->lead && t->opts->watch.start) t->opts->watch.start(t->opts->watch.context, &s);
}

/* ---- the end ---- */

static ll_err count_stale(trainer *t)
{
    ll_loose_count n = ll_loose_counted(t->loose);
    for (int i = 0; i < LL_STALENESS; i++) t->report->stale[i] = (double)n.stale[i];
    return ll_comm_allreduce(t->loose->peers, t->report->stale, LL_STALENESS, LL_F64, LL_REDUCE_SUM,
                             &(ll_coll_opts){.site = "staleness"});
}

/* Of ranks that take turns on a core most small steps end within one: steps, a multiple of so many,
 * that last for many turns. */
static int64_t many_turns(const double *times, int64_t n, int64_t of)
{
    double all = 0, turns = 0.05;
    for (int64_t i = 0; i < n; i++) all += times[i];
    int64_t steps = of * (int64_t)ceil(turns * (double)n / fmax(all, turns) / (double)of);
    return steps > 0 && steps <= n ? steps : of;
}

/* What ranks waited in each step: the most of any. In pieces that scratch always has room for: a
 * long run takes no more memory than was planned. */
static ll_err most_waited(trainer *t, int64_t n)
{
    enum { PIECE = LL_LEAST_SCRATCH / sizeof(double) / 4 };
    for (int64_t at = 0; at < n; at += PIECE)
        TRY(ll_comm_allreduce(t->comm, t->waited + at, (size_t)(n - at < PIECE ? n - at : PIECE),
                              LL_F64, LL_REDUCE_MAX, &(ll_coll_opts){.site = "waits for cores"}));
    return LL_OK;
}

static ll_err sum_up(trainer *t)
{
    ll_train_report *r = t->report;
    const ll_data_info *info = ll_dataset_info(t->data);
    int64_t all = r->steps - t->first, n = all < RECENT ? all : RECENT;
    int64_t tail = n < t->r->train.log_every ? n : t->r->train.log_every;
    r->wide = t->s->n_wide;
    r->undone = t->s->after ? t->s->after->n_undone : 0;
    r->train_loss = n ? 0 : NAN;
    for (int64_t i = all - tail; i < all; i++)
        r->train_loss += t->losses[i % RECENT] / (double)tail;
    if (t->loose) /* each has its own */
        TRY(ll_comm_allreduce(t->loose->peers, &r->train_loss, 1, LL_F64, LL_REDUCE_SUM,
                              &(ll_coll_opts){.site = "loss"}));
    if (t->loose) r->train_loss /= (double)t->r->parallel.replicas;
    int64_t period = t->loose ? ll_loose_period(t->loose) : 1;
    if (ll_threads_a_core(t->s, t->comm) > 1) period = many_turns(t->times, n, period);
    if (t->comm && !t->loose) /* ranks' times differ, and what follows they do together */
        TRY(ll_comm_broadcast(t->comm, &period, sizeof period, LL_U8, 0, NULL));
    int64_t rows = n / period;
    for (int64_t k = 0; period > 1 && k < rows; k++) { /* one with an exchange takes longer */
        double sum = 0, waited = 0;
        for (int64_t i = k * period; i < (k + 1) * period; i++)
            sum += t->times[i], waited += t->waited[i];
        t->times[k] = sum / (double)period;
        t->waited[k] = waited / (double)period;
    }
    if (rows > 0) n = rows;
    if (t->comm && !t->loose) TRY(most_waited(t, n));
    r->n_timed = n;
    r->own_s = ll_unheld(t->times, t->waited, n, &r->n_own);
    ll_stats_sort(t->times, n);
    r->step_s = ll_quantile(t->times, n, 0.5);
    r->samples_per_s = (double)t->r->train.batch / r->step_s;
    r->tokens_per_s = info->kind == LL_TOKENS ? r->samples_per_s * (double)info->seq : 0;
    TRY(ll_trainer_measure_memory(t));
    TRY(ll_foresee_others(t->s, t->comm, t->cores, &r->others[1]));
    if (t->served) TRY(count_stale(t));
    r->seconds = ll_now() - t->began;
    ll_trainer_count_wall(t);
    r->goodput = t->good;
    r->signal = r->steps < t->until || t->owed ? t->stop : 0; /* else it was done all the same */
    return LL_OK;
}

static ll_err draw_curve(const trainer *t)
{
    TRY(ll_events_flush(t->events));
    TRY(ll_metrics_flush(t->metrics, true));
    TRY(ll_metrics_flush(t->timing, true));
    const char *caption = ll_arena_printf(t->arena, "%s parameters, batch %ld, %s, %s",
                                          LL_AMOUNT(t->report->parameters), t->r->train.batch,
                                          t->r->train.optim.name, LL_DURATION(t->report->seconds));
    return ll_curve_of_run(t->r->out, t->r->name, caption);
}

/* One line more in OUT/predictions.jsonl: what was said, what came of it. */
static ll_err note_prediction(const trainer *t)
{
    const ll_train_report *r = t->report;
    const char *path = ll_trainer_file(t, "predictions.jsonl");
    json_auto_t *j = json_pack("{s:s,s:s,s:i,s:I,s:o?,s:o?,s:o?,s:o?,s:o?,s:o?,s:o?}", "model",
                               t->r->model.name, "mesh", r->mesh, "ranks", r->ranks, "steps",
                               (json_int_t)(r->steps - t->first), /* not finite: null */
                               "predicted_step_ms", json_real(1e3 * r->predicted_s), "step_ms",
                               json_real(1e3 * r->step_s), "own_step_ms", json_real(1e3 * r->own_s),
                               "predicted_bytes", json_real(r->memory.tensors), "bytes",
                               json_real(r->memory.tensors_used), "predicted_others",
                               json_real(r->others[0]), "others", json_real(r->others[1]));
    LL_OWN_MEMORY char *text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    LL_OWN_FD int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    CHECK(fd >= 0, LL_E_IO, "%s cannot be written", path);
    TRY(ll_write_all(fd, path, text, strlen(text)));
    return ll_write_all(fd, path, "\n", 1);
}

static ll_err foresee(trainer *t)
{
    ll_train_report *r = t->report;
    const char *step = "the first start of the job did", *between = NULL;
    const char *slow = t->opts->slow > 1 ? "what --slow adds" : NULL;
    ll_ahead ahead = {.seconds = NAN};
    if (!t->s->machine->device && ll_threads_a_core(t->s, t->comm) <= 1)
        t->waits = ll_waits_open(t->s->p->threads);
    r->alone = t->waits != NULL;
    if (!ll_trainer_is_restart(t)) /* nobody waits for it again */
        TRY(ll_foresee_step(t->s, t->comm, t->until - t->first, t->waits, &ahead, &step));
    if (!isnan(ahead.seconds)) {
        TRY(ll_foresee_data(&t->own, t->data, t->loader, t->s, t->comm, &ahead));
        if (t->loose) TRY(ll_loose_rehearse(t->loose, ahead.seconds, &r->exchange_s, &between));
    }
    r->predicted_s = ahead.seconds + r->exchange_s;
    TRY(ll_foresee_others(t->s, t->comm, t->cores, &r->others[0]));
    t->cores = ll_core_time_now();
    const char *const all[] = {step, between, isnan(r->predicted_s) ? NULL : slow};
    for (int i = 0, n = 0; i < 3; i++)
        if (all[i])
            n += snprintf(r->unforeseen + n, sizeof r->unforeseen - (size_t)n, "%s%s",
                          n ? ", " : "", all[i]);
    return LL_OK;
}

static ll_err run(trainer *t)
{
    t->report->memory.rest = (double)ll_process_bytes() - (double)ll_process_code();
    TRY(ll_trainer_open(t));
    ll_trainer_doing(t, "what comes before the first step");
    TRY(ll_trainer_plan_memory(t));
    t->flops = t->s->p->flops;
    const ll_program_work work = ll_program_flops(t->s->p);
    t->model =
        ll_model_flops(t->g, t->s->p->n_micro) * (t->loose ? (double)t->r->parallel.replicas : 1);
    t->made = work.made;
    TRY(ll_ranks_sum(t->comm, &t->flops));
    TRY(ll_ranks_sum(t->comm, &t->made));
    t->report->parameters = ll_session_parameters(t->s);
    t->report->steps = t->report->first = t->first;
    t->report->val = (ll_score){NAN, NAN, 0};
    t->report->bubble = NAN;
    TRY(foresee(t));
    tell_start(t);
    malloc_trim(0); /* what was compiled and timed has left room behind, which steps do not need */
    ll_trainer_count_start(t);
    TRY(ll_trainer_catch_up(t, &(ll_stop){ll_trainer_ask, t}));
    TRY(ll_trainer_loop(t));
    TRY(sum_up(t));
    ll_err rc = t->lead && t->report->steps > t->first ? note_prediction(t) : LL_OK;
    if (t->lead && rc == LL_OK) rc = draw_curve(t);
    return ll_ranks_agree(t->comm, rc);
}

/* Closing may replace the message of what failed. */
static ll_err close_all(trainer *t, ll_err rc)
{
    LL_KEEP_ERROR;
    if (rc == LL_OK && t->buddy) ll_buddy_sweep(t->opts->start->job); /* the disk has it all */
    ll_trainer_close(t, rc != LL_OK && t->comm && ll_job_failure() == LL_FAILURE_ALONE);
    return rc;
}

static ll_err train(const ll_run *r, const ll_train_opts *opts, int64_t until,
                    const ll_goodput *past, ll_train_report *out)
{
    trainer t = {.r = r,
                 .opts = opts,
                 .report = out,
                 .until = until,
                 .began = ll_now(),
                 .cores = ll_core_time_now(),
                 .folder = -1,
                 .good = *past,
                 .past = *past};
    t.best = INFINITY;
    t.suspended = ll_process_stopped();
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
    const ll_goodput none = {0};
    if (!part) return train(r, opts, 0, &none, out);
    TRY(find_step(r, opts, &step));
    if (step >= part) return train(r, opts, 0, &none, out);
    ll_run first = *r;
    first.parallel.between.name = "sync";
    first.parallel.between.what = LL_EXCHANGE_gradient;
    first.parallel.between.peers = LL_PEERS_all;
    TRY(train(&first, opts, part, &none, out));
    if (out->signal || out->out_of_patience || out->steps < part) return LL_OK;
    ll_train_opts then = *opts;
    then.resume = true;
    then.resume_from = NULL;
    const ll_train_report past = *out;
    TRY(train(r, &then, 0, &past.goodput, out));
    out->first = past.first;
    out->first_step_s = past.first_step_s;
    out->seconds += past.seconds;
    out->skipped += past.skipped;
    out->rolled_back += past.rolled_back;
    out->wide += past.wide;
    out->unsaved += past.unsaved;
    out->save_waits += past.save_waits;
    return LL_OK;
}

ll_err ll_train(const ll_run *r, const ll_train_opts *opts, ll_train_report *out)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    enum { N = sizeof signals / sizeof *signals };
    struct sigaction mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old[N];
    sigset_t held;
    sigemptyset(&held);
    ll_trainer_caught = 0;
    for (int i = 0; i < N; i++) {
        sigaddset(&held, signals[i]);
        sigaction(signals[i], &mine, &old[i]);
        if (signals[i] == SIGHUP && old[i].sa_handler == SIG_IGN) /* nohup */
            sigaction(signals[i], &old[i], NULL);
    }
    ll_process_count_stops(); /* last: who has this one's handler has those above (cli/procs.c) */
    if (opts->start) sigprocmask(SIG_UNBLOCK, &held, NULL); /* what came as it began */
    ll_err rc = train_phases(r, opts, out);
    for (int i = 0; i < N; i++) sigaction(signals[i], &old[i], NULL);
    return rc;
}
