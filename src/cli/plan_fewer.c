/* plan_fewer.c: would fewer ranks do? A batch has only so much to share: kernels of less do not end
 * sooner for ever, and exchanges among more ranks take longer. */
#include "cli/plan.h"

static const double alike = 1.05; /* steps that differ by less are as quick */

/* No step is shorter than its arithmetic at the chips' peak. */
static double least_s(const ll_plan_results *p, int64_t ranks)
{
    double flops = p->v[0].model * (double)p->o->ranks;
    return flops / ll_chip_peak(&p->cluster->chip, p->run->train.precision) / (double)ranks;
}

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
    double step_s = p->v[0].step_s;
    ll_of_ranks fewest = {0};
    if (!p->v[0].fits) return;
    p->quickest = (ll_of_ranks){p->o->ranks, p->v[0].mesh, step_s};
    for (int64_t n = p->o->ranks / 2; n >= 1; n--) {
        ll_of_ranks s = {.ranks = n};
        if (p->o->ranks % n) continue;
        if (least_s(p, n) > alike * step_s) break; /* nor are fewer quick enough */
        if (!best(context, &s) || s.step_s > alike * step_s) continue;
        fewest = s;
        if (s.step_s < p->quickest.step_s) p->quickest = s;
    }
    if (fewest.ranks) p->scaling = say(p, p->quickest.ranks < p->o->ranks ? &p->quickest : &fewest);
}
