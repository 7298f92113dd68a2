/* keep.c: which keys and values stay, and moving new ones there, by plain loops. */
#include "kern/keep.h"

#include "base/own.h"
#include "kern/attr.h"
#include "kern/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

LL_KERNELS(cache_keep, cache_place)

static double dot_of(const ll_tensor *q, int64_t i, const ll_tensor *k, int64_t j, int64_t d)
{
    double sum = 0;
    for (int64_t c = 0; c < d; c++) sum += ll_at(q, i * d + c) * ll_at(k, j * d + c);
    return sum;
}

/* Adds to mass what query i, of new token t, attends to; p: room for as many. */
static void add_mass(const ll_kcall *c, int64_t b, int64_t h, int64_t i, int64_t t, int64_t old,
                     const ll_entries *e, double *p)
{
    const int64_t *x = c->in[0].shape.d, d = x[4];
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < e->rows + e->fresh; j++) {
        bool new = j >= e->rows, sees = new ? j - e->rows <= t : j < old;
        int64_t at = new ? (b * x[1] + j - e->rows) * x[2] + h : (b * e->rows + j) * x[2] + h;
        p[j] = sees ? ((const ll_cache_keep_attr *)c->attr)->scale *
                          dot_of(&c->in[0], i, &c->in[new ? 1 : 2], at, d)
                    : -INFINITY;
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j < e->rows + e->fresh; j++) sum += p[j] = exp(p[j] - top);
    for (int64_t j = 0; j < e->rows + e->fresh; j++) e->mass[j] += (float)(p[j] / sum);
}

static void keep_head(const ll_kcall *c, int64_t b, int64_t h, double *room)
{
    const int64_t *x = c->in[0].shape.d, t = x[1], n = x[2], g = x[3], s = c->in[3].shape.d[1];
    ll_entries e = {(float *)(room + s + t), NULL, s, t};
    const float *was = (const float *)c->in[3].data;
    float *out = (float *)c->out[0].data;
    int64_t at = (int64_t)ll_at(&c->in[4], b), new = (int64_t)ll_at(&c->in[5], b);
    e.place = e.mass + s + t;
    for (int64_t j = 0; j < s; j++) {
        const float *one = was + ((b * s + j) * n + h) * 2;
        e.mass[j] = one[0], e.place[j] = ll_entry_place(one[1], j, at);
    }
    for (int64_t i = 0; i < t; i++)
        e.mass[s + i] = 0, e.place[s + i] = i < new ? (float)(at + i) : -1;
    for (int64_t i = 0; i < t && i < new; i++)
        for (int64_t k = 0; k < g; k++)
            add_mass(c, b, h, ((b * t + i) * n + h) * g + k, i, at < s ? at : s, &e, room);
    ll_entries_keep(&e, at + new - 1);
    for (int64_t j = 0; j < s; j++) {
        out[((b * s + j) * n + h) * 2] = e.mass[j];
        out[((b * s + j) * n + h) * 2 + 1] = e.place[j];
    }
}

ll_err cache_keep_ref(const ll_kcall *c)
{
    const int64_t *x = c->in[0].shape.d, all = c->in[3].shape.d[1] + x[1];
    LL_OWN_MEMORY double *room = (double *)malloc((size_t)(2 * all) * sizeof *room);
    CHECK(room, LL_E_MEM, "not enough memory for %ld entries", all);
    for (int64_t i = 0; i < x[0] * x[2]; i++) keep_head(c, i / x[2], i % x[2], room);
    return LL_OK;
}

/* New rows to where their places are now. The fast kernel too. */
ll_err cache_place_ref(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d, t = c->in[1].shape.d[1];
    size_t row = (size_t)s[3] * ll_dtype_bytes(c->in[0].dtype);
    if (c->out[0].data != c->in[0].data)
        memcpy(c->out[0].data, c->in[0].data, (size_t)(s[0] * s[1] * s[2]) * row);
    for (int64_t i = 0; i < s[0] * s[1] * s[2]; i++) {
        int64_t b = i / s[1] / s[2];
        double at = ll_at(&c->in[3], b), place = ll_at(&c->in[2], 2 * i + 1);
        if (!(place >= at && place < at + (double)t)) continue;
        int64_t from = (b * t + (int64_t)(place - at)) * s[2] + i % s[2];
        memcpy((char *)c->out[0].data + (size_t)i * row,
               (const char *)c->in[1].data + (size_t)from * row, row);
    }
    return LL_OK;
}
