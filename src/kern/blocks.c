/* blocks.c: numbers as blocks of 8 or 4 bits. */
#include "kern/blocks.h"

#include <math.h>

static uint8_t code(double v, double scale, double least)
{
    return (uint8_t)(scale > 0 ? fmin(fmax(rint((v - least) / scale), 0), 15) : 0);
}

/* Are all whole steps from the least on, but for what rounding them to f32 may have changed? Most
 * numbers are not, which the first ones tell. */
static bool in_steps(const float *v, double low, double high, int steps)
{
    double per = steps / (high - low);
    double close = 1e-3 + 0x1p-22 * fmax(fabs(low), fabs(high)) * per;
    for (int i = 0; i < LL_PACK; i++) {
        double k = ((double)v[i] - low) * per;
        if (fabs(k - rint(k)) > close) return false;
    }
    return true;
}

/* Numbers that a block of 4 bits has exactly: those of a file of such blocks, or rounded before.
 * Their steps are a part of what lies between the least and the most. */
static bool on_grid(const float *v, double low, double high, uint16_t *scale, uint16_t *least)
{
    for (int steps = 15; steps >= 1 && high > low; steps--) { /* most blocks have all 16 */
        if (!in_steps(v, low, high, steps)) continue;
        ll_store(scale, LL_F16, 0, (high - low) / steps);
        double d = ll_load(scale, LL_F16, 0);
        for (int first = 0; first + steps <= 15; first++) {
            int i = 0;
            ll_store(least, LL_F16, 0, low - first * d);
            double from = ll_load(least, LL_F16, 0);
            while (i < LL_PACK && (float)(from + d * code(v[i], d, from)) == v[i]) i++;
            if (i == LL_PACK) return true;
        }
    }
    return false;
}

/* How far numbers are off, squared, each counted so many times. */
static double loss_of(const float *v, const float *count, const uint16_t *scale,
                      const uint16_t *least)
{
    double sum = 0, d = ll_load(scale, LL_F16, 0), from = ll_load(least, LL_F16, 0);
    for (int i = 0; i < LL_PACK; i++) {
        double off = from + d * code(v[i], d, from) - (double)v[i];
        sum += off * off * (count ? (double)count[i] : 1);
    }
    return sum;
}

void ll_pack_range(const float *v, const float *count, uint16_t *scale, uint16_t *least)
{
    float least_f = v[0], most_f = v[0];
    for (int i = 1; i < LL_PACK; i++) least_f = fminf(least_f, v[i]), most_f = fmaxf(most_f, v[i]);
    double low = least_f, high = most_f, best = -1;
    if (on_grid(v, low, high, scale, least)) return;
    for (int k = 0; k < (count ? 25 : 1); k++) { /* a narrower range has finer steps */
        uint16_t s, from;
        double cut = 0.04 * (high - low), first = low + k % 5 * cut;
        ll_store(&s, LL_F16, 0, (high - k / 5 * cut - first) / 15);
        ll_store(&from, LL_F16, 0, first);
        double is = loss_of(v, count, &s, &from);
        if (best >= 0 && is >= best) continue;
        best = is, *scale = s, *least = from;
    }
}

static void pack4(const float *v, uint8_t *q, uint16_t *scale, uint16_t *least)
{
    ll_pack_range(v, NULL, scale, least);
    double by = ll_load(scale, LL_F16, 0), from = ll_load(least, LL_F16, 0);
    for (int i = 0; i < 16; i++)
        q[i] = (uint8_t)(code(v[i], by, from) | code(v[i + 16], by, from) << 4);
}

static void pack8(const float *v, uint8_t *q, uint16_t *scale)
{
    float top = 0; /* gcc 12 fails at a maximum that is widened, on aarch64 */
    for (int i = 0; i < LL_PACK; i++) top = fmaxf(top, fabsf(v[i]));
    ll_store(scale, LL_F16, 0, (double)top / 127);
    double by = ll_load(scale, LL_F16, 0);
    for (int i = 0; i < LL_PACK; i++) {
        double k = by > 0 ? rint((double)v[i] / by) : 0;
        q[i] = (uint8_t)(int8_t)fmin(fmax(k, -127), 127);
    }
}

void ll_pack(const float *x, int64_t n, int bits, uint8_t *q, uint16_t *scale, uint16_t *least)
{
#pragma omp parallel for if (n > 1 << 16)
    for (int64_t b = 0; b < n / LL_PACK; b++)
        if (bits == 4)
            pack4(x + b * LL_PACK, q + b * 16, scale + b, least + b);
        else
            pack8(x + b * LL_PACK, q + b * LL_PACK, scale + b);
}

/* ---- rows of blocks ---- */

static void pack_int8(const float *x, uint8_t *b)
{
    uint16_t scale;
    pack8(x, b + 2, &scale);
    memcpy(b, &scale, 2);
}

static float half_at(const uint8_t *b)
{
    uint16_t h;
    memcpy(&h, b, 2);
    return ll_f16_to_f32(h);
}

void ll_unpack_int8(const uint8_t *b, float *x)
{
    float scale = half_at(b);
    for (int i = 0; i < LL_PACK; i++) x[i] = scale * (float)(int8_t)b[2 + i];
}

static void pack_int4(const float *x, uint8_t *b)
{
    uint16_t of[2];
    pack4(x, b + 4, &of[0], &of[1]);
    memcpy(b, of, 4);
}

void ll_unpack_int4(const uint8_t *b, float *x)
{
    float scale = half_at(b), least = half_at(b + 2);
    for (int i = 0; i < 16; i++) {
        x[i] = scale * (float)(b[4 + i] & 15) + least;
        x[i + 16] = scale * (float)(b[4 + i] >> 4) + least;
    }
}

static const float nf4[16] = {LL_NF4};

static uint8_t nearest(float v)
{
    uint8_t k = 0;
    while (k < 15 && v > (nf4[k] + nf4[k + 1]) / 2) k++;
    return k;
}

static void pack_nf4(const float *x, uint8_t *b)
{
    float top = 0;
    for (int i = 0; i < LL_PACK; i++) top = fmaxf(top, fabsf(x[i]));
    uint16_t scale = ll_f32_to_f16(top);
    float by = ll_f16_to_f32(scale), per = by > 0 ? 1 / by : 0;
    memcpy(b, &scale, 2);
    for (int i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(nearest(x[i] * per) | nearest(x[i + 16] * per) << 4);
}

static void unpack_nf4(const uint8_t *b, float *x)
{
    float scale = half_at(b);
    for (int i = 0; i < 16; i++) {
        x[i] = scale * nf4[b[2 + i] & 15];
        x[i + 16] = scale * nf4[b[2 + i] >> 4];
    }
}

static const ll_block_kind kinds[] = {{"int8", 34, pack_int8, ll_unpack_int8},
                                      {"int4", 20, pack_int4, ll_unpack_int4},
                                      {"nf4", 18, pack_nf4, unpack_nf4}};
enum { KINDS = sizeof kinds / sizeof *kinds };

const ll_block_kind *ll_block_find(const char *name, size_t n)
{
    for (int i = 0; i < KINDS; i++)
        if (strlen(kinds[i].name) == n && !memcmp(kinds[i].name, name, n)) return &kinds[i];
    return NULL;
}

const ll_block_kind *ll_block_sized(int64_t bytes)
{
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].bytes == bytes) return &kinds[i];
    return NULL;
}

const ll_block_kind *ll_block_named(const char *parameter, size_t *n)
{
    const char *dot = strrchr(parameter, '.');
    if (!dot) return NULL;
    *n = (size_t)(dot - parameter);
    return ll_block_find(dot + 1, strlen(dot + 1));
}

int64_t ll_block_numbers(const char *parameter, ll_dtype t, const ll_shape *s)
{
    size_t n;
    const ll_block_kind *k = t == LL_U8 ? ll_block_named(parameter, &n) : NULL;
    return k ? ll_numel(s) / k->bytes * LL_PACK : ll_numel(s);
}

void ll_block_round(const float *x, int bits, float *out)
{
    const ll_block_kind *k = &kinds[bits == 8 ? 0 : 1];
    uint8_t block[2 * LL_PACK];
    bool finite = true;
    for (int i = 0; i < LL_PACK; i++) finite &= isfinite(x[i]) != 0;
    if (!finite) {
        memcpy(out, x, sizeof *x * LL_PACK);
        return;
    }
    k->pack(x, block);
    k->unpack(block, out);
}
