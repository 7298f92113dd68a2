/* attention.cuh: causal attention through cuDNN's fused kernels. */
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
}
