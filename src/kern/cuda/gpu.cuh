/* gpu.cuh: what kernels of this folder share. A kernel here queues work on the call's stream and
 * returns: it runs once while a program is captured into a graph, and the graph is replayed. What
 * changes from step to step is therefore read from device memory (ll_kcall.clock), and mistakes
 * in the data (a label outside of its range) are written there (ll_kcall.trouble).
 *
 * Arithmetic is f32 (f64 where a tensor is), whatever the tensors' types. */
#pragma once
#include "base/num.h"
#include "kern/attr.h"
#include "kern/cuda/context.h"
#include "kern/cuda/trouble.h"
#include "kern/kern.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pthread.h>

typedef __nv_bfloat16 bf16;

/* context.h says what it is; each part is made when it is first needed. */
struct ll_context {
    int device, major, minor, processors;
    int level;     /* compute capability that kernels were compiled for: 80, 90 ... */
    size_t shared; /* bytes of shared memory that a block can have */
    struct ll_gemms *gemms;
    struct ll_dnn *dnn;
    struct ll_chains *chains;
    pthread_mutex_t lock; /* of gemms and chains: several threads may run programs */
    int users;
    ll_context *next;
};

extern "C" {
ll_err ll_cuda_failed(cudaError_t e, const char *file, int line, const char *func);
/* How a context's parts end, where it has them. */
void ll_gemms_close(ll_context *x);
void ll_dnn_close(ll_context *x);
void ll_chains_close(ll_context *x);
void ll_chains_await(ll_context *x); /* for what compiles */
}

#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t ce_ = (call);                                                                  \
        if (ce_ != cudaSuccess) return ll_cuda_failed(ce_, __FILE__, __LINE__, __func__);          \
    } while (0)

/* Programs are made, and looked at, where no GPU is: for an H200. */
static inline int processors_of(const ll_kcall *c)
{
    return c->ctx ? c->ctx->processors : 132;
}
static inline size_t shared_of(const ll_kcall *c)
{
    return c->ctx ? c->ctx->shared : 227 * 1024;
}
static inline bool is_hopper(const ll_kcall *c)
{
    return !c->ctx || (c->ctx->level == 90 && c->ctx->major == 9);
}

static inline cudaStream_t stream_of(const ll_kcall *c)
{
    return (cudaStream_t)c->stream;
}

/* Libraries want their workspace at multiples of 256: ask for so many more bytes. */
enum { LL_WORKSPACE_SLACK = 256 };
static inline void *workspace_of(const ll_kcall *c)
{
    return (void *)ll_round_up((int64_t)c->scratch, LL_WORKSPACE_SLACK);
}

/* ---- launches: arguments become what the kernel takes ---- */

template <class... P, class... A>
static ll_err launch(const ll_kcall *c, void (*kernel)(P...), dim3 grid, dim3 block, A... args)
{
    kernel<<<grid, block, 0, stream_of(c)>>>((P)args...);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

/* With so many bytes of dynamic shared memory. */
template <class... P, class... A>
static ll_err launch_shared(const ll_kcall *c, void (*kernel)(P...), dim3 grid, dim3 block,
                            size_t bytes, A... args)
{
    CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    kernel<<<grid, block, bytes, stream_of(c)>>>((P)args...);
    CUDA_TRY(cudaGetLastError());
    return LL_OK;
}

/* Blocks for n threads' worth of work, at most so many for each processor: kernels walk on by the
 * grid's size. */
static inline unsigned blocks_for(const ll_kcall *c, int64_t n, int block, int each = 16)
{
    return (unsigned)ll_max64(1, ll_min64(ll_ceil_div(n, block), processors_of(c) * each));
}

/* A kernel that walks over n elements (GRID_STRIDE). */
template <class... P, class... A>
static ll_err launch_each(const ll_kcall *c, int64_t n, void (*kernel)(P...), A... args)
{
    return n ? launch(c, kernel, blocks_for(c, n, 256), 256, args...) : LL_OK;
}

/* Launches a kernel that is put on the chip while the one before it, of the same call, ends (before
 * Hopper: after it): it must call await_kernel() before it touches memory, and that one may say
 * early, with let_next_come(), that the next one can have what room there is. */
template <class... P, class... A>
static ll_err launch_early(const ll_kcall *c, void (*kernel)(P...), dim3 grid, dim3 block,
                           A... args)
{
    if (c->ctx && c->ctx->level < 90) return launch(c, kernel, grid, block, args...);
    cudaLaunchConfig_t how = {};
    cudaLaunchAttribute early = {};
    how.gridDim = grid, how.blockDim = block, how.stream = stream_of(c);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    how.attrs = &early, how.numAttrs = 1;
    CUDA_TRY(cudaLaunchKernelEx(&how, kernel, (P)args...));
    return LL_OK;
}
static __device__ __forceinline__ void await_kernel(void)
{
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}
static __device__ __forceinline__ void let_next_come(void)
{
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

#define GRID_STRIDE(i, n)                                                                          \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n);                      \
         i += (int64_t)gridDim.x * blockDim.x)

/* ---- element types ---- */

/* The type sums are made in. */
template <class T> struct sum_of {
    typedef float type;
};
template <> struct sum_of<double> {
    typedef double type;
};

template <class T> __device__ __forceinline__ typename sum_of<T>::type to_float(T v)
{
    return (typename sum_of<T>::type)v;
}

/* Rounded to nearest, to even. */
template <class T> struct from_float {
    static __device__ __forceinline__ T of(typename sum_of<T>::type v) { return T(v); }
};
template <> struct from_float<uint8_t> {
    static __device__ __forceinline__ uint8_t of(float v)
    {
        return (uint8_t)fminf(255.f, fmaxf(0.f, rintf(v)));
    }
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

/* f(A{}, B{}) for two. */
template <class F> static ll_err with_floats(ll_dtype s, ll_dtype t, F f)
{
    return with_float(s, [&](auto a) -> ll_err {
        return with_float(t, [&](auto b) -> ll_err { return f(a, b); });
    });
}

/* f(W{}) for elements of so many bytes that are moved as they are. */
template <class F> static ll_err with_word(size_t bytes, F f)
{
    switch (bytes) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: return f(uint4{});
    }
}

/* Elements that lie side by side, which are loaded and stored at once. */
template <class T, int V> struct alignas(V * sizeof(T)) several {
    T v[V];
};

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

/* 2 to the power of x, to 2^-22 of it; below the least normal number it is 0. */
__device__ __forceinline__ float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

/* What so many parts, load(0) on, come to by join, in one order, by a block of 32 by DEEP threads:
 * those of its first row get it, each of the column that its load is of. AHEAD: loads under way. */
template <int DEEP, int AHEAD, class S, class L, class J>
__device__ __forceinline__ S fold_parts(int parts, S none, L load, J join)
{
    __shared__ S part[DEEP][32];
    S all = none;
    for (int p = threadIdx.y; p < parts; p += DEEP * AHEAD) {
        S v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) v[i] = p + i * DEEP < parts ? load(p + i * DEEP) : none;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) all = join(all, v[i]);
    }
    __syncthreads(); /* of another call */
    part[threadIdx.y][threadIdx.x] = all;
    __syncthreads();
    for (int k = 1; k < DEEP && threadIdx.y == 0; k++) all = join(all, part[k][threadIdx.x]);
    return all;
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

/* The label of a row, 0 for one that is no label, which is told. */
__device__ __forceinline__ int64_t label_of(const int32_t *label, int64_t r, int64_t n,
                                            int64_t *trouble)
{
    int64_t k = label[r];
    if (k >= 0 && k < n) return k;
    tell_trouble(trouble, LL_TROUBLE_LABEL, r, k);
    return 0;
}
