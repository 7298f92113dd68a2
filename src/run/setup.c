/* setup.c: the run's model, data and sessions. */
#include "run/setup.h"

#include "base/file.h"
#include "base/rng.h"
#include "machine/bind.h"
#include "pass/lora.h"
#include "pass/packed.h"
#include "pass/prune.h"
#include "run/ranks.h"
#include "run/run_int.h"
#include "run/teacher.h"

/* The failure of a model's declaration, with the sizes it was given. */
static ll_err bad_model(const ll_run *r, ll_err rc)
{
    char sizes[512] = "";
    size_t at = 0, n = strlen(r->model.def->name);
    const char *text = ll_error_message();
    if (rc == LL_E_GRAPH && !strncmp(text, r->model.def->name, n) && text[n] == ':')
        FAIL(LL_E_CONFIG, "model %s", text); /* it names sizes it cannot have */
    for (const ll_size *s = r->model.sizes; s->name && at < sizeof sizes - 64; s++)
        at += (size_t)snprintf(sizes + at, sizeof sizes - at, "%s%.32s %ld", at ? ", " : "",
                               s->name, s->value);
    FAIL(rc, "model %s%s%s: %s", r->model.name, *sizes ? " of " : "", sizes, ll_error_message());
}

/* With parameters frozen that are not trained: a teacher's, and beside adapters all others. */
static const ll_optim *with_frozen(const ll_run *run, ll_graph *g, const ll_optim *o, ll_optim *out)
{
    int n = 0;
    for (const ll_param_rule *r = o->rules; r && r->pattern; r++) n++;
    ll_param_rule *rules = LL_NEW_ARRAY(g->arena, ll_param_rule, n + g->n_value + 1);
    if (n) memcpy(rules, o->rules, sizeof *rules * (size_t)n);
    LL_EACH (const ll_value, v, g->values + 1, g->n_value - 1) {
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        if (ll_is_teacher(v->name) || ((run->train.lora || run->train.prompt) &&
                                       !ll_is_adapter(v->name) && !ll_is_match(v->name)))
            rules[n++] = (ll_param_rule){.pattern = v->name, .freeze = true};
    }
    *out = *o;
    out->rules = rules;
    return out;
}

static ll_err add_teacher(const ll_run *r, ll_graph *g, int64_t batch, ll_val *loss)
{
    LL_OWN(ll_run) t = NULL;
    LL_OWN(ll_graph) theirs = NULL;
    TRY(ll_teacher_run(r, &t));
    int64_t own = ll_run_size(r, "vocab", 0), other = ll_run_size(t, "vocab", 0);
    LL_WANT(r, "train.teacher",
            !ll_run_takes_tokens(r) || (own == other && !*r->data.tokenizer == !*t->data.tokenizer),
            "%s uses other tokens: its vocabulary is %ld%s, this run's is %ld%s", r->train.teacher,
            other, *t->data.tokenizer ? " (from a tokenizer)" : "", own,
            *r->data.tokenizer ? " (from a tokenizer)" : "");
    TRY(ll_run_graph(t, batch, NULL, &theirs));
    return ll_teacher_add(r, theirs, g, loss);
}

/* What is said of convolutions wants some. */
static ll_err check_conv(const ll_run *r, const ll_graph *g)
{
    bool plain = !strcmp(r->train.conv, "accurate"), any = !strcmp(r->train.workspace, "auto");
    bool some = plain && any;
    for (int i = 0; i < g->n_node; i++)
        some |= ll_way_list(ll_target_find(r->train.machine), g->nodes[i].op) != NULL;
    const char *key = plain ? "train.workspace" : "train.conv";
    LL_WANT(r, key, some, "%s applies only to convolutions, which model %s does not have", key,
            r->model.name);
    return LL_OK;
}

/* What a run makes of its model's products. A generation reads weights as they are, or packed. */
static ll_err rewrite(const ll_run *r, bool generates, ll_graph **g, ll_val *loss)
{
    bool rounds = r->train.quantize && !generates;
    for (int k = 0; k < 3; k++) {
        ll_graph *with = NULL;
        ll_err rc = LL_OK;
        if (k == 0 && r->train.lora)
            rc = ll_lora(*g, r->train.lora, r->train.lora_on, &with);
        else if (k == 1 && r->train.lora && strcmp(r->train.base, "f32"))
            rc = ll_block_graph(*g, r->train.base, &with);
        else if (k == 2 && rounds)
            rc = ll_round_graph(*g, r->train.quantize == LL_ROUNDING_int8 ? 8 : 4, &with);
        if (rc != LL_OK) return bad_model(r, rc);
        if (!with) continue;
        ll_graph_free(*g);
        *g = with;
        *loss = ll_find_result(*g, "loss");
    }
    return LL_OK;
}

/* Kernels may count on weights that are 2:4 in every step. */
static void tell_pruned(const ll_run *r, ll_graph *g)
{
    ll_prune p;
    if (ll_prune_parse(r->train.prune, &p) != LL_OK || !ll_prune_halves(&p) ||
        *r->train.prune_steps)
        return;
    for (int i = 1; i < g->n_value; i++)
        if (ll_matrix_rows(g, (ll_val){i})) g->values[i].init.two_of_four = true;
}

static ll_err declare(const ll_run *r, ll_build b, const ll_optim *optim, ll_graph **out)
{
    b.model = r->model.def;
    b.prompt = r->train.prompt;
    b.mixed = optim && (r->data.mixup > 0 || r->data.cutmix > 0);
    memcpy(b.sizes, r->model.sizes, sizeof b.sizes);
    LL_OWN(ll_graph) g = ll_graph_new(r->model.name);
    b.g = g;
    CHECK(r->model.def->declare, LL_E_CONFIG, "model %s has no declare function", r->model.name);
    ll_val loss = r->model.def->declare(g, &b);
    int n_batch = 0;
    for (int i = 1; i < g->n_value; i++) n_batch += ll_is_batch(&g->values[i]);
    if (!loss.id) ll_graph_reject(g, "declare returns no loss");
    if (!n_batch) ll_graph_reject(g, "declare has no batch input (ll_batch)");
    if (b.mixed && loss.id && !ll_find(g, "mix").id)
        ll_graph_reject(g, "data.mixup and data.cutmix need a loss of two labels, y and y2, "
                           "weighted by mix (ll_label_loss)");
    if (b.prompt && !b.source && loss.id && !ll_find(g, LL_PROMPT).id)
        ll_graph_reject(g, "train.prompt needs a model that embeds tokens with ll_build_embed, "
                           "such as llama (train.lora works with all models)");
    const char *names[LL_MAX_METRICS + 1];
    if (ll_run_metrics(g, names) > LL_MAX_METRICS)
        ll_graph_reject(g, "more than %d scalar results besides the loss", LL_MAX_METRICS);
    if (loss.id && !b.cache && !ll_find_result(g, "loss").id) ll_graph_result(g, "loss", loss);
    ll_err rc = ll_graph_check(g);
    ll_optim alone;
    if (rc == LL_OK) TRY(rewrite(r, b.cache > 0, &g, &loss));
    tell_pruned(r, g);
    if (rc == LL_OK && optim && *r->train.teacher) TRY(add_teacher(r, g, b.batch, &loss));
    if (rc == LL_OK && optim) {
        ll_minimize(g, loss, with_frozen(r, g, optim, &alone));
        rc = ll_graph_check(g);
    }
    if (rc != LL_OK) return bad_model(r, rc);
    if (optim) TRY(check_conv(r, g));
    return LL_HAND(out, g);
}

ll_err ll_run_graph(const ll_run *r, int64_t batch, const ll_optim *optim, ll_graph **out)
{
    return declare(r, (ll_build){.batch = batch, .training = optim != NULL}, optim, out);
}

ll_err ll_run_generation(const ll_run *r, const ll_build *how, ll_graph **out)
{
    return declare(r, *how, NULL, out);
}

ll_err ll_run_cut(const ll_run *r, const char *mesh)
{
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_graph) part = NULL;
    LL_OWN(ll_cut) c = NULL;
    ll_session_opts o = ll_run_session(r, NULL, mesh);
    o.recompute = NULL; /* no axis cuts less of what is made again */
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    ll_cut_opts how = {.unstaged = true, .canonical = r->parallel.canonical};
    TRY(ll_cut_make(g, &o, &how, &c));
    return ll_cut_part(c, c->place, c->place->mesh.n_rank - 1, &part);
}

#define FROM "data.name data.path data.format" /* what says which data it is */

/* What would bring samples and a model's input together. */
static const char *remedy_for(const ll_run *r, const ll_data_info *info, const char *input)
{
    if (*r->model.loss && !strcmp(input, "y"))
        return strcmp(r->model.loss, "cross_entropy")
                   ? "model.loss=cross_entropy if y holds labels"
                   : "model.loss=mse or l1 if y holds as many numbers as the model has outputs";
    return info->kind == LL_IMAGES
               ? "the model's sizes to the data's, or data.image and data.channels to the model's"
               : "the model's sizes to the data's";
}

/* A batch input's samples against the data's field of its name. */
static ll_err check_input(const ll_run *r, const ll_data_info *info, const ll_value *v)
{
    ll_shape want = {.n = v->type.shape.n - 1};
    const ll_field *f = info->fields;
    CHECK(want.n >= 0, LL_E_SHAPE,
          "model %s: batch data %s has no dimensions: the first must be the sample", r->model.name,
          v->name);
    memcpy(want.d, v->type.shape.d + 1, sizeof(int64_t) * (size_t)want.n);
    while (f < info->fields + info->n_field && strcmp(f->name, v->name)) f++;
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT], has[256] = "";
    for (int i = 0, at = 0; i < info->n_field && at < 200; i++)
        at += snprintf(has + at, sizeof has - (size_t)at, "%s%.64s", i ? ", " : "",
                       info->fields[i].name);
    LL_WANT(r, FROM, f < info->fields + info->n_field,
            "model %s takes batch data %s, but data %s has no field of that name, only %s",
            r->model.name, v->name, info->name, has);
    CHECK(v->type.dtype == f->dtype && ll_shape_equal(&want, &f->shape), LL_E_SHAPE,
          "model %s takes samples of %s%s as %s, but data %s has %s%s: set %s", r->model.name,
          ll_dtype_name(v->type.dtype), ll_shape_print(&want, a), v->name, info->name,
          ll_dtype_name(f->dtype), ll_shape_print(&f->shape, b), remedy_for(r, info, v->name));
    return LL_OK;
}

int ll_run_fields(const ll_graph *g, ll_field out[LL_MAX_FIELDS])
{
    int n = 0;
    LL_EACH (const ll_value, v, g->values + 1, g->n_value - 1) {
        if (!ll_is_batch(v) || v->type.shape.n < 1) continue;
        if (n == LL_MAX_FIELDS) return -1;
        out[n] = (ll_field){v->name, v->type.dtype, {.n = v->type.shape.n - 1}};
        memcpy(out[n].shape.d, v->type.shape.d + 1, sizeof(int64_t) * (size_t)out[n].shape.n);
        n++;
    }
    return n;
}

static ll_err check_samples(const ll_run *r, const ll_data_info *info, const ll_graph *g)
{
    bool tokens = ll_run_takes_tokens(r), other = tokens != (info->kind == LL_TOKENS);
    LL_WANT(r, FROM " model.name", !r->model.def->input || !other || info->kind == LL_RECORDS,
            "model %s takes %s, but data %s has %s", r->model.name, tokens ? "tokens" : "images",
            info->name, tokens ? "images" : "tokens");
    for (int i = 1; i < g->n_value; i++)
        if (ll_is_batch(&g->values[i])) TRY(check_input(r, info, &g->values[i]));
    const ll_size *s = r->model.def->sizes;
    while (s->name && strcmp(s->name, "vocab")) s++;
    LL_WANT(r, "model.vocab", /* one that nobody has chosen is of a tokenizer */
            !info->is_text || !s->name || s->value <= 256 || ll_run_size(r, "vocab", 0) != s->value,
            "data %s holds bytes, but model.vocab is %s's %s%ld: set %sdata.tokenizer", info->name,
            r->model.name, *r->model.loss ? "" : "default ", s->value,
            *r->model.loss ? "" : "model.vocab=256, or ");
    int64_t classes = ll_run_size(r, "classes", info->classes);
    const char *last = info->last_class, *why = last ? last : info->note;
    CHECK(info->kind == LL_TOKENS || !ll_find_result(g, "correct").id || classes >= info->classes,
          LL_E_SHAPE, "data %s has %ld classes, but model.classes is %ld%s%s%s%s", info->name,
          info->classes, classes, why ? " (" : "", last ? "they count from 0; the last one: " : "",
          why ? why : "", why ? ")" : "");
    return LL_OK;
}

static const char *said(const char *text)
{
    return *text ? text : NULL;
}

static ll_data_opts data_opts(const ll_run *r)
{
    const ll_run_data *d = &r->data;
    const ll_source *own = r->model.def->data;
    ll_data_opts o = {.name = said(d->name),
                      .format = said(d->format),
                      .path = said(d->path),
                      .val_path = said(d->val_path),
                      .fields = said(d->fields),
                      .field = d->field,
                      .tokenizer = said(d->tokenizer),
                      .token_bytes = d->token_bytes,
                      .val_fraction = d->val_fraction == 0.05 ? 0 : d->val_fraction,
                      .samples = d->samples,
                      .cache = said(d->cache),
                      .fetch = (int)d->fetch,
                      .delay = d->delay,
                      .seed = (uint64_t)r->train.seed};
    if (own && !*d->format && (!*d->name || !strcmp(d->name, own->name))) o.source = own;
    if (ll_run_takes_tokens(r)) {
        o.seq = ll_run_size(r, "seq", 0);
        o.vocab = ll_run_size(r, "vocab", 0);
    } else {
        o.height = o.width = ll_run_size(r, "image", 0);
        o.channels = ll_run_size(r, "channels", 0);
        o.classes = ll_run_size(r, "classes", 0);
    }
    o.image_height = d->image_height, o.image_width = d->image_width;
    o.image_channels = d->channels;
    o.centre = d->centre;
    o.mixup = d->mixup, o.cutmix = d->cutmix;
    o.n_mean = d->mean.n, o.n_deviation = d->deviation.n;
    memcpy(o.mean, d->mean.v, sizeof o.mean);
    memcpy(o.deviation, d->deviation.v, sizeof o.deviation);
    return o;
}

static bool is_said(const ll_run *r, const char *size)
{
    for (int i = 0; i < r->notes->n_size; i++)
        if (!strcmp(r->notes->sizes[i].name + strlen("model."), size)) return true;
    return false;
}

static void set_size(ll_run *r, const char *name, int64_t value)
{
    for (ll_size *s = r->model.sizes; s->name; s++)
        if (!strcmp(s->name, name)) s->value = value;
}

/* A folder of pictures says how many classes there are; one that is not here is missed when it is
 * opened. */
static ll_err fit_folder(ll_run *r)
{
    LL_OWN(ll_dataset) d = NULL;
    bool other = ll_run_takes_tokens(r) || ll_run_size(r, "classes", -1) < 0;
    if (other || is_said(r, "classes") || !ll_file_exists(r->data.path)) return LL_OK;
    ll_data_opts o = data_opts(r);
    ll_err rc = ll_dataset_open(&o, &d);
    CHECK(rc != LL_E_CONFIG, rc, "%s", ll_run_told(r, FROM, ll_error_message()));
    TRY(rc);
    set_size(r, "classes", ll_dataset_info(d)->classes);
    return LL_OK;
}

static ll_err fit_table(ll_run *r)
{
    enum { MANY_CLASSES = 100 };
    LL_OWN(ll_dataset) d = NULL;
    const bool all = is_said(r, "features") && (is_said(r, "classes") || is_said(r, "outputs"));
    if (ll_run_size(r, "features", -1) < 0 || all) return LL_OK;
    if (is_said(r, "image") || is_said(r, "channels")) return LL_OK;
    ll_data_opts o = data_opts(r);
    ll_err rc = ll_dataset_open(&o, &d);
    CHECK(rc != LL_E_CONFIG, rc, "%s", ll_run_told(r, FROM, ll_error_message()));
    CHECK(rc == LL_OK, rc, "%s%s", ll_error_message(),
          ll_file_exists(r->data.path)
              ? ""
              : " (set model.features, and model.classes or model.outputs, to do without it)");
    const ll_data_info *f = ll_dataset_info(d);
    bool chosen = ll_run_size(r, "outputs", 0) || is_said(r, "classes");
    LL_EACH (const ll_field, x, f->fields, f->n_field) {
        bool y = !strcmp(x->name, "y") && !chosen, whole = x->dtype == LL_I32;
        if (!strcmp(x->name, "x") && f->n_column && !is_said(r, "features"))
            set_size(r, "features", f->n_column);
        if (y && !whole) set_size(r, "outputs", ll_numel(&x->shape));
        if (!y || !whole) continue;
        LL_WANT(r, FROM, !f->mixed,
                "%s, but other labels are: correct it, or set model.classes=%ld if all are names",
                f->mixed, f->classes);
        LL_WANT(r, FROM, f->class_names || f->classes <= MANY_CLASSES,
                "labels are whole numbers up to %ld (%s): set model.outputs=1 to predict the "
                "number, or model.classes=%ld if they are classes",
                f->classes - 1, f->last_class ? f->last_class : f->where, f->classes);
        set_size(r, "classes", f->classes);
    }
    return LL_OK;
}

ll_err ll_run_fit(ll_run *r)
{
    if (!strcmp(r->data.format, "csv")) return fit_table(r);
    if (!strcmp(r->data.format, "images")) return fit_folder(r);
    return LL_OK;
}

ll_err ll_run_dataset(const ll_run *r, ll_dataset **out)
{
    CHECK(r->model.def->data || *r->data.name || *r->data.format, LL_E_CONFIG,
          "%s: model %s has no data of its own: set data.name, or data.path and data.format",
          r->file, r->model.name);
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_dataset) d = NULL;
    LL_OWN(ll_dataset) told = NULL;
    ll_field want[LL_MAX_FIELDS];
    *out = NULL;
    TRY(ll_run_graph(r, 1, NULL, &g));
    ll_data_opts o = data_opts(r);
    if (r->data.told) TRY(ll_told_read(r->data.told, &told));
    o.told = told;
    o.want = want;
    o.n_want = ll_run_fields(g, want);
    CHECK(o.n_want >= 0, LL_E_CONFIG, "model %s takes more than %d inputs", r->model.name,
          LL_MAX_FIELDS);
    ll_err rc = ll_dataset_open(&o, &d);
    CHECK(rc != LL_E_CONFIG, rc, "%s", ll_run_told(r, FROM, ll_error_message()));
    TRY(rc);
    TRY(check_samples(r, ll_dataset_info(d), g));
    return LL_HAND(out, d);
}

/* ---- sessions ---- */

static bool has_pipe(const char *mesh)
{
    ll_mesh m;
    return mesh && ll_mesh_parse(mesh, &m) == LL_OK && ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0;
}

ll_session_opts ll_run_session(const ll_run *r, ll_comm *c, const char *mesh)
{
    /* A run of a pipeline is looked at without one, too; any other is refused. */
    bool pipe = has_pipe(mesh) || !has_pipe(r->parallel.mesh);
    const ll_run_parallel *p = &r->parallel;
    return (ll_session_opts){.threads = (int)r->train.threads,
                             .micro_batches = (int)ll_run_micro_batches(r),
                             .machine = r->train.machine,
                             .precision = ll_precision_name(r->train.precision),
                             .any_order = !r->train.deterministic,
                             .seed = (uint64_t)r->train.seed,
                             .comm = c,
                             .mesh = mesh,
                             .zero = (int)r->parallel.zero,
                             .exact = r->parallel.exact,
                             .compress = r->parallel.compress,
                             .layouts = r->layouts.v,
                             .overlap = r->parallel.overlap,
                             .sequence = r->parallel.sequence,
                             .recompute = r->parallel.recompute,
                             .delay = r->train.delay,
                             .conv = r->train.conv,
                             .workspace = r->train.workspace,
                             .memory = (size_t)r->train.memory_bytes,
                             .offload = *r->train.offload ? r->train.offload : NULL,
                             .transport = r->parallel.transport,
                             .schedule = pipe && *p->schedule ? p->schedule_text : NULL,
                             .virtual_stages = pipe ? (int)p->virtual_stages : 0,
                             .stages = pipe && *p->stages ? p->stages : NULL,
                             .post_validation = pipe && p->post_validation,
                             .note = ll_kern_notes_add,
                             .note_to = r->kernels};
}

ll_err ll_run_compile(const ll_run *r, const ll_session_opts *o, ll_graph **g, ll_session **s)
{
    ll_session_opts bound = *o;
    int64_t micro = r->train.batch / ll_run_micro_batches(r);
    if (o->comm) TRY(ll_bind_rank(o->comm, &bound.threads));
    TRY(ll_ranks_agree(o->comm, ll_run_graph(r, micro, &r->train.optim, g)));
    return ll_session_open(*g, &bound, s);
}

/* ---- batches ---- */

ll_sampling ll_run_sampling(const ll_run *r)
{
    const ll_run_data *d = &r->data;
    ll_sampling s = {.split = LL_TRAIN,
                     .seed = (uint64_t)r->train.seed,
                     .flip = d->flip,
                     .crop = (int)d->crop,
                     .jitter = d->jitter};
    if (d->scale.n) memcpy(s.scale, d->scale.v, sizeof s.scale);
    return s;
}

ll_err ll_run_loader(const ll_run *r, const ll_dataset *d, const ll_session *s, int64_t step,
                     ll_loader **out)
{
    int64_t micro = r->train.batch / ll_run_micro_batches(r);
    int64_t replicas = r->parallel.of ? r->parallel.of : 1;
    ll_loader_opts o = {.batch = r->train.batch * replicas,
                        .start = step,
                        .every = micro * replicas,
                        .threads = (int)r->data.threads,
                        .asked = r->parallel.of && ll_consistency_served(&r->parallel.between),
                        .how = ll_run_sampling(r)};
    ll_session_rows(s, &o.first, &o.count);
    if (!o.asked) o.first += r->parallel.replica * micro;
    return ll_loader_open(d, &o, out);
}

ll_err ll_run_set_batch(const ll_data_info *info, ll_session *s, int micro, int64_t samples,
                        const void *const *data)
{
    for (int i = 0; i < info->n_field; i++) {
        const char *name = info->fields[i].name;
        size_t bytes = (size_t)samples * info->field_bytes[i];
        ll_val v = ll_find(s->g, name); /* a model need not take all there is */
        if (v.id && ll_is_batch(ll_value_of(s->g, v)))
            TRY(ll_session_set(s, name, micro, (const char *)data[i] + (size_t)micro * bytes,
                               bytes));
    }
    return LL_OK;
}

ll_err ll_run_feed(const ll_run *r, const ll_dataset *d, ll_loader *l, ll_session *s)
{
    ll_data_batch b;
    const ll_data_info *info = ll_dataset_info(d);
    int n = (int)ll_run_micro_batches(r);
    TRY(ll_loader_next(l, &b));
    int64_t samples = (int64_t)(b.bytes[0] / info->field_bytes[0]) / n;
    for (int m = 0; m < n; m++) TRY(ll_run_set_batch(info, s, m, samples, b.data));
    return LL_OK;
}

/* Messages of kernels: "label of row 3 is 12, want 0 to 9", "index 5 is -1, ...". */
static bool index_of(const char *message, int64_t *out)
{
    const char *is = strstr(message, " is ");
    return is && sscanf(is, " is %ld", out) == 1;
}

const char *ll_run_blame(const ll_graph *g, const ll_dataset *d, const ll_sampling *how,
                         int64_t from, int64_t n, ll_arena *a)
{
    LL_KEEP_ERROR;
    const ll_data_info *info = ll_dataset_info(d);
    int64_t odd = 0;
    bool index = kept_error.code == LL_E_ARG && index_of(kept_error.message, &odd);
    if (kept_error.code == LL_E_ARG && !index) return NULL;
    void *out[LL_MAX_FIELDS] = {0};
    for (int f = 0; f < info->n_field; f++) {
        ll_val v = ll_find(g, info->fields[f].name);
        bool real = ll_dtype_is_float(info->fields[f].dtype);
        if (v.id && ll_is_batch(ll_value_of(g, v)) && real != index)
            out[f] = ll_arena_alloc(a, info->field_bytes[f]);
    }
    for (int64_t at = from; at < from + n; at++) {
        if (ll_dataset_read(d, how, at, 1, out) != LL_OK) return NULL;
        for (int f = 0; f < info->n_field; f++)
            for (int64_t i = 0; out[f] && i < ll_numel(&info->fields[f].shape); i++) {
                double v = ll_load(out[f], info->fields[f].dtype, i);
                if (index ? v != (double)odd : isfinite(v)) continue;
                return ll_arena_printf(a, "%s is %g",
                                       ll_sample_name(d, how->split, ll_sample_index(d, how, at),
                                                      info->fields[f].name, a),
                                       v);
            }
    }
    return NULL;
}

int ll_run_metrics(const ll_graph *g, const char *names[LL_MAX_METRICS + 1])
{
    static const char *const known[] = {"loss", "grad_norm", "correct", "counted"};
    int n = 0;
    for (int i = 0; i < g->n_result && n <= LL_MAX_METRICS; i++) {
        const char *name = g->results[i].name;
        bool own = ll_value_of(g, g->results[i].value)->type.shape.n == 0;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            own = own && strcmp(name, known[k]);
        if (own) names[n++] = name;
    }
    return n;
}

void ll_run_random(const ll_run *r, uint64_t seed, uint64_t stream, ll_dtype t, int64_t n,
                   void *data)
{
    uint64_t labels = (uint64_t)ll_run_size(r, "classes", ll_run_size(r, "vocab", 2));
    bool real = ll_dtype_is_float(t);
    for (int64_t i = 0; i < n; i++)
        ll_store(data, t, i,
                 real ? ll_normal_at(seed, stream, (uint64_t)i)
                      : (double)ll_below_at(seed, stream, (uint64_t)i, labels));
}
