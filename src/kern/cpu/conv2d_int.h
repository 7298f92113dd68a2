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

/* Element i of an operand, which may be bf16. */
static inline ll_real ll_conv_at(const void *x, bool bf16, int64_t i)
{
    return bf16 ? ll_bf16_to_f32(((const uint16_t *)x)[i]) : ((const ll_real *)x)[i];
}
