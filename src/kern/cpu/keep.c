/* keep.c: which keys and values stay. Threads take heads. */
#include "kern/keep.h"

#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"

#include <omp.h>

LL_KERNELS(cache_keep)

/* Of a thread: scores, mass and places of all entries. */
static int64_t floats_of(const ll_kcall *c)
{
    return 3 * (c->in[3].shape.d[1] + c->in[0].shape.d[1]);
}

size_t cache_keep_cpu_scratch(const ll_kcall *c)
{
    return ll_floats_each(c, (size_t)floats_of(c));
}

static float dot_of(const float *a, const float *b, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* What n rows of keys, `step` apart, get of a query. */
static void score(const float *q, const float *key, int64_t step, int64_t n, int64_t d, float scale,
                  float *out)
{
    for (int64_t j = 0; j < n; j++) out[j] = scale * dot_of(q, key + j * step, d);
}

static void keep_head(const ll_kcall *c, int64_t b, int64_t h)
{
    const int64_t *x = c->in[0].shape.d, t = x[1], n = x[2], g = x[3], d = x[4];
    const int64_t s = c->in[3].shape.d[1], at = ((const int32_t *)c->in[4].data)[b];
    const int64_t new = ll_min64(t, ((const int32_t *)c->in[5].data)[b]);
    const int64_t old = at < 0 ? 0 : ll_min64(at, s);
    const float scale = (float)((const ll_cache_keep_attr *)c->attr)->scale;
    const float *q = (const float *)c->in[0].data, *k = (const float *)c->in[1].data;
    const float *kept = (const float *)c->in[2].data + (b * s * n + h) * d;
    const float *was = (const float *)c->in[3].data + (b * s * n + h) * 2;
    float *out = (float *)c->out[0].data + (b * s * n + h) * 2;
    float *p = (float *)c->scratch + omp_get_thread_num() * floats_of(c);
    ll_entries e = {p + s + t, p + 2 * (s + t), s, t};
    for (int64_t j = 0; j < s; j++) {
        e.mass[j] = was[j * n * 2];
        e.place[j] = ll_entry_place(was[j * n * 2 + 1], j, at);
    }
    for (int64_t i = 0; i < t; i++) {
        e.mass[s + i] = 0;
        e.place[s + i] = i < new ? (float)(at + i) : -1;
    }
    for (int64_t i = 0; i < new *g; i++) {
        int64_t to = i / g; /* the last new key that it sees */
        const float *query = q + (((b * t + to) * n + h) * g + i % g) * d;
        score(query, kept, n * d, old, d, scale, p);
        score(query, k + (b * t * n + h) * d, n * d, to + 1, d, scale, p + old);
        float by = (float)(1 / ll_row_exp(p, ll_row_top(p, old + to + 1), p, old + to + 1));
        for (int64_t j = 0; j < old; j++) e.mass[j] += by * p[j];
        for (int64_t j = 0; j <= to; j++) e.mass[s + j] += by * p[old + j];
    }
    ll_entries_keep(&e, at + new - 1);
    for (int64_t j = 0; j < s; j++) out[j * n * 2] = e.mass[j], out[j * n * 2 + 1] = e.place[j];
}

static void some_heads(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *c = (const ll_kcall *)given;
    int64_t n = c->in[0].shape.d[2];
    for (; from < to; from++) keep_head(c, from / n, from % n);
}

ll_err cache_keep_cpu(const ll_kcall *c)
{
    const int64_t *x = c->in[0].shape.d;
    int64_t work = ll_numel(&c->in[0].shape) * (c->in[3].shape.d[1] + x[1]);
    ll_in_parts(ll_team(c, work), x[0] * x[2], some_heads, c);
    return LL_OK;
}
