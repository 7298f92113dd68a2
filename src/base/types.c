/* types.c: element types, precisions and shapes. */
#include "base/types.h"

#include <math.h>
#include <stdio.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
#define X(name, text, bytes) {text, bytes},
    LL_DTYPES(X)
#undef X
};

size_t ll_dtype_bytes(ll_dtype t)
{
    return dtypes[t].bytes;
}

const char *ll_dtype_name(ll_dtype t)
{
    return dtypes[t].name;
}

bool ll_dtype_find(const char *name, ll_dtype *out)
{
    for (int i = 0; i < LL_N_DTYPE; i++)
        if (!strcmp(name, dtypes[i].name)) return *out = (ll_dtype)i, true;
    return false;
}

bool ll_dtype_is_float(ll_dtype t)
{
    return t != LL_I32 && t != LL_U8;
}

static const char *const precisions[] = {
#define X(name) #name,
    LL_PRECISIONS(X)
#undef X
};

const char *ll_precision_name(ll_precision p)
{
    return precisions[p];
}

ll_err ll_precision_parse(const char *name, ll_precision *out)
{
    int p = 0;
    while (name && p < LL_N_PRECISION && strcmp(name, precisions[p])) p++;
    CHECK(p < LL_N_PRECISION, LL_E_ARG,
          "unknown precision %s, expected f32, tf32, bf16, fp8 or "
          "fp8block",
          name);
    *out = (ll_precision)p;
    return LL_OK;
}

int64_t ll_numel(const ll_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->n; i++) n *= s->d[i];
    return n;
}

size_t ll_tensor_bytes(ll_dtype t, const ll_shape *s)
{
    return (size_t)ll_numel(s) * ll_dtype_bytes(t);
}

ll_err ll_check_shape(const ll_shape *s)
{
    int64_t n = 1;
    bool empty = false;
    CHECK(s->n >= 0 && s->n <= LL_MAX_DIMS, LL_E_SHAPE, "%d dimensions; expected 0 to %d", s->n,
          LL_MAX_DIMS);
    for (int i = 0; i < s->n; i++) {
        CHECK(s->d[i] >= 0, LL_E_SHAPE, "dimension %d is %ld", i, s->d[i]);
        empty |= s->d[i] == 0;
    }
    for (int i = 0; i < s->n && !empty; i++)
        CHECK(!__builtin_mul_overflow(n, s->d[i], &n) && n < INT64_MAX / 64, LL_E_SHAPE,
              "more elements than can be counted");
    return LL_OK;
}

bool ll_shape_equal(const ll_shape *a, const ll_shape *b)
{
    return a->n == b->n && !memcmp(a->d, b->d, sizeof(int64_t) * (size_t)a->n);
}

const char *ll_shape_print(const ll_shape *s, char text[LL_SHAPE_TEXT])
{
    int at = snprintf(text, LL_SHAPE_TEXT, "[");
    for (int i = 0; i < s->n && i < LL_MAX_DIMS; i++)
        at += snprintf(text + at, (size_t)(LL_SHAPE_TEXT - at), "%s%ld", i ? "," : "", s->d[i]);
    snprintf(text + at, (size_t)(LL_SHAPE_TEXT - at), "]");
    return text;
}

float ll_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 0) { /* zero or subnormal: man * 2^-24 */
        float f = ldexpf((float)man, -24);
        return sign ? -f : f;
    }
    return ll_of_bits(sign | (exp == 31 ? 0x7f800000u : (exp + 112) << 23) | man << 13);
}

uint16_t ll_f32_to_f16(float f)
{
    uint32_t u = ll_bits_of(f);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    float a = fabsf(f);
    if (isnan(f)) return (uint16_t)(sign | 0x7e00u);
    if (a >= 65520.0f) return (uint16_t)(sign | 0x7c00u);
    if (a < ldexpf(1, -14)) return (uint16_t)(sign | (uint16_t)lrintf(ldexpf(a, 24)));
    u &= 0x7fffffffu;
    u += 0xfffu + ((u >> 13) & 1u); /* nearest even */
    return (uint16_t)(sign | ((u - (112u << 23)) >> 13));
}

/* 8 bits: a sign, exponent bits, `man` mantissa bits. e4m3 has no infinities, one NaN, up to 448.
 */
typedef struct f8 {
    int man, bias, largest;
} f8;
static const f8 e4m3 = {3, 7, 0x7e}, e5m2 = {2, 15, 0x7b};

static double f8_value(uint8_t b, const f8 *t)
{
    int u = b & 0x7f, exp = u >> t->man, man = u & ((1 << t->man) - 1);
    double sign = b & 0x80 ? -1 : 1;
    if (u > t->largest) return t == &e5m2 && u == 0x7c ? sign * INFINITY : NAN;
    if (exp == 0) return sign * ldexp(man, 1 - t->bias - t->man);
    return sign * ldexp((1 << t->man) + man, exp - t->bias - t->man);
}

/* To nearest even; what is too large becomes the largest, as GPUs are asked to. */
static uint8_t f8_of(double v, const f8 *t)
{
    uint8_t sign = signbit(v) ? 0x80 : 0;
    if (isnan(v)) return (uint8_t)(sign | 0x7f);
    double a = fabs(v);
    int exp;
    if (a == 0) return sign;
    frexp(a, &exp); /* a is in [2^(exp-1), 2^exp) */
    exp = exp - 1 < 1 - t->bias ? 1 - t->bias : exp - 1;
    if (a >= f8_value((uint8_t)t->largest, t)) return (uint8_t)(sign | t->largest);
    int steps = (int)nearbyint(ldexp(a, t->man - exp)); /* mantissa, with its leading one */
    int u = ((exp + t->bias - 1) << t->man) + steps;
    return (uint8_t)(sign | (u > t->largest ? t->largest : u));
}

double ll_load_any(const void *data, ll_dtype t, int64_t i)
{
    switch (t) {
    case LL_F64: return ((const double *)data)[i];
    case LL_F32: return ((const float *)data)[i];
    case LL_BF16: return ll_bf16_to_f32(((const uint16_t *)data)[i]);
    case LL_F16: return ll_f16_to_f32(((const uint16_t *)data)[i]);
    case LL_I32: return ((const int32_t *)data)[i];
    case LL_U8: return ((const uint8_t *)data)[i];
    case LL_F8_E4M3: return f8_value(((const uint8_t *)data)[i], &e4m3);
    case LL_F8_E5M2: return f8_value(((const uint8_t *)data)[i], &e5m2);
    case LL_N_DTYPE: break;
    }
    LL_ASSERT(!"an element type");
}

static double within(double v, double low, double high)
{
    return v >= low ? (v <= high ? nearbyint(v) : high) : low; /* NaN becomes low */
}

void ll_store(void *data, ll_dtype t, int64_t i, double v)
{
    switch (t) {
    case LL_F64: ((double *)data)[i] = v; break;
    case LL_F32: ((float *)data)[i] = (float)v; break;
    case LL_BF16: ((uint16_t *)data)[i] = ll_f32_to_bf16((float)v); break;
    case LL_F16: ((uint16_t *)data)[i] = ll_f32_to_f16((float)v); break;
    case LL_I32: ((int32_t *)data)[i] = (int32_t)within(v, INT32_MIN, INT32_MAX); break;
    case LL_U8: ((uint8_t *)data)[i] = (uint8_t)within(v, 0, 255); break;
    case LL_F8_E4M3: ((uint8_t *)data)[i] = f8_of(v, &e4m3); break;
    case LL_F8_E5M2: ((uint8_t *)data)[i] = f8_of(v, &e5m2); break;
    case LL_N_DTYPE: LL_ASSERT(!"an element type");
    }
}
