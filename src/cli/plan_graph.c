/* plan_graph.c: loopline plan of models that are no transformers on a cluster: ways to train them,
 * compiled and replayed (cli/plan_try.h), as tables and as lines of run files. */
#include "base/text.h"
#include "cli/common.h"
#include "cli/plan.h"
#include "cli/plan_try.h"
#include "comm/job.h"
#include "plan/published.h"
#include "plan/search.h"
#include "run/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool ll_plan_said(const ll_words *set, const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < set->n; i++)
        if (!strncmp(set->v[i], key, n) && set->v[i][n] == '=') return true;
    return false;
}

ll_err ll_plan_refuse(const ll_uncounted *of, const char *what)
{
    for (; of->key; of++)
        CHECK(!of->set, LL_E_ARG, "%s: plans of %s do not take it; leave it out: -s %s=%s", of->key,
              what, of->key, of->without);
    return LL_OK;
}

void ll_plan_kernels(const ll_cluster *c)
{
    if (c->own.source)
        fprintf(stderr, "Kernels are as quick as Loopline's own on %s.\n", c->own.source);
    else if (strcmp(c->chip.name, LL_CORE))
        fprintf(stderr,
                "Kernels are as quick as those of published trainings: Loopline's own were not "
                "measured on %s.\n",
                c->chip.name);
}

static json_t *layouts_json(const ll_layout_rule *rules)
{
    json_t *j = json_object();
    for (; rules && rules->pattern; rules++) LL_JSON_ADD(j, LL_IS(rules->pattern, rules->layout));
    return j;
}

/* In per cent. */
static double of_peak(const ll_tried *o, double flops, double peak)
{
    return 100 * flops / o->out.step_s / peak;
}

static json_t *option_json(const ll_tries *s, const ll_tried *o, double ranks)
{
    const ll_run *r = s->run;
    double spread = 1 + ll_plan_spread(s->cluster->own.source ? "own images" : "images");
    double samples = (double)r->train.batch / o->out.step_s;
    double peak = ll_chip_peak(&s->cluster->chip, r->train.precision);
    bool tokens = ll_run_takes_tokens(r);
    const ll_size *z = r->model.sizes;
    while (tokens && z->name && strcmp(z->name, "seq")) z++;
    return LL_JSON(
        LL_IS("mesh", o->way.mesh), LL_IS("layout", layouts_json(o->way.layouts)),
        LL_IS("schedule", "none"), LL_IS("micro_batch", r->train.batch / o->way.micro),
        LL_IS("virtual_stages", 1), LL_IS("zero", o->way.zero),
        LL_IS("recompute", r->parallel.recompute), LL_IS("step_s", o->out.step_s),
        LL_IS("low_s", o->out.step_s / spread), LL_IS("high_s", o->out.step_s * spread),
        LL_IS("samples_per_s", samples),
        LL_IS("tokens_per_s", tokens ? samples * (double)z->value : NAN),
        LL_IS("model_flops_per_rank", o->out.model),
        LL_IS("percent_of_peak", of_peak(o, o->out.model, peak)),
        LL_IS("hardware_percent_of_peak", of_peak(o, o->out.work.loops, peak)),
        LL_IS("bytes_per_rank", o->bytes),
        LL_IS("bytes_by_kind",
              LL_JSON(LL_IS("weights", o->kinds.parameters), LL_IS("gradients", o->kinds.gradients),
                      LL_IS("optimizer", o->kinds.state), LL_IS("activations", o->kinds.other),
                      LL_IS("buffers", (o->kinds.batch + o->kinds.scratch)))),
        LL_IS("fits", o->fits), LL_IS("bubble", 0.0), LL_IS("exposed_comm_s", o->out.exposed_s),
        LL_IS("bytes_moved", o->out.moved), LL_IS("ranks", ranks));
}

static void print_option(const ll_tries *s, const ll_tried *o)
{
    double peak = ll_chip_peak(&s->cluster->chip, s->run->train.precision);
    fprintf(stderr, "  %-24s %4d %10s %11s %8.1f %10.1f %9.1f %10s", o->way.mesh, o->way.zero,
            LL_TIME(o->out.step_s), LL_AMOUNT((double)s->run->train.batch / o->out.step_s),
            of_peak(o, o->out.model, peak), of_peak(o, o->out.work.loops, peak),
            100 * o->out.exposed_s / o->out.step_s, LL_BYTES(o->bytes));
    for (const ll_layout_rule *l = o->way.layouts; l && l->pattern; l++)
        fprintf(stderr, "%s %s %s", l == o->way.layouts ? " " : ",", l->pattern, l->layout);
    fprintf(stderr, "%s\n", o->fits ? "" : "  does not fit");
}

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
static ll_err images_step(void *context, const char *model, const ll_cluster *c,
                          const char *precision, int samples, bool fused, double *seconds,
                          double *bytes, double *gradients)
{
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_program) p = NULL;
    char text[128];
    bool half = !strcmp(precision, "bf16");
    (void)context;
    CHECK(!strncmp(model, "ResNet-50", 9), LL_E_ARG, "of models of images ResNet-50 is compiled");
    snprintf(text, sizeof text,
             "model: {name: resnet50}\ndata: {name: synthetic}\n"
             "train: {batch: %d}\n",
             samples);
    TRY(ll_run_parse(text, strlen(text), "row", &r));
    TRY(ll_run_finish(r));
    TRY(ll_run_graph(r, samples, &r->train.optim, &g));
    ll_lower_opts l = {.target = ll_target_find("cpu"), .threads = 1, .n_micro = 1};
    l.no_fuse = !fused;
    TRY(ll_lower(g, &l, &p));
    *seconds = ll_replay(c, p, NULL, precision, half).step_s;
    if (!fused && !strcmp(precision, "tf32")) *seconds += turns(&c->chip, p);
    ll_memory_kinds kinds = ll_program_kinds(p);
    *bytes = (double)p->persistent_bytes + (double)p->work_bytes / (half ? 2 : 1) +
             1e9 * c->chip.reserved;
    *gradients = (double)kinds.parameters / (half ? 2 : 1);
    return LL_OK;
}
const ll_images ll_plan_images = {NULL, images_step};

static void tell_choice(const ll_tries *s, const ll_tried *plain, int64_t ranks)
{
    fprintf(stderr, "--parallel auto: ");
    if (ranks == 1)
        fprintf(stderr, "one rank, -n gives more; ");
    else
        fprintf(stderr, "mesh %s of %d that were tried for %lld ranks; ", s->v[0].way.mesh, s->n,
                (long long)ranks);
    fprintf(stderr, "predicted step %s", LL_TIME(s->v[0].out.step_s));
    if (!strchr(plain->way.mesh, ',') && strcmp(s->v[0].way.mesh, plain->way.mesh))
        fprintf(stderr, ", of %s %s", plain->way.mesh, LL_TIME(plain->out.step_s));
    fprintf(stderr, "\n");
}

ll_err ll_plan_choose(ll_run *r, int64_t ranks)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_cluster) c = NULL;
    ll_tries s = {.run = r, .arena = arena};
    CHECK(!*r->parallel.mesh, LL_E_ARG, "--parallel auto chooses the mesh, and one is given: %s",
          r->parallel.mesh);
    CHECK(r->parallel.replicas == 1, LL_E_ARG,
          "--parallel auto chooses the mesh of all ranks, and the run has %lld replicas: leave out "
          "parallel.replicas, or give --mesh of one of them",
          (long long)r->parallel.replicas);
    TRY(ll_plan_cluster("this", &c));
    s.cluster = c;
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    s.g = g;
    ll_tries_meshes(&s, ranks, (int)r->parallel.zero);
    CHECK(s.n, LL_E_ARG, "no mesh of %lld ranks: %s", (long long)ranks, s.trouble);
    const ll_tried plain = s.v[0]; /* data=RANKS, where that can be */
    ll_tries_sort(&s);
    if (!s.v[0].fits) {
        const ll_tried *least = ll_tries_least(&s);
        if (ll_job_rank() <= 0) ll_plan_remedy(r, ranks, ll_tries_room(&s));
        FAIL(LL_E_MEM,
             "--parallel auto: no mesh of %lld ranks fits: tensors of %s take %s a rank, and there "
             "are %s",
             (long long)ranks, least->way.mesh, LL_BYTES_UP(least->bytes),
             LL_BYTES_DOWN(ll_tries_room(&s)));
    }
    if (ll_job_rank() <= 0) tell_choice(&s, &plain, ranks);
    if (ranks > 1) r->parallel.mesh = ll_arena_strdup(r->arena, s.v[0].way.mesh);
    return LL_OK;
}

static void warn_of_cores(const ll_plan_opts *o, const ll_cluster *c)
{
    if (strcmp(c->name, "this") || (double)o->ranks <= c->node.chips) return;
    fprintf(
        stderr,
        "warning: this machine has %g x %s for %lld ranks: predicted is what %.0f such machines "
        "would take, joined by a network of %g Gbit/s; on this one ranks would share\n",
        c->node.chips, c->chip.name, (long long)o->ranks, ceil((double)o->ranks / c->node.chips),
        c->network.gbps);
}

static ll_err print_json(const ll_plan_opts *o, const ll_tries *s, int top)
{
    json_t *plans = json_array();
    for (int i = 0; i < top; i++)
        json_array_append_new(plans, option_json(s, &s->v[i], (double)o->ranks));
    return ll_cli_json(LL_JSON(LL_IS("cluster", s->cluster->name),
                               LL_IS("kernels", s->cluster->own.source), LL_IS("ranks", o->ranks),
                               LL_IS("plans", plans), LL_IS("left_out", s->left_out),
                               LL_IS("why_left_out", s->left_out ? s->trouble : NULL)));
}

static void print_text(const ll_plan_opts *o, const ll_tries *s, int top)
{
    const ll_run *r = s->run;
    const ll_cluster *c = s->cluster;
    const ll_tried *b = &s->v[0];
    fprintf(
        stderr, "%s, batch %lld, on %lld x %s (%s)\n  %-24s ZeRO %10s %11s %8s %10s %9s %10s  %s\n",
        r->model.name, (long long)r->train.batch, (long long)o->ranks, c->chip.name, c->name,
        "mesh", "step", "samples/s", "model %", "hardware %", "% exposed", "tensors", "layouts");
    for (int i = 0; i < top; i++) print_option(s, &s->v[i]);
    ll_plan_kernels(c);
    fprintf(stderr, "The best is bound by %s.\n",
            b->out.exposed_s > b->out.compute_s ? "communication"
                                                : "the chips' arithmetic and memory");
    if (s->left_out)
        fprintf(stderr, "%d ways to cut it cannot be; the last of them: %s\n", s->left_out,
                s->trouble);
    if (r->layouts.n && !o->mesh)
        fprintf(stderr, "The run has layouts of its own: no others were tried.\n");
    double least = (double)ll_tries_least(s)->bytes;
    if (!b->fits && least + 1e9 * c->chip.reserved <= 1e9 * c->chip.memory)
        fprintf(stderr, "Nothing fits train.memory, %s: use more ranks, or %s of it.\n",
                r->train.memory, LL_BYTES_UP(least));
    else if (!b->fits)
        fprintf(stderr, "Nothing fits %g GB, of which %g are reserved: use more ranks.\n",
                c->chip.memory, c->chip.reserved);
    if (!b->fits || o->ranks == 1) return;
    fprintf(stderr, "In the run file, in place of its sections parallel and layout:\n");
    print_lines(r, b);
}

ll_err ll_plan_graph(const ll_plan_opts *o, const ll_run *r, const ll_cluster *c)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    const ll_cluster mine = ll_cluster_own(c);
    ll_tries s = {.run = r, .cluster = &mine, .arena = arena};
    CHECK(ll_chip_peak(&c->chip, r->train.precision) > 0, LL_E_ARG, "chip %s has no products of %s",
          c->chip.name, r->train.precision);
    CHECK(!o->report && !o->trace && !o->tokens, LL_E_ARG,
          "--report, --trace and --tokens are of transformers on a cluster");
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    s.g = g;
    ll_mesh m = {0};
    if (o->mesh) TRY(ll_mesh_parse(o->mesh, &m));
    CHECK(!o->mesh || ll_mesh_axis(&m, LL_AXIS_PIPE) < 0, LL_E_ARG,
          "--mesh %s: axis pipe is predicted of transformers on a cluster; of this one train tells "
          "its own prediction",
          o->mesh);
    CHECK(!o->mesh || m.n_rank == o->ranks, LL_E_ARG,
          "--mesh %s is of %d ranks, and --ranks is %lld", o->mesh, m.n_rank, (long long)o->ranks);
    const ll_run_parallel *p = &r->parallel;
    const ll_uncounted uncounted[] = {{"parallel.schedule", "", *p->schedule},
                                      {"parallel.virtual_stages", "0", p->virtual_stages},
                                      {"parallel.stages", "", *p->stages},
                                      {"parallel.compress", "none", strcmp(p->compress, "none")},
                                      {"parallel.canonical", "false", p->canonical},
                                      {"parallel.transport", "auto", !strcmp(p->transport, "host")},
                                      {"train.offload", "", *r->train.offload},
                                      {NULL}};
    TRY(ll_plan_refuse(uncounted, "models that are compiled"));
    bool zero = r->parallel.zero > 0 || ll_plan_said(&o->set, "parallel.zero");
    warn_of_cores(o, c);
    if (o->mesh)
        ll_tries_mesh(&s, o->mesh, (int)r->parallel.zero);
    else
        ll_tries_all(&s, o->ranks, zero ? (int)r->parallel.zero : -1);
    CHECK(s.n, LL_E_ARG, "no mesh of %lld ranks: %s", (long long)o->ranks, s.trouble);
    ll_tries_sort(&s);
    int top = o->top < s.n ? (int)o->top : s.n;
    if (o->json) return print_json(o, &s, top);
    print_text(o, &s, top);
    return LL_OK;
}
