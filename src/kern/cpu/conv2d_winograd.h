/* conv2d_winograd.h: the forms of conv2d_winograd.c: what goes from an image to the spots of tiles,
 * and back. */
#pragma once
#include "kern/cpu/conv2d_int.h"

enum { LL_WINOGRAD_MOST = 6 }; /* a of a form, at most */

/* Between the spots of a tile and an image: n vectors of channels. Rows and columns of both are so
 * far apart; of what is listed, each pixel has an address, and `at` is where channels begin. */
typedef void ll_winograd_listed(const float *const *from, int64_t at, float *to, int64_t to_row,
                                int64_t to_col, int64_t n);
typedef void ll_winograd_change(const float *from, int64_t from_row, int64_t from_col, float *to,
                                int64_t to_row, int64_t to_col, int64_t n);

typedef struct ll_winograd {
    int m, r;
    ll_winograd_listed *x, *dy;     /* B'; of the gradient A */
    ll_winograd_change *w, *y, *dw; /* G, A'; of the gradient G' */
} ll_winograd;

/* F(m, r) of this shape's filters; NULL: there is none. */
const ll_winograd *ll_winograd_for(const ll_conv_shape *v, int m);
