/* plan_graph.c: loopline plan of models that are no transformers on a cluster: ways to train them,
 * compiled and replayed (cli/plan_try.h), as tables and as lines of run files. */
#include "cli/common.h"
#include "cli/plan.h"
#include "cli/plan_try.h"
#include "comm/job.h"
#include "plan/published.h"
#include "run/setup.h"

/* What a run file that trains so has, and nothing else on standard output. */
static void print_lines(const ll_run *r, const ll_tried *o)
{
    printf("parallel: {mesh: \"%s\"", o->way.mesh);
    if (o->way.zero) printf(", zero: %d", o->way.zero);
    if (o->way.recompute && strcmp(o->way.recompute, "none"))
        printf(", recompute: %s", o->way.recompute);
    if (r->parallel.exact) printf(", exact: true");
    if (strcmp(r->parallel.sequence, "auto")) printf(", sequence: %s", r->parallel.sequence);
    printf("}\n");
    for (const ll_layout_rule *l = o->way.layouts; l && l->pattern; l++)
        printf("%s  \"%s\": %s\n", l == o->way.layouts ? "layout:\n" : "", l->pattern, l->layout);
}

/* Convolutions of 32-bit numbers that run on tensor units want channels last, and frameworks that
 * keep them first (PyTorch, unless told otherwise) turn every operand on its way in and out. */
static double turns(const ll_chip *c, const ll_program *p)
{
    double s = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_op *op = p->instrs[i].kernel.run ? ll_op_find(p->instrs[i].op) : NULL;
        if (op && op->work == LL_WORK_CONVOLUTION)
            s += ll_cost_stream(c, 2 * p->instrs[i].bytes, 1);
    }
    return s;
}

/* Of published rows: "ResNet-50 v1.5 (224x224)". Of 16 bits a number moves half of what it does in
 * the program, which is of f32. */
ll_err ll_plan_images(const char *model, const ll_cluster *c, ll_precision precision, int samples,
                      bool fused, double *seconds, double *bytes, double *gradients)
{
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_program) p = NULL;
    char text[128];
    bool half = precision == LL_PRECISION_bf16;
    CHECK(!strncmp(model, "ResNet-50", 9), LL_E_ARG,
          "of image models only ResNet-50 can be compiled");
    snprintf(text, sizeof text,
             "model: {name: resnet50}\ndata: {name: synthetic}\n"
             "train: {batch: %d}\n",
             samples);
    TRY(ll_run_parse(text, strlen(text), "row", &r));
    TRY(ll_run_finish(r));
    TRY(ll_run_graph(r, samples, &r->train.optim, &g));
    ll_lower_opts l = {.target = ll_target_find(NULL), .threads = 1, .n_micro = 1};
    l.no_fuse = !fused;
    TRY(ll_lower(g, &l, &p));
    *seconds = ll_replay(c, p, NULL, precision, half).step_s;
    if (!fused && precision == LL_PRECISION_tf32) *seconds += turns(&c->chip, p);
    ll_memory_kinds kinds = ll_program_kinds(p);
    *bytes = (double)p->persistent_bytes + (double)p->work_bytes / (half ? 2 : 1) +
             1e9 * c->chip.reserved;
    *gradients = (double)kinds.parameters / (half ? 2 : 1);
    return LL_OK;
}

static void tell_choice(const ll_tries *s, const ll_tried *best, const ll_tried *plain,
                        int64_t ranks)
{
    const ll_tried *other = best == plain ? &s->v[0] : plain;
    fprintf(stderr, "--parallel auto: ");
    if (ranks == 1)
        fprintf(stderr, "one rank (use -n for more); ");
    else
        fprintf(stderr, "mesh %s, of %d tried for %ld ranks; ", best->way.mesh, s->n, ranks);
    fprintf(stderr, "planned step %s", LL_TIME(best->out.step_s));
    if (!strchr(plain->way.mesh, ',') && strcmp(best->way.mesh, other->way.mesh))
        fprintf(stderr, ", of %s %s%s", other->way.mesh, LL_TIME(other->out.step_s),
                best == plain ? ", which is not certain to be faster" : "");
    fprintf(stderr, "\n");
}

ll_err ll_plan_choose(ll_run *r, int64_t ranks)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_cluster) c = NULL;
    ll_tries s = {.run = r, .arena = arena};
    CHECK(!*r->parallel.mesh, LL_E_ARG,
          "--parallel auto cannot be combined with parallel.mesh=%s: it chooses the mesh",
          r->parallel.mesh);
    CHECK(r->parallel.replicas == 1, LL_E_ARG,
          "--parallel auto chooses the mesh of all ranks, but the run has %ld replicas: leave out "
          "parallel.replicas, or give --mesh for one of them",
          r->parallel.replicas);
    TRY(ll_plan_cluster("this", &c));
    s.cluster = c;
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    s.g = g;
    ll_tries_meshes(&s, ranks, (int)r->parallel.zero);
    CHECK(s.n, LL_E_ARG, "no mesh of %ld ranks: %s", ranks, s.trouble);
    const ll_tried plain = s.v[0]; /* data=RANKS, where that can be */
    ll_tries_sort(&s);
    if (!s.v[0].fits) {
        const ll_tried *least = ll_tries_least(&s);
        const char *way = ll_job_rank() <= 0 ? ll_plan_remedy(r, ranks, ll_tries_room(&s)) : "";
        FAIL(LL_E_MEM,
             "--parallel auto: no mesh of %ld ranks fits: tensors of %s take %s per rank, but "
             "there are %s%s%s",
             ranks, least->way.mesh, LL_BYTES_UP(least->bytes), LL_BYTES_DOWN(ll_tries_room(&s)),
             *way ? "; " : "", way);
    }
    /* Less than the plan's own error is no reason to leave the mesh that most runs have. */
    double sure = s.v[0].out.step_s * (1 + ll_plan_spread("images"));
    const ll_tried *best = plain.fits && plain.out.step_s < sure ? &plain : &s.v[0];
    if (ll_job_rank() <= 0) tell_choice(&s, best, &plain, ranks);
    if (ranks > 1) r->parallel.mesh = ll_arena_strdup(r->arena, best->way.mesh);
    return LL_OK;
}

static void warn_of_cores(const ll_plan_opts *o, const ll_cluster *c)
{
    if (strcmp(c->name, "this") || (double)o->ranks <= c->node.chips) return;
    fprintf(stderr,
            "warning: this machine has %g x %s for %ld ranks: the prediction is for %.0f such "
            "machines joined by a network of %g Gbit/s; on this one ranks would share\n",
            c->node.chips, c->chip.name, o->ranks, ceil((double)o->ranks / c->node.chips),
            c->network.gbps);
}

static ll_shown shown(const ll_tries *s, const ll_tried *o)
{
    ll_mesh m;
    int data = ll_mesh_parse(o->way.mesh, &m) == LL_OK ? ll_mesh_axis(&m, LL_AXIS_DATA) : -1;
    int64_t together = s->run->train.batch / o->way.micro, ranks = data < 0 ? 1 : m.size[data];
    return (ll_shown){
        .mesh = o->way.mesh,
        .schedule = "",
        .recompute = s->run->parallel.recompute,
        .layouts = o->way.layouts,
        .micro_batch = ll_ceil_div(together, ranks),
        .n_micro = o->way.micro,
        .together = s->run->train.micro_batch,
        .stages = 1,
        .zero = o->way.zero,
        .fits = o->fits,
        .step_s = o->out.step_s,
        .spread = ll_shown_spread(s->cluster, o->out.step_s,
                                  s->cluster->own.source ? "own images" : "images"),
        .model = o->out.model,
        .hardware = o->out.work.loops,
        .bytes = {.weights = (double)o->kinds.parameters,
                  .gradients = (double)o->kinds.gradients,
                  .optimizer = (double)o->kinds.state,
                  .activations = (double)o->kinds.other,
                  /* with what a codec keeps, and a step that is made again */
                  .buffers = (double)(o->bytes - o->kinds.parameters - o->kinds.gradients -
                                      o->kinds.state - o->kinds.other),
                  .reserved = 1e9 * s->cluster->chip.reserved},
        .exposed_s = o->out.exposed_s,
        .moved = o->out.moved};
}

/* What most of a step is spent on. */
static const char *bound_of(const ll_replayed *o)
{
    if (o->exposed_s <= o->compute_s) return "the chips' arithmetic and memory";
    return o->latency_s > o->exposed_s / 2 ? "the latency of small exchanges"
                                           : "the bandwidth of exchanges";
}

static void tell_bound(const ll_replayed *o)
{
    double all = (o->compute_s + o->exposed_s) / 100;
    fprintf(stderr,
            "\nThe best is bound by %s:\n  arithmetic and memory %.1f %%, exchanges that kernels "
            "wait for %.1f %%",
            bound_of(o), o->compute_s / all, o->exposed_s / all);
    if (o->n_small)
        fprintf(stderr, " (by the latency of %s, such as %s, %.1f %%)",
                LL_COUNTED(o->n_small, "small one"), o->small, o->latency_s / all);
    fprintf(stderr, "\n");
}

/* The mesh of more ranks with fewer along axis data, or along its one axis. */
static bool shrink(const char *mesh, int64_t ranks, char out[LL_MESH_TEXT])
{
    ll_mesh m;
    if (ll_mesh_parse(mesh, &m) != LL_OK) return false;
    int a = m.n == 1 ? 0 : ll_mesh_axis(&m, LL_AXIS_DATA);
    if (a < 0 || ranks % (m.n_rank / m.size[a])) return false;
    m.size[a] = (int)(ranks / (m.n_rank / m.size[a]));
    m.n_rank = (int)ranks;
    ll_err rc = ll_mesh_parse(ll_mesh_text(&m, out), &m); /* an axis of one rank is none */
    ll_mesh_text(&m, out);
    return rc == LL_OK;
}

typedef struct any_mesh {
    const ll_tries *tries;
    bool like; /* the mesh was given */
} any_mesh;

/* For ll_plan_fewer: samples alone are cut, or, where that is not quick enough or was not asked
 * for, as the best of all ranks has it. */
static bool best_of_ranks(const void *context, ll_of_ranks *out)
{
    const any_mesh *q = (const any_mesh *)context;
    const ll_tries *all = q->tries;
    ll_tries s = *all; /* what cannot be is not told */
    ll_recipe ways[2] = {all->v[0].way, all->v[0].way};
    ll_mesh_with(out->ranks, "data", out->ranks, ways[0].mesh);
    ways[0].layouts = NULL;
    bool less = out->ranks > 1 && shrink(all->v[0].way.mesh, out->ranks, ways[1].mesh),
         two = less && (ways[1].layouts || strcmp(ways[0].mesh, ways[1].mesh));
    if (q->like && out->ranks > 1 && !less) return false;
    out->step_s = INFINITY;
    for (int i = q->like && two; i <= two && out->step_s > all->v[0].out.step_s; i++) {
        ll_tried o;
        if (out->ranks == 1) ways[i].zero = 0;
        if (!ll_tries_way(&s, &ways[i], &o) || !o.fits || o.out.step_s >= out->step_s) continue;
        out->mesh = ll_arena_strdup(s.arena, ways[i].mesh);
        out->step_s = o.out.step_s;
    }
    return out->step_s < INFINITY;
}

static void print_text(const ll_plan_results *p, const ll_tries *s)
{
    ll_plan_table(p);
    tell_bound(&s->v[0].out);
    if (p->scaling) fprintf(stderr, "%s\n", p->scaling);
    if (s->left_out)
        fprintf(stderr, "%d ways to cut it are impossible; the last one: %s\n", s->left_out,
                s->trouble);
    if (p->run->layouts.n && !p->o->mesh)
        fprintf(stderr, "The run has layouts of its own: no others were tried.\n");
}

ll_err ll_plan_graph(ll_plan_results *p, const ll_mesh *m)
{
    LL_OWN(ll_graph) g = NULL;
    const ll_plan_opts *o = p->o;
    const ll_run *r = p->run;
    ll_tries s = {.run = r, .cluster = p->cluster, .arena = p->arena};
    CHECK(!o->report && !o->trace && !o->tokens, LL_E_ARG,
          "--report, --trace and --tokens apply only to transformers on a cluster");
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    s.g = g;
    CHECK(
        ll_mesh_axis(m, LL_AXIS_PIPE) < 0, LL_E_ARG,
        "--mesh %s: axis pipe is predicted only for transformers, on a cluster that is not `this`: "
        "see the prediction that train prints",
        o->mesh);
    const ll_run_parallel *how = &r->parallel;
    const ll_uncounted uncounted[] = {
        {"parallel.schedule", "", *how->schedule},
        {"parallel.virtual_stages", "0", how->virtual_stages},
        {"parallel.stages", "", *how->stages},
        {"parallel.compress", "none", strcmp(how->compress, "none")},
        {"parallel.canonical", "false", how->canonical},
        {"parallel.transport", "auto",
         strcmp(how->transport, "auto") && strcmp(how->transport, "nccl")},
        {"train.offload", "", *r->train.offload},
        {NULL}};
    TRY(ll_plan_refuse(uncounted, "models that are compiled"));
    bool zero = how->zero > 0 || ll_words_said(&o->set, "parallel.zero");
    warn_of_cores(o, p->cluster);
    if (o->mesh)
        ll_tries_mesh(&s, o->mesh, (int)how->zero);
    else
        ll_tries_all(&s, o->ranks, zero ? (int)how->zero : -1);
    CHECK(s.n, LL_E_ARG, "no mesh of %ld ranks: %s", o->ranks, s.trouble);
    ll_tries_sort(&s);
    p->tried = s.n;
    p->parameters = (double)ll_cli_numbers(g, LL_PARAM, NULL);
    p->n = o->top < s.n ? (int)o->top : s.n;
    p->v = LL_NEW_ARRAY(p->arena, ll_shown, p->n);
    for (int i = 0; i < p->n; i++) p->v[i] = shown(&s, &s.v[i]);
    ll_plan_fewer(p, best_of_ranks, &(any_mesh){&s, o->mesh != NULL});
    json_t *plans = o->json ? LL_JSON_LIST(i, p->n, ll_plan_json(p, &p->v[i])) : NULL;
    if (o->json)
        return ll_cli_json(LL_JSON_ADD(ll_plan_results_json(p, plans, bound_of(&s.v[0].out)),
                                       LL_IS("left_out", s.left_out),
                                       LL_IS("why_left_out", s.left_out ? s.trouble : NULL)));
    print_text(p, &s);
    TRY(ll_plan_check_fits(p, (double)ll_tries_least(&s)->bytes, "more ranks"));
    ll_plan_tell_train(p);
    if (o->ranks == 1) return LL_OK;
    fprintf(stderr, "In the run file, replace the sections parallel and layout by:\n");
    print_lines(r, &s.v[0]);
    return LL_OK;
}
