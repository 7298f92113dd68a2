/* attention.cuh: the ways to make causal attention and its gradient, which attention.cu lists. */
#pragma once
#include "kern/cuda/gpu.cuh"

typedef struct heads {
    int64_t b, t, h, d;
} heads;

/* in: qkv; of the gradient: do, qkv, o, lse. out: o, lse; of the gradient: dqkv. */
static inline const ll_tensor *qkv_of(const ll_kcall *c)
{
    return &c->in[c->n_in > 1];
}
static inline const ll_tensor *lse_of(const ll_kcall *c)
{
    return c->n_in > 1 ? &c->in[3] : &c->out[1];
}
static inline heads heads_of(const ll_kcall *c)
{
    const int64_t *d = qkv_of(c)->shape.d;
    return heads{d[0], d[1], d[3], d[4]};
}

extern "C" {
/* By cuDNN's fused kernels (attention_dnn.cu), of bf16: plans are made when one is asked whether
 * it fits. The gradient's sums in order, or in any. attention_cuda_dnn is attend's too. */
ll_fits attention_cuda_dnn_fits, attention_grad_cuda_any_fits, attend_cuda_dnn_fits;
ll_scratch attention_cuda_dnn_scratch, attention_grad_cuda_any_scratch;
ll_kernel attention_cuda_dnn, attention_grad_cuda_dnn, attention_grad_cuda_any;
/* In tiles of f32 (tiles.cuh), heads of up to 128, in fours; or with operands rounded to tf32. */
ll_kernel attention_cuda_f32, attention_grad_cuda_f32, attention_cuda_tf32,
    attention_grad_cuda_tf32;
/* By our kernels for compute capability 9.0 (attention_back_90.cu): bf16, heads of 64 or 128; of
 * attention_grad and of attend_grad. */
ll_fits attention_grad_cuda_90_fits, attend_grad_cuda_90_fits;
ll_scratch attention_grad_cuda_90_scratch;
ll_kernel attention_grad_cuda_90;
/* attend, of bf16, heads of up to 128 in eights, by tensor cores (attend_mma.cu). */
ll_fits attend_cuda_mma_fits;
ll_kernel attend_cuda_mma, attend_grad_cuda_mma;
}
