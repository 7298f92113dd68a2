/* order.c: argmax, sort and cumsum on the cpu. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/rows.h"

#include <omp.h>

LL_KERNELS(argmax, sort, cumsum)

/* The three types that there are loops for. */
#define TYPES(X) X(float, F32) X(double, F64) X(int32_t, I32)

/* Does a come before b? NaN (of floats, a != a) counts as larger than every number. */
#define BEFORE(a, b, least)                                                                        \
    ((least) ? (a) < (b) || ((b) != (b) && (a) == (a)) : (a) > (b) || ((a) != (a) && (b) == (b)))

/* Of the functions PREFIX_F32 ..., that of a tensor's type. */
#define TYPED(prefix, dtype)                                                                       \
    ((dtype) == LL_F32 ? prefix##_F32 : (dtype) == LL_F64 ? prefix##_F64 : prefix##_I32)

#define FITS(op)                                                                                   \
    bool op##_cpu_fits(const ll_kcall *c)                                                          \
    {                                                                                              \
        ll_dtype t = c->in[0].dtype;                                                               \
        return t == LL_F32 || t == LL_F64 || t == LL_I32;                                          \
    }
FITS(argmax)
FITS(sort)
FITS(cumsum)

typedef struct job {
    const ll_kcall *c;
    int64_t n, inner, k; /* elements of a line, and how far apart; k: of a sort, those wanted */
    bool least, exclusive, reverse;
} job;

static job job_of(const ll_kcall *c, int64_t dim)
{
    const ll_shape *s = &c->in[0].shape;
    job j = {.c = c, .n = s->d[dim], .inner = 1};
    for (int d = (int)dim + 1; d < s->n; d++) j.inner *= s->d[d];
    return j;
}

/* ---- argmax: y holds the best so far of each of the lines side by side ---- */

#define X(type, name)                                                                              \
    static void argmax_##name(const void *given, int64_t from, int64_t to)                         \
    {                                                                                              \
        const job *j = (const job *)given;                                                         \
        for (int64_t o = from; o < to; o++) {                                                      \
            const type *x = (const type *)j->c->in[0].data + o * j->n * j->inner;                  \
            int32_t *y = (int32_t *)j->c->out[0].data + o * j->inner;                              \
            for (int64_t k = 0; k < j->inner; k++) y[k] = 0;                                       \
            for (int64_t i = 1; i < j->n; i++)                                                     \
                for (int64_t k = 0; k < j->inner; k++) {                                           \
                    type a = x[i * j->inner + k], b = x[y[k] * j->inner + k];                      \
                    if (BEFORE(a, b, j->least)) y[k] = (int32_t)i;                                 \
                }                                                                                  \
        }                                                                                          \
    }
TYPES(X)
#undef X

ll_err argmax_cpu(const ll_kcall *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    int64_t all = ll_numel(&c->in[0].shape);
    job j = job_of(c, a->dim);
    ll_thread_part *lines = TYPED(argmax, c->in[0].dtype);
    j.least = a->least;
    ll_in_parts(ll_team(c, all), all ? all / j.n / j.inner : 0, lines, &j);
    return LL_OK;
}

/* ---- sort: positions of a row are merged, in runs of 1, 2, 4 ... ---- */

#define X(type, name)                                                                              \
    static void sort_row_##name(const job *j, int64_t r, int32_t *p, int32_t *q)                   \
    {                                                                                              \
        const type *x = (const type *)j->c->in[0].data + r * j->n;                                 \
        type *y = (type *)j->c->out[0].data + r * j->k;                                            \
        for (int64_t i = 0; i < j->n; i++) p[i] = (int32_t)i;                                      \
        for (int64_t run = 1; run < j->n; run *= 2) {                                              \
            for (int64_t at = 0; at < j->n; at += 2 * run) {                                       \
                int64_t a = at, mid = ll_min64(at + run, j->n), b = mid;                           \
                int64_t end = ll_min64(at + 2 * run, j->n);                                        \
                for (int64_t k = at; k < end; k++) {                                               \
                    bool second = a >= mid || (b < end && BEFORE(x[p[b]], x[p[a]], j->least));     \
                    q[k] = second ? p[b++] : p[a++];                                               \
                }                                                                                  \
            }                                                                                      \
            int32_t *swap = p;                                                                     \
            p = q, q = swap;                                                                       \
        }                                                                                          \
        for (int64_t i = 0; i < j->k; i++) y[i] = x[p[i]];                                         \
        memcpy((int32_t *)j->c->out[1].data + r * j->k, p, (size_t)j->k * sizeof *p);              \
    }
TYPES(X)
#undef X

/* Two lists of positions for each thread. */
size_t sort_cpu_scratch(const ll_kcall *c)
{
    return (size_t)(2 * ll_max64(1, c->threads) * ll_cols(&c->in[0])) * sizeof(int32_t);
}

ll_err sort_cpu(const ll_kcall *c)
{
    const ll_order_attr *a = (const ll_order_attr *)c->attr;
    const ll_tensor *x = &c->in[0];
    job j = {.c = c, .n = ll_cols(x), .k = a->k, .least = a->least};
    void (*row)(const job *, int64_t, int32_t *, int32_t *) = TYPED(sort_row, x->dtype);
    int32_t *room = (int32_t *)c->scratch;
#pragma omp parallel for num_threads(ll_team(c, 8 * ll_numel(&x->shape))) schedule(static)
    for (int64_t r = 0; r < ll_rows(x); r++) {
        int32_t *p = room + 2 * omp_get_thread_num() * j.n;
        row(&j, r, p, p + j.n);
    }
    return LL_OK;
}

/* ---- cumsum: lines side by side, SIDE at a time, their sums in double ---- */

enum { SIDE = 64 };

#define X(type, name)                                                                              \
    static void cumsum_##name(const void *given, int64_t from, int64_t to)                         \
    {                                                                                              \
        const job *j = (const job *)given;                                                         \
        int64_t groups = ll_ceil_div(j->inner, SIDE);                                              \
        for (int64_t t = from; t < to; t++) {                                                      \
            int64_t k0 = t % groups * SIDE, m = ll_min64(SIDE, j->inner - k0);                     \
            int64_t start = t / groups * j->n * j->inner + k0;                                     \
            const type *x = (const type *)j->c->in[0].data + start;                                \
            type *y = (type *)j->c->out[0].data + start;                                           \
            double sum[SIDE] = {0};                                                                \
            for (int64_t i = 0; i < j->n; i++) {                                                   \
                int64_t at = (j->reverse ? j->n - 1 - i : i) * j->inner;                           \
                for (int64_t k = 0; k < m; k++) {                                                  \
                    double next = sum[k] + (double)x[at + k];                                      \
                    y[at + k] = (type)(j->exclusive ? sum[k] : next);                              \
                    sum[k] = next;                                                                 \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
TYPES(X)
#undef X

ll_err cumsum_cpu(const ll_kcall *c)
{
    const ll_cumsum_attr *a = (const ll_cumsum_attr *)c->attr;
    job j = job_of(c, a->dim);
    j.exclusive = a->exclusive, j.reverse = a->reverse;
    int64_t all = ll_numel(&c->in[0].shape);
    int64_t items = all ? all / j.n / j.inner * ll_ceil_div(j.inner, SIDE) : 0;
    ll_thread_part *lines = TYPED(cumsum, c->in[0].dtype);
    ll_in_parts(ll_team(c, all), items, lines, &j);
    return LL_OK;
}
