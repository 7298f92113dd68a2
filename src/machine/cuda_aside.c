/* cuda_aside.c: values laid aside in the host's memory, pinned, by copies in two streams beside the
 * kernels', one each way, for the link to the host is two as well.
 *
 *     compute   x | event | kernels ... | wait | kernels that have x's bytes ... | y's reader
 *     store             x -> pinned | event ^                                    ^
 *     load                                              pinned -> y | event -----+
 *
 * Starts and waits are captured with the kernels around them (cuda_run.c), so that in a step they
 * cost this process nothing. A graph is over when all of it is: no copy is under way from one to
 * the next, nor when this process has waited for the kernels. */
#include "base/text.h"
#include "machine/cuda.h"

ll_err ll_cuda_map_aside(ll_exec *e, size_t bytes, char **out)
{
    size_t all = ll_host_memory();
    void *data;
    CHECK(e->opts.offload, LL_E_ARG,
          "the program lays values aside, and offload does not say host");
    CHECK(bytes <= all, LL_E_MEM,
          "offload: %s are to be laid aside in pinned memory, and this machine has %s: use a "
          "smaller model or micro-batch",
          LL_BYTES_UP(bytes), LL_BYTES_DOWN(all));
    TRY(ll_gpu_pinned(bytes, &data));
    *out = ll_cuda_of(e)->aside = (char *)data;
    return LL_OK;
}

/* Its own, or of the program that it shares inputs with. */
bool ll_cuda_is_aside(const ll_exec *e, int slot)
{
    const char *at = (const char *)e->address[slot];
    for (; e; e = e->opts.share) {
        const char *aside = ll_cuda_of(e)->aside;
        if (aside && at >= aside && at < aside + e->p->aside_bytes) return true;
    }
    return false;
}

/* Events that collectives have the like of (cuda_nccl.c), of other instructions. */
static int made(const ll_exec *e, const ll_bound *b)
{
    return e->p->n_instr + (int)(b - e->instrs);
}

ll_err ll_cuda_copy(ll_exec *e, ll_bound *b)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    const ll_instr *x = b->instr;
    ll_stream_id s = x->aside == LL_STORE ? LL_STREAM_STORE : LL_STREAM_LOAD;
    TRY(ll_gpu_after(g, s, LL_STREAM_COMPUTE));
    TRY(ll_gpu_copy(g, s, b->call.out->data, b->call.in->data, e->p->slots[x->in[0]].bytes));
    TRY(ll_gpu_record(g, s, made(e, b)));
    b->copy = 1;
    return LL_OK;
}

ll_err ll_cuda_copy_wait(ll_exec *e, ll_bound *b)
{
    if (!b->copy) return LL_OK; /* was made before the graph that it is in was over */
    b->copy = 0;
    return ll_gpu_await(ll_cuda_of(e)->gpu, LL_STREAM_COMPUTE, made(e, b));
}
