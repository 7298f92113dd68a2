/* grid.c: reference kernels of grid and ungrid: element by element, in double. */
#include "kern/grid.h"
#include "kern/rows.h"

ll_kernel grid_ref, ungrid_ref;

/* The sum of the exponents of element e's scales; false: one is not finite. */
static bool exponents(const ll_kcall *c, const ll_walk *w, int64_t e, int64_t *sum)
{
    int64_t row = w->size[w->n - 1];
    bool finite = true;
    *sum = 0;
    for (int s = 0; s < w->walkers; s++) {
        int64_t at = ll_walk_at(w, s, w->n - 1, e / row) + e % row * w->stride[s][w->n - 1];
        double m = ll_at(&c->in[1 + s], at);
        finite &= ll_grid_finite(ll_grid_exponent(m));
        *sum += ll_grid_exponent(m);
    }
    return finite;
}

static ll_err run(const ll_kcall *c, bool up)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t bits = ((const ll_grid_attr *)c->attr)->bits, n = ll_numel(&y->shape), e;
    double most = ll_grid_most(bits);
    bool odd = ((const ll_grid_attr *)c->attr)->odd;
    ll_walk w;
    ll_grid_walk_of(c, &w);
    for (int64_t i = 0; i < n; i++) {
        bool finite = exponents(c, &w, i, &e);
        double v = ll_at(x, i);
        v *= ll_grid_power(up ? bits - e : e - bits, finite);
        if (y->dtype == LL_U8) {
            ll_set(y, i, ll_grid_level(v));
            continue;
        }
        /* Sums of zeros of either sign are zeros of either: made one here. */
        v = (!up ? v : odd ? ll_grid_odd(v) : rint(v)) + 0.0;
        ll_set(y, i, up && !odd && v > most ? most : v);
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
