/* layernorm.c: layer normalisation and its gradients, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel layernorm_ref, layernorm_dx_ref, layernorm_dw_ref;

/* 1 / the standard deviation of a row, and its mean. */
static double statistics(const ll_tensor *x, int64_t r, double eps, double *mean)
{
    int64_t n = ll_cols(x);
    double var = 0;
    *mean = 0;
    for (int64_t j = 0; j < n; j++) *mean += ll_at(x, r * n + j) / (double)n;
    for (int64_t j = 0; j < n; j++) {
        double d = ll_at(x, r * n + j) - *mean;
        var += d * d / (double)n;
    }
    return 1 / sqrt(var + eps);
}

ll_err layernorm_ref(const ll_kcall *c)
{
    const ll_tensor *x = &c->in[0], *gain = &c->in[1], *bias = &c->in[2];
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t r = 0; r < rows; r++) {
        double mean, rstd = statistics(x, r, eps, &mean);
        for (int64_t j = 0; j < n; j++) {
            double xhat = (ll_at(x, r * n + j) - mean) * rstd;
            ll_set(&c->out[0], r * n + j, xhat * ll_at(gain, j) + ll_at(bias, j));
        }
        ll_set(&c->out[1], r, mean);
        ll_set(&c->out[2], r, rstd);
    }
    return LL_OK;
}

ll_err layernorm_dx_ref(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[1], *gain = &c->in[2];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t r = 0; r < rows; r++) {
        double mean = ll_at(&c->in[3], r), rstd = ll_at(&c->in[4], r), a = 0, b = 0;
        for (int64_t j = 0; j < n; j++) {
            double u = ll_at(dy, r * n + j) * ll_at(gain, j);
            a += u / (double)n;
            b += u * (ll_at(x, r * n + j) - mean) * rstd / (double)n;
        }
        for (int64_t j = 0; j < n; j++) {
            double u = ll_at(dy, r * n + j) * ll_at(gain, j);
            double xhat = (ll_at(x, r * n + j) - mean) * rstd;
            ll_set(&c->out[0], r * n + j, rstd * (u - a - xhat * b));
        }
    }
    return LL_OK;
}

ll_err layernorm_dw_ref(const ll_kcall *c)
{
    const ll_tensor *dy = &c->in[0], *x = &c->in[1];
    int64_t rows = ll_rows(x), n = ll_cols(x);
    for (int64_t j = 0; j < n; j++) {
        double dgain = 0, dbias = 0;
        for (int64_t r = 0; r < rows; r++) {
            double xhat = (ll_at(x, r * n + j) - ll_at(&c->in[2], r)) * ll_at(&c->in[3], r);
            dgain += ll_at(dy, r * n + j) * xhat;
            dbias += ll_at(dy, r * n + j);
        }
        ll_set(&c->out[0], j, dgain);
        ll_set(&c->out[1], j, dbias);
    }
    return LL_OK;
}
