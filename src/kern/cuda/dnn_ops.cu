/* dnn_ops.cu: operations of cuDNN's graphs beside convolutions: products, elementwise, reductions.
 */
#include "kern/cuda/dnn.cuh"

enum { FIRST_INNER = 1 << 20 }; /* ids of tensors that no caller names */

static void set_desc(ll_dnn_graph *g, ll_desc d, cudnnBackendAttributeName_t name, ll_desc value)
{
    if (value) ll_dnn_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void add_op(ll_dnn_graph *g, ll_desc op)
{
    ll_dnn_done(g, op);
    LL_ASSERT(g->n_op < (int)(sizeof g->ops / sizeof *g->ops));
    g->ops[g->n_op++] = op;
}

static ll_desc special(ll_dnn_graph *g, cudnnBackendAttributeName_t kind, int64_t id,
                       cudnnDataType_t t, int n, const int64_t *dims, const int64_t *strides)
{
    bool yes = true;
    int64_t align = 16;
    ll_desc d = ll_dnn_new(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, n, dims);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, n, strides);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    ll_dnn_set(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    ll_dnn_set(g, d, kind, CUDNN_TYPE_BOOLEAN, 1, &yes);
    ll_dnn_done(g, d);
    return d;
}

ll_desc ll_dnn_inner(ll_dnn_graph *g, cudnnDataType_t t, int n, const int64_t *dims,
                     const int64_t *strides)
{
    return special(g, CUDNN_ATTR_TENSOR_IS_VIRTUAL, FIRST_INNER + g->n, t, n, dims, strides);
}

ll_desc ll_dnn_number(ll_dnn_graph *g, int64_t id, int n)
{
    static const int64_t ones[CUDNN_DIM_MAX] = {1, 1, 1, 1, 1, 1, 1, 1};
    return special(g, CUDNN_ATTR_TENSOR_IS_BY_VALUE, id, CUDNN_DATA_FLOAT, n, ones, ones);
}

void ll_dnn_pointwise(ll_dnn_graph *g, const ll_dnn_point *p)
{
    ll_desc how = ll_dnn_new(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    ll_dnn_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    ll_dnn_set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->compute);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        ll_dnn_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    ll_dnn_done(g, how);
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->y);
    add_op(g, op);
}

void ll_dnn_matmul(ll_dnn_graph *g, ll_desc a, ll_desc b, ll_desc c, const ll_desc len[3])
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    ll_desc how = ll_dnn_new(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    ll_dnn_set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    ll_dnn_done(g, how);
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, len[0]);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, len[1]);
    set_desc(g, op, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, len[2]);
    add_op(g, op);
}

void ll_dnn_reduce(ll_dnn_graph *g, cudnnReduceTensorOp_t mode, ll_desc x, ll_desc y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    ll_desc how = ll_dnn_new(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    ll_dnn_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    ll_dnn_set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    ll_dnn_done(g, how);
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, op);
}

void ll_dnn_reshape(ll_dnn_graph *g, ll_desc x, ll_desc y)
{
    ll_desc op = ll_dnn_new(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, op);
}
