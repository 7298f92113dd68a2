/* batchnorm_relu_pool.c: the max pool behind a batch norm and its relu, as first layers have it,
 * for GPUs: what the norm gives, four times what the pool leaves of it, is never in memory.
 *
 *     batchnorm_relu_pool       x, gain, bias, mean, var -> y, pick, place
 *     batchnorm_relu_pool_grad  dy, pick, place, x, gain, bias, mean, var -> dx, dgain, dbias
 *
 * x [n,h,w,c]; y, pick, place [n,h',w',c]. pick is the x that gives y, place (u8) where in the
 * window it is, NONE where y is 0: no gradient comes back from there. dgain and dbias are sums of
 * dy by pick, so that the image is read once, for dx. */
#include "fuse/fuse_int.h"
#include "op/rows.h"
#include "op/window.h"

LL_KERNELS(batchnorm_relu_pool, batchnorm_relu_pool_grad)

enum { NONE = 255 };

/* ---- what they mean ---- */

static ll_pool_attr pool_of(const ll_norm_pool_attr *a, const ll_shape *x)
{
    ll_pool_attr p = {.image = {x ? x->d[1] : 0, x ? x->d[2] : 0}};
    memcpy(p.size, a->size, sizeof p.size);
    memcpy(p.stride, a->stride, sizeof p.stride);
    memcpy(p.pad, a->pad, sizeof p.pad);
    return p;
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_norm_pool_attr *a = (const ll_norm_pool_attr *)attr;
    ll_pool_attr p = pool_of(a, NULL);
    ll_val z = LL_EMIT(g, ll_op_find("max_pool"), &p, ll_normed(g, a->eps, in[0], in + 1));
    ll_val index = ll_sibling(g, z, 1), none = ll_fill(g, LL_F64, LL_SCALAR, NONE);
    out[0] = ll_relu(g, z);
    out[1] = LL_EMIT(g, ll_op_find("max_pool_pick"), &p, in[0], index);
    out[2] = ll_cast(g, ll_select(g, out[0], ll_cast(g, index, LL_F64), none), LL_U8);
}

static void expand_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_norm_pool_attr *a = (const ll_norm_pool_attr *)attr;
    ll_val dy = in[0], pick = in[1], x = in[3], mean = in[6];
    ll_shape s = ll_graph_shape(g, x);
    ll_pool_attr p = pool_of(a, &s);
    double by = 1.0 / (double)(s.d[0] * s.d[1] * s.d[2]);
    ll_val rstd = ll_rsqrt(g, ll_shift(g, in[7], a->eps)), zero = ll_fill(g, LL_F64, LL_SCALAR, 0);
    ll_val g1 = ll_select(g, ll_relu(g, ll_normed(g, a->eps, pick, in + 4)), dy, zero);
    out[1] = ll_col_sum(g, ll_mul(g, g1, ll_mul(g, ll_sub(g, pick, mean), rstd)));
    out[2] = ll_col_sum(g, g1);
    ll_val dz = LL_EMIT(g, ll_op_find("max_pool_grad"), &p, dy, ll_cast(g, in[2], LL_I32));
    ll_val xhat = ll_mul(g, ll_sub(g, x, mean), rstd);
    dz = ll_sub(g, dz, ll_scale(g, out[2], by));
    dz = ll_sub(g, dz, ll_mul(g, xhat, ll_scale(g, out[1], by)));
    out[0] = ll_mul(g, dz, ll_mul(g, in[4], rstd));
}

/* ---- shapes ---- */

/* What the kernels take: no window is all padding, a pixel is in two by two of them at most, a byte
 * says where, and 32 bits count the pixels' channels. */
static bool fits(const ll_shape *x, const int64_t *size, const int64_t *stride, const int64_t *pad)
{
    bool yes = ll_numel(x) < INT32_MAX / 2 && size[0] > 0 && size[1] > 0 && size[0] < NONE &&
               size[0] * size[1] < NONE;
    for (int k = 0; k < 2; k++)
        yes &= stride[k] > 0 && stride[k] < NONE && size[k] <= 2 * stride[k] && pad[2 * k] >= 0 &&
               pad[2 * k] < size[k] && pad[2 * k + 1] >= 0 && pad[2 * k + 1] < size[k];
    return yes;
}

static ll_err output(const void *attr, const ll_shape *x, ll_shape *y)
{
    const ll_norm_pool_attr *a = (const ll_norm_pool_attr *)attr;
    CHECK(x->n == 4, LL_E_SHAPE, "an image of %d dimensions, expected [n,h,w,c]", x->n);
    CHECK(fits(x, a->size, a->stride, a->pad), LL_E_ARG, "windows that there is no kernel for");
    *y = *x;
    for (int k = 0; k < 2; k++) {
        ll_axis ax = {a->size[k], a->stride[k], 1, {a->pad[2 * k], a->pad[2 * k + 1]}};
        y->d[1 + k] = ll_axis_out(&ax, x->d[1 + k]);
        CHECK(y->d[1 + k] > 0, LL_E_SHAPE, "a window of %ld does not fit in %ld", a->size[k],
              x->d[1 + k]);
    }
    return LL_OK;
}

/* Operands from `first` on: an image, and four of its channels. */
static ll_err check_norm(const ll_infer *i, int first)
{
    const ll_type *x = &i->in[first];
    TRY(ll_check_float(x->dtype, "the image is"));
    for (int k = first + 1; k < first + 5; k++)
        CHECK(i->in[k].dtype == ll_wide(x->dtype) && i->in[k].shape.n == 1 &&
                  i->in[k].shape.d[0] == x->shape.d[3],
              LL_E_SHAPE, "operand %d is not %s of each channel", k,
              ll_dtype_name(ll_wide(x->dtype)));
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    ll_type y = i->in[0];
    TRY(output(i->attr, &i->in[0].shape, &y.shape));
    TRY(check_norm(i, 0));
    i->out[0] = i->out[1] = y;
    i->out[2] = (ll_type){LL_U8, y.shape};
    return LL_OK;
}

static ll_err infer_grad(ll_infer *i)
{
    const ll_type *x = &i->in[3];
    ll_shape y;
    TRY(output(i->attr, &x->shape, &y));
    TRY(check_norm(i, 3));
    for (int k = 0; k < 3; k++)
        CHECK(i->in[k].dtype == (k < 2 ? x->dtype : LL_U8) && ll_shape_equal(&i->in[k].shape, &y),
              LL_E_SHAPE, "operand %d is not of the output's shape and type", k);
    i->out[0] = *x;
    i->out[1] = i->out[2] = (ll_type){x->dtype, i->in[4].shape};
    return LL_OK;
}

/* ---- declarations ---- */

#define ATTRS LL_ATTRS(ll_norm_pool_attr, eps, size, stride, pad)
/* Windows to try: image, output, channels, places and one more, attributes. */
#define WINDOWS(X)                                                                                 \
    X("2,7,5,", "2,3,2,", "3", "5", "size=[2,2], stride=[2,2], pad=[0,0,0,0]")                     \
    X("1,7,8,", "1,4,5,", "5", "10", "size=[3,3], stride=[2,2], pad=[1,1,1,2]")                    \
    X("3,5,6,", "3,3,3,", "16", "10", "size=[3,3], stride=[2,2], pad=[1,1,1,1]")                   \
    X("2,6,9,", "2,3,3,", "8", "5", "size=[1,4], stride=[2,3], pad=[0,0,2,1]")                     \
    X("2,23,29,", "2,11,14,", "72", "10", "size=[3,3], stride=[2,2], pad=[0,0,0,1]")
#define OF(c) "f32[" c "], f32[" c "], f32[" c "], f32[" c "]> "
#define FORWARD(x, y, c, places, a) "f32[" x c "], " OF(c) "{eps=0.1, " a "}",
#define BACKWARD(x, y, c, places, a)                                                               \
    "f32[" y c "], f32[" y c "], u8[" y c "]<" places ", f32[" x c "], " OF(c) "{eps=0.1, " a "}",

static const ll_op pool = {
    LL_GPU_OP(batchnorm_relu_pool, NORM, 5, 3),
    ATTRS,
    .dims = "n__c, c, c, c, c -> n__c, n__c, n__c",
    .wide_in = 15u << 1,
    .infer = infer,
    .expand = expand,
    .trials = {WINDOWS(FORWARD)},
};

static const ll_op pool_grad = {
    LL_GPU_OP(batchnorm_relu_pool_grad, NORM, 8, 3),
    ATTRS,
    .dims = "n__c, n__c, n__c, n__c, c, c, c, c -> n__c, c, c",
    .whole = "n",
    .wide_in = 15u << 4,
    .wide_out = 3u << 1,
    .infer = infer_grad,
    .expand = expand_grad,
    .in_place = 1u << 3,
    .trials = {WINDOWS(BACKWARD)},
};

const ll_op *const ll_ops_batchnorm_relu_pool[] = {&pool, &pool_grad, NULL};

static bool guard(ll_match *m)
{
    const ll_pool_attr *a = (const ll_pool_attr *)ll_match_node(m, "y")->attr;
    ll_shape x = ll_graph_shape(m->g, ll_match_value(m, "x"));
    return fits(&x, a->size, a->stride, a->pad) ||
           ll_match_no(m, "its windows overlap more than twice, or it is too large");
}

/* Of norms whose gradients have taken the relu's in. */
#define WINDOW "size=$size, stride=$stride, pad=$pad"
static const ll_fusion_row rows[] = {
    {.pattern = "z, mean, var = batchnorm_relu(x, gain, bias) {eps=$eps}\n"
                "y, index = max_pool(z) {" WINDOW "}\n"
                "dz = max_pool_grad(dy, index) {" WINDOW ", image=$image}\n"
                "dx, dgain, dbias = batchnorm_relu_grad(dz, x, gain, bias, mean, var) {eps=$eps}",
     .replace =
         "mean, var = batchnorm_stats(x)\n"
         "y, pick, place = batchnorm_relu_pool(x, gain, bias, mean, var) {eps=$eps, " WINDOW "}\n"
         "dx, dgain, dbias = batchnorm_relu_pool_grad(dy, pick, place, x, gain, bias, mean, "
         "var) {eps=$eps, " WINDOW "}",
     .guard = guard,
     .trials = {"x: f32[2,7,8,8], gain: f32[8], bias: f32[8], dy: f32[2,4,4,8] $eps=1e-5 "
                "$size=[3,3]$stride=[2,2]$pad=[1,1,1,1]$image=[7,8]"}},
    {0}};

LL_GPU_FUSION(batchnorm_relu_pool, LATE, .rows = rows)
