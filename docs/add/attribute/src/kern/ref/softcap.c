/* softcap.c: cap tanh(x / cap), by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(softcap)

ll_err softcap_ref(const ll_kcall *c)
{
    double cap = ((const ll_softcap_attr *)c->attr)->cap;
    int64_t n = ll_numel(&c->in[0].shape);
    for (int64_t i = 0; i < n; i++) ll_set(&c->out[0], i, cap * tanh(ll_at(&c->in[0], i) / cap));
    return LL_OK;
}
