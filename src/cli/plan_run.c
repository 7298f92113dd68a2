/* plan_run.c: loopline plan RUN --cluster C --ranks N: the search over meshes of a transformer. */
#include "cli/common.h"
#include "cli/plan.h"
#include "mesh/mesh.h"
#include "plan/search.h"
#include "run/setup.h"

/* -1: the model has no such size. */
static double size_of(const ll_run *r, const char *name)
{
    return (double)ll_run_size(r, name, -1);
}

/* One stack of layers, of GPT's kind, BERT's or Llama's: not an encoder and a decoder. */
static bool is_lm(const ll_run *r, ll_lm *m)
{
    *m = (ll_lm){.layers = size_of(r, "layers"),
                 .width = size_of(r, "width"),
                 .heads = size_of(r, "heads"),
                 .seq = size_of(r, "seq"),
                 .vocab = size_of(r, "vocab"),
                 .tied = size_of(r, "tied") != 0,
                 .dropout = size_of(r, "dropout") > 0,
                 .encoder = !strcmp(r->model.def->name, "bert")};
    m->kv_heads = size_of(r, "kv_heads");
    m->ffn = size_of(r, "hidden");
    m->gated = m->kv_heads >= 1; /* of Llama's family */
    if (!m->gated) m->kv_heads = m->heads;
    if (!(m->ffn >= 1)) m->ffn = 4 * m->width;
    bool one = size_of(r, "source") < 0;
    return one && fmin(fmin(m->layers, m->width), fmin(fmin(m->heads, m->seq), m->vocab)) >= 0;
}

/* The axes of a mesh that was given are the only ones; those that it leaves out are 1. */
static ll_err ask_mesh(const char *text, ll_search *s)
{
    ll_mesh m;
    if (!text) return LL_OK;
    TRY(ll_mesh_parse(text, &m));
    const struct {
        ll_axis_kind kind;
        double *to;
    } known[] = {{LL_AXIS_DATA, &s->data},
                 {LL_AXIS_TENSOR, &s->tensor},
                 {LL_AXIS_PIPE, &s->pipe},
                 {LL_AXIS_SEQUENCE, &s->context}};
    int found = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int a = ll_mesh_axis(&m, known[i].kind);
        *known[i].to = a < 0 ? 1 : m.size[a];
        found += a >= 0;
    }
    CHECK(found == m.n, LL_E_ARG,
          "--mesh %s: for a transformer on a cluster only axes data, tensor, pipe and sequence are "
          "predicted",
          text);
    return LL_OK;
}

static ll_err refuse_uncounted(const ll_words *set, const ll_run *r, const ll_lm *m)
{
    const ll_run_train *t = &r->train;
    const ll_run_parallel *p = &r->parallel;
    double window = size_of(r, "window"), head = m->gated ? size_of(r, "head") : 0;
    bool frozen = false;
    for (int i = 0; i < r->params.n; i++) frozen |= strstr(r->params.v[i].layout, "freeze") != NULL;
    const ll_uncounted uncounted[] = {
        {"model.linear", "0", size_of(r, "linear") > 0},
        {"model.window", "0", window > 0 && window < m->seq},
        {"model.head", "0", head > 0 && head * m->heads != m->width},
        {"train.lora", "0", t->lora > 0},
        {"train.prompt", "0", t->prompt > 0},
        {"train.prune", "none", strcmp(t->prune, "none")},
        {"train.quantize", "none", t->quantize},
        {"train.teacher", "", *t->teacher},
        {"train.ema", "0", t->optim.ema > 0},
        {"train.delay", "false", t->delay},
        {"parallel.stages", "", *p->stages},
        {"parallel.post_validation", "false", p->post_validation},
        {"parallel.overlap", "auto", strcmp(p->overlap, "auto")},
        {"parallel.sequence", "auto", strcmp(p->sequence, "auto")},
        {"parallel.compress", "none", strcmp(p->compress, "none")},
        {"parallel.canonical", "false", p->canonical},
        {"parallel.transport", "auto",
         strcmp(p->transport, "auto") && strcmp(p->transport, "nccl")},
        {"train.micro_batch", "0", t->micro_batch && ll_words_said(set, "train.micro_batch")},
        {NULL}};
    TRY(ll_plan_refuse(uncounted, "transformers on a cluster"));
    CHECK(!frozen, LL_E_ARG, "params: plans of transformers on a cluster train all parameters");
    CHECK(!r->layouts.n, LL_E_ARG,
          "layout.%s: plans of transformers on a cluster cut all layers alike: use --cluster this, "
          "or inspect --layouts",
          r->layouts.v[0].pattern);
    return LL_OK;
}

/* Settings that were given fix what is searched; those that no prediction reads are refused. */
static ll_err ask_settings(const ll_words *set, const ll_run *r, ll_search *s)
{
    const ll_run_parallel *p = &r->parallel;
    TRY(refuse_uncounted(set, r, s->model));
    s->memory = r->train.memory_bytes;
    if (ll_words_said(set, "parallel.zero")) s->zero = (int)p->zero;
    if (ll_words_said(set, "parallel.virtual_stages")) s->virtual_stages = (int)p->virtual_stages;
    if (ll_words_said(set, "parallel.schedule")) {
        s->schedule = p->schedule;
        CHECK(strstr(" 1f1b interleaved zb-h1 zb-h2 ", s->schedule), LL_E_ARG,
              "parallel.schedule=%s: plans support 1f1b, interleaved, zb-h1 and zb-h2",
              s->schedule);
    }
    if (ll_words_said(set, "parallel.recompute")) {
        bool none = !strcmp(p->recompute, "none");
        CHECK(none || !strcmp(p->recompute, "full"), LL_E_ARG,
              "parallel.recompute=%s: plans support none and full", p->recompute);
        s->remake = none ? LL_REMAKE_NONE : LL_REMAKE_FULL;
    }
    CHECK(
        !r->parallel.exact, LL_E_ARG,
        "parallel.exact: plans of transformers on a cluster assume plain sums: use --cluster this");
    const char *optimizer = r->train.optim.name;
    CHECK(!strncmp(optimizer, "adam", 4) || !strcmp(optimizer, "lamb"), LL_E_ARG,
          "train.optimizer=%s: plans of transformers on a cluster assume adamw's two moments: use "
          "adam, adamw or lamb",
          optimizer);
    return LL_OK;
}

static ll_training training(const ll_search *s, const ll_candidate *c, double tokens)
{
    double step_tokens = s->batch * s->model->seq;
    const ll_system *y = s->system;
    return ll_train_cost(s->cluster, s->ranks, c->out.step_s, ceil(tokens / step_tokens),
                         c->out.parameters * (y->param_bytes + y->state_bytes));
}

static json_t *training_json(const ll_training *t)
{
    return LL_JSON(LL_IS("hours", t->hours), LL_IS("steps", t->steps), LL_IS("goodput", t->goodput),
                   LL_IS("failures", t->failures), LL_IS("checkpoint_s", t->checkpoint_s),
                   LL_IS("interval_s", t->interval_s), LL_IS("kwh", t->kwh),
                   LL_IS("price", t->price), LL_IS("co2_kg", t->co2_kg));
}

/* What the file says of that is one answer of many. */
static void tell_answered(const ll_plan_results *w)
{
    const ll_run_parallel *p = &w->file->parallel;
    const struct {
        const char *key;
        bool set;
    } of[] = {{"parallel.mesh", *p->mesh},
              {"parallel.zero", p->zero},
              {"parallel.schedule", *p->schedule},
              {"parallel.virtual_stages", p->virtual_stages},
              {"parallel.recompute", strcmp(p->recompute, "none")}};
    const char *before = "";
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i].set && !ll_words_said(&w->o->set, of[i].key)) {
            fprintf(stderr, "%s%s", *before ? before : "The run file's ", of[i].key);
            before = ", ";
        }
    if (*before) fprintf(stderr, ": plans try other values too; -s fixes one\n");
    if (w->file->train.micro_batch)
        fprintf(stderr, "The run file's train.micro_batch is not used: plans choose their own\n");
}

static ll_shown shown(const ll_search *s, const ll_candidate *c, ll_arena *a)
{
    const ll_how *h = &c->how;
    const ll_outcome *o = &c->out;
    return (ll_shown){.mesh = ll_how_mesh(h, (char *)ll_arena_alloc(a, LL_HOW_TEXT)),
                      .schedule = h->pipe > 1 ? ll_how_schedule(h) : "",
                      .recompute = ll_remake_name(h->remake),
                      .micro_batch = (int64_t)h->micro_batch,
                      .n_micro = h->n_micro,
                      .together = (int64_t)(h->micro_batch * h->data),
                      .stages = h->virtual_stages,
                      .zero = h->zero,
                      .offload = h->offload,
                      .fits = c->fits,
                      .step_s = o->step_s,
                      .spread = ll_shown_spread(s->cluster, o->step_s, ll_how_kind(h)),
                      .model = o->model_flops / s->ranks,
                      .hardware = o->hardware_flops / s->ranks,
                      .bytes = o->bytes,
                      .bubble = o->bubble,
                      .exposed_s = o->tensor_s + o->data_s,
                      .moved = o->moved};
}

/* Twice as many as did not do, and so on. */
static const char *enough_ranks(const ll_search *s, ll_arena *arena)
{
    char mesh[LL_HOW_TEXT];
    bool any = !s->data && !s->tensor && !s->pipe && !s->context;
    for (ll_search t = *s; any && t.ranks < 1e5;) {
        LL_OWN(ll_arena) scratch = ll_arena_new();
        ll_found f;
        t.ranks *= 2;
        if (ll_plan_search(&t, scratch, &f) != LL_OK) break;
        if (f.best[0].fits)
            return ll_arena_printf(arena, "--ranks %.0f (%s fits) or another cluster", t.ranks,
                                   ll_how_mesh(&f.best[0].how, mesh));
    }
    return "more ranks or another cluster";
}

typedef struct any_mesh {
    const ll_search *s;
    const ll_how *like; /* NULL: any */
    ll_arena *arena;
} any_mesh;

/* For ll_plan_fewer: any mesh, or the best one's with less of axis data. */
static bool best_of_ranks(const void *context, ll_of_ranks *out)
{
    LL_OWN(ll_arena) scratch = ll_arena_new();
    const any_mesh *q = (const any_mesh *)context;
    ll_search s = *q->s;
    ll_found f;
    char mesh[LL_HOW_TEXT];
    s.ranks = (double)out->ranks;
    s.data = 0;
    if (!q->like) s.tensor = s.pipe = s.context = 0;
    if (q->like) s.tensor = q->like->tensor, s.pipe = q->like->pipe, s.context = q->like->context;
    if (ll_plan_search(&s, scratch, &f) != LL_OK || !f.best[0].fits) return false;
    out->mesh = ll_arena_strdup(q->arena, ll_how_mesh(&f.best[0].how, mesh));
    out->step_s = f.best[0].out.step_s;
    return true;
}

static json_t *plan_json(const ll_plan_results *p, const ll_search *s, const ll_candidate *c, int i)
{
    const ll_outcome *o = &c->out;
    double tokens = (double)p->o->tokens;
    ll_training t = training(s, c, tokens);
    return LL_JSON_ADD(
        ll_plan_json(p, &p->v[i]),
        LL_IS("seconds",
              LL_JSON(LL_IS("compute", o->compute_s - o->tensor_s), LL_IS("tensor", o->tensor_s),
                      LL_IS("data", o->data_s), LL_IS("bubble", o->bubble_s),
                      LL_IS("update", o->update_s), LL_IS("wait", o->wait_s))),
        LL_IF(tokens > 0, "training", training_json(&t)));
}

/* What a change of the cluster would buy, as a part of the best step. */
static ll_err gain(const ll_search *s, const ll_candidate *best, ll_cluster c, double *out)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_search other = *s;
    ll_found f;
    other.cluster = &c;
    other.data = best->how.data, other.tensor = best->how.tensor;
    other.pipe = best->how.pipe, other.context = best->how.context;
    TRY(ll_plan_search(&other, arena, &f));
    *out = 1 - f.best[0].out.step_s / best->out.step_s;
    return LL_OK;
}

typedef struct advice {
    double link, network, bandwidth,
        memory; /* part of the step that 10 % or 1 GiB more would save */
} advice;

static ll_err advise(const ll_search *s, const ll_found *f, advice *a)
{
    const ll_candidate *best = &f->best[0];
    ll_cluster link = *s->cluster, network = *s->cluster, memory = *s->cluster;
    link.node.link *= 1.1, network.network.gbps *= 1.1, memory.chip.bandwidth *= 1.1;
    TRY(gain(s, best, link, &a->link));
    TRY(gain(s, best, network, &a->network));
    TRY(gain(s, best, memory, &a->bandwidth));
    ll_search more = *s;
    ll_cluster larger = *s->cluster;
    larger.chip.memory += 1.073741824;
    if (more.memory > 0) more.memory += 1073741824;
    more.cluster = &larger;
    a->memory = 0;
    LL_EACH (const ll_candidate, c, f->best, f->n)
        if (!c->fits && ll_plan_fits(&more, &c->out))
            a->memory = fmax(a->memory, 1 - c->out.step_s / best->out.step_s);
    return LL_OK;
}

static void print_parts(const ll_candidate *c)
{
    const ll_outcome *o = &c->out;
    double all = o->step_s / 100;
    const char *within = c->how.context <= 1  ? "tensor"
                         : c->how.tensor <= 1 ? "sequence"
                                              : "tensor and sequence";
    fprintf(stderr,
            "  arithmetic and memory %.1f %%, %s %.1f %%, data %.1f %%, bubble %.1f %%, update "
            "%.1f %%, slowest rank %.1f %%\n",
            (o->compute_s - o->tensor_s) / all, within, o->tensor_s / all, o->data_s / all,
            o->bubble_s / all, o->update_s / all, o->wait_s / all);
}

static void explain(const ll_search *s, const ll_found *f, const advice *a, double tokens)
{
    const ll_candidate *b = &f->best[0], *next = NULL;
    char mesh[LL_HOW_TEXT];
    for (int i = 1; i < f->n && !next; i++)
        if (f->best[i].fits &&
            (f->best[i].how.tensor != b->how.tensor || f->best[i].how.pipe != b->how.pipe ||
             f->best[i].how.context != b->how.context))
            next = &f->best[i];
    fprintf(stderr, "\nThe best plan is bound by %s:\n", ll_outcome_bound(&b->out));
    print_parts(b);
    fprintf(stderr,
            "  tensors: weights %s, gradients %s, optimizer %s, activations %s, buffers %s\n",
            LL_BYTES(b->out.bytes.weights), LL_BYTES(b->out.bytes.gradients),
            LL_BYTES(b->out.bytes.optimizer), LL_BYTES(b->out.bytes.activations),
            LL_BYTES(b->out.bytes.buffers));
    if (next) {
        fprintf(stderr, "The next best mesh, %s, takes %.1f %% longer:\n",
                ll_how_mesh(&next->how, mesh), 100 * (next->out.step_s / b->out.step_s - 1));
        print_parts(next);
    }
    fprintf(stderr,
            "1 GiB more on each chip would save %.1f %% of a step; 10 %% more bandwidth within "
            "nodes %.1f %%,\nbetween nodes %.1f %%, of the chips' memory %.1f %%.\n",
            100 * a->memory, 100 * a->link, 100 * a->network, 100 * a->bandwidth);
    if (tokens <= 0) return;
    ll_training t = training(s, b, tokens);
    bool long_one = t.hours >= 48;
    fprintf(stderr,
            "%s tokens: %.0f steps in %.3g %s with %.2g failures (goodput %.1f %%, a checkpoint of "
            "%.1f s every %.0f min),\n  %.3g kWh, %.3g kg of CO2, price %.3g "
            "(in the currency of the cluster file)\n",
            LL_AMOUNT(tokens), t.steps, long_one ? t.hours / 24 : t.hours,
            long_one ? "days" : "hours", t.failures, 100 * t.goodput, t.checkpoint_s,
            t.interval_s / 60, t.kwh, t.co2_kg, t.price);
}

static ll_err print_json(const ll_plan_results *p, const ll_search *s, const ll_found *f,
                         const advice *a)
{
    json_t *plans = LL_JSON_LIST(i, p->n, plan_json(p, s, &f->best[i], (int)i));
    return ll_cli_json(LL_JSON_ADD(
        ll_plan_results_json(p, plans, ll_outcome_bound(&f->best[0].out)),
        LL_IS("saves", LL_JSON(LL_IS("memory_1gib", a->memory), LL_IS("link_10_percent", a->link),
                               LL_IS("network_10_percent", a->network),
                               LL_IS("memory_bandwidth_10_percent", a->bandwidth)))));
}

static ll_err plan(ll_plan_results *p, const ll_lm *m)
{
    enum { MANY = 4000 }; /* plans, that take a second or so */
    const ll_plan_opts *o = p->o;
    const ll_run *r = p->run;
    ll_found f;
    advice a;
    ll_search s = {.cluster = p->cluster,
                   .model = m,
                   .system = &ll_system_loopline,
                   .precision = r->train.precision,
                   .ranks = (double)o->ranks,
                   .batch = (double)r->train.batch,
                   .zero = -1,
                   .remake = -1,
                   .nccl = ll_plan_machine(p->cluster) != NULL};
    TRY(ask_mesh(o->mesh, &s));
    TRY(ask_settings(&o->set, r, &s));
    TRY(ll_plan_search(&s, p->arena, &f));
    TRY(advise(&s, &f, &a));
    p->n = o->top < f.n ? (int)o->top : f.n;
    p->v = LL_NEW_ARRAY(p->arena, ll_shown, p->n);
    for (int i = 0; i < p->n; i++) p->v[i] = shown(&s, &f.best[i], p->arena);
    p->tried = f.tried;
    p->parameters = f.best[0].out.parameters;
    const ll_how *like = o->mesh || f.tried > MANY ? &f.best[0].how : NULL; /* as alike, or soon */
    ll_plan_fewer(p, best_of_ranks, &(any_mesh){&s, like, p->arena});
    CHECK(!o->trace || f.best[0].how.pipe > 1, LL_E_ARG,
          "--trace needs a pipeline, but the best plan has none: use --mesh");
    if (o->report) TRY(ll_plan_report(o->report, p, &s, &f.best[0], (double)o->tokens));
    if (o->trace) TRY(ll_plan_trace(o->trace, &s, &f.best[0]));
    if (o->json) return print_json(p, &s, &f, &a);
    ll_plan_table(p);
    tell_answered(p);
    /* of what does not fit, the first has fewest */
    TRY(ll_plan_check_fits(p, ll_lm_bytes_tensors(&p->v[0].bytes),
                           p->v[0].fits ? "" : enough_ranks(&s, p->arena)));
    explain(&s, &f, &a, (double)o->tokens);
    if (p->scaling) fprintf(stderr, "%s\n", p->scaling);
    ll_plan_tell_train(p);
    return LL_OK;
}

ll_err ll_plan_run(const ll_plan_opts *o)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_run) file = NULL;
    LL_OWN(ll_cluster) c = NULL;
    ll_lm m;
    CHECK(o->clusters.n == 1, LL_E_ARG,
          "expected one --cluster: a bundled cluster's name, or a file");
    TRY(ll_plan_cluster(o->clusters.v[0], &c));
    bool here = !strcmp(c->name, "this");
    ll_words set = {LL_NEW_ARRAY(a, const char *, o->set.n + 2), o->set.n};
    if (set.n) memcpy(set.v, o->set.v, sizeof *set.v * (size_t)set.n);
    const char *machine = ll_plan_machine(c);
    const char *said = ll_words_said(&o->set, "train.machine");
    CHECK(here || !said || (machine && !strcmp(said, machine)), LL_E_ARG,
          "train.machine=%s: cluster %s has %s: leave it out, or use --cluster this for CPUs", said,
          c->name, c->chip.name);
    if (!here) /* precisions are the cluster's */
        set.v[set.n++] = ll_arena_printf(a, "train.machine=%s", ll_target_device()->name);
    const bool chooses = !here && !ll_words_said(&o->set, "train.micro_batch");
    if (chooses) set.v[set.n++] = "train.micro_batch=0"; /* a file's may not divide another batch */
    TRY(ll_cli_run(o->run, &set, true, &r));
    if (chooses && !is_lm(r, &m)) {
        ll_run_free(r), r = NULL;
        set.n--;
        TRY(ll_cli_run(o->run, &set, true, &r));
    }
    CHECK(r->parallel.replicas == 1, LL_E_ARG,
          "a plan is for one replica, but the run has %ld: leave out parallel.replicas, and give "
          "--ranks for one of them",
          r->parallel.replicas);
    const ll_cluster mine = ll_cluster_own(c);
    CHECK(ll_chip_peak(&mine.chip, r->train.precision) > 0, LL_E_ARG,
          "chip %s has no matrix products in %s", c->chip.name,
          ll_precision_name(r->train.precision));
    TRY(ll_cli_load(o->run, true, &file));
    ll_plan_opts own = *o;
    if (!o->mesh && ll_words_said(&o->set, "parallel.mesh") && *r->parallel.mesh)
        own.mesh = r->parallel.mesh;
    ll_mesh mesh;
    TRY(ll_mesh_parse(own.mesh ? own.mesh : "", &mesh));
    if (own.mesh && !own.ranks) own.ranks = mesh.n_rank;
    CHECK(own.ranks, LL_E_ARG, "expected --ranks N (chips of cluster %s) or --mesh", c->name);
    CHECK(!own.mesh || mesh.n_rank == own.ranks, LL_E_ARG,
          "--mesh %s needs %d ranks, but --ranks is %ld", own.mesh, mesh.n_rank, own.ranks);
    ll_plan_results p = {.o = &own, .run = r, .file = file, .cluster = &mine, .arena = a};
    if (ll_run_takes_tokens(r)) p.seq = ll_run_size(r, "seq", 0);
    if (here || !is_lm(r, &m)) return ll_plan_graph(&p, &mesh); /* compiled and replayed */
    LL_OWN(ll_graph) g = NULL;
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), NULL, &g));
    m.counted = (double)ll_cli_numbers(g, LL_PARAM, NULL);
    return plan(&p, &m);
}
