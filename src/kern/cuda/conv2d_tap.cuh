/* conv2d_tap.cuh: convolutions of f32 by one tap as products through cuBLASLt. Without tf32 cuDNN
 * takes two to four times as long, and far longer for the gradient of a strided image. */
#pragma once
#include "kern/cuda/gpu.cuh"

enum which { FORWARD, IMAGE, FILTER };

/* A convolution by one tap without padding: image and output sizes, channels. */
typedef struct tap {
    int64_t n, x[2], y[2], stride[2], channels, filters;
} tap;

extern "C" {
/* It is a product of [pixels, channels] and [filters, channels]; with a stride, of the pixels that
 * count. x, w, y: image, filter, output, or their gradients. */
size_t ll_conv_tap_scratch(const tap *t);
ll_err ll_conv_tap(const ll_kcall *c, enum which which, const tap *t, void *x, void *w, void *y);
}
