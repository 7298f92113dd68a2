/* sparse_code.c: streams as bytes, little-endian:
 *
 *     u8 kind (0 pairs, 1 dense)   u8 bits   u16 0   u32 count
 *     values   f32 [count], or f32 scale [ceil(count / 512)] and count codes of so many bits, the
 *              first in the lowest bits of a byte
 *     pairs:   a gap for each: how many elements lie between this index and the one before (for the
 *              first: before it), 7 bits a byte, the lowest first, bit 7 set on all but the last
 *
 *     (3, a) (4, b) (400, c) in f32:  00 00 0000 03000000  a b c  03 00 8b 03
 *
 * With 0.1 % of the elements a gap takes 1.9 bytes on average, where an index takes 4. Gaps cannot
 * go down: what is left to check is that the last index is within the vector and that the bytes end
 * where the pairs do.
 *
 * A code c stands for scale (c - L) / L, L = 2^(bits - 1) - 1, where scale is the largest magnitude
 * of its 512 values; a value between two codes becomes one of them at random, such that the mean is
 * right (QSGD, Alistarh et al. 2017). Zero stays zero: a dense stream has many. Values that are not
 * finite make their scale NaN, and all of their 512 values with it: an overflow must be seen. */
#include "base/num.h"
#include "base/rng.h"
#include "comm/sparse.h"

#include <math.h>
#include <string.h>

enum { HEADER = 8, SCALED = 512 };

static size_t value_bytes(int64_t count, int bits)
{
    if (!bits) return 4 * (size_t)count;
    return 4 * (size_t)ll_ceil_div(count, SCALED) + ((size_t)count * (size_t)bits + 7) / 8;
}

static size_t gap_bytes(uint32_t gap)
{
    return 1 + (gap >> 7 != 0) + (gap >> 14 != 0) + (gap >> 21 != 0) + (gap >> 28 != 0);
}

/* The most that `most` gaps within len elements can take: all as wide as the mean is no bound, but
 * a gap of w bytes has 2^(7 (w - 1)) elements or more. */
static size_t gaps_bound(int64_t len, int64_t most)
{
    size_t bytes = (size_t)most;
    for (int w = 1; w < 5; w++) {
        int64_t wide = len >> 7 * w; /* gaps that can need one byte more */
        bytes += (size_t)(wide < most ? wide : most);
    }
    return bytes;
}

size_t ll_svec_bound(int64_t len, int64_t most, int bits, bool *dense)
{
    if (most > len) most = len;
    size_t pairs = value_bytes(most, bits) + gaps_bound(len, most), all = value_bytes(len, bits);
    if (dense) *dense = all < pairs;
    return HEADER + (all < pairs ? all : pairs);
}

size_t ll_svec_dense_bytes(int64_t len, int bits)
{
    return HEADER + value_bytes(len, bits);
}

double ll_svec_expected(double len, double count, int bits)
{
    double value = bits ? bits / 8.0 + 4.0 / SCALED : 4, mean = len / fmax(count, 1);
    double gap = 1 + exp(-0x1p7 / mean) + exp(-0x1p14 / mean) + exp(-0x1p21 / mean);
    return HEADER + fmin(count * (value + gap), len * value);
}

/* ---- values in few bits ---- */
typedef struct coder {
    const ll_svec_code *code;
    int top; /* L */
    float scale;
    uint64_t block; /* of random numbers, drawn last */
    float random[4];
    uint8_t *scales, *out;
    uint64_t held; /* bits not yet written */
    int n_held;
} coder;

static float decoded(float scale, int c, int top)
{
    /* no -0, where a tiny scale makes one */
    return scale * ((float)(c - top) / (float)top) + 0.0f;
}

static float random_at(coder *k, int64_t i)
{
    uint64_t at = (uint64_t)(k->code->base + i);
    if (at / 4 != k->block) {
        k->block = at / 4;
        ll_uniform_4(k->code->seed, k->code->stream, k->block, k->random);
    }
    return k->random[at % 4];
}

/* The code of element i of the vector, written; returns the value that it stands for. */
static float put(coder *k, int64_t i, float v)
{
    int c = k->top;
    if (v != 0 && k->scale == k->scale) {
        float x = v / k->scale * (float)k->top, down = floorf(x);
        c += (int)down + (random_at(k, i) < x - down);
    }
    k->held |= (uint64_t)c << k->n_held;
    k->n_held += k->code->bits;
    for (; k->n_held >= 8; k->n_held -= 8, k->held >>= 8) *k->out++ = (uint8_t)k->held;
    return decoded(k->scale, c, k->top);
}

/* The largest magnitude; NaN where one is not finite. */
static float scale_of(const float *v, int64_t n)
{
    float most = 0;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        float m = fabsf(v[i]);
        finite = finite && m <= 3.4028234e38f;
        most = m > most ? m : most;
    }
    return finite ? most : NAN;
}

static void give_back(const ll_svec_code *code, int64_t i, float wanted, float got)
{
    float lost = wanted - got;
    if (!code->residual || lost == 0 || !isfinite(lost)) return;
    float *r = &code->residual[code->base + i], before = *r;
    *r += lost;
    if (code->lost2) *code->lost2 += (double)*r * *r - (double)before * before;
}

static coder coder_of(const ll_svec_code *code, int64_t n, uint8_t *out)
{
    coder k = {.code = code, .block = UINT64_MAX};
    if (code->bits) k.top = (1 << (code->bits - 1)) - 1;
    k.scales = out;
    k.out = out + 4 * ll_ceil_div(n, SCALED);
    return k;
}

/* Codes up to SCALED values, of elements index[i] (NULL: first + i), and replaces them. */
static void put_block(coder *k, const uint32_t *index, int64_t first, float *v, int64_t n)
{
    k->scale = scale_of(v, n);
    memcpy(k->scales, &k->scale, 4);
    k->scales += 4;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = index ? index[i] : first + i;
        float got = put(k, at, v[i]);
        give_back(k->code, at, v[i], got);
        v[i] = got;
    }
}

static uint8_t *flush(coder *k)
{
    if (k->n_held) *k->out++ = (uint8_t)k->held;
    return k->out;
}

static uint8_t *put_values(const ll_svec_code *code, const uint32_t *index, float *v, int64_t n,
                           uint8_t *out)
{
    coder k = coder_of(code, n, out);
    for (int64_t from = 0; from < n; from += SCALED)
        put_block(&k, index ? index + from : NULL, from, v + from, ll_min64(SCALED, n - from));
    return flush(&k);
}

static ll_err get_values(const uint8_t *bytes, int64_t n, int bits, float *v)
{
    int top = (1 << (bits - 1)) - 1, n_held = 0;
    const uint8_t *scales = bytes, *in = bytes + 4 * ll_ceil_div(n, SCALED);
    uint64_t held = 0;
    float scale = 0;
    for (int64_t i = 0; i < n; i++) {
        if (i % SCALED == 0) {
            memcpy(&scale, scales, 4);
            scales += 4;
        }
        if (n_held < bits) {
            held |= (uint64_t)*in++ << n_held;
            n_held += 8;
        }
        int c = (int)(held & ((1u << bits) - 1));
        held >>= bits;
        n_held -= bits;
        CHECK(c <= 2 * top, LL_E_COMM, "a sparse stream has code %d at value %ld, at most %d", c, i,
              2 * top);
        v[i] = decoded(scale, c, top);
    }
    return LL_OK;
}

/* ---- writing ---- */
static size_t all_gaps(const ll_svec *s)
{
    size_t bytes = 0;
    uint32_t next = 0;
    for (int64_t i = 0; i < s->count; i++) {
        bytes += gap_bytes(s->index[i] - next);
        next = s->index[i] + 1;
    }
    return bytes;
}

static uint8_t *put_gaps(const ll_svec *s, uint8_t *out)
{
    uint32_t next = 0;
    for (int64_t i = 0; i < s->count; i++) {
        uint32_t gap = s->index[i] - next;
        next = s->index[i] + 1;
        for (; gap >> 7; gap >>= 7) *out++ = (uint8_t)(gap | 0x80);
        *out++ = (uint8_t)gap;
    }
    return out;
}

/* A sparse stream's values as a dense one's, 512 at a time. */
static uint8_t *put_spread(ll_svec *s, const ll_svec_code *code, uint8_t *out)
{
    coder k = coder_of(code, s->len, out);
    float v[SCALED];
    for (int64_t from = 0, at = 0; from < s->len; from += SCALED) {
        int64_t n = ll_min64(SCALED, s->len - from), first = at;
        memset(v, 0, sizeof v);
        for (; at < s->count && s->index[at] < from + n; at++)
            v[s->index[at] - from] = s->value[at];
        if (code->bits) {
            put_block(&k, NULL, from, v, n);
            for (int64_t i = first; i < at; i++) s->value[i] = v[s->index[i] - from];
        } else {
            memcpy(out, v, sizeof(float) * (size_t)n);
            out += sizeof(float) * (size_t)n;
        }
    }
    return code->bits ? flush(&k) : out;
}

size_t ll_svec_write(ll_svec *s, const ll_svec_code *code, uint8_t *out)
{
    uint8_t *at = out + HEADER;
    bool dense = s->is_dense ||
                 value_bytes(s->len, code->bits) < value_bytes(s->count, code->bits) + all_gaps(s);
    uint32_t count = (uint32_t)(dense ? s->len : s->count);
    const uint8_t head[4] = {dense, (uint8_t)code->bits, 0, 0};
    memcpy(out, head, 4);
    memcpy(out + 4, &count, 4);
    if (dense && !s->is_dense) {
        at = put_spread(s, code, at);
    } else if (code->bits) {
        at = put_values(code, dense ? NULL : s->index, dense ? s->dense : s->value, count, at);
    } else if (count) {
        memcpy(at, dense ? s->dense : s->value, 4 * (size_t)count);
        at += 4 * (size_t)count;
    }
    if (!dense) at = put_gaps(s, at);
    return (size_t)(at - out);
}

bool ll_svec_written_dense(const uint8_t *bytes)
{
    return bytes[0];
}

/* ---- reading: of bytes that anyone may have sent ---- */
static ll_err get_gaps(const uint8_t *in, size_t size, ll_svec *s)
{
    const uint8_t *end = in + size;
    uint64_t next = 0;
    for (int64_t i = 0; i < s->count; i++) {
        uint64_t gap = 0;
        int shift = 0;
        do {
            CHECK(in < end && shift < 35, LL_E_COMM,
                  "a sparse stream of %ld pairs ends in pair %ld", s->count, i);
            gap |= (uint64_t)(*in & 0x7f) << shift;
            shift += 7;
        } while (*in++ & 0x80);
        CHECK(in[-1] || shift == 7, LL_E_COMM,
              "a sparse stream has a gap of 0 in its last byte, pair %ld", i);
        next += gap;
        CHECK(next < (uint64_t)s->len, LL_E_COMM,
              "a sparse stream has index %lu in pair %ld, its vector has %ld elements", next, i,
              s->len);
        s->index[i] = (uint32_t)next++;
    }
    CHECK(in == end, LL_E_COMM, "a sparse stream of %ld pairs has %ld bytes after the last",
          s->count, (end - in));
    return LL_OK;
}

ll_err ll_svec_read(const uint8_t *bytes, size_t size, int bits, ll_svec *out)
{
    uint32_t count;
    out->count = 0;
    CHECK(size >= HEADER, LL_E_COMM, "a sparse stream has %zu bytes, at least %d", size, HEADER);
    CHECK(bytes[0] <= 1 && bytes[1] == bits && !bytes[2] && !bytes[3], LL_E_COMM,
          "a sparse stream begins with %02x %02x %02x %02x, not with 00 or 01, %02x 00 00",
          bytes[0], bytes[1], bytes[2], bytes[3], (unsigned)bits);
    memcpy(&count, bytes + 4, 4);
    bool dense = bytes[0];
    CHECK(dense ? count == out->len && (out->dense || !count) : count <= out->room, LL_E_COMM,
          "a sparse stream has %s%u elements; %ld of %ld, or %s dense, were expected at most",
          dense ? "all " : "", count, out->room, out->len, out->dense ? "all" : "not");
    size_t values = value_bytes(count, bits);
    CHECK(size - HEADER >= values && (!dense || size - HEADER == values), LL_E_COMM,
          "a sparse stream of %u values has %zu bytes, its values alone take %zu", count, size,
          HEADER + values);
    out->is_dense = dense;
    float *v = dense ? out->dense : out->value;
    if (bits)
        TRY(get_values(bytes + HEADER, count, bits, v));
    else if (count)
        memcpy(v, bytes + HEADER, values);
    out->count = count;
    if (!dense) TRY(get_gaps(bytes + HEADER + values, size - HEADER - values, out));
    return LL_OK;
}
