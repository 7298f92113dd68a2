/* cross_entropy.c: cross-entropy, its gradient, and right answers, by plain loops. */
#include "kern/rows.h"

#include <math.h>

ll_kernel cross_entropy_ref, cross_entropy_grad_ref, cross_entropy_back_ref, correct_ref;

static ll_err label_at(const ll_tensor *label, int64_t row, int64_t v, int64_t *out)
{
    *out = ((const int32_t *)label->data)[row];
    CHECK(*out >= 0 && *out < v, LL_E_ARG, "label of row %lld is %lld, want 0 to %lld",
          (long long)row, (long long)*out, (long long)v - 1);
    return LL_OK;
}

ll_err cross_entropy_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), v = ll_cols(x), label;
    for (int64_t r = 0; r < rows; r++) {
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < v; j++) top = fmax(top, ll_at(x, r * v + j));
        for (int64_t j = 0; j < v; j++) sum += exp(ll_at(x, r * v + j) - top);
        double lse = top + log(sum);
        TRY(label_at(&c->in[1], r, v, &label));
        ll_set(&c->out[0], r, lse - ll_at(x, r * v + label));
        ll_set(&c->out[1], r, lse);
    }
    return LL_OK;
}

ll_err cross_entropy_grad_ref(const ll_kcall *c)
{
    const ll_tensor *dloss = &c->in[0], *x = &c->in[1], *lse = &c->in[3];
    int64_t rows = ll_rows(x), v = ll_cols(x), label;
    for (int64_t r = 0; r < rows; r++) {
        TRY(label_at(&c->in[2], r, v, &label));
        for (int64_t j = 0; j < v; j++) {
            double p = exp(ll_at(x, r * v + j) - ll_at(lse, r));
            ll_set(&c->out[0], r * v + j, (p - (j == label)) * ll_at(dloss, r));
        }
    }
    return LL_OK;
}

ll_err correct_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0];
    int64_t rows = ll_rows(x), v = ll_cols(x), label;
    for (int64_t r = 0; r < rows; r++) {
        int64_t best = -1; /* the first largest; a NaN is never it */
        for (int64_t j = 0; j < v; j++) {
            double z = ll_at(x, r * v + j);
            if (!isnan(z) && (best < 0 || z > ll_at(x, r * v + best))) best = j;
        }
        TRY(label_at(&c->in[1], r, v, &label));
        ll_set(&c->out[0], r, best == label);
    }
    return LL_OK;
}
