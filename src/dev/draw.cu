/* draw.cu: numbers of a stream drawn on a GPU: the bits that base/rng.h draws. */
#include "base/philox.h"
#include "dev/gpu.h"

#include <cuda_runtime.h>

typedef struct place { /* a part's dimensions in the whole */
    int n;
    int64_t d[LL_MAX_DIMS], at[LL_MAX_DIMS], stride[LL_MAX_DIMS];
} place;

static __device__ double number(const ll_gpu_drawing &d, uint64_t i)
{
    uint32_t w[4];
    double pair[2];
    ll_philox_words(d.seed, d.stream, i / 4, w);
    uint32_t a = i & 2 ? w[2] : w[0], b = i & 2 ? w[3] : w[1];
    if (!d.normal) return 2.0 * ll_unit_23(i & 1 ? b : a) - 1.0; /* exact */
    ll_normal_pair(a, b, &pair[0], &pair[1]);
    return i & 1 ? pair[1] : pair[0];
}

template <class T>
static __global__ void draw(T *to, int64_t n, const __grid_constant__ ll_gpu_drawing d,
                            const __grid_constant__ place p)
{
    int64_t step = gridDim.x * (int64_t)blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += step) {
        int64_t rest = i, index = 0;
        for (int k = p.n - 1; k > 0; k--) {
            index += (rest % p.d[k] + p.at[k]) * p.stride[k];
            rest /= p.d[k];
        }
        if (p.n) index += (rest + p.at[0]) * p.stride[0];
        to[i] = (T)LL_MUL(d.scale, number(d, (uint64_t)index));
    }
}

ll_err ll_gpu_draw(ll_gpu *g, void *to, const ll_gpu_drawing *d)
{
    enum { THREADS = 256, BLOCKS = 4096 };
    place p = {};
    int64_t n = 1, whole = 1;
    p.n = d->shape.n;
    for (int k = p.n - 1; k >= 0; k--) {
        p.d[k] = d->shape.d[k], p.at[k] = d->at[k], p.stride[k] = whole;
        n *= p.d[k], whole *= d->whole.d[k];
    }
    if (n == whole) { /* all of it: in order */
        p.n = 1;
        p.d[0] = n, p.at[0] = 0, p.stride[0] = 1;
    }
    if (n == 0) return LL_OK;
    int64_t blocks = (n + THREADS - 1) / THREADS;
    cudaStream_t stream = (cudaStream_t)ll_gpu_stream(g, LL_STREAM_COMPUTE);
    int grid = (int)(blocks < BLOCKS ? blocks : BLOCKS);
    if (d->f64)
        draw<<<grid, THREADS, 0, stream>>>((double *)to, n, *d, p);
    else
        draw<<<grid, THREADS, 0, stream>>>((float *)to, n, *d, p);
    cudaError_t e = cudaGetLastError();
    CHECK(e == cudaSuccess, LL_E_DEVICE, "CUDA: initial values: %s", cudaGetErrorString(e));
    return LL_OK;
}
