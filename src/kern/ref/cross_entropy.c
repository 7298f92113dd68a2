/* cross_entropy.c: right answers, by plain loops; cross-entropy is what it expands to. */
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(correct)

ll_err correct_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    const int32_t *label = (const int32_t *)c->in[1].data;
    int64_t rows = ll_rows(x), v = ll_cols(x);
    TRY(ll_check_labels(&c->in[1], v));
    for (int64_t r = 0; r < rows; r++) {
        int64_t best = -1; /* the first largest; a NaN is never it */
        for (int64_t j = 0; j < v; j++) {
            double z = ll_at(x, r * v + j);
            if (!isnan(z) && (best < 0 || z > ll_at(x, r * v + best))) best = j;
        }
        ll_set(&c->out[0], r, best == label[r]);
    }
    return LL_OK;
}
