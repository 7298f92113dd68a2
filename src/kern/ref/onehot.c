/* onehot.c: reference kernel of onehot. */
#include "kern/rows.h"
#include "kern/attr.h"

LL_KERNELS(onehot)

ll_err onehot_ref(const ll_kcall *c)
{
    const ll_onehot_attr *a = c->attr;
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t rows = ll_numel(&x->shape);
    if (a->of) TRY(ll_check_labels(x, a->of));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t v = 0; v < a->size; v++)
            ll_set(y, r * a->size + v, ll_at(x, r) == (double)(a->from + v));
    return LL_OK;
}
