/* philox.h: random words and normal numbers by arithmetic alone, for CPUs and GPUs: the same bits
 * everywhere. No product and sum may be contracted into one (the build compiles rng.c so; on a GPU
 * LL_MUL and LL_ADD say it), and no library's log or sine is asked, which differ in a last bit. */
#pragma once
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define LL_ANYWHERE static __host__ __device__ __forceinline__
#else
#define LL_ANYWHERE static inline __attribute__((always_inline))
#endif
#ifdef __CUDA_ARCH__
#define LL_MUL(a, b) __dmul_rn(a, b)
#define LL_ADD(a, b) __dadd_rn(a, b)
#define LL_ROOT(a) __dsqrt_rn(a)
#else
#include <math.h>
#define LL_MUL(a, b) ((a) * (b))
#define LL_ADD(a, b) ((a) + (b))
#define LL_ROOT(a) sqrt(a)
#endif

/* Four 32-bit words for counter (stream, block) under key seed: Philox4x32-10. */
LL_ANYWHERE void ll_philox_words(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* In (0, 1), never 0 or 1. */
LL_ANYWHERE double ll_unit(uint32_t w)
{
    return LL_MUL(LL_ADD((double)w, 0.5), 0x1p-32);
}

/* The same of 23 bits, as f32 has it. */
LL_ANYWHERE float ll_unit_23(uint32_t w)
{
    return ((float)(w >> 9) + 0.5f) * 0x1p-23f;
}

/* log u of 0 < u < 1: u = m 2^e with m near 1, log m = 2 atanh((m - 1) / (m + 1)). */
LL_ANYWHERE double ll_log_unit(double u)
{
    int64_t bits, near_1;
    double m;
    memcpy(&bits, &u, sizeof bits);
    int32_t e = (int32_t)((bits - 0x3fe6a09e667f3bcd) >> 52);
    near_1 = bits - e * ((int64_t)1 << 52);
    memcpy(&m, &near_1, sizeof m);
    double s = LL_ADD(m, -1.0) / LL_ADD(m, 1.0), z = LL_MUL(s, s), sum = 2.0 / 23;
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 21);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 19);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 17);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 15);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 13);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 11);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 9);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 7);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 5);
    sum = LL_ADD(LL_MUL(sum, z), 2.0 / 3);
    double log_m = LL_ADD(LL_MUL(LL_MUL(sum, z), s), LL_MUL(2.0, s));
    return LL_ADD(LL_MUL((double)e, 0x1.62e42fefa39efp-1), log_m);
}

/* Cosine and sine of so much of a turn, 0 < t < 1: of an eighth at most, then by quarters. */
LL_ANYWHERE void ll_turn(double t, double *cosine, double *sine)
{
    int32_t quarter = (int32_t)LL_ADD(LL_MUL(t, 4.0), 0.5);
    double a = LL_MUL(LL_ADD(t, -0.25 * quarter), 6.283185307179586), z = LL_MUL(a, a);
    double s = -1.0 / 1307674368000, c = 1.0 / 20922789888000;
    s = LL_ADD(LL_MUL(s, z), 1.0 / 6227020800);
    s = LL_ADD(LL_MUL(s, z), -1.0 / 39916800);
    s = LL_ADD(LL_MUL(s, z), 1.0 / 362880);
    s = LL_ADD(LL_MUL(s, z), -1.0 / 5040);
    s = LL_ADD(LL_MUL(s, z), 1.0 / 120);
    s = LL_ADD(LL_MUL(s, z), -1.0 / 6);
    s = LL_ADD(LL_MUL(LL_MUL(s, z), a), a);
    c = LL_ADD(LL_MUL(c, z), -1.0 / 87178291200);
    c = LL_ADD(LL_MUL(c, z), 1.0 / 479001600);
    c = LL_ADD(LL_MUL(c, z), -1.0 / 3628800);
    c = LL_ADD(LL_MUL(c, z), 1.0 / 40320);
    c = LL_ADD(LL_MUL(c, z), -1.0 / 720);
    c = LL_ADD(LL_MUL(c, z), 1.0 / 24);
    c = LL_ADD(LL_MUL(c, z), -0.5);
    c = LL_ADD(LL_MUL(c, z), 1.0);
    double x = quarter & 1 ? -s : c, y = quarter & 1 ? c : s;
    *cosine = quarter & 2 ? -x : x;
    *sine = quarter & 2 ? -y : y;
}

/* Two standard normal numbers of two words (Box and Muller). */
LL_ANYWHERE void ll_normal_pair(uint32_t w0, uint32_t w1, double *first, double *second)
{
    double r = LL_ROOT(LL_MUL(-2.0, ll_log_unit(ll_unit(w0)))), c, s;
    ll_turn(ll_unit(w1), &c, &s);
    *first = LL_MUL(r, c);
    *second = LL_MUL(r, s);
}
