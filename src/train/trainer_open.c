/* trainer_open.c: a training run is opened: its data, program, folder and, where it goes on, the
 * checkpoint that it goes on from. What is in the run folder is left alone until everything that
 * can be refused has been. */
#include "train/trainer_int.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "base/text.h"
#include "machine/bind.h"
#include "train/residual.h"
#include "train/weights_load.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

const char *ll_trainer_file(const trainer *t, const char *name)
{
    return ll_arena_printf(t->arena, "%s/%s", t->r->out, name);
}

void ll_trainer_doing(const trainer *t, const char *what)
{
    if (t->comm) ll_comm_doing(t->comm, what);
}

static ll_err open_model(trainer *t)
{
    const ll_run *r = t->r;
    ll_session_opts o = ll_run_session(r, t->comm, t->report->mesh);
    TRY(ll_run_compile(r, &o, &t->g, &t->s));
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

/* What else is done to images; nothing where nothing is. */
static const char *changes(const ll_run *r, ll_arena *a)
{
    const ll_run_data *d = &r->data;
    ll_buf b = {.arena = a};
    ll_buf_puts(&b, "");
    if (*d->image) ll_buf_printf(&b, ", image %s", d->image);
    if (d->scale.n) ll_buf_printf(&b, ", scale %g to %g", d->scale.v[0], d->scale.v[1]);
    if (d->jitter > 0) ll_buf_printf(&b, ", jitter %g", d->jitter);
    for (int i = 0; i < d->mean.n; i++) ll_buf_printf(&b, ", mean %g", d->mean.v[i]);
    for (int i = 0; i < d->deviation.n; i++) ll_buf_printf(&b, ", deviation %g", d->deviation.v[i]);
    return b.text ? b.text : "";
}

int ll_trainer_meta(const trainer *t, ll_arena *a, ll_st_pair out[LL_TRAINER_META])
{
    const ll_run *r = t->r;
    const ll_data_info *d = ll_dataset_info(t->data);
    const ll_st_pair all[LL_TRAINER_META] = {
        {"model", r->model.name},
        {"optimizer", r->train.optim.name},
        {"data", ll_arena_printf(a,
                                 "%s, %" PRId64 " and %" PRId64
                                 " samples, %zu bytes, flip %s, crop %" PRId64 "%s",
                                 d->name, d->n[LL_TRAIN], d->n[LL_VAL], d->bytes,
                                 r->data.flip ? "true" : "false", r->data.crop, changes(r, a))},
        {"data files", ll_arena_printf(a, "%08x", d->digest)},
        {"seed", ll_arena_printf(a, "%" PRId64, r->train.seed)},
        {"batch", ll_arena_printf(a, "%" PRId64, r->train.batch)}};
    memcpy(out, all, sizeof all);
    return LL_TRAINER_META;
}

/* A run can go on only with the settings that decide what a step does, and to which data. */
static ll_err check_same(const trainer *t, const ll_st_file *f)
{
    ll_st_pair now[LL_TRAINER_META];
    int n = ll_trainer_meta(t, t->arena, now);
    for (int i = 0; i < n; i++) {
        const char *key = now[i].key, *is = now[i].value, *was = ll_st_meta(f, key);
        if (!was || !strcmp(was, is)) continue;
        CHECK(i < LL_TRAINER_TRAIN, LL_E_CONFIG,
              "%s was made with train.%s %.20s, this run has %s: resume with --set train.%s=%.20s",
              ll_st_path(f), key, was, is, key, was);
        FAIL(LL_E_CONFIG,
             "%s was made with %s %.150s, this run has %s: resume with the settings it began with",
             ll_st_path(f), key, was, is);
    }
    return LL_OK;
}

static ll_err load_from(trainer *t, const ll_st_file *f)
{
    ll_st_tensor *tensors;
    ll_st_part *parts;
    int n = ll_session_tensors(t->s, t->arena, &tensors, &parts);
    TRY(check_same(t, f));
    TRY(ll_checkpoint_load(f, tensors, parts, n, true));
    TRY(ll_residual_load(t->s, f, t->arena, &t->resumed));
    TRY(ll_session_loaded(t->s));
    TRY(ll_checkpoint_int(f, "step", &t->first));
    t->s->step = (uint64_t)t->first;
    CHECK(
        t->first <= t->steps, LL_E_CONFIG,
        "%s is of step %lld, and this run ends after step %lld: raise train.steps or train.epochs",
        ll_st_path(f), (long long)t->first, (long long)t->steps);
    return LL_OK;
}

static ll_err no_checkpoint(const trainer *t)
{
    bool aside = access(ll_trainer_file(t, "checkpoints/replaced"), F_OK) == 0;
    FAIL(LL_E_IO, "%s has no checkpoint to resume from: train %s%s", t->r->out,
         t->folder < 0 ? "without --resume" : "with --overwrite in place of --resume",
         aside ? "; those of a run that was to be replaced are in its checkpoints/replaced" : "");
}

static ll_err resume(trainer *t)
{
    LL_OWN(ll_st_file) f = NULL;
    if (t->opts->resume_from)
        TRY(ll_checkpoint_open(t->comm, t->opts->resume_from, &f));
    else
        TRY(ll_checkpoint_open_latest(t->comm, t->r->out, &f));
    return ll_ranks_agree(t->comm, f ? load_from(t, f) : no_checkpoint(t));
}

/* data.json: what the run reads: of many files the first ones, and a checksum of all. */
static ll_err write_data(const trainer *t)
{
    const ll_data_info *d = ll_dataset_info(t->data);
    ll_buf b = {.arena = t->arena};
    ll_buf_puts(&b, "{\"name\": ");
    ll_buf_json(&b, d->name);
    ll_buf_puts(&b, ", \"path\": ");
    ll_buf_json(&b, d->where);
    ll_buf_printf(&b, ",\n \"train\": %" PRId64 ", \"val\": %" PRId64 ", \"bytes\": %" PRIu64 ", ",
                  d->n[LL_TRAIN], d->n[LL_VAL], d->file_bytes);
    ll_buf_printf(&b, "\"crc32c\": \"%08x\", \"files\": %" PRId64 ",\n \"first\": [", d->digest,
                  d->n_file);
    for (int i = 0; i < d->n_file && i < LL_NOTED_FILES; i++) {
        ll_buf_puts(&b, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
        ll_buf_json(&b, d->files[i].name);
        ll_buf_printf(&b, ", \"bytes\": %" PRIu64 "}", d->files[i].size);
    }
    ll_buf_puts(&b, "]}\n");
    return ll_file_write(ll_trainer_file(t, "data.json"), b.text, b.len);
}

static ll_err init(trainer *t)
{
    const ll_run_train *r = &t->r->train;
    const ll_weights_from from = {r->init, r->init_map, r->init_skip};
    return ll_weights_load(t->s, &from, t->arena, &t->weights);
}

/* Of a run that goes on with other settings, those that it had: run.1.yaml, run.2.yaml ... A run
 * that starts anew has none. */
static ll_err keep_settings(const trainer *t, const char *text)
{
    LL_OWN_MEMORY uint8_t *was = NULL;
    const char *path, *last = ll_trainer_file(t, "run.yaml");
    size_t size;
    int n = 1;
    for (;
         access(path = ll_trainer_file(t, ll_arena_printf(t->arena, "run.%d.yaml", n)), F_OK) == 0;
         n++)
        CHECK(t->opts->resume || unlink(path) == 0, LL_E_IO, "%s: removing: %s", path,
              strerror(errno));
    if (!t->opts->resume || access(last, F_OK)) return LL_OK;
    TRY(ll_file_read(last, 1 << 20, &was, &size));
    if (!strcmp((const char *)was, text)) return LL_OK;
    const char *kept =
        ll_arena_printf(t->arena, "# up to step %" PRId64 "\n%s", t->first, (const char *)was);
    return ll_file_write(path, kept, strlen(kept));
}

/* Files of the run, without lines that an earlier one left there of steps that are still to come.
 */
static ll_err open_outputs(trainer *t)
{
    char *text = ll_run_print(t->r, t->arena);
    int64_t keep = t->opts->resume ? t->first : -1; /* until the first checkpoint is saved */
    TRY(ll_checkpoint_set_aside(t->r->out, keep, t->arena, &t->doomed));
    TRY(keep_settings(t, text));
    TRY(ll_file_write(ll_trainer_file(t, "run.yaml"), text, strlen(text)));
    TRY(write_data(t));
    TRY(ll_metrics_open(ll_trainer_file(t, "metrics.jsonl"), keep, &t->metrics));
    TRY(ll_metrics_open(ll_trainer_file(t, "timing.jsonl"), keep, &t->timing));
    return ll_events_open(t->r->out, t->first + 1, &t->events);
}

static ll_err open_data(trainer *t)
{
    TRY(ll_run_dataset(t->r, &t->data));
    const ll_data_info *info = ll_dataset_info(t->data);
    CHECK(
        t->r->train.batch <= info->n[LL_TRAIN], LL_E_CONFIG,
        "train.batch is %lld, more than the %lld samples of data %s: a batch would hold some twice",
        (long long)t->r->train.batch, (long long)info->n[LL_TRAIN], info->name);
    t->steps = ll_run_steps(t->r, info->n[LL_TRAIN]);
    t->epoch_steps = (info->n[LL_TRAIN] + t->r->train.batch - 1) / t->r->train.batch;
    t->times = (double *)calloc(RECENT, sizeof(double));
    t->losses = (double *)calloc(RECENT, sizeof(double));
    CHECK(t->times && t->losses, LL_E_MEM, "no memory to note %d steps", RECENT);
    return LL_OK;
}

/* Ranks of several nodes may have found other files. */
static ll_err check_alike(trainer *t)
{
    const char *text = ll_run_print(t->r, t->arena);
    const ll_data_info *d = ll_dataset_info(t->data);
    const int64_t sizes[] = {d->n[LL_TRAIN], d->n[LL_VAL], (int64_t)d->bytes, d->digest};
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
    const ll_tracer_opts how = {.path = o->trace, .timeline = o->timeline, .title = t->r->name};
    return ll_tracer_open(t->comm, t->s, &how, &t->tracer);
}

ll_err ll_trainer_open(trainer *t)
{
    TRY(ll_ranks_agree(t->comm, ll_run_mesh(t->r, t->report->ranks, t->report->mesh)));
    ll_trainer_doing(t, "opening of the data");
    TRY(ll_ranks_agree(t->comm, open_data(t)));
    if (t->comm) TRY(check_alike(t));
    ll_trainer_doing(t, "compilation");
    TRY(open_model(t));
    ll_trainer_doing(t, "set-up of the run folder");
    TRY(ll_ranks_agree(t->comm, t->lead ? lock_folder(t) : LL_OK));
    if (t->opts->resume)
        TRY(resume(t));
    else if (*t->r->train.init)
        TRY(init(t));
    if (t->opts->trace || t->opts->timeline) TRY(open_trace(t));
    TRY(ll_ranks_agree(t->comm, t->lead ? open_outputs(t) : LL_OK));
    TRY(ll_ranks_see(t->comm, ll_trainer_file(t, "run.yaml"),
                     strlen(ll_run_print(t->r, t->arena))));
    return ll_ranks_agree(t->comm, ll_run_loader(t->r, t->data, t->s, t->first, &t->loader));
}

void ll_trainer_close(trainer *t, bool alone)
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
