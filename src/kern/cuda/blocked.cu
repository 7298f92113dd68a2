/* blocked.cu: a product with weights in blocks (kern/blocks.h): they become numbers in scratch,
 * then it is a product like any other. */
#include "kern/blocks.h"
#include "kern/cuda/gemm.cuh"
#include "kern/cuda/gpu.cuh"

static __constant__ float nf4[16] = {LL_NF4};

static __global__ void numbers(const uint8_t *w, float *out, int64_t n, int bytes)
{
    int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int i = (int)(at % LL_PACK);
    if (at >= n) return;
    const uint8_t *b = w + at / LL_PACK * bytes;
    float scale = __half2float(*(const __half *)b); /* blocks have even sizes */
    const uint8_t *q = b + (bytes == 20 ? 4 : 2);
    int four = i < 16 ? q[i & 15] & 15 : q[i & 15] >> 4;
    if (bytes == 34)
        out[at] = scale * (float)(int8_t)q[i];
    else if (bytes == 20)
        out[at] = scale * (float)four + __half2float(*(const __half *)(b + 2));
    else
        out[at] = scale * nf4[four];
}

static ll_err unblock(const ll_kcall *c, const ll_tensor *w, float *out)
{
    int bytes = (int)w->shape.d[w->shape.n - 1];
    int64_t n = ll_numel(&w->shape) / bytes * LL_PACK;
    if (!n) return LL_OK;
    return launch(c, numbers, (unsigned)ll_ceil_div(n, 256), 256, w->data, out, n, bytes);
}

static ll_err run_unblock(const ll_kcall *c)
{
    return unblock(c, &c->in[0], (float *)c->out[0].data);
}

extern "C" const ll_solver unblock_cuda[] = {{NULL, NULL, NULL, run_unblock}, {}};

static size_t scratch(const ll_kcall *c)
{
    ll_blocked_plain p;
    ll_blocked_as_plain(c, &p);
    return p.bytes + ll_blas_scratch(&p.call, p.attr.spec);
}

static ll_err run(const ll_kcall *c)
{
    ll_blocked_plain p;
    ll_blocked_as_plain(c, &p);
    TRY(unblock(c, &c->in[1], (float *)c->scratch));
    return ll_blas_product(&p.call, p.attr.spec);
}

extern "C" const ll_solver blocked_matmul_cuda[] = {{NULL, NULL, scratch, run}, {}};

/* ---- numbers as blocks would have them: blocks.c's, to the bit; a warp has a block ---- */

static __device__ double half_of(double v)
{
    return (double)__half2float(__float2half_rn((float)v));
}

static __device__ double code_of(double v, double scale, double least)
{
    return scale > 0 ? fmin(fmax(rint((v - least) / scale), 0.0), 15.0) : 0.0;
}

static __device__ bool in_steps(double v, double low, double high, int steps)
{
    double per = steps / (high - low), k = (v - low) * per;
    double close = 1e-3 + 0x1p-22 * fmax(fabs(low), fabs(high)) * per;
    return __all_sync(~0u, fabs(k - rint(k)) <= close);
}

static __device__ bool on_grid(float v, double low, double high, double *scale, double *least)
{
    for (int steps = 15; steps >= 1 && high > low; steps--) {
        if (!in_steps(v, low, high, steps)) continue;
        *scale = half_of((high - low) / steps);
        for (int first = 0; first + steps <= 15; first++) {
            *least = half_of(low - first * *scale);
            if (__all_sync(~0u, (float)(*least + *scale * code_of(v, *scale, *least)) == v))
                return true;
        }
    }
    return false;
}

static __global__ void round_all(const float *x, float *out, int64_t n, int bits)
{
    int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (at >= n) return; /* whole warps */
    float v = x[at];
    if (!__all_sync(~0u, isfinite(v))) {
        out[at] = v;
        return;
    }
    double scale, least;
    if (bits == 8) {
        scale = half_of((double)warp_max(fabsf(v)) / 127);
        double k = scale > 0 ? rint((double)v / scale) : 0;
        out[at] = (float)scale * (float)fmin(fmax(k, -127.0), 127.0);
        return;
    }
    double high = (double)warp_max(v), low = -(double)warp_max(-v);
    if (!on_grid(v, low, high, &scale, &least)) {
        scale = half_of((high - low) / 15);
        least = half_of(low);
    }
    out[at] = (float)scale * (float)code_of(v, scale, least) + (float)least;
}

static ll_err run_round(const ll_kcall *c)
{
    int64_t n = ll_numel(&c->in[0].shape);
    if (!n) return LL_OK;
    return launch(c, round_all, (unsigned)ll_ceil_div(n, 256), 256, c->in[0].data, c->out[0].data,
                  n, (int)((const ll_round_blocks_attr *)c->attr)->bits);
}

extern "C" const ll_solver round_blocks_cuda[] = {{NULL, NULL, NULL, run_round}, {}};
