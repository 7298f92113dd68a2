/* cached.c: attention of f32 to a cache of keys and values. Threads take even parts of the queries
 * of all sequences and heads; those of one head of keys are made together, so that each of its keys
 * and values is read once for them, of one new token after another. A result has the same bits
 * whatever is made beside it. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cache4.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"

#include <math.h>
#include <omp.h>
#include <string.h>

LL_KERNELS(cached_attend)

/* Queries and keys at once; vectors of a value's: as many as registers hold. */
enum { QUERIES = 4, KEYS = LL_QUAD, VECTORS = LL_VECTOR == 64 ? 4 : 2 };
enum { AHEAD = 16 }; /* keys: a head's lie apart, where the machine itself does not look ahead */

static int64_t keys_of(const ll_kcall *c) /* that there is room for */
{
    return c->in[4].shape.d[1] + c->in[0].shape.d[1] + LL_LANES;
}

/* Of a thread: scores [QUERIES][keys], some keys, a group's scales and zeros. */
static int64_t floats_of(const ll_kcall *c)
{
    return keys_of(c) * QUERIES + (KEYS + 2) * c->in[0].shape.d[4];
}

size_t cached_attend_cpu_scratch(const ll_kcall *c)
{
    return ll_floats_each(c, (size_t)floats_of(c));
}

/* Keys of a head, or its values. */
typedef struct rows {
    const char *old; /* [at] of the cache, `step` bytes apart */
    const float *new;
    int64_t step, bytes; /* bytes: of one */
    int bits;            /* of old ones' numbers: 8, 4, or 0: floats */
    ll_cache4_ring ring; /* of keys in 4 bits, else n is 0 */
} rows;

typedef struct head {
    const float *q; /* [n,d] */
    rows k, v;
    float *room;              /* [KEYS,d]: some of these; [2,d]: of the group of keys */
    int64_t *group;           /* whose scales and zeros are there; -1: none's */
    int64_t n, d, row;        /* queries; row: floats between new keys */
    int64_t from, at, end;    /* keys [from, end), the first at of the cache */
    float *scores, *o, scale; /* scores [n,keys] */
    int64_t keys;
} head;

static void unpack8(const uint8_t *q, float scale, int64_t n, float *out)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = scale * (float)(int8_t)q[i];
}

/* A row of 4 bits as the numbers 0 to 15. */
static void unpack4(const uint8_t *q, int64_t d, float *out)
{
    int64_t half = ll_cache4_half(d);
#pragma omp simd
    for (int64_t i = 0; i < half; i++) out[i] = (float)(q[i] & 15);
#pragma omp simd
    for (int64_t i = 0; i < d - half; i++) out[half + i] = (float)(q[i] >> 4);
}

static void value4(const uint8_t *q, int64_t d, float *out)
{
    unpack4(q, d, out);
    q += ll_cache4_half(d);
    for (int64_t g = 0; g < d; g += LL_CACHE4_GROUP, q += LL_CACHE4_TAIL) {
        float scale = ll_cache8_scale(q, 0), zero = ll_cache4_zero(q);
        int64_t end = ll_min64(d, g + LL_CACHE4_GROUP);
#pragma omp simd
        for (int64_t i = g; i < end; i++) out[i] = scale * (out[i] + zero);
    }
}

static void key4(const head *h, const ll_cache4_ring *r, int64_t j, float *out)
{
    float *scale = h->room + KEYS * h->d, *zero = scale + h->d;
    int64_t half = ll_cache4_half(h->d);
    if (j >= h->at - h->at % LL_CACHE4_GROUP) {
        const uint8_t *pair = ll_cache4_pair(r, j);
        float by = ll_cache8_scale(pair, half);
        unpack8(pair, by, half, out);
        unpack8(pair + r->step, by, h->d - half, out + half);
        return;
    }
    if (*h->group != j / LL_CACHE4_GROUP)
        for (int64_t i = 0; i < h->d; i++) {
            const uint8_t *tail = r->first + ll_cache4_tail(r->step, h->d, j, i);
            scale[i] = ll_cache8_scale(tail, 0);
            zero[i] = ll_cache4_zero(tail);
        }
    *h->group = j / LL_CACHE4_GROUP;
    unpack4(r->first + j * r->step, h->d, out);
#pragma omp simd
    for (int64_t i = 0; i < h->d; i++) out[i] = scale[i] * (out[i] + zero[i]);
}

/* Key or value j, in place k of the room where it is of bytes. */
static const float *row_at(const head *h, const rows *r, int64_t j, int k)
{
    if (j >= h->at) return r->new + (j - h->at) * h->row;
    if (!r->bits) return (const float *)(r->old + j * r->step);
    const uint8_t *q = (const uint8_t *)(r->old + j * r->step);
    float *key = h->room + k * h->d;
    if (r->ring.n)
        key4(h, &r->ring, j, key);
    else if (r->bits == 4)
        value4(q, h->d, key);
    else
        unpack8(q, ll_cache8_scale(q, h->d), h->d, key);
    return key;
}

static void fetch(const rows *r, int64_t j)
{
    for (int64_t i = 0; i < r->bytes; i += 64) __builtin_prefetch(r->old + j * r->step + i);
}

/* Scores of KEYS keys for Q queries. */
LL_INLINE void score_some(const head *h, const float *const key[KEYS], int Q, ll_quad out[QUERIES])
{
    ll_vec sum[QUERIES][KEYS];
    EACH (q, Q)
        EACH (k, KEYS) sum[q][k] = ll_vec_all(0);
    for (int64_t i = 0; i < h->d; i += LL_LANES)
        EACH (k, KEYS) {
            ll_vec v = ll_vec_some(key[k] + i, h->d - i, 0);
            EACH (q, Q) sum[q][k] += ll_vec_some(h->q + q * h->d + i, h->d - i, 0) * v;
        }
    EACH (q, Q) {
        ll_quad s[KEYS];
        EACH (k, KEYS) s[k] = ll_vec_fold(sum[q][k]);
        ll_quad_transpose(s);
        out[q] = (s[0] + s[1]) + (s[2] + s[3]);
    }
}

LL_INLINE void score(const head *h, int Q)
{
    for (int64_t j = h->from; j < h->end; j += KEYS) {
        int64_t n = ll_min64(KEYS, h->end - j);
        const float *key[KEYS];
        ll_quad s[QUERIES];
        for (int k = 0; k < KEYS; k++) {
            key[k] = k < n ? row_at(h, &h->k, j + k, k) : key[0];
            if (j + k + AHEAD < h->at) fetch(&h->k, j + k + AHEAD);
            if (j + k < h->at) fetch(&h->v, j + k);
        }
        score_some(h, key, Q, s);
        EACH (q, Q) {
            s[q] *= h->scale;
            memcpy(h->scores + q * h->keys + j, &s[q], (size_t)n * sizeof(float));
        }
    }
    for (int q = 0; q < Q; q++) {
        float *s = h->scores + q * h->keys + h->from;
        int64_t n = h->end - h->from;
        for (; n % LL_LANES; n++) s[n] = -INFINITY; /* whole vectors are quicker, and this is 0 */
        float by = (float)(1 / ll_row_exp(s, ll_row_top(s, n), s, n));
#pragma omp simd
        for (int64_t j = 0; j < n; j++) s[j] *= by;
    }
}

/* V vectors of results from element `at` on, the last of n elements. */
LL_INLINE void weigh_some(const head *h, int64_t at, int64_t n, int Q, int V)
{
    ll_vec sum[QUERIES][VECTORS];
    EACH (q, Q)
        EACH (v, V) sum[q][v] = ll_vec_all(0);
    for (int64_t j = h->from; j < h->end; j++) {
        const float *value = row_at(h, &h->v, j, 0) + at;
        ll_vec x[VECTORS];
        EACH (v, V) x[v] = ll_vec_some(value + v * LL_LANES, v < V - 1 ? LL_LANES : n, 0);
        EACH (q, Q) {
            float p = h->scores[q * h->keys + j];
            EACH (v, V) sum[q][v] += x[v] * p;
        }
    }
    EACH (q, Q)
        EACH (v, V)
            ll_vec_put_some(h->o + q * h->d + at + v * LL_LANES, v < V - 1 ? LL_LANES : n,
                            sum[q][v]);
}

LL_INLINE void weigh(const head *h, int Q)
{
    int64_t i = 0;
    for (; i + VECTORS * LL_LANES <= h->d; i += VECTORS * LL_LANES)
        weigh_some(h, i, LL_LANES, Q, VECTORS);
    for (; i < h->d; i += LL_LANES) weigh_some(h, i, ll_min64(LL_LANES, h->d - i), Q, 1);
}

/* Keys (0) or values (1) of head i of sequence b. */
static rows rows_of(const ll_kcall *c, int which, int64_t b, int64_t i)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const ll_tensor *old = &c->in[3 + which], *new = &c->in[1 + which];
    const int64_t *s = old->shape.d, *x = new->shape.d;
    rows r = {.new = (const float *)new->data + (b * x[1] * x[2] + i) * x[3], .bits = (int)a->bits};
    r.bytes = s[3] * (int64_t)ll_dtype_bytes(old->dtype);
    r.step = s[2] * r.bytes;
    r.old = (const char *)old->data + (b * s[1] * s[2] + i) * r.bytes;
    if (a->ring && !which)
        r.ring = (ll_cache4_ring){(uint8_t *)r.old, r.step, s[1] - 2 * a->ring, a->ring, x[3]};
    return r;
}

LL_INLINE void attend(const head *h, int Q)
{
    score(h, Q);
    weigh(h, Q);
}

/* Queries from to end of a head that n share, of all new tokens. */
static void some_of_head(const ll_kcall *c, int64_t k, int64_t from, int64_t end)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, t = s[1], n = s[2], g = s[3], d = s[4], b = k / n;
    const int64_t room = c->in[4].shape.d[1], i = k % n;
    int64_t group = -1;
    const int32_t at = ((const int32_t *)c->in[5].data)[b];
    head h = {.n = end - from, .d = d, .row = n * d, .keys = keys_of(c), .group = &group};
    h.at = at < 0 ? 0 : ll_min64(at, room);
    h.k = rows_of(c, 0, b, i);
    h.v = rows_of(c, 1, b, i);
    h.scale = (float)a->scale;
    h.scores = (float *)c->scratch + omp_get_thread_num() * floats_of(c);
    h.room = h.scores + QUERIES * h.keys;
    for (int64_t q = 0; q < t; q++) {
        int64_t place = (((b * t + q) * n + i) * g + from) * d;
        h.q = (const float *)c->in[0].data + place;
        h.o = (float *)c->out[0].data + place;
        h.end = h.at + q + 1;
        h.from = a->window > 0 && h.end > a->window ? h.end - a->window : 0;
        if (h.n == 4) attend(&h, 4);
        if (h.n == 3) attend(&h, 3);
        if (h.n == 2) attend(&h, 2);
        if (h.n == 1) attend(&h, 1);
    }
}

static void some_queries(const void *given, int64_t from, int64_t to)
{
    const ll_kcall *c = (const ll_kcall *)given;
    int64_t g = c->in[0].shape.d[3];
    for (int64_t end; from < to; from = end) {
        end = ll_min64(ll_min64(to, (from / g + 1) * g), from + QUERIES);
        some_of_head(c, from / g, from % g, (end - 1) % g + 1);
    }
}

ll_err cached_attend_cpu(const ll_kcall *c)
{
    const int64_t *s = c->in[0].shape.d, t = s[1], queries = s[2] * s[3];
    const int32_t *at = (const int32_t *)c->in[5].data;
    int64_t work = 0;
    for (int64_t b = 0; b < s[0]; b++) work += (at[b] + t) * t * queries * s[4];
    ll_in_parts(ll_team(c, work), s[0] * queries, some_queries, c);
    return LL_OK;
}
