/* residual_rmsnorm.c: a sum of f32 rows and its root-mean-square normalisation. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(residual_rmsnorm)

ll_err residual_rmsnorm_cpu(const ll_kcall *c)
{
    const float *a = (const float *)c->in[0].data, *b = (const float *)c->in[1].data;
    const float *gain = (const float *)c->in[2].data;
    float *sum = (float *)c->out[0].data, *y = (float *)c->out[1].data;
    float *rstds = (float *)c->out[2].data;
    double eps = ((const ll_norm_attr *)c->attr)->eps;
    int64_t rows = ll_rows(&c->in[0]), n = ll_cols(&c->in[0]);
#pragma omp parallel for num_threads(ll_team(c, rows *n * 5)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *s = sum + r * n;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] = a[r * n + j] + b[r * n + j];
        float rstd = (float)(1 / sqrt(ll_row_square(s, n) / (double)n + eps));
#pragma omp simd
        for (int64_t j = 0; j < n; j++) y[r * n + j] = s[j] * rstd * gain[j];
        rstds[r] = rstd;
    }
    return LL_OK;
}
