/* dnn.cuh: cuDNN's graphs of operations, as few words as they allow. A plan is made once for what
 * it depends on (a key of bytes) and kept in the context; running it queues kernels. */
#pragma once
#include "kern/cuda/gpu.cuh"

#include <cudnn.h>

typedef cudnnBackendDescriptor_t ll_desc;

/* Collects descriptors while an operation graph is built; the first failure sticks. */
typedef struct ll_dnn_graph {
    ll_context *ctx;
    ll_desc all[192];
    int n;
    ll_desc ops[40];
    int n_op;
    ll_err rc;
} ll_dnn_graph;

/* Which engines will do. timed: up to 12 that give the same bits in every run; the first run times
 * them on its operands, each several times, and keeps the best. So an operation must give the same
 * results when it is run again. Otherwise the first that heuristics name is taken. */
typedef struct ll_dnn_wanted {
    bool tensor_cores; /* f32 may be rounded to tf32 */
    bool timed;
    int64_t most_workspace; /* 0: any */
    int64_t prefer;         /* a KERNEL_CFG to take where cuDNN's heuristics name it, or 0 */
} ll_dnn_wanted;

extern "C" {
/* cuDNN can be loaded, and finds a GPU. */
ll_err ll_dnn_open(ll_context *x);
size_t ll_dnn_version(void); /* of what is loaded, or would be */

ll_desc ll_dnn_new(ll_dnn_graph *g, cudnnBackendDescriptorType_t type);
void ll_dnn_set(ll_dnn_graph *g, ll_desc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *data);
void ll_dnn_done(ll_dnn_graph *g, ll_desc d); /* finalises */
/* A tensor of n dimensions with these strides; id names it when the plan runs. */
ll_desc ll_dnn_tensor(ll_dnn_graph *g, int64_t id, ll_dtype t, int n, const int64_t *dims,
                      const int64_t *strides);

/* A tensor within the graph, which is never stored. */
ll_desc ll_dnn_inner(ll_dnn_graph *g, cudnnDataType_t t, int n, const int64_t *dims,
                     const int64_t *strides);
/* One f32 in the host's memory, read when the plan is run; it stands for n dimensions. */
ll_desc ll_dnn_number(ll_dnn_graph *g, int64_t id, int n);

/* An operand of an operation: a descriptor; NULL: it has none. */
void ll_dnn_give(ll_dnn_graph *g, ll_desc op, cudnnBackendAttributeName_t name, ll_desc value);
void ll_dnn_add(ll_dnn_graph *g, ll_desc op); /* finalises an operation */

typedef struct ll_dnn_plan ll_dnn_plan;
/* The plan kept under this key, or NULL. */
ll_dnn_plan *ll_dnn_find(const ll_context *x, const void *key, size_t bytes);
/* Makes a plan of the graph's operations and keeps it. It is no failure where cuDNN has no engine
 * for them: ll_dnn_refused tells. */
ll_err ll_dnn_make(ll_dnn_graph *g, const void *key, size_t bytes, const ll_dnn_wanted *want,
                   ll_dnn_plan **out);
/* Why the plan cannot run; NULL: it can. */
const char *ll_dnn_refused(const ll_dnn_plan *p);
void ll_dnn_free(ll_dnn_graph *g);
/* Bytes that any run of it may need. */
size_t ll_dnn_workspace(const ll_dnn_plan *p);
ll_err ll_dnn_run(ll_dnn_plan *p, const ll_kcall *c, int n, const int64_t *ids, void *const *data,
                  void *workspace);
}
