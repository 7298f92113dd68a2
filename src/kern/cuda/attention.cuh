/* attention.cuh: causal attention through cuDNN's fused kernels, and in tiles of f32. */
#pragma once
#include "kern/cuda/dnn.cuh"

typedef struct heads {
    int64_t b, t, h, d;
} heads;

extern "C" {
/* Does cuDNN have a kernel for these? Plans are made here, once. grad: of the gradient. any_order:
 * as in ll_kcall. bytes: of workspace. */
bool ll_fused_attention(const heads *s, ll_dtype t, ll_dtype lse, bool grad, bool any_order,
                        size_t *bytes);
ll_err ll_fused_forward(const ll_kcall *c, const heads *s);
ll_err ll_fused_backward(const ll_kcall *c, const heads *s);

/* Do our tiles take these: f32, heads of 32, 64, 128? Only the gradient works in scratch. */
bool ll_tiled_attention(const heads *s, ll_dtype t, ll_dtype lse);
size_t ll_tiled_grad_scratch(const heads *s);
ll_err ll_tiled_forward(const ll_kcall *c, const heads *s);
ll_err ll_tiled_backward(const ll_kcall *c, const heads *s);
}
