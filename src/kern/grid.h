/* grid.h: what the kernels of grid and ungrid share (op/grid.c): the spec as strides, and powers of
 * two made from the bits of a double, so that loops over them become vector code. */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LL_GRID_SCALES = 2 }; /* scales that ungrid takes at most */

/* The result's dimensions, neighbours merged where every scale walks them alike, and the stride of
 * each scale along each. */
typedef struct ll_grid_walk {
    int n, n_scale;
    int64_t size[LL_MAX_DIMS], stride[LL_GRID_SCALES][LL_MAX_DIMS];
} ll_grid_walk;

/* Operands 1 and on of the call are scales. The op has checked the spec. */
void ll_grid_walk_of(const ll_kcall *c, ll_grid_walk *w);
/* Where scale s begins for row r, if the first n_outer dimensions number the rows. */
int64_t ll_grid_at(const ll_grid_walk *w, int s, int n_outer, int64_t r);

/* e with m < 2^e, for m >= 0; no less than -400, so that sums of two stay exponents of doubles.
 * Beyond 1023 for what is not finite. */
static inline int64_t ll_grid_exponent(double m)
{
    int64_t bits, e;
    memcpy(&bits, &m, 8);
    e = (bits >> 52 & 0x7ff) - 1022;
    return e < -400 ? -400 : e;
}

/* 2^e; NaN where a scale was not finite. */
static inline double ll_grid_power(int64_t e, bool finite)
{
    int64_t top = e > 1023 ? 1023 : e < -1022 ? -1022 : e;
    int64_t bits = finite ? (top + 1023) << 52 : 0x7ff8000000000000;
    double p;
    memcpy(&p, &bits, 8);
    return p;
}

#ifdef __cplusplus
}
#endif
