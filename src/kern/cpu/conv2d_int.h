/* conv2d_int.h: what the files of the CPU convolutions share: one convolution's sizes, vectors, and
 * the entry points of the algorithms (each file's top says how it works).
 *
 * Letters: n images of h x w x c; f filters of r x s x cg; n outputs of oh x ow x f; cg and fg are
 * channels and filters of one group. */
#pragma once
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cpu/micro.h"
#include "kern/cpu/row.h"
#include "kern/kern.h"

typedef enum ll_conv_direction { LL_CONV, LL_CONV_DX, LL_CONV_DW } ll_conv_direction;

typedef struct ll_conv_shape {
    ll_conv_direction d;
    ll_conv_attr a;
    int64_t n, h, w, c, f, r, s, oh, ow, groups, cg, fg;
    bool bf16;    /* operands; results are f32 */
    bool f64;     /* all */
    double start; /* of sums in f64 (base/num.h) */
    int threads;
    int m; /* of tiles */
} ll_conv_shape;

/* An algorithm's bytes of scratch, and its kernel, in f32 (gather and outer: bf16 operands too) and
 * in f64. */
typedef size_t ll_conv_room(const ll_conv_shape *v);
typedef void ll_conv_run(const ll_conv_shape *v, const ll_kcall *c);
ll_conv_room ll_conv_gather_room_f32, ll_conv_gather_room_f64;
ll_conv_room ll_conv_outer_room_f32, ll_conv_outer_room_f64;
ll_conv_room ll_conv_direct_room_f32, ll_conv_direct_room_f64;
ll_conv_room ll_conv_direct_dw_room_f32, ll_conv_direct_dw_room_f64;
ll_conv_run ll_conv_gather_f32, ll_conv_gather_f64, ll_conv_outer_f32, ll_conv_outer_f64;
ll_conv_run ll_conv_direct_f32, ll_conv_direct_f64, ll_conv_direct_dw_f32, ll_conv_direct_dw_f64;

bool ll_conv_joined_fits(const ll_conv_shape *v);
ll_conv_room ll_conv_joined_room;
ll_conv_run ll_conv_joined;

ll_conv_room ll_conv_im2col_room; /* all types */
ll_conv_run ll_conv_im2col;

/* Tiles of v->m x v->m outputs. */
bool ll_conv_winograd_fits(const ll_conv_shape *v, int m);
ll_conv_room ll_conv_winograd_room;
ll_conv_run ll_conv_winograd;
double ll_conv_winograd_flops(const ll_conv_shape *v);

/* Tiles of v->m x v->m pixels. */
bool ll_conv_fft_fits(const ll_conv_shape *v, int t);
ll_conv_room ll_conv_fft_room;
ll_conv_run ll_conv_fft;
double ll_conv_fft_flops(const ll_conv_shape *v);

/* Bytes of so many floats of scratch. */
static inline size_t ll_conv_floats(int64_t n)
{
    return ll_align64(sizeof(float) * (size_t)n);
}

/* ---- tiles (conv2d_tiles.c): of f32, ungrouped, with stride and dilation 1 ---- */
bool ll_conv_tiled(const ll_conv_shape *v);

/* Images: c numbers of h x w pixels, which lie so far apart as image, pixel and lane say; and where
 * the tile of result row 0, column 0 begins. */
typedef struct ll_conv_image {
    int64_t h, w, c, image, pixel, lane, shift[2];
} ll_conv_image;

/* Tiles of m outputs each, laid in the whole image (ll_conv_attr.at): what they read, through tiles
 * of m + taps - 1, and what they make (of conv2d_dw x and dy); those of an image, and of all. */
typedef struct ll_tiles {
    ll_conv_image in, out;
    int64_t m[2], down, across, all;
} ll_tiles;
ll_tiles ll_conv_tiles(const ll_conv_shape *v, int64_t m_rows, int64_t m_columns);

typedef struct ll_corner {
    int64_t n, y, x; /* of a tile in a picture; may lie outside */
} ll_corner;
ll_corner ll_conv_corner(const ll_tiles *t, const ll_conv_image *g, int64_t tile);

/* Element i of an operand, which may be bf16. */
static inline ll_real ll_conv_at(const void *x, bool bf16, int64_t i)
{
    return bf16 ? ll_bf16_to_f32(((const uint16_t *)x)[i]) : ((const ll_real *)x)[i];
}
