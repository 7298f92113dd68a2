/* reach.cu: the largest term of each result of a product (op/matmul.c): a thread a result, which
 * ends with the first term that is enough. */
#include "kern/cuda/gpu.cuh"

#include "kern/reach.h"

static __global__ void largest(const __grid_constant__ ll_reach r, const uint8_t *a,
                               const uint8_t *b, float *y, int64_t n)
{
    GRID_STRIDE(e, n)
    {
        int64_t at;
        float v = ll_reach_at(&r, a, b, e, &at);
        y[at] = v;
    }
}

static ll_err run(const ll_kcall *c)
{
    int64_t n = ll_numel(&c->out[0].shape);
    return launch_each(c, n, largest, ll_reach_of(c), c->in[0].data, c->in[1].data, c->out[0].data,
                       n);
}

extern "C" const ll_solver reach_cuda[] = {{.run = run}, {}};
