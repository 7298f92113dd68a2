/* cmd_plan.c: loopline plan: predicts memory and time of a training on a cluster. */
#include "cli/launch.h"
#include "cli/plan.h"

static const ll_arg args[] = {
    {"[RUN]", LL_OPT(ll_plan_opts, run), NULL, "a run file or the name of a bundled run"},
    {"[FOLDER...]", LL_OPT(ll_plan_opts, folders), NULL, "with --check: more run folders"},
    {"--cluster", LL_OPT(ll_plan_opts, clusters), "NAME|FILE",
     "cluster to predict for: a bundled one, a file, or `this` for this machine"},
    {"--ranks|-n", LL_ARG_COUNT, offsetof(ll_plan_opts, ranks), "N", "number of chips to use",
     .most = LL_RANKS_MOST},
    {"--mesh", LL_OPT(ll_plan_opts, mesh), "MESH",
     "predict only this mesh, such as data=4,tensor=8,pipe=2"},
    {"--top", LL_ARG_COUNT, offsetof(ll_plan_opts, top), "K",
     "number of plans to show, best first, or where none fits those that need the least memory",
     "10"},
    {"--tokens", LL_ARG_COUNT, offsetof(ll_plan_opts, tokens), "N",
     "predict time, energy and cost of training on N tokens too, such as 1e10 or 10G, failures "
     "included"},
    {"--set|-s", LL_OPT(ll_plan_opts, set), "KEY=VALUE", "override a setting of the run"},
    {"--published", LL_OPT(ll_plan_opts, published), "FILE.csv",
     "predict the rows of a table of published results and print the errors; `held-out` is a "
     "bundled table"},
    {"--report", LL_OPT(ll_plan_opts, report), "FILE.html",
     "write a report with charts: roofline and scaling; timeline and memory of pipelines; with "
     "--tokens, cost"},
    {"--trace", LL_OPT(ll_plan_opts, trace), "FILE.json",
     "write the simulated pipeline as a Chrome trace"},
    {"--large", LL_OPT(ll_plan_opts, large), NULL,
     "predict ten of the largest published training runs"},
    {"--check", LL_OPT(ll_plan_opts, check), "FOLDER",
     "compare predicted and measured step times of the runs in this folder and those that follow"},
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
    CHECK(!o->run || !table, LL_E_ARG, "RUN '%s' cannot be combined with --published or --large",
          o->run);
    CHECK(!o->folders.n || o->check.n, LL_E_ARG,
          "unexpected argument '%s'; see loopline plan --help", o->folders.v[0]);
    CHECK(!(table || o->check.n) || (!o->ranks && !o->mesh && !o->tokens && !o->set.n &&
                                     !o->report && !o->trace && o->top == 10),
          LL_E_ARG, "--ranks, --mesh, --top, --tokens, --set, --report and --trace need a RUN");
    CHECK((o->published != NULL) + o->large + (o->check.n > 0) <= 1, LL_E_ARG,
          "--published, --large and --check cannot be combined: use one of them");
    CHECK(!o->check.n || !o->clusters.n, LL_E_ARG,
          "--check cannot be combined with --cluster, which needs a RUN, --published or --large");
    if (table) return ll_plan_published(o);
    if (o->check.n) return check(o);
    CHECK(o->run, LL_E_ARG, "expected a RUN, --published FILE.csv, --large, or --check FOLDER");
    return ll_plan_run(o);
}

const ll_command ll_command_plan = {
    "plan", "predict memory and step time on a cluster, and find the best mesh", args,
    sizeof(ll_plan_opts), run};
