/* cached.c: attention of f32 to a cache of keys and values. Threads take even parts of the queries
 * of all sequences and heads; those of one head of keys are made together, so that each of its keys
 * and values is read once for them, of one new token after another. A result has the same bits
 * whatever is made beside it. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cache8.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vec.h"

#include <math.h>
#include <omp.h>
#include <string.h>

ll_kernel cached_attend_cpu;
ll_scratch cached_attend_cpu_scratch;

/* Queries and keys at once; vectors of a value's: as many as registers hold. */
enum { QUERIES = 4, KEYS = LL_QUAD, VECTORS = LL_VECTOR == 64 ? 4 : 2 };
enum { AHEAD = 16 }; /* keys: a head's lie apart, where the machine itself does not look ahead */

static int64_t keys_of(const ll_kcall *c) /* that there is room for */
{
    return c->in[3].shape.d[1] + c->in[0].shape.d[1] + LL_LANES;
}

/* Of a thread: scores [QUERIES][keys], and some keys. */
static int64_t floats_of(const ll_kcall *c)
{
    return keys_of(c) * QUERIES + KEYS * c->in[0].shape.d[4];
}

size_t cached_attend_cpu_scratch(const ll_kcall *c)
{
    size_t one = (size_t)floats_of(c) * sizeof(float);
    return one * (size_t)(c->threads < 1 ? 1 : c->threads);
}

/* Keys of a head, or its values. */
typedef struct rows {
    const char *old; /* [at] of the cache, `step` bytes apart */
    const float *new;
    int64_t step, bytes; /* bytes: of one */
    bool packed;         /* old ones are bytes (kern/cache8.h) */
} rows;

typedef struct head {
    const float *q; /* [n,d] */
    rows k, v;
    float *room;              /* [KEYS,d]: some of these */
    int64_t n, d, row;        /* queries; row: floats between new keys */
    int64_t from, at, end;    /* keys [from, end), the first at of the cache */
    float *scores, *o, scale; /* scores [n,keys] */
    int64_t keys;
} head;

/* Key or value j, in place k of the room where it is of bytes. */
static const float *row_at(const head *h, const rows *r, int64_t j, int k)
{
    if (j >= h->at) return r->new + (j - h->at) * h->row;
    if (!r->packed) return (const float *)(r->old + j * r->step);
    const uint8_t *q = (const uint8_t *)(r->old + j * r->step);
    float scale = ll_cache8_scale(q, h->d), *key = h->room + k * h->d;
#pragma omp simd
    for (int64_t i = 0; i < h->d; i++) key[i] = scale * (float)(int8_t)q[i];
    return key;
}

static void fetch(const rows *r, int64_t j)
{
    for (int64_t i = 0; i < r->bytes; i += 64) __builtin_prefetch(r->old + j * r->step + i);
}

/* LL_LANES elements, or fewer and then zeros. */
LL_INLINE ll_vec vec_at(const float *x, int64_t n)
{
    ll_vec v = ll_vec_all(0);
    if (n >= LL_LANES) return ll_vec_at(x);
    memcpy(&v, x, (size_t)n * sizeof(float));
    return v;
}

/* Scores of KEYS keys for Q queries. */
LL_INLINE void score_some(const head *h, const float *const key[KEYS], int Q, ll_quad out[QUERIES])
{
    ll_vec sum[QUERIES][KEYS];
    EACH (q, Q)
        EACH (k, KEYS) sum[q][k] = ll_vec_all(0);
    for (int64_t i = 0; i < h->d; i += LL_LANES)
        EACH (k, KEYS) {
            ll_vec v = vec_at(key[k] + i, h->d - i);
            EACH (q, Q) sum[q][k] += vec_at(h->q + q * h->d + i, h->d - i) * v;
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
        EACH (v, V) x[v] = vec_at(value + v * LL_LANES, v < V - 1 ? LL_LANES : n);
        EACH (q, Q) {
            float p = h->scores[q * h->keys + j];
            EACH (v, V) sum[q][v] += x[v] * p;
        }
    }
    EACH (q, Q)
        EACH (v, V) {
            size_t bytes = sizeof(float) * (size_t)(v < V - 1 ? LL_LANES : n);
            memcpy(h->o + q * h->d + at + v * LL_LANES, &sum[q][v], bytes);
        }
}

LL_INLINE void weigh(const head *h, int Q)
{
    int64_t i = 0;
    for (; i + VECTORS * LL_LANES <= h->d; i += VECTORS * LL_LANES)
        weigh_some(h, i, LL_LANES, Q, VECTORS);
    for (; i < h->d; i += LL_LANES) weigh_some(h, i, ll_min64(LL_LANES, h->d - i), Q, 1);
}

static rows rows_of(const ll_tensor *old, const ll_tensor *new, int64_t at_old, int64_t at_new)
{
    int64_t n = old->shape.d[2], d = new->shape.d[3];
    rows r = {.new = (const float *)new->data + at_new *d, .packed = old->dtype == LL_U8};
    r.bytes = r.packed ? d + LL_CACHE8_TAIL : d * (int64_t)sizeof(float);
    r.step = n * r.bytes;
    r.old = (const char *)old->data + at_old * r.bytes;
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
    const int64_t room = c->in[3].shape.d[1], i = k % n;
    const int32_t at = ((const int32_t *)c->in[5].data)[b];
    head h = {.n = end - from, .d = d, .row = n * d, .keys = keys_of(c)};
    h.at = at < 0 ? 0 : ll_min64(at, room);
    h.k = rows_of(&c->in[3], &c->in[1], b * room * n + i, b * t * n + i);
    h.v = rows_of(&c->in[4], &c->in[2], b * room * n + i, b * t * n + i);
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
