/* group.h: GPUs that talk to each other (NCCL), each of another process. What is sent lies in their
 * memory; all is queued in the group's stream, and must be queued in the same order by all. Built
 * where NCCL is installed. */
#pragma once
#include "base/types.h"
#include "dev/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_gpu_group ll_gpu_group;
enum { LL_GPU_GROUP_ID = 128 };

/* "NCCL 2.28.3". Fails where it cannot be loaded. */
ll_err ll_gpu_group_library(const char **out);
/* One member makes the id, all open with it, each as another rank. Collective. */
ll_err ll_gpu_group_id(unsigned char id[LL_GPU_GROUP_ID]);
ll_err ll_gpu_group_open(ll_gpu *g, ll_stream_id s, const unsigned char id[LL_GPU_GROUP_ID],
                         int size, int rank, ll_gpu_group **out);
void ll_gpu_group_close(ll_gpu_group *x);
/* Fails where something has gone wrong since, on this GPU or another. Does not wait. */
ll_err ll_gpu_group_check(ll_gpu_group *x);
/* Ends what is under way, whatever its results; nothing but close may follow. */
void ll_gpu_group_abort(ll_gpu_group *x);

/* Those between begin and end are one piece of work. */
ll_err ll_gpu_group_begin(void);
ll_err ll_gpu_group_end(void);

/* n elements; in may be out. */
ll_err ll_gpu_all_reduce(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t,
                         bool max);
/* The sum goes to `to` alone; out is not touched elsewhere. */
ll_err ll_gpu_reduce(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t, bool max,
                     int to);
/* n elements for each member, of n times as many. */
ll_err ll_gpu_reduce_scatter(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t,
                             bool max);
ll_err ll_gpu_all_gather(ll_gpu_group *x, const void *in, void *out, size_t bytes);
ll_err ll_gpu_broadcast(ll_gpu_group *x, void *data, size_t bytes, int from);
ll_err ll_gpu_send(ll_gpu_group *x, const void *data, size_t bytes, int to);
ll_err ll_gpu_receive(ll_gpu_group *x, void *data, size_t bytes, int from);

#ifdef __cplusplus
}
#endif
