/* order.c: argmax, sort and cumsum by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(argmax, sort, cumsum)

/* Does a come before b, were they not equal? NaN counts as larger than every number. */
static bool before(double a, double b, bool least)
{
    if (isnan(a) || isnan(b)) return least ? !isnan(a) && isnan(b) : isnan(a) && !isnan(b);
    return least ? a < b : a > b;
}

ll_err argmax_ref(const ll_kcall *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t n = x->shape.d[a->dim], inner = 1;
    for (int d = (int)a->dim + 1; d < x->shape.n; d++) inner *= x->shape.d[d];
    for (int64_t e = 0; e < ll_numel(&y->shape); e++) {
        int64_t from = e / inner * n * inner + e % inner, best = 0;
        for (int64_t i = 1; i < n; i++)
            if (before(ll_at(x, from + i * inner), ll_at(x, from + best * inner), a->least))
                best = i;
        ll_set(y, e, (double)best);
    }
    return LL_OK;
}

/* An element's place is the number of those that come before it. */
ll_err sort_ref(const ll_kcall *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) {
            double v = ll_at(x, r * n + i);
            int64_t place = 0;
            for (int64_t j = 0; j < n; j++) {
                double w = ll_at(x, r * n + j);
                place += before(w, v, a->least) || (j < i && !before(v, w, a->least));
            }
            if (place >= a->k) continue;
            ll_set(&c->out[0], r * a->k + place, v);
            ll_set(&c->out[1], r * a->k + place, (double)i);
        }
    return LL_OK;
}

ll_err cumsum_ref(const ll_kcall *c)
{
    const ll_cumsum_attr *a = (const ll_cumsum_attr *)c->attr;
    const ll_tensor *x = &c->in[0], *y = &c->out[0];
    int64_t all = ll_numel(&x->shape), n = x->shape.d[a->dim], inner = 1;
    for (int d = (int)a->dim + 1; d < x->shape.n; d++) inner *= x->shape.d[d];
    for (int64_t line = 0; all && line < all / n; line++) {
        int64_t from = line / inner * n * inner + line % inner;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = from + (a->reverse ? n - 1 - i : i) * inner;
            double v = ll_at(x, at);
            ll_set(y, at, a->exclusive ? sum : sum + v);
            sum += v;
        }
    }
    return LL_OK;
}
