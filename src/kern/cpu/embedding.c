/* embedding.c: rows of a f32 table by index, and the transpose of it. The transpose shares columns
 * among threads: each adds all rows of its columns in order, so nothing races and the thread count
 * does not change a bit. */
#include "kern/attr.h"
#include "kern/cpu/row.h"

ll_kernel embedding_cpu, embedding_grad_cpu;

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

ll_err embedding_cpu(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const float *table = (const float *)c->in[0].data;
    const int32_t *index = (const int32_t *)c->in[1].data;
    float *y = (float *)c->out[0].data;
    int64_t v = c->in[0].shape.d[0], width = c->in[0].shape.d[1];
    int64_t n = ll_numel(&c->in[1].shape);
    TRY(check_index(a, index, n, v));
#pragma omp parallel for num_threads(ll_team(c, n *width)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - a->from;
        const float *x = table + row * width;
        if (row < 0 || row >= v) {
            memset(y + i * width, 0, (size_t)width * sizeof(float));
            continue;
        }
        /* -0 becomes 0, as it does where parts of the table are added up. */
#pragma omp simd
        for (int64_t j = 0; j < width; j++) y[i * width + j] = x[j] + 0.0f;
    }
    return LL_OK;
}

/* Columns from .. to-1 of the result. */
static void add_rows(const ll_kcall *c, int64_t from, int64_t to)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    const float *dy = (const float *)c->in[0].data;
    const int32_t *index = (const int32_t *)c->in[1].data;
    float *out = (float *)c->out[0].data;
    int64_t v = c->out[0].shape.d[0], width = c->out[0].shape.d[1];
    int64_t n = ll_numel(&c->in[1].shape);
    for (int64_t k = 0; k < v; k++)
        memset(out + k * width + from, 0, (size_t)(to - from) * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - a->from;
        if (row < 0 || row >= v) continue;
        const float *g = dy + i * width;
        float *sum = out + row * width;
#pragma omp simd
        for (int64_t j = from; j < to; j++) sum[j] += g[j];
    }
}

ll_err embedding_grad_cpu(const ll_kcall *c)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)c->attr;
    int64_t v = c->out[0].shape.d[0], width = c->out[0].shape.d[1];
    int64_t n = ll_numel(&c->in[1].shape);
    TRY(check_index(a, (const int32_t *)c->in[1].data, n, v));
    int64_t lines = (width + 15) / 16; /* threads share columns by whole cache lines */
    int64_t team = ll_team(c, (n + v) * width);
    if (team > lines) team = lines;
#pragma omp parallel for num_threads((int)team) schedule(static)
    for (int64_t t = 0; t < team; t++) {
        int64_t from = t * lines / team * 16, to = (t + 1) * lines / team * 16;
        add_rows(c, from, to < width ? to : width);
    }
    return LL_OK;
}
