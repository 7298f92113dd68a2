/* lse.c: log sum exp along rows, by plain loops. */
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(lse)

ll_err lse_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0;
        for (int64_t i = r * n; i < (r + 1) * n; i++) top = fmax(top, ll_at(x, i));
        for (int64_t i = r * n; i < (r + 1) * n; i++) sum += exp(ll_at(x, i) - top);
        ll_set(y, r, log(sum) + top);
    }
    return LL_OK;
}
