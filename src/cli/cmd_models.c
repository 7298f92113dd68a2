/* cmd_models.c: loopline models. */
#include "cli/common.h"

#include "program/program.h"

typedef struct opts {
    const char *name;
    ll_words set;
    bool json;
} opts;

static const ll_arg args[] = {
    {"[MODEL]", LL_OPT(opts, name), NULL, "show only this model, and explain its sizes"},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE",
     "change a size from its default, such as model.layers=4; needs MODEL"},
    {"--json", LL_OPT(opts, json), NULL, "print a JSON list to standard output"},
    {0}};

typedef struct listing {
    const opts *o;
    json_t *list;
    int n, ill; /* models; of these, that cannot be made */
} listing;

/* flops: forward, of one sample. */
static void print_line(const ll_run *r, int64_t parameters, double flops)
{
    printf("%-10s %14ld %9sFLOP  ", r->model.name, parameters, LL_AMOUNT(flops));
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        printf("%s%s=%ld", i ? " " : "", r->model.sizes[i].name, r->model.sizes[i].value);
    printf("\n");
}

static json_t *as_json(const ll_run *r, int64_t parameters, double flops)
{
    json_t *sizes = json_object();
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        LL_JSON_ADD(sizes, LL_IS(r->model.sizes[i].name, r->model.sizes[i].value));
    return LL_JSON(LL_IS("name", r->model.name), LL_IS("help", r->model.def->help),
                   LL_IS("parameters", parameters), LL_IS("flops_per_sample", flops),
                   LL_IS("sizes", sizes));
}

/* Before the first line, once there is one. */
static void count(listing *l)
{
    if (!l->n++ && !l->o->json)
        printf("%-10s %14s %13s  sizes\n", "model", "parameters", "per sample");
}

static ll_err one(listing *l, const ll_model *m)
{
    LL_OWN(ll_run) r = NULL;
    LL_OWN(ll_graph) g = NULL;
    const opts *o = l->o;
    TRY(ll_cli_run(m->name, &o->set, true, &r));
    for (int i = 0; i < o->set.n; i++)
        CHECK(!strncmp(o->set.v[i], "model.", 6), LL_E_ARG,
              "--set %s is not a model size: use inspect for other settings", o->set.v[i]);
    TRY(ll_run_graph(r, 1, NULL, &g));
    int64_t parameters = ll_cli_numbers(g, LL_PARAM, NULL);
    count(l);
    if (o->json)
        json_array_append_new(l->list, as_json(r, parameters, ll_graph_flops(g)));
    else
        print_line(r, parameters, ll_graph_flops(g));
    return LL_OK;
}

/* In the place of its facts. */
static void tell_ill(listing *l, const ll_model *m)
{
    count(l);
    l->ill++;
    if (l->o->json)
        json_array_append_new(l->list,
                              LL_JSON(LL_IS("name", m->name), LL_IS("error", ll_error_message())));
    else
        printf("%-10s cannot be made: %s\n", m->name, ll_error_message());
}

static ll_err all(listing *l, const ll_model *only)
{
    const opts *o = l->o;
    if (only) TRY(one(l, only));
    for (const ll_model *const *m = ll_model_all(); *m && !only; m++)
        if (one(l, *m) != LL_OK) tell_ill(l, *m);
    if (!only || o->json) return LL_OK;
    printf("\n%s\n", only->help);
    for (int i = 0; i < LL_MAX_SIZES && only->sizes[i].name; i++)
        printf("  model.%-10s %8ld  %s\n", only->sizes[i].name, only->sizes[i].value,
               only->sizes[i].help);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    const ll_model *only = NULL;
    if (o->name) {
        ll_near near = {.word = o->name};
        for (const ll_model *const *m = ll_model_all(); *m; m++) ll_near_try(&near, (*m)->name);
        only = ll_model_find(o->name);
        CHECK(only, LL_E_ARG, "unknown model '%s'%s (models:%s)", o->name, ll_near_hint(&near),
              near.known);
    }
    CHECK(only || !o->set.n, LL_E_ARG, "--set needs a MODEL");
    json_auto_t *list = json_array();
    listing l = {.o = o, .list = list};
    TRY(all(&l, only));
    if (o->json) TRY(ll_cli_json(json_incref(list)));
    CHECK(!l.ill, LL_E_ARG, "%d of %d models cannot be made: see the list", l.ill, l.n);
    return LL_OK;
}

const ll_command ll_command_models = {
    "models", "list models with their parameters, FLOPs and sizes", args, sizeof(opts), run};
