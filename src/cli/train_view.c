/* train_view.c: what loopline train shows of a run: how it begins, its steps, how it ended. */
#include "cli/train_view.h"

#include "cli/common.h"

#include "base/process.h"
#include "kern/notes.h"
#include "machine/bind.h"
#include "train/bench.h"

/* Large enough to come near the peak, small enough to be measured before each run. */
enum { SMALL_GEMM = 384 };

/* By what collectives are chosen. */
static void tell_tuner(const ll_comm *c)
{
    const ll_tuned_table *t = ll_comm_table(c);
    const char *file = t ? t->file : NULL;
    if (!t)
        fprintf(stderr,
                "collectives: chosen by rules; --tune measures them on this machine first\n");
    else if (t->was_read)
        fprintf(stderr, "collectives: chosen by the table %s\n", file);
    else
        fprintf(stderr, "collectives: measured in %.1f s, %s%s\n", t->seconds,
                file ? "kept in "
                     : "not kept: the machine is too busy, or there is no cache folder",
                file ? file : "");
}

/* Which device is whose, and how they talk. */
static void tell_devices(const ll_devices *s, const char *kind)
{
    enum { MOST = 16 };
    for (int r = 0; r < s->n && r < MOST; r++)
        fprintf(stderr, "rank %d: %s (%s %d%s%s)\n", r, s->of[r].name, kind, (int)s->of[r].index,
                *s->of[r].place ? ", " : "", s->of[r].place);
    if (s->n > MOST) fprintf(stderr, "and %d more ranks\n", s->n - MOST);
    if (s->n > 1) fprintf(stderr, "collectives between %ss: %s\n", kind, s->why);
}

static void find_peak(ll_train_view *v, const ll_train_start *s)
{
    ll_device_facts f = {0};
    v->device = s->session->devices.n;
    if (!v->device) {
        bool bf16 = s->run->train.precision == LL_PRECISION_bf16;
        if (ll_gemm_peak(s->session->p->threads, SMALL_GEMM, bf16, &v->peak, &v->held_up) != LL_OK)
            v->peak = 0;
    } else if (s->session->machine->ask(s->session->devices.mine, s->run->train.precision, &f) ==
               LL_OK)
        v->peak = 1e-9 * f.peak;
    v->peak *= s->report->ranks;
}

static void tell_memory(const ll_train_start *s)
{
    const ll_train_memory *m = &s->report->memory;
    double more = m->tensors - m->step - m->comm; /* validation's; of post_validation */
    double all = m->tensors + m->copies + m->batches + m->data + m->rest;
    bool compiling = m->planned > 1.01 * all;
    fprintf(
        stderr,
        "memory planned of %s: %s%s%s: tensors %s (%.0f bytes)%s%s%s%s, copies %s, batches read "
        "ahead %s, data %s, program, libraries and graphs %s\n",
        s->session->machine->device ? "the device"
        : s->report->ranks > 1      ? "each process"
                                    : "the process",
        LL_BYTES(m->planned), compiling ? ", which compiling took; training takes " : "",
        compiling ? LL_BYTES(all) : "", LL_BYTES(m->step), m->step,
        m->comm > 0 ? ", communication " : "", m->comm > 0 ? LL_BYTES(m->comm) : "",
        more > 0 ? ", beside steps " : "", more > 0 ? LL_BYTES(more) : "", LL_BYTES(m->copies),
        LL_BYTES(m->batches), LL_BYTES(m->data), LL_BYTES(m->rest));
    if (m->aside > 0)
        fprintf(stderr, "and %s offloaded, in %s\n", LL_BYTES(m->aside),
                s->session->machine->target->aside.what);
    if (m->wide > 0)
        fprintf(stderr, "and %s more if a step has to be repeated with all bits (exact)\n",
                LL_BYTES(m->wide));
}

static void tell_pipeline(const ll_pipeline *p)
{
    fprintf(stderr, "pipeline: %s, %d stages, %d micro-batch%s", p->name, p->n_stage, p->n_micro,
            p->n_micro == 1 ? "" : "es");
    double idle = ll_pipeline_formula(p->name, p->n_rank, p->n_stage, p->n_micro, NULL);
    if (!isnan(idle)) fprintf(stderr, ", %.0f %% idle if stages are equal", 100 * idle);
    fprintf(stderr, "%s\n",
            p->n_micro < 2 * p->n_rank && idle != 0 ? "; a smaller train.micro_batch reduces it"
                                                    : "");
}

/* "data=2", "4 replicas", "2 replicas of tensor=2, local every 8 steps". */
static const char *where(const ll_train_start *s, ll_arena *a)
{
    const ll_run_parallel *p = &s->run->parallel;
    const ll_consistency *c = &p->between;
    ll_buf b = {.arena = a};
    if (!ll_run_loose(s->run)) return s->report->mesh;
    ll_buf_printf(&b, "%ld replicas%s%s, %s", p->replicas, *s->report->mesh ? " of " : "",
                  s->report->mesh, c->name);
    if (ll_consistency_rounds(c))
        ll_buf_printf(&b, ": gradients in rounds of %ld or more", c->quorum);
    else if (c->every)
        ll_buf_printf(&b, ": %ss every %s", ll_exchange_name(c->what),
                      LL_COUNTED(c->every, "step"));
    if (c->fragments > 1) ll_buf_printf(&b, " in %ld parts", c->fragments);
    if (c->delay) ll_buf_printf(&b, ", beside %s", LL_COUNTED(c->delay, "step"));
    if (strcmp(c->codec, "none")) ll_buf_printf(&b, ", %s", c->codec);
    double rate = ll_run_replica_lr(s->run);
    if (rate != 1) ll_buf_printf(&b, ", train.lr times %.4g", rate);
    return b.text;
}

/* Exchanges that are all behind the last step. */
static void tell_apart(const ll_train_start *s)
{
    const ll_consistency *c = &s->run->parallel.between;
    int64_t every = c->fragments ? c->every / c->fragments : 0;
    if (!ll_run_loose(s->run) || !every || c->warm_up + every <= s->steps) return;
    fprintf(stderr,
            "replicas never exchange: the first exchange would be after step %ld "
            "(parallel.warm_up, parallel.every), but the run has %ld\n",
            (c->warm_up + every), s->steps);
}

/* Settings with which no replica is ever apart. */
static void tell_in_step(const ll_run *r)
{
    const ll_run_parallel *p = &r->parallel;
    if (p->replicas > 1 && !ll_run_loose(r) && strcmp(p->between.name, "sync"))
        fprintf(stderr,
                "parallel.consistency=%s with these settings is synchronous training: replicas are "
                "ranks of axis data\n",
                p->between.name);
}

/* What the rate would do after the run's last step: more steps may come by --resume. */
static void tell_rate(const ll_train_start *s)
{
    const ll_schedule *x = &s->run->train.schedule;
    double steps = (double)s->steps, first = (double)x->step_size;
    for (int i = 0; i < x->milestones.n; i++)
        if (!i || x->milestones.v[i] < first) first = x->milestones.v[i];
    if (x->warmup > steps)
        fprintf(stderr,
                "train.warmup=%g is longer than the run of %s: the rate stays below train.lr\n",
                x->warmup, LL_COUNTED(s->steps, "step"));
    if (x->shape == LL_LR_step && first >= steps)
        fprintf(stderr,
                "train.schedule=step: the first drop, after step %g, is not within the run's %s\n",
                first, LL_COUNTED(s->steps, "step"));
}

/* Settings for several ranks, on one: a job that has lost the others goes on, so no refusal. */
static void tell_idle(const ll_train_start *s)
{
    ll_mesh m;
    bool alone = ll_mesh_parse(s->report->mesh, &m) == LL_OK && ll_mesh_axis(&m, LL_AXIS_DATA) < 0;
    if (s->run->parallel.zero && alone)
        fprintf(stderr, "parallel.zero=%ld has no effect: axis data has one rank\n",
                s->run->parallel.zero);
    if (s->run->train.compare && s->report->ranks == 1)
        fprintf(stderr, "train.compare has no effect: there is one rank\n");
    if (s->run->parallel.tune && s->report->ranks == 1)
        fprintf(stderr, "parallel.tune has no effect: there is one rank\n");
}

/* How long a step will take. */
static void tell_forecast(const ll_train_start *s)
{
    if (isnan(s->report->predicted_s)) {
        fprintf(stderr, "step: not predicted: %s\n", s->report->unforeseen);
        return;
    }
    fprintf(stderr, "step: predicted %s", LL_TIME(s->report->predicted_s));
    if (s->report->exchange_s > 0)
        fprintf(stderr, ", of which %s for exchanges of replicas", LL_TIME(s->report->exchange_s));
    if (s->report->others[0] >= LL_OTHERS_NOTABLE)
        fprintf(stderr,
                s->report->alone
                    ? " with its cores to itself; just now other processes used %.0f %% of them"
                    : ", while other processes used %.0f %% of the cores",
                100 * s->report->others[0]);
    fprintf(stderr, "%s%s\n", *s->report->unforeseen ? ", without " : "", s->report->unforeseen);
}

static void on_start(void *context, const ll_train_start *s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_train_view *v = (ll_train_view *)context;
    char place[256];
    ll_progress_free(v->p); /* of the phase before */
    v->first = true;
    v->bytes = (size_t)s->report->memory.planned;
    static const char *const units[] = {
        [LL_IMAGES] = "img", [LL_TOKENS] = "tok", [LL_RECORDS] = "samples"};
    v->tokens = s->data->kind == LL_TOKENS;
    v->unit = units[s->data->kind];
    find_peak(v, s);
    fprintf(stderr, "%s: %s parameters, %s on %s, %sFLOP a step, ", s->run->name,
            LL_AMOUNT(s->report->parameters), s->run->model.name, s->data->name,
            LL_AMOUNT(s->flops));
    if (s->report->ranks > 1)
        fprintf(stderr, "%d ranks (%s), each ", s->report->ranks, where(s, a));
    fprintf(stderr, "%s%s\n", LL_COUNTED(s->session->p->threads, "thread"),
            ll_bind_owns_cores() ? " on cores of its own" : "");
    tell_memory(s);
    if (s->session->cut->plan && s->session->cut->plan->pipeline)
        tell_pipeline(s->session->cut->plan->pipeline);
    if (s->note) fprintf(stderr, "%s: %s\n", ll_precision_name(s->run->train.precision), s->note);
    if (s->session->cut->lean)
        fprintf(stderr, "%s\n",
                ll_recompute_text(s->run->parallel.recompute, &s->session->cut->recomputed, place,
                                  sizeof place));
    if (v->device) tell_devices(&s->session->devices, s->session->machine->device);
    ll_kern_notes_print(s->run->kernels, stderr);
    if (ll_codec_asked(s->run->parallel.compress))
        fprintf(stderr, "gradients: compressed by %s when they are summed over axis data\n",
                ll_codec_asked(s->run->parallel.compress));
    else if (strcmp(s->run->parallel.compress, "none"))
        fprintf(
            stderr,
            "gradients: those of fully connected layers are made from the factors of all ranks\n");
    const char *y = ll_data_target(s->data, a);
    if (s->data->n_column) fprintf(stderr, "x: %s\n", ll_data_columns(s->data, a));
    if (y) fprintf(stderr, "y: %s\n", y);
    if (s->data->note) fprintf(stderr, "data: %s\n", s->data->note);
    int64_t classes = ll_run_size(s->run, "classes", 0);
    if (classes > s->data->classes && s->data->classes)
        fprintf(stderr, "note: data %s has %ld classes, but model.classes is %ld\n", s->data->name,
                s->data->classes, classes);
    tell_apart(s);
    tell_in_step(s->run);
    tell_idle(s);
    tell_rate(s);
    if (s->run->parallel.canonical) fprintf(stderr, "sums over ranks in canonical order\n");
    if (s->steps < s->run->train.steps)
        fprintf(stderr, "%s: train.epochs=%ld ends before train.steps=%ld\n",
                LL_COUNTED(s->steps, "step"), s->run->train.epochs, s->run->train.steps);
    if (s->first_step) fprintf(stderr, "resumed after step %ld of %ld\n", s->first_step, s->steps);
    if (s->report->ranks > 1 && s->session->devices.link == LL_BY_HOST) tell_tuner(v->c);
    if (s->resumed) fprintf(stderr, "%s\n", s->resumed);
    if (s->weights) fprintf(stderr, "%s\n", s->weights);
    if (s->kept) fprintf(stderr, "%s\n", s->kept);
    tell_forecast(s);
    fprintf(stderr, "run folder: %s\n", s->run->out);
    if (s->doomed)
        fprintf(stderr,
                "%s/checkpoints/replaced keeps, until this run saves, an earlier run's %s\n",
                s->run->out, s->doomed);
    v->p = ll_progress_new(&(ll_progress_opts){
        .first = s->first_step + 1, .total = s->steps, .unit = v->unit, .plain = v->plain});
}

static void on_step(void *context, const ll_train_step *s)
{
    ll_train_view *v = (ll_train_view *)context;
    if (v->peak && s->made_gflops > v->peak && !v->device)
        v->peak = s->made_gflops; /* the product was timed in a bad moment */
    if (v->device && v->first)
        ll_progress_note(v->p, "first step done %.2f s after program start", ll_process_age());
    bool first = v->first;
    v->first = false;
    ll_step_stats st = {s->step,
                        s->loss,
                        s->grad_norm,
                        s->lr,
                        s->seconds,
                        v->tokens ? s->tokens_per_s : s->samples_per_s,
                        v->peak ? s->gflops / v->peak : 0,
                        v->bytes,
                        s->apart};
    ll_progress_step(v->p, &st);
    if (first && v->held_up && v->peak)
        ll_progress_note(v->p, "\"%% peak\" of the steps is too high: other processes slowed down "
                               "the matrix product that it is a part of");
}

static void on_score(void *context, int64_t step, const ll_score *s)
{
    ll_train_view *v = (ll_train_view *)context;
    char more[LL_MAX_METRICS * (LL_METRIC_NAME + 16)] = "";
    size_t at = 0;
    if (!isnan(s->accuracy))
        at = (size_t)snprintf(more, sizeof more, ", accuracy %.2f %%", 100 * s->accuracy);
    for (int i = 0; i < s->n_metric; i++)
        at +=
            (size_t)snprintf(more + at, sizeof more - at, ", %s %.4g", s->names[i], s->metrics[i]);
    ll_progress_note(v->p, "step %ld: validation loss %s%s on %s", step, LL_LOSS(s->loss), more,
                     LL_COUNTED(s->samples, "sample"));
}

static void on_timeline(void *context, const ll_timeline *t)
{
    ll_train_view *v = (ll_train_view *)context;
    ll_progress_note(v->p, "%.*s", (int)strlen(t->text) - 1, t->text);
}

static void on_note(void *context, const char *text)
{
    ll_train_view *v = (ll_train_view *)context;
    ll_progress_note(v->p, "%s", text);
}

ll_train_events ll_train_view_watch(ll_train_view *v)
{
    return (ll_train_events){v, on_start, on_step, on_score, on_timeline, on_note};
}

/* Of all starts of the job, and of the last one where there were several. */
static void show_steps(const ll_train_report *t, const ll_start *job)
{
    ll_noted from = {.step = t->first};
    ll_start one = job ? *job : (ll_start){.number = 0};
    one.number = 0;
    if (job && job->number) ll_recovery_find(&one, LL_BEGAN, &from);
    double wall = job && job->number ? t->goodput.wall : t->seconds;
    fprintf(stderr, "%s in %s", LL_COUNTED(t->steps - from.step, "step"), LL_DURATION(wall));
    if (job && job->number)
        fprintf(stderr, ", %ld of them, in %s, after restart %d", (t->steps - t->first),
                LL_DURATION(t->seconds), job->number);
    fprintf(stderr, "; training loss %s", LL_LOSS(t->train_loss));
}

/* Of changes that replicas left at their server: 0 had come since for 12 %, 1 for 30 % ... */
static void show_stale(const ll_run *r, const ll_train_report *t)
{
    bool rounds = ll_consistency_rounds(&r->parallel.between);
    double all = 0, sum = 0;
    int most = 0;
    for (int i = 0; i < LL_STALENESS; i++) {
        all += t->stale[i], sum += i * t->stale[i];
        if (t->stale[i] > 0) most = i;
    }
    if (all == 0) return;
    fprintf(stderr, "\nstaleness: %.1f %s in the mean, %d%s at most;", sum / all,
            rounds ? "rounds" : "changes by others", most,
            most == LL_STALENESS - 1 ? " or more" : "");
    for (int i = 0; i < LL_STALENESS; i++)
        if (t->stale[i] >= 0.01 * all)
            fprintf(stderr, " %d%s: %.0f %%", i, i == LL_STALENESS - 1 ? " or more" : "",
                    100 * t->stale[i] / all);
}

/* A step that waited for cores says nothing of a prediction without others. */
static void show_foreseen(const ll_train_report *t)
{
    fprintf(stderr, "\nstep: predicted %s%s%s, median %s", LL_TIME(t->predicted_s),
            *t->unforeseen ? " without " : "", t->unforeseen, LL_TIME(t->step_s));
    if (isnan(t->own_s))
        fprintf(stderr, ", but other processes held up %ld of %s", (t->n_timed - t->n_own),
                LL_COUNTED(t->n_timed, "step"));
    else if (t->n_own < t->n_timed)
        fprintf(stderr, "; of the %ld of %ld steps not held up by other processes %s", t->n_own,
                t->n_timed, LL_TIME(t->own_s));
    if (!isnan(t->own_s))
        fprintf(stderr, ": the prediction is %.1f %% %s", 100 * fabs(t->predicted_s / t->own_s - 1),
                t->predicted_s < t->own_s ? "less" : "more");
    if (fmax(t->others[0], t->others[1]) >= LL_OTHERS_NOTABLE)
        fprintf(stderr,
                "; other processes used %.0f %% of the cores before, %.0f %% during training",
                100 * t->others[0], 100 * t->others[1]);
}

void ll_train_view_end(const ll_run *r, const ll_train_report *t, const ll_start *job)
{
    if (t->signal && job) /* by who started it, who knows why, and may start it again */
        fprintf(
            stderr,
            "asked to stop: checkpoint saved after step %ld; if it does not continue by itself:\n",
            t->steps);
    else if (t->signal)
        fprintf(stderr, "stopped by signal %d after step %ld, checkpoint saved; continue with:\n",
                t->signal, t->steps);
    if (t->signal) fprintf(stderr, "  %s train %s --resume", ll_cli_program(), r->out);
    if (t->signal && t->ranks > 1) fprintf(stderr, " -n %d", t->ranks);
    if (t->signal) fputc('\n', stderr);
    if (t->out_of_patience)
        fprintf(stderr, "stopped: no better %s in the last %ld validations\n", r->train.best,
                r->train.patience);
    if (t->steps > t->first)
        show_steps(t, job);
    else
        fprintf(stderr, "no step was %s after step %ld", t->signal ? "done" : "left to do",
                t->steps);
    if (!isnan(t->val.loss)) fprintf(stderr, ", validation loss %s", LL_LOSS(t->val.loss));
    if (!isnan(t->val.accuracy)) fprintf(stderr, ", accuracy %.2f %%", 100 * t->val.accuracy);
    if (isfinite(t->predicted_s) && t->steps > t->first) show_foreseen(t);
    fprintf(stderr, "\nmemory%s: %s planned, %s used%s",
            t->ranks > 1 ? " of the rank with most" : "", LL_BYTES(t->memory.planned),
            LL_BYTES(t->memory.used),
            t->memory.of_all ? " there by all processes, with libraries" : "");
    LL_OWN(ll_arena) a = ll_arena_new();
    fprintf(stderr, "\n%s", ll_goodput_text(&t->goodput, a));
    if (t->skipped)
        fprintf(stderr, "\n%s skipped for the norm of their gradients (train.spike)",
                LL_COUNTED(t->skipped, "step"));
    if (t->wide)
        fprintf(stderr,
                "\n%s repeated with all bits of %s numbers, for which exact sums had too few",
                LL_COUNTED(t->wide, "step"), t->wide == 1 ? "its" : "their");
    if (t->undone)
        fprintf(stderr,
                "\n%s repeated, as what %s presumed did not hold (parallel.post_validation)",
                LL_COUNTED(t->undone, "step"), t->undone == 1 ? "it" : "they");
    if (t->unsaved)
        fprintf(stderr, "\n%s could not be written on the way",
                LL_COUNTED(t->unsaved, "checkpoint"));
    if (t->dense_bytes)
        fprintf(stderr, "\ngradients: rank 0 sent %s in the last step; f32 would take %s",
                LL_BYTES(t->gradient_bytes), LL_BYTES(t->dense_bytes));
    if (t->replica_bytes && r->parallel.replicas > 1)
        fprintf(stderr, "\nreplicas: rank 0 sent %s to others, %s a step",
                LL_BYTES(t->replica_bytes),
                LL_BYTES((double)t->replica_bytes / (double)(t->steps - t->first)));
    show_stale(r, t);
    fprintf(stderr, "\n%s: checkpoints/ metrics.jsonl curve.svg run.yaml\n", r->out);
}

ll_err ll_train_view_json(const ll_run *r, const ll_train_report *t, const ll_start *job)
{
    json_t *j = LL_JSON(
        LL_IS("model", r->model.name), LL_IS("parameters", t->parameters), LL_IS("ranks", t->ranks),
        LL_IS("mesh", t->mesh), LL_IS("steps", t->steps), LL_IS("restarts", job ? job->number : 0),
        LL_IS("train_loss", t->train_loss), LL_IS("val_loss", t->val.loss),
        LL_IS("val_accuracy", t->val.accuracy), LL_IS("step_ms", 1e3 * t->step_s),
        LL_IS("own_step_ms", 1e3 * t->own_s), LL_IS("first_step_s", t->first_step_s),
        LL_IS("samples_per_s", t->samples_per_s), LL_IS("tokens_per_s", t->tokens_per_s),
        LL_IS("peak_bytes_planned", (int64_t)t->memory.planned),
        LL_IS("peak_bytes_used", (int64_t)t->memory.used),
        LL_IS("step_bytes_planned", (int64_t)t->memory.step),
        LL_IS("comm_bytes_planned", (int64_t)t->memory.comm),
        LL_IS("tensor_bytes_planned", (int64_t)t->memory.tensors),
        LL_IS("tensor_bytes_used", (int64_t)t->memory.tensors_used),
        LL_IS("aside_bytes", (int64_t)t->memory.aside), LL_IS("compress", r->parallel.compress),
        LL_IS("gradient_bytes", t->gradient_bytes), LL_IS("gradient_bytes_f32", t->dense_bytes),
        LL_IS("replicas", r->parallel.replicas), LL_IS("replica_bytes", t->replica_bytes));
    if (ll_run_loose(r) && ll_consistency_served(&r->parallel.between))
        LL_JSON_ADD(j, LL_IS("staleness", LL_JSON_LIST(i, LL_STALENESS, t->stale[i])));
    LL_JSON_ADD(j, LL_IS("bubble", t->bubble), LL_IS("predicted_step_ms", 1e3 * t->predicted_s),
                LL_IS("predicted_exchange_ms", 1e3 * t->exchange_s),
                LL_IS("predicted_without", *t->unforeseen ? t->unforeseen : NULL),
                LL_IS("predicted_others", t->others[0]), LL_IS("others", t->others[1]));
    json_t *lost = json_object();
    for (int i = 0; i < LL_N_LOSS; i++)
        LL_JSON_ADD(lost, LL_IS(ll_loss_name(i), t->goodput.lost[i]));
    return ll_cli_json(LL_JSON_ADD(
        j, LL_IS("goodput", t->goodput.useful / t->goodput.wall), LL_IS("wall_s", t->goodput.wall),
        LL_IS("useful_s", t->goodput.useful), LL_IS("lost_s", lost), LL_IS("skipped", t->skipped),
        LL_IS("wide", t->wide), LL_IS("rolled_back", t->rolled_back), LL_IS("unsaved", t->unsaved),
        LL_IS("save_waits_s", t->save_waits), LL_IS("seconds", t->seconds),
        LL_IS("signal", t->signal ? json_integer(t->signal) : json_null()), LL_IS("out", r->out)));
}
