/* attention_tile.c: packing and products of blocks for attention (see attention.h). */
#include "base/num.h"
#include "kern/cpu/attention.h"
#include "kern/cpu/micro.h"

#include <math.h>

enum { BLOCK = LL_ATT_BLOCK, M = LL_ATT_M, N = LL_ATT_N, VECTORS = N / LL_LANES };

size_t ll_att_lay_out(float *at, const ll_att_array *arrays, size_t n)
{
    size_t all = 0;
    for (size_t i = 0; i < n; i++) {
        void *place = at + all;
        if (at) memcpy(arrays[i].place, &place, sizeof place);
        all += (size_t)(arrays[i].size + 31) / 16 * 16; /* groups read past the last column */
    }
    return all;
}

ll_att_head ll_att_head_of(const ll_att *p, int64_t n)
{
    int64_t b = n / p->h, h = n % p->h, g = p->h / p->n, of = h / g;
    ll_att_head x = {b * p->t * p->q_row + h * p->d, b * p->s * p->k_row + of * p->d,
                     b * p->s * p->v_row + of * p->e, NULL};
    if (p->mask) x.mask = (const float *)p->mask + b * p->by[0] + of * p->by[1] + h % g * p->by[2];
    return x;
}

void ll_att_pack(int64_t rows, int64_t d, const float *from, int64_t stride, float by, float *to)
{
    const int64_t early = 8; /* rows are far apart: the machine does not see the next one coming */
    int64_t width = ll_att_width(d);
    for (int64_t t = 0; t < rows; t++) {
        const float *x = from + t * stride, *next = x + early * stride;
        float *y = to + t * width;
        for (int64_t e = 0; e < d && t + early < rows; e += 16) __builtin_prefetch(next + e);
#pragma omp simd
        for (int64_t e = 0; e < d; e++) y[e] = x[e] * by;
        for (int64_t e = d; e < width; e++) y[e] = 0;
    }
}

void ll_att_transpose(int64_t d, const float *from, int64_t stride, int64_t n, float by, float *to)
{
    int64_t i = 0, padded = ll_round_up(n, N);
    for (; i + 4 <= n; i += 4) {
        const float *a = from + i * stride, *b = a + stride, *c = b + stride, *f = c + stride;
        float *y = to + i;
        for (int64_t e = 0; e < d; e++, y += BLOCK)
            y[0] = a[e] * by, y[1] = b[e] * by, y[2] = c[e] * by, y[3] = f[e] * by;
    }
    for (; i < padded; i++)
        for (int64_t e = 0; e < d; e++) to[e * BLOCK + i] = i < n ? from[i * stride + e] * by : 0;
}

int64_t ll_att_seen(int64_t keys, int64_t q, int64_t ahead)
{
    int64_t n = ahead + q + N;
    return n < 0 ? 0 : n < keys ? n : keys;
}

void ll_att_mask(const ll_att *p, const float *mask, int64_t queries, float *s, int64_t keys,
                 int64_t q, int64_t ahead)
{
    int64_t first = ahead + q + 1, seen = ll_att_seen(keys, q, ahead);
    for (int64_t i = 0; mask && i < N && q + i < queries; i++)
        for (int64_t k = 0; k < seen; k++) s[k * BLOCK + i] += mask[i * p->by[3] + k * p->by[4]];
    for (int64_t k = first > 0 ? first : 0; k < seen; k++)
        for (int64_t i = 0; i < k - ahead - q; i++) s[k * BLOCK + i] = -INFINITY;
}

/* C [M,N] = A B, or C += A B, of k products; element (i, p) of A is a[i * row + p * step]. */
typedef struct tile {
    int64_t k, row, step, ldb, ldc;
    const float *a, *b;
    float *c;
    bool add;
} tile;

static __attribute__((noinline)) void run_tile(const tile *t)
{
    ll_sums sums[M];
    const float *row[M];
    EACH (i, M) row[i] = t->a + i * t->row;
    ll_micro_clear(M, VECTORS, sums);
    if (t->add) ll_micro_load(M, VECTORS, sums, t->c, t->ldc);
    if (t->step == 1)
        ll_micro_rows(M, VECTORS, 1, sums, row, t->b, t->ldb, t->k);
    else
        ll_micro_columns(M, VECTORS, 1, sums, t->a, t->step, t->b, t->ldb, t->k);
    ll_micro_store(M, VECTORS, sums, t->c, t->ldc);
}

void ll_att_scores(int64_t d, const float *a, const float *bt, int64_t keys, int64_t queries,
                   int64_t ahead, float *s)
{
    int64_t width = ll_att_width(d);
    tile t = {.k = d, .row = width, .step = 1, .ldb = BLOCK, .ldc = BLOCK};
    for (int64_t q = 0; q < queries; q += N) {
        int64_t seen = ll_att_seen(keys, q, ahead);
        t.b = bt + q;
        for (int64_t k = 0; k < seen; k += M) {
            t.a = a + k * width;
            t.c = s + k * BLOCK + q;
            run_tile(&t);
        }
    }
}

void ll_att_gather(int64_t d, const float *s, int64_t step, const float *b, int64_t keys,
                   int64_t queries, int64_t ahead, float *c)
{
    int64_t width = ll_att_width(d);
    tile t = {.row = 1, .step = step, .ldb = width, .ldc = width, .add = true};
    for (int64_t q = 0; q < queries; q += M) {
        int64_t seen = ahead + q + M;
        t.k = seen < 0 ? 0 : seen < keys ? seen : keys;
        t.a = s + q;
        for (int64_t e = 0; e < width; e += N) {
            t.b = b + e;
            t.c = c + q * width + e;
            run_tile(&t);
        }
    }
}

void ll_att_spread(int64_t d, const float *s, const float *b, int64_t keys, int64_t queries,
                   int64_t ahead, float *c)
{
    int64_t width = ll_att_width(d);
    tile t = {.row = BLOCK, .step = 1, .ldb = width, .ldc = width, .add = true};
    for (int64_t k = 0; k < keys; k += M) {
        int64_t first = k - ahead > 0 ? k - ahead : 0;
        t.k = queries - first;
        if (t.k <= 0) break;
        t.a = s + k * BLOCK + first;
        for (int64_t e = 0; e < width; e += N) {
            t.b = b + first * width + e;
            t.c = c + k * width + e;
            run_tile(&t);
        }
    }
}
