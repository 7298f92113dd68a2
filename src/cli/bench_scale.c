/* bench_scale.c: loopline bench scale: one run on several numbers of ranks, each in a job of its
 * own, several times.
 *
 * Repeats go round: 1, 2, 4 ranks, then again, so that what changes on the machine meanwhile
 * changes all of them. Hardware is counted honestly: every rank has as many threads, so p ranks
 * have p times the cores of one, as far as there are; and beside them one rank is measured on the
 * same cores. */
#include "cli/bench.h"
#include "cli/common.h"

#include "base/stats.h"
#include "comm/job.h"

#include <omp.h>

typedef ll_scale_bench_opts opts;

static const ll_arg args[] = {
    {"RUN", LL_OPT(opts, run), NULL, "a run file or the name of a bundled run"},
    {"--ranks", LL_OPT(opts, ranks), "1,2,4",
     "numbers of ranks to measure; the first is the baseline [default: 1,2]"},
    {"--strong", LL_OPT(opts, strong), NULL, "strong scaling: constant global batch (the default)"},
    {"--weak", LL_OPT(opts, weak), NULL,
     "weak scaling: the global batch grows with the number of ranks"},
    {"--mesh", LL_OPT(opts, mesh), "PATTERN",
     "mesh with a * for the axis that grows, such as data=*,tensor=2 [default: data=*]"},
    {"--zero", LL_ARG_SETTING, offsetof(opts, set), "0..3",
     "ZeRO stage, sharding over axis data: 1 = optimizer state, 2 = and gradients, 3 = and "
     "parameters",
     "parallel.zero"},
    {"--threads|-t", LL_OPT(opts, threads), "N",
     "threads per rank; if not given, the cores divided by the largest number of ranks"},
    {"--steps", LL_ARG_COUNT, offsetof(opts, steps), "N", "steps to time in each repeat", "20"},
    {"--warm-up", LL_OPT(opts, warm_up), "N", "warm-up steps before them", "3"},
    {"--repeats", LL_ARG_COUNT, offsetof(opts, repeats), "N",
     "jobs per number of ranks [default: 3]"},
    {"--trace", LL_OPT(opts, trace), "FILE",
     "write a Chrome trace of the last repeat with the most ranks"},
    {"-n", LL_OPT(opts, one), "RANKS",
     "run a single job on this many ranks and print JSON; under mpirun or srun, on theirs",
     .most = LL_RANKS_MOST},
    {"--set|-s", LL_OPT(opts, set), "KEY=VALUE", "override a setting of the run"},
    {"--json", LL_OPT(opts, json), NULL, "print one JSON object to standard output"},
    {0}};

/* ---- one job ---- */

static ll_err measure(const opts *o, ll_comm *c, const ll_run *r)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_scale_point p;
    TRY(ll_scale_measure(r, c, &(ll_scale_opts){o->steps, o->warm_up, o->trace}, a, &p));
    return ll_comm_rank(c) == 0 ? ll_cli_json(ll_scale_point_json(&p)) : LL_OK;
}

static ll_err run_one(const opts *o, const ll_run *r)
{
    ll_comm *c;
    const char *idle = o->ranks     ? "--ranks"
                       : o->repeats ? "--repeats"
                       : o->mesh    ? "--mesh"
                       : o->threads ? "--threads"
                       : o->weak    ? "--weak"
                       : o->strong  ? "--strong"
                                    : NULL;
    CHECK(!idle, LL_E_ARG,
          "%s applies only to several jobs, but -n or mpirun runs one: leave one of them out (use "
          "--set for parallel.mesh, train.threads and train.batch)",
          idle);
    TRY(ll_cli_ranks(r, o->one, NULL, &c));
    return ll_cli_leave(c, measure(o, c, r));
}

/* ---- what to measure ---- */

/* "data=*,tensor=2" on 6 ranks: "data=3,tensor=2"; on one rank there is no mesh. */
static ll_err fill_mesh(const char *pattern, int ranks, ll_arena *a, const char **out)
{
    const char *star = strchr(pattern, '*');
    CHECK(star && !strchr(star + 1, '*'), LL_E_ARG,
          "--mesh '%s': expected one *, for the axis that grows: data=*,tensor=2", pattern);
    *out = "";
    if (ranks == 1) return LL_OK;
    ll_mesh m;
    int before = (int)(star - pattern);
    TRY(ll_mesh_parse(ll_arena_printf(a, "%.*s1%s", before, pattern, star + 1), &m));
    CHECK(ranks % m.n_rank == 0, LL_E_ARG,
          "--mesh %s on %d ranks: the other axes need %d ranks, and %d is not a multiple of that",
          pattern, ranks, m.n_rank, ranks);
    *out = ll_arena_printf(a, "%.*s%d%s", before, pattern, ranks / m.n_rank, star + 1);
    return ll_mesh_parse(*out, &m);
}

static ll_err read_ranks(const char *text, ll_arena *a, int **out, int *n)
{
    const char *all = text;
    *out = LL_NEW_ARRAY(a, int, strlen(text) + 1);
    for (*n = 0; *text;) {
        char *end;
        long v = strtol(text, &end, 10);
        CHECK(end != text && v >= 1 && v <= 4096 && (!*end || (*end == ',' && end[1])), LL_E_ARG,
              "--ranks '%s': expected numbers from 1 to 4096, such as 1,2,4", all);
        for (int i = 0; i < *n; i++)
            CHECK((*out)[i] != v, LL_E_ARG, "--ranks '%s' lists %ld twice", all, v);
        (*out)[(*n)++] = (int)v;
        text = *end ? end + 1 : end;
    }
    CHECK(*n, LL_E_ARG, "--ranks is empty: expected numbers such as 1,2,4");
    return LL_OK;
}

/* Each once. */
static ll_err add_row(ll_scale_bench_report *r, int ranks, int threads, int64_t batch)
{
    ll_scale_row *x = r->rows, *end = &r->rows[r->n_row];
    while (x < end && (x->ranks != ranks || x->threads != threads || x->batch != batch)) x++;
    if (x < end) return LL_OK;
    r->n_row++;
    *x = (ll_scale_row){.ranks = ranks, .threads = threads, .batch = batch};
    x->cores = ranks * threads < r->cores ? ranks * threads : r->cores;
    x->crowded = ranks * threads > r->cores;
    return fill_mesh(r->opts->mesh, ranks, r->arena, &x->mesh);
}

static ll_err plan(ll_scale_bench_report *r)
{
    const opts *o = r->opts;
    int *ranks, n, most = 1;
    TRY(read_ranks(o->ranks, r->arena, &ranks, &n));
    for (int i = 0; i < n; i++) most = ranks[i] > most ? ranks[i] : most;
    int threads = (int)(o->threads ? o->threads : r->cores / most);
    if (threads < 1) threads = 1;
    r->rows = LL_NEW_ARRAY(r->arena, ll_scale_row, 2 * n);
    for (int i = 0; i < n; i++)
        TRY(add_row(r, ranks[i], threads, r->run->train.batch * (o->weak ? ranks[i] : 1)));
    for (int i = 0; i < n; i++) {
        ll_scale_row x = r->rows[i];
        if (x.ranks > 1) TRY(add_row(r, 1, x.cores, x.batch));
    }
    return LL_OK;
}

/* ---- measuring ---- */

static ll_err run_job(const ll_scale_bench_report *r, const ll_scale_row *x, bool trace,
                      ll_scale_point *out)
{
    const opts *o = r->opts;
    ll_arena *a = r->arena;
    const char **w = LL_NEW_ARRAY(a, const char *, 2 * o->set.n + 32);
    int64_t micro = r->run->train.micro_batch * (x->batch / r->run->train.batch);
    int n = 0;
    const char *const fixed[] = {"bench", "scale", o->run, "--json", "-n"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) w[n++] = fixed[i];
    w[n++] = ll_arena_printf(a, "%d", x->ranks);
    w[n++] = ll_arena_printf(a, "--steps=%ld", o->steps);
    w[n++] = ll_arena_printf(a, "--warm-up=%ld", o->warm_up);
    if (trace) w[n++] = ll_arena_printf(a, "--trace=%s", o->trace);
    for (int i = 0; i < o->set.n; i++) w[n++] = ll_arena_printf(a, "--set=%s", o->set.v[i]);
    w[n++] = ll_arena_printf(a, "--set=train.batch=%ld", x->batch);
    w[n++] = ll_arena_printf(a, "--set=train.micro_batch=%ld", micro);
    w[n++] = ll_arena_printf(a, "--set=train.threads=%d", x->threads);
    w[n++] = ll_arena_printf(a, "--set=parallel.mesh=%s", x->mesh);
    LL_OWN_MEMORY char *text = NULL;
    size_t bytes;
    TRY(ll_cli_job(x->ranks, x->threads, w, n, &text, &bytes));
    return ll_scale_point_parse(text, bytes, a, out);
}

/* Another repeat's measurement: number k of n. */
static void add_point(ll_scale_row *x, ll_arena *a, ll_scale_point *p, int k, int n)
{
    ll_scale_point was = x->point;
    double *all = k ? was.times : LL_NEW_ARRAY(a, double, p->n_step *n);
    memcpy(all + (size_t)k * (size_t)p->n_step, p->times, sizeof *all * (size_t)p->n_step);
    ll_stats_sort(p->times, p->n_step);
    double median = ll_quantile(p->times, p->n_step, 0.5);
    x->point = *p;
    x->point.times = all;
    x->point.exposed_s = (k * was.exposed_s + p->exposed_s) / (k + 1);
    x->point.most_exposed_s = (k * was.most_exposed_s + p->most_exposed_s) / (k + 1);
    x->least_s = k == 0 || median < x->least_s ? median : x->least_s;
    x->most_s = k == 0 || median > x->most_s ? median : x->most_s;
}

static void sum_up(ll_scale_row *x, int repeats)
{
    double *t = x->point.times;
    int n = x->point.n_step * repeats;
    ll_stats_sort(t, n);
    x->step_s = ll_quantile(t, n, 0.5);
    x->q1_s = ll_quantile(t, n, 0.25);
    x->q3_s = ll_quantile(t, n, 0.75);
    x->mean_s = 0;
    for (int i = 0; i < n; i++) x->mean_s += t[i] / n;
    x->point.n_step = n;
}

static ll_err run_all(ll_scale_bench_report *r)
{
    const opts *o = r->opts;
    int n = (int)o->repeats, traced = 0; /* the one with most ranks */
    for (int i = 0; i < r->n_row; i++)
        if (r->rows[i].ranks > r->rows[traced].ranks) traced = i;
    for (int k = 0; k < n; k++)
        for (int i = 0; i < r->n_row; i++) {
            ll_scale_row *x = &r->rows[i];
            ll_scale_point p;
            if (!o->json)
                fprintf(stderr, "repeat %d of %d: %s x %s\n", k + 1, n,
                        LL_COUNTED(x->ranks, "rank"), LL_COUNTED(x->threads, "thread"));
            TRY(run_job(r, x, o->trace && k == n - 1 && i == traced, &p));
            add_point(x, r->arena, &p, k, n);
        }
    for (int i = 0; i < r->n_row; i++) sum_up(&r->rows[i], n);
    return LL_OK;
}

/* ---- the command ---- */

static ll_err run_table(const opts *given, const ll_run *run, ll_arena *a)
{
    opts own = *given, *o = &own;
    if (!o->ranks) o->ranks = "1,2";
    if (!o->mesh) o->mesh = "data=*";
    if (!o->repeats) o->repeats = 3;
    ll_scale_bench_report r = {.opts = o, .run = run, .arena = a};
    r.cores = omp_get_num_procs();
    if (getloadavg(&r.load, 1) != 1) r.load = -1;
    CHECK(!o->weak || !o->strong, LL_E_ARG, "--weak cannot be combined with --strong");
    CHECK(o->repeats <= 1000, LL_E_ARG, "--repeats is %ld, expected 1 to 1000", o->repeats);
    TRY(plan(&r));
    TRY(run_all(&r));
    if (o->json) return ll_scale_bench_json(&r);
    ll_scale_bench_print(&r);
    return LL_OK;
}

static ll_err run(const void *given)
{
    const opts *o = (const opts *)given;
    LL_OWN(ll_arena) a = ll_arena_new();
    LL_OWN(ll_run) r = NULL;
    TRY(ll_cli_run_one(o->run, &o->set, false, &r));
    return o->one || ll_job_size() > 1 ? run_one(o, r) : run_table(o, r, a);
}

const ll_command ll_bench_scale_command = {
    "bench scale", "time a run on several numbers of ranks: speed-up, bytes sent, memory", args,
    sizeof(opts), run};
