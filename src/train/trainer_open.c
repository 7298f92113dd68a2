/* trainer_open.c: a training run is opened: its data, program, folder and, where it goes on, the
 * checkpoint that it goes on from. What is in the run folder is left alone until everything that
 * can be refused has been. */
#include "train/trainer_int.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "machine/bind.h"
#include "train/prune.h"
#include "weights/residual.h"
#include "run/run_int.h"
#include "run/teacher.h"
#include "weights/weights_load.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

/* Ranks of all replicas share the cores of a node. Whatever is drawn in a step is each replica's
 * own; ll_loose_begin sees to equal parameters. */
static ll_err open_replica(trainer *t, ll_session_opts *o)
{
    int64_t micro = t->own.train.batch / ll_run_micro_batches(&t->own);
    TRY(ll_bind_rank(t->comm, &o->threads));
    o->blocking = ll_consistency_rounds(&t->r->parallel.between);
    o->seed = (uint64_t)(t->r->train.seed + t->loose->index);
    TRY(ll_ranks_agree(t->comm, ll_run_graph(&t->own, micro, &t->own.train.optim, &t->g)));
    TRY(ll_ranks_agree(t->comm, ll_session_open(t->g, o, &t->s)));
    size_t before = ll_arena_total();
    TRY(ll_ranks_agree(t->comm, ll_loose_bind(t->loose, t->s)));
    t->report->memory.rest -= (double)(ll_arena_total() - before); /* counted as copies */
    return LL_OK;
}

static ll_err open_model(trainer *t)
{
    const ll_run *r = &t->own;
    ll_comm *c = t->loose ? t->loose->mine : t->comm;
    ll_session_opts o = ll_run_session(r, c, t->report->mesh);
    o.undrawn = !t->loose && (t->opts->resume || ll_trainer_is_restart(t));
    if (t->loose)
        TRY(open_replica(t, &o));
    else
        TRY(ll_run_compile(r, &o, &t->g, &t->s));
    TRY(ll_evaluator_open(r, t->data, t->s, &t->eval));
    if (t->loose)
        ll_evaluator_share(t->eval, t->loose->peers, r->parallel.between.seeds == LL_SEEDS_own);
    TRY(ll_evaluator_plan(t->eval, r->train.eval_samples));
    const char *best = r->train.best, *name = strchr(best, ':') ? strchr(best, ':') + 1 : best;
    LL_WANT(r, "train.best", !*best || ll_evaluator_gives(t->eval, name),
            "train.best is %s, which validation of model %s does not report", best, r->model.name);
    return ll_evaluator_plan(t->eval, 0);
}

/* Ranks of the start before may still be on their way out, where they do not hear of its end. */
static bool lock(const trainer *t)
{
    double until = ll_now() + (ll_trainer_is_restart(t) ? 2 * t->r->parallel.timeout + 5 : 0);
    while (flock(t->folder, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return true; /* the file system has no locks */
        if (ll_now() >= until) return false;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    return true;
}

/* One process at a time: two would mix their metrics and remove each other's checkpoints. */
static ll_err lock_folder(trainer *t)
{
    const char *out = t->r->out;
    if (!t->opts->resume || t->opts->resume_from || ll_trainer_is_restart(t)) TRY(ll_mkdirs(out));
    t->folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(t->folder >= 0 || (t->opts->resume && errno == ENOENT), LL_E_IO, "%s: %m", out);
    CHECK(t->folder < 0 || lock(t), LL_E_IO,
          "%s: another process is training there: use --out DIR for another folder", out);
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
    if (d->mixup > 0) ll_buf_printf(&b, ", mixup %g", d->mixup);
    if (d->cutmix > 0) ll_buf_printf(&b, ", cutmix %g", d->cutmix);
    for (int i = 0; i < d->mean.n; i++) ll_buf_printf(&b, ", mean %g", d->mean.v[i]);
    for (int i = 0; i < d->deviation.n; i++) ll_buf_printf(&b, ", deviation %g", d->deviation.v[i]);
    return b.text;
}

/* "layers=2 width=64": tensors do not show all of them. Dropout may change. */
static const char *sizes_of(const ll_run *r, ll_arena *a)
{
    ll_buf b = {.arena = a};
    ll_buf_puts(&b, "");
    for (const ll_size *x = r->model.sizes; x->name; x++)
        if (strcmp(x->name, "dropout"))
            ll_buf_printf(&b, "%s%s=%ld", b.len ? " " : "", x->name, x->value);
    return b.text;
}

int ll_trainer_meta(const trainer *t, ll_arena *a, ll_st_pair out[LL_TRAINER_META])
{
    const ll_run *r = t->r;
    const ll_data_info *d = ll_dataset_info(t->data);
    const ll_st_pair all[LL_TRAINER_META] = {
        {"model", r->model.name},
        {"optimizer", r->train.optim.name},
        {"sizes", sizes_of(r, a)}, /* before what follows from them: seq says how many samples */
        {"data", ll_arena_printf(a, "%s, %ld and %ld samples, %zu bytes, flip %s, crop %ld%s",
                                 d->name, d->n[LL_TRAIN], d->n[LL_VAL], d->bytes,
                                 r->data.flip ? "true" : "false", r->data.crop, changes(r, a))},
        {"data digest", ll_arena_printf(a, "%08x", d->digest)},
        {"data train digest", ll_arena_printf(a, "%08x", d->train_digest)},
        {"seed", ll_arena_printf(a, "%ld", r->train.seed)},
        {"batch", ll_arena_printf(a, "%ld", r->train.batch)},
        {"teacher_hidden", r->train.teacher_hidden},
        {"prune", r->train.prune},
        {"prune_steps", r->train.prune_steps},
        {"quantize", ll_rounding_name(r->train.quantize)},
        {"prompt", ll_arena_printf(a, "%ld", r->train.prompt)},
        {"lora", ll_arena_printf(a, "%ld", r->train.lora)},
        {"base", r->train.base}};
    memcpy(out, all, sizeof all);
    return LL_TRAINER_META;
}

/* Without what is not known of every kind of data. */
static const char *in_words(ll_arena *a, const char *meta)
{
    static const char unknown[] = ", 0 bytes";
    const char *at = strstr(meta, unknown);
    if (!at) return meta;
    return ll_arena_printf(a, "%.*s%s", (int)(at - meta), meta, at + strlen(unknown));
}

/* Settings that differ: what they were, what they are, and words for train that make them alike. */
typedef struct odds {
    ll_buf was, is, set;
} odds;

static void add_odd(odds *o, const char *key, const char *was, const char *is)
{
    ll_buf_printf(&o->was, "%s%.60s %.100s", o->was.len ? ", " : "", key, *was ? was : "empty");
    ll_buf_printf(&o->is, "%s%.100s", o->is.len ? ", " : "", *is ? is : "empty");
    ll_buf_printf(&o->set, " --set %.60s=%.100s", key, was);
}

/* A size that only one of them has is of another version. */
static void add_sizes(const trainer *t, const char *was, odds *o)
{
    char *rest = ll_arena_strdup(t->arena, was), *word;
    while ((word = strsep(&rest, " "))) {
        char *value = strchr(word, '=');
        if (!value) continue;
        *value++ = '\0';
        int64_t own = ll_run_size(t->r, word, atoll(value));
        if (own != atoll(value))
            add_odd(o, ll_arena_printf(t->arena, "model.%s", word), value,
                    ll_arena_printf(t->arena, "%ld", own));
    }
}

/* The next key of a section that is not as it was in the run before; NULL: there is none. */
static const ll_key *next_changed(const trainer *t, const ll_run *then, const char *section,
                                  const ll_key *k, const char **was)
{
    for (k = k ? k + 1 : ll_run_keys; then && k->name; k++) {
        *was = ll_run_value(then, k->name, t->arena);
        if (!strncmp(k->name, section, strlen(section)) &&
            strcmp(*was, ll_run_value(t->r, k->name, t->arena)))
            return k;
    }
    return NULL;
}

/* Settings that would give the data of the run before, as words for train. */
static void add_data(const trainer *t, const ll_run *then, ll_buf *set)
{
    static const char any[] =
        "data.threads data.cache data.fetch data.delay"; /* no sample changes */
    const char *was;
    for (const ll_key *k = NULL; (k = next_changed(t, then, "data.", k, &was));) {
        const char *quote = *was == '[' ? "\"" : "";
        if (!strstr(any, k->name))
            ll_buf_printf(set, " --set %s=%s%s%s", k->name, quote, was, quote);
    }
}

static bool is_late(const ll_run *r)
{
    return r->train.delay || !strcmp(r->parallel.schedule, "2bw");
}

/* What a run keeps beside its parameters, or does not: averages, a second version. */
static void add_kept(const trainer *t, const ll_run *then, odds *o)
{
    const ll_run *r = t->r;
    const char *late = is_late(r) && !r->train.delay ? "parallel.schedule" : "train.delay";
    bool odd[] = {(then->train.optim.ema > 0) != (r->train.optim.ema > 0),
                  is_late(then) != is_late(r)};
    const char *const keys[] = {"train.ema", late};
    for (int i = 0; i < 2; i++)
        if (odd[i])
            add_odd(o, keys[i], i && is_late(then) ? "true" : ll_run_value(then, keys[i], t->arena),
                    ll_run_value(r, keys[i], t->arena));
}

/* What a checkpoint says of this; NULL: nothing. */
static const char *was_of(const ll_st_file *f, const char *key)
{
    const char *was = ll_st_meta(f, key);
    if (was) return was;
    if (!strcmp(key, "prune_steps")) return "";
    return !strcmp(key, "prune") || !strcmp(key, "quantize") ? "none"
                                                             : NULL; /* of older versions */
}

/* Which no step sees: a file of them that cannot be read may be mended. */
static bool validates_on_others(const trainer *t, const ll_st_file *f)
{
    const ll_data_info *d = ll_dataset_info(t->data);
    const char *all = was_of(f, "data digest"), *train = was_of(f, "data train digest");
    return all && train && strtoul(all, NULL, 16) != d->digest &&
           strtoul(train, NULL, 16) == d->train_digest;
}

/* "idx, 60 and 10 samples, 99 bytes, flip ...": but for what validation adds to it. */
static bool same_training(const char *was, const char *is)
{
    const char *a = strstr(was, " and "), *b = strstr(is, " and "), *c, *d;
    if (!a || !b || a - was != b - is || memcmp(was, is, (size_t)(a - was))) return false;
    return (c = strstr(a, ", flip")) && (d = strstr(b, ", flip")) && !strcmp(c, d);
}

/* Settings and files that may be others, and are. */
static void tell_changed(trainer *t, const ll_st_file *f)
{
    LL_OWN(ll_run) then = ll_run_of_checkpoint(f->path);
    static const char *const sections[] = {"train.", "parallel."};
    const char *was;
    ll_buf b = {.arena = t->arena};
    for (int i = 0; i < 2; i++)
        for (const ll_key *k = NULL; (k = next_changed(t, then, sections[i], k, &was));)
            ll_buf_printf(&b, "%s %s %s (was %s)", b.len ? "," : "now", k->name,
                          ll_run_value(t->r, k->name, t->arena), was);
    t->revalidates = validates_on_others(t, f);
    if (t->revalidates)
        ll_buf_printf(&b, "%svalidation is by other files than it was%s", b.len ? "\n" : "",
                      *t->r->train.best ? ": train.best forgets the scores on those" : "");
    if (!b.len) return;
    t->resumed = ll_arena_printf(t->arena, "%s%s%s", t->resumed ? t->resumed : "",
                                 t->resumed ? "\n" : "", b.text);
}

/* A run can go on only with the settings that decide what a step does, and to which data. */
static ll_err check_same(const trainer *t, const ll_st_file *f)
{
    ll_st_pair now[LL_TRAINER_META];
    LL_OWN(ll_run) then = ll_run_of_checkpoint(f->path);
    odds o = {{.arena = t->arena}, {.arena = t->arena}, {.arena = t->arena}};
    int n = ll_trainer_meta(t, t->arena, now), data = -1;
    for (int i = 0; i < n; i++) {
        const char *key = now[i].key, *was = was_of(f, key);
        if (!was || !strcmp(was, now[i].value)) continue;
        if (validates_on_others(t, f) &&
            (!strcmp(key, "data digest") ||
             (!strcmp(key, "data") && same_training(was, now[i].value))))
            continue;
        CHECK(i, LL_E_CONFIG,
              "%s is a checkpoint of model %.60s, but this run has model %s: name a checkpoint of "
              "this run, or resume the run it belongs to",
              f->path, was, now[i].value);
        if (!strcmp(key, "sizes"))
            add_sizes(t, was, &o);
        else if (!strncmp(key, "data", 4))
            data = data < 0 ? i : data;
        else
            add_odd(&o, ll_arena_printf(t->arena, "train.%s", key), was, now[i].value);
    }
    if (then) add_kept(t, then, &o);
    if (data >= 0) add_data(t, then, &o.set);
    CHECK(!o.was.len, LL_E_CONFIG,
          "%s was made with %s, but this run has %s: resume with%s (rates, schedules, steps and "
          "meshes may change; --init FILE starts over with its weights)",
          f->path, o.was.text, o.is.text, o.set.text);
    if (data < 0) return LL_OK;
    const char *with = o.set.len ? o.set.text : " the data and settings it started with";
    const char *was = was_of(f, now[data].key), *is = now[data].value;
    CHECK(!strcmp(now[data].key, "data"), LL_E_CONFIG,
          "%s: its data files have changed (their checksum was %.20s, is %s): resume with%s; "
          "--init FILE starts over with its weights",
          f->path, was, is, with);
    FAIL(LL_E_CONFIG,
         "%s was made with data %.150s, but this run has %s: resume with%s; --init FILE starts "
         "over with its weights",
         f->path, in_words(t->arena, was), in_words(t->arena, is), with);
}

const char *ll_trainer_norm(const trainer *t, char out[17])
{
    uint64_t bits;
    memcpy(&bits, &t->norm, sizeof bits);
    snprintf(out, 17, "%016lx", bits);
    return out;
}

ll_err ll_trainer_take(trainer *t, const ll_st_file *f)
{
    if (t->loose) return ll_loose_load(t->loose, f, t->arena, &t->resumed);
    ll_st_list l = ll_session_tensors(t->s, t->arena);
    TRY(ll_checkpoint_load(f, l.tensors, l.parts, l.n, true));
    TRY(ll_residual_load(t->s, f, t->arena, &t->resumed));
    return ll_session_loaded(t->s);
}

static ll_err load_from(trainer *t, const ll_st_file *f)
{
    TRY(check_same(t, f));
    TRY(ll_trainer_take(t, f));
    TRY(ll_checkpoint_int(f, "step", &t->first));
    const char *norm = ll_st_meta(f, "norm");
    uint64_t bits = norm ? strtoull(norm, NULL, 16) : 0;
    memcpy(&t->norm, &bits, sizeof bits);
    if (!(t->norm > 0)) t->norm = 0, t->norm_from = t->first;
    t->s->step = (uint64_t)t->first;
    CHECK(t->first <= t->steps, LL_E_CONFIG,
          "%s is of step %ld, but this run ends after step %ld: raise train.steps or train.epochs",
          f->path, t->first, t->steps);
    return LL_OK;
}

static ll_err no_checkpoint(const trainer *t)
{
    bool aside = access(ll_trainer_file(t, "checkpoints/replaced"), F_OK) == 0;
    FAIL(LL_E_IO, "%s has no checkpoint to resume from: train %s%s", t->r->out,
         t->folder < 0 ? "without --resume" : "with --overwrite in place of --resume",
         aside ? "; those of the replaced run are in its checkpoints/replaced" : "");
}

static ll_err resume(trainer *t)
{
    LL_OWN(ll_st_file) f = NULL;
    if (t->opts->resume_from)
        TRY(ll_checkpoint_open(t->comm, t->opts->resume_from, &f));
    else
        TRY(ll_checkpoint_open_latest(t->comm, t->r->out, &f));
    t->goes_on = true;
    TRY(ll_ranks_agree(t->comm, f ? load_from(t, f) : no_checkpoint(t)));
    tell_changed(t, f);
    return LL_OK;
}

static ll_err prune(trainer *t)
{
    ll_pruned is;
    if (!t->r->train.optim.masked) return LL_OK;
    const char *rule = t->r->train.prune, *steps = t->r->train.prune_steps;
    ll_err rc = ll_prune_begin(rule, steps, t->s, &is);
    CHECK(rc == LL_OK, rc, "train.prune: %s", ll_error_message());
    t->weights = ll_arena_printf(
        t->arena, "%s%spruned %s%s%s: %.4g %% of %ld weights of %ld products are 0",
        t->weights ? t->weights : "", t->weights ? "; " : "", rule, *steps ? " in steps " : "",
        steps, 100 * (double)is.zeros / (double)is.numbers, is.numbers, is.tensors);
    return LL_OK;
}

static ll_err begin(trainer *t)
{
    const ll_run_train *r = &t->r->train;
    const ll_weights_from from = {r->init, r->init_map, r->init_skip};
    ll_prune_steps when;
    TRY(ll_prune_steps_parse(r->prune_steps, &when));
    CHECK(!when.to || when.to < t->steps, LL_E_CONFIG,
          "train.prune_steps=%s last prunes after step %ld, but the run ends after step %ld: set "
          "train.steps to at least one more",
          r->prune_steps, when.to, t->steps);
    if (t->opts->resume) return resume(t);
    if (t->s->opts.undrawn) TRY(ll_exec_draw(t->s->e));
    if (*r->init) TRY(ll_weights_load(t->s, &from, t->arena, &t->weights));
    if (r->lora && !*r->init) /* for whom would that be meant? */
        t->weights = "train.lora without train.init: the frozen weights are random numbers";
    if (r->prompt && !*r->init)
        t->weights = "train.prompt without train.init: the frozen weights are random numbers";
    TRY(prune(t));
    return t->loose ? ll_loose_begin(t->loose) : LL_OK;
}

/* From the newest state there is: in memory, on disk, or where the run began. What is on disk is
 * this job's only once one of its starts began: before, it is of a run that this one replaces, or
 * goes on from as the first start would have. */
static ll_err begin_again(trainer *t)
{
    LL_OWN(ll_st_file) f = NULL;
    const char *damaged = NULL;
    uint8_t ours = ll_recovery_began(t->opts->start);
    TRY(ll_buddy_open(t->comm, t->opts->start->job, &f));
    if (t->comm) TRY(ll_comm_broadcast(t->comm, &ours, 1, LL_U8, 0, NULL));
    t->from = f ? "memory" : "where the run began";
    t->in_memory = f != NULL;
    if (!f && ours) {
        TRY(ll_checkpoint_open_whole(t->comm, t->r->out, 1, t->arena, &damaged, &f));
        t->from = f ? f->path : "where the run began";
        t->from = ll_arena_strdup(t->arena, t->from);
    }
    if (!f) return begin(t);
    t->goes_on = true;
    TRY(ll_ranks_agree(t->comm, load_from(t, f)));
    if (damaged) t->resumed = damaged;
    return LL_OK;
}

/* Where it is not there already: a start that goes on does not wait for the disk. */
static ll_err write_text(const trainer *t, const char *name, const char *text, size_t bytes)
{
    LL_OWN_MEMORY uint8_t *was = NULL;
    const char *path = ll_trainer_file(t, name);
    size_t size;
    bool same = t->goes_on && access(path, F_OK) == 0 &&
                ll_file_read(path, 1 << 24, &was, &size) == LL_OK && size == bytes &&
                !memcmp(was, text, bytes);
    return same ? LL_OK : ll_file_write(path, text, bytes);
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
        CHECK(t->goes_on || unlink(path) == 0, LL_E_IO, "%s: removing: %m", path);
    n = 0; /* nor the order of replicas' turns */
    while (!t->goes_on &&
           unlink(ll_trainer_file(t, ll_arena_printf(t->arena, "order-%d.txt", n))) == 0)
        n++;
    if (!t->goes_on || access(last, F_OK)) return LL_OK;
    TRY(ll_file_read(last, 1 << 20, &was, &size));
    if (!strcmp((const char *)was, text)) return LL_OK;
    const char *kept =
        ll_arena_printf(t->arena, "# up to step %ld\n%s", t->first, (const char *)was);
    return ll_file_write(path, kept, strlen(kept));
}

/* Seconds on the wall since the job, or this process, began. */
static double wall_of(const trainer *t)
{
    return t->wall + ll_now() - t->began;
}

void ll_trainer_count_wall(trainer *t)
{
    double all = ll_process_stopped();
    t->good.wall = wall_of(t);
    t->good.lost[LL_LOSS_SUSPENDED] += all - t->suspended;
    t->suspended = all;
}

void ll_trainer_count_start(trainer *t)
{
    double before = t->good.wall - t->suspended;
    ll_trainer_count_wall(t);
    if (ll_trainer_is_restart(t))
        t->good.lost[LL_LOSS_RESTARTS] += t->good.wall - t->suspended - before;
    else
        t->good.lost[LL_LOSS_START] += t->good.wall - t->past.wall +
                                       t->past.lost[LL_LOSS_SUSPENDED] -
                                       t->good.lost[LL_LOSS_SUSPENDED];
}

static ll_err read_goodput(trainer *t, const char *timing)
{
    ll_start before = *t->opts->start;
    ll_noted began = {0}, ended = {.at = t->good.wall};
    before.number--;
    ll_recovery_find(&before, LL_BEGAN, &began);
    ll_recovery_find(&before, LL_ENDED, &ended);
    const ll_past past = {began.step, began.at, ended.at, ended.step};
    return ll_goodput_read(timing, t->first, &past, t->good.wall, &t->good);
}

static ll_err write_settings(const trainer *t)
{
    ll_buf data = {.arena = t->arena};
    const char *text = ll_run_print(t->r, t->arena);
    TRY(keep_settings(t, text));
    TRY(write_text(t, "run.yaml", text, strlen(text)));
    ll_dataset_tell(t->data, &data);
    return write_text(t, "data.json", data.text, data.len);
}

/* Files of the run, without lines that an earlier one left of steps that are still to come. */
static ll_err open_outputs(trainer *t)
{
    int64_t keep = t->goes_on ? t->first : -1; /* until the first checkpoint is saved */
    TRY(ll_checkpoint_set_aside(t->r->out, keep, t->arena, &t->doomed));
    ll_err rc = write_settings(t);
    CHECK(rc == LL_OK || (ll_trainer_is_restart(t) && ll_is_full()), rc, "%s", ll_error_message());
    const char *timing = ll_trainer_file(t, "timing.jsonl");
    t->good.wall = wall_of(t);
    bool new_start = ll_trainer_is_restart(t) && t->past.wall == 0;
    if (new_start && access(timing, F_OK) == 0)
        TRY(read_goodput(t, timing));
    else if (new_start) /* no start before this one came so far */
        t->good.lost[LL_LOSS_RESTARTS] = t->good.wall;
    t->good.wall = wall_of(t);
    TRY(ll_metrics_open(ll_trainer_file(t, "metrics.jsonl"), keep, &t->metrics));
    TRY(ll_metrics_open(timing, keep, &t->timing));
    TRY(ll_events_open(t->r->out, t->first + 1, &t->events));
    if (!t->opts->start) return LL_OK;
    const char *mesh = *t->report->mesh ? ll_arena_printf(t->arena, " (%s)", t->report->mesh) : "";
    const char *what = ll_arena_printf(t->arena, "%s%s%s%s", LL_COUNTED(t->report->ranks, "rank"),
                                       mesh, t->from ? ", from " : "", t->from ? t->from : "");
    rc = ll_recovery_note(t->opts->start, LL_BEGAN, t->first, what);
    CHECK(rc == LL_OK || ll_is_full(), rc, "%s", ll_error_message());
    return LL_OK;
}

static ll_err open_data(trainer *t)
{
    TRY(ll_run_dataset(t->r, &t->data));
    const ll_data_info *info = ll_dataset_info(t->data);
    LL_WANT(t->r, "train.batch", t->r->train.batch <= info->n[LL_TRAIN],
            "train.batch is %ld, more than the %ld samples of data %s: use %ld or less",
            t->r->train.batch, info->n[LL_TRAIN], info->name, info->n[LL_TRAIN]);
    t->steps = ll_run_steps(t->r, info->n[LL_TRAIN]);
    t->until = t->until && t->until < t->steps ? t->until : t->steps;
    t->epoch_steps = ll_ceil_div(info->n[LL_TRAIN], t->r->train.batch);
    t->times = (double *)calloc(RECENT, sizeof(double));
    t->losses = (double *)calloc(RECENT, sizeof(double));
    t->waited = (double *)calloc(RECENT, sizeof(double));
    CHECK(t->times && t->losses && t->waited, LL_E_MEM, "not enough memory to record %d steps",
          RECENT);
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

/* What all ranks find, one tells. */
static ll_err check_opts(trainer *t)
{
    const ll_train_opts *o = t->opts;
    int64_t until = t->until;
    CHECK(
        !o->replay || !t->r->parallel.between.warm_up, LL_E_ARG,
        "--replay cannot repeat a run with parallel.warm_up, which begins with synchronous steps");
    CHECK(!o->replay || (t->loose && t->loose->served), LL_E_ARG,
          "--replay needs replicas with a server or pairs: set parallel.consistency=ssp, eager, "
          "async or ad-psgd");
    if (o->replay) TRY(ll_loose_repeat(t->loose, o->replay, &until));
    if (until < t->until) t->until = until; /* it was stopped */
    CHECK(!t->loose || (!o->trace && !o->timeline), LL_E_ARG,
          "--trace and --timeline support only one replica: set parallel.replicas=1");
    return LL_OK;
}

static ll_err check_trace(const trainer *t)
{
    CHECK(t->trace_last >= t->trace_first, LL_E_ARG,
          "trace steps %ld to %ld: expected the first one first", t->trace_first, t->trace_last);
    CHECK(t->trace_first > t->first && t->trace_last <= t->steps, LL_E_ARG,
          "trace steps %ld to %ld are outside this run's steps %ld to %ld", t->trace_first,
          t->trace_last, t->first + 1, t->steps);
    return LL_OK;
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
    TRY(ll_ranks_agree(t->comm, check_trace(t)));
    const ll_tracer_opts how = {.path = o->trace, .timeline = o->timeline, .title = t->r->name};
    return ll_tracer_open(t->comm, t->s, &how, &t->tracer);
}

static ll_err open_buddy(trainer *t)
{
    ll_st_pair meta[LL_TRAINER_META];
    if (!t->r->train.buddy) return LL_OK;
    t->kept = "train.buddy has no effect: nothing would restart this run (use -n)";
    if (!t->opts->start) return LL_OK;
    int n = ll_trainer_meta(t, t->arena, meta);
    TRY(ll_buddy_new(t->comm, t->opts->start, t->s, t->loose, meta, n, &t->buddy));
    t->kept =
        ll_arena_printf(t->arena, "state in memory: every %s, %s in /dev/shm of each node; it %s",
                        LL_COUNTED(t->r->train.buddy, "step"), LL_BYTES(ll_buddy_bytes(t->buddy)),
                        ll_buddy_text(t->buddy));
    return LL_OK;
}

ll_err ll_trainer_open(trainer *t)
{
    t->wall = t->opts->start ? ll_wall_now() - t->opts->start->began : ll_process_age();
    if (!(t->wall > 0)) t->wall = 0; /* clocks of hosts differ */
    TRY(ll_ranks_agree(t->comm, ll_run_mesh(t->r, t->report->ranks, t->report->mesh)));
    ll_trainer_doing(t, "opening of the data");
    TRY(ll_ranks_agree(t->comm, open_data(t)));
    if (t->comm) TRY(check_alike(t));
    if (ll_run_loose(t->r)) TRY(ll_loose_open(t->comm, t->r, &t->loose));
    TRY(ll_ranks_agree(t->comm, check_opts(t)));
    t->own = ll_run_replica(t->r, t->loose ? t->loose->index : 0);
    ll_trainer_doing(t, "compilation");
    size_t before = ll_arena_total();
    TRY(open_model(t));
    t->report->memory.rest += (double)(ll_arena_total() - before);
    ll_trainer_doing(t, "set-up of the run folder");
    if (t->comm) ll_comm_slow(t->comm, true);
    TRY(ll_ranks_agree(t->comm, t->lead ? lock_folder(t) : LL_OK));
    if (t->comm) ll_comm_slow(t->comm, false);
    ll_trainer_doing(t, "reading of the state");
    TRY(ll_trainer_is_restart(t) ? begin_again(t) : begin(t));
    const char *teacher;
    TRY(ll_ranks_agree(t->comm, ll_teacher_load(&t->own, t->s, t->arena, &teacher)));
    if (teacher)
        t->weights =
            t->weights ? ll_arena_printf(t->arena, "%s; %s", t->weights, teacher) : teacher;
    ll_trainer_doing(t, "set-up of what the run keeps");
    TRY(open_buddy(t));
    TRY(ll_saver_open(t->comm, t->s, t->loose, t->r->out, t->r->train.save_beside, &t->saver));
    if (t->opts->trace || t->opts->timeline) TRY(open_trace(t));
    TRY(ll_ranks_agree(t->comm, t->lead ? open_outputs(t) : LL_OK));
    TRY(ll_ranks_see(t->comm, ll_trainer_file(t, "run.yaml"),
                     strlen(ll_run_print(t->r, t->arena))));
    return ll_ranks_agree(t->comm, ll_run_loader(&t->own, t->data, t->s, t->first, &t->loader));
}

void ll_trainer_close(trainer *t, bool alone)
{
    ll_loader_close(t->loader);
    ll_saver_close(t->saver);
    ll_buddy_free(t->buddy);
    ll_tracer_close(t->tracer);
    ll_events_close(t->events);
    ll_metrics_close(t->metrics);
    ll_metrics_close(t->timing);
    if (!alone) {
        ll_evaluator_close(t->eval);
        ll_session_close(t->s);
        ll_graph_free(t->g);
        ll_loose_close(t->loose);
    }
    ll_dataset_close(t->data);
    free(t->times);
    free(t->waited);
    ll_waits_close(t->waits);
    free(t->losses);
    if (t->folder >= 0) close(t->folder);
    ll_arena_free(t->arena);
}
