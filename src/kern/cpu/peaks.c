/* peaks on the CPU: of a row of the result, first the largest of the rows that it reads, then of
 * the columns, then of the channels of a group. */
#include "kern/peaks.h"

#include "base/num.h"
#include "kern/cpu/team.h"

LL_KERNELS(peaks)

typedef struct plan {
    const ll_peaks_attr *a;
    const int64_t *xd, *yd;
    int threads;
    size_t rows, columns; /* bytes of a thread's: largest of rows; of columns */
} plan;

static plan make_plan(const ll_kcall *c)
{
    plan p = {(const ll_peaks_attr *)c->attr, c->in[0].shape.d, c->out[0].shape.d, c->threads};
    p.rows = ll_align64((size_t)(p.xd[2] * p.xd[3]));
    p.columns = ll_align64((size_t)(p.yd[2] * p.xd[3]));
    p.threads = ll_team_for(p.threads, ll_numel(&c->out[0].shape));
    return p;
}

size_t peaks_cpu_scratch(const ll_kcall *c)
{
    plan p = make_plan(c);
    return (p.rows + p.columns) * (size_t)p.threads;
}

/* Rows are often short: the rest of a vector goes by halves of one. */
#define LARGER(bytes)                                                                              \
    for (; i + bytes <= n; i += bytes) {                                                           \
        typedef uint8_t vec __attribute__((vector_size(bytes), aligned(1), may_alias));            \
        vec a = *(const vec *)(x + i), b = *(const vec *)(to + i);                                 \
        vec larger = (vec)(a > b);                                                                 \
        *(vec *)(to + i) = (a & larger) | (b & ~larger);                                           \
    }

static void raise(uint8_t *restrict to, const uint8_t *restrict x, int64_t n)
{
    int64_t i = 0;
    LARGER(64)
    LARGER(16)
    LARGER(8)
    LARGER(4)
    for (; i < n; i++) to[i] = x[i] > to[i] ? x[i] : to[i];
}

/* Pixels of a row of the result under tap s, of which those of stride 1 lie in one piece. */
static void column(const plan *p, const uint8_t *rows, int64_t s, uint8_t *to)
{
    int64_t c = p->xd[3], n = p->yd[2], from = 0, j;
    if (p->a->stride[1] > 1) {
        for (int64_t at = 0; at < n; at++)
            if ((j = ll_tap_reads(p->a, 1, at, s, p->xd[2])) >= 0)
                raise(to + at * c, rows + j * c, c);
        return;
    }
    while (from < n && ll_tap_reads(p->a, 1, from, s, p->xd[2]) < 0) from++;
    while (n > from && ll_tap_reads(p->a, 1, n - 1, s, p->xd[2]) < 0) n--;
    if (n > from)
        raise(to + from * c, rows + ll_tap_reads(p->a, 1, from, s, p->xd[2]) * c, (n - from) * c);
}

/* Row `at` of an image's result. */
static void run_row(const plan *p, const uint8_t *x, int64_t at, uint8_t *rows, uint8_t *y)
{
    int64_t row = p->xd[2] * p->xd[3], pixels = p->yd[2], d = p->yd[3] ? p->xd[3] / p->yd[3] : 0;
    uint8_t *to = d == 1 ? y : rows + p->rows;
    memset(rows, 0, (size_t)row);
    memset(to, 0, (size_t)(pixels * p->xd[3]));
    for (int64_t r = 0; r < p->a->size[0]; r++) {
        int64_t i = ll_tap_reads(p->a, 0, at, r, p->xd[1]);
        if (i >= 0) raise(rows, x + i * row, row);
    }
    for (int64_t s = 0; s < p->a->size[1]; s++) column(p, rows, s, to);
    for (int64_t k = 0; d != 1 && k < pixels * p->yd[3]; k++) {
        y[k] = 0;
        for (int64_t j = 0; j < d; j++) y[k] = to[k * d + j] > y[k] ? to[k * d + j] : y[k];
    }
}

ll_err peaks_cpu(const ll_kcall *c)
{
    plan p = make_plan(c);
    int64_t n = p.yd[0] * p.yd[1];
#pragma omp parallel for num_threads(p.threads) schedule(static) if (p.threads > 1)
    for (int t = 0; t < p.threads; t++) {
        uint8_t *rows = (uint8_t *)c->scratch + (p.rows + p.columns) * (size_t)t;
        for (int64_t k = n * t / p.threads; k < n * (t + 1) / p.threads; k++)
            run_row(&p, (const uint8_t *)c->in[0].data + k / p.yd[1] * p.xd[1] * p.xd[2] * p.xd[3],
                    k % p.yd[1], rows, (uint8_t *)c->out[0].data + k * p.yd[2] * p.yd[3]);
    }
    return LL_OK;
}
