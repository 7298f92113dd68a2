/* group_none.c: dev/group.h where NCCL is not built. What needs an open group is never reached. */
#include "dev/group.h"

#ifndef LL_NCCL

ll_err ll_gpu_group_library(const char **out)
{
    *out = NULL;
    return LL_OK;
}

static ll_err none(void)
{
    FAIL(LL_E_DEVICE, "this build has no NCCL: install it (nccl.h, libnccl) and configure again, "
                      "or use parallel.transport host");
}

ll_err ll_gpu_group_id(unsigned char[LL_GPU_GROUP_ID])
{
    return none();
}

ll_err ll_gpu_group_open(ll_gpu *, const unsigned char[LL_GPU_GROUP_ID], int, int,
                         ll_gpu_group **out)
{
    *out = NULL;
    return none();
}

void ll_gpu_group_close(ll_gpu_group *)
{
}

ll_err ll_gpu_group_begin(void)
{
    return none();
}

ll_err ll_gpu_group_end(void)
{
    return none();
}

ll_err ll_gpu_all_reduce(ll_gpu_group *, const void *, void *, int64_t, ll_dtype, bool)
{
    return none();
}

ll_err ll_gpu_reduce(ll_gpu_group *, const void *, void *, int64_t, ll_dtype, bool, int)
{
    return none();
}

ll_err ll_gpu_reduce_scatter(ll_gpu_group *, const void *, void *, int64_t, ll_dtype, bool)
{
    return none();
}

ll_err ll_gpu_all_gather(ll_gpu_group *, const void *, void *, size_t)
{
    return none();
}

ll_err ll_gpu_broadcast(ll_gpu_group *, void *, size_t, int)
{
    return none();
}

ll_err ll_gpu_send(ll_gpu_group *, const void *, size_t, int)
{
    return none();
}

ll_err ll_gpu_receive(ll_gpu_group *, void *, size_t, int)
{
    return none();
}

#endif
