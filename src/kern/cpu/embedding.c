/* embedding.c: rows of a table by index, and the transpose of it. The transpose shares columns
 * among threads: each adds all rows of its columns in order, so nothing races and the thread count
 * does not change a bit. This text is for f32; embedding_f64.c compiles it for f64 (real.h). */
#include "kern/attr.h"
#include "kern/cpu/real.h"
#include "kern/cpu/row.h"

ll_kernel embedding_cpu, embedding_grad_cpu;
ll_kernel ll_embedding_f32, ll_embedding_f64, ll_embedding_grad_f32, ll_embedding_grad_f64;

static ll_err check_index(const ll_embedding_attr *a, const int32_t *index, int64_t n, int64_t v)
{
    if (a->part) return LL_OK;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - a->from;
        CHECK(row >= 0 && row < v, LL_E_ARG, "index %lld is %d, want 0 to %lld", (long long)i,
              index[i], (long long)v - 1);
    }
    return LL_OK;
}

ll_err LL_REAL(ll_embedding)(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const ll_real *table = (const ll_real *)c->in[0].data;
    const int32_t *index = (const int32_t *)c->in[1].data;
    ll_real *y = (ll_real *)c->out[0].data;
    int64_t v = c->in[0].shape.d[0], width = c->in[0].shape.d[1];
    int64_t n = ll_numel(&c->in[1].shape);
    TRY(check_index(a, index, n, v));
#pragma omp parallel for num_threads(ll_team(c, n *width)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - a->from;
        const ll_real *x = table + row * width;
        if (row < 0 || row >= v) {
            memset(y + i * width, 0, (size_t)width * sizeof(ll_real));
            continue;
        }
        /* -0 becomes 0, as it does where parts of the table are added up. */
#pragma omp simd
        for (int64_t j = 0; j < width; j++) y[i * width + j] = x[j] + (ll_real)0;
    }
    return LL_OK;
}

/* Columns from .. to-1 of the result. */
static void add_rows(const ll_kcall *c, int64_t from, int64_t to)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const ll_real *dy = (const ll_real *)c->in[0].data;
    const int32_t *index = (const int32_t *)c->in[1].data;
    ll_real *out = (ll_real *)c->out[0].data;
    int64_t v = c->out[0].shape.d[0], width = c->out[0].shape.d[1];
    int64_t n = ll_numel(&c->in[1].shape);
    for (int64_t k = 0; k < v; k++)
        memset(out + k * width + from, 0, (size_t)(to - from) * sizeof(ll_real));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - a->from;
        if (row < 0 || row >= v) continue;
        const ll_real *g = dy + i * width;
        ll_real *sum = out + row * width;
#pragma omp simd
        for (int64_t j = from; j < to; j++) sum[j] += g[j];
    }
}

ll_err LL_REAL(ll_embedding_grad)(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    int64_t v = c->out[0].shape.d[0], width = c->out[0].shape.d[1];
    int64_t n = ll_numel(&c->in[1].shape);
    TRY(check_index(a, (const int32_t *)c->in[1].data, n, v));
    enum { LINE = 64 / sizeof(ll_real) };
    int64_t lines = (width + LINE - 1) / LINE; /* threads share columns by whole cache lines */
    int team = ll_team(c, (n + v) * width);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < team; t++) {
        int64_t from = t * lines / team * LINE, to = (t + 1) * lines / team * LINE;
        if (from >= to) continue;
        add_rows(c, from, to < width ? to : width);
    }
    return LL_OK;
}

#ifndef LL_REAL_F64
ll_err embedding_cpu(const ll_kcall *c)
{
    return (c->out[0].dtype == LL_F64 ? ll_embedding_f64 : ll_embedding_f32)(c);
}

ll_err embedding_grad_cpu(const ll_kcall *c)
{
    return (c->out[0].dtype == LL_F64 ? ll_embedding_grad_f64 : ll_embedding_grad_f32)(c);
}
#endif
