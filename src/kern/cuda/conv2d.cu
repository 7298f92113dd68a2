/* conv2d.cu: convolutions and their gradients through cuDNN, NHWC. What cuDNN does not take (the
 * negative padding of a part of a cut image, f64, empty tensors, 16-bit types with a number of
 * channels that 8 does not divide) runs on a plain kernel: a thread for each element of the result.
 */
#include "kern/cuda/dnn.cuh"

#include <string.h>

extern "C" {
ll_kernel conv2d_cuda, conv2d_dx_cuda, conv2d_dw_cuda;
ll_scratch conv2d_cuda_scratch, conv2d_dx_cuda_scratch, conv2d_dw_cuda_scratch;
}

enum which { FORWARD, IMAGE, FILTER };
enum { ID_X = 1, ID_W, ID_Y };

typedef struct conv {
    enum which which;
    ll_dtype t, out;
    bool tf32;
    ll_conv_attr a;
    int64_t x[4], w[4], y[4];
} conv;

/* x, w, y: image, filter, output, or their gradients. */
static conv conv_of(const ll_kcall *c, enum which which, const ll_tensor **x, const ll_tensor **w,
                    const ll_tensor **y)
{
    conv v;
    memset(&v, 0, sizeof v); /* a key: padding too */
    *x = which == FORWARD ? &c->in[0] : which == IMAGE ? &c->out[0] : &c->in[1];
    *w = which == FILTER ? &c->out[0] : &c->in[1];
    *y = which == FORWARD ? &c->out[0] : &c->in[0];
    v.which = which;
    v.t = c->in[0].dtype;
    v.out = c->out[0].dtype;
    v.tf32 = c->tf32;
    v.a = *(const ll_conv_attr *)c->attr;
    memcpy(v.x, (*x)->shape.d, sizeof v.x);
    memcpy(v.w, (*w)->shape.d, sizeof v.w);
    memcpy(v.y, (*y)->shape.d, sizeof v.y);
    return v;
}

static bool for_cudnn(const conv *v)
{
    if (v->t != LL_F32 && v->t != LL_BF16 && v->t != LL_F16) return false;
    for (int i = 0; i < 4; i++)
        if (v->a.pad[i] < 0 || v->x[i] == 0 || v->w[i] == 0 || v->y[i] == 0) return false;
    /* its 16-bit engines read 8 channels at a time */
    return v->t == LL_F32 || (v->x[3] / v->a.groups % 8 == 0 && v->y[3] / v->a.groups % 8 == 0);
}

/* ---- plain ---- */

template <class T, class Y>
static __global__ void plain(conv v, const T *x, const T *w, const T *y, Y *out, int64_t n)
{
    typedef typename sum_of<T>::type S;
    int64_t fg = v.w[0] / v.a.groups, cg = v.w[3];
    GRID_STRIDE(e, n)
    {
        S sum = 0;
        if (v.which == FORWARD) {
            int64_t f = e % v.y[3], p = e / v.y[3] % v.y[2], o = e / v.y[3] / v.y[2] % v.y[1];
            int64_t b = e / v.y[3] / v.y[2] / v.y[1], c0 = f / fg * cg;
            for (int64_t r = 0; r < v.w[1]; r++)
                for (int64_t s = 0; s < v.w[2]; s++) {
                    int64_t i = o * v.a.stride[0] - v.a.pad[0] + r * v.a.dilation[0];
                    int64_t j = p * v.a.stride[1] - v.a.pad[2] + s * v.a.dilation[1];
                    if (i < 0 || i >= v.x[1] || j < 0 || j >= v.x[2]) continue;
                    for (int64_t c = 0; c < cg; c++)
                        sum += (S)to_float(x[((b * v.x[1] + i) * v.x[2] + j) * v.x[3] + c0 + c]) *
                               (S)to_float(w[((f * v.w[1] + r) * v.w[2] + s) * cg + c]);
                }
        } else if (v.which == IMAGE) {
            int64_t c = e % v.x[3], j = e / v.x[3] % v.x[2], i = e / v.x[3] / v.x[2] % v.x[1];
            int64_t b = e / v.x[3] / v.x[2] / v.x[1], f0 = c / cg * fg;
            for (int64_t r = 0; r < v.w[1]; r++)
                for (int64_t s = 0; s < v.w[2]; s++) {
                    int64_t o = i + v.a.pad[0] - r * v.a.dilation[0];
                    int64_t p = j + v.a.pad[2] - s * v.a.dilation[1];
                    if (o < 0 || p < 0 || o % v.a.stride[0] || p % v.a.stride[1]) continue;
                    o /= v.a.stride[0], p /= v.a.stride[1];
                    if (o >= v.y[1] || p >= v.y[2]) continue;
                    for (int64_t f = f0; f < f0 + fg; f++)
                        sum += (S)to_float(y[((b * v.y[1] + o) * v.y[2] + p) * v.y[3] + f]) *
                               (S)to_float(w[((f * v.w[1] + r) * v.w[2] + s) * cg + c % cg]);
                }
        } else {
            int64_t c = e % cg, s = e / cg % v.w[2], r = e / cg / v.w[2] % v.w[1];
            int64_t f = e / cg / v.w[2] / v.w[1], c0 = f / fg * cg;
            for (int64_t b = 0; b < v.y[0]; b++)
                for (int64_t o = 0; o < v.y[1]; o++)
                    for (int64_t p = 0; p < v.y[2]; p++) {
                        int64_t i = o * v.a.stride[0] - v.a.pad[0] + r * v.a.dilation[0];
                        int64_t j = p * v.a.stride[1] - v.a.pad[2] + s * v.a.dilation[1];
                        if (i < 0 || i >= v.x[1] || j < 0 || j >= v.x[2]) continue;
                        sum += (S)to_float(y[((b * v.y[1] + o) * v.y[2] + p) * v.y[3] + f]) *
                               (S)to_float(x[((b * v.x[1] + i) * v.x[2] + j) * v.x[3] + c0 + c]);
                    }
        }
        out[e] = from_float<Y>::of(sum);
    }
}

static ll_err run_plain(const ll_kcall *c, const conv *v, const ll_tensor *x, const ll_tensor *w,
                        const ll_tensor *y)
{
    int64_t n = ll_numel(&c->out[0].shape);
    if (n == 0) return LL_OK;
    return with_float(v->t, [&](auto a) -> ll_err {
        typedef decltype(a) T;
        return with_float(v->out, [&](auto b) -> ll_err {
            typedef decltype(b) Y;
            plain<T, Y><<<blocks_for(n, 128), 128, 0, stream_of(c)>>>(
                *v, (const T *)x->data, (const T *)w->data, (const T *)y->data,
                (Y *)c->out[0].data, n);
            CUDA_TRY(cudaGetLastError());
            return LL_OK;
        });
    });
}

/* ---- cuDNN ---- */

/* [n,h,w,c] in memory is n, c, h, w to cuDNN. */
static ll_desc tensor(ll_dnn_graph *g, int64_t id, ll_dtype t, const int64_t s[4])
{
    int64_t dims[4] = {s[0], s[3], s[1], s[2]};
    int64_t strides[4] = {s[1] * s[2] * s[3], 1, s[2] * s[3], s[3]};
    return ll_dnn_tensor(g, id, t, 4, dims, strides);
}

static void add_convolution(ll_dnn_graph *g, const conv *v)
{
    static const struct {
        cudnnBackendDescriptorType_t op;
        cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
    } names[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t two = 2, pre[2] = {v->a.pad[0], v->a.pad[2]}, post[2] = {v->a.pad[1], v->a.pad[3]};
    float one = 1, zero = 0;
    ll_desc d = ll_dnn_new(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pre);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, post);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, v->a.dilation);
    ll_dnn_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, v->a.stride);
    ll_dnn_done(g, d);
    ll_desc x = tensor(g, ID_X, v->which == IMAGE ? v->out : v->t, v->x);
    ll_desc w = tensor(g, ID_W, v->which == FILTER ? v->out : v->t, v->w);
    ll_desc y = tensor(g, ID_Y, v->which == FORWARD ? v->out : v->t, v->y);
    ll_desc op = ll_dnn_new(g, names[v->which].op);
    ll_dnn_set(g, op, names[v->which].conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &d);
    ll_dnn_set(g, op, names[v->which].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    ll_dnn_set(g, op, names[v->which].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w);
    ll_dnn_set(g, op, names[v->which].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    ll_dnn_set(g, op, names[v->which].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    ll_dnn_set(g, op, names[v->which].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    ll_dnn_done(g, op);
    g->ops[g->n_op++] = op;
}

static ll_err plan_of(const conv *v, ll_dnn_plan **out)
{
    *out = ll_dnn_find(v, sizeof *v);
    if (*out) return LL_OK;
    ll_dnn_graph g = {};
    add_convolution(&g, v);
    ll_err rc = g.rc;
    if (rc == LL_OK) rc = ll_dnn_make(&g, v, sizeof *v, v->t != LL_F32 || v->tf32, out);
    ll_dnn_free(&g);
    return rc;
}

static size_t scratch(const ll_kcall *c, enum which which)
{
    const ll_tensor *x, *w, *y;
    ll_dnn_plan *p;
    conv v = conv_of(c, which, &x, &w, &y);
    return for_cudnn(&v) && plan_of(&v, &p) == LL_OK ?
               ll_dnn_workspace(p) + LL_WORKSPACE_SLACK : 0;
}

static ll_err run(const ll_kcall *c, enum which which)
{
    const ll_tensor *x, *w, *y;
    ll_dnn_plan *p;
    conv v = conv_of(c, which, &x, &w, &y);
    if (!for_cudnn(&v)) return run_plain(c, &v, x, w, y);
    TRY(plan_of(&v, &p));
    const int64_t ids[3] = {ID_X, ID_W, ID_Y};
    void *const data[3] = {x->data, w->data, y->data};
    return ll_dnn_run(p, c, 3, ids, data, workspace_of(c));
}

ll_err conv2d_cuda(const ll_kcall *c)
{
    return run(c, FORWARD);
}

ll_err conv2d_dx_cuda(const ll_kcall *c)
{
    return run(c, IMAGE);
}

ll_err conv2d_dw_cuda(const ll_kcall *c)
{
    return run(c, FILTER);
}

size_t conv2d_cuda_scratch(const ll_kcall *c)
{
    return scratch(c, FORWARD);
}

size_t conv2d_dx_cuda_scratch(const ll_kcall *c)
{
    return scratch(c, IMAGE);
}

size_t conv2d_dw_cuda_scratch(const ll_kcall *c)
{
    return scratch(c, FILTER);
}
