/* conv2d_winograd.h: the forms of conv2d_winograd.c: what goes from an image to the spots of tiles,
 * and back. */
#pragma once
#include "kern/cpu/conv2d_int.h"

enum { LL_WINOGRAD_MOST = 6 }; /* a of a form, at most */

/* From an image, or the spots of a tile, to the other: n vectors of channels. Rows and columns of
 * both are so far apart. */
typedef void ll_winograd_change(const float *from, int64_t from_row, int64_t from_col, float *to,
                                int64_t to_row, int64_t to_col, int64_t n);

typedef struct ll_winograd {
    int m, r;
    ll_winograd_change *x, *w, *y, *dy, *dw; /* B', G, A'; of the gradient A, G' */
} ll_winograd;

/* F(m, r) of this shape's filters; NULL: there is none. */
const ll_winograd *ll_winograd_for(const ll_conv_shape *v, int m);
