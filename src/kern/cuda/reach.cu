/* reach.cu: the largest term of each result of a product (op/reach.c): a thread a result, which
 * ends with the first term that is enough. */
#include "kern/cuda/gpu.cuh"

#include "kern/einsum.h"

typedef struct levels {
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int free, n; /* the result's loops, and all */
} levels;

static __global__ void largest(levels l, const uint8_t *a, const uint8_t *b, float *y, int64_t n,
                               int64_t terms, int enough)
{
    GRID_STRIDE(e, n)
    {
        int64_t rest = e, ia = 0, ib = 0, iy = 0;
        for (int d = l.free - 1; d >= 0; d--) {
            int64_t k = rest % l.loop[d].extent;
            rest /= l.loop[d].extent;
            ia += k * l.loop[d].stride[LL_EINSUM_A];
            ib += k * l.loop[d].stride[LL_EINSUM_B];
            iy += k * l.loop[d].stride[LL_EINSUM_C];
        }
        int most = 0;
        for (int64_t t = 0; t < terms && most < enough; t++) {
            int64_t left = t, ja = ia, jb = ib;
            for (int d = l.n - 1; d >= l.free; d--) {
                int64_t k = left % l.loop[d].extent;
                left /= l.loop[d].extent;
                ja += k * l.loop[d].stride[LL_EINSUM_A];
                jb += k * l.loop[d].stride[LL_EINSUM_B];
            }
            int s = a[ja], u = b[jb];
            if (s && u) most = max(most, s + u);
        }
        y[iy] = most ? ldexpf(1.0f, min(most, enough) - 2 * LL_REACH_BITS) : 0;
    }
}

static ll_err run(const ll_kcall *c)
{
    const ll_reach_attr *attr = (const ll_reach_attr *)c->attr;
    int64_t n = ll_numel(&c->out[0].shape);
    levels l = {};
    l.free = c->out[0].shape.n;
    l.n = ll_einsum_read(attr->spec, &c->in[0].shape, &c->in[1].shape, &c->out[0].shape, l.loop);
    return launch_each(c, n, largest, l, (const uint8_t *)c->in[0].data,
                       (const uint8_t *)c->in[1].data, (float *)c->out[0].data, n,
                       ll_einsum_points(l.loop + l.free, l.n - l.free),
                       2 * LL_REACH_BITS - (int)attr->enough);
}

extern "C" const ll_solver reach_cuda[] = {{.run = run}, {}};
