/* packed.cu: a product with packed weights. A warp makes one element: a lane takes blocks, rounds
 * its part of x and multiplies whole numbers. */
#include "kern/cuda/gpu.cuh"

static __global__ void product(const float *x, const uint8_t *q, const __half *scale,
                               const __half *least, float *y, int64_t m, int64_t rows,
                               int64_t blocks, int bits)
{
    int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x & 31;
    if (i >= m * rows) return;
    float sum = 0;
    for (int64_t b = lane; b < blocks; b += 32) {
        const float *v = x + (i / rows * blocks + b) * 32;
        int64_t at = i % rows * blocks + b;
        const uint8_t *w = q + at * 4 * bits;
        float top = 0;
        for (int k = 0; k < 32; k++) top = fmaxf(top, fabsf(v[k]));
        float d = top / 127, by = d > 0 ? 1 / d : 0;
        int dot = 0, all = 0;
        for (int k = 0; k < 32; k++) {
            int r = (int)rintf(v[k] * by);
            int p = bits == 8 ? (int8_t)w[k] : k < 16 ? w[k] & 15 : w[k - 16] >> 4;
            dot += r * p;
            all += r;
        }
        sum += __half2float(scale[at]) * d * (float)dot;
        if (bits == 4) sum += __half2float(least[at]) * d * (float)all;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[i] = sum;
}

static ll_err run(const ll_kcall *c)
{
    const ll_packed_attr *a = (const ll_packed_attr *)c->attr;
    const ll_shape *s = &c->in[2].shape;
    int64_t rows = 1, blocks = 1, n = ll_numel(&c->out[0].shape);
    for (int d = 0; d < s->n; d++) *(d < a->rows ? &rows : &blocks) *= s->d[d];
    if (!n) return LL_OK;
    return launch(c, product, (unsigned)ll_ceil_div(n, 8), 256, c->in[0].data, c->in[1].data,
                  c->in[2].data, c->n_in > 3 ? c->in[3].data : NULL, c->out[0].data, n / rows, rows,
                  blocks, (int)a->bits);
}

extern "C" const ll_solver packed_matmul_cuda[] = {{NULL, NULL, NULL, run}, {}};
