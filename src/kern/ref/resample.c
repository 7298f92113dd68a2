/* resample, reference: a tensor seen as [outer, rows, inner]. */
#include "kern/rows.h"
#include "kern/resample.h"

LL_KERNELS(resample)

static double value(const ll_kcall *c, int64_t outer, int64_t row, int64_t j, int64_t inner)
{
    const ll_resample_attr *a = (const ll_resample_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t rows = x->shape.d[a->dim];
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t o = a->at[1] + (a->back ? r : row), i = a->at[0] + (a->back ? row : r);
        ll_taps t = ll_taps_of(a, o);
        if (i < t.from || i >= t.from + t.n) continue;
        sum += ll_tap(&t, i - t.from) * ll_at(x, (outer * rows + r) * inner + j);
    }
    return sum;
}

ll_err resample_ref(const ll_kcall *c)
{
    const ll_resample_attr *a = (const ll_resample_attr *)c->attr;
    const ll_tensor *y = &c->out[0];
    int64_t inner = 1, rows = y->shape.d[a->dim];
    for (int d = (int)a->dim + 1; d < y->shape.n; d++) inner *= y->shape.d[d];
    for (int64_t e = 0; e < ll_numel(&y->shape); e++)
        ll_set(y, e, value(c, e / (rows * inner), e / inner % rows, e % inner, inner));
    return LL_OK;
}
