/* grid.cu: numbers as fixed point and back (op/grid.c): scaling by powers of two is exact, rounding
 * is to nearest even, or to the odd number beside. */
#include "kern/cuda/gpu.cuh"
#include "kern/grid.h"

typedef struct scales {
    const void *m[LL_WALKERS];
    int type[LL_WALKERS];
    ll_walk w;
} scales;

static __global__ void convert(scales s, const void *x, int xt, void *y, int yt, int64_t n,
                               ll_grid_attr a, bool up)
{
    GRID_STRIDE(i, n)
    {
        int64_t e = 0;
        bool finite = true;
        for (int j = 0; j < s.w.walkers; j++) {
            int64_t at = ll_walk_at(&s.w, j, s.w.n, i);
            int64_t one = ll_grid_exponent(load_any(s.m[j], s.type[j], at));
            finite &= ll_grid_finite(one);
            e += one;
        }
        store_any(y, yt, i, ll_grid_value(load_any(x, xt, i), e, finite, &a, up));
    }
}

template <bool UP> static ll_err run(const ll_kcall *c)
{
    int64_t n = ll_numel(&c->out[0].shape);
    scales s = {};
    ll_grid_walk_of(c, &s.w);
    for (int j = 0; j < s.w.walkers; j++)
        s.m[j] = c->in[1 + j].data, s.type[j] = c->in[1 + j].dtype;
    return launch_each(c, n, convert, s, c->in[0].data, c->in[0].dtype, c->out[0].data,
                       c->out[0].dtype, n, *(const ll_grid_attr *)c->attr, UP);
}

extern "C" const ll_solver grid_cuda[] = {{.run = run<true>}, {}},
                           ungrid_cuda[] = {{.run = run<false>}, {}};
