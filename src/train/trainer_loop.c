/* trainer_loop.c: the steps of a run, one after another or overlapping, and what follows some. */
#include "train/trainer_int.h"

#include "train/prune.h"

volatile sig_atomic_t ll_trainer_caught;

/* ---- one step, and what follows some steps ---- */

static ll_err feed(trainer *t)
{
    double start = ll_trainer_awake();
    TRY(ll_run_feed(&t->own, t->data, t->loader, t->s));
    t->fed = true;
    t->good.lost[LL_LOSS_DATA] += ll_trainer_awake() - start;
    if (t->tracer) ll_tracer_note(t->tracer, "data", -1, start + ll_process_stopped());
    return LL_OK;
}

/* While this step may still be under way. Where no other rank waits in the next, which cannot be,
 * this one goes on, and is saved. */
static ll_err feed_next(trainer *t)
{
    ll_err rc = feed(t);
    if (rc == LL_OK || t->comm) return rc;
    ll_error_keep(&t->unfed);
    return LL_OK;
}

static ll_err run_session(trainer *t, int64_t step, double lr)
{
    if (t->unfed.code != LL_OK) {
        ll_error_put_back(&t->unfed);
        ll_trainer_save_amid(t, step, "after which a sample cannot be read");
        return t->unfed.code;
    }
    if (!t->fed) TRY(feed(t));
    TRY(ll_session_start(t->s, lr));
    t->fed = false;
    int64_t next =
        t->served ? ll_server_hand(t->loose->server)[1].step : step + 1; /* of this rank's */
    if (next < t->until) TRY(feed_next(t));
    return ll_session_finish(t->s);
}

/* Its samples are made ahead. */
static void ask_share(trainer *t, const ll_ticket *x)
{
    int64_t micro = t->own.train.batch / ll_run_micro_batches(&t->own);
    if (x->step < t->until) ll_loader_ask(t->loader, x->step, x->place * micro);
}

/* Was the sample wrong, or what was made of it? A loss that is not finite is so on all ranks, which
 * then fail together; of several replicas it is the ranks' of one, and ends the others' too. */
static ll_err explain(trainer *t, ll_err rc, int64_t step, double lr)
{
    if (rc != LL_E_NUMERIC && rc != LL_E_ARG) return rc;
    int64_t batch = t->r->train.batch;
    const ll_sampling how = ll_run_sampling(&t->own);
    const char *sample = ll_run_blame(t->g, t->data, &how, step * batch, batch, t->arena);
    if (sample)
        rc = RAISE(rc, "%s; it came from the batch's input: %s", ll_error_message(), sample);
    else if (rc == LL_E_NUMERIC && step == 0)
        rc = RAISE(rc,
                   "%s; there was no update before it and its samples are finite: check the "
                   "initial values, or what the model computes from them",
                   ll_error_message());
    else if (rc == LL_E_NUMERIC)
        rc = RAISE(rc, "%s; a lower train.lr (the rate was %g) or train.clip may help",
                   ll_error_message(), lr);
    return rc == LL_E_ARG || t->loose ? rc : ll_ranks_agree(t->comm, rc);
}

/* A straggler: what it computed for so long takes as much longer. Others of a mesh have it in their
 * step, as they would where gradients are summed. */
static ll_err lag(const trainer *t, double seconds)
{
    double s = seconds * (t->opts->slow - 1);
    if (t->opts->slow <= 1) return LL_OK;
    if ((t->comm ? ll_comm_rank(t->comm) : 0) == t->opts->slow_rank) {
        if (t->comm) ll_comm_slow(t->comm, true);
        nanosleep(&(struct timespec){(time_t)s, (long)(1e9 * (s - floor(s)))}, NULL);
        if (t->comm) ll_comm_slow(t->comm, false);
    }
    return t->comm && !t->loose ? ll_comm_barrier(t->comm) : LL_OK;
}

static ll_err exchange(trainer *t, int64_t done)
{
    if (!t->served && (!t->loose || !ll_loose_due(t->loose, done))) return LL_OK;
    ll_trainer_doing(t, "an exchange between replicas");
    if (!t->served) return ll_loose_exchange(t->loose, done);
    TRY(ll_loose_serve(t->loose));
    ask_share(t, &ll_server_hand(t->loose->server)[1]);
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
    s->apart = !ll_trainer_log_due(t, s->step);
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
    if (!t->s->skipped) t->norm = t->norm > 0 ? 0.98 * t->norm + 0.02 * now : now;
}

/* One step of this rank's; *s: what is to be told of it. */
static ll_err take_step(trainer *t, int64_t step, ll_train_step *s)
{
    const ll_data_info *info = ll_dataset_info(t->data);
    ll_trainer_doing(t, "a training step");
    if (t->comm && t->report->first_step_s == 0) ll_comm_tell(t->comm);
    if (t->tracer && step + 1 == t->trace_first) TRY(ll_tracer_start(t->tracer));
    if (t->tracer && step == t->trace_last) ll_tracer_stop(t->tracer); /* told a step late */
    double start = ll_trainer_awake(),
           lr = ll_lr_at(&t->r->train.schedule, t->r->train.batch, t->steps, step) *
                ll_run_replica_lr(t->r);
    double waited = t->s->e->waited;
    ll_pruned pruned;
    if (t->served) TRY(ll_loose_ready(t->loose));
    TRY(ll_prune_step(t->r->train.prune, t->r->train.prune_steps, step, t->s, &pruned));
    limit_norm(t, step);
    TRY(explain(t, run_session(t, step, lr), step, lr));
    TRY(lag(t, ll_trainer_awake() - start - (t->s->e->waited - waited)));
    bool told = t->s->told == t->s->step; /* else the next step tells */
    double loss = told ? ll_session_result(t->s, "loss") : NAN;
    if (isnan(loss)) loss = NAN; /* rather than -nan, which prints as that */
    TRY(exchange(t, step + 1));  /* of gradients: the norm is then the round's */
    learn_norm(t);
    if (t->tracer) ll_tracer_note(t->tracer, "step", step + 1, start + ll_process_stopped());
    double seconds = ll_trainer_awake() - start, batch = (double)t->r->train.batch;
    t->waited[(step - t->first) % RECENT] = ll_waits_since(t->waits); /* and before it began */
    if (t->report->first_step_s == 0) t->report->first_step_s = ll_now() - t->began;
    *s = (ll_train_step){.step = step + 1,
                         .steps = t->steps,
                         .loss = loss,
                         .grad_norm = told ? ll_session_result(t->s, "grad_norm") : NAN,
                         .lr = lr,
                         .seconds = seconds,
                         .samples_per_s = batch / seconds,
                         .tokens_per_s =
                             info->kind == LL_TOKENS ? batch * (double)info->seq / seconds : 0,
                         .gflops = 1e-9 * t->model / seconds,
                         .made_gflops = 1e-9 * t->made / seconds,
                         .waited = t->s->e->waited - waited,
                         .saturated = t->s->e->saturated};
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
    double now = ll_trainer_awake(), ratio = s->seconds * (double)steps / (now - t->told);
    s->seconds /= ratio;
    s->samples_per_s *= ratio;
    s->tokens_per_s *= ratio;
    s->gflops *= ratio;
    s->made_gflops *= ratio;
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
    TRY(ll_trainer_record(t, &s));
    if (t->lead && t->opts->watch.step) t->opts->watch.step(t->opts->watch.context, &s);
    return t->tracer && done == t->trace_last ? end_trace(t) : LL_OK;
}

/* Has any rank got a signal, is any writing a checkpoint, was one stopped for longer than this? Has
 * one failed? */
static ll_err listen(trainer *t, ll_err mine)
{
    static const ll_coll_opts site = {.site = "signals"};
    double all = ll_process_stopped(), own = all - t->told_stops;
    double any[] = {ll_trainer_caught, ll_saver_busy(t->saver), own, mine != LL_OK};
    if (t->comm) TRY(ll_comm_allreduce(t->comm, any, 4, LL_F64, LL_REDUCE_MAX, &site));
    t->stop = (int)any[0];
    t->writing = any[1] > 0;
    t->held_up = any[2] - own;
    t->told_stops = all;
    return any[3] > 0 ? ll_ranks_agree(t->comm, mine) : LL_OK;
}

/* Time that other ranks were stopped for and this one waited is no more useful than its own. */
static void count_held_up(trainer *t)
{
    double since = ll_trainer_awake() - t->good.lost[LL_LOSS_DATA] - t->from_s;
    double lost = t->served ? 0 : fmax(0, fmin(t->held_up, since));
    t->from_s += lost;
    t->good.lost[LL_LOSS_SUSPENDED] += lost;
}

ll_err ll_trainer_ask(void *context, ll_err mine, bool *stop)
{
    trainer *t = (trainer *)context;
    TRY(listen(t, mine));
    *stop = t->stop;
    return LL_OK;
}

static bool out_of_patience(const trainer *t)
{
    return t->r->train.patience && t->since >= t->r->train.patience;
}

/* Replicas that are apart hear of each other where they meet anyway; and while a checkpoint is on
 * its way, which they bring to its end together. How long it is, is no matter of steps: those of a
 * server, who change what they have by meeting, would not do so again when the run is repeated. */
static bool meeting(const trainer *t, int64_t done)
{
    bool saving = !t->served && !ll_saver_idle(t->saver);
    return !t->loose || saving || ll_loose_due(t->loose, done) || ll_trainer_log_due(t, done) ||
           ll_trainer_validation_due(t, done) ||
           ll_trainer_due(done, t->r->train.save_every, t->epoch_steps);
}

/* What follows step `done`. */
static ll_err settle(trainer *t, int64_t done, bool meets)
{
    t->better = false;
    if (meets && !ll_saver_idle(t->saver) && !t->writing)
        TRY(ll_trainer_saved(t, ll_saver_move(t->saver)));
    if (t->s->skipped && t->r->train.spike_action == LL_SPIKE_rollback)
        TRY(ll_trainer_roll_back(t, done));
    if (t->r->train.compare && done % t->r->train.compare == 0)
        TRY(ll_copies_check(t->loose ? t->loose->mine : t->comm, t->s, done));
    if (t->buddy && done % t->r->train.buddy == 0) TRY(ll_trainer_copy(t, done));
    if (ll_trainer_validation_due(t, done))
        TRY(ll_trainer_validate(t, done, true, &(ll_stop){ll_trainer_ask, t}));
    bool enough = out_of_patience(t);
    if (done == t->until || t->stop || enough)
        TRY(ll_trainer_save_last(t, done));
    else if (t->better || ll_trainer_due(done, t->r->train.save_every, t->epoch_steps))
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
    t->from_s = ll_trainer_awake() - t->good.lost[LL_LOSS_DATA];
}

/* This rank is done with steps from+1 .. to, the last of its own being of the first of them. */
static ll_err pass(trainer *t, int64_t from, int64_t to, const ll_train_step *last)
{
    for (int64_t done = from + 1; done <= to && done <= t->until && !t->stop; done++) {
        bool meets = meeting(t, done);
        t->report->steps = done;
        if (t->served && meets) TRY(ll_loose_arrive(t->loose));
        TRY(tell_step(t, done, to - from, last));
        if (meets) TRY(listen(t, LL_OK)); /* until all ranks have made it */
        if (meets) count_held_up(t);
        if (t->served && meets) TRY(ll_loose_meet(t->loose));
        t->good.useful += ll_trainer_awake() - t->from_s - t->good.lost[LL_LOSS_DATA];
        TRY(settle(t, done, meets));
        begin_useful(t);
    }
    t->told = ll_trainer_awake();
    return LL_OK;
}

static ll_err start_shares(trainer *t)
{
    t->served = true;
    if (t->opts->replay && t->until < t->steps)
        LL_TELL(t, "%s ended after step %ld, so this run will end there too", t->opts->replay,
                t->until);
    TRY(ll_loose_start(t->loose, t->first, t->steps));
    for (int i = 0; i < 2; i++) ask_share(t, &ll_server_hand(t->loose->server)[i]);
    return LL_OK;
}

/* ---- steps that overlap ---- */

/* What the last step was waiting for has come with another, or behind it. */
static ll_err tell_held(trainer *t)
{
    ll_train_step *s = &t->held;
    t->holds = false;
    s->loss = ll_session_result(t->s, "loss");
    s->grad_norm = ll_session_result(t->s, "grad_norm");
    return LL_OK;
}

/* As listen, but nobody waits: what is heard is as of a step before. ask: and goes on asking. */
static ll_err overhear(trainer *t, bool ask)
{
    static const ll_coll_opts site = {.site = "signals"};
    if (t->hearing) TRY(ll_request_wait(t->hearing));
    if (t->hearing) t->stop = t->heard[0], t->writing = t->heard[1];
    t->hearing = NULL;
    if (!ask) return LL_OK;
    t->heard[0] = ll_trainer_caught;
    t->heard[1] = ll_saver_busy(t->saver);
    return ll_comm_allreduce_start(t->comm, t->heard, 2, LL_I32, LL_REDUCE_MAX, &site, &t->hearing);
}

/* Does something follow step `done` that wants it to be over? */
static bool ends_row(const trainer *t, int64_t done)
{
    const ll_run *r = t->r;
    return done == t->until || t->stop || !ll_saver_idle(t->saver) ||
           ll_trainer_validation_due(t, done) ||
           ll_trainer_due(done, r->train.save_every, t->epoch_steps) ||
           (r->train.compare && done % r->train.compare == 0) ||
           (t->buddy && done % r->train.buddy == 0);
}

/* A step has failed, but what the one before was waiting for had come. */
static ll_err leave_held(trainer *t, ll_err rc)
{
    LL_KEEP_ERROR;
    const ll_after *after = t->s->after;
    if (!t->holds || !after || after->told_step != t->held.step) return rc;
    if (tell_held(t) == LL_OK) (void)ll_trainer_record(t, &t->held);
    return rc;
}

/* One step in a row of them: what is told is of the one before, until the row ends. */
static ll_err step_on(trainer *t, int64_t step)
{
    ll_train_step now;
    const ll_after *after = t->s->after;
    int64_t undone = after ? after->n_undone : 0;
    begin_useful(t);
    ll_err rc = take_step(t, step, &now);
    if (rc != LL_OK) return leave_held(t, rc);
    if (after && after->n_undone > undone) { /* it was two steps */
        t->good.lost[LL_LOSS_REDONE] += now.seconds / 2;
        t->from_s += now.seconds / 2;
    }
    if (t->holds) {
        TRY(tell_held(t));
        t->report->steps = t->held.step;
        TRY(tell_step(t, t->held.step, 1, &t->held));
    }
    t->held = now;
    t->holds = true;
    bool ends = ends_row(t, step + 1);
    TRY(overhear(t, !ends));
    if (!ends && !t->stop) {
        t->good.useful += ll_trainer_awake() - t->from_s - t->good.lost[LL_LOSS_DATA];
        return LL_OK;
    }
    TRY(overhear(t, false));
    TRY(explain(t, ll_session_settle(t->s), step, now.lr));
    TRY(tell_held(t));
    t->stop = 0; /* asked for once more: what has to be done before the end is done then */
    return pass(t, step, step + 1, &t->held);
}

static ll_err check_row(const trainer *t)
{
    CHECK(!t->loose, LL_E_CONFIG,
          "%s cannot be combined with replicas that diverge, as parameters are exchanged after "
          "steps, which overlap: set parallel.exchange=gradient, or %s",
          t->s->after ? "parallel.post_validation" : "parallel.schedule=2bw",
          t->s->after ? "leave it out" : "another schedule");
    CHECK(t->r->train.spike <= 0, LL_E_CONFIG,
          "train.spike cannot be combined with overlapping steps, as a step's norm is known only "
          "after the next has begun: use train.clip, or %s",
          t->s->after ? "leave out parallel.post_validation" : "another schedule than 2bw");
    return LL_OK;
}

static ll_err loop_steps(trainer *t)
{
    ll_train_step last = {.lr = NAN, .loss = NAN, .grad_norm = NAN, .saturated = -1};
    int64_t step = t->first, next = t->served ? ll_server_hand(t->loose->server)->step : step;
    t->told = ll_trainer_awake();
    begin_useful(t);
    for (;; step = next, next = t->served ? ll_server_hand(t->loose->server)->step : step + 1) {
        TRY(pass(t, step, next, &last));
        if (next >= t->until || t->stop) return LL_OK;
        TRY(take_step(t, next, &last));
    }
}

ll_err ll_trainer_loop(trainer *t)
{
    if (ll_session_lags(t->s)) TRY(ll_ranks_agree(t->comm, check_row(t)));
    TRY(listen(t, LL_OK));
    if (out_of_patience(t)) t->report->out_of_patience = true, t->steps = t->until = t->first;
    if (t->loose && t->loose->served && t->first < t->until) TRY(start_shares(t));
    bool row = ll_session_lags(t->s);
    for (int64_t step = t->first; row && step < t->until && !t->stop; step++) TRY(step_on(t, step));
    if (!row) TRY(loop_steps(t));
    if (t->served) ll_server_end(t->loose->server, t->report->steps);
    if (t->tracer) TRY(end_trace(t));
    bool saved = t->goes_on && !t->opts->resume_from && !t->in_memory;
    if (t->report->steps > t->first || saved) return LL_OK;
    bool elsewhere = t->in_memory || t->opts->resume_from; /* the run's folder may not have it */
    return t->stop || elsewhere ? ll_trainer_save_last(t, t->first) : LL_OK;
}
