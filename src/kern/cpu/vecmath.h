/* vecmath.h: elementary functions of f32 without branches or tables, so that a loop over one of
 * them becomes vector code. Errors against the exact value, over all of f32: exp, log, tanh,
 * sigmoid, erf, log1p, expm1, softplus, and sin, cos below LL_SINCOS_MAX within 3e-7 of it. NaN
 * gives NaN, overflow inf, a result below 2^-125 becomes 0. The polynomials are minimax fits
 * (Remez; of erf, through Chebyshev's nodes) of the forms stated.
 *
 * Comparisons are made on the bits, as integers: for f32 compilers spend several instructions on
 * each to keep NaN apart. Roundings to integers add 1.5 * 2^23 (f32) or 2^52 (f64): the sum's low
 * bits are the integer. */
#pragma once
#include "base/types.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* x = n ln 2 + r, |r| <= ln2/2: 2^n (1 + r + r^2 P(r)). The low bits of t are n + 126: shifted,
 * the exponent of 2^(n-1), which is finite for n up to 128; where x asks for more, n stays at 128
 * and r grows until the result is inf. */
static inline float ll_expf(float x)
{
    float t = x * 1.44269504f + 12583038.0f;
    int32_t i = (int32_t)ll_bits_of(t);
    i = i < 0x4b4000fe ? i : 0x4b4000fe;
    t = ll_of_bits((uint32_t)i) - 12583038.0f;
    float r = (x - t * 0.693115234375f) - t * 3.19461849453e-5f;
    float p = 0.00138141917684f;
    p = p * r + 0.00836891368171f;
    p = p * r + 0.0416684071688f;
    p = p * r + 0.166665190058f;
    p = p * r + 0.499999933381f;
    float y = (1.0f + (r + r * r * p)) * ll_of_bits((uint32_t)i << 23);
    /* 0 from -86.99, where n reaches -126, down to -inf. */
    return ll_bits_of(x) - 0xc2adfae1u <= 0xff800000u - 0xc2adfae1u ? 0.0f : y + y;
}

/* x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2): e ln 2 + f - f^2/2 + f^3 Q(f) */
static inline float ll_logf(float x)
{
    uint32_t u = ll_bits_of(x);
    float small = (int32_t)u < 0x00800000 ? 1.0f : 0.0f;
    uint32_t i = ll_bits_of(x * (1.0f + small * 8388607.0f)) - 0x3f3504f3u;
    float e = (float)((int32_t)i >> 23) - 23.0f * small;
    float f = ll_of_bits((i & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float q = -0.0763565319885f;
    q = q * f + 0.127633251462f;
    q = q * f - 0.131605822798f;
    q = q * f + 0.142015533486f;
    q = q * f - 0.166232984352f;
    q = q * f + 0.200012333712f;
    q = q * f - 0.250008227115f;
    q = q * f + 0.333333316577f;
    float z = f * f;
    float y = (z * f * q + e * 3.19461849453e-5f) - 0.5f * z;
    y = (f + y) + e * 0.693115234375f;
    y = (int32_t)u >= 0x7f800000 ? x : y; /* inf, NaN */
    y = u << 1 == 0 ? -INFINITY : y;      /* +-0 */
    return u > 0x80000000u ? NAN : y;     /* negative */
}

static inline float ll_sigmoidf(float x)
{
    return 1.0f / (1.0f + ll_expf(-x));
}

/* |x| < 0.625: x + x^3 P(x^2); above, from exp(2|x|), where nothing cancels. */
static inline float ll_tanhf(float x)
{
    float z = x * x, p = -0.00569738384894f;
    p = p * z + 0.0206325461268f;
    p = p * z - 0.0537377979511f;
    p = p * z + 0.133314203803f;
    p = p * z - 0.33333281185f;
    float small = x + x * z * p;
    float large = 1.0f - 2.0f / (1.0f + ll_expf(2.0f * fabsf(x)));
    uint32_t sign = ll_bits_of(x) & 0x80000000u;
    large = ll_of_bits(ll_bits_of(large) | sign);
    return (ll_bits_of(x) ^ sign) < 0x3f200000u ? small : large;
}

/* The tanh form, 0.5 x (1 + tanh(u)), written as x sigmoid(2u). */
static inline float ll_geluf(float x)
{
    float u2 = x * (1.5957691216f + 0.0713548163f * x * x);
    return x / (1.0f + ll_expf(-u2));
}

/* The slope of ll_geluf, s + x s (1 - s) 2u' with s = sigmoid(2u), from exp(-|2u|) so that nothing
 * cancels. Beyond |x| = 100 it is 0 or 1; x^2 stops there lest 0 meet inf. */
static inline float ll_dgeluf(float x)
{
    int32_t bits = (int32_t)ll_bits_of(x * x);
    float xx = ll_of_bits((uint32_t)(bits < 0x461c4000 ? bits : 0x461c4000));
    float e = ll_expf(-fabsf(x) * (1.5957691216f + 0.0713548163f * xx));
    float q = 1.0f / (1.0f + e), eq = e * q;
    float s = (int32_t)ll_bits_of(x) < 0 ? eq : q;
    return s + x * (eq * q) * (1.5957691216f + 0.2140644488f * xx);
}

static inline float ll_siluf(float x)
{
    return x / (1.0f + ll_expf(-x));
}

/* |x| < ln2/2: x + x^2 P(x), as in ll_expf; above, exp(x) - 1. */
static inline float ll_expm1f(float x)
{
    float p = 0.00138141917684f;
    p = p * x + 0.00836891368171f;
    p = p * x + 0.0416684071688f;
    p = p * x + 0.166665190058f;
    p = p * x + 0.499999933381f;
    float large = ll_expf(x) - 1.0f;
    return (ll_bits_of(x) & 0x7fffffffu) < 0x3eb17218u ? x + x * x * p : large;
}

/* log(u) x / (u - 1) with u the float nearest to 1 + x: what u is off by cancels. */
static inline float ll_log1pf(float x)
{
    float u = 1.0f + x, d = u - 1.0f, y = ll_logf(u);
    float near = y * (x / (d == 0.0f ? 1.0f : d));
    near = d == 0.0f ? x : near;
    return x > 1e8f ? y : near;
}

static inline float ll_softplusf(float x)
{
    return (x > 0.0f ? x : 0.0f) + ll_log1pf(ll_expf(-fabsf(x)));
}

/* |x| < 1: x + x P(x^2); above, 1 - exp(Q(|x|)), which is 1 from 4 on. */
static inline float ll_erff(float x)
{
    float z = x * x, t = fabsf(x), p = 7.875875048e-5f, q = -1.327236181e-5f;
    t = t < 4.0f ? t : 4.0f;
    p = p * z - 0.0008016864283f;
    p = p * z + 0.005189087423f;
    p = p * z - 0.02685421201f;
    p = p * z + 0.1128359472f;
    p = p * z - 0.3761262667f;
    p = p * z + 0.1283791658f;
    q = q * t + 0.0003169370225f;
    q = q * t - 0.003432351381f;
    q = q * t + 0.02260477224f;
    q = q * t - 0.1032811176f;
    q = q * t - 0.6391412576f;
    q = q * t - 1.125893652f;
    q = q * t - 0.0007658977798f;
    uint32_t sign = ll_bits_of(x) & 0x80000000u;
    float large = ll_of_bits(ll_bits_of(1.0f - ll_expf(q)) | sign);
    float y = (ll_bits_of(x) ^ sign) < 0x3f800000u ? x + x * p : large;
    return x != x ? x : y;
}

/* sin(x + turn pi/2) for |x| <= LL_SINCOS_MAX: x = n pi/2 + r, with pi/2 in three parts of which
 * the first two times n are exact; in double, as the rest of r is all that counts near n pi. */
#define LL_SINCOS_MAX 1e6f
static inline float ll_sincosf(float x, uint64_t turn)
{
    double t = (double)x * 0.63661977236758134 + 6755399441055744.0;
    uint64_t q;
    memcpy(&q, &t, 8);
    q += turn;
    t -= 6755399441055744.0;
    double r =
        (((double)x - t * 0x1.921fb544p+0) - t * 0x1.0b4611a6p-34) - t * 0x1.3198a2e037073p-69;
    double z = r * r, s = 2.71802591917e-6, c = -2.7204852113e-7;
    s = s * z - 0.000198393022649;
    s = s * z + 0.00833332927386;
    s = s * z - 0.166666666405;
    c = c * z + 2.4799449186e-5;
    c = c * z - 0.00138888834582;
    c = c * z + 0.041666666619;
    double y = q & 1 ? 1.0 - 0.5 * z + z * z * c : r + r * z * s;
    return (float)(q & 2 ? -y : y);
}
