/* common.c: what several commands do. */
#include "cli/common.h"

#include "base/file.h"
#include "base/text.h"
#include "cli/launch.h"
#include "comm/job.h"
#include "kern/notes.h"
#include "train/state.h"
#include "train/weights_load.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static ll_err load(const char *what, bool models, ll_run **out)
{
    const ll_model *m = ll_model_find(what); /* one that has data is a run as it stands */
    if (!m || (!models && !m->data)) return ll_run_load(what, out);
    char text[128];
    snprintf(text, sizeof text, "model: {name: %s}\n", what);
    TRY(ll_run_parse(text, strlen(text), what, out));
    bool tokens = !m->input || !strcmp(m->input, "tokens");
    return ll_run_set(*out, tokens ? "train.optimizer=adamw" : "train.optimizer=momentum");
}

static bool exists(const char *folder, const char *file)
{
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return stat(path, &st) == 0;
}

/* Where a run is wanted, models of others and weights alone are named now and then. */
static ll_err check_ours(const char *what)
{
    bool theirs = ll_ends_with(what, ".gguf") || ll_ends_with(what, ".onnx") ||
                  (exists(what, "config.json") && !ll_cli_holds_run(what));
    CHECK(!theirs, LL_E_ARG, "%s is a model of others: loopline import %s --out DIR makes a run",
          what, what);
    CHECK(!ll_ends_with(what, ".safetensors"), LL_E_ARG,
          "%s is a file of weights: name a run, and it by --checkpoint or --init", what);
    return LL_OK;
}

ll_err ll_cli_run(const char *what, const ll_words *set, bool models, ll_run **out)
{
    LL_OWN(ll_run) r = NULL;
    *out = NULL;
    TRY(check_ours(what));
    TRY(load(what, models, &r));
    for (int i = 0; i < set->n; i++) TRY(ll_run_set(r, set->v[i]));
    TRY(ll_run_finish(r));
    return LL_HAND(out, r);
}

ll_err ll_cli_run_one(const char *what, const ll_words *set, bool models, ll_run **out)
{
    TRY(ll_cli_run(what, set, models, out));
    CHECK((*out)->parallel.replicas == 1, LL_E_ARG,
          "%s looks at one mesh, and the run has %lld replicas: --set parallel.replicas=1, "
          "parallel.consistency=sync and a replica's train.batch show one of them",
          ll_cli_name(), (long long)(*out)->parallel.replicas);
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

ll_err ll_cli_spare(const char *path)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    struct stat st;
    char *folder = ll_arena_strdup(a, path), *slash = strrchr(folder, '/');
    if (stat(path, &st) != 0 || S_ISDIR(st.st_mode)) return LL_OK;
    if (slash)
        *slash = '\0';
    else
        folder = ll_arena_strdup(a, ".");
    bool run = exists(folder, "run.yaml") || exists(folder, "../run.yaml");
    CHECK(!run, LL_E_ARG, "%s is a file of a run: give another name, or remove it first", path);
    return LL_OK;
}

/* Makes the folder; false: somebody has it already. What else goes wrong is seen when it is used.
 */
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
    CHECK(value, LL_E_MEM, "no memory for JSON");
    int rc = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(value);
    CHECK(rc == 0 && putchar('\n') != EOF && fflush(stdout) == 0, LL_E_IO,
          "standard output cannot be written");
    return LL_OK;
}

json_t *ll_cli_shape(const ll_shape *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++) json_array_append_new(list, json_integer(s->d[i]));
    return list;
}

ll_err ll_cli_checkpoint(const char *folder, const char *checkpoint, ll_st_file **out)
{
    if (checkpoint) return ll_checkpoint_open(NULL, checkpoint, out);
    TRY(ll_checkpoint_open_latest(NULL, folder, out));
    CHECK(*out, LL_E_IO, "%s has no checkpoint: train first (loopline train)", folder);
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

ll_err ll_cli_trained_run(const ll_trained_opts *o, ll_run **out)
{
    const ll_words *set = &o->set;
    CHECK(!o->checkpoint || !o->init, LL_E_ARG, "--checkpoint and --init exclude each other");
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_words all = {LL_NEW_ARRAY(a, const char *, set->n + 2)};
    if (o->init) { /* what the run says of them is of the weights that it began with */
        all.v[all.n++] = "train.init_map=";
        all.v[all.n++] = "train.init_skip=";
    }
    for (int i = 0; i < set->n; i++) all.v[all.n++] = set->v[i];
    TRY(ll_cli_run(o->folder, &all, o->init != NULL, out));
    if (!(*out)->out_said) (*out)->out = ll_cli_numbered(*out, true);
    return LL_OK;
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
    if (!strcmp(r->parallel.between.seeds, "own") && first_rank(s))
        fprintf(stderr, "an ensemble: its first member's parameters (eval averages what all "
                        "members predict)\n");
    return ll_session_take(s, f, step);
}

ll_err ll_cli_trained(const ll_trained_opts *o, ll_trained *t)
{
    TRY(ll_cli_trained_run(o, &t->run));
    TRY(ll_run_graph(t->run, 1, NULL, &t->g));
    ll_session_opts how = ll_cli_trained_session(t->run, NULL, NULL);
    TRY(ll_session_open(t->g, &how, &t->s));
    ll_kern_notes_print(stderr);
    return ll_cli_trained_load(t->run, o, t->s, &t->step);
}

void ll_cli_trained_close(ll_trained *t)
{
    ll_session_close(t->s);
    ll_graph_free(t->g);
    ll_run_free(t->run);
}
