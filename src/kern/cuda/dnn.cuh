/* dnn.cuh: cuDNN's graphs of operations, as few words as they allow. A plan is made once for what
 * it depends on (a key of bytes) and kept; running it queues kernels. */
#pragma once
#include "kern/cuda/gpu.cuh"

#include <cudnn.h>

typedef cudnnBackendDescriptor_t ll_desc;

/* Collects descriptors while an operation graph is built; the first failure sticks. */
typedef struct ll_dnn_graph {
    ll_desc all[192];
    int n;
    ll_desc ops[40];
    int n_op;
    int64_t prefer; /* a KERNEL_CFG to take where cuDNN's heuristics name it, or 0 */
    ll_err rc;
} ll_dnn_graph;

extern "C" {
/* cuDNN can be loaded, and finds a GPU. */
ll_err ll_dnn_open(void);
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

/* An elementwise operation's operands and result; t: the condition of BINARY_SELECT; axis: of
 * GEN_INDEX. What an operation does not take is NULL. */
typedef struct ll_dnn_point {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t compute;
    ll_desc x, b, t, y;
    int64_t axis;
} ll_dnn_point;
void ll_dnn_pointwise(ll_dnn_graph *g, const ll_dnn_point *p);
/* c = a b; len: tensors of how many rows, columns and terms count in each batch, or NULL. */
void ll_dnn_matmul(ll_dnn_graph *g, ll_desc a, ll_desc b, ll_desc c, const ll_desc len[3]);
void ll_dnn_reduce(ll_dnn_graph *g, cudnnReduceTensorOp_t op, ll_desc x, ll_desc y);
void ll_dnn_reshape(ll_dnn_graph *g, ll_desc x, ll_desc y);

typedef struct ll_dnn_plan ll_dnn_plan;
/* The plan kept under this key, or NULL. */
ll_dnn_plan *ll_dnn_find(const void *key, size_t bytes);
/* Makes a plan of the graph's operations and keeps it. tensor_cores: may f32 be rounded to tf32? */
ll_err ll_dnn_make(ll_dnn_graph *g, const void *key, size_t bytes, bool tensor_cores,
                   ll_dnn_plan **out);
/* The same, with up to 12 engines that give the same bits in every run and need no more workspace
 * than so many bytes; the first run times them on its operands, each several times, and the best is
 * kept. So an operation must give the same results when it is run again. It is no failure where
 * there is no such engine: ll_dnn_runs tells. */
ll_err ll_dnn_make_best(ll_dnn_graph *g, const void *key, size_t bytes, bool tensor_cores,
                        size_t most_workspace, ll_dnn_plan **out);
bool ll_dnn_runs(const ll_dnn_plan *p);
void ll_dnn_free(ll_dnn_graph *g);
/* Bytes that any run of it may need. */
size_t ll_dnn_workspace(const ll_dnn_plan *p);
ll_err ll_dnn_run(ll_dnn_plan *p, const ll_kcall *c, int n, const int64_t *ids, void *const *data,
                  void *workspace);
}
