/* plan_show.c: plans as they are shown, of whatever model: a table, JSON, words for train. */
#include "cli/plan.h"
#include "pass/target.h"
#include "plan/published.h"

#include <stdio.h>

double ll_shown_spread(const ll_cluster *c, double step_s, const char *kind)
{
    const double small = 2e-3; /* on GPUs that is launches, which the model does not have well */
    return 1 + ll_plan_spread(c->own.source && step_s < small ? "small step" : kind);
}

ll_err ll_plan_refuse(const ll_uncounted *of, const char *what)
{
    for (; of->key; of++)
        CHECK(!of->set, LL_E_ARG, "%s: plans of %s do not support it: leave it out with -s %s=%s",
              of->key, what, of->key, of->without);
    return LL_OK;
}

const char *ll_plan_machine(const ll_cluster *c)
{
    const ll_target *t = ll_target_find(c->chip.machine);
    return strcmp(c->name, "this") && c->chip.machine && t ? t->name : NULL;
}

const char *ll_plan_about(const ll_cluster *c, ll_arena *a)
{
    ll_buf b = {.arena = a};
    ll_buf_printf(&b,
                  "tensors: memory of the fullest rank, limited by train.memory; of each chip's "
                  "%s, another %s are reserved.\n",
                  LL_BYTES(1e9 * c->chip.memory), LL_BYTES(1e9 * c->chip.reserved));
    if (c->own.source)
        ll_buf_printf(&b, "Kernel speed: measured with Loopline's own kernels on %s.",
                      c->own.source);
    else if (ll_chip_is_core(&c->chip))
        ll_buf_puts(&b, "Kernel speed: matrix products and copies as measured on this machine.");
    else
        ll_buf_printf(&b,
                      "Kernel speed: as in published training runs; Loopline's own kernels were "
                      "not measured on %s.",
                      c->chip.name);
    return b.text;
}

const char *ll_plan_word(const char *word, ll_arena *a)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=.,:/@%";
    ll_buf b = {.arena = a};
    if (*word && !word[strspn(word, plain)]) return word;
    for (ll_buf_puts(&b, "'"); *word; word++)
        if (*word == '\'')
            ll_buf_puts(&b, "'\\''");
        else
            ll_buf_add(&b, word, 1);
    ll_buf_puts(&b, "'");
    return b.text;
}

/* Settings as they were given, but for those that the plan answers. */
static void add_given(ll_buf *b, const ll_plan_results *p)
{
    static const char *const answered[] = {
        "parallel.mesh",           "parallel.zero",      "parallel.schedule", "parallel.transport",
        "parallel.virtual_stages", "parallel.recompute", "train.micro_batch"};
    const char *machine = ll_plan_machine(p->cluster);
    for (int i = 0; i < p->o->set.n; i++) {
        const ll_words one = {p->o->set.v + i, 1};
        bool skip = machine && ll_words_said(&one, "train.machine");
        for (size_t k = 0; k < sizeof answered / sizeof *answered; k++)
            skip |= ll_words_said(&one, answered[k]) != NULL;
        if (!skip) ll_buf_printf(b, " -s %s", ll_plan_word(one.v[0], b->arena));
    }
    if (machine && strcmp(p->file->train.machine, machine))
        ll_buf_printf(b, " -s train.machine=%s", machine);
}

const char *ll_plan_words(const ll_plan_results *p, const ll_shown *s)
{
    const ll_run_parallel *was = &p->file->parallel;
    const ll_chip *chip = &p->cluster->chip;
    ll_buf b = {.arena = p->arena};
    if (p->o->ranks > 1)
        ll_buf_printf(&b, " -n %ld --mesh %s", p->o->ranks, s->mesh);
    else if (*was->mesh)
        ll_buf_puts(&b, " -s parallel.mesh=");
    if (s->together != p->file->train.micro_batch)
        ll_buf_printf(&b, " -s train.micro_batch=%ld", s->together);
    if (strcmp(s->schedule, was->schedule))
        ll_buf_printf(&b, " -s parallel.schedule=%s", s->schedule);
    int stages = s->stages > 1 ? s->stages : 0;
    if (stages != was->virtual_stages) ll_buf_printf(&b, " -s parallel.virtual_stages=%d", stages);
    if (s->zero != was->zero) ll_buf_printf(&b, " --zero %d", s->zero);
    /* as predicted; of its own accord train takes a pipeline's messages through the host */
    if (*s->schedule && ll_plan_machine(p->cluster) && strcmp(was->transport, "nccl"))
        ll_buf_puts(&b, " -s parallel.transport=nccl");
    if (strcmp(s->recompute, was->recompute))
        ll_buf_printf(&b, " -s parallel.recompute=%s", s->recompute);
    if (s->offload && strcmp(p->file->train.offload, "host"))
        ll_buf_puts(&b, " -s train.offload=host");
    if (s->offload && !*p->run->train.memory) /* what is reserved is no tensors' */
        ll_buf_printf(&b, " -s train.memory=%.2fGB",
                      floor(100 * (chip->memory - chip->reserved)) / 100);
    for (const ll_layout_rule *l = s->layouts; l && l->pattern; l++) {
        ll_buf one = {.arena = p->arena};
        ll_buf_printf(&one, "layout.%s=", l->pattern);
        for (const char *c = l->layout; *c; c++)
            if (*c != ' ') ll_buf_add(&one, c, 1);
        ll_buf_printf(&b, " -s %s", ll_plan_word(one.text, p->arena));
    }
    add_given(&b, p);
    return b.len ? b.text + 1 : "";
}

static double percent(const ll_plan_results *p, const ll_shown *s, double flops)
{
    return 100 * flops / s->step_s / ll_chip_peak(&p->cluster->chip, p->run->train.precision);
}

static json_t *layouts_json(const ll_layout_rule *rules)
{
    json_t *j = json_object();
    for (; rules && rules->pattern; rules++) LL_JSON_ADD(j, LL_IS(rules->pattern, rules->layout));
    return j;
}

json_t *ll_plan_json(const ll_plan_results *p, const ll_shown *s)
{
    return LL_JSON(
        LL_IS("mesh", s->mesh), LL_IS("layout", layouts_json(s->layouts)),
        LL_IS("schedule", *s->schedule ? s->schedule : "none"),
        LL_IS("micro_batch", s->micro_batch), LL_IS("micro_batches", s->n_micro),
        LL_IS("virtual_stages", s->stages), LL_IS("zero", s->zero),
        LL_IS("recompute", s->recompute), LL_IS("offload", s->offload),
        LL_IS("train", ll_plan_words(p, s)), LL_IS("step_s", s->step_s),
        LL_IS("low_s", s->step_s / s->spread), LL_IS("high_s", s->step_s * s->spread),
        LL_IS("samples_per_s", (double)p->run->train.batch / s->step_s),
        LL_IS("tokens_per_s", p->seq ? (double)(p->run->train.batch * p->seq) / s->step_s : NAN),
        LL_IS("model_flops_per_rank", s->model), LL_IS("percent_of_peak", percent(p, s, s->model)),
        LL_IS("hardware_percent_of_peak", percent(p, s, s->hardware)),
        LL_IS("bytes_per_rank", (int64_t)ll_lm_bytes_tensors(&s->bytes)),
        LL_IS("reserved_bytes", (int64_t)s->bytes.reserved),
        LL_IS("bytes_by_kind", LL_JSON(LL_IS("weights", (int64_t)s->bytes.weights),
                                       LL_IS("gradients", (int64_t)s->bytes.gradients),
                                       LL_IS("optimizer", (int64_t)s->bytes.optimizer),
                                       LL_IS("activations", (int64_t)s->bytes.activations),
                                       LL_IS("buffers", (int64_t)s->bytes.buffers))),
        LL_IS("fits", s->fits), LL_IS("bubble", s->bubble), LL_IS("exposed_comm_s", s->exposed_s),
        LL_IS("bytes_moved", s->moved));
}

static json_t *scaling_json(const ll_plan_results *p)
{
    const ll_of_ranks *q = &p->quickest;
    if (!q->ranks) return json_null();
    return LL_JSON(LL_IS("quickest_ranks", q->ranks), LL_IS("mesh", q->mesh),
                   LL_IS("step_s", q->step_s), LL_IS("note", p->scaling));
}

json_t *ll_plan_results_json(const ll_plan_results *p, json_t *plans, const char *bound)
{
    return LL_JSON(LL_IS("cluster", p->cluster->name), LL_IS("cluster_about", p->cluster->about),
                   LL_IS("kernels", p->cluster->own.source), LL_IS("ranks", p->o->ranks),
                   LL_IS("model", p->run->model.name),
                   LL_IS("precision", ll_precision_name(p->run->train.precision)),
                   LL_IS("optimizer", p->run->train.optim.name),
                   LL_IS("batch", p->run->train.batch), LL_IS("parameters", (int64_t)p->parameters),
                   LL_IS("tried", p->tried), LL_IS("plans", plans), LL_IS("bound", bound),
                   LL_IS("scaling", scaling_json(p)));
}

const char *ll_plan_notes(const ll_shown *s, ll_arena *a)
{
    ll_buf b = {.arena = a};
    for (const ll_layout_rule *l = s->layouts; l && l->pattern; l++)
        ll_buf_printf(&b, "%s %s %s", l == s->layouts ? " " : ",", l->pattern, l->layout);
    ll_buf_printf(&b, "%s%s", s->offload ? "  state in host memory" : "",
                  s->fits ? "" : "  does not fit");
    return b.text;
}

void ll_plan_table(const ll_plan_results *p)
{
    const ll_chip *chip = &p->cluster->chip;
    double batch = (double)p->run->train.batch;
    if (p->n && !p->v[0].fits)
        fprintf(stderr,
                "None of these plans fits the memory; those that need least of it come first.\n");
    fprintf(stderr,
            "%s, %s parameters, %s, %s, batch %g, on %ld x %s (%s): %s\n"
            "  mesh                             schedule     v micro x number z recompute     step "
            "(80 %%)                 %9s/s model %% hardware %% tensors\n",
            p->run->model.name, LL_AMOUNT(p->parameters),
            ll_precision_name(p->run->train.precision), p->run->train.optim.name, batch,
            p->o->ranks, chip->name, p->cluster->name, LL_COUNTED(p->tried, "plan"),
            p->seq ? "tokens" : "samples");
    LL_EACH (const ll_shown, s, p->v, p->n)
        fprintf(stderr,
                "  %-32s %-11s %2d %4ld x %-5ld %d %-9s %8s (%8s to %8s) %8s %5.1f %5.1f %9s%s\n",
                s->mesh, *s->schedule ? s->schedule : "none", s->stages, s->micro_batch, s->n_micro,
                s->zero, s->recompute, LL_TIME(s->step_s), LL_TIME(s->step_s / s->spread),
                LL_TIME(s->step_s * s->spread),
                LL_AMOUNT(batch * (double)(p->seq ? p->seq : 1) / s->step_s),
                percent(p, s, s->model), percent(p, s, s->hardware),
                LL_BYTES(ll_lm_bytes_tensors(&s->bytes)), ll_plan_notes(s, p->arena));
    fprintf(stderr,
            "v: pipeline stages per rank; micro x number: micro-batch size per rank, and "
            "micro-batches per step;\nz: ZeRO stage; model %%, hardware %%: model and hardware "
            "FLOPs utilization (MFU, HFU).\n%s\n",
            ll_plan_about(p->cluster, p->arena));
}

ll_err ll_plan_check_fits(const ll_plan_results *p, double least, const char *more)
{
    const ll_chip *chip = &p->cluster->chip;
    int64_t ranks = p->o->ranks;
    CHECK(p->v[0].fits || least > 1e9 * (chip->memory - chip->reserved), LL_E_MEM,
          "nothing fits train.memory=%s on %s: use %s of it, or %s", p->run->train.memory,
          LL_COUNTED(ranks, "rank"), LL_BYTES_UP(least), more);
    CHECK(p->v[0].fits, LL_E_MEM, "nothing fits the %s of %s (%s reserved) on %s: use %s",
          LL_BYTES(1e9 * chip->memory), chip->name, LL_BYTES(1e9 * chip->reserved),
          LL_COUNTED(ranks, "rank"), more);
    return LL_OK;
}

void ll_plan_tell_train(const ll_plan_results *p)
{
    bool here = ll_plan_machine(p->cluster) || !strcmp(p->cluster->name, "this");
    const ll_model *m = ll_model_find(p->o->run);
    bool alone = m && !m->data; /* a model's name, which train takes in a run file */
    fprintf(stderr, "To train with the best plan%s%s: loopline train %s %s%s%s\n",
            here ? "" : ", on another machine, since Loopline does not run on ",
            here ? "" : p->cluster->chip.name,
            alone ? "RUN.yaml" : ll_plan_word(p->o->run, p->arena), ll_plan_words(p, p->v),
            alone ? ", where RUN.yaml has the data of a " : "", alone ? m->name : "");
}

/* ---- would fewer ranks do? ---- */

/* A batch has only so much to share: kernels of less do not end sooner for ever, and exchanges of
 * more ranks take longer. */
static const double alike = 1.05; /* steps that differ by less are as quick */

/* Slower is what is so beyond the plan's own doubt. */
static const char *say(const ll_plan_results *p, const ll_of_ranks *few)
{
    int64_t ranks = p->o->ranks, batch = p->run->train.batch;
    double longer = p->v[0].step_s / few->step_s;
    return ll_arena_printf(
        p->arena,
        "%ld ranks are %s than %ld at batch %ld: a step takes %s, but %s with --mesh %s. Use %s, "
        "or a larger train.batch: at %ld, each of %ld ranks has as much work as each of %ld "
        "at %ld.",
        ranks,
        longer > p->v[0].spread ? "slower"
        : longer >= 1           ? "no quicker"
                                : "hardly quicker",
        few->ranks, batch, LL_TIME(p->v[0].step_s), LL_TIME(few->step_s), few->mesh,
        LL_COUNTED(few->ranks, "rank"), batch * ranks / few->ranks, ranks, few->ranks, batch);
}

void ll_plan_fewer(ll_plan_results *p, bool (*best)(const void *context, ll_of_ranks *out),
                   const void *context)
{
    double step_s = p->v[0].step_s, flops = p->v[0].model * (double)p->o->ranks;
    /* no step is shorter than its arithmetic at the chips' peak */
    double least_s = flops / ll_chip_peak(&p->cluster->chip, p->run->train.precision);
    ll_of_ranks fewest = {0};
    if (!p->v[0].fits) return;
    p->quickest = (ll_of_ranks){p->o->ranks, p->v[0].mesh, step_s};
    for (int64_t n = p->o->ranks / 2; n >= 1; n--) {
        ll_of_ranks s = {.ranks = n};
        if (p->o->ranks % n) continue;
        if (least_s / (double)n > alike * step_s) break; /* nor are fewer quick enough */
        if (!best(context, &s) || s.step_s > alike * step_s) continue;
        fewest = s;
        if (s.step_s < p->quickest.step_s) p->quickest = s;
    }
    if (fewest.ranks) p->scaling = say(p, p->quickest.ranks < p->o->ranks ? &p->quickest : &fewest);
}
