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
