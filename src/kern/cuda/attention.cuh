/* attention.cuh: causal attention through cuDNN's fused kernels, in tiles of f32, and by our own
 * kernels for Hopper. */
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

/* And our kernels for GPUs of compute capability 9.0: bf16, heads of 64? */
#ifdef LL_HOPPER
extern "C" {
bool ll_own_attention_grad(const heads *s, ll_dtype t, ll_dtype lse);
size_t ll_own_grad_scratch(const heads *s);
ll_err ll_own_backward(const ll_kcall *c, const heads *s);
}
#else
static inline bool ll_own_attention_grad(const heads *, ll_dtype, ll_dtype)
{
    return false;
}
static inline size_t ll_own_grad_scratch(const heads *)
{
    return 0;
}
static inline ll_err ll_own_backward(const ll_kcall *, const heads *)
{
    FAIL(LL_E_DEVICE, "built without Hopper's own kernels: set LL_CUDA_ARCH to 90");
}
#endif
