/* context.cu: contexts of this process, one for each GPU in use (context.h); errors of the CUDA
 * runtime as ours. */
#include "kern/cuda/gpu.cuh"

#include <stdlib.h>

ll_err ll_cuda_failed(cudaError_t e, const char *file, int line, const char *func)
{
    ll_err code = e == cudaErrorMemoryAllocation ? LL_E_MEM : LL_E_DEVICE;
    return ll_raise(code, file, line, func, "CUDA: %s", cudaGetErrorString(e));
}

static ll_cuda_context *contexts;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A process does not end while a compiler runs in it. */
static void await_all(void)
{
    for (ll_cuda_context *x = contexts; x; x = x->next) ll_chains_await(x);
}

static __global__ void probe(void)
{
}

/* What kernels may use: what they were compiled for, and this GPU has. */
static ll_err ask_level(ll_cuda_context *x)
{
    int shared = 0;
    cudaFuncAttributes a = {};
    CHECK(cudaFuncGetAttributes(&a, probe) == cudaSuccess, LL_E_DEVICE,
          "GPU %d is of compute capability %d.%d, which this program was not compiled for: build "
          "it with -DLL_CUDA_ARCH=%d%d, or use machine cpu",
          x->device, x->major, x->minor, x->major, x->minor);
    x->level = a.ptxVersion;
    CUDA_TRY(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, x->device));
    x->shared = (size_t)shared;
    return LL_OK;
}

static ll_err ask(ll_cuda_context *x)
{
    static bool registered;
    if (!registered) registered = atexit(await_all) == 0;
    CUDA_TRY(cudaSetDevice(x->device));
    CUDA_TRY(cudaDeviceGetAttribute(&x->major, cudaDevAttrComputeCapabilityMajor, x->device));
    CUDA_TRY(cudaDeviceGetAttribute(&x->minor, cudaDevAttrComputeCapabilityMinor, x->device));
    CUDA_TRY(cudaDeviceGetAttribute(&x->processors, cudaDevAttrMultiProcessorCount, x->device));
    return ask_level(x);
}

static ll_err find_or_add(int device, ll_cuda_context **out)
{
    ll_cuda_context *x = contexts;
    while (x && x->device != device) x = x->next;
    if (!x) {
        x = (ll_cuda_context *)calloc(1, sizeof *x);
        CHECK(x, LL_E_MEM, "not enough memory for a GPU's context");
        x->device = device;
        ll_err rc = ask(x);
        if (rc != LL_OK) free(x);
        TRY(rc);
        pthread_mutex_init(&x->lock, NULL);
        x->next = contexts;
        contexts = x;
    }
    x->users++;
    *out = x;
    return LL_OK;
}

ll_err ll_cuda_context_open(int device, ll_cuda_context **out)
{
    int n = 0;
    *out = NULL;
    if (cudaGetDeviceCount(&n) != cudaSuccess || device >= n) return LL_OK;
    pthread_mutex_lock(&lock);
    ll_err rc = find_or_add(device, out);
    pthread_mutex_unlock(&lock);
    return rc;
}

void ll_cuda_context_close(ll_cuda_context *x)
{
    if (!x) return;
    pthread_mutex_lock(&lock);
    if (--x->users == 0) {
        ll_cuda_context **at = &contexts;
        while (*at != x) at = &(*at)->next;
        *at = x->next;
        ll_chains_close(x);
        ll_dnn_close(x);
        ll_gemms_close(x);
        pthread_mutex_destroy(&x->lock);
        free(x);
    }
    pthread_mutex_unlock(&lock);
}

int ll_cuda_level(const ll_cuda_context *x)
{
    return x->level;
}
