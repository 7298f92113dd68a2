/* cuda.cu: dev/gpu.h on CUDA's runtime. */
#include "dev/gpu.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ll_gpu {
    int index;
    cudaStream_t stream;
    cudaEvent_t mark[LL_GPU_MARKS];
};

struct ll_gpu_graph {
    cudaGraphExec_t exec;
};

static ll_err failed(cudaError_t e, const char *what, const char *file, int line, const char *func)
{
    return ll_raise(e == cudaErrorMemoryAllocation ? LL_E_MEM : LL_E_DEVICE, file, line, func,
                    "%.60s: %s", what, cudaGetErrorString(e));
}

#define GPU_TRY(call)                                                                              \
    do {                                                                                           \
        cudaError_t ge_ = (call);                                                                  \
        if (ge_ != cudaSuccess) return failed(ge_, #call, __FILE__, __LINE__, __func__);           \
    } while (0)

bool ll_gpu_built(void)
{
    return true;
}

int ll_gpu_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

ll_err ll_gpu_open(int index, ll_gpu **out)
{
    int n = ll_gpu_count();
    CHECK(n > 0, LL_E_DEVICE, "this machine has no GPU that CUDA can use: use machine cpu");
    CHECK(index >= 0 && index < n, LL_E_ARG, "GPU %d is asked for, there are 0 to %d", index, n - 1);
    GPU_TRY(cudaSetDevice(index));
    ll_gpu *g = (ll_gpu *)calloc(1, sizeof *g);
    CHECK(g, LL_E_MEM, "no memory for a GPU's handle");
    g->index = index;
    cudaError_t e = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        free(g);
        return failed(e, "stream", __FILE__, __LINE__, __func__);
    }
    *out = g;
    return LL_OK;
}

void ll_gpu_close(ll_gpu *g)
{
    if (!g) return;
    for (int i = 0; i < LL_GPU_MARKS; i++)
        if (g->mark[i]) cudaEventDestroy(g->mark[i]);
    cudaStreamDestroy(g->stream);
    free(g);
}

ll_err ll_gpu_ask(const ll_gpu *g, ll_gpu_facts *out)
{
    cudaDeviceProp p;
    int khz = 0;
    GPU_TRY(cudaGetDeviceProperties(&p, g->index));
    GPU_TRY(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, g->index));
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.127s", p.name);
    out->processors = p.multiProcessorCount;
    out->major = p.major;
    out->minor = p.minor;
    out->clock_hz = 1e3 * khz;
    GPU_TRY(cudaMemGetInfo(&out->free_bytes, &out->bytes));
    return LL_OK;
}

void *ll_gpu_stream(const ll_gpu *g)
{
    return g->stream;
}

ll_err ll_gpu_alloc(ll_gpu *, size_t bytes, void **out)
{
    GPU_TRY(cudaMalloc(out, bytes ? bytes : 1));
    return LL_OK;
}

void ll_gpu_free(ll_gpu *, void *p)
{
    if (p) cudaFree(p);
}

ll_err ll_gpu_pinned(size_t bytes, void **out)
{
    GPU_TRY(cudaMallocHost(out, bytes ? bytes : 1));
    return LL_OK;
}

void ll_gpu_unpin(void *p)
{
    if (p) cudaFreeHost(p);
}

static ll_err copy(ll_gpu *g, void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    if (bytes) GPU_TRY(cudaMemcpyAsync(to, from, bytes, kind, g->stream));
    return LL_OK;
}

ll_err ll_gpu_write(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    return copy(g, to, from, bytes, cudaMemcpyHostToDevice);
}

ll_err ll_gpu_read(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    return copy(g, to, from, bytes, cudaMemcpyDeviceToHost);
}

ll_err ll_gpu_copy(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    return copy(g, to, from, bytes, cudaMemcpyDeviceToDevice);
}

ll_err ll_gpu_fill(ll_gpu *g, void *to, int byte, size_t bytes)
{
    if (bytes) GPU_TRY(cudaMemsetAsync(to, byte, bytes, g->stream));
    return LL_OK;
}

ll_err ll_gpu_wait(ll_gpu *g)
{
    GPU_TRY(cudaStreamSynchronize(g->stream));
    return LL_OK;
}

ll_err ll_gpu_capture(ll_gpu *g)
{
    GPU_TRY(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeRelaxed));
    return LL_OK;
}

ll_err ll_gpu_captured(ll_gpu *g, ll_gpu_graph **out)
{
    cudaGraph_t graph;
    GPU_TRY(cudaStreamEndCapture(g->stream, &graph));
    ll_gpu_graph *w = (ll_gpu_graph *)calloc(1, sizeof *w);
    LL_ASSERT(w);
    cudaError_t e = cudaGraphInstantiate(&w->exec, graph, 0);
    cudaGraphDestroy(graph);
    if (e != cudaSuccess) {
        free(w);
        return failed(e, "graph", __FILE__, __LINE__, __func__);
    }
    *out = w;
    return LL_OK;
}

ll_err ll_gpu_replay(ll_gpu *g, ll_gpu_graph *w)
{
    GPU_TRY(cudaGraphLaunch(w->exec, g->stream));
    return LL_OK;
}

void ll_gpu_drop(ll_gpu_graph *w)
{
    if (!w) return;
    cudaGraphExecDestroy(w->exec);
    free(w);
}

ll_err ll_gpu_mark(ll_gpu *g, int i)
{
    LL_ASSERT(i >= 0 && i < LL_GPU_MARKS);
    if (!g->mark[i]) GPU_TRY(cudaEventCreate(&g->mark[i]));
    GPU_TRY(cudaEventRecord(g->mark[i], g->stream));
    return LL_OK;
}

ll_err ll_gpu_seconds(ll_gpu *g, int from, int to, double *out)
{
    float ms;
    GPU_TRY(cudaEventElapsedTime(&ms, g->mark[from], g->mark[to]));
    *out = 1e-3 * ms;
    return LL_OK;
}
