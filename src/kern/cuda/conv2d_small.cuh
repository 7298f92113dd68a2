/* conv2d_small.cuh: convolutions of f32 of a few channels on small images, for which cuDNN takes
 * several times as long: an image lies in shared memory whole, its results in registers. */
#pragma once
#include "kern/cuda/conv2d_tap.cuh"

typedef struct small_conv {
    int n, x[2], y[2], window[2]; /* images; height and width of image, output and filter */
    int channels, filters;
    int stride[2], pad[2], dilation[2]; /* pad: top and left; may be negative */
} small_conv;

extern "C" {
bool ll_conv_small_fits(const small_conv *v);
size_t ll_conv_small_scratch(const ll_kcall *c, enum which which, const small_conv *v);
/* x, w, y: image, filter, output, or their gradients. */
ll_err ll_conv_small(const ll_kcall *c, enum which which, const small_conv *v, void *x, void *w,
                     void *y);
}
