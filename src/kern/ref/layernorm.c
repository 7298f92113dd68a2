/* layernorm.c: layer normalisation and its gradients, by plain loops. */
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel layernorm_ref, layernorm_dx_ref, layernorm_dw_ref, add_layernorm_ref, layernorm_back_ref;
ll_kernel layernorm_both_ref;

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

/* A sixth operand, where there is one (layernorm_back), is added. */
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
            double skip = c->n_in > 5 ? ll_at(&c->in[5], r * n + j) : 0;
            ll_set(&c->out[0], r * n + j, rstd * (u - a - xhat * b) + skip);
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

/* The norm is of the sum as it is kept. A fifth operand is the bias of what is added. */
static void add(const ll_kcall *c)
{
    const ll_tensor *sum = &c->out[0];
    int64_t n = ll_cols(sum);
    for (int64_t i = 0; i < ll_numel(&sum->shape); i++) {
        double before = c->n_in > 4 ? ll_at(&c->in[4], i % n) : 0;
        ll_set(sum, i, ll_at(&c->in[0], i) + ll_at(&c->in[1], i) + before);
    }
}

ll_err add_layernorm_ref(const ll_kcall *c)
{
    const ll_tensor *sum = &c->out[0];
    add(c);
    const ll_tensor in[] = {*sum, c->in[2], c->in[3]};
    ll_kcall norm = *c;
    norm.n_in = norm.n_out = 3;
    norm.in = in;
    norm.out = c->out + 1;
    return layernorm_ref(&norm);
}

/* The scale is of what a row's numbers can be at most. */
static float scale_of(const ll_tensor *gain, const ll_tensor *bias, int64_t n)
{
    double most[2] = {0, 0};
    for (int64_t j = 0; j < n; j++)
        for (int k = 0; k < 2; k++) {
            double v = fabs(ll_at(k ? bias : gain, j));
            if (!(v <= most[k])) most[k] = v; /* NaN stays */
        }
    double bound = sqrt((double)n) * most[0] + most[1];
    return bound > 0 || bound != bound ? (float)bound / 448 : 1;
}

ll_err layernorm_both_ref(const ll_kcall *c)
{
    const ll_tensor *sum = &c->out[0], *gain = &c->in[2], *bias = &c->in[3];
    int64_t rows = ll_rows(sum), n = ll_cols(sum);
    float scale = scale_of(gain, bias, n);
    add(c);
    for (int64_t r = 0; r < rows; r++) {
        double mean, rstd = statistics(sum, r, ((const ll_norm_attr *)c->attr)->eps, &mean);
        for (int64_t j = 0; j < n; j++) {
            double xhat = (ll_at(sum, r * n + j) - mean) * rstd;
            float v = (float)(xhat * ll_at(gain, j) + ll_at(bias, j)) / scale;
            ll_set(&c->out[1], r * n + j, v);
            ll_set(&c->out[2], j * rows + r, v);
        }
        ll_set(&c->out[4], r, mean);
        ll_set(&c->out[5], r, rstd);
    }
    ll_set(&c->out[3], 0, scale);
    return LL_OK;
}

/* dx last: it may lie on what the others read. */
ll_err layernorm_back_ref(const ll_kcall *c)
{
    const ll_tensor dw_in[] = {c->in[0], c->in[1], c->in[3], c->in[4]};
    ll_kcall dw = *c;
    dw.n_in = 4;
    dw.n_out = 2;
    dw.in = dw_in;
    dw.out = c->out + 1;
    TRY(layernorm_dw_ref(&dw));
    TRY(layernorm_dx_ref(c));
    const ll_tensor *dx = &c->out[0];
    int64_t rows = ll_rows(dx), n = ll_cols(dx);
    for (int64_t j = 0; c->n_out > 3 && j < n; j++) { /* layernorm_back_sum */
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += ll_at(dx, r * n + j);
        ll_set(&c->out[3], j, sum);
    }
    return LL_OK;
}
