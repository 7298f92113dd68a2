/* dropout.c: dropout, one random number at a time. */
#include "base/rng.h"
#include "kern/dropout.h"
#include "kern/rows.h"

LL_KERNELS(dropout)

ll_err dropout_ref(const ll_kcall *c)
{
    const ll_dropout_attr *a = (const ll_dropout_attr *)c->attr;
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = ll_numel(&x->shape);
    uint64_t stream = (uint64_t)a->stream ^ ll_stream("", c->step);
    for (int64_t i = 0; i < n; i++) {
        float u = ll_uniform_at(c->seed, stream, ll_dropout_index(a, &x->shape, c->micro, i));
        double v = ll_at(x, i) / (1 - a->p);
        ll_set(y, i, (double)u < a->p ? 0 : v);
    }
    return LL_OK;
}
