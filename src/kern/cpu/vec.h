/* vec.h: a vector of f32, as wide as the machine's registers, in the compiler's own vector
 * extension: the same text for every instruction set. For the few kernels whose inner loops must
 * not be left to the vectoriser. */
#pragma once
#include "base/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__AVX512F__)
enum { LL_LANES = 16 };
#elif defined(__AVX__)
enum { LL_LANES = 8 };
#else
enum { LL_LANES = 4 };
#endif

/* Loads and stores through pointers to these need no alignment. */
typedef float ll_vec __attribute__((vector_size(LL_LANES * 4), aligned(4), may_alias));
typedef int32_t ll_ivec __attribute__((vector_size(LL_LANES * 4), aligned(4), may_alias));

static inline ll_vec ll_vec_at(const float *x)
{
    return *(const ll_vec *)x;
}
static inline void ll_vec_to(float *x, ll_vec v)
{
    *(ll_vec *)x = v;
}
static inline ll_vec ll_vec_all(float x)
{
    ll_vec zero = {0};
    return zero + x;
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

#ifdef __cplusplus
}
#endif
