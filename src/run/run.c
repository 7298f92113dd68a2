/* run.c: finding a run file, overriding its settings, checking the whole. */
#include "base/file.h"
#include "base/num.h"
#include "comm/codec.h"
#include "model/model.h"
#include "onnx/onnx.h"
#include "pass/layouts.h"
#include "pass/prune.h"
#include "pass/recompute.h"
#include "program/ways.h"
#include "pass/target.h"
#include "sched/pipeline.h"
#include "data/data.h"
#include "run/run_int.h"

#include <unistd.h>

enum { FILE_READ_LIMIT = 1 << 20, SCHEDULE_LIMIT = 1 << 26 };

static const ll_bundled bundled[] = {
#include "run_list.inc"
    {0}};

const ll_bundled *ll_bundled_runs(void)
{
    return bundled;
}

/* ---- finding ---- */

/* "runs/a.yaml" -> "a"; "runs/a/run.yaml" -> "a". */
static const char *name_of(const char *path, ll_arena *arena)
{
    char *stem = ll_arena_strdup(arena, path);
    if (ll_ends_with(stem, "/run.yaml")) stem[strlen(stem) - strlen("/run.yaml")] = '\0';
    size_t n = strlen(stem);
    while (n > 1 && stem[n - 1] == '/') stem[--n] = '\0';
    char *slash = strrchr(stem, '/');
    if (slash && slash[1]) stem = slash + 1;
    if (ll_ends_with(stem, ".yaml")) stem[strlen(stem) - 5] = '\0';
    if (ll_ends_with(stem, ".yml")) stem[strlen(stem) - 4] = '\0';
    return *stem ? stem : "run";
}

static ll_err load_file(const char *path, ll_run **out)
{
    LL_OWN_MEMORY uint8_t *bytes = NULL;
    size_t size;
    TRY(ll_file_read(path, FILE_READ_LIMIT, &bytes, &size));
    LL_OWN(ll_run) r = NULL;
    TRY(ll_run_parse((const char *)bytes, size, path, &r));
    bool says = r->notes->n_size || r->layouts.n || r->params.n;
    for (int i = 0; ll_run_keys[i].name; i++) says |= r->notes->origin[i] != NULL;
    CHECK(says, LL_E_CONFIG, "%s sets nothing: a run file needs at least model: {name: lenet5}",
          path);
    r->name = name_of(path, r->arena);
    return LL_HAND(out, r);
}

static ll_err load_bundled(const char *name, ll_run **out)
{
    ll_near near = {.word = name}, model = near;
    const ll_bundled *b = ll_bundled_find(bundled, &near);
    if (b) {
        TRY(ll_run_parse(b->text, strlen(b->text), name, out));
        (*out)->name = b->name;
        return LL_OK;
    }
    for (const ll_model *const *m = ll_model_all(); *m; m++) ll_near_try(&model, (*m)->name);
    CHECK(!ll_model_find(name), LL_E_CONFIG,
          "'%s' is a model, not a run: write a run file with model: {name: %s}; bundled runs:%s",
          name, name, near.known);
    CHECK(access(name, F_OK), LL_E_CONFIG, "'%s' is no run file: their names end in .yaml", name);
    const char *best = near.best ? near.best : model.best;
    if (best) FAIL(LL_E_CONFIG, "no run named '%s'; did you mean %s?", name, best);
    FAIL(LL_E_CONFIG, "no run named '%s'; bundled runs:%s; or give a file such as my/run.yaml",
         name, near.known);
}

/* A run folder may have been moved since its run.yaml was written. */
static ll_err load_folder(const char *folder, ll_arena *scratch, ll_run **out)
{
    char *place = ll_arena_strdup(scratch, folder);
    for (size_t n = strlen(place); n > 1 && place[n - 1] == '/'; n--) place[n - 1] = '\0';
    LL_OWN(ll_run) r = NULL;
    ll_err rc = load_file(ll_arena_printf(scratch, "%s/run.yaml", place), &r);
    CHECK(rc != LL_E_IO, rc, "%s: the folder contains no run", ll_error_message());
    TRY(rc);
    TRY(ll_run_assign(r, &(ll_setting){.key = "out", .value = place, .origin = place}));
    return LL_HAND(out, r);
}

ll_err ll_run_load(const char *what, ll_run **out)
{
    LL_OWN(ll_arena) scratch = ll_arena_new();
    *out = NULL;
    if (ll_is_folder(what)) return load_folder(what, scratch, out);
    if (strchr(what, '/') || ll_ends_with(what, ".yaml") || ll_ends_with(what, ".yml"))
        return load_file(what, out);
    const char *places[] = {"runs", LL_RUN_DIR};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *path = ll_arena_printf(scratch, "%s/%s.yaml", places[i], what);
        if (ll_file_exists(path) && !ll_is_folder(path)) return load_file(path, out);
    }
    return load_bundled(what, out);
}

ll_err ll_run_set(ll_run *r, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    CHECK(equals && equals != assignment, LL_E_CONFIG,
          "--set %s: expected key=value, such as train.batch=128", assignment);
    char *key = ll_arena_strdup(r->arena, assignment);
    key[equals - assignment] = '\0';
    ll_setting s = {.key = key, .value = equals + 1};
    s.origin = ll_arena_printf(r->arena, "--set %.100s", assignment);
    TRY(ll_run_assign(r, &s));
    return ll_run_drop_idle(r, key);
}

/* ---- finishing ---- */

/* A file's models. Its path is kept whole, as the run may be resumed from another folder. */
static ll_err load_models(ll_run *r, const ll_model **list)
{
    LL_OWN_MEMORY char *whole = realpath(r->model.file, NULL);
    LL_WANT(r, "model.file", whole, "model.file=%s cannot be found", r->model.file);
    r->model.file = ll_arena_strdup(r->arena, whole);
    bool onnx = ll_ends_with(whole, ".onnx");
    LL_WANT(r, "model.loss", onnx || !*r->model.loss,
            "model.loss applies only to ONNX networks: set model.file to a .onnx file, or leave "
            "model.loss out");
    LL_WANT(r, "model.loss", !onnx || *r->model.loss,
            "model.loss is empty: an ONNX network needs cross_entropy (labels), mse or l1");
    ll_err rc = onnx ? ll_onnx_model(r->arena, r->model.file, r->model.loss, list)
                     : ll_models_load(r->model.file, list);
    LL_WANT(r, "model.file", rc == LL_OK, "model.file: %s", ll_error_message());
    return LL_OK;
}

static ll_err find_model(ll_run *r)
{
    ll_near near = {.word = r->model.name};
    if (*r->model.file) {
        const ll_model *m;
        TRY(load_models(r, &m));
        if (!*r->model.name) r->model.name = m->name;
        for (; m && !r->model.def; m = m->next) {
            if (!strcmp(m->name, r->model.name)) r->model.def = m;
            ll_near_try(&near, m->name);
        }
    } else {
        LL_WANT(r, "model.loss", !*r->model.loss,
                "model.loss applies only to ONNX networks: set model.file to a .onnx file, or "
                "leave model.loss out");
        if (!*r->model.name) r->model.name = "lenet5";
        r->model.def = ll_model_find(r->model.name);
        for (const ll_model *const *m = ll_model_all(); *m; m++) ll_near_try(&near, (*m)->name);
    }
    if (r->model.def) return LL_OK;
    FAIL(LL_E_CONFIG, "%s: unknown model '%.50s' (model.name)%s (models:%s)",
         ll_run_origin(r, "model.name"), r->model.name, ll_near_hint(&near), near.known);
}

static ll_err set_size(ll_run *r, const ll_size_note *note)
{
    const char *name = note->name + strlen("model.");
    ll_near near = {.word = name};
    for (ll_size *s = r->model.sizes; s->name; s++)
        if (ll_near_try(&near, s->name)) {
            ll_setting given = {.key = note->name, .value = note->value, .origin = note->origin};
            return ll_read_int(&given, 0, 1e9, &s->value);
        }
    const char *at = note->origin, *by = ll_run_origin(r, "model.name");
    bool other =
        !strncmp(by, "--set", 5) && strncmp(at, "--set", 5); /* the file's is not asked for */
    FAIL(LL_E_CONFIG, "%s: '%.50s'%s%s is not a size of model %s%s (its sizes:%s)", other ? by : at,
         name, other ? " of " : "", other ? at : "", r->model.name, ll_near_hint(&near),
         near.known);
}

static ll_err finish_model(ll_run *r)
{
    TRY(find_model(r));
    memcpy(r->model.sizes, r->model.def->sizes, sizeof r->model.def->sizes);
    for (int i = 0; i < r->notes->n_size; i++) TRY(set_size(r, &r->notes->sizes[i]));
    return LL_OK;
}

/* "H" or "HxW". */
static ll_err image_size(ll_run *r)
{
    ll_run_data *d = &r->data;
    char more = 0;
    int64_t h = 0, w = 0;
    if (!*d->image) return LL_OK;
    int n = sscanf(d->image, "%5ldx%5ld%c", &h, &w, &more);
    if (n == 1) w = h;
    bool digits = strspn(d->image, "0123456789x") == strlen(d->image);
    LL_WANT(r, "data.image",
            digits && h > 0 && w > 0 && (n == 2 || (n == 1 && !strchr(d->image, 'x'))),
            "data.image is '%s', expected a size such as 224, or HEIGHTxWIDTH", d->image);
    d->image_height = h, d->image_width = w;
    return LL_OK;
}

static ll_err finish_images(ll_run *r)
{
    const ll_run_data *d = &r->data;
    const struct {
        const char *key;
        bool set;
    } only[] = {{"data.flip", d->flip},          {"data.crop", d->crop != 0},
                {"data.image", *d->image},       {"data.channels", d->channels != 0},
                {"data.mean", d->mean.n != 0},   {"data.deviation", d->deviation.n != 0},
                {"data.scale", d->scale.n != 0}, {"data.jitter", d->jitter != 0},
                {"data.centre", d->centre != 1}, {"data.mixup", d->mixup > 0},
                {"data.cutmix", d->cutmix > 0}};
    for (size_t i = 0; ll_run_takes_tokens(r) && i < sizeof only / sizeof *only; i++)
        LL_WANT(r, only[i].key, !only[i].set, "%s applies only to images; model %s reads tokens",
                only[i].key, r->model.name);
    LL_WANT(r, "data.scale", d->scale.n == 0 || (d->scale.n == 2 && d->scale.v[0] <= d->scale.v[1]),
            "data.scale has %d numbers%s, expected two in ascending order, such as [0.08, 1]",
            d->scale.n, d->scale.n == 2 ? ", the larger first" : "");
    LL_WANT(r, "data.mean", d->mean.n <= LL_MAX_CHANNELS && d->deviation.n <= LL_MAX_CHANNELS,
            "data.mean and data.deviation take at most %d numbers, one per channel",
            LL_MAX_CHANNELS);
    return image_size(r);
}

static ll_err finish_data(ll_run *r)
{
    ll_run_data *d = &r->data;
    bool images = !ll_run_takes_tokens(r);
    LL_WANT(r, "data.tokenizer", !images || !*d->tokenizer,
            "data.tokenizer applies only to text; model %s reads no tokens", r->model.name);
    LL_WANT(r, "data.format", !*d->format || *d->path,
            "data.format=%s needs data.path, which is empty", d->format);
    LL_WANT(r, "data.format", !*d->format || !*d->name,
            "data.name=%s cannot be combined with data.format=%s: -s data.name= reads %s, -s "
            "data.format= -s data.path= reads %s",
            d->name, d->format, d->path, d->name);
    LL_WANT(r, "data.path", !*d->path || *d->name || *d->format,
            "data.path needs data.format (" LL_DATA_FORMATS ") or data.name");
    const ll_model *def = r->model.def;
    if (!*d->name && !*d->format && !def->data && def->input && !*r->model.loss) /* not ONNX's */
        d->name = images ? "fashion-mnist" : "kjv";
    return finish_images(r);
}

static ll_err finish_memory(ll_run *r)
{
    const ll_run_train *t = &r->train;
    char text[LL_ASIDE_TEXT];
    LL_WANT(r, "train.memory",
            !*t->memory ||
                (ll_text_to_bytes(t->memory, &r->train.memory_bytes) && t->memory_bytes >= 1),
            "train.memory is '%.40s', expected bytes, such as 200MiB", t->memory);
    if (!*t->offload) return LL_OK;
    const char *why = ll_aside_refused(ll_target_find(t->machine), t->offload, text);
    LL_WANT(r, "train.offload", !why, "train.offload is %s: %s", t->offload, why);
    return LL_OK;
}

static ll_err finish_train(ll_run *r)
{
    const ll_run_train *t = &r->train;
    LL_WANT(r, "train.micro_batch", !t->micro_batch || t->batch % t->micro_batch == 0,
            "train.micro_batch=%ld does not divide train.batch=%ld", t->micro_batch, t->batch);
    TRY(finish_memory(r));
    const ll_schedule *s = &t->schedule;
    LL_WANT(r, "train.schedule", s->shape != LL_LR_step || s->step_size || s->milestones.n,
            "train.schedule=step needs train.step_size or train.milestones");
    LL_WANT(r, "train.milestones", !s->step_size || !s->milestones.n,
            "train.step_size and train.milestones cannot be combined: set one of them to 0 or []");
    const char *precision = ll_precision_name(t->precision);
    LL_WANT(r, "parallel.exact", !r->parallel.exact || t->precision == LL_PRECISION_f32,
            "parallel.exact needs train.precision=f32, not %s", precision);
    const ll_target *target = ll_target_find(t->machine);
    LL_WANT(r, "train.precision", target->precisions >> t->precision & 1,
            "train.machine=%s does not support train.precision=%s: use f32 or bf16", t->machine,
            precision);
    LL_WANT(r, "train.deterministic", t->deterministic || target->any_order,
            "train.deterministic=false has no effect with train.machine=%s, whose order of sums is "
            "fixed: leave it out",
            t->machine);
    LL_WANT(r, "train.deterministic", t->deterministic || !r->parallel.exact,
            "train.deterministic=false cannot be combined with parallel.exact: use one of them");
    LL_WANT(r, "train.min_lr", s->min_lr <= s->lr, "train.min_lr=%g is above train.lr=%g",
            s->min_lr, s->lr);
    return LL_OK;
}

/* Whether patterns match something is seen where there is a graph. */
static ll_err finish_layouts(const ll_run *r)
{
    ll_mesh none;
    ll_pin pin;
    TRY(ll_mesh_parse("", &none));
    for (int i = 0; i < r->layouts.n; i++) TRY(ll_pin_read(&r->layouts.v[i], &none, &pin));
    return LL_OK;
}

/* A schedule that has no bundled one's name is a file's. */
static ll_err finish_schedule(ll_run *r)
{
    const char *name = r->parallel.schedule, *known;
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    r->parallel.schedule_text = name;
    if (!*name || !strcmp(name, "auto")) return LL_OK;
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_buf names = {.arena = a};
    ll_near near = {.word = name};
    for (int i = 0; (known = ll_pipeline_name(i)); i++) {
        if (ll_near_try(&near, known)) return LL_OK;
        ll_buf_printf(&names, "%s, ", known);
    }
    ll_err rc = ll_file_read(name, SCHEDULE_LIMIT, &text, &size);
    LL_WANT(r, "parallel.schedule", rc == LL_OK,
            "unknown parallel.schedule '%s'%s: expected %sauto, or a file: %s", name,
            ll_near_hint(&near), names.text, ll_error_message());
    r->parallel.schedule_text = ll_arena_printf(r->arena, "%s\n", (const char *)text);
    return LL_OK;
}

/* "normal:0.02" */
static ll_err read_init(const char *text, ll_init *out)
{
    static const char *const kinds[] = {[LL_ZEROS] = "zeros",
                                        [LL_CONSTANT] = "constant",
                                        [LL_NORMAL] = "normal",
                                        [LL_UNIFORM] = "uniform"};
    size_t n = strcspn(text, ":");
    char *end = (char *)text + n;
    for (int k = 0; k < 4; k++) {
        if (strlen(kinds[k]) != n || strncmp(text, kinds[k], n)) continue;
        *out = (ll_init){.kind = (ll_init_kind)k};
        if (k != LL_ZEROS && text[n] == ':') out->a = strtod(text + n + 1, &end);
        bool sound = isfinite(out->a) && (k == LL_CONSTANT || out->a >= 0);
        if (sound && *end == '\0' && (k == LL_ZEROS) == (text[n] == '\0')) return LL_OK;
    }
    FAIL(LL_E_CONFIG,
         "init=%.40s, expected zeros, constant:A, normal:A or uniform:A; A must be finite, and for "
         "normal and uniform not negative",
         text);
}

static ll_err read_rule(char *text, ll_param_rule *out)
{
    char *rest = NULL;
    for (char *w = strtok_r(text, " ,", &rest); w; w = strtok_r(NULL, " ,", &rest)) {
        char *value = strchr(w, '='), *end = w;
        if (value) *value++ = '\0';
        double number = value ? strtod(value, &end) : 0;
        bool fine = value && *value && *end == '\0' && isfinite(number);
        if (!strcmp(w, "freeze") && !value) {
            out->freeze = true;
        } else if (!strcmp(w, "lr") && fine && number > 0) {
            out->lr = number;
        } else if (!strcmp(w, "decay") && fine && number >= 0) {
            out->set_decay = true;
            out->decay = number;
        } else if (!strcmp(w, "init") && value) {
            out->set_init = true;
            TRY(read_init(value, &out->init));
        } else {
            FAIL(LL_E_CONFIG,
                 "'%.40s%s%.40s', expected freeze, lr=TIMES, decay=NUMBER or init=KIND", w,
                 value ? "=" : "", value ? value : "");
        }
    }
    return LL_OK;
}

static ll_err finish_params(ll_run *r)
{
    const ll_run_patterns *list = &r->params;
    ll_param_rule *rules = LL_NEW_ARRAY(r->arena, ll_param_rule, list->n + 1);
    for (int i = 0; i < list->n; i++) {
        rules[i].pattern = list->v[i].pattern;
        ll_err rc = read_rule(ll_arena_strdup(r->arena, list->v[i].layout), &rules[i]);
        CHECK(rc == LL_OK, rc, "%s: params \"%s\": %s", list->v[i].origin, list->v[i].pattern,
              ll_error_message());
    }
    r->train.optim.rules = list->n ? rules : NULL;
    const char *best = r->train.best;
    bool known = !*best || !strcmp(best, "loss") || !strcmp(best, "accuracy") ||
                 ((!strncmp(best, "min:", 4) || !strncmp(best, "max:", 4)) && best[4]);
    LL_WANT(r, "train.best", known,
            "train.best is '%.50s', expected loss, accuracy, min:NAME or max:NAME", best);
    LL_WANT(r, "train.ema", r->train.optim.ema == 0 || r->parallel.zero == 0,
            "train.ema needs whole parameters on every rank: set parallel.zero=0");
    bool average = !strcmp(r->train.optim.name, "schedule-free-adamw");
    LL_WANT(r, "train.optimizer", !average || r->parallel.zero == 0 || r->parallel.zero == 3,
            "train.optimizer=schedule-free-adamw needs parallel.zero=0 or 3");
    LL_WANT(r, "train.schedule", !average || r->train.schedule.shape == LL_LR_constant,
            "train.optimizer=schedule-free-adamw needs train.schedule=constant, as its average "
            "replaces decay (train.warmup may be set), not %s",
            ll_run_value(r, "train.schedule", r->arena));
    return LL_OK;
}

static ll_err finish_conv(ll_run *r)
{
    ll_conv_how how;
    if (!*r->train.conv) r->train.conv = "accurate";
    if (!*r->train.workspace) r->train.workspace = "auto";
    ll_err rc =
        ll_conv_read(ll_target_find(r->train.machine), r->train.conv, r->train.workspace, &how);
    LL_WANT(r, "", rc == LL_OK, "train.%s", ll_error_message());
    LL_WANT(
        r, "train.conv", !r->parallel.exact || !strcmp(r->train.conv, "accurate"),
        "train.conv=%s cannot be combined with parallel.exact, as it rounds more: use one of them",
        r->train.conv);
    return LL_OK;
}

/* What does not go with replicas that part. */
static ll_err check_loose(const ll_run *r)
{
    const ll_run_parallel *p = &r->parallel;
    LL_OWN(ll_codec) k = NULL;
    ll_err rc = !strcmp(p->between.codec, "none")
                    ? LL_OK
                    : ll_codec_open(p->between.codec, "settings", 0, 0, &k);
    LL_WANT(r, "parallel.codec", rc == LL_OK, "parallel.codec: %s; or none", ll_error_message());
    LL_WANT(r, p->exact ? "parallel.exact" : "", !p->exact || !k || ll_codec_by_number(k),
            "parallel.exact cannot be combined with parallel.codec=%s, whose result depends on how "
            "ranks cut a replica: use parallel.codec=none, bf16, f16 or lossless",
            p->between.codec);
    bool batch = r->train.batch % p->replicas != 0;
    LL_WANT(r, "parallel.replicas", !batch && r->train.micro_batch % p->replicas == 0,
            "parallel.replicas=%ld does not divide train.%s=%ld", p->replicas,
            batch ? "batch" : "micro_batch", (batch ? r->train.batch : r->train.micro_batch));
    LL_WANT(r, "parallel.compress", !strcmp(p->compress, "none"),
            "parallel.compress=%s is not supported for replicas%s", p->compress,
            ll_consistency_rounds(&p->between) ? "" : ": use parallel.codec");
    LL_WANT(r, "train.buddy", !r->train.buddy || !ll_consistency_served(&p->between),
            "train.buddy cannot be combined with asynchronous replicas (parallel.peers=server or "
            "pairs), which are at different steps: use train.save_every");
    LL_WANT(r, "parallel.exact", !r->parallel.exact || !ll_consistency_served(&p->between),
            "parallel.exact cannot be combined with parallel.consistency=%s, whose result depends "
            "on timing: use sync, local, diloco or gossip",
            p->between.name);
    LL_WANT(
        r, "train.spike", r->train.spike == 0,
        "train.spike cannot be combined with replicas, which have a gradient each: use train.clip");
    return LL_OK;
}

const char *ll_rounding_name(ll_rounding r)
{
#define NAME(name) #name,
    static const char *const names[] = {LL_ROUNDINGS(NAME)};
    return names[r];
}

/* Frozen weights in blocks, and those that are trained for them. */
static ll_err finish_quantize(const ll_run *r)
{
    bool some = r->train.quantize != LL_ROUNDING_none, f32 = r->train.precision == LL_PRECISION_f32;
    const char *precision = ll_precision_name(r->train.precision);
    LL_WANT(r, "train.base", f32 || !strcmp(r->train.base, "f32"),
            "train.base=%s needs train.precision=f32, not %s", r->train.base, precision);
    LL_WANT(r, "train.quantize", f32 || !some,
            "train.quantize=%s needs train.precision=f32, not %s",
            ll_rounding_name(r->train.quantize), precision);
    LL_WANT(r, "train.prompt", !r->train.prompt || !some,
            "train.prompt cannot be combined with train.quantize: a prompt is all that is trained");
    LL_WANT(r, "train.quantize", !some || !r->train.lora,
            "train.quantize cannot be combined with train.lora: use train.base, which stores the "
            "frozen weights in blocks");
    LL_WANT(r, "train.quantize", !some || !*r->train.prune || !strcmp(r->train.prune, "none"),
            "train.quantize cannot be combined with train.prune: products read the rounded "
            "weights, not the pruned ones");
    LL_WANT(r, "train.quantize", !some || strcmp(r->train.optim.name, "muon"),
            "train.quantize cannot be combined with train.optimizer=muon: products read rounded "
            "weights, and muon takes those that they read directly");
    return LL_OK;
}

static ll_err finish_prune(ll_run *r)
{
    ll_prune rule;
    ll_prune_steps when;
    if (!*r->train.prune) r->train.prune = "none";
    LL_WANT(r, "train.prune", ll_prune_parse(r->train.prune, &rule) == LL_OK, "train.prune: %s",
            ll_error_message());
    LL_WANT(r, "train.prune_steps", ll_prune_steps_parse(r->train.prune_steps, &when) == LL_OK,
            "train.prune_steps: %s", ll_error_message());
    r->train.optim.masked = ll_prunes(&rule);
    LL_WANT(r, "train.prompt", !r->train.prompt || (!r->train.lora && !r->train.optim.masked),
            "train.prompt cannot be combined with %s: a prompt is all that is trained",
            r->train.lora ? "train.lora" : "train.prune");
    LL_WANT(
        r, "train.prune", !r->train.optim.masked || !r->train.lora,
        "train.prune cannot be combined with train.lora: merging adapters would fill the zeros");
    LL_WANT(
        r, "train.prune", !r->train.optim.masked || !ll_run_loose(r),
        "train.prune cannot be combined with replicas that diverge: set parallel.consistency=sync");
    return LL_OK;
}

static ll_err finish_replicas(ll_run *r)
{
    ll_run_parallel *p = &r->parallel;
    ll_err rc = ll_consistency_make(&p->said, p->replicas, &p->between);
    LL_WANT(r, "", rc == LL_OK, "%s", ll_error_message());
    const ll_optim *o = &r->train.optim;
    bool linear = !strcmp(o->name, "sgd") && o->clip == 0 && o->clip_value == 0;
    ll_consistency_reduce(&p->between, p->replicas, linear);
    bool apart = ll_run_loose(r) && !ll_consistency_rounds(&p->between);
    LL_WANT(r, "parallel.replica_lr", !p->replica_lr || apart,
            "parallel.replica_lr applies only to replicas that diverge; with "
            "parallel.consistency=%s they train as one",
            p->between.name);
    LL_WANT(
        r, "parallel.save", p->save == LL_KEPT_replicas || apart,
        "parallel.save applies only to replicas that diverge; with parallel.consistency=%s they "
        "train as one",
        p->between.name);
    return ll_run_loose(r) ? check_loose(r) : LL_OK;
}

double ll_run_replica_lr(const ll_run *r)
{
    const char *o = r->train.optim.name;
    bool linear = !strcmp(o, "sgd") || !strcmp(o, "momentum") || !strcmp(o, "nesterov");
    bool outer = r->parallel.between.outer != LL_OUTER_sgd; /* has a length of its own */
    if (!ll_run_loose(r) || !r->parallel.between.every) return 1;
    if (ll_consistency_rounds(&r->parallel.between)) return 1; /* updates are of a batch */
    if (r->parallel.replica_lr > 0) return r->parallel.replica_lr;
    return linear || outer ? 1 : sqrt((double)r->parallel.replicas);
}

ll_run ll_run_replica(const ll_run *r, int replica)
{
    ll_run own = *r;
    int64_t n = r->parallel.replicas;
    if (!ll_run_loose(r)) return own;
    own.train.batch /= n;
    own.train.micro_batch /= n;
    if (r->parallel.between.seeds == LL_SEEDS_own) own.train.seed += replica;
    own.parallel.replica = replica;
    own.parallel.of = (int)n;
    return own;
}

/* Of a schedule in a file this is known when it has been read (session.c, trainer_loop.c). */
static ll_err check_overlap(const ll_run *r)
{
    LL_WANT(r, "parallel.post_validation", !r->parallel.post_validation || r->train.spike <= 0,
            "train.spike cannot be combined with parallel.post_validation, which learns a step's "
            "norm after the next has begun: use train.clip, or leave one out");
    if (strcmp(r->parallel.schedule, "2bw")) return LL_OK;
    LL_WANT(r, "train.spike parallel.schedule", r->train.spike <= 0,
            "train.spike cannot be combined with parallel.schedule=2bw, which learns a step's norm "
            "after the next has begun: use train.clip, or another schedule");
    LL_WANT(r, "train.memory parallel.schedule", !*r->train.memory,
            "train.memory cannot be combined with parallel.schedule=2bw, whose steps overlap: "
            "leave it out, or use another schedule");
    return LL_OK;
}

static ll_err finish_parallel(ll_run *r)
{
    TRY(finish_schedule(r));
    TRY(check_overlap(r));
    ll_recompute_how how;
    if (!*r->parallel.recompute) r->parallel.recompute = "none";
    LL_WANT(r, "parallel.recompute", ll_recompute_parse(r->parallel.recompute, &how) == LL_OK,
            "parallel.%s", ll_error_message());
    TRY(finish_conv(r));
    bool rows = !r->model.def->input || ll_run_takes_tokens(r);
    LL_WANT(r, "parallel.sequence", rows || !strcmp(r->parallel.sequence, "auto"),
            "parallel.sequence applies only to attention, which model %s does not have: leave it "
            "at auto",
            r->model.name);
    const char *codec = r->parallel.compress;
    if (!*codec) r->parallel.compress = codec = "none";
    if (!strcmp(codec, "none")) return LL_OK;
    LL_OWN(ll_codec) k = NULL;
    ll_err rc = ll_codec_asked(codec) ? ll_codec_open(codec, "settings", 0, 0, &k) : LL_OK;
    LL_WANT(r, "parallel.compress", rc == LL_OK, "parallel.compress: %s; or factors, or none",
            ll_error_message());
    LL_WANT(r, "parallel.compress", !r->parallel.exact,
            "parallel.compress=%s cannot be combined with parallel.exact, as it changes sums: use "
            "one of them",
            codec);
    return LL_OK;
}

ll_err ll_run_finish(ll_run *r)
{
    TRY(finish_model(r));
    TRY(finish_data(r));
    TRY(ll_run_check_needs(r));
    TRY(finish_train(r));
    TRY(finish_parallel(r));
    TRY(finish_replicas(r));
    TRY(finish_quantize(r));
    TRY(finish_prune(r));
    TRY(finish_layouts(r));
    TRY(finish_params(r));
    if (!r->name) r->name = name_of(r->file, r->arena);
    r->out_said = *r->out;
    if (r->out_said) return LL_OK;
    const char *out = ll_arena_printf(r->arena, "runs/%s", r->name);
    return ll_run_assign(r, &(ll_setting){.key = "out", .value = out, .origin = r->file});
}

ll_run *ll_run_of_checkpoint(const char *path)
{
    LL_KEEP_ERROR;
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *end = strstr(path, "/checkpoints/");
    if (!end) return NULL;
    const char *file = ll_arena_printf(a, "%.*s/run.yaml", (int)(end - path), path);
    if (ll_run_load(file, &r) != LL_OK || ll_run_finish(r) != LL_OK) return NULL;
    ll_run *out = r;
    r = NULL;
    return out;
}

int64_t ll_run_steps(const ll_run *r, int64_t samples)
{
    int64_t steps = r->train.steps, epochs = r->train.epochs;
    if (!steps && !epochs) epochs = 1;
    if (!epochs) return steps;
    int64_t enough = ll_ceil_div(epochs * samples, r->train.batch);
    return steps && steps < enough ? steps : enough;
}

int64_t ll_run_size(const ll_run *r, const char *name, int64_t otherwise)
{
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        if (!strcmp(r->model.sizes[i].name, name)) return r->model.sizes[i].value;
    return otherwise;
}

int64_t ll_run_places(const ll_run *r)
{
    int64_t seq = ll_run_size(r, "seq", 0), places = ll_run_size(r, "places", 0);
    return places > seq ? places : seq;
}

bool ll_run_takes_tokens(const ll_run *r)
{
    const char *input = r->model.def->input;
    return input && !strcmp(input, "tokens");
}
