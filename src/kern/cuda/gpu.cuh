/* gpu.cuh: what kernels of this folder share. A kernel here queues work on the call's stream and
 * returns: it runs once while a program is captured into a graph, and the graph is replayed. What
 * changes from step to step is therefore read from device memory (ll_kcall.clock), and mistakes
 * in the data (a label outside of its range) are written there (ll_kcall.trouble).
 *
 * Arithmetic is f32 (f64 where a tensor is), whatever the tensors' types. */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 bf16;

extern "C" {
ll_err ll_cuda_failed(cudaError_t e, const char *file, int line, const char *func);
/* Whether this machine has a GPU: programs for one are made, and looked at, without. */
bool ll_cuda_here(void);
}

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t ce_ = (call);                                                                  \
        if (ce_ != cudaSuccess) return ll_cuda_failed(ce_, __FILE__, __LINE__, __func__);          \
    } while (0)

static inline cudaStream_t stream_of(const ll_kcall *c)
{
    return (cudaStream_t)c->stream;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Libraries want their workspace at multiples of 256: ask for so many more bytes. */
enum { LL_WORKSPACE_SLACK = 256 };
static inline void *workspace_of(const ll_kcall *c)
{
    return (void *)(((uintptr_t)c->scratch + LL_WORKSPACE_SLACK - 1) / LL_WORKSPACE_SLACK *
                    LL_WORKSPACE_SLACK);
}

/* Blocks for n threads' worth of work, at most `most`: kernels walk on by the grid's size. */
static inline unsigned blocks_for(int64_t n, int block, int64_t most = 132 * 16)
{
    int64_t b = ceil_div(n, block);
    return (unsigned)(b < 1 ? 1 : b > most ? most : b);
}

/* Launches a kernel that is put on the chip while the one before it, of the same call, ends: it
 * must call cudaGridDependencySynchronize() before it touches memory, and that one may say early,
 * with cudaTriggerProgrammaticLaunchCompletion(), that the next one can have what room there is. */
template <class... P, class... A>
static ll_err launch_close(const ll_kcall *c, void (*kernel)(P...), dim3 grid, dim3 block,
                           A... args)
{
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute early = {};
    how.gridDim = grid, how.blockDim = block, how.stream = stream_of(c);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    how.attrs = &early, how.numAttrs = 1;
    CUDA_TRY(cudaLaunchKernelEx(&how, kernel, (P)args...));
    return LL_OK;
}

#define GRID_STRIDE(i, n)                                                                          \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)

/* ---- element types ---- */

__device__ __forceinline__ float to_float(float v)
{
    return v;
}
__device__ __forceinline__ float to_float(bf16 v)
{
    return __bfloat162float(v);
}
__device__ __forceinline__ float to_float(__half v)
{
    return __half2float(v);
}
__device__ __forceinline__ double to_float(double v)
{
    return v;
}
__device__ __forceinline__ float to_float(int32_t v)
{
    return (float)v;
}
__device__ __forceinline__ float to_float(uint8_t v)
{
    return (float)v;
}

template <class T> struct from_float;
template <> struct from_float<float> {
    static __device__ __forceinline__ float of(float v) { return v; }
};
template <> struct from_float<double> {
    static __device__ __forceinline__ double of(double v) { return v; }
};
template <> struct from_float<bf16> {
    static __device__ __forceinline__ bf16 of(float v) { return __float2bfloat16_rn(v); }
};
template <> struct from_float<__half> {
    static __device__ __forceinline__ __half of(float v) { return __float2half_rn(v); }
};
template <> struct from_float<int32_t> {
    static __device__ __forceinline__ int32_t of(float v) { return __float2int_rn(v); }
};
template <> struct from_float<uint8_t> {
    static __device__ __forceinline__ uint8_t of(float v)
    {
        return (uint8_t)fminf(255.f, fmaxf(0.f, rintf(v)));
    }
};

/* The type sums are made in. */
template <class T> struct sum_of {
    typedef float type;
};
template <> struct sum_of<double> {
    typedef double type;
};

/* f(T{}) for a float tensor's element type. */
template <class F> static ll_err with_float(ll_dtype t, F f)
{
    switch (t) {
    case LL_F32: return f(float{});
    case LL_BF16: return f(bf16{});
    case LL_F64: return f(double{});
    default: FAIL(LL_E_GRAPH, "machine cuda has no kernel for %s here", ll_dtype_name(t));
    }
}

/* One element of any type. */
__device__ __forceinline__ double load_any(const void *p, int t, int64_t i)
{
    switch (t) {
    case LL_F32: return ((const float *)p)[i];
    case LL_BF16: return __bfloat162float(((const bf16 *)p)[i]);
    case LL_F16: return __half2float(((const __half *)p)[i]);
    case LL_F64: return ((const double *)p)[i];
    case LL_I32: return ((const int32_t *)p)[i];
    default: return ((const uint8_t *)p)[i];
    }
}

__device__ __forceinline__ void store_any(void *p, int t, int64_t i, double v)
{
    switch (t) {
    case LL_F32: ((float *)p)[i] = (float)v; return;
    case LL_BF16: ((bf16 *)p)[i] = __float2bfloat16_rn((float)v); return;
    case LL_F16: ((__half *)p)[i] = __float2half_rn((float)v); return;
    case LL_F64: ((double *)p)[i] = v; return;
    case LL_I32: ((int32_t *)p)[i] = (int32_t)rint(v); return;
    default: ((uint8_t *)p)[i] = from_float<uint8_t>::of((float)v); return;
    }
}

/* ---- sums and maxima over a block; every thread gets the result ---- */

template <class T> __device__ __forceinline__ T warp_sum(T v)
{
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
template <class T> __device__ __forceinline__ T warp_max(T v)
{
    for (int o = 16; o; o >>= 1) {
        T w = __shfl_xor_sync(0xffffffffu, v, o);
        v = w > v || w != w ? w : v;
    }
    return v;
}
template <class T, bool MAX> __device__ __forceinline__ T block_fold(T v, T none)
{
    __shared__ T part[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = (blockDim.x + 31) >> 5;
    v = MAX ? warp_max(v) : warp_sum(v);
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < n ? part[lane] : none;
    return MAX ? warp_max(v) : warp_sum(v);
}
template <class T> __device__ __forceinline__ T block_sum(T v)
{
    return block_fold<T, false>(v, (T)0);
}
template <class T> __device__ __forceinline__ T block_max(T v)
{
    return block_fold<T, true>(v, (T)-INFINITY);
}

/* A mistake in the data is told once, with where and what. */
__device__ __forceinline__ void tell_trouble(int64_t *trouble, int64_t kind, int64_t at,
                                             int64_t value)
{
    if (!trouble) return;
    if (atomicCAS((unsigned long long *)trouble, 0ull, (unsigned long long)kind) == 0ull) {
        trouble[1] = at;
        trouble[2] = value;
    }
}
