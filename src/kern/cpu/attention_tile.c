/* attention_tile.c: packing and products of blocks for attention (see attention.h). */
#include "kern/cpu/attention.h"
#include "kern/cpu/micro.h"

#include <math.h>

enum { BLOCK = LL_ATT_BLOCK, M = LL_ATT_M, N = LL_ATT_N, VECTORS = N / LL_LANES };

ll_att_head ll_att_head_of(const ll_tensor *qkv, int64_t n)
{
    int64_t t = qkv->shape.d[1], h = qkv->shape.d[3], d = qkv->shape.d[4];
    ll_att_head p = {t, d, (d + N - 1) / N * N, 3 * h * d, NULL, NULL, NULL};
    if (!qkv->data) return p; /* only sizes are wanted */
    p.q = (const float *)qkv->data + n / h * t * 3 * h * d + n % h * d;
    p.k = p.q + h * d;
    p.v = p.k + h * d;
    return p;
}

void ll_att_pack(const ll_att_head *p, const float *from, int64_t stride, float by, float *to)
{
    const int64_t early = 8; /* rows are far apart: the machine does not see the next one coming */
    for (int64_t t = 0; t < p->t; t++) {
        const float *x = from + t * stride, *next = x + early * stride;
        float *y = to + t * p->width;
        for (int64_t e = 0; e < p->d && t + early < p->t; e += 16) __builtin_prefetch(next + e);
#pragma omp simd
        for (int64_t e = 0; e < p->d; e++) y[e] = x[e] * by;
        for (int64_t e = p->d; e < p->width; e++) y[e] = 0;
    }
}

void ll_att_transpose(const ll_att_head *p, const float *from, int64_t stride, int64_t n, float by,
                      float *to)
{
    int64_t i = 0, padded = (n + N - 1) / N * N;
    for (; i + 4 <= n; i += 4) {
        const float *a = from + i * stride, *b = a + stride, *c = b + stride, *d = c + stride;
        float *y = to + i;
        for (int64_t e = 0; e < p->d; e++, y += BLOCK)
            y[0] = a[e] * by, y[1] = b[e] * by, y[2] = c[e] * by, y[3] = d[e] * by;
    }
    for (; i < padded; i++)
        for (int64_t e = 0; e < p->d; e++)
            to[e * BLOCK + i] = i < n ? from[i * stride + e] * by : 0;
}

int64_t ll_att_seen(int64_t keys, int64_t q, int64_t ahead)
{
    int64_t n = ahead + q + N;
    return n < 0 ? 0 : n < keys ? n : keys;
}

void ll_att_mask(float *s, int64_t keys, int64_t q, int64_t ahead)
{
    int64_t first = ahead + q + 1, seen = ll_att_seen(keys, q, ahead);
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

void ll_att_scores(const ll_att_head *p, const float *a, const float *bt, int64_t keys,
                   int64_t queries, int64_t ahead, float *s)
{
    tile t = {.k = p->d, .row = p->width, .step = 1, .ldb = BLOCK, .ldc = BLOCK};
    for (int64_t q = 0; q < queries; q += N) {
        int64_t seen = ll_att_seen(keys, q, ahead);
        t.b = bt + q;
        for (int64_t k = 0; k < seen; k += M) {
            t.a = a + k * p->width;
            t.c = s + k * BLOCK + q;
            run_tile(&t);
        }
    }
}

void ll_att_gather(const ll_att_head *p, const float *s, const float *b, int64_t keys,
                   int64_t queries, int64_t ahead, float *c)
{
    tile t = {.row = 1, .step = BLOCK, .ldb = p->width, .ldc = p->width, .add = true};
    for (int64_t q = 0; q < queries; q += M) {
        int64_t seen = ahead + q + M;
        t.k = seen < keys ? seen : keys;
        t.a = s + q;
        for (int64_t e = 0; e < p->width; e += N) {
            t.b = b + e;
            t.c = c + q * p->width + e;
            run_tile(&t);
        }
    }
}

void ll_att_spread(const ll_att_head *p, const float *s, const float *b, int64_t keys,
                   int64_t queries, int64_t ahead, float *c)
{
    tile t = {.row = BLOCK, .step = 1, .ldb = p->width, .ldc = p->width, .add = true};
    for (int64_t k = 0; k < keys; k += M) {
        int64_t first = k - ahead > 0 ? k - ahead : 0;
        t.k = queries - first;
        if (t.k <= 0) break;
        t.a = s + k * BLOCK + first;
        for (int64_t e = 0; e < p->width; e += N) {
            t.b = b + first * p->width + e;
            t.c = c + k * p->width + e;
            run_tile(&t);
        }
    }
}
