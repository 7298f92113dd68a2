/* attention.c: the causal mask, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

LL_KERNELS(causal_mask)

ll_err causal_mask_ref(const ll_kcall *c)
{
    const ll_mask_attr *a = (const ll_mask_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t t = x->shape.d[x->shape.n - 2], s = x->shape.d[x->shape.n - 1];
    for (int64_t i = 0; i < ll_numel(&x->shape); i++) {
        int64_t row_t = i / s % t + a->at[0], col = i % s + a->at[1];
        ll_set(&c->out[0], i, col > row_t ? a->value : ll_at(x, i));
    }
    return LL_OK;
}
