/* cuda.cu: dev/gpu.h on CUDA's runtime. */
#include "dev/gpu.h"

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ll_gpu {
    int index;
    cudaStream_t stream, streams[LL_STREAMS]; /* stream: that computes */
    cudaEvent_t after[LL_STREAMS][LL_STREAMS];
    cudaEvent_t *marks, *events;
    int n_mark, n_event;
};

struct ll_gpu_graph {
    cudaGraphExec_t exec;
};

static ll_err told(cudaError_t e, const char *what, const char *file, int line, const char *func)
{
    if (e == cudaSuccess) return LL_OK;
    return ll_raise(e == cudaErrorMemoryAllocation ? LL_E_MEM : LL_E_DEVICE, file, line, func,
                    "%.60s: %s", what, cudaGetErrorString(e));
}

#define GPU(call) told((call), #call, __FILE__, __LINE__, __func__)
#define GPU_TRY(call)                                                                              \
    do {                                                                                           \
        ll_err ge_ = GPU(call);                                                                    \
        if (ge_ != LL_OK) return ge_;                                                              \
    } while (0)

int ll_gpu_count(void)
{
    int n = 0;
    /* A stream that waits for another GPU must not hold up one that it shares a queue with. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

ll_err ll_gpu_bus(int index, char *out, int room)
{
    return GPU(cudaDeviceGetPCIBusId(out, room, index));
}

ll_err ll_gpu_open(int index, ll_gpu **out)
{
    int n = ll_gpu_count(), major = 0;
    CHECK(n > 0, LL_E_DEVICE, "this machine has no GPU that CUDA can use: use machine cpu");
    CHECK(index >= 0 && index < n, LL_E_ARG, "GPU %d is asked for, there are 0 to %d", index,
          n - 1);
    GPU_TRY(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
    CHECK(major >= 8, LL_E_DEVICE,
          "GPU %d is of compute capability %d: machine cuda needs 8.0 (Ampere) or later; use "
          "machine cpu",
          index, major);
    GPU_TRY(cudaSetDevice(index));
    ll_gpu *g = (ll_gpu *)calloc(1, sizeof *g);
    CHECK(g, LL_E_MEM, "not enough memory for a GPU's handle");
    g->index = index;
    cudaError_t e = cudaSuccess;
    for (int s = 0; s < LL_STREAM_CHANNEL && e == cudaSuccess; s++)
        e = cudaStreamCreateWithFlags(&g->streams[s], cudaStreamNonBlocking);
    g->stream = g->streams[LL_STREAM_COMPUTE];
    if (e != cudaSuccess) {
        ll_gpu_close(g);
        return told(e, "stream", __FILE__, __LINE__, __func__);
    }
    *out = g;
    return LL_OK;
}

void ll_gpu_close(ll_gpu *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_mark; i++) cudaEventDestroy(g->marks[i]);
    for (int i = 0; i < g->n_event; i++) cudaEventDestroy(g->events[i]);
    free(g->marks);
    free(g->events);
    for (int s = 0; s < LL_STREAMS; s++) {
        for (int k = 0; k < LL_STREAMS; k++)
            if (g->after[s][k]) cudaEventDestroy(g->after[s][k]);
        if (g->streams[s]) cudaStreamDestroy(g->streams[s]);
    }
    free(g);
}

ll_err ll_gpu_ask(const ll_gpu *g, ll_gpu_facts *out)
{
    cudaDeviceProp p;
    GPU_TRY(cudaGetDeviceProperties(&p, g->index));
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.127s", p.name);
    memcpy(out->id, &p.uuid, sizeof out->id);
    out->index = g->index;
    out->processors = p.multiProcessorCount;
    out->major = p.major;
    out->minor = p.minor;
    return GPU(cudaMemGetInfo(&out->free_bytes, &out->bytes));
}

void *ll_gpu_stream(ll_gpu *g, ll_stream_id s)
{
    if (!g->streams[s] &&
        cudaStreamCreateWithFlags(&g->streams[s], cudaStreamNonBlocking) != cudaSuccess)
        return NULL;
    return g->streams[s];
}

ll_err ll_gpu_alloc(ll_gpu *, size_t bytes, void **out)
{
    return GPU(cudaMalloc(out, bytes ? bytes : 1));
}

void ll_gpu_free(ll_gpu *, void *p)
{
    if (p) cudaFree(p);
}

ll_err ll_gpu_pinned(size_t bytes, void **out)
{
    return GPU(cudaMallocHost(out, bytes ? bytes : 1));
}

void ll_gpu_unpin(void *p)
{
    if (p) cudaFreeHost(p);
}

static ll_err copy(ll_gpu *g, void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return bytes ? GPU(cudaMemcpyAsync(to, from, bytes, kind, g->stream)) : LL_OK;
}

ll_err ll_gpu_write(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    return copy(g, to, from, bytes, cudaMemcpyHostToDevice);
}

ll_err ll_gpu_read(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    return copy(g, to, from, bytes, cudaMemcpyDeviceToHost);
}

ll_err ll_gpu_fill(ll_gpu *g, void *to, int byte, size_t bytes)
{
    return bytes ? GPU(cudaMemsetAsync(to, byte, bytes, g->stream)) : LL_OK;
}

ll_err ll_gpu_wait(ll_gpu *g)
{
    return GPU(cudaStreamSynchronize(g->stream));
}

/* ---- pieces ---- */

typedef struct pieces {
    ll_gpu_piece v[LL_GPU_PIECES];
    int n;
} pieces;

static __global__ void move(const __grid_constant__ pieces p)
{
    size_t t = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = gridDim.x * (size_t)blockDim.x;
    for (int k = 0; k < p.n; k++) {
        const char *from = p.v[k].from ? (const char *)p.v[k].from : (const char *)&p.v[k].value;
        char *to = (char *)p.v[k].to;
        size_t wide = ((uintptr_t)to | (uintptr_t)from) % sizeof(uint4) ? 0 : p.v[k].bytes / 16;
        for (size_t i = t; i < wide; i += step) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
        for (size_t i = 16 * wide + t; i < p.v[k].bytes; i += step) to[i] = from[i];
    }
}

ll_err ll_gpu_pieces(ll_gpu *g, const ll_gpu_piece *v, int n)
{
    enum { BLOCK = 256, EACH = 4, MOST = 1024 };
    pieces p;
    size_t most = 0;
    LL_ASSERT(n > 0 && n <= LL_GPU_PIECES);
    memset(&p, 0, sizeof p);
    p.n = n;
    for (int i = 0; i < n; i++) {
        p.v[i] = v[i];
        if (v[i].bytes > most) most = v[i].bytes;
    }
    size_t blocks = most / (16 * BLOCK * EACH) + 1;
    move<<<(unsigned)(blocks < MOST ? blocks : MOST), BLOCK, 0, g->stream>>>(p);
    return GPU(cudaGetLastError());
}

/* ---- other streams ---- */

/* Events 0 to n - 1 are there. */
static ll_err have_events(cudaEvent_t **events, int *have, int n, unsigned flags)
{
    if (n <= *have) return LL_OK;
    cudaEvent_t *more = (cudaEvent_t *)realloc(*events, sizeof *more * (size_t)(2 * n));
    CHECK(more, LL_E_MEM, "not enough memory for %d events", 2 * n);
    *events = more;
    for (; *have < 2 * n; ++*have) GPU_TRY(cudaEventCreateWithFlags(&more[*have], flags));
    return LL_OK;
}

ll_err ll_gpu_record(ll_gpu *g, ll_stream_id s, int i)
{
    TRY(have_events(&g->events, &g->n_event, i + 1, cudaEventDisableTiming));
    return GPU(cudaEventRecord(g->events[i], g->streams[s]));
}

ll_err ll_gpu_await(ll_gpu *g, ll_stream_id s, int i)
{
    LL_ASSERT(i < g->n_event);
    return GPU(cudaStreamWaitEvent(g->streams[s], g->events[i], 0));
}

static ll_err is_over(cudaError_t e, bool *out)
{
    *out = e == cudaSuccess;
    if (e != cudaErrorNotReady) GPU_TRY(e);
    return LL_OK;
}

ll_err ll_gpu_ready(ll_gpu *g, ll_stream_id s, bool *out)
{
    return is_over(cudaStreamQuery(g->streams[s]), out);
}

ll_err ll_gpu_passed(ll_gpu *g, int i, bool *out)
{
    LL_ASSERT(i < g->n_event);
    return is_over(cudaEventQuery(g->events[i]), out);
}

ll_err ll_gpu_copy_rows(ll_gpu *g, ll_stream_id s, const ll_gpu_rows *r)
{
    if (!r->row || !r->n) return LL_OK;
    return GPU(cudaMemcpy2DAsync(r->to, r->to_stride, r->from, r->from_stride, r->row, (size_t)r->n,
                                 cudaMemcpyDeviceToDevice, g->streams[s]));
}

ll_err ll_gpu_copy(ll_gpu *g, ll_stream_id s, void *to, const void *from, size_t bytes)
{
    if (!bytes) return LL_OK;
    return GPU(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, g->streams[s]));
}

ll_err ll_gpu_after(ll_gpu *g, ll_stream_id later, ll_stream_id earlier)
{
    cudaEvent_t *e = &g->after[later][earlier];
    if (!*e) GPU_TRY(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
    GPU_TRY(cudaEventRecord(*e, g->streams[earlier]));
    return GPU(cudaStreamWaitEvent(g->streams[later], *e, 0));
}

ll_err ll_gpu_wait_for(ll_gpu *g, ll_stream_id s)
{
    return GPU(cudaStreamSynchronize(g->streams[s]));
}

/* ---- captured work ---- */

ll_err ll_gpu_capture(ll_gpu *g)
{
    return GPU(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeRelaxed));
}

ll_err ll_gpu_captured(ll_gpu *g, ll_gpu_graph **out)
{
    cudaGraph_t graph;
    GPU_TRY(cudaStreamEndCapture(g->stream, &graph));
    ll_gpu_graph *w = (ll_gpu_graph *)calloc(1, sizeof *w);
    LL_ASSERT(w);
    cudaError_t e = cudaGraphInstantiate(&w->exec, graph, 0);
    if (e == cudaSuccess) e = cudaGraphUpload(w->exec, g->stream);
    cudaGraphDestroy(graph);
    if (e != cudaSuccess) {
        ll_gpu_drop(w);
        return told(e, "graph", __FILE__, __LINE__, __func__);
    }
    *out = w;
    return LL_OK;
}

ll_err ll_gpu_replay(ll_gpu *g, ll_gpu_graph *w)
{
    return GPU(cudaGraphLaunch(w->exec, g->stream));
}

void ll_gpu_drop(ll_gpu_graph *w)
{
    if (!w) return;
    cudaGraphExecDestroy(w->exec);
    free(w);
}

ll_err ll_gpu_mark(ll_gpu *g, int i)
{
    cudaStreamCaptureStatus status;
    TRY(have_events(&g->marks, &g->n_mark, i + 1, cudaEventDefault));
    GPU_TRY(cudaStreamIsCapturing(g->stream, &status));
    return GPU(cudaEventRecordWithFlags(
        g->marks[i], g->stream,
        status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal));
}

ll_err ll_gpu_seconds(ll_gpu *g, int from, int to, double *out)
{
    float ms;
    LL_ASSERT(from < g->n_mark && to < g->n_mark);
    GPU_TRY(cudaEventElapsedTime(&ms, g->marks[from], g->marks[to]));
    *out = 1e-3 * ms;
    return LL_OK;
}
