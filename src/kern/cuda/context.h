/* context.h: what kernels of GPUs keep from call to call: the GPU's facts, and what is dear to make
 * again: plans of products and convolutions, compiled chains. Programs of one process on one GPU
 * share it. It is given in every call (ll_kcall.ctx), also when a kernel is chosen and asked for
 * its scratch, and NULL there where no GPU is. */
#pragma once
#include "kern/kern.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of this GPU: a new one, or the one that is open. NULL: this machine has no GPU. */
ll_err ll_cuda_context_open(int device, ll_context **out);
/* The last user's close waits for what still compiles. */
void ll_cuda_context_close(ll_context *x);
/* The compute capability that kernels were compiled for and this GPU has: 80, 90 ... */
int ll_cuda_level(const ll_context *x);

#ifdef __cplusplus
}
#endif
