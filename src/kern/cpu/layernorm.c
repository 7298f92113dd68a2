/* layernorm.c: layer normalisation of f32 rows, and its gradients. A row stays in the nearest
 * cache, so the variance takes its own pass after the mean: accuracy is free. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel layernorm_cpu, layernorm_dx_cpu, layernorm_dw_cpu;

static void some_rows(const void *given, int64_t first, int64_t end)
{
    const ll_kcall *c = (const ll_kcall *)given;
    const float *x = (const float *)c->in[0].data, *gain = (const float *)c->in[1].data;
    const float *bias = (const float *)c->in[2].data;
    float *y = (float *)c->out[0].data, *means = (float *)c->out[1].data;
    float *rstds = (float *)c->out[2].data;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t n = ll_cols(&c->in[0]);
    for (int64_t r = first; r < end; r++) {
        const float *from = x + r * n;
        float *to = y + r * n;
        double centre, var;
        ll_row_moments(from, n, &centre, &var);
        float mean = (float)centre, rstd = (float)(1 / sqrt(var + eps));
#pragma omp simd
        for (int64_t j = 0; j < n; j++) to[j] = (from[j] - mean) * rstd * gain[j] + bias[j];
        means[r] = mean;
        rstds[r] = rstd;
    }
}

ll_err layernorm_cpu(const ll_kcall *c)
{
    int64_t rows = ll_rows(&c->in[0]);
    ll_in_parts(ll_team(c, rows * ll_cols(&c->in[0]) * 4), rows, some_rows, c);
    return LL_OK;
}

ll_err layernorm_dx_cpu(const ll_kcall *c)
{
    const float *dy = (const float *)c->in[0].data, *x = (const float *)c->in[1].data;
    const float *gain = (const float *)c->in[2].data, *means = (const float *)c->in[3].data;
    const float *rstds = (const float *)c->in[4].data;
    float *dx = (float *)c->out[0].data;
    int64_t rows = ll_rows(&c->in[1]), n = ll_cols(&c->in[1]);
#pragma omp parallel for num_threads(ll_team(c, rows *n * 4)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *g = dy + r * n, *from = x + r * n;
        float mean = means[r], rstd = rstds[r];
        double plain, weighed;
        ll_row_dots(g, gain, from, mean, n, &plain, &weighed);
        float a = (float)(plain / (double)n);
        float b = (float)(weighed / (double)n) * rstd * rstd; /* times rstd, as xhat has it */
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[r * n + j] = rstd * (g[j] * gain[j] - a - (from[j] - mean) * b);
    }
    return LL_OK;
}

ll_err layernorm_dw_cpu(const ll_kcall *c)
{
    ll_col_sums(c, &(ll_col_sums_of){.shift = c->in[2].data,
                                     .scale = c->in[3].data,
                                     .total = c->out[0].data,
                                     .plain = c->out[1].data});
    return LL_OK;
}
