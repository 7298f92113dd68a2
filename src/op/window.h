/* window.h: one axis of a sliding window, shared by convolutions and pooling. Output row o reads
 * image rows o*stride - pad[0] + t*dilation for t in 0..taps-1; rows outside the image are padding.
 *
 * A part of a cut axis is a smaller window of the same form: its image (or output) starts later,
 * which only changes the padding, possibly below zero. Example: 3 taps, stride 1, pad 1, an image
 * of 8 rows; outputs [3,6) read image rows [2,7), and as a window of their own have pad 0:
 * 0 - 0 = row 2 - 2. */
#pragma once
#include "ir/op.h"

typedef struct ll_axis {
    int64_t taps, stride, dilation, pad[2]; /* pad: before, after */
} ll_axis;

/* Rows of the image that one output spans. */
static inline int64_t ll_axis_span(const ll_axis *a)
{
    return (a->taps - 1) * a->dilation + 1;
}

/* Rows of output over an image of so many rows; below 0 where the image is far too small. */
int64_t ll_axis_out(const ll_axis *a, int64_t image);
/* The image rows that outputs [out.from, out.to) read, at least partly; a becomes the axis of that
 * part. */
ll_range ll_axis_image_part(ll_axis *a, ll_range out, int64_t image);
/* The outputs, of n, that read any of image rows [image.from, image.to); a becomes the axis of that
 * part. */
ll_range ll_axis_out_part(ll_axis *a, ll_range image, int64_t n);
/* Which axis of an NHWC image a loop is: 0 height, 1 width, -1 neither. */
int ll_axis_of(const ll_loops *l, int loop);
