/* reach, reference: for each element of the result, the largest over the loops it does not have. */
#include "kern/reach.h"

LL_KERNELS(reach)

ll_err reach_ref(const ll_kcall *c)
{
    ll_reach r = ll_reach_of(c);
    for (int64_t e = 0, at; e < ll_numel(&c->out[0].shape); e++) {
        float v = ll_reach_at(&r, c->in[0].data, c->in[1].data, e, &at);
        ((float *)c->out[0].data)[at] = v;
    }
    return LL_OK;
}
