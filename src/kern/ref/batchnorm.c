/* batchnorm.c: batch normalisation and its gradient, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel batchnorm_ref, batchnorm_grad_ref;

ll_err batchnorm_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *gain = &c->in[1], *bias = &c->in[2];
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t j = 0; j < n; j++) {
        double mean = 0, var = 0;
        for (int64_t r = 0; r < rows; r++) mean += ll_at(x, r * n + j) / (double)rows;
        for (int64_t r = 0; r < rows; r++) {
            double d = ll_at(x, r * n + j) - mean;
            var += d * d / (double)rows;
        }
        double rstd = 1 / sqrt(var + eps);
        for (int64_t r = 0; r < rows; r++) {
            double xhat = (ll_at(x, r * n + j) - mean) * rstd;
            ll_set(&c->out[0], r * n + j, xhat * ll_at(gain, j) + ll_at(bias, j));
        }
        ll_set(&c->out[1], j, mean);
        ll_set(&c->out[2], j, var);
    }
    return LL_OK;
}

ll_err batchnorm_grad_ref(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[1], *gain = &c->in[2];
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t j = 0; j < n; j++) {
        double mean = ll_at(&c->in[3], j), rstd = 1 / sqrt(ll_at(&c->in[4], j) + eps);
        double dgain = 0, dbias = 0;
        for (int64_t r = 0; r < rows; r++) {
            dgain += ll_at(dy, r * n + j) * (ll_at(x, r * n + j) - mean) * rstd;
            dbias += ll_at(dy, r * n + j);
        }
        for (int64_t r = 0; r < rows; r++) {
            double xhat = (ll_at(x, r * n + j) - mean) * rstd;
            double inner =
                ll_at(dy, r * n + j) - dbias / (double)rows - xhat * dgain / (double)rows;
            ll_set(&c->out[0], r * n + j, ll_at(gain, j) * rstd * inner);
        }
        ll_set(&c->out[1], j, dgain);
        ll_set(&c->out[2], j, dbias);
    }
    return LL_OK;
}
