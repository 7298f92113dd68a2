/* codec_lossless.c: gradients in fewer bytes, and to the bit. Signs and mantissas are noise; but
 * neighbours' exponents lie close together, and rows of embeddings that no token had are zeros. Of
 * every 32 numbers those that are not zero have, each, 3 bytes of sign and mantissa, and as many
 * bits of exponent above the group's smallest as its largest needs:
 *
 *     head: 8 bits    exponent bits (0..8); 0x10: a mask of what is not zero follows, 32 bits
 *     least: 8 bits   sign and mantissa: 24 bits each     exponents: bits each, whole bytes
 *
 * A slice that is no shorter so goes as it is. Slices are added up by their owners, in canonical
 * order: the sum has the bits of an uncoded canonical one. */
#include "comm/codec_int.h"

#include "base/num.h"

#include <string.h>

enum { GROUP = 32, MASKED = 0x10, MOST = 2 + 4 + 4 * GROUP, PLAIN = 0, CODED = 1 };

typedef struct lossless {
    uint8_t *out, *in; /* of the longest slice */
    float *parts;      /* [n]: each rank's part of this one's slice */
    int64_t slice;
    int size; /* ranks that this is for */
} lossless;

/* ---- groups ---- */

static uint8_t *encode_group(const uint32_t *x, int m, uint8_t *to)
{
    uint32_t some[GROUP], mask = 0;
    unsigned low = 255, high = 0;
    int n = 0;
    for (int i = 0; i < m; i++) {
        if (!x[i]) continue;
        unsigned e = x[i] >> 23 & 255;
        low = e < low ? e : low;
        high = e > high ? e : high;
        mask |= 1u << i;
        some[n++] = x[i];
    }
    int b = n && high > low ? 32 - __builtin_clz(high - low) : 0;
    *to++ = (uint8_t)(b | (n < m ? MASKED : 0));
    if (n < m) memcpy(to, &mask, 4), to += 4;
    if (!n) return to;
    *to++ = (uint8_t)low;
    uint64_t held = 0;
    int have = 0;
    for (int i = 0; i < n; i++) {
        uint32_t v = (some[i] & 0x7fffff) | (some[i] >> 31 << 23);
        memcpy(to + 3 * i, &(uint8_t[]){(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16)}, 3);
    }
    to += 3 * n;
    for (int i = 0; i < n; i++) {
        held |= (uint64_t)((some[i] >> 23 & 255) - low) << have;
        for (have += b; have >= 8; have -= 8, held >>= 8) *to++ = (uint8_t)held;
    }
    if (have) *to++ = (uint8_t)held;
    return to;
}

/* NULL: the bytes end before the group does, or are none of ours. */
static const uint8_t *decode_group(const uint8_t *from, const uint8_t *end, uint32_t *x, int m)
{
    uint32_t mask = m < 32 ? (1u << m) - 1 : ~0u;
    if (from >= end) return NULL;
    int b = *from & 15;
    bool masked = *from++ & MASKED;
    if (b > 8 || (masked && end - from < 4)) return NULL;
    if (masked) memcpy(&mask, from, 4), from += 4;
    int n = __builtin_popcount(mask), at = 0, have = 0;
    memset(x, 0, sizeof *x * (size_t)m);
    if (!n) return from;
    if ((m < 32 && mask >> m) || end - from < 1 + 3 * n + ll_ceil_div(n * b, 8)) return NULL;
    unsigned low = *from++;
    const uint8_t *exponents = from + 3 * n;
    uint64_t held = 0;
    for (int i = 0; i < m; i++) {
        if (!(mask >> i & 1)) continue;
        uint32_t v =
            from[3 * at] | (uint32_t)from[3 * at + 1] << 8 | (uint32_t)from[3 * at + 2] << 16;
        for (; have < b; have += 8) held |= (uint64_t)*exponents++ << have;
        uint32_t e = (low + (unsigned)(held & ((1u << b) - 1))) & 255;
        held >>= b, have -= b, at++;
        x[i] = (v & 0x7fffff) | (v >> 23 << 31) | e << 23;
    }
    return exponents;
}

/* ---- slices ---- */

static size_t encode(const float *x, int64_t n, uint8_t *out)
{
    uint8_t *to = out + 1, *most = out + 1 + 4 * n;
    uint32_t v[GROUP];
    uint8_t group[MOST];
    out[0] = CODED;
    for (int64_t i = 0; i < n; i += GROUP) {
        int m = (int)ll_min64(GROUP, n - i);
        memcpy(v, x + i, sizeof *v * (size_t)m);
        size_t bytes = (size_t)(encode_group(v, m, group) - group);
        if (bytes > (size_t)(most - to)) {
            out[0] = PLAIN;
            memcpy(out + 1, x, sizeof *x * (size_t)n);
            return 1 + sizeof *x * (size_t)n;
        }
        memcpy(to, group, bytes);
        to += bytes;
    }
    return (size_t)(to - out);
}

static ll_err decode(const uint8_t *in, size_t bytes, float *x, int64_t n)
{
    const uint8_t *at = in + 1, *end = in + bytes;
    CHECK(bytes > 0 && (in[0] == CODED || bytes == 1 + sizeof *x * (size_t)n), LL_E_COMM,
          "a slice of %ld numbers arrived as %zu bytes", n, bytes);
    if (in[0] != CODED) {
        memcpy(x, in + 1, sizeof *x * (size_t)n);
        return LL_OK;
    }
    uint32_t v[GROUP];
    for (int64_t i = 0; i < n; i += GROUP) {
        int m = (int)ll_min64(GROUP, n - i);
        at = decode_group(at, end, v, m);
        CHECK(at, LL_E_COMM, "a slice of %ld numbers is truncated", n);
        memcpy(x + i, v, sizeof *v * (size_t)m);
    }
    return LL_OK;
}

/* ---- the sum ---- */

static void slice_of(const ll_codec *k, int size, int rank, int64_t *from, int64_t *n)
{
    int64_t each = ll_ceil_div(ll_ceil_div(k->n, GROUP), size) * GROUP;
    *from = ll_min64(k->n, rank * each);
    *n = ll_min64(k->n - *from, each);
}

static void make_room(ll_codec *k, int size)
{
    if (!k->own) k->own = LL_NEW(k->arena, lossless);
    lossless *x = (lossless *)k->own;
    int64_t first;
    if (x->size == size) return;
    slice_of(k, size, 0, &first, &x->slice);
    x->size = size;
    x->out = (uint8_t *)ll_arena_alloc(k->arena, 4 * (size_t)x->slice + 16);
    x->in = (uint8_t *)ll_arena_alloc(k->arena, 4 * (size_t)x->slice + 16);
    x->parts = LL_NEW_ARRAY(k->arena, float, (int64_t)size * x->slice + 1);
}

static ll_err swap(ll_codec *k, ll_comm *c, int64_t number, int to, size_t bytes, int from,
                   float *x, int64_t n)
{
    const lossless *w = (const lossless *)k->own;
    size_t got;
    const ll_exchange e = {number, to, from, w->out, bytes, w->in, 4 * (size_t)w->slice + 1};
    TRY(ll_comm_exchange(c, &e, &got));
    k->last.bytes += (int64_t)bytes;
    return decode(w->in, got, x, n);
}

static ll_err allreduce(ll_codec *k, ll_comm *c, float *data, int64_t, const char *site)
{
    int size = ll_comm_size(c), me = ll_comm_rank(c);
    k->last = (ll_codec_report){.form = "lossless"};
    if (size == 1) return LL_OK;
    make_room(k, size);
    lossless *w = (lossless *)k->own;
    int64_t mine, n, at, m, number = ll_comm_next_number(c, "lossless all-reduce", site);
    slice_of(k, size, me, &mine, &n);
    LL_OWN(ll_arena) a = ll_arena_new();
    const void **by = LL_NEW_ARRAY(a, const void *, size);
    by[me] = data + mine;
    for (int s = 1; s < size; s++) {
        int to = (me + s) % size, from = (me - s + size) % size;
        slice_of(k, size, to, &at, &m);
        by[from] = w->parts + from * w->slice;
        TRY(swap(k, c, number, to, encode(data + at, m, w->out), from, (float *)by[from], n));
    }
    ll_fold(data + mine, by, size, n, LL_F32, LL_REDUCE_SUM);
    size_t bytes = encode(data + mine, n, w->out);
    for (int s = 1; s < size; s++) {
        int to = (me + s) % size, from = (me - s + size) % size;
        slice_of(k, size, from, &at, &m);
        TRY(swap(k, c, number, to, bytes, from, data + at, m));
    }
    return LL_OK;
}

/* As of gradients: 4 bits of exponent. */
static int64_t size(const ll_codec *k)
{
    return k->n * 57 / 16;
}

const ll_codec_kind ll_codecs_lossless[] = {
    {.name = "lossless",
     .by_number = true,
     .form = "lossless",
     .help = "the same bits in fewer bytes: exponents of neighbours, and zeros",
     .size = size,
     .allreduce = allreduce},
    {0}};
