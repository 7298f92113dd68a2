/* grid.h: what the kernels of grid and ungrid share (op/grid.c): the spec as strides, and powers of
 * two made from the bits of a double, so that loops over them become vector code. */
#pragma once
#include "kern/attr.h"
#include "kern/walk.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The result's dimensions as its scales, operands 1 and on of the call, see them. The op has
 * checked the spec. */
void ll_grid_walk_of(const ll_kcall *c, ll_walk *w);

/* Of the scales of tensor x, which the spec "abc,ac->abc" says, the stride along a loop of so many
 * elements that has this stride in x. Dimensions of x that are one loop are one of scales too: they
 * lie side by side. */
int64_t ll_grid_scale_stride(const char *spec, const ll_shape *x, int64_t extent, int64_t stride);

/* e with m < 2^e, for m >= 0; no less than -400, so that sums of two stay exponents of doubles.
 * Beyond 1000 for what is not finite, or too large to be scaled. */
static inline LL_BOTH int64_t ll_grid_exponent(double m)
{
    int64_t bits, e;
    memcpy(&bits, &m, 8);
    e = (bits >> 52 & 0x7ff) - 1022;
    return e < -400 ? -400 : e;
}

static inline LL_BOTH bool ll_grid_finite(int64_t e)
{
    return e < 1000;
}

/* 2^e; NaN where a scale was not finite. */
static inline LL_BOTH double ll_grid_power(int64_t e, bool finite)
{
    int64_t top = e > 1023 ? 1023 : e < -1022 ? -1022 : e;
    int64_t bits = finite ? (top + 1023) << 52 : 0x7ff8000000000000;
    double p;
    memcpy(&p, &bits, 8);
    return p;
}

/* What numbers of this scale are multiplied by to become fixed point of so many bits. */
static inline LL_BOTH double ll_grid_factor(double m, int64_t bits)
{
    int64_t e = ll_grid_exponent(m);
    return ll_grid_power(bits - e, ll_grid_finite(e));
}

/* 0 of 0; 1 and the exponent of the largest power of two in v, no less than 1. */
static inline LL_BOTH uint8_t ll_grid_level(double v)
{
    int64_t bits;
    memcpy(&bits, &v, 8);
    int64_t e = (bits >> 52 & 0x7ff) - 1022;
    int64_t most = LL_REACH_BITS;
    return (uint8_t)(v == 0 ? 0 : e < 1 ? 1 : e > most ? most : e);
}

/* The odd whole number beside v, or 0 of 0: further from 0 if there is a choice. */
static inline LL_BOTH double ll_grid_odd(double v)
{
    double down = floor(fabs(v) * 0.5) * 2;
    return v == 0 ? 0 : copysign(down + 1, v);
}

/* The largest whole number of so many bits: what rounds up to 2^bits is one less. */
static inline LL_BOTH double ll_grid_most(int64_t bits)
{
    return ll_grid_power(bits, true) - 1;
}

/* A number with scales of these exponents, e in sum, as fixed point; or from it: up is false. Sums
 * of zeros of either sign are zeros of either: made one here. */
static inline LL_BOTH double ll_grid_value(double x, int64_t e, bool finite, const ll_grid_attr *a,
                                           bool up)
{
    double v = x * ll_grid_power(up ? a->bits - e : e - a->bits, finite);
    double most = ll_grid_most(a->bits);
    if (a->out == LL_U8) return ll_grid_level(v);
    v = (!up ? v : a->odd ? ll_grid_odd(v) : rint(v)) + 0.0;
    return up && !a->odd && v > most ? most : v;
}

#ifdef __cplusplus
}
#endif
