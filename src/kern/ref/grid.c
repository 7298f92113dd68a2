/* grid.c: reference kernels of grid and ungrid: element by element, in double. */
#include "kern/grid.h"
#include "kern/rows.h"

LL_KERNELS(grid, ungrid)

/* The sum of the exponents of element e's scales; false: one is not finite. */
static bool exponents(const ll_kcall *c, const ll_walk *w, int64_t e, int64_t *sum)
{
    bool finite = true;
    *sum = 0;
    for (int s = 0; s < w->walkers; s++) {
        int64_t one = ll_grid_exponent(ll_at(&c->in[1 + s], ll_walk_at(w, s, w->n, e)));
        finite &= ll_grid_finite(one);
        *sum += one;
    }
    return finite;
}

static ll_err run(const ll_kcall *c, bool up)
{
    int64_t e;
    ll_walk w;
    ll_grid_walk_of(c, &w);
    for (int64_t i = 0; i < ll_numel(&c->out[0].shape); i++) {
        bool finite = exponents(c, &w, i, &e);
        ll_set(&c->out[0], i, ll_grid_value(ll_at(&c->in[0], i), e, finite, c->attr, up));
    }
    return LL_OK;
}

ll_err grid_ref(const ll_kcall *c)
{
    return run(c, true);
}

ll_err ungrid_ref(const ll_kcall *c)
{
    return run(c, false);
}
