/* cached.c: attention to a cache of keys and values, and writing one, by plain loops. */
#include "kern/attr.h"
#include "kern/cache4.h"
#include "kern/rows.h"

#include <math.h>
#include <string.h>

LL_KERNELS(cached_attend, cache_write)

/* Keys of sequence b, head n, in 4 bits. */
static ll_cache4_ring ring_of(const ll_tensor *keys, int64_t ring, int64_t d, int64_t b, int64_t n)
{
    const int64_t *s = keys->shape.d;
    uint8_t *first = (uint8_t *)keys->data + (b * s[1] * s[2] + n) * s[3];
    return (ll_cache4_ring){first, s[2] * s[3], s[1] - 2 * ring, ring, d};
}

/* Key or value j of sequence b, head n: of the cache up to at, then of the new ones. */
static double at_place(const ll_kcall *c, int which, int64_t b, int64_t j, int64_t at, int64_t n,
                       int64_t d)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const ll_tensor *x = &c->in[(j < at ? 3 : 1) + which];
    const int64_t *s = x->shape.d, width = c->in[0].shape.d[4];
    const uint8_t *row = (const uint8_t *)x->data + ((b * s[1] + j) * s[2] + n) * s[3];
    if (j < at && a->bits == 4 && !which) {
        ll_cache4_ring r = ring_of(x, a->ring, width, b, n);
        return (double)ll_cache4_key(&r, j, at, d);
    }
    if (j < at && a->bits == 4) return (double)ll_cache4_value(row, width, d);
    if (x->dtype == LL_U8) return (double)ll_cache8_scale(row, width) * (double)(int8_t)row[d];
    return ll_at(x, ((b * s[1] + (j < at ? j : j - at)) * s[2] + n) * s[3] + d);
}

ll_err cached_attend_ref(const ll_kcall *c)
{
    const ll_cached_attr *a = (const ll_cached_attr *)c->attr;
    const int64_t *s = c->in[0].shape.d, width = s[4]; /* [b,t,n,g,d] */
    for (int64_t row = 0; row < s[0] * s[1] * s[2] * s[3]; row++) {
        int64_t n = row / s[3] % s[2], i = row / s[3] / s[2] % s[1], b = row / s[3] / s[2] / s[1];
        int64_t at = (int64_t)ll_at(&c->in[5], b), room = c->in[4].shape.d[1];
        if (at > room) at = room;
        int64_t end = at + i + 1, from = end - a->window;
        if (a->window <= 0 || from < 0) from = 0;
        double top = -INFINITY, sum = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t d = 0; pass && d < width; d++) ll_set(&c->out[0], row * width + d, 0);
            for (int64_t j = from; j < end; j++) {
                double dot = 0;
                for (int64_t d = 0; d < width; d++)
                    dot += ll_at(&c->in[0], row * width + d) * at_place(c, 0, b, j, at, n, d);
                dot *= a->scale;
                if (!pass) top = dot > top ? dot : top;
                double p = exp(dot - top);
                sum += pass ? p : 0;
                for (int64_t d = 0; pass && d < width; d++)
                    ll_set(&c->out[0], row * width + d,
                           ll_at(&c->out[0], row * width + d) + p * at_place(c, 1, b, j, at, n, d));
            }
        }
        for (int64_t d = 0; d < width; d++)
            ll_set(&c->out[0], row * width + d, ll_at(&c->out[0], row * width + d) / sum);
    }
    return LL_OK;
}

/* A row, to bytes. */
static void put8(const ll_tensor *new, int64_t from, int64_t d, uint8_t *row)
{
    double top = 0;
    for (int64_t i = 0; i < d; i++) top = fmax(top, fabs(ll_at(new, from + i)));
    float scale = ll_cache8_begin(row, d, (float)top);
    for (int64_t i = 0; i < d; i++) row[i] = ll_cache8_byte((float)ll_at(new, from + i), scale);
}

/* A row, to 4 bits, by groups of its own channels. */
static void put4(const ll_tensor *new, int64_t from, int64_t d, uint8_t *row)
{
    uint8_t *tail = row + ll_cache4_half(d);
    for (int64_t g = 0; g < d; g += LL_CACHE4_GROUP, tail += LL_CACHE4_TAIL) {
        int64_t end = g + LL_CACHE4_GROUP < d ? g + LL_CACHE4_GROUP : d;
        double least = INFINITY, most = -INFINITY;
        for (int64_t i = g; i < end; i++) {
            least = fmin(least, ll_at(new, from + i));
            most = fmax(most, ll_at(new, from + i));
        }
        ll_cache4_begin(tail, (float)least, (float)most);
        for (int64_t i = g; i < end; i++)
            ll_cache4_put(row, ll_cache4_half(d), i,
                          ll_cache4_round(tail, (float)ll_at(new, from + i)));
    }
}

/* A key to the ring, as bytes. */
static void put_newest(const ll_cache4_ring *r, int64_t p, const ll_tensor *new, int64_t from)
{
    uint8_t *pair = ll_cache4_pair(r, p);
    double top = 0;
    for (int64_t i = 0; i < r->d; i++) top = fmax(top, fabs(ll_at(new, from + i)));
    float scale = ll_cache8_begin(pair, ll_cache4_half(r->d), (float)top);
    for (int64_t i = 0; i < r->d; i++)
        *ll_cache4_byte(r, pair, i) = ll_cache8_byte((float)ll_at(new, from + i), scale);
    ll_cache4_set_place(r, pair, p);
}

/* Keys in 4 bits: groups below `at` that wait, then n new ones. */
static void write_keys4(const ll_kcall *c, int64_t b, int64_t at, int64_t n, int64_t ring)
{
    const int64_t *s = c->in[1].shape.d;
    for (int64_t h = 0; h < s[2]; h++) {
        ll_cache4_ring r = ring_of(&c->out[0], ring, s[3], b, h);
        int64_t from = at > ring ? (at - ring) / LL_CACHE4_GROUP * LL_CACHE4_GROUP : 0;
        for (; from + LL_CACHE4_GROUP <= at; from += LL_CACHE4_GROUP) {
            if (!ll_cache4_waits(&r, from)) continue;
            for (int64_t i = 0; i < s[3]; i++) ll_cache4_settle(&r, from, i);
            ll_cache4_set_place(&r, ll_cache4_pair(&r, from + LL_CACHE4_GROUP - 1), -1);
        }
        for (int64_t i = 0; i < n; i++)
            put_newest(&r, at + i, &c->in[1], ((b * s[1] + i) * s[2] + h) * s[3]);
    }
}

/* Rows of one type are moved as bytes. The fast kernel too. */
ll_err cache_write_ref(const ll_kcall *c)
{
    const ll_cache_write_attr *a = (const ll_cache_write_attr *)c->attr;
    const ll_tensor *cache = &c->in[0], *new = &c->in[1], *out = &c->out[0];
    const int64_t *s = cache->shape.d, t = new->shape.d[1];
    size_t one = ll_dtype_bytes(cache->dtype), row = (size_t)(s[2] * s[3]) * one;
    if (out->data != cache->data)
        memcpy(out->data, cache->data, (size_t)ll_numel(&cache->shape) * one);
    for (int64_t b = 0; b < s[0]; b++) {
        int64_t at = ((const int32_t *)c->in[2].data)[b], room = s[1] - 2 * a->ring - at;
        int64_t n = t < room ? t : room;
        if (at < 0 || n < 0) continue;
        if (a->ring) write_keys4(c, b, at, n, a->ring);
        for (int64_t i = 0; i < n * s[2] && a->bits && !a->ring; i++)
            (a->bits == 8 ? put8
                          : put4)(new, (b * t * s[2] + i) * new->shape.d[3], new->shape.d[3],
                                  (uint8_t *)out->data + ((b * s[1] + at) * s[2] + i) * s[3]);
        if (a->bits) continue;
        memcpy((char *)out->data + (size_t)(b * s[1] + at) * row,
               (const char *)new->data + (size_t)(b * t) * row, (size_t)n * row);
    }
    return LL_OK;
}
