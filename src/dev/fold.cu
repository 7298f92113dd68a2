/* fold.cu: sums, maxima and minima of collectives in a GPU's memory: the bits of comm/reduce.c. */
#include "dev/gpu.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum { MOST = 256, LEVELS = 9 }; /* sources; of the tree over them */

struct sources {
    const void *of[MOST];
};

/* In what an addition is made: it is rounded after each. */
static __device__ double wide(double x)
{
    return x;
}
static __device__ float wide(float x)
{
    return x;
}
static __device__ float wide(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ float wide(__half x)
{
    return __half2float(x);
}
static __device__ int wide(int x)
{
    return x;
}
static __device__ int wide(unsigned char x)
{
    return x;
}
/* To nearest even. */
template <class T, class W> static __device__ T narrow(W x)
{
    return (T)x;
}

static __device__ double sum(double a, double b)
{
    return a + b;
}
static __device__ float sum(float a, float b)
{
    return a + b;
}
static __device__ int sum(int a, int b) /* wraps */
{
    return (int)((unsigned)a + (unsigned)b);
}

/* A NaN stays one; +0 is more than -0. */
template <class W> static __device__ W extreme(W a, W b, bool max)
{
    if (a != a || b != b) return a + b;
    if (a == b) return signbit((double)a) == max ? b : a;
    return (a > b) == max ? a : b;
}

template <class T> static __device__ T combine(T a, T b, ll_reduce op)
{
    auto x = wide(a), y = wide(b);
    return narrow<T>(op == LL_REDUCE_SUM ? sum(x, y) : extreme(x, y, op == LL_REDUCE_MAX));
}

/* ((0 1)(2 3))((4 5) 6): sums of powers of two wait for their like, what is left goes from the
 * right. */
template <class T>
static __global__ void fold(T *dst, const __grid_constant__ sources src, int n_src, int64_t n,
                            ll_reduce op)
{
    int64_t step = gridDim.x * (int64_t)blockDim.x;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += step) {
        T waits[LEVELS], v = ((const T *)src.of[0])[i];
        if (n_src == 2) v = combine(v, ((const T *)src.of[1])[i], op);
        int top = 0;
        for (int k = 0; n_src > 2 && k < n_src; k++) {
            v = ((const T *)src.of[k])[i];
            for (int m = k + 1; !(m & 1); m >>= 1) v = combine(waits[--top], v, op);
            waits[top++] = v;
        }
        for (top--; top > 0; top--) v = combine(waits[top - 1], v, op);
        dst[i] = v;
    }
}

template <class T>
static void launch(ll_gpu *g, ll_stream_id s, void *dst, const sources &src, int n_src, int64_t n,
                   ll_reduce op)
{
    enum { THREADS = 256, BLOCKS = 4096 };
    int64_t blocks = (n + THREADS - 1) / THREADS;
    fold<T><<<(int)(blocks < BLOCKS ? blocks : BLOCKS), THREADS, 0,
              (cudaStream_t)ll_gpu_stream(g, s)>>>((T *)dst, src, n_src, n, op);
}

ll_err ll_gpu_fold(ll_gpu *g, ll_stream_id s, void *dst, const void *const *src, int n_src,
                   int64_t n, ll_dtype t, ll_reduce op)
{
    sources list = {};
    CHECK(n_src <= MOST, LL_E_COMM,
          "%d operands of one sum on a GPU, at most %d: use transport host or nccl", n_src,
          (int)MOST);
    if (n <= 0) return LL_OK;
    for (int k = 0; k < n_src; k++) list.of[k] = src[k];
    switch (t) {
    case LL_F64: launch<double>(g, s, dst, list, n_src, n, op); break;
    case LL_F32: launch<float>(g, s, dst, list, n_src, n, op); break;
    case LL_BF16: launch<__nv_bfloat16>(g, s, dst, list, n_src, n, op); break;
    case LL_F16: launch<__half>(g, s, dst, list, n_src, n, op); break;
    case LL_I32: launch<int>(g, s, dst, list, n_src, n, op); break;
    case LL_U8: launch<unsigned char>(g, s, dst, list, n_src, n, op); break;
    default: FAIL(LL_E_COMM, "no sums of %s on a GPU", ll_dtype_name(t));
    }
    cudaError_t e = cudaGetLastError();
    CHECK(e == cudaSuccess, LL_E_DEVICE, "CUDA: a collective's sum: %s", cudaGetErrorString(e));
    return LL_OK;
}
