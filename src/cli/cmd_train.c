/* cmd_train.c: loopline train. */
#include "cli/common.h"
#include "cli/plan.h"

#include "base/file.h"
#include "base/process.h"
#include "base/text.h"
#include "cli/launch.h"
#include "comm/job.h"
#include "kern/notes.h"
#include "machine/bind.h"
#include "machine/machine.h"
#include "train/bench.h"
#include "train/progress.h"
#include "train/recovery.h"
#include "tune/tune.h"

#include <math.h>
#include <signal.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct opts {
    const char *run, *from, *replay, *slow, *trace, *timeline, *trace_steps;
    ll_words set;
    int64_t ranks;
    const char *restarts, *hosts, *job, *parallel;
    bool resume, json, plain, overwrite;
} opts;

static const ll_arg args[] = {
    {"RUN", LL_OPT(opts, run), NULL,
     "a run file, a bundled run's name, or a run folder to go on with"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE", "override a setting"},
    {"--out|-o", LL_ARG_SETTING, offsetof(opts, set), "DIR",
     "the run's folder; default: a new one, runs/NAME, runs/NAME-2 ...", "out"},
    {"-n", LL_ARG_COUNT, offsetof(opts, ranks), "RANKS",
     "start so many ranks through mpiexec; under mpirun or srun it joins theirs"},
    {"--restarts", LL_OPT(opts, restarts), "N",
     "with -n: when a rank dies or stalls, or its host goes, start all anew from the newest state, "
     "at most N times in a row without progress (3); 0: never"},
    {"--hosts", LL_OPT(opts, hosts), "FILE",
     "with -n: hosts to start ranks on, lines \"NAME slots=2\"; fewer where some do not answer, "
     "and "
     "again all when they do; the file may be changed meanwhile"},
    {"--job", LL_OPT(opts, job), "JOB",
     "given by loopline to the ranks that it starts: of which job, and the how manieth start"},
    {"--mesh", LL_ARG_SETTING, offsetof(opts, set), "MESH",
     "how ranks divide the work: data=2,tensor=2, or pipe=2 for stages; default data=RANKS",
     "parallel.mesh"},
    {"--parallel", LL_OPT(opts, parallel), "auto",
     "the mesh that plan finds quickest for the ranks, on this machine, with ZeRO as --zero says"},
    {"--zero", LL_ARG_SETTING, offsetof(opts, set), "0..3",
     "what ranks of axis data divide: 1 moments, 2 and gradients, 3 and parameters",
     "parallel.zero"},
    {"--machine", LL_ARG_SETTING, offsetof(opts, set), "M", "what computes", "train.machine"},
    {"--exact", LL_ARG_SETTING, offsetof(opts, set), NULL,
     "sums are exact: the same bits on every mesh", "parallel.exact=true"},
    {"--tune", LL_ARG_SETTING, offsetof(opts, set), NULL,
     "measure collectives first, where no table is kept", "parallel.tune=true"},
    {"--compress", LL_ARG_SETTING, offsetof(opts, set), "CODEC",
     "of gradients summed over axis data: none, lossless, bf16, f16, int8[:huffman], "
     "int4[:huffman], "
     "qsgd:BITS, onebit, topk:SHARE[:BITS], "
     "factors",
     "parallel.compress"},
    {"--init", LL_ARG_SETTING, offsetof(opts, set), "FILE",
     "weights to begin with, of Loopline, PyTorch or in safetensors (train.init_map, "
     "train.init_skip)",
     "train.init"},
    {"--resume", LL_OPT(opts, resume), NULL,
     "go on from the newest checkpoint of the run's folder"},
    {"--from", LL_OPT(opts, from), "FILE", "with --resume: from this checkpoint instead"},
    {"--replay", LL_OPT(opts, replay), "DIR",
     "replicas come to their server (parallel.peers) in the order in which those of that run did"},
    {"--slow", LL_OPT(opts, slow), "RANK:FACTOR",
     "an experiment: steps of this rank take FACTOR times as long"},
    {"--overwrite", LL_OPT(opts, overwrite), NULL,
     "start anew in a folder that holds a run already"},
    {"--trace", LL_OPT(opts, trace), "FILE",
     "what every rank did when, for chrome://tracing or ui.perfetto.dev"},
    {"--timeline", LL_OPT(opts, timeline), "FILE.svg",
     "of a pipeline: a picture of who did what when, and how much was idle"},
    {"--trace-steps", LL_OPT(opts, trace_steps), "A:B",
     "with --trace or --timeline (which draws B): steps A to B; default: three, after one to warm "
     "up"},
    {"--plain", LL_OPT(opts, plain), NULL, "step lines in place of a progress bar"},
    {"--json", LL_OPT(opts, json), NULL, "one JSON object on standard output at the end"},
    {0}};

static char *more(ll_arena *arena)
{
    ll_buf b = {.arena = arena};
    ll_buf_puts(&b, "Bundled runs:");
    for (const ll_bundled *r = ll_bundled_runs(); r->name; r++) ll_buf_printf(&b, " %s", r->name);
    ll_buf_puts(
        &b, "\n\nSIGINT and SIGTERM save a checkpoint and end the run; --resume goes on from "
            "it, to the same bits. With -n they reach every rank; under mpirun send it SIGUSR1, "
            "which does the same: mpirun itself kills ranks soon after the others. With -n, ranks "
            "that die or stall are started again (docs/running.md).\n\nSettings:"
            "\n");
    ll_buf_puts(&b, ll_run_help(arena));
    return b.text;
}

/* ---- the run's folder ---- */

/* A run file may be a stranger's: what it writes outside of this folder the user must have said. */
static ll_err check_out(const ll_run *r)
{
    bool outside = *r->out == '/';
    for (const char *c = r->out; !outside && (c = strstr(c, "..")); c++)
        outside = (c == r->out || c[-1] == '/') && (!c[2] || c[2] == '/');
    CHECK(!outside || !r->out_in_file, LL_E_CONFIG,
          "%s says out: %s, which is outside of this folder: if that is meant, give --out %s",
          r->file, r->out, r->out);
    return LL_OK;
}

static ll_err choose(const opts *o, ll_run *r)
{
    if (!r->out_said && !o->overwrite) r->out = ll_cli_numbered(r, o->resume);
    /* the run's own folder, as loopline import makes it: it may begin there */
    bool own = !strncmp(r->out, o->run, strlen(r->out)) && !ll_cli_began(r->out);
    CHECK(o->resume || o->overwrite || own || !ll_cli_holds_run(r->out), LL_E_CONFIG,
          "%s holds a run already: --resume goes on with it, --overwrite starts anew, --out DIR "
          "goes elsewhere",
          r->out);
    return LL_OK;
}

/* Rank 0 chooses: by the time the others look the folder may be there. */
static ll_err choose_folder(const opts *o, ll_comm *c, ll_run *r)
{
    if (o->job) return LL_OK; /* who started the ranks did */
    char out[4096] = "";
    TRY(ll_comm_agree(c, ll_comm_rank(c) == 0 ? choose(o, r) : LL_OK));
    CHECK(strlen(r->out) < sizeof out, LL_E_CONFIG, "the folder's name is too long: %.60s...",
          r->out);
    strcpy(out, r->out);
    TRY(ll_ranks_share(c, out, sizeof out));
    r->out = ll_arena_strdup(r->arena, out);
    return LL_OK;
}

/* ---- what is shown ---- */

typedef struct view {
    const opts *o;
    const ll_comm *c;
    ll_progress *p;
    double peak; /* GFLOP/s of a matrix product here, or those that a device's maker states; 0: not
                    known */
    size_t bytes;
    const char *unit;
    bool tokens, device, first; /* first: no step is done yet */
} view;

/* Large enough to come near the peak, small enough to be measured before each run. */
enum { SMALL_GEMM = 384 };

/* By what collectives are chosen. */
static void tell_tuner(const ll_comm *c)
{
    const ll_table *t = ll_comm_table(c);
    const char *file = t ? t->file : NULL;
    if (!t)
        fprintf(stderr, "collectives: by rules; --tune measures them on this machine first\n");
    else if (t->was_read)
        fprintf(stderr, "collectives: by the table %s\n", file);
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
        fprintf(stderr, "rank %d: %s (%s %d)\n", r, s->of[r].name, kind, (int)s->of[r].index);
    if (s->n > MOST) fprintf(stderr, "and %d ranks more\n", s->n - MOST);
    if (s->n > 1) fprintf(stderr, "collectives between %ss: %s\n", kind, s->why);
}

static void find_peak(view *v, const ll_train_start *s)
{
    ll_device_facts f = {0};
    ll_precision precision;
    v->device = s->devices;
    if (!v->device) {
        bool bf16 = !strcmp(s->run->train.precision, "bf16");
        if (ll_gemm_peak(s->threads, SMALL_GEMM, bf16, &v->peak) != LL_OK) v->peak = 0;
    } else if (ll_precision_parse(s->run->train.precision, &precision) == LL_OK &&
               s->machine->ask(s->devices->mine, precision, &f) == LL_OK)
        v->peak = 1e-9 * f.peak;
    v->peak *= s->ranks;
}

static void tell_memory(const ll_train_start *s)
{
    const ll_train_memory *m = &s->memory;
    char a[7][LL_NUMBER_TEXT];
    fprintf(stderr,
            "memory planned%s: %s: tensors%s %s (%.0f bytes), copies %s, batches read ahead "
            "%s, data %s, "
            "program, libraries and graphs %s%s\n",
            s->ranks > 1 ? " a rank" : "", ll_text_bytes(m->planned, a[0]),
            s->ranks > 1 ? " and communication" : "", ll_text_bytes(m->tensors, a[1]), m->tensors,
            ll_text_bytes(m->copies, a[5]), ll_text_bytes(m->batches, a[2]),
            ll_text_bytes(m->data, a[3]), ll_text_bytes(m->rest, a[4]),
            m->planned > 1.01 * (m->tensors + m->copies + m->batches + m->data + m->rest)
                ? "; compiling takes more than these together"
                : "");
    if (m->aside > 0)
        fprintf(stderr, "and %s laid aside, in %s\n", ll_text_bytes(m->aside, a[6]),
                s->machine->target->aside.what);
    if (m->wide > 0)
        fprintf(stderr, "and %s more where a step has to be made with all bits (exact)\n",
                ll_text_bytes(m->wide, a[6]));
}

static void tell_recomputed(const ll_train_start *s)
{
    char line[256];
    fprintf(stderr, "%s\n",
            ll_recompute_text(s->run->parallel.recompute, s->recomputed, line, sizeof line));
}

static void tell_pipeline(const ll_pipeline *p)
{
    fprintf(stderr, "pipeline: %s, %d stages, %d micro-batch%s", p->name, p->n_stage, p->n_micro,
            p->n_micro == 1 ? "" : "es");
    double idle = ll_pipeline_formula(p->name, p->n_rank, p->n_stage, p->n_micro, NULL);
    if (!isnan(idle)) fprintf(stderr, ", %.0f %% idle if stages are equal", 100 * idle);
    fprintf(stderr, "%s\n",
            p->n_micro < 2 * p->n_rank && idle != 0 ? "; a smaller train.micro_batch makes it less"
                                                    : "");
}

/* "data=2", "4 replicas", "2 replicas of tensor=2, local every 8 steps". */
static const char *where(const ll_train_start *s, char out[256])
{
    const ll_run_parallel *p = &s->run->parallel;
    if (!ll_run_loose(s->run)) return s->mesh;
    int n = snprintf(out, 256, "%lld replicas%s%s, %s", (long long)p->replicas,
                     *s->mesh ? " of " : "", s->mesh, p->between.name);
    if (p->between.every)
        n += snprintf(out + n, 256 - (size_t)n, ": %ss every %lld step%s", p->between.what,
                      (long long)p->between.every, p->between.every > 1 ? "s" : "");
    if (p->between.fragments > 1)
        n += snprintf(out + n, 256 - (size_t)n, " in %lld parts", (long long)p->between.fragments);
    if (p->between.delay)
        n += snprintf(out + n, 256 - (size_t)n, ", beside %lld step%s", (long long)p->between.delay,
                      p->between.delay > 1 ? "s" : "");
    if (strcmp(p->between.codec, "none"))
        snprintf(out + n, 256 - (size_t)n, ", %s", p->between.codec);
    return out;
}

/* Exchanges that are all behind the last step. */
static void tell_apart(const ll_train_start *s)
{
    const ll_consistency *c = &s->run->parallel.between;
    int64_t every = c->fragments ? c->every / c->fragments : 0;
    if (!ll_run_loose(s->run) || !every || c->warm_up + every <= s->steps) return;
    fprintf(stderr,
            "replicas never meet: the first exchange would be after step %lld "
            "(parallel.warm_up, parallel.every), and the run has %lld\n",
            (long long)(c->warm_up + every), (long long)s->steps);
}

/* Settings for several ranks, on one: a job that has lost the others goes on, so no refusal. */
static void tell_idle(const ll_train_start *s)
{
    ll_mesh m;
    bool alone = ll_mesh_parse(s->mesh, &m) == LL_OK && ll_mesh_axis(&m, LL_AXIS_DATA) < 0;
    if (s->run->parallel.zero && alone)
        fprintf(stderr, "parallel.zero %lld cuts nothing: axis data has one rank\n",
                (long long)s->run->parallel.zero);
    if (s->run->train.compare && s->ranks == 1)
        fprintf(stderr, "train.compare compares nothing: there is one rank\n");
}

static void on_start(void *context, const ll_train_start *s)
{
    view *v = (view *)context;
    char place[256];
    ll_progress_free(v->p); /* of the phase before */
    char n[LL_NUMBER_TEXT], f[LL_NUMBER_TEXT];
    v->first = true;
    v->bytes = (size_t)s->memory.planned;
    static const char *const units[] = {
        [LL_IMAGES] = "img", [LL_TOKENS] = "tok", [LL_RECORDS] = "samples"};
    v->tokens = s->data->kind == LL_TOKENS;
    v->unit = units[s->data->kind];
    find_peak(v, s);
    fprintf(stderr, "%s: %s parameters, %s on %s, %sFLOP a step, ", s->run->name,
            ll_text_count((double)s->parameters, n), s->run->model.name, s->data->name,
            ll_text_count(s->flops, f));
    if (s->ranks > 1) fprintf(stderr, "%d ranks (%s), each ", s->ranks, where(s, place));
    fprintf(stderr, "%d thread%s%s\n", s->threads, s->threads == 1 ? "" : "s",
            ll_bind_owns_cores() ? " on cores of its own" : "");
    tell_memory(s);
    if (s->pipeline) tell_pipeline(s->pipeline);
    if (s->note) fprintf(stderr, "%s: %s\n", s->run->train.precision, s->note);
    if (s->recomputed) tell_recomputed(s);
    if (s->devices) tell_devices(s->devices, s->machine->device);
    ll_kern_notes_print(stderr);
    if (ll_run_codec(s->run))
        fprintf(stderr, "gradients: compressed by %s where they are summed over axis data\n",
                ll_run_codec(s->run));
    else if (strcmp(s->run->parallel.compress, "none"))
        fprintf(stderr, "gradients: of fully connected layers, made from factors of all ranks\n");
    tell_apart(s);
    tell_idle(s);
    if (s->run->parallel.canonical) fprintf(stderr, "sums over ranks in canonical order\n");
    if (s->steps < s->run->train.steps)
        fprintf(stderr, "%lld steps: train.epochs %lld ends before train.steps %lld\n",
                (long long)s->steps, (long long)s->run->train.epochs,
                (long long)s->run->train.steps);
    if (s->first_step)
        fprintf(stderr, "resumed after step %lld of %lld\n", (long long)s->first_step,
                (long long)s->steps);
    if (s->ranks > 1 && !(s->devices && s->devices->direct)) tell_tuner(v->c);
    if (s->resumed) fprintf(stderr, "%s\n", s->resumed);
    if (s->weights) fprintf(stderr, "%s\n", s->weights);
    if (s->kept) fprintf(stderr, "%s\n", s->kept);
    fprintf(stderr, "run folder: %s\n", s->run->out);
    if (s->doomed)
        fprintf(stderr, "in %s/checkpoints/replaced until this one saves: an earlier run's %s\n",
                s->run->out, s->doomed);
    v->p = ll_progress_new(&(ll_progress_opts){
        .first = s->first_step + 1, .total = s->steps, .unit = v->unit, .plain = v->o->plain});
}

static void on_step(void *context, const ll_train_step *s)
{
    view *v = (view *)context;
    if (v->peak && s->gflops > v->peak && !v->device)
        v->peak = s->gflops; /* the product was timed in a bad moment */
    if (v->device && v->first)
        ll_progress_note(v->p, "first step done %.2f s after the program's start",
                         ll_process_age());
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
}

static void on_score(void *context, int64_t step, const ll_score *s)
{
    view *v = (view *)context;
    char more[LL_MAX_METRICS * (LL_METRIC_NAME + 16)] = "";
    size_t at = 0;
    if (!isnan(s->accuracy))
        at = (size_t)snprintf(more, sizeof more, ", accuracy %.2f %%", 100 * s->accuracy);
    for (int i = 0; i < s->n_metric; i++)
        at +=
            (size_t)snprintf(more + at, sizeof more - at, ", %s %.4g", s->names[i], s->metrics[i]);
    ll_progress_note(v->p, "step %lld: validation loss %.4f%s on %lld samples", (long long)step,
                     s->loss, more, (long long)s->samples);
}

static void on_timeline(void *context, const ll_timeline *t)
{
    view *v = (view *)context;
    ll_progress_note(v->p, "%.*s", (int)strlen(t->text) - 1, t->text);
}

static void on_note(void *context, const char *text)
{
    view *v = (view *)context;
    ll_progress_note(v->p, "%s", text);
}

/* Of all starts of the job, and of the last one where there were several. */
static void show_steps(const ll_train_report *t, const ll_start *job)
{
    char d[LL_NUMBER_TEXT], e[LL_NUMBER_TEXT];
    ll_noted from = {.step = t->first};
    ll_start one = job ? *job : (ll_start){.number = 0};
    one.number = 0;
    if (job && job->number) ll_recovery_find(&one, LL_BEGAN, &from);
    double wall = job && job->number ? t->goodput.wall : t->seconds;
    fprintf(stderr, "%lld steps in %s", (long long)(t->steps - from.step),
            ll_text_duration(wall, d));
    if (job && job->number)
        fprintf(stderr, ", %lld of them, in %s, after restart %d", (long long)(t->steps - t->first),
                ll_text_duration(t->seconds, e), job->number);
    fprintf(stderr, "; training loss %.4f", t->train_loss);
}

/* Of changes that replicas left at their server: 0 had come since for 12 %, 1 for 30 % ... */
static void show_stale(const ll_train_report *t)
{
    double all = 0, sum = 0;
    int most = 0;
    for (int i = 0; i < LL_STALENESS; i++) {
        all += t->stale[i], sum += i * t->stale[i];
        if (t->stale[i] > 0) most = i;
    }
    if (all == 0) return;
    fprintf(stderr, "\nstaleness: %.1f changes by others in the mean, %d%s at most;", sum / all,
            most, most == LL_STALENESS - 1 ? " or more" : "");
    for (int i = 0; i < LL_STALENESS; i++)
        if (t->stale[i] >= 0.01 * all)
            fprintf(stderr, " %d%s: %.0f %%", i, i == LL_STALENESS - 1 ? " or more" : "",
                    100 * t->stale[i] / all);
}

/* job: that this is a start of; NULL: it is started once. */
static void show_end(const ll_run *r, const ll_train_report *t, const ll_start *job)
{
    char d[LL_NUMBER_TEXT], e[LL_NUMBER_TEXT];
    if (t->signal && job) /* by who started it, who knows why, and may start it again */
        fprintf(
            stderr,
            "asked to stop: checkpoint saved after step %lld; if it does not go on by itself:\n",
            (long long)t->steps);
    else if (t->signal)
        fprintf(stderr, "stopped by signal %d after step %lld, checkpoint saved; go on with:\n",
                t->signal, (long long)t->steps);
    if (t->signal) fprintf(stderr, "  %s train %s --resume", ll_cli_program(), r->out);
    if (t->signal && t->ranks > 1) fprintf(stderr, " -n %d", t->ranks);
    if (t->signal) fputc('\n', stderr);
    if (t->out_of_patience)
        fprintf(stderr, "no better %s in the last %lld validations: stopped\n", r->train.best,
                (long long)r->train.patience);
    if (t->steps > t->first)
        show_steps(t, job);
    else
        fprintf(stderr, "no step was %s after step %lld", t->signal ? "done" : "left to do",
                (long long)t->steps);
    if (!isnan(t->val.loss)) fprintf(stderr, ", validation loss %.4f", t->val.loss);
    if (!isnan(t->val.accuracy)) fprintf(stderr, ", accuracy %.2f %%", 100 * t->val.accuracy);
    if (isfinite(t->predicted_s) && t->steps > t->first)
        fprintf(stderr, "\nstep: predicted %s, median %s: the prediction is %.1f %% %s",
                ll_text_time(t->predicted_s, d), ll_text_time(t->step_s, e),
                100 * fabs(t->predicted_s / t->step_s - 1),
                t->predicted_s < t->step_s ? "less" : "more");
    fprintf(stderr, "\nmemory%s: %s planned, %s used%s",
            t->ranks > 1 ? " of the rank with most" : "", ll_text_bytes(t->memory.planned, d),
            ll_text_bytes(t->memory.used, e),
            t->memory.of_all ? " there by all processes, with libraries" : "");
    LL_OWN(ll_arena) a = ll_arena_new();
    fprintf(stderr, "\n%s", ll_goodput_text(&t->goodput, a));
    if (t->skipped)
        fprintf(stderr, "\n%lld steps skipped for the norm of their gradients (train.spike)",
                (long long)t->skipped);
    if (t->wide)
        fprintf(stderr,
                "\n%lld step%s made again with all bits of %s numbers, for which exact sums had "
                "too few",
                (long long)t->wide, t->wide == 1 ? "" : "s", t->wide == 1 ? "its" : "their");
    if (t->undone)
        fprintf(stderr,
                "\n%lld step%s made again, for what %s presumed did not hold "
                "(parallel.post_validation)",
                (long long)t->undone, t->undone == 1 ? "" : "s", t->undone == 1 ? "it" : "they");
    if (t->unsaved)
        fprintf(stderr, "\n%lld checkpoint%s could not be written on the way",
                (long long)t->unsaved, t->unsaved == 1 ? "" : "s");
    if (t->dense_bytes)
        fprintf(stderr, "\ngradients: rank 0 sent %s in the last step, f32 takes %s",
                ll_text_bytes((double)t->gradient_bytes, d),
                ll_text_bytes((double)t->dense_bytes, e));
    if (t->replica_bytes && r->parallel.replicas > 1)
        fprintf(stderr, "\nreplicas: rank 0 sent %s to others, %s a step",
                ll_text_bytes((double)t->replica_bytes, d),
                ll_text_bytes((double)t->replica_bytes / (double)(t->steps - t->first), e));
    show_stale(t);
    fprintf(stderr, "\n%s: checkpoints/ metrics.jsonl curve.svg run.yaml\n", r->out);
}

static ll_err print_json(const ll_run *r, const ll_train_report *t, const ll_start *job)
{
    json_t *j = json_object();
    json_object_set_new(j, "model", json_string(r->model.name));
    json_object_set_new(j, "parameters", json_integer(t->parameters));
    json_object_set_new(j, "ranks", json_integer(t->ranks));
    json_object_set_new(j, "mesh", json_string(t->mesh));
    json_object_set_new(j, "steps", json_integer(t->steps));
    json_object_set_new(j, "restarts", json_integer(job ? job->number : 0));
    json_object_set_new(j, "train_loss", ll_cli_number(t->train_loss));
    json_object_set_new(j, "val_loss", ll_cli_number(t->val.loss));
    json_object_set_new(j, "val_accuracy", ll_cli_number(t->val.accuracy));
    json_object_set_new(j, "step_ms", ll_cli_number(1e3 * t->step_s));
    json_object_set_new(j, "first_step_s", ll_cli_number(t->first_step_s));
    json_object_set_new(j, "samples_per_s", ll_cli_number(t->samples_per_s));
    json_object_set_new(j, "tokens_per_s", ll_cli_number(t->tokens_per_s));
    json_object_set_new(j, "peak_bytes_planned", json_integer((json_int_t)t->memory.planned));
    json_object_set_new(j, "peak_bytes_used", json_integer((json_int_t)t->memory.used));
    json_object_set_new(j, "tensor_bytes_planned", json_integer((json_int_t)t->memory.tensors));
    json_object_set_new(j, "tensor_bytes_used", json_integer((json_int_t)t->memory.tensors_used));
    json_object_set_new(j, "aside_bytes", json_integer((json_int_t)t->memory.aside));
    json_object_set_new(j, "compress", json_string(r->parallel.compress));
    json_object_set_new(j, "gradient_bytes", json_integer(t->gradient_bytes));
    json_object_set_new(j, "gradient_bytes_f32", json_integer(t->dense_bytes));
    json_object_set_new(j, "replicas", json_integer(r->parallel.replicas));
    json_object_set_new(j, "replica_bytes", json_integer(t->replica_bytes));
    if (ll_run_loose(r) && ll_consistency_served(&r->parallel.between)) {
        json_t *stale = json_array();
        for (int i = 0; i < LL_STALENESS; i++) json_array_append_new(stale, json_real(t->stale[i]));
        json_object_set_new(j, "staleness", stale);
    }
    json_object_set_new(j, "bubble", ll_cli_number(t->bubble));
    json_object_set_new(j, "predicted_step_ms", ll_cli_number(1e3 * t->predicted_s));
    json_t *lost = json_object();
    for (int i = 0; i < LL_N_LOSS; i++)
        json_object_set_new(lost, ll_loss_name(i), ll_cli_number(t->goodput.lost[i]));
    json_object_set_new(j, "goodput", ll_cli_number(t->goodput.useful / t->goodput.wall));
    json_object_set_new(j, "wall_s", ll_cli_number(t->goodput.wall));
    json_object_set_new(j, "useful_s", ll_cli_number(t->goodput.useful));
    json_object_set_new(j, "lost_s", lost);
    json_object_set_new(j, "skipped", json_integer(t->skipped));
    json_object_set_new(j, "wide", json_integer(t->wide));
    json_object_set_new(j, "rolled_back", json_integer(t->rolled_back));
    json_object_set_new(j, "unsaved", json_integer(t->unsaved));
    json_object_set_new(j, "save_waits_s", ll_cli_number(t->save_waits));
    json_object_set_new(j, "seconds", ll_cli_number(t->seconds));
    json_object_set_new(j, "signal", t->signal ? json_integer(t->signal) : json_null());
    json_object_set_new(j, "out", json_string(r->out));
    return ll_cli_json(j);
}

/* "5:8" or "5". */
static ll_err read_steps(const char *text, int64_t *first, int64_t *last)
{
    char *end;
    *first = *last = strtoll(text, &end, 10);
    bool good = end != text;
    if (good && *end == ':') {
        text = end + 1;
        *last = strtoll(text, &end, 10);
        good = end != text;
    }
    CHECK(good && !*end, LL_E_ARG, "--trace-steps is '%s': want A:B, such as 5:8", text);
    return LL_OK;
}

/* Of the ranks asked for: a job may go on with fewer. */
static ll_err read_slow(const char *text, int ranks, ll_train_opts *t)
{
    char rest;
    int n = sscanf(text, "%d:%lf%c", &t->slow_rank, &t->slow, &rest);
    CHECK(n == 2 && t->slow_rank >= 0 && t->slow_rank < ranks && t->slow >= 1 && t->slow <= 1000,
          LL_E_ARG,
          "--slow is '%s': want RANK:FACTOR, such as 1:2, of %d rank%s and a factor of 1 to 1000",
          text, ranks, ranks == 1 ? "" : "s");
    return LL_OK;
}

static ll_err read_words(const opts *o, ll_train_opts *t)
{
    int ranks = o->ranks ? (int)o->ranks : ll_job_size() ? ll_job_size() : 1;
    if (o->trace_steps) TRY(read_steps(o->trace_steps, &t->trace_first, &t->trace_last));
    return o->slow ? read_slow(o->slow, ranks, t) : LL_OK;
}

static ll_err read_restarts(const opts *o, int64_t *out)
{
    const char *text = o->restarts ? o->restarts : "3";
    CHECK(!o->restarts || (o->ranks > 1 && ll_job_size() <= 1) || o->job, LL_E_ARG,
          "--restarts goes with -n: ranks that loopline starts itself, two or more, it starts "
          "again");
    CHECK(*text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 10, LL_E_ARG,
          "--restarts is '%s', want a whole number, 0 or more", text);
    *out = atoll(text);
    return LL_OK;
}

static ll_err check_timeline(const opts *o, const ll_run *r)
{
    ll_mesh m;
    TRY(ll_mesh_parse(r->parallel.mesh, &m));
    CHECK(!o->timeline || ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0, LL_E_ARG,
          "--timeline draws a pipeline, and mesh %s has none: add axis pipe=2",
          *r->parallel.mesh ? r->parallel.mesh : "data");
    return LL_OK;
}

static const char *folder_of(ll_arena *a, const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? ll_arena_printf(a, "%.*s", (int)(slash - path), path) : NULL;
}

/* What failed before it began leaves no folder: only empty ones can be removed. */
static void leave_nothing(const ll_run *r)
{
    const char *above = r->out_said ? NULL : folder_of(r->arena, r->out);
    if (rmdir(r->out) == 0 && above) (void)rmdir(above);
}

/* For who started the ranks: the launcher may not come back. */
static void note_loss(const ll_start *start, const ll_comm *c, int64_t step)
{
    LL_KEEP_ERROR;
    if (ll_comm_rank(c) > 1 || ll_job_status(1) != LL_JOB_LOST) return;
    if (ll_recovery_note(start, LL_LOST, step, kept_error.message) != LL_OK)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_message());
}

/* Nothing is left to do: whatever befalls ranks on their way out. */
static ll_err note_done(const ll_start *start, int64_t step, int status)
{
    char text[16];
    snprintf(text, sizeof text, "%d", status);
    fflush(stdout);
    if (ll_recovery_note(start, LL_DONE, step, text) != LL_OK)
        fprintf(stderr, "%s: %s\n", ll_cli_name(), ll_error_message());
    return LL_OK;
}

static const ll_start *own_start;

static void note_halted(const char *text)
{
    if (ll_mkdirs(own_start->out) == LL_OK)                     /* it may not have been made yet */
        (void)ll_recovery_note(own_start, LL_HALTED, -1, text); /* it is printed, too */
}

/* Beside what was refused, what would fit. */
static void remedy(const ll_run *r, int ranks)
{
    LL_KEEP_ERROR;
    double room = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    double limit = r->train.memory_bytes;
    ll_plan_remedy(r, ranks, limit > 0 && limit < room / ranks ? limit : room / ranks);
}

static ll_err train(const opts *o, const ll_start *start, ll_comm *c, ll_run *r)
{
    TRY(choose_folder(o, c, r));
    view v = {.o = o, .c = c};
    ll_train_opts t = {.comm = c,
                       .resume = o->resume,
                       .resume_from = o->from,
                       .replay = o->replay,
                       .trace = o->trace,
                       .timeline = o->timeline,
                       .start = o->job ? start : NULL,
                       .watch = {&v, on_start, on_step, on_score, on_timeline, on_note}};
    TRY(read_words(o, &t));
    ll_train_report report;
    ll_err rc = ll_train(r, &t, &report);
    ll_progress_free(v.p);
    if (rc == LL_E_COMM && ll_job_failure() == LL_FAILURE_ALONE)
        ll_job_lose(); /* MPI saw it first */
    if (rc == LL_E_COMM && o->job) note_loss(start, c, report.steps);
    if (rc != LL_OK && !o->resume && ll_comm_rank(c) == 0) leave_nothing(r);
    if (rc == LL_E_MEM && ll_comm_rank(c) == 0) remedy(r, ll_comm_size(c));
    TRY(rc);
    if (report.signal) ll_cli_exit_with(LL_EXIT_STOPPED);
    if (ll_comm_rank(c)) return LL_OK;
    show_end(r, &report, t.start);
    if (o->json) TRY(print_json(r, &report, t.start));
    int status = report.signal ? LL_EXIT_STOPPED : 0;
    return o->job ? note_done(start, report.steps, status) : LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    /* A reader of our messages that went away (a pipe into tee, stopped by the same Ctrl-C) or a
     * limit on file sizes must not end a run before it has saved. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(!o->trace_steps || o->trace || o->timeline, LL_E_ARG,
          "--trace-steps goes with --trace or --timeline");
    CHECK(!o->from || o->resume, LL_E_ARG, "--from goes with --resume");
    CHECK(!o->replay || !o->resume, LL_E_ARG, "--replay repeats a run from its beginning");
    CHECK(!o->overwrite || !o->resume, LL_E_ARG, "--overwrite and --resume exclude each other");
    for (int i = 0; i < o->set.n && o->resume; i++)
        CHECK(strncmp(o->set.v[i], "train.init", strlen("train.init")), LL_E_ARG,
              "--resume goes on from a checkpoint, and train.init is for a start: use one of them");
    CHECK(!o->hosts || o->ranks > 1 || o->job, LL_E_ARG,
          "--hosts goes with -n of two ranks or more%s", o->ranks ? ", not 1" : "");
    int64_t restarts;
    TRY(read_restarts(o, &restarts));
    TRY(read_words(o, &(ll_train_opts){0})); /* before there are ranks, and a folder */
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    ll_start start;
    ll_words set = {LL_NEW_ARRAY(a, const char *, o->set.n + 2), o->set.n};
    if (o->set.n) memcpy(set.v, o->set.v, sizeof *set.v * (size_t)o->set.n);
    if (o->job) {
        TRY(ll_start_parse(o->job, &start));
        ll_job_set_cared();
        own_start = &start;
        ll_job_set_note(note_halted);
        signal(SIGUSR1, SIG_IGN); /* which asks who trains to stop, not others to die */
        if (*start.mesh) set.v[set.n++] = ll_arena_printf(a, "parallel.mesh=%s", start.mesh);
        set.v[set.n++] = ll_arena_printf(a, "out=%s", start.out);
    }
    ll_comm *c;
    TRY(ll_cli_run(o->run, &set, false, &r));
    TRY(check_out(r));
    CHECK(!o->parallel || !strcmp(o->parallel, "auto"), LL_E_ARG,
          "--parallel is '%s': want auto, or --mesh", o->parallel);
    if (o->parallel && !(o->job && *start.mesh))
        TRY(ll_plan_choose(r, o->ranks ? o->ranks : ll_job_size() ? ll_job_size() : 1));
    TRY(check_timeline(o, r));
    bool replicas = r->parallel.replicas > 1; /* on all of -n's ranks, or not at all */
    CHECK(!replicas || !o->hosts, LL_E_ARG,
          "--hosts starts on fewer ranks where hosts are gone, which replicas cannot: use mpirun");
    const char *mesh = replicas ? "" : r->parallel.mesh;
    ll_care care = {.start = ll_cli_supervise,
                    .restarts = restarts,
                    .mesh = mesh,
                    .timeout = r->parallel.timeout,
                    .hosts = o->hosts};
    bool starts = o->ranks > 1 && !o->job && ll_job_size() <= 1;
    if (starts) TRY(choose(o, r));
    care.out = r->out;
    if (!r->out_said) care.above = folder_of(a, r->out);
    ll_err rc = ll_cli_ranks(r, o->job ? 0 : o->ranks, starts ? &care : NULL, &c);
    if (rc != LL_OK && starts && !o->resume) leave_nothing(r);
    TRY(rc);
    return ll_cli_leave(c, train(o, &start, c, r));
}

const ll_command ll_command_train = {
    "train", "trains a model as a run file says", args, sizeof(opts), run, more};
