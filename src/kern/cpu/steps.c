/* steps.c: the loops that chains are made of: each elementwise op over one tile of f32, and tiles
 * from and to tensors of other element types. Every loop here becomes vector code: no branches, and
 * `omp simd` says that y is either one of the operands exactly or apart from them. */
#include "kern/cpu/chain.h"
#include "kern/cpu/vecmath.h"

#define STEP_ARGS float *y, const float *a, const float *b, const float *c, float k, float j, int n
#define UNUSED (void)a, (void)b, (void)c, (void)k, (void)j
/* About how many additions an op costs, and its value at element i, in f32: kern/attr.h says the
 * same in double, and what is not here is computed so. */
#define STEPS(X)                                                                                   \
    X(add, 1, a[i] + b[i])                                                                         \
    X(sub, 1, a[i] - b[i])                                                                         \
    X(mul, 1, a[i] * b[i])                                                                         \
    X(div, 4, a[i] / b[i])                                                                         \
    X(max, 1, ((a[i] > b[i]) | (a[i] != a[i])) ? a[i] : b[i])                                      \
    X(min, 1, ((a[i] < b[i]) | (a[i] != a[i])) ? a[i] : b[i])                                      \
    X(less, 1, a[i] < b[i] ? 1.0f : 0.0f)                                                          \
    X(equal, 1, a[i] == b[i] ? 1.0f : 0.0f)                                                        \
    X(select, 1, choose(a[i], b[i], c[i]))                                                         \
    X(neg, 1, -a[i])                                                                               \
    X(abs, 1, fabsf(a[i]))                                                                         \
    X(exp, 10, ll_expf(a[i]))                                                                      \
    X(log, 10, ll_logf(a[i]))                                                                      \
    X(sqrt, 4, sqrtf(a[i]))                                                                        \
    X(rsqrt, 8, 1.0f / sqrtf(a[i]))                                                                \
    X(tanh, 10, ll_tanhf(a[i]))                                                                    \
    X(sigmoid, 10, ll_sigmoidf(a[i]))                                                              \
    X(relu, 1, a[i] <= 0.0f ? 0.0f : a[i])                                                         \
    X(gelu, 10, ll_geluf(a[i]))                                                                    \
    X(dgelu, 10, ll_dgeluf(a[i]))                                                                  \
    X(silu, 10, ll_siluf(a[i]))                                                                    \
    X(square, 1, a[i] * a[i])                                                                      \
    X(erf, 10, ll_erff(a[i]))                                                                      \
    X(floor, 1, floorf(a[i]))                                                                      \
    X(ceil, 1, ceilf(a[i]))                                                                        \
    X(round, 1, rintf(a[i]))                                                                       \
    X(sign, 1, a[i] != a[i] ? a[i] : (a[i] > 0.0f ? 1.0f : 0.0f) - (a[i] < 0.0f ? 1.0f : 0.0f))    \
    X(log1p, 20, ll_log1pf(a[i]))                                                                  \
    X(expm1, 10, ll_expm1f(a[i]))                                                                  \
    X(softplus, 20, ll_softplusf(a[i]))                                                            \
    X(stop_gradient, 1, a[i])                                                                      \
    X(scale, 1, a[i] * k)                                                                          \
    X(shift, 1, a[i] + k)                                                                          \
    X(cast, 1, a[i])

/* Both are loaded whatever a is, so that the choice needs no branch. */
static inline float choose(float a, float b, float c)
{
    return a != 0.0f ? b : c;
}

#define X(name, cost, value)                                                                       \
    static void name##_step(STEP_ARGS)                                                             \
    {                                                                                              \
        UNUSED;                                                                                    \
        _Pragma("omp simd") for (int i = 0; i < n; i++) y[i] = value;                              \
    }
STEPS(X)
#undef X

/* Arguments too large for the vector code are rare: then the tile goes element by element, and
 * those through libm: what an element becomes does not depend on its neighbours. */
static bool small_angles(const float *a, int n)
{
    uint32_t big = 0;
#pragma omp simd reduction(| : big)
    for (int i = 0; i < n; i++) big |= fabsf(a[i]) <= LL_SINCOS_MAX ? 0u : 1u;
    return !big;
}

/* The sine, or (quarter 1) the cosine; libm's for large arguments. */
static inline __attribute__((always_inline)) void turn(float *y, const float *a, const int quarter,
                                                       float (*large)(float), int n)
{
    if (small_angles(a, n)) {
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] = ll_sincosf(a[i], quarter);
    } else {
        for (int i = 0; i < n; i++)
            y[i] = fabsf(a[i]) <= LL_SINCOS_MAX ? ll_sincosf(a[i], quarter) : large(a[i]);
    }
}

static void sin_step(STEP_ARGS)
{
    UNUSED;
    turn(y, a, 0, sinf, n);
}

static void cos_step(STEP_ARGS)
{
    UNUSED;
    turn(y, a, 1, cosf, n);
}

/* By the values of kern/attr.h. */
#define X(name, operands, value)                                                                   \
    static void name##_in_double(float *y, const float *p, const float *q, const float *r,         \
                                 float k, float j, int n)                                          \
    {                                                                                              \
        (void)k, (void)j;                                                                          \
        for (int i = 0; i < n; i++) {                                                              \
            double a = p[i], b = (operands) > 1 ? q[i] : 0, c = (operands) > 2 ? r[i] : 0;         \
            (void)b, (void)c;                                                                      \
            y[i] = (float)(value);                                                                 \
        }                                                                                          \
    }
LL_EW(X)
#undef X

#pragma GCC diagnostic ignored "-Woverride-init" /* the later entry is the faster one */
ll_chain_step *const ll_chain_steps[LL_N_STEP] = {
#define X(name, operands, value) [LL_EW_##name] = name##_in_double,
    LL_EW(X)
#undef X
#define X(name, cost, value) [LL_EW_##name] = name##_step,
        STEPS(X)
#undef X
#define X(name, operands, value) [LL_STEP_##name] = ll_##name##_step,
            LL_PAIRS(X)
#undef X
                [LL_EW_sin] = sin_step,
    [LL_EW_cos] = cos_step};

int ll_step_cost(int op)
{
    enum { IN_DOUBLE = 40 }; /* one by one */
    static const int8_t costs[LL_N_STEP] = {
#define X(name, operands, value) [LL_EW_##name] = IN_DOUBLE,
        LL_EW(X)
#undef X
#define X(name, cost, value) [LL_EW_##name] = cost,
            STEPS(X)
#undef X
#define X(name, operands, value) [LL_STEP_##name] = 1,
                LL_PAIRS(X)
#undef X
                    [LL_EW_sin] = 10,
        [LL_EW_cos] = 10};
    return costs[op];
}

/* ---- tiles of other element types ---- */

void ll_tile_load(const ll_tensor *x, int64_t e, int n, float *y)
{
    switch (x->dtype) {
    case LL_F32: memcpy(y, (const float *)x->data + e, sizeof(float) * (size_t)n); break;
#define CASE(name, type, value)                                                                    \
    case name: {                                                                                   \
        const type *p = (const type *)x->data + e;                                                 \
        _Pragma("omp simd") for (int i = 0; i < n; i++) y[i] = value;                              \
        break;                                                                                     \
    }
        CASE(LL_BF16, uint16_t, ll_of_bits((uint32_t)p[i] << 16))
        CASE(LL_I32, int32_t, (float)p[i])
        CASE(LL_U8, uint8_t, (float)p[i])
#undef CASE
    default:
        for (int i = 0; i < n; i++) y[i] = (float)ll_load(x->data, x->dtype, e + i);
    }
}

/* Nearest even; NaN stays NaN. */
static inline uint16_t to_bf16(float x)
{
    uint32_t u = ll_bits_of(x), up = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : up);
}

void ll_tile_store(const ll_tensor *y, int64_t e, int n, const float *x)
{
    switch (y->dtype) {
    case LL_F32: memmove((float *)y->data + e, x, sizeof(float) * (size_t)n); break;
    case LL_BF16: {
        uint16_t *p = (uint16_t *)y->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) p[i] = to_bf16(x[i]);
        break;
    }
    default:
        for (int i = 0; i < n; i++) ll_store(y->data, y->dtype, e + i, x[i]);
    }
}
