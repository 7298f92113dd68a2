/* nccl.cu: dev/group.h on NCCL. */
#include "dev/group.h"

#ifdef LL_NCCL
#include "base/load.h"

#include <nccl.h>

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ll_gpu_group {
    ncclComm_t comm;
    cudaStream_t stream;
};

#define CALLS(_)                                                                                   \
    _(ncclAllGather)                                                                               \
    _(ncclAllReduce)                                                                               \
    _(ncclBroadcast)                                                                               \
    _(ncclCommAbort)                                                                               \
    _(ncclCommDestroy)                                                                             \
    _(ncclCommGetAsyncError)                                                                       \
    _(ncclCommInitRank)                                                                            \
    _(ncclGetErrorString)                                                                          \
    _(ncclGetLastError)                                                                            \
    _(ncclGetUniqueId)                                                                             \
    _(ncclGetVersion)                                                                              \
    _(ncclGroupEnd)                                                                                \
    _(ncclGroupStart)                                                                              \
    _(ncclRecv)                                                                                    \
    _(ncclReduce)                                                                                  \
    _(ncclReduceScatter)                                                                           \
    _(ncclSend)
static struct {
    CALLS(LL_CALL)
} nccl;
static const ll_library library = {"libnccl.so." LL_MAJOR(NCCL_MAJOR),
                                   "NCCL " LL_MAJOR(NCCL_MAJOR) " (or use transport host)",
                                   (void **)&nccl,
                                   {CALLS(LL_CALL_NAME)}};

#define NCCL_TRY(call)                                                                             \
    do {                                                                                           \
        ncclResult_t nr_ = (call);                                                                 \
        CHECK(nr_ == ncclSuccess || nr_ == ncclInProgress, LL_E_COMM, "NCCL: %s: %.400s",          \
              nccl.ncclGetErrorString(nr_), nccl.ncclGetLastError(NULL));                          \
    } while (0)

static_assert(sizeof(ncclUniqueId) == LL_GPU_GROUP_ID, "ncclUniqueId");

ll_err ll_gpu_group_library(const char **out)
{
    static char text[48];
    int v = 0;
    TRY(ll_load_library(&library));
    NCCL_TRY(nccl.ncclGetVersion(&v));
    snprintf(text, sizeof text, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    *out = text;
    return LL_OK;
}

ll_err ll_gpu_group_id(unsigned char id[LL_GPU_GROUP_ID])
{
    ncclUniqueId made;
    TRY(ll_load_library(&library));
    NCCL_TRY(nccl.ncclGetUniqueId(&made));
    memcpy(id, &made, sizeof made);
    return LL_OK;
}

ll_err ll_gpu_group_open(ll_gpu *g, ll_stream_id s, const unsigned char id[LL_GPU_GROUP_ID],
                         int size, int rank, ll_gpu_group **out)
{
    ncclUniqueId theirs;
    TRY(ll_load_library(&library));
    memcpy(&theirs, id, sizeof theirs);
    ll_gpu_group *x = (ll_gpu_group *)calloc(1, sizeof *x);
    CHECK(x, LL_E_MEM, "not enough memory for a group of GPUs");
    x->stream = (cudaStream_t)ll_gpu_stream(g, s);
    if (!x->stream) {
        free(x);
        FAIL(LL_E_DEVICE, "a GPU gives no stream for messages");
    }
    ncclResult_t rc = nccl.ncclCommInitRank(&x->comm, size, theirs, rank);
    if (rc != ncclSuccess) {
        free(x);
        NCCL_TRY(rc);
    }
    *out = x;
    return LL_OK;
}

void ll_gpu_group_close(ll_gpu_group *x)
{
    if (!x) return;
    if (x->comm) nccl.ncclCommDestroy(x->comm);
    free(x);
}

ll_err ll_gpu_group_check(ll_gpu_group *x)
{
    ncclResult_t found = ncclSuccess;
    CHECK(x->comm, LL_E_COMM, "NCCL was ended after a failure");
    NCCL_TRY(nccl.ncclCommGetAsyncError(x->comm, &found));
    NCCL_TRY(found);
    return LL_OK;
}

void ll_gpu_group_abort(ll_gpu_group *x)
{
    if (x && x->comm) nccl.ncclCommAbort(x->comm);
    if (x) x->comm = NULL;
}

ll_err ll_gpu_group_begin(void)
{
    NCCL_TRY(nccl.ncclGroupStart());
    return LL_OK;
}

ll_err ll_gpu_group_end(void)
{
    NCCL_TRY(nccl.ncclGroupEnd());
    return LL_OK;
}

static ncclDataType_t type_of(ll_dtype t)
{
    switch (t) {
    case LL_F32: return ncclFloat32;
    case LL_F64: return ncclFloat64;
    case LL_BF16: return ncclBfloat16;
    case LL_F16: return ncclFloat16;
    case LL_I32: return ncclInt32;
    case LL_U8: return ncclUint8;
    default: LL_ASSERT(!"a type that is summed"); return ncclUint8;
    }
}

ll_err ll_gpu_all_reduce(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t,
                         bool max)
{
    NCCL_TRY(nccl.ncclAllReduce(in, out, (size_t)n, type_of(t), max ? ncclMax : ncclSum, x->comm,
                                x->stream));
    return LL_OK;
}

ll_err ll_gpu_reduce(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t, bool max,
                     int to)
{
    NCCL_TRY(nccl.ncclReduce(in, out, (size_t)n, type_of(t), max ? ncclMax : ncclSum, to, x->comm,
                             x->stream));
    return LL_OK;
}

ll_err ll_gpu_reduce_scatter(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t,
                             bool max)
{
    NCCL_TRY(nccl.ncclReduceScatter(in, out, (size_t)n, type_of(t), max ? ncclMax : ncclSum,
                                    x->comm, x->stream));
    return LL_OK;
}

ll_err ll_gpu_all_gather(ll_gpu_group *x, const void *in, void *out, size_t bytes)
{
    NCCL_TRY(nccl.ncclAllGather(in, out, bytes, ncclUint8, x->comm, x->stream));
    return LL_OK;
}

ll_err ll_gpu_broadcast(ll_gpu_group *x, void *data, size_t bytes, int from)
{
    NCCL_TRY(nccl.ncclBroadcast(data, data, bytes, ncclUint8, from, x->comm, x->stream));
    return LL_OK;
}

ll_err ll_gpu_send(ll_gpu_group *x, const void *data, size_t bytes, int to)
{
    NCCL_TRY(nccl.ncclSend(data, bytes, ncclUint8, to, x->comm, x->stream));
    return LL_OK;
}

ll_err ll_gpu_receive(ll_gpu_group *x, void *data, size_t bytes, int from)
{
    NCCL_TRY(nccl.ncclRecv(data, bytes, ncclUint8, from, x->comm, x->stream));
    return LL_OK;
}

#endif
