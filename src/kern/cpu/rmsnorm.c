/* rmsnorm.c: root-mean-square normalisation of f32 rows, and its gradients. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel rmsnorm_cpu, rmsnorm_dx_cpu, rmsnorm_dw_cpu;

static void some_rows(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *c = (const ll_kcall *)given;
    const float *x = (const float *)c->in[0].data, *gain = (const float *)c->in[1].data;
    float *y = (float *)c->out[0].data, *rstds = (float *)c->out[1].data;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t n = ll_cols(&c->in[0]);
    for (int64_t r = from; r < to; r++) {
        const float *row = x + r * n;
        float rstd = (float)(1 / sqrt(ll_row_square(row, n) / (double)n + eps));
#pragma omp simd
        for (int64_t j = 0; j < n; j++) y[r * n + j] = row[j] * rstd * gain[j];
        rstds[r] = rstd;
    }
}

ll_err rmsnorm_cpu(const ll_kcall *c)
{
    int64_t rows = ll_rows(&c->in[0]);
    ll_in_parts(ll_team(c, rows * ll_cols(&c->in[0]) * 4), rows, some_rows, c);
    return LL_OK;
}

ll_err rmsnorm_dx_cpu(const ll_kcall *c)
{
    const float *dy = (const float *)c->in[0].data, *x = (const float *)c->in[1].data;
    const float *gain = (const float *)c->in[2].data, *rstds = (const float *)c->in[3].data;
    float *dx = (float *)c->out[0].data;
    int64_t rows = ll_rows(&c->in[1]), n = ll_cols(&c->in[1]);
#pragma omp parallel for num_threads(ll_team(c, rows *n * 4)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *g = dy + r * n, *from = x + r * n;
        float rstd = rstds[r];
        double plain, weighed;
        ll_row_dots(g, gain, from, 0, n, &plain, &weighed);
        float b = (float)(weighed / (double)n) * rstd * rstd;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) dx[r * n + j] = rstd * (g[j] * gain[j] - from[j] * b);
    }
    return LL_OK;
}

ll_err rmsnorm_dw_cpu(const ll_kcall *c)
{
    ll_col_sums(c, &(ll_col_sums_of){.scale = c->in[2].data, .total = c->out[0].data});
    return LL_OK;
}
