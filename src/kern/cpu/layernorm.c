/* layernorm.c: layer and root-mean-square normalisation of f32 rows, and their gradients. A row
 * stays in the nearest cache, so the variance takes its own pass after the mean: accuracy is free.
 * The latter have no mean, and so no bias and one statistic less. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(layernorm, layernorm_dx, layernorm_dw, rmsnorm, rmsnorm_dx, rmsnorm_dw)

LL_INLINE void norm_rows(const ll_kcall *c, int64_t first, int64_t end, const bool centre)
{
    const float *x = c->in[0].data, *gain = c->in[1].data, *bias = centre ? c->in[2].data : NULL;
    float *y = c->out[0].data, *means = c->out[1].data, *rstds = c->out[1 + centre].data;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t n = ll_cols(&c->in[0]);
    for (int64_t r = first; r < end; r++) {
        const float *from = x + r * n;
        float *to = y + r * n;
        double mid = 0, var;
        if (centre)
            ll_row_moments(from, n, &mid, &var);
        else
            var = ll_row_square(from, n) / (double)n;
        float mean = (float)mid, rstd = (float)(1 / sqrt(var + eps));
        if (centre) {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = (from[j] - mean) * rstd * gain[j] + bias[j];
            means[r] = mean;
        } else {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = from[j] * rstd * gain[j];
        }
        rstds[r] = rstd;
    }
}

LL_INLINE void slope_rows(const ll_kcall *c, int64_t first, int64_t end, const bool centre)
{
    const float *dy = c->in[0].data, *x = c->in[1].data, *gain = c->in[2].data;
    const float *means = c->in[3].data, *rstds = c->in[3 + centre].data;
    float *dx = c->out[0].data;
    int64_t n = ll_cols(&c->in[1]);
    for (int64_t r = first; r < end; r++) {
        const float *g = dy + r * n, *from = x + r * n;
        float *to = dx + r * n, mean = centre ? means[r] : 0, rstd = rstds[r];
        double plain, weighed;
        ll_row_dots(g, gain, from, mean, n, &plain, &weighed);
        float a = (float)(plain / (double)n);
        float b = (float)(weighed / (double)n) * rstd * rstd; /* times rstd, as xhat has it */
        if (centre) {
#pragma omp simd
            for (int64_t j = 0; j < n; j++)
                to[j] = rstd * (g[j] * gain[j] - a - (from[j] - mean) * b);
        } else {
#pragma omp simd
            for (int64_t j = 0; j < n; j++) to[j] = rstd * (g[j] * gain[j] - from[j] * b);
        }
    }
}

/* A kernel of rows of operand x. */
#define KERNEL(name, x, rows, centre)                                                              \
    static void name##_rows(const void *c, int64_t first, int64_t end)                             \
    {                                                                                              \
        rows((const ll_kcall *)c, first, end, centre);                                             \
    }                                                                                              \
    ll_err name##_cpu(const ll_kcall *c)                                                           \
    {                                                                                              \
        int64_t n = ll_rows(&c->in[x]);                                                            \
        ll_in_parts(ll_team(c, n *ll_cols(&c->in[x]) * 4), n, name##_rows, c);                     \
        return LL_OK;                                                                              \
    }
KERNEL(layernorm, 0, norm_rows, true)
KERNEL(layernorm_dx, 1, slope_rows, true)
KERNEL(rmsnorm, 0, norm_rows, false)
KERNEL(rmsnorm_dx, 1, slope_rows, false)

ll_err layernorm_dw_cpu(const ll_kcall *c)
{
    ll_col_sums(c, &(ll_col_sums_of){.shift = c->in[2].data,
                                     .scale = c->in[3].data,
                                     .total = c->out[0].data,
                                     .plain = c->out[1].data});
    return LL_OK;
}

ll_err rmsnorm_dw_cpu(const ll_kcall *c)
{
    ll_col_sums(c, &(ll_col_sums_of){.scale = c->in[2].data, .total = c->out[0].data});
    return LL_OK;
}
