/* softmax.c: softmax along rows of f32. */
#include "kern/cpu/row.h"
#include "kern/rows.h"

LL_KERNELS(softmax)

ll_err softmax_cpu(const ll_kcall *c)
{
    const float *x = (const float *)c->in[0].data;
    float *y = (float *)c->out[0].data;
    int64_t rows = ll_rows(&c->in[0]), n = ll_cols(&c->in[0]);
#pragma omp parallel for num_threads(ll_team(c, rows *n * 16)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * n;
        float *to = y + r * n;
        float by = (float)(1 / ll_row_exp(from, ll_row_top(from, n), to, n));
#pragma omp simd
        for (int64_t j = 0; j < n; j++) to[j] *= by;
    }
    return LL_OK;
}
