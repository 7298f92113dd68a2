/* reduce.c: reference kernels of sum, amax, absmax and sumsq: for each element of the result, all
 * elements of the operand, those that belong to it. Quadratic for small results' sake of plainness:
 * a result element walks only the loops that vanish. */
#include "kern/rows.h"
#include "kern/attr.h"
#include "base/spec.h"

#include <math.h>

LL_KERNELS(sum, amax, absmax, sumsq)

typedef enum how { SUM, LARGEST, MAGNITUDE, SQUARES } how;

static ll_err reduce(const ll_kcall *c, how how)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    ll_spec s;
    TRY(ll_spec_parse(((const ll_spec_attr *)c->attr)->spec, &s));
    int64_t n = ll_numel(&y->shape), rest = 1;
    for (int i = 0; i < s.n_in; i++)
        if (s.to[i] < 0) rest *= x->shape.d[i];
    for (int64_t e = 0; e < n; e++) {
        double all = how == LARGEST ? -INFINITY : 0;
        for (int64_t r = 0; r < rest; r++) {
            /* Digits of e for the dimensions that stay, of r for those that vanish. */
            int64_t kept = e, gone = r, from = 0, stride = 1;
            for (int i = s.n_in - 1; i >= 0; i--) {
                int64_t d = x->shape.d[i], *digits = s.to[i] < 0 ? &gone : &kept;
                from += *digits % d * stride;
                *digits /= d;
                stride *= d;
            }
            double v = ll_at(x, from);
            if (how == MAGNITUDE) v = fabs(v);
            if (how == SQUARES)
                all += v * v;
            else if (how == SUM)
                all += v;
            else if (v > all || isnan(v))
                all = v;
        }
        /* Of zeros the largest is +0, in whatever order they come. */
        ll_set(y, e, all + 0.0);
    }
    return LL_OK;
}

#define KERNEL(name, how)                                                                          \
    ll_err name##_ref(const ll_kcall *c)                                                           \
    {                                                                                              \
        return reduce(c, how);                                                                     \
    }
KERNEL(sum, SUM)
KERNEL(amax, LARGEST)
KERNEL(absmax, MAGNITUDE)
KERNEL(sumsq, SQUARES)
