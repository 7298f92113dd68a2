/* peaks.cu: a thread a result, the largest level of a window (op/peaks.c). */
#include "kern/cuda/gpu.cuh"

#include "kern/peaks.h"

typedef struct window {
    ll_peaks_attr a;
    int64_t xd[4], yd[4];
} window;

static __global__ void largest(window w, const uint8_t *x, uint8_t *y, int64_t n)
{
    GRID_STRIDE(e, n)
    {
        int64_t d = w.xd[3] / w.yd[3], g = e % w.yd[3], at = e / w.yd[3],
                image = at / w.yd[2] / w.yd[1];
        uint8_t most = 0;
        for (int64_t r = 0; r < w.a.size[0]; r++)
            for (int64_t s = 0; s < w.a.size[1]; s++) {
                int64_t i = ll_tap_reads(&w.a, 0, at / w.yd[2] % w.yd[1], r, w.xd[1]);
                int64_t j = ll_tap_reads(&w.a, 1, at % w.yd[2], s, w.xd[2]);
                const uint8_t *p = x + ((image * w.xd[1] + i) * w.xd[2] + j) * w.xd[3] + g * d;
                for (int64_t k = 0; i >= 0 && j >= 0 && k < d; k++) most = max(most, p[k]);
            }
        y[e] = most;
    }
}

static ll_err run(const ll_kcall *c)
{
    int64_t n = ll_numel(&c->out[0].shape);
    window w = {*(const ll_peaks_attr *)c->attr, {}, {}};
    memcpy(w.xd, c->in[0].shape.d, sizeof w.xd);
    memcpy(w.yd, c->out[0].shape.d, sizeof w.yd);
    return launch_each(c, n, largest, w, (const uint8_t *)c->in[0].data, (uint8_t *)c->out[0].data,
                       n);
}

extern "C" const ll_solver peaks_cuda[] = {{.run = run}, {}};
