/* types.h: element types, precisions and shapes: sizes, names, conversions. */
#pragma once
#include "base/err.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Macros that are their own next, expanded up to 16 times. */
#define LL_NOW ()
#define LL_EXPAND(...) LL_FOUR(LL_FOUR(LL_FOUR(LL_FOUR(__VA_ARGS__))))
#define LL_FOUR(...) LL_ONCE(LL_ONCE(LL_ONCE(LL_ONCE(__VA_ARGS__))))
#define LL_ONCE(...) __VA_ARGS__

size_t ll_dtype_bytes(ll_dtype t);
const char *ll_dtype_name(ll_dtype t);
bool ll_dtype_find(const char *name, ll_dtype *out); /* false: no such type */
bool ll_dtype_is_float(ll_dtype t);

/* How numbers are kept and multiplied. tf32, fp8: of products alone. fp8block: fp8 whose scales are
 * of blocks, not of whole tensors. */
#define LL_PRECISIONS(X) X(f32) X(tf32) X(bf16) X(fp8) X(fp8block)
typedef enum ll_precision {
#define X(name) LL_PRECISION_##name,
    LL_PRECISIONS(X)
#undef X
        LL_N_PRECISION
} ll_precision;
const char *ll_precision_name(ll_precision p);
/* NULL is f32. */
ll_err ll_precision_parse(const char *name, ll_precision *out);
/* Of what is not done in fp8 where large products are. */
static inline ll_precision ll_precision_wide(ll_precision p)
{
    return p >= LL_PRECISION_fp8 ? LL_PRECISION_bf16 : p;
}
/* What matrix units see of it. */
static inline ll_precision ll_precision_unit(ll_precision p)
{
    return p >= LL_PRECISION_fp8 ? LL_PRECISION_fp8 : p;
}

int64_t ll_numel(const ll_shape *s); /* 1 for a scalar */
/* Of a tensor. */
size_t ll_tensor_bytes(ll_dtype t, const ll_shape *s);
/* Of callers and of text: no negative dimension, and so many elements as can be counted. */
ll_err ll_check_shape(const ll_shape *s);
bool ll_shape_equal(const ll_shape *a, const ll_shape *b);
/* "[2,3]", into text, which is returned. */
#define LL_SHAPE_TEXT 160
const char *ll_shape_print(const ll_shape *s, char text[LL_SHAPE_TEXT]);
/* The same in place, as an argument of printf. */
#define LL_DIMS(s) ll_shape_print(s, (char[LL_SHAPE_TEXT]){0})

static inline uint32_t ll_bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float ll_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* bf16 is the upper half of an f32; rounding is to nearest even, NaN stays NaN. */
static inline float ll_bf16_to_f32(uint16_t h)
{
    return ll_of_bits((uint32_t)h << 16);
}
static inline uint16_t ll_f32_to_bf16(float f)
{
    uint32_t u = ll_bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float ll_f16_to_f32(uint16_t h);
uint16_t ll_f32_to_f16(float f);

/* One element as a double, whatever its type. Integers are rounded to nearest and saturate. */
double ll_load_any(const void *data, ll_dtype t, int64_t i);
static inline double ll_load(const void *data, ll_dtype t, int64_t i)
{
    if (t == LL_F32) return ((const float *)data)[i]; /* by far most of what oracles do */
    if (t == LL_F64) return ((const double *)data)[i];
    return ll_load_any(data, t, i);
}
void ll_store(void *data, ll_dtype t, int64_t i, double v);

#ifdef __cplusplus
}
#endif
