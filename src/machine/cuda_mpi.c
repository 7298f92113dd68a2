/* cuda_mpi.c: collectives of a program between GPUs, by an MPI library that takes their memory: the
 * messages of comm/ go from where operands lie to where results do, and their sums are made by
 * kernels in a stream beside the others. */
#include "machine/cuda.h"
#include "machine/host.h"

static ll_err alloc(void *exec, size_t bytes, void **out)
{
    ll_exec *e = (ll_exec *)exec;
    TRY(ll_gpu_alloc(ll_cuda_of(e)->gpu, bytes, out));
    e->extra_bytes += bytes;
    return LL_OK;
}

static void let_go(void *exec, void *data)
{
    ll_gpu_free(ll_cuda_of((const ll_exec *)exec)->gpu, data);
}

/* In the stream of the kernels, which write operands and read results. */
static ll_err copy(void *exec, void *to, size_t to_stride, const void *from, size_t from_stride,
                   size_t row, int64_t n)
{
    const ll_gpu_rows r = {to, from, to_stride, from_stride, row, n};
    return ll_gpu_copy_rows(ll_cuda_of((const ll_exec *)exec)->gpu, LL_STREAM_COMPUTE, &r);
}

static ll_err ready(void *exec)
{
    return ll_gpu_wait(ll_cuda_of((const ll_exec *)exec)->gpu);
}

static ll_err fold(void *exec, void *dst, const void *const *src, int n_src, int64_t n, ll_dtype t,
                   ll_reduce op)
{
    ll_gpu *g = ll_cuda_of((const ll_exec *)exec)->gpu;
    TRY(ll_gpu_fold(g, LL_STREAM_COMM, dst, src, n_src, n, t, op));
    return ll_gpu_wait_for(g, LL_STREAM_COMM);
}

static ll_err open(ll_exec *e)
{
    ll_memory *m = LL_NEW(e->arena, ll_memory);
    *m = (ll_memory){e, alloc, let_go, copy, ready, fold};
    e->memory = m;
    return ll_host_open(e);
}

const ll_link ll_link_mpi = {.name = "mpi",
                             .open = open,
                             .close = ll_host_close,
                             .start = ll_host_start,
                             .wait = ll_host_wait};
