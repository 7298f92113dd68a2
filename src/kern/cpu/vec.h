/* vec.h: a vector of f32 (or f64: real.h), as wide as the machine's registers, in the compiler's
 * own vector extension: the same text for every instruction set. For the few kernels whose inner
 * loops must not be left to the vectoriser. */
#pragma once
#include "kern/cpu/real.h"

#include <string.h>

#if defined(__AVX512F__)
enum { LL_VECTOR = 64 };
#elif defined(__AVX__)
enum { LL_VECTOR = 32 };
#else
enum { LL_VECTOR = 16 };
#endif
enum { LL_LANES = LL_VECTOR / sizeof(ll_real) };

/* Loads and stores through pointers to these need no alignment. */
typedef ll_real ll_vec __attribute__((vector_size(LL_VECTOR), aligned(sizeof(ll_real)), may_alias));
typedef ll_real_mask ll_ivec
    __attribute__((vector_size(LL_VECTOR), aligned(sizeof(ll_real)), may_alias));

/* Loops over the vectors of a tile must vanish, or the compiler keeps them in memory: as it may
 * without optimisation and under sanitizers, which take minutes to compile what is unrolled. */
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
#define LL_INLINE static inline
#define LL_UNROLL
#else
#define LL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define LL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LL_UNROLL _Pragma("GCC unroll 32")
#endif
#endif
#define EACH(i, n) LL_UNROLL for (int i = 0; i < (n); i++)

/* 16 bytes, and LL_QUAD of these, rows for columns. */
typedef ll_real ll_quad __attribute__((vector_size(16), aligned(sizeof(ll_real)), may_alias));
enum { LL_QUAD = 16 / sizeof(ll_real) };
LL_INLINE void ll_quad_transpose(ll_quad v[LL_QUAD])
{
#ifdef LL_REAL_F64
    ll_quad a = v[0], b = v[1];
    v[0] = __builtin_shufflevector(a, b, 0, 2);
    v[1] = __builtin_shufflevector(a, b, 1, 3);
#else
    ll_quad a = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5);
    ll_quad b = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
    ll_quad c = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7);
    ll_quad d = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
    v[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    v[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    v[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    v[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
#endif
}

/* Sums of a vector's quads, and of all of it. */
LL_INLINE ll_quad ll_vec_fold(ll_vec v)
{
    enum { QUADS = LL_VECTOR / 16 };
    ll_quad part[QUADS];
    memcpy(part, &v, sizeof part);
    for (int half = QUADS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[half + i];
    return part[0];
}
LL_INLINE ll_real ll_vec_total(ll_vec v)
{
    ll_quad q = ll_vec_fold(v);
#ifdef LL_REAL_F64
    return q[0] + q[1];
#else
    return (q[0] + q[2]) + (q[1] + q[3]);
#endif
}

static inline ll_vec ll_vec_at(const ll_real *x)
{
    return *(const ll_vec *)x;
}
static inline void ll_vec_to(ll_real *x, ll_vec v)
{
    *(ll_vec *)x = v;
}
static inline ll_vec ll_vec_all(ll_real x)
{
    ll_vec zero = {0};
    return zero + x;
}
/* The first n of x, and fill after them; and such a vector's first n to x. More are LL_LANES. */
static inline ll_vec ll_vec_some(const ll_real *x, int64_t n, ll_real fill)
{
    ll_vec v = ll_vec_all(fill);
    if (n >= LL_LANES) return ll_vec_at(x);
    memcpy(&v, x, (size_t)n * sizeof *x);
    return v;
}
static inline void ll_vec_put_some(ll_real *x, int64_t n, ll_vec v)
{
    if (n >= LL_LANES)
        ll_vec_to(x, v);
    else
        memcpy(x, &v, (size_t)n * sizeof *x);
}
/* a where the mask is set, else b. */
static inline ll_vec ll_vec_pick(ll_ivec mask, ll_vec a, ll_vec b)
{
    return (ll_vec)((mask & (ll_ivec)a) | (~mask & (ll_ivec)b));
}
/* The larger; b where a is NaN. */
static inline ll_vec ll_vec_max(ll_vec a, ll_vec b)
{
    return ll_vec_pick((ll_ivec)(a > b), a, b);
}

#ifndef LL_REAL_F64
/* exp(x) for x < 88, within 2e-7 of it: 2^n P(r), x = n ln 2 + r. The sum that rounds x / ln 2
 * holds n + 127 in its low bits, where an f32's exponent holds it. Below -88 exactly 0; NaN stays
 * NaN. */
static inline ll_vec ll_vec_exp(ll_vec x)
{
    const float low = -88.02969f, round = 12583039.0f;
    x = ll_vec_pick((ll_ivec)(x < low), ll_vec_all(low), x);
    ll_vec t = x * 1.44269504f + round;
    ll_vec r = x - (t - round) * 0.693147181f;
    ll_vec p = r * 0.00829761947f + 0.0419156293f;
    p = p * r + 0.166675765f;
    p = p * r + 0.499988927f;
    p = p * r + 0.999999691f;
    p = p * r + 1.0f;
    return p * (ll_vec)((ll_ivec)t << 23);
}
#endif
