/* plan_remedy.c: of a run that does not fit, the first way that would: what costs least is tried
 * first. Smaller micro-batches, activations made again, values laid aside, other meshes and ZeRO of
 * as many ranks; then of more ranks. */
#include "base/process.h"
#include "cli/common.h"
#include "cli/plan.h"
#include "cli/plan_try.h"
#include "run/ranks.h"

enum { RANKS = 64 };
static const double patience_s = 10; /* of a core: what is found is no matter of what else runs */

static double worked(void)
{
    return ll_core_time_now().own;
}

typedef struct need {
    const ll_run *run;
    int64_t ranks, of; /* that it was refused on, of one replica; replicas */
    char mesh[LL_MESH_TEXT];
    double room, began;
    int tried;
    ll_buf told;
} need;

/* The way that was refused. */
static bool is_refused(const need *d, const ll_recipe *w, int64_t ranks)
{
    const ll_run_parallel *was = &d->run->parallel;
    return ranks == d->ranks && w->micro == ll_run_micro_batches(d->run) && !w->aside &&
           w->zero == was->zero && !strcmp(w->mesh, d->mesh) &&
           !strcmp(w->recompute, was->recompute);
}

static bool fits(need *d, const ll_recipe *w, int64_t ranks, size_t *bytes)
{
    LL_OWN(ll_program) p = NULL;
    if (is_refused(d, w, ranks)) return false;
    d->tried++;
    if (ll_recipe_compile(d->run, NULL, w, ll_cli_threads(d->run, ranks), &p, bytes) != LL_OK)
        return false;
    return (double)*bytes <= d->room;
}

/* What is said of a pipeline is refused without one. */
static void tell_no_pipe(ll_buf *out, const ll_run_parallel *was, const char *mesh)
{
    ll_mesh m;
    if (ll_mesh_parse(mesh, &m) != LL_OK || ll_mesh_axis(&m, LL_AXIS_PIPE) >= 0) return;
    if (*was->schedule) ll_buf_puts(out, " -s parallel.schedule=");
    if (*was->stages) ll_buf_puts(out, " -s parallel.stages=");
    if (was->virtual_stages > 1) ll_buf_puts(out, " -s parallel.virtual_stages=0");
}

/* What differs from the run that was refused, as options to put behind its command. */
static void tell(need *d, const ll_recipe *w, int64_t ranks, size_t bytes)
{
    const ll_run_parallel *was = &d->run->parallel;
    ll_buf *out = &d->told;
    ll_buf_puts(out, "it would fit with");
    if (w->micro != ll_run_micro_batches(d->run))
        ll_buf_printf(out, " -s train.micro_batch=%ld", (d->of * d->run->train.batch / w->micro));
    if (w->recompute && strcmp(w->recompute, was->recompute))
        ll_buf_printf(out, " -s parallel.recompute=%s", w->recompute);
    tell_no_pipe(out, was, w->mesh);
    if (w->aside && w->aside != (size_t)d->run->train.memory_bytes)
        ll_buf_printf(out, " -s train.memory=%zuB", w->aside);
    if (w->aside) ll_buf_puts(out, " -s train.offload=FOLDER");
    if (ranks != d->ranks) ll_buf_printf(out, " -n %ld", (d->of * ranks));
    if (ranks > 1 && (ranks != d->ranks || strcmp(w->mesh, d->mesh)))
        ll_buf_printf(out, " --mesh %s", w->mesh);
    if (w->zero != was->zero) ll_buf_printf(out, " --zero %d", w->zero);
    ll_buf_printf(out, ": %s a rank", LL_BYTES(bytes));
}

/* With the largest micro-batch that fits, if the smallest does. */
static bool try_micro(need *d, ll_recipe w, int64_t ranks)
{
    int64_t batch = d->run->train.batch, first = ll_run_micro_batches(d->run), most = first;
    size_t least, bytes;
    if (worked() - d->began > patience_s) return false;
    for (int64_t n = first; n <= batch / ranks; n++)
        if (batch % n == 0) most = n;
    w.micro = most;
    if (!fits(d, &w, ranks, &least)) return false;
    for (w.micro = first; w.micro < most && worked() - d->began <= patience_s; w.micro++) {
        if (batch % w.micro || !fits(d, &w, ranks, &bytes)) continue;
        tell(d, &w, ranks, bytes);
        return true;
    }
    w.micro = most;
    tell(d, &w, ranks, least);
    return true;
}

/* As it is, and with activations made again. */
static bool try_kept(need *d, ll_recipe w, int64_t ranks)
{
    if (try_micro(d, w, ranks)) return true;
    w.recompute = "full";
    return try_micro(d, w, ranks);
}

static bool try_mesh(need *d, const char *mesh, int zero, int64_t ranks)
{
    ll_recipe w = {.zero = zero, .room = d->room, .recompute = d->run->parallel.recompute};
    snprintf(w.mesh, sizeof w.mesh, "%s", mesh);
    return try_kept(d, w, ranks);
}

/* Updates by gradients of a server are made without the step that would have fetched what lies
 * aside, and has sums beside it (exec/session_round.c). */
static bool in_rounds(const need *d)
{
    return d->of > 1 && ll_consistency_rounds(&d->run->parallel.between);
}

static bool try_aside(need *d)
{
    ll_recipe w = {.zero = (int)d->run->parallel.zero, .recompute = d->run->parallel.recompute};
    if (*d->run->train.offload || ll_target_find(d->run->train.machine)->aside.word || in_rounds(d))
        return false;
    snprintf(w.mesh, sizeof w.mesh, "%s", d->mesh);
    w.aside = (size_t)d->room;
    return try_kept(d, w, d->ranks);
}

static bool try_ranks(need *d, int64_t n)
{
    static const char *const axes[] = {"tensor", "pipe", "height"};
    char mesh[LL_MESH_TEXT];
    ll_mesh_with(n, "data", n, mesh);
    for (int zero = 1; zero <= 3; zero += 2)
        if (try_mesh(d, mesh, zero, n)) return true;
    for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
        for (int64_t k = 2; k <= 8 && k <= n; k *= 2) {
            if (n % k || (in_rounds(d) && !strcmp(axes[a], "pipe"))) continue;
            ll_mesh_with(n, axes[a], k, mesh);
            if (try_mesh(d, mesh, 0, n)) return true;
        }
    return false;
}

const char *ll_plan_remedy(const ll_run *r, int64_t ranks, double room)
{
    const ll_run own = ll_run_replica(r, 0); /* which has batches and ranks of its own */
    int64_t of = ll_run_loose(r) ? r->parallel.replicas : 1, n = ranks / of;
    need d = {.run = &own,
              .ranks = n,
              .of = of,
              .room = room,
              .began = worked(),
              .told = {.arena = r->arena}};
    if (ll_run_mesh(r, (int)ranks, d.mesh) != LL_OK) return "";
    if (try_mesh(&d, d.mesh, (int)r->parallel.zero, n) || try_aside(&d)) return d.told.text;
    for (; n <= RANKS && worked() - d.began <= patience_s; n *= 2)
        if (n > 1 && try_ranks(&d, n)) return d.told.text;
    return ll_arena_printf(
        r->arena,
        "none of the %d ways to train it that were tried, on up to %ld ranks, fits %s per rank "
        "(try others with loopline inspect RUN --mesh ...)",
        d.tried, (of * n / 2), LL_BYTES(room));
}
