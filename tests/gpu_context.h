/* gpu_context.h: the context of GPU 0 for programs that call kernels themselves; open until the
 * process ends. */
#pragma once
#include "solve.h"

#include "kern/cuda/context.h"

static inline ll_context *gpu_context(void)
{
    static ll_context *x;
    return x || ll_cuda_context_open(0, &x) == LL_OK ? x : NULL;
}
