/* cmd_plan.c: loopline plan: predicts memory and time of a training on a cluster. */
#include "cli/plan.h"

static const ll_arg args[] = {
    {"[RUN]", LL_OPT(ll_plan_opts, run), NULL, "a run file or a bundled run's name"},
    {"[FOLDER...]", LL_OPT(ll_plan_opts, folders), NULL, "more run folders, after --check"},
    {"--cluster", LL_OPT(ll_plan_opts, clusters), "NAME|FILE",
     "the cluster: a bundled one, `this`, or a file"},
    {"--ranks|-n", LL_ARG_COUNT, offsetof(ll_plan_opts, ranks), "N", "chips of it"},
    {"--mesh", LL_OPT(ll_plan_opts, mesh), "MESH",
     "predict this mesh alone, such as data=4,tensor=8,pipe=2"},
    {"--top", LL_ARG_COUNT, offsetof(ll_plan_opts, top), "K", "show the K best plans", "10"},
    {"--tokens", LL_ARG_COUNT, offsetof(ll_plan_opts, tokens), "N",
     "also tell what training on N tokens (1e10, 10G) takes, with failures"},
    {"--set|-s", LL_OPT(ll_plan_opts, set), "KEY=VALUE", "override a setting"},
    {"--published", LL_OPT(ll_plan_opts, published), "FILE.csv",
     "predict the rows of a table of published results, and tell the errors; or of a bundled one: "
     "held-out"},
    {"--report", LL_OPT(ll_plan_opts, report), "FILE.html",
     "pictures: roofline, scaling; of a pipeline timeline and memory; with --tokens the cost"},
    {"--trace", LL_OPT(ll_plan_opts, trace), "FILE.json",
     "the simulated pipeline as a Chrome trace"},
    {"--large", LL_OPT(ll_plan_opts, large), NULL,
     "predict ten of the largest trainings that were published"},
    {"--check", LL_OPT(ll_plan_opts, check), "FOLDER",
     "how well trainings in this run folder, and those that follow, were predicted"},
    {"--json", LL_OPT(ll_plan_opts, json), NULL, "print one JSON object"},
    {0}};

/* --check A B C is --check A --check B --check C. */
static ll_err check(const ll_plan_opts *o)
{
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_plan_opts all = *o;
    all.check = (ll_words){.v = LL_NEW_ARRAY(arena, const char *, o->check.n + o->folders.n + 1)};
    for (int i = 0; i < o->check.n; i++) all.check.v[all.check.n++] = o->check.v[i];
    if (o->run) all.check.v[all.check.n++] = o->run;
    for (int i = 0; i < o->folders.n; i++) all.check.v[all.check.n++] = o->folders.v[i];
    return ll_plan_check(&all);
}

static ll_err run(const void *given)
{
    const ll_plan_opts *o = (const ll_plan_opts *)given;
    bool table = o->published || o->large;
    CHECK(!o->run || !table, LL_E_ARG,
          "'%s' is a RUN beside --published or --large, which take none", o->run);
    CHECK(!o->folders.n || o->check.n, LL_E_ARG,
          "'%s' is one word too many; see loopline plan --help", o->folders.v[0]);
    CHECK(!(table || o->check.n) || (!o->ranks && !o->mesh && !o->tokens && !o->set.n &&
                                     !o->report && !o->trace && o->top == 10),
          LL_E_ARG, "--ranks, --mesh, --top, --tokens, --set, --report and --trace are of a RUN");
    CHECK((o->published != NULL) + o->large + (o->check.n > 0) <= 1, LL_E_ARG,
          "--published, --large and --check exclude each other");
    CHECK(!o->check.n || !o->clusters.n, LL_E_ARG,
          "--check reads what train predicted; --cluster is of a RUN, --published and --large");
    if (table) return ll_plan_published(o);
    if (o->check.n) return check(o);
    CHECK(o->run, LL_E_ARG, "want a RUN, --published FILE.csv, --large, or --check FOLDER");
    return ll_plan_run(o);
}

const ll_command ll_command_plan = {"plan", "predicts memory and time of a training on a cluster",
                                    args, sizeof(ll_plan_opts), run};
