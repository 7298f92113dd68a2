/* grid.c: f32 to fixed point held in f64, and back. A thread takes rows of the merged dimensions
 * (kern/grid.h). Along a row a scale is one number or one for each element; either way the loop has
 * no branches. */
#include "kern/grid.h"

#include <math.h>

ll_kernel grid_cpu, ungrid_cpu, grid_ref, ungrid_ref;

typedef struct row {
    const float *m[LL_GRID_SCALES];
    int64_t step[LL_GRID_SCALES]; /* of each scale along the row: 0 or more */
    int n_scale;
} row;

static row row_of(const ll_kcall *c, const ll_grid_walk *w, int64_t r)
{
    static const float one = 0.5f; /* of exponent 0 */
    row x = {.n_scale = w->n_scale, .m = {&one, &one}};
    for (int s = 0; s < w->n_scale; s++) {
        x.m[s] = (const float *)c->in[1 + s].data + ll_grid_at(w, s, r);
        x.step[s] = w->stride[s][w->n - 1];
    }
    return x;
}

static void grid_row(const row *w, int64_t bits, const float *x, double *y, int64_t n)
{
    const float *m = w->m[0];
    int64_t step = w->step[0];
    if (step == 0) {
        double k = ll_grid_power(bits - ll_grid_exponent(*m), isfinite(*m));
        for (int64_t i = 0; i < n; i++) y[i] = rint((double)x[i] * k) + 0.0;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double v = (double)m[i * step];
        double k = ll_grid_power(bits - ll_grid_exponent(v), v <= 0x1p1000);
        y[i] = rint((double)x[i] * k) + 0.0;
    }
}

static void ungrid_row(const row *w, int64_t bits, const double *x, float *y, int64_t n)
{
    const float *a = w->m[0], *b = w->m[1];
    int64_t p = w->step[0], q = w->step[1];
    if (p == 0 && q == 0) {
        int64_t e = ll_grid_exponent(*a) + ll_grid_exponent(*b) - bits;
        double k = ll_grid_power(e, isfinite(*a) && isfinite(*b));
        for (int64_t i = 0; i < n; i++) y[i] = (float)(x[i] * k + 0.0);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double u = (double)a[i * p], v = (double)b[i * q];
        int64_t e = ll_grid_exponent(u) + ll_grid_exponent(v) - bits;
        y[i] = (float)(x[i] * ll_grid_power(e, u + v <= 0x1p1000) + 0.0);
    }
}

static ll_err run(const ll_kcall *c, bool up)
{
    int64_t bits = ((const ll_grid_attr *)c->attr)->bits, n = ll_numel(&c->out[0].shape);
    ll_grid_walk w;
    ll_grid_walk_of(c, &w);
    int64_t row_size = w.size[w.n - 1], rows = row_size ? n / row_size : 0;
    int threads = n < LL_PARALLEL_WORK ? 1 : rows < c->threads ? (int)rows : c->threads;
    /* Few long rows: threads share each. */
    int64_t cut = rows < c->threads && n >= LL_PARALLEL_WORK ? c->threads : 1;
    if (cut > 1) threads = c->threads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < rows * cut; k++) {
        int64_t r = k / cut, part = k % cut, from = row_size * part / cut;
        int64_t len = row_size * (part + 1) / cut - from, at = r * row_size + from;
        row x = row_of(c, &w, r);
        for (int s = 0; s < x.n_scale; s++) x.m[s] += from * x.step[s];
        if (up)
            grid_row(&x, bits, (const float *)c->in[0].data + at, (double *)c->out[0].data + at,
                     len);
        else
            ungrid_row(&x, bits, (const double *)c->in[0].data + at, (float *)c->out[0].data + at,
                       len);
    }
    return LL_OK;
}

/* Between f32 and f64; other types as the reference does. */
static bool usual(const ll_kcall *c, ll_dtype in, ll_dtype out)
{
    for (int i = 1; i < c->n_in; i++)
        if (c->in[i].dtype != LL_F32) return false;
    return c->in[0].dtype == in && c->out[0].dtype == out;
}

ll_err grid_cpu(const ll_kcall *c)
{
    return usual(c, LL_F32, LL_F64) ? run(c, true) : grid_ref(c);
}

ll_err ungrid_cpu(const ll_kcall *c)
{
    return usual(c, LL_F64, LL_F32) ? run(c, false) : ungrid_ref(c);
}
