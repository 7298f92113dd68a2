/* none.c: dev/gpu.h where CUDA is not built: there is no GPU, and opening one says why. The rest is
 * never reached without an open one. */
#include "dev/gpu.h"

#ifndef LL_CUDA

bool ll_gpu_built(void)
{
    return false;
}

int ll_gpu_count(void)
{
    return 0;
}

static ll_err none(void)
{
    FAIL(LL_E_DEVICE, "this build has no CUDA: install nvcc, cuBLAS and cuDNN and configure with "
                      "-DLL_CUDA=ON, or use machine cpu");
}

ll_err ll_gpu_open(int, ll_gpu **out)
{
    *out = NULL;
    return none();
}

void ll_gpu_close(ll_gpu *)
{
}

ll_err ll_gpu_ask(const ll_gpu *, ll_gpu_facts *)
{
    return none();
}

void *ll_gpu_stream(const ll_gpu *)
{
    return NULL;
}

ll_err ll_gpu_alloc(ll_gpu *, size_t, void **)
{
    return none();
}

void ll_gpu_free(ll_gpu *, void *)
{
}

ll_err ll_gpu_pinned(size_t, void **)
{
    return none();
}

void ll_gpu_unpin(void *)
{
}

ll_err ll_gpu_write(ll_gpu *, void *, const void *, size_t)
{
    return none();
}

ll_err ll_gpu_read(ll_gpu *, void *, const void *, size_t)
{
    return none();
}

ll_err ll_gpu_fill(ll_gpu *, void *, int, size_t)
{
    return none();
}

ll_err ll_gpu_wait(ll_gpu *)
{
    return none();
}

ll_err ll_gpu_pieces(ll_gpu *, const ll_gpu_piece *, int)
{
    return none();
}

ll_err ll_gpu_upload(ll_gpu *, void *, const void *, size_t)
{
    return none();
}

ll_err ll_gpu_after(ll_gpu *, ll_gpu_queue, ll_gpu_queue)
{
    return none();
}

ll_err ll_gpu_wait_for(ll_gpu *, ll_gpu_queue)
{
    return none();
}

void *ll_gpu_queue_stream(const ll_gpu *, ll_gpu_queue)
{
    return NULL;
}

ll_err ll_gpu_raise(ll_gpu *, ll_gpu_queue, int)
{
    return none();
}

ll_err ll_gpu_heed(ll_gpu *, ll_gpu_queue, int)
{
    return none();
}

ll_err ll_gpu_copy_rows(ll_gpu *, ll_gpu_queue, const ll_gpu_rows *)
{
    return none();
}

ll_err ll_gpu_capture(ll_gpu *)
{
    return none();
}

ll_err ll_gpu_captured(ll_gpu *, ll_gpu_graph **)
{
    return none();
}

ll_err ll_gpu_replay(ll_gpu *, ll_gpu_graph *)
{
    return none();
}

void ll_gpu_drop(ll_gpu_graph *)
{
}

ll_err ll_gpu_mark(ll_gpu *, int)
{
    return none();
}

ll_err ll_gpu_seconds(ll_gpu *, int, int, double *)
{
    return none();
}

#endif
