/* common.c: what several commands do. */
#include "cli/common.h"

#include "base/file.h"
#include "comm/job.h"
#include "kern/blocks.h"
#include "kern/notes.h"
#include "run/setup.h"
#include "train/progress.h"
#include "weights/state.h"
#include "weights/weights_load.h"

#include <errno.h>
#include <omp.h>
#include <sys/stat.h>

/* Where models do as well as runs, one whose name begins as what has no run: "lenet". */
static ll_err load_run(const char *what, bool models, ll_run **out)
{
    static const char unknown[] = "no run named ";
    ll_err rc = ll_run_load(what, out);
    if (rc == LL_OK || !models || strncmp(ll_error_message(), unknown, strlen(unknown))) return rc;
    for (const ll_model *const *m = ll_model_all(); *m && strlen(what) > 2; m++)
        CHECK(strncmp((*m)->name, what, strlen(what)), rc,
              "no model or run named '%s'; did you mean %s?", what, (*m)->name);
    return rc;
}

ll_err ll_cli_load(const char *what, bool models, ll_run **out)
{
    const ll_model *m = ll_model_find(what); /* one that has data is a run as it stands */
    if (!m || (!models && !m->data)) return load_run(what, models, out);
    char text[128];
    snprintf(text, sizeof text, "model: {name: %s}\n", what);
    TRY(ll_run_parse(text, strlen(text), what, out));
    bool tokens = !m->input || !strcmp(m->input, "tokens");
    return ll_run_set(*out, tokens ? "train.optimizer=adamw" : "train.optimizer=momentum");
}

static bool exists(const char *folder, const char *file)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    return ll_file_exists(ll_arena_printf(a, "%s/%s", folder, file));
}

/* Where a run is wanted, models of others and weights alone are named now and then. */
static ll_err check_ours(const char *what)
{
    if (ll_cli_holds_run(what)) return LL_OK; /* whatever its name */
    bool theirs =
        ll_ends_with(what, ".gguf") || ll_ends_with(what, ".onnx") || exists(what, "config.json");
    CHECK(!theirs, LL_E_ARG,
          "%s is a model in another format: make a run of it with loopline import %s --out DIR",
          what, what);
    CHECK(!ll_ends_with(what, ".safetensors"), LL_E_ARG,
          "%s is a file of weights, not a run: name a run and give this file with --checkpoint "
          "(train: --init)",
          what);
    return LL_OK;
}

ll_err ll_cli_run(const char *what, const ll_words *set, bool models, ll_run **out)
{
    LL_OWN(ll_run) r = NULL;
    *out = NULL;
    TRY(check_ours(what));
    TRY(ll_cli_load(what, models, &r));
    for (int i = 0; i < set->n; i++) TRY(ll_run_set(r, set->v[i]));
    TRY(ll_run_finish(r));
    TRY(ll_run_fit(r));
    return LL_HAND(out, r);
}

ll_err ll_cli_run_one(const char *what, const ll_words *set, bool models, ll_run **out)
{
    TRY(ll_cli_run(what, set, models, out));
    CHECK((*out)->parallel.replicas == 1, LL_E_ARG,
          "%s works on one replica, but the run has %ld: use --set parallel.replicas=1, "
          "parallel.consistency=sync and a replica's train.batch",
          ll_cli_name(), (*out)->parallel.replicas);
    return LL_OK;
}

int ll_cli_threads(const ll_run *r, int64_t ranks)
{
    int each = ranks > 1 ? (int)(omp_get_num_procs() / ranks) : omp_get_max_threads();
    return r->train.threads ? (int)r->train.threads : each > 1 ? each : 1;
}

ll_err ll_cli_ranks(const ll_run *r, int64_t ranks, const ll_care *care, ll_comm **out)
{
    enum { MANY = 4096 }; /* whether there is room for so many is asked first */
    char mesh[LL_MESH_TEXT];
    if (ranks) TRY(ll_run_mesh(r, (int)ranks, mesh)); /* rather than by every rank */
    ll_run own = ll_run_replica(r, 0);
    if (ranks > 1 && ranks <= MANY && ll_job_size() <= 1) TRY(ll_run_cut(&own, mesh));
    TRY(ll_cli_launch(ranks, care));
    ll_comm_opts how = ll_run_comm(r);
    return ll_comm_open(&how, out);
}

bool ll_cli_began(const char *folder)
{
    return exists(folder, "checkpoints") || exists(folder, "metrics.jsonl");
}

bool ll_cli_holds_run(const char *folder)
{
    return exists(folder, "run.yaml") || ll_cli_began(folder);
}

const char *ll_cli_above(ll_arena *a, const char *path)
{
    int n = (int)(ll_base_name(path) - path);
    return n ? ll_arena_printf(a, "%.*s", n, path) : "./";
}

ll_err ll_cli_spare(const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *folder = ll_cli_above(a, path);
    if (!ll_file_exists(path) || ll_is_folder(path)) return LL_OK;
    bool run = exists(folder, "run.yaml") || exists(folder, "../run.yaml");
    CHECK(!run, LL_E_ARG, "%s belongs to a run: give another name, or remove it first", path);
    return LL_OK;
}

/* Makes the folder; false: somebody has it. What else goes wrong is seen when it is used. */
static bool claim(const char *folder)
{
    if (ll_mkdirs_above(folder) != LL_OK) return true;
    return mkdir(folder, 0777) == 0 || errno != EEXIST;
}

const char *ll_cli_numbered(ll_run *r, bool newest)
{
    const char *base = r->out, *name = base;
    for (int i = 2; i < 100000; i++) {
        const char *next = ll_arena_printf(r->arena, "%s-%d", base, i);
        if (newest && !ll_cli_holds_run(next)) return name;
        if (!newest && claim(name)) return name;
        name = next;
    }
    return base;
}

ll_err ll_cli_json(json_t *value)
{
    CHECK(value, LL_E_MEM, "not enough memory for JSON");
    int rc = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(value);
    CHECK(rc == 0 && putchar('\n') != EOF && fflush(stdout) == 0, LL_E_IO,
          "standard output cannot be written");
    return LL_OK;
}

void ll_cli_calibrating(void *context, int64_t window, int64_t of, double each_s)
{
    ll_progress **p = (ll_progress **)context;
    if (!*p) *p = ll_progress_new(&(ll_progress_opts){.total = of});
    ll_progress_step(*p, &(ll_step_stats){.word = "calibration: window",
                                          .step = window,
                                          .loss = NAN,
                                          .norm = NAN,
                                          .lr = NAN,
                                          .step_s = each_s});
    if (window < of) return;
    ll_progress_free(*p); /* ends its line */
    *p = NULL;
}

json_t *ll_cli_shape(const ll_shape *s)
{
    return LL_JSON_LIST(i, s->n, s->d[i]);
}

int64_t ll_cli_numbers(const ll_graph *g, ll_kind kind, int64_t *tensors)
{
    int64_t n = 0, sum = 0;
    LL_EACH (const ll_value, v, g->values + 1, g->n_value - 1)
        if (v->node < 0 && v->kind == kind)
            n++, sum += ll_block_numbers(v->name, v->type.dtype, &v->type.shape);
    if (tensors) *tensors = n;
    return sum;
}

ll_err ll_cli_checkpoint(const char *folder, const char *checkpoint, ll_st_file **out)
{
    if (checkpoint) return ll_checkpoint_open(NULL, checkpoint, out);
    TRY(ll_checkpoint_open_latest(NULL, folder, out));
    CHECK(*out, LL_E_IO, "%s has no checkpoint: train it first (loopline train)", folder);
    return LL_OK;
}

static bool first_rank(const ll_session *s)
{
    return !s->opts.comm || ll_comm_rank(s->opts.comm) == 0;
}

static ll_err load_weights(const ll_run *r, const char *path, ll_session *s)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_weights_from from = {path, r->train.init_map, r->train.init_skip};
    const char *note;
    TRY(ll_weights_load(s, &from, a, &note));
    if (first_rank(s)) fprintf(stderr, "%s\n", note);
    return LL_OK;
}

/* ---- what weights were trained as ---- */

/* Have both inputs of this kind of the same shapes? */
static bool same_inputs(const ll_graph *a, const ll_graph *b, ll_kind kind)
{
    const ll_graph *both[] = {a, b, a};
    for (int k = 0; k < 2; k++) {
        LL_EACH (const ll_value, v, both[k]->values + 1, both[k]->n_value - 1) {
            if (v->node >= 0 || v->kind != kind) continue;
            const ll_value *other = both[k + 1]->values + ll_find(both[k + 1], v->name).id;
            if (other->kind != kind || !ll_shape_equal(&v->type.shape, &other->type.shape))
                return false;
        }
    }
    return true;
}

/* The run's evaluation with these sizes; NULL: such a model cannot be. */
static ll_graph *graph_with(ll_run r, const ll_size *sizes)
{
    ll_graph *g;
    memcpy(r.model.sizes, sizes, LL_MAX_SIZES * sizeof *sizes);
    return ll_run_graph(&r, 1, NULL, &g) == LL_OK ? g : NULL;
}

/* Sizes that no tensor shows, and that are not a sample's (model.seq, model.image), say what the
 * weights mean: with others a model computes, but not what was trained. Those that tensors do show
 * are told of as they are read. */
static ll_err check_sizes(const ll_run *was, const ll_run *now)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_size samples[LL_MAX_SIZES], all[LL_MAX_SIZES];
    const ll_size *odd = NULL, *own = was->model.sizes;
    if (strcmp(was->model.name, now->model.name)) return LL_OK;
    LL_OWN(ll_graph) before = NULL;
    memcpy(samples, own, sizeof samples);
    memcpy(all, own, sizeof all);
    for (int i = 0; own[i].name; i++) {
        ll_size one[LL_MAX_SIZES];
        memcpy(one, own, sizeof one);
        all[i].value = one[i].value = ll_run_size(now, own[i].name, own[i].value);
        if (one[i].value == own[i].value) continue;
        if (!before && !(before = graph_with(*was, own))) return LL_OK;
        LL_OWN(ll_graph) g = graph_with(*was, one);
        if (g && !same_inputs(before, g, LL_BATCH))
            samples[i].value = one[i].value;
        else if (!odd && (!g || strcmp(ll_print(g, a), ll_print(before, a))))
            odd = &own[i];
    }
    if (!odd) return LL_OK;
    LL_OWN(ll_graph) meant = graph_with(*was, samples);
    LL_OWN(ll_graph) made = graph_with(*was, all);
    if (!meant || !made || !same_inputs(meant, made, LL_PARAM)) return LL_OK;
    FAIL(LL_E_CONFIG,
         "model.%s is %ld, but %.*s was trained with %ld, and its weights would mean something "
         "else: only sample sizes (model.seq, model.image) may differ; --init FILE takes weights "
         "for another model",
         odd->name, ll_run_size(now, odd->name, 0), (int)(strlen(was->file) - strlen("/run.yaml")),
         was->file, odd->value);
}

/* As the folder says that the weights are in. */
static ll_err check_meaning(const ll_trained_opts *o, const ll_run *r)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *file =
        o->checkpoint ? o->checkpoint : ll_arena_printf(a, "%s/checkpoints/", r->out);
    LL_OWN(ll_run) was = ll_run_of_checkpoint(file);
    return was ? check_sizes(was, r) : LL_OK;
}

/* Settings that only a step of training reads are not taken as if they did something. */
static ll_err refuse_training(const ll_words *set)
{
    static const char only[] =
        "train.steps train.epochs train.lr train.momentum train.beta1 train.beta2 train.eps "
        "train.weight_decay train.no_decay train.clip train.clip_value train.trust train.schedule "
        "train.warmup train.min_lr train.step_size train.step_gamma train.milestones "
        "train.scale_rule train.base_batch train.eval_every train.save_every train.save_beside "
        "train.keep train.buddy train.spike train.spike_action train.compare train.patience "
        "train.log_every train.prune train.prune_steps data.flip data.crop data.scale data.jitter "
        "data.mixup data.cutmix";
    for (int i = 0; i < set->n; i++) {
        int n = (int)strcspn(set->v[i], "=");
        if (!strcmp(set->v[i], "train.prune=none")) continue; /* GPUs hold weights to the rule */
        CHECK(!ll_lists(only, ' ', set->v[i], (size_t)n), LL_E_ARG,
              "--set %s: %.*s applies only to training; %s does not read it", set->v[i], n,
              set->v[i], ll_cli_name());
    }
    return LL_OK;
}

ll_err ll_cli_trained_run(const ll_trained_opts *o, ll_run **out)
{
    const ll_words *set = &o->set;
    TRY(refuse_training(set));
    CHECK(!o->checkpoint || !o->init, LL_E_ARG, "--checkpoint cannot be combined with --init");
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_words all = {LL_NEW_ARRAY(a, const char *, set->n + 3)};
    if (o->init) { /* what the run says of them is of the weights that it began with */
        all.v[all.n++] = "train.init_map=";
        all.v[all.n++] = "train.init_skip=";
        all.v[all.n++] = ll_arena_printf(a, "train.init=%s", o->init);
    }
    for (int i = 0; i < set->n; i++) all.v[all.n++] = set->v[i];
    TRY(ll_cli_run(o->folder, &all, o->init != NULL, out));
    if (!(*out)->out_said) (*out)->out = ll_cli_numbered(*out, true);
    if (!o->init && exists((*out)->out, "data.json"))
        (*out)->data.told = ll_arena_printf((*out)->arena, "%s/data.json", (*out)->out);
    if (ll_words_said(set, "data.val_path") && !ll_words_said(set, "data.val_fraction"))
        (*out)->data.val_fraction = 0; /* these files, in place of what was held out */
    return o->init ? LL_OK : check_meaning(o, *out);
}

ll_session_opts ll_cli_trained_session(const ll_run *r, ll_comm *c, const char *mesh)
{
    ll_session_opts o = ll_run_session(r, c, mesh);
    o.micro_batches = 1;
    o.compress = NULL;
    o.recompute = NULL;
    o.memory = 0;
    o.offload = NULL;
    o.layouts = NULL; /* of a mesh, and some of them of a training graph's values */
    o.any_order = false;
    return o;
}

ll_err ll_cli_trained_load(const ll_run *r, const ll_trained_opts *o, ll_session *s, int64_t *step)
{
    if (o->init) return load_weights(r, o->init, s);
    if (!o->checkpoint && *r->train.init && !ll_cli_began(r->out))
        return load_weights(r, r->train.init, s); /* those that it will begin with */
    LL_OWN(ll_st_file) f = NULL;
    TRY(ll_cli_checkpoint(r->out, o->checkpoint, &f));
    if (r->parallel.between.seeds == LL_SEEDS_own && first_rank(s))
        fprintf(stderr, "an ensemble: using its first member's parameters (eval averages the "
                        "predictions of all members)\n");
    return ll_session_take(s, f, step);
}

ll_err ll_cli_trained(const ll_trained_opts *o, ll_trained *t)
{
    const char *mesh = ll_words_said(&o->set, "parallel.mesh");
    TRY(ll_cli_trained_run(o, &t->run));
    CHECK(!mesh || !*mesh, LL_E_ARG,
          "--set parallel.mesh=%s: %s runs in one process, whatever mesh trained the run: leave it "
          "out",
          mesh, ll_cli_name());
    TRY(ll_run_graph(t->run, 1, NULL, &t->g));
    ll_session_opts how = ll_cli_trained_session(t->run, NULL, NULL);
    TRY(ll_session_open(t->g, &how, &t->s));
    ll_kern_notes_print(t->run->kernels, stderr);
    return ll_cli_trained_load(t->run, o, t->s, &t->step);
}

void ll_cli_trained_close(ll_trained *t)
{
    ll_session_close(t->s);
    ll_graph_free(t->g);
    ll_run_free(t->run);
}
