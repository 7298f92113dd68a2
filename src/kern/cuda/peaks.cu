/* peaks.cu: a thread a result, the largest level of a window (op/peaks.c). */
#include "kern/cuda/gpu.cuh"

#include "kern/peaks.h"

static __global__ void largest(const __grid_constant__ ll_peaks_attr a,
                               const __grid_constant__ ll_shape x,
                               const __grid_constant__ ll_shape y, const uint8_t *from, uint8_t *to,
                               int64_t n)
{
    GRID_STRIDE(e, n) to[e] = ll_peak(&a, from, x.d, y.d, e);
}

static ll_err run(const ll_kcall *c)
{
    int64_t n = ll_numel(&c->out[0].shape);
    return launch_each(c, n, largest, *(const ll_peaks_attr *)c->attr, c->in[0].shape,
                       c->out[0].shape, c->in[0].data, c->out[0].data, n);
}

extern "C" const ll_solver peaks_cuda[] = {{.run = run}, {}};
