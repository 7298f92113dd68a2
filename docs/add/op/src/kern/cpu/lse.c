/* lse.c: log sum exp along rows of f32. */
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(lse)

ll_err lse_cpu(const ll_kcall *c)
{
    const float *x = (const float *)c->in[0].data;
    float *y = (float *)c->out[0].data;
    int64_t rows = ll_rows(&c->in[0]), n = ll_cols(&c->in[0]);
#pragma omp parallel for num_threads(ll_team(c, rows *n * 16)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * n;
        float top = ll_row_top(row, n);
        double total = 0;
        for (int64_t i = 0; i < n; i++) total += expf(row[i] - top);
        y[r] = (float)(log(total) + top);
    }
    return LL_OK;
}
