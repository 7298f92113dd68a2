/* steps.c: the loops that chains are made of: each elementwise op over one tile of f32, and tiles
 * from and to tensors of other element types. Every loop here becomes vector code: no branches, and
 * `omp simd` says that y is either one of the operands exactly or apart from them. */
#include "kern/cpu/chain.h"
#include "kern/cpu/vecmath.h"

#define STEP_ARGS float *y, const float *a, const float *b, const float *c, float k, float j, int n
#define UNUSED (void)a, (void)b, (void)c, (void)k, (void)j
/* The value of ops at element i, in f32: kern/attr.h says the same in double, and what is not here
 * is computed so. */
#define STEPS(X)                                                                                   \
    X(add, a[i] + b[i])                                                                            \
    X(sub, a[i] - b[i])                                                                            \
    X(mul, a[i] * b[i])                                                                            \
    X(div, a[i] / b[i])                                                                            \
    X(max, ((a[i] > b[i]) | (a[i] != a[i])) ? a[i] : b[i])                                         \
    X(min, ((a[i] < b[i]) | (a[i] != a[i])) ? a[i] : b[i])                                         \
    X(less, a[i] < b[i] ? 1.0f : 0.0f)                                                             \
    X(equal, a[i] == b[i] ? 1.0f : 0.0f)                                                           \
    X(select, choose(a[i], b[i], c[i]))                                                            \
    X(neg, -a[i])                                                                                  \
    X(abs, fabsf(a[i]))                                                                            \
    X(exp, ll_expf(a[i]))                                                                          \
    X(log, ll_logf(a[i]))                                                                          \
    X(sqrt, sqrtf(a[i]))                                                                           \
    X(rsqrt, 1.0f / sqrtf(a[i]))                                                                   \
    X(tanh, ll_tanhf(a[i]))                                                                        \
    X(sigmoid, ll_sigmoidf(a[i]))                                                                  \
    X(relu, a[i] <= 0.0f ? 0.0f : a[i])                                                            \
    X(gelu, ll_geluf(a[i]))                                                                        \
    X(dgelu, ll_dgeluf(a[i]))                                                                      \
    X(silu, ll_siluf(a[i]))                                                                        \
    X(square, a[i] * a[i])                                                                         \
    X(erf, ll_erff(a[i]))                                                                          \
    X(floor, floorf(a[i]))                                                                         \
    X(ceil, ceilf(a[i]))                                                                           \
    X(round, rintf(a[i]))                                                                          \
    X(sign, a[i] != a[i] ? a[i] : (a[i] > 0.0f ? 1.0f : 0.0f) - (a[i] < 0.0f ? 1.0f : 0.0f))       \
    X(log1p, ll_log1pf(a[i]))                                                                      \
    X(expm1, ll_expm1f(a[i]))                                                                      \
    X(softplus, ll_softplusf(a[i]))                                                                \
    X(stop_gradient, a[i])                                                                         \
    X(scale, a[i] * k)                                                                             \
    X(shift, a[i] + k)                                                                             \
    X(cast, a[i])

/* Both are loaded whatever a is, so that the choice needs no branch. */
static inline float choose(float a, float b, float c)
{
    return a != 0.0f ? b : c;
}

#define X(name, value)                                                                             \
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
ll_step *const ll_steps[LL_N_STEP] = {
#define X(name, operands, value) [LL_EW_##name] = name##_in_double,
    LL_EW(X)
#undef X
#define X(name, value) [LL_EW_##name] = name##_step,
        STEPS(X)
#undef X
            [LL_EW_sin] = sin_step,
    [LL_EW_cos] = cos_step,
    [LL_STEP_MUL_ADD] = ll_mul_add_step,
    [LL_STEP_MUL_SUB] = ll_mul_sub_step,
    [LL_STEP_SUB_MUL] = ll_sub_mul_step,
    [LL_STEP_MUL_SHIFT] = ll_mul_shift_step,
    [LL_STEP_SCALE_ADD] = ll_scale_add_step,
    [LL_STEP_SCALE_SUB] = ll_scale_sub_step,
    [LL_STEP_SCALE_SHIFT] = ll_scale_shift_step,
};

int ll_step_cost(int op)
{
    switch (op) {
    case LL_EW_div:
    case LL_EW_sqrt: return 4;
    case LL_EW_rsqrt: return 8;
    case LL_EW_exp:
    case LL_EW_log:
    case LL_EW_tanh:
    case LL_EW_sigmoid:
    case LL_EW_sin:
    case LL_EW_cos:
    case LL_EW_gelu:
    case LL_EW_dgelu:
    case LL_EW_silu:
    case LL_EW_erf:
    case LL_EW_expm1: return 10;
    case LL_EW_log1p:
    case LL_EW_softplus: return 20;
    case LL_EW_pow:
    case LL_EW_mod:
    case LL_EW_atan:
    case LL_EW_sinh:
    case LL_EW_asinh: return 40; /* one by one, in double */
    default: return 1;
    }
}

/* ---- tiles of other element types ---- */

void ll_tile_load(const ll_tensor *x, int64_t e, int n, float *y)
{
    switch (x->dtype) {
    case LL_F32: memcpy(y, (const float *)x->data + e, sizeof(float) * (size_t)n); break;
    case LL_BF16: {
        const uint16_t *p = (const uint16_t *)x->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] = ll_of_bits((uint32_t)p[i] << 16);
        break;
    }
    case LL_I32: {
        const int32_t *p = (const int32_t *)x->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] = (float)p[i];
        break;
    }
    case LL_U8: {
        const uint8_t *p = (const uint8_t *)x->data + e;
#pragma omp simd
        for (int i = 0; i < n; i++) y[i] = (float)p[i];
        break;
    }
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
