/* rmsnorm.c: root-mean-square normalisation and its gradients, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel rmsnorm_ref, rmsnorm_dx_ref, rmsnorm_dw_ref;

ll_err rmsnorm_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *gain = &c->in[1];
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t r = 0; r < rows; r++) {
        double power = 0;
        for (int64_t j = 0; j < n; j++)
            power += ll_at(x, r * n + j) * ll_at(x, r * n + j) / (double)n;
        double rstd = 1 / sqrt(power + eps);
        for (int64_t j = 0; j < n; j++)
            ll_set(&c->out[0], r * n + j, ll_at(x, r * n + j) * rstd * ll_at(gain, j));
        ll_set(&c->out[1], r, rstd);
    }
    return LL_OK;
}

ll_err rmsnorm_dx_ref(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[1], *gain = &c->in[2];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t r = 0; r < rows; r++) {
        double rstd = ll_at(&c->in[3], r), b = 0;
        for (int64_t j = 0; j < n; j++)
            b += ll_at(dy, r * n + j) * ll_at(gain, j) * ll_at(x, r * n + j) * rstd / (double)n;
        for (int64_t j = 0; j < n; j++) {
            double u = ll_at(dy, r * n + j) * ll_at(gain, j);
            ll_set(&c->out[0], r * n + j, rstd * (u - ll_at(x, r * n + j) * rstd * b));
        }
    }
    return LL_OK;
}

ll_err rmsnorm_dw_ref(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[1];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t j = 0; j < n; j++) {
        double dgain = 0;
        for (int64_t r = 0; r < rows; r++)
            dgain += ll_at(dy, r * n + j) * ll_at(x, r * n + j) * ll_at(&c->in[2], r);
        ll_set(&c->out[0], j, dgain);
    }
    return LL_OK;
}
