/* resample on CPUs, f32: a tensor seen as [outer, rows, inner]. The rows of the matrix are made
 * once; then each row of the result is a sum of few rows of the operand, in their order. */
#include "kern/cpu/row.h"
#include "kern/resample.h"

LL_KERNELS(resample)

typedef struct job {
    const ll_resample_attr *a;
    const ll_taps *taps;  /* of each output that this part has */
    const int64_t *first; /* back: of each row of the result the first output that reads it */
    const float *x;
    float *y;
    int64_t n_x, n_y, inner; /* rows of operand and result */
} job;

size_t resample_cpu_scratch(const ll_kcall *c)
{
    const ll_resample_attr *a = (const ll_resample_attr *)c->attr;
    int64_t n_x = c->in[0].shape.d[a->dim], n_y = c->out[0].shape.d[a->dim];
    return (size_t)(a->back ? n_x : n_y) * sizeof(ll_taps) + (size_t)n_y * sizeof(int64_t);
}

/* y = by x, or added to it. */
static void take(float *y, const float *x, float by, int64_t n, bool add)
{
    if (!add) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) y[j] = by * x[j];
    } else {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) y[j] += by * x[j];
    }
}

/* Rows [from, to) of all outer ones' together. */
static void make(const void *p, int64_t from, int64_t to)
{
    const job *v = (const job *)p;
    for (int64_t e = from; e < to; e++) {
        int64_t row = e % v->n_y, i = v->a->at[0] + row;
        const float *x = v->x + e / v->n_y * v->n_x * v->inner;
        float *y = v->y + e * v->inner;
        bool any = false;
        if (!v->a->back) {
            const ll_taps *t = &v->taps[row];
            for (int64_t k = 0; k < t->n; k++)
                take(y, x + (t->from + k - v->a->at[0]) * v->inner, (float)ll_tap(t, k), v->inner,
                     k > 0);
            continue;
        }
        for (int64_t o = v->first[row]; o < v->n_x && v->taps[o].from <= i; o++, any = true)
            take(y, x + o * v->inner, (float)ll_tap(&v->taps[o], i - v->taps[o].from), v->inner,
                 any);
        if (!any) memset(y, 0, (size_t)v->inner * sizeof *y);
    }
}

ll_err resample_cpu(const ll_kcall *c)
{
    const ll_resample_attr *a = (const ll_resample_attr *)c->attr;
    const ll_shape *y = &c->out[0].shape;
    int64_t n_x = c->in[0].shape.d[a->dim], n_y = y->d[a->dim], n_tap = a->back ? n_x : n_y;
    ll_taps *taps = (ll_taps *)c->scratch;
    int64_t *first = (int64_t *)(taps + n_tap), inner = 1;
    if (!ll_numel(y)) return LL_OK;
    for (int d = (int)a->dim + 1; d < y->n; d++) inner *= y->d[d];
    for (int64_t o = 0; o < n_tap; o++) taps[o] = ll_taps_of(a, a->at[1] + o);
    for (int64_t row = 0, o = 0; a->back && row < n_y; row++) {
        while (o < n_x && taps[o].from + taps[o].n <= a->at[0] + row) o++;
        first[row] = o;
    }
    job v = {a,   taps, first, (const float *)c->in[0].data, (float *)c->out[0].data,
             n_x, n_y,  inner};
    ll_in_parts(ll_team(c, 2 * ll_numel(y)), ll_numel(y) / inner, make, &v);
    return LL_OK;
}
