/* plan_graph.c: loopline plan of models that are no transformers on a cluster: the last rank's
 * program of each mesh, whose parts are the largest, is compiled as training would, and replayed
 * (plan/replay.h). */
#include "base/text.h"
#include "cli/common.h"
#include "cli/plan.h"
#include "comm/job.h"
#include "plan/published.h"
#include "plan/replay.h"
#include "plan/search.h"
#include "train/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct option {
    char mesh[LL_MESH_TEXT];
    int zero;
    ll_replayed out;
    ll_memory_kinds kinds;
    size_t bytes;
    bool fits;
} option;

typedef struct options {
    const ll_run *run;
    const ll_cluster *cluster;
    const ll_graph *g;
    int64_t micro;
    int threads; /* of a rank; 0: one */
    ll_arena *arena;
    option *v;
    int n, room;
    char trouble[512]; /* why the last mesh that did not do did not */
} options;

static ll_err compile(const options *s, const ll_mesh *m, int zero, ll_program **out)
{
    LL_OWN(ll_graph) part = NULL;
    ll_placement *place = NULL;
    ll_lower_opts l = {
        .target = ll_target_find("cpu"), .threads = s->threads, .n_micro = (int)s->micro};
    TRY(ll_run_place(s->run, s->g, m, zero, &place));
    ll_err rc = ll_partition(place, m->n_rank - 1, &part);
    ll_placement_free(place);
    TRY(rc);
    l.precision = strcmp(s->run->train.precision, "f32") ? LL_PRECISION_bf16 : LL_PRECISION_f32;
    return ll_lower(part, &l, out);
}

/* A mesh that cannot be cut so is left out. */
static void try_mesh(options *s, const char *text, int zero)
{
    LL_OWN(ll_program) p = NULL;
    ll_mesh m;
    if (ll_mesh_parse(text, &m) != LL_OK || compile(s, &m, zero, &p) != LL_OK) {
        snprintf(s->trouble, sizeof s->trouble, "%s", ll_error_message());
        return;
    }
    option o = {.zero = zero, .bytes = p->bytes, .kinds = ll_program_kinds(p)};
    o.out = ll_replay(s->cluster, p, m.n_rank > 1 ? &m : NULL, s->run->train.precision);
    o.fits = (double)p->bytes + 1e9 * s->cluster->chip.reserved <= 1e9 * s->cluster->chip.memory;
    snprintf(o.mesh, sizeof o.mesh, "%s", text);
    LL_PUSH(s->arena, s->v, s->n, s->room, o);
}

/* zero: -1: any. */
static void try_all(options *s, int64_t ranks, int zero)
{
    static const char *const axes[] = {"height", "width", "tensor"};
    char mesh[LL_MESH_TEXT];
    snprintf(mesh, sizeof mesh, "data=%lld", (long long)ranks);
    try_mesh(s, mesh, zero < 0 ? 0 : zero);
    if (ranks > 1 && zero < 0) try_mesh(s, mesh, 1);
    for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
        for (int64_t n = 2; n <= 8 && ranks % n == 0; n *= 2) {
            if (ranks == n)
                snprintf(mesh, sizeof mesh, "%s=%lld", axes[a], (long long)n);
            else
                snprintf(mesh, sizeof mesh, "data=%lld,%s=%lld", (long long)(ranks / n), axes[a],
                         (long long)n);
            try_mesh(s, mesh, zero < 0 || ranks == n ? 0 : zero);
        }
}

static int quickest(const void *a, const void *b)
{
    const option *x = (const option *)a, *y = (const option *)b;
    if (x->fits != y->fits) return y->fits - x->fits;
    return (x->out.step_s > y->out.step_s) - (x->out.step_s < y->out.step_s);
}

static json_t *option_json(const options *s, const option *o, double ranks)
{
    const ll_run *r = s->run;
    double spread = 1 + ll_plan_spread("images"), samples = (double)r->train.batch / o->out.step_s;
    double peak = ll_chip_peak(&s->cluster->chip, r->train.precision);
    bool tokens = ll_run_takes_tokens(r);
    const ll_size *z = r->model.sizes;
    while (tokens && z->name && strcmp(z->name, "seq")) z++;
    json_t *j = json_object();
    json_object_set_new(j, "mesh", json_string(o->mesh));
    json_object_set_new(j, "schedule", json_string("none"));
    json_object_set_new(j, "micro_batch", json_integer(r->train.batch / s->micro));
    json_object_set_new(j, "virtual_stages", json_integer(1));
    json_object_set_new(j, "zero", json_integer(o->zero));
    json_object_set_new(j, "recompute", json_string(r->parallel.recompute));
    json_object_set_new(j, "step_s", json_real(o->out.step_s));
    json_object_set_new(j, "low_s", json_real(o->out.step_s / spread));
    json_object_set_new(j, "high_s", json_real(o->out.step_s * spread));
    json_object_set_new(j, "samples_per_s", json_real(samples));
    json_object_set_new(j, "tokens_per_s",
                        tokens ? json_real(samples * (double)z->value) : json_null());
    json_object_set_new(j, "model_flops_per_rank", json_real(o->out.flops));
    json_object_set_new(j, "percent_of_peak", json_real(100 * o->out.flops / o->out.step_s / peak));
    json_object_set_new(j, "bytes_per_rank", json_integer((json_int_t)o->bytes));
    json_object_set_new(
        j, "bytes_by_kind",
        json_pack("{s:I,s:I,s:I,s:I,s:I}", "weights", (json_int_t)o->kinds.parameters, "gradients",
                  (json_int_t)o->kinds.gradients, "optimizer", (json_int_t)o->kinds.state,
                  "activations", (json_int_t)o->kinds.other, "buffers",
                  (json_int_t)(o->kinds.batch + o->kinds.scratch)));
    json_object_set_new(j, "fits", json_boolean(o->fits));
    json_object_set_new(j, "bubble", json_real(0));
    json_object_set_new(j, "exposed_comm_s", json_real(o->out.exposed_s));
    json_object_set_new(j, "bytes_moved", json_real(o->out.moved));
    json_object_set_new(j, "ranks", json_real(ranks));
    return j;
}

static void print_option(const options *s, const option *o)
{
    char bytes[LL_NUMBER_TEXT], time[LL_NUMBER_TEXT], rate[LL_NUMBER_TEXT];
    double peak = ll_chip_peak(&s->cluster->chip, s->run->train.precision);
    fprintf(stderr, "  %-24s %4d %10s %11s %9.1f %9.1f %10s%s\n", o->mesh, o->zero,
            ll_text_time(o->out.step_s, time),
            ll_text_count((double)s->run->train.batch / o->out.step_s, rate),
            100 * o->out.flops / o->out.step_s / peak, 100 * o->out.exposed_s / o->out.step_s,
            ll_text_bytes((double)o->bytes, bytes), o->fits ? "" : "  does not fit");
}

/* Convolutions of 32-bit numbers that run on tensor units want channels last, and frameworks that
 * keep them first (PyTorch, unless told otherwise) turn every operand on its way in and out. */
static double turns(const ll_chip *c, const ll_program *p)
{
    double s = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_op *op = p->instrs[i].kernel.run ? ll_op_find(p->instrs[i].op) : NULL;
        if (op && op->work == LL_WORK_CONVOLUTION) s += ll_cost_stream(c, 2 * p->instrs[i].bytes);
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
    ll_cluster d = *c;
    if (half) d.chip.bandwidth *= 2;
    *seconds = ll_replay(&d, p, NULL, precision).step_s;
    if (!fused && !strcmp(precision, "tf32")) *seconds += turns(&d.chip, p);
    ll_memory_kinds kinds = ll_program_kinds(p);
    *bytes = (double)p->persistent_bytes + (double)p->work_bytes / (half ? 2 : 1) +
             1e9 * c->chip.reserved;
    *gradients = (double)kinds.parameters / (half ? 2 : 1);
    return LL_OK;
}
const ll_images ll_plan_images = {NULL, images_step};

static void tell_choice(const options *s, const option *plain, int64_t ranks)
{
    char time[LL_NUMBER_TEXT];
    fprintf(stderr, "--parallel auto: ");
    if (ranks == 1)
        fprintf(stderr, "one rank, -n gives more; ");
    else
        fprintf(stderr, "mesh %s of %d that were tried for %lld ranks; ", s->v[0].mesh, s->n,
                (long long)ranks);
    fprintf(stderr, "predicted step %s", ll_text_time(s->v[0].out.step_s, time));
    if (!strchr(plain->mesh, ',') && strcmp(s->v[0].mesh, plain->mesh))
        fprintf(stderr, ", of %s %s", plain->mesh, ll_text_time(plain->out.step_s, time));
    fprintf(stderr, "\n");
}

ll_err ll_plan_choose(ll_run *r, int64_t ranks)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_cluster) c = NULL;
    options s = {.run = r, .arena = arena, .micro = ll_run_micro_batches(r)};
    CHECK(!*r->parallel.mesh, LL_E_ARG, "--parallel auto chooses the mesh, and one is given: %s",
          r->parallel.mesh);
    TRY(ll_plan_cluster("this", &c));
    s.cluster = c;
    TRY(ll_run_graph(r, r->train.batch / s.micro, &r->train.optim, &g));
    s.g = g;
    try_all(&s, ranks, (int)r->parallel.zero);
    CHECK(s.n, LL_E_ARG, "no mesh of %lld ranks: %s", (long long)ranks, s.trouble);
    const option plain = s.v[0]; /* data=RANKS, where that can be */
    qsort(s.v, (size_t)s.n, sizeof *s.v, quickest);
    if (ll_job_rank() <= 0) tell_choice(&s, &plain, ranks);
    if (ranks > 1) r->parallel.mesh = ll_arena_strdup(r->arena, s.v[0].mesh);
    return LL_OK;
}

/* Smaller micro-batches, then more ranks that share parameters. */
void ll_plan_remedy(const ll_run *r, int64_t ranks, double room)
{
    enum { RANKS = 64 };
    char need[LL_NUMBER_TEXT], mesh[32];
    for (int64_t n = ranks; n <= RANKS; n *= 2)
        for (int64_t micro = ll_run_micro_batches(r); r->train.batch % micro == 0; micro *= 2) {
            LL_OWN(ll_graph) g = NULL;
            LL_OWN(ll_program) p = NULL;
            options s = {.run = r, .micro = micro, .threads = ll_cli_threads(r, n)};
            ll_mesh m;
            bool tried = n == ranks && micro == ll_run_micro_batches(r);
            if (r->train.batch / micro % n) break;
            if (tried && (n == 1 || r->parallel.zero == 3)) continue;
            snprintf(mesh, sizeof mesh, "data=%lld", (long long)n);
            if (ll_run_graph(r, r->train.batch / micro, &r->train.optim, &g) != LL_OK) return;
            s.g = g;
            if (ll_mesh_parse(mesh, &m) != LL_OK || compile(&s, &m, n > 1 ? 3 : 0, &p) != LL_OK)
                continue;
            if ((double)p->bytes > room) continue;
            fprintf(stderr, "it would fit with train.micro_batch=%lld",
                    (long long)(r->train.batch / micro));
            if (n > 1) fprintf(stderr, " on %lld ranks, --mesh %s --zero 3", (long long)n, mesh);
            fprintf(stderr, ": %s a rank\n", ll_text_bytes((double)p->bytes, need));
            return;
        }
    fprintf(
        stderr,
        "no smaller micro-batch would make it fit, nor would --mesh data=N --zero 3 of up to %d "
        "such ranks; other meshes were not tried (loopline inspect RUN --mesh ... tells)\n",
        RANKS);
}

ll_err ll_plan_graph(const ll_plan_opts *o, const ll_run *r, const ll_cluster *c)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    LL_OWN(ll_graph) g = NULL;
    options s = {.run = r, .cluster = c, .arena = arena, .micro = ll_run_micro_batches(r)};
    CHECK(ll_chip_peak(&c->chip, r->train.precision) > 0, LL_E_ARG, "chip %s has no products of %s",
          c->chip.name, r->train.precision);
    CHECK(!o->report && !o->trace && !o->tokens, LL_E_ARG,
          "--report, --trace and --tokens are of transformers on a cluster");
    TRY(ll_run_graph(r, r->train.batch / s.micro, &r->train.optim, &g));
    s.g = g;
    ll_mesh m = {0};
    if (o->mesh) TRY(ll_mesh_parse(o->mesh, &m));
    CHECK(!o->mesh || ll_mesh_axis(&m, LL_AXIS_PIPE) < 0, LL_E_ARG,
          "--mesh %s: axis pipe is predicted of transformers on a cluster; of this one train tells "
          "its own prediction",
          o->mesh);
    if (o->mesh)
        try_mesh(&s, o->mesh, (int)r->parallel.zero);
    else
        try_all(&s, o->ranks, -1);
    CHECK(s.n, LL_E_ARG, "no mesh of %lld ranks: %s", (long long)o->ranks, s.trouble);
    qsort(s.v, (size_t)s.n, sizeof *s.v, quickest);
    int top = o->top < s.n ? (int)o->top : s.n;
    if (o->json) {
        json_t *j = json_object(), *plans = json_array();
        json_object_set_new(j, "cluster", json_string(c->name));
        json_object_set_new(j, "ranks", json_integer(o->ranks));
        for (int i = 0; i < top; i++)
            json_array_append_new(plans, option_json(&s, &s.v[i], (double)o->ranks));
        json_object_set_new(j, "plans", plans);
        return ll_cli_json(j);
    }
    fprintf(stderr, "%s, batch %lld, on %lld x %s (%s)\n  %-24s ZeRO %10s %11s %9s %9s %10s\n",
            r->model.name, (long long)r->train.batch, (long long)o->ranks, c->chip.name, c->name,
            "mesh", "step", "samples/s", "% of peak", "% exposed", "tensors");
    for (int i = 0; i < top; i++) print_option(&s, &s.v[i]);
    const option *b = &s.v[0];
    fprintf(stderr, "The best is bound by %s.\n",
            b->out.exposed_s > b->out.compute_s ? "communication"
                                                : "the chips' arithmetic and memory");
    if (!b->fits) fprintf(stderr, "Nothing fits %g GB: use more ranks.\n", c->chip.memory);
    return LL_OK;
}
