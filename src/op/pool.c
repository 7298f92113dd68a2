/* Pooling over windows of an NHWC image.
 *
 *     max_pool       x         -> y, index    index: which place r*S + s of the window, -1: none
 *     max_pool_grad  dy, index -> dx          each dy goes to its window's chosen pixel
 *     max_pool_pick  x, index  -> y           each window's chosen pixel: the reverse of the above
 *     avg_pool       x         -> y           the divisor is the whole window, padding included
 *     avg_pool_grad  dy        -> dx
 *
 * max_pool_grad and max_pool_pick are each other's gradient (the choice is constant almost
 * everywhere), as are avg_pool and avg_pool_grad. A window that is all padding gives 0. The loops h
 * and w are the result's; the other image is read through a window (see op/window.h). */
#include "op/op_int.h"
#include "op/rows.h"
#include "op/window.h"

LL_KERNELS(max_pool, max_pool_grad, max_pool_pick, avg_pool, avg_pool_grad)
extern const ll_solver pool_grad_cpu[];
static const ll_op max_pool, max_pool_grad, max_pool_pick, avg_pool, avg_pool_grad;

static ll_axis axis(const ll_pool_attr *a, int k)
{
    return (ll_axis){a->size[k], a->stride[k], 1, {a->pad[2 * k], a->pad[2 * k + 1]}};
}

/* ---- shapes ---- */

/* The output over an image, and that the attributes make sense. */
static ll_err output(const ll_pool_attr *a, const ll_shape *x, ll_shape *y)
{
    CHECK(x->n == 4, LL_E_SHAPE, "an image of %d dimensions, expected [n,h,w,c]", x->n);
    *y = *x;
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "width" : "height";
        CHECK(a->size[k] >= 1 && a->size[k] <= 1 << 15 && a->stride[k] >= 1, LL_E_ARG,
              "%s: a window of %ld, stride %ld; expected at least 1 of each", name, a->size[k],
              a->stride[k]);
        ll_axis ax = axis(a, k);
        y->d[1 + k] = ll_axis_out(&ax, x->d[1 + k]);
        CHECK(y->d[1 + k] >= 0, LL_E_SHAPE, "%s: a window of %ld does not fit in %ld", name,
              a->size[k], x->d[1 + k]);
    }
    return LL_OK;
}

static ll_err check_index(const ll_type *index, const ll_shape *y)
{
    CHECK(index->dtype == LL_I32 && ll_shape_equal(&index->shape, y), LL_E_SHAPE,
          "the index is not i32 of the output's shape");
    return LL_OK;
}

/* avg_pool, max_pool, max_pool_pick */
static ll_err infer(ll_infer *i)
{
    ll_shape y;
    TRY(ll_check_float(i->in[0].dtype, "the image is"));
    TRY(output((const ll_pool_attr *)i->attr, &i->in[0].shape, &y));
    if (i->n_in == 2) TRY(check_index(&i->in[1], &y));
    i->out[0] = (ll_type){i->in[0].dtype, y};
    if (i->n_out == 2) i->out[1] = (ll_type){LL_I32, y};
    return LL_OK;
}

static ll_err infer_grad(ll_infer *i)
{
    const ll_pool_attr *a = (const ll_pool_attr *)i->attr;
    const ll_shape *dy = &i->in[0].shape;
    TRY(ll_check_float(i->in[0].dtype, "the image is"));
    CHECK(dy->n == 4, LL_E_SHAPE, "an output of %d dimensions, expected [n,h,w,c]", dy->n);
    CHECK(a->image[0] >= 0 && a->image[1] >= 0, LL_E_ARG, "an image of %ld x %ld", a->image[0],
          a->image[1]);
    ll_shape x = {4, {dy->d[0], a->image[0], a->image[1], dy->d[3]}}, y;
    TRY(output(a, &x, &y));
    CHECK(ll_shape_equal(dy, &y), LL_E_SHAPE,
          "an output of %ld x %ld, expected %ld x %ld (of an image of %ld x %ld)", dy->d[1],
          dy->d[2], y.d[1], y.d[2], x.d[1], x.d[2]);
    if (i->n_in == 2) TRY(check_index(&i->in[1], &y));
    i->out[0] = (ll_type){i->in[0].dtype, x};
    return LL_OK;
}

/* ---- parts ---- */

static ll_err split(const void *attr, const ll_loops *l, int loop, ll_range range,
                    const ll_type *in, ll_part *part)
{
    int k = ll_axis_of(l, loop);
    if (k < 0) return LL_OK;
    ll_axis ax = axis((const ll_pool_attr *)attr, k);
    part->in[0] = ll_axis_image_part(&ax, range, in[0].shape.d[1 + k]);
    memcpy(&((ll_pool_attr *)part->attr)->pad[2 * k], ax.pad, sizeof ax.pad);
    return LL_OK;
}

static ll_err split_grad(const void *attr, const ll_loops *l, int loop, ll_range range,
                         const ll_type *in, ll_part *part)
{
    int k = ll_axis_of(l, loop);
    if (k < 0) return LL_OK;
    ll_pool_attr *mine = (ll_pool_attr *)part->attr;
    ll_axis ax = axis((const ll_pool_attr *)attr, k);
    part->in[0] = part->in[1] = ll_axis_out_part(&ax, range, in[0].shape.d[1 + k]);
    memcpy(&mine->pad[2 * k], ax.pad, sizeof ax.pad);
    mine->image[k] = range.to - range.from;
    return LL_OK;
}

/* ---- gradients ---- */

/* By an op that makes an image of the shape of x, or (x NULL) one that does not. */
static void emit(ll_bwd *b, const ll_op *op, const ll_val *x, const ll_val *index)
{
    ll_pool_attr a = *(const ll_pool_attr *)b->attr;
    if (!b->dout[0].id) return;
    for (int k = 0; k < 2; k++) a.image[k] = x ? ll_graph_shape(b->g, *x).d[1 + k] : 0;
    ll_val in[2] = {b->dout[0], index ? *index : (ll_val){0}};
    b->din[0] = ll_emit(b->g, op, &a, in, index ? 2 : 1);
}

#define GRAD(name, op, x, index)                                                                   \
    static void grad_##name(ll_bwd *b)                                                             \
    {                                                                                              \
        emit(b, &op, x, index);                                                                    \
    }
GRAD(max, max_pool_grad, &b->in[0], &b->out[1])
GRAD(max_grad, max_pool_pick, NULL, &b->in[1])
GRAD(pick, max_pool_grad, &b->in[0], &b->in[1])
GRAD(avg, avg_pool_grad, &b->in[0], NULL)
GRAD(avg_grad, avg_pool, NULL, NULL)

/* ---- builder; those of all dimensions: op/spatial.c ---- */

/* Rounding the output size up is more padding at the end, unless the added window would start
 * beyond the image and its leading padding. */
static void pad_to_ceil(ll_axis *ax, int64_t image)
{
    int64_t n = ll_axis_out(ax, image);
    int64_t used = (n - 1) * ax->stride + ax->taps;
    if (used < image + ax->pad[0] + ax->pad[1] && n * ax->stride < image + ax->pad[0])
        ax->pad[1] = n * ax->stride + ax->taps - image - ax->pad[0];
}

ll_val ll_pool2d(ll_graph *g, ll_val x, const ll_window *w, bool max)
{
    const char *op = max ? "max_pool" : "avg_pool";
    ll_shape s = ll_graph_shape(g, x);
    ll_pool_attr a = {0};
    for (int k = 0; k < 2; k++) {
        int64_t last = w->pad[k] + w->pad_more[k];
        ll_axis ax = {w->size[k], w->stride[k] ? w->stride[k] : w->size[k], 1, {w->pad[k], last}};
        if (ax.taps < 1 || ax.stride < 1 || w->pad[k] < 0 || w->pad[k] >= ax.taps || last < 0 ||
            last >= ax.taps || s.d[1 + k] + w->pad[k] + last < ax.taps)
            return ll_reject(
                g, LL_E_SHAPE,
                "%s%s: %s: a window of %ld, stride %ld, padding %ld and %ld, on an image of "
                "%ld",
                ll_scope(g), op, k ? "width" : "height", ax.taps, ax.stride, w->pad[k], last,
                s.d[1 + k]);
        if (w->ceil) pad_to_ceil(&ax, s.d[1 + k]);
        a.size[k] = ax.taps;
        a.stride[k] = ax.stride;
        memcpy(&a.pad[2 * k], ax.pad, sizeof ax.pad);
    }
    return LL_EMIT(g, max ? &max_pool : &avg_pool, &a, x);
}

/* ---- declarations ---- */

/* Windows to try: image, output, places of a window, height and width of the image, attributes. */
#define WINDOWS(X)                                                                                 \
    X("2,7,5,3", "2,3,2,3", "4", "7,5", "size=[2,2], stride=[2,2], pad=[0,0,0,0]")                 \
    X("1,7,8,5", "1,4,5,5", "9", "7,8", "size=[3,3], stride=[2,2], pad=[1,1,1,2]")                 \
    X("2,1,6,1", "2,1,4,1", "4", "1,6", "size=[1,4], stride=[3,1], pad=[0,0,1,0]")                 \
    X("2,3,5,1", "2,1,1,1", "15", "3,5", "size=[3,5], stride=[3,5], pad=[0,0,0,0]")                \
    X("0,4,4,2", "0,3,3,2", "4", "4,4", "size=[2,2], stride=[1,1], pad=[0,0,0,0]")                 \
    X("1,5,6,2", "1,5,3,2", "6", "5,6", "size=[2,3], stride=[1,2], pad=[-1,2,2,-1]")               \
    X("2,5,6,16", "2,3,3,16", "9", "5,6", "size=[3,3], stride=[2,2], pad=[1,1,1,1]")
#define IMAGE(x, y, places, size, a) "f32[" x "] {" a "}",
#define PICK(x, y, places, size, a) "f32[" x "], i32[" y "]<" places " {" a "}",
#define AVG_GRAD(x, y, places, size, a) "f32[" y "] {" a ", image=[" size "]}",
#define MAX_GRAD(x, y, places, size, a)                                                            \
    "f32[" y "], i32[" y "]<" places " {" a ", image=[" size "]}",
#define WINDOW LL_ATTRS(ll_pool_attr, size, stride, pad, image), .window = "hw"
#define POOL_OP(fn, operands, results) LL_REF_OP(fn, POOL, operands, results, .parts = true), WINDOW
#define GRAD_OP(fn, operands)                                                                      \
    LL_OP_BY(fn, POOL, operands, 1, pool_grad_cpu), .ref = fn##_ref, WINDOW
#define FORWARD .infer = infer, .split = split
#define BACKWARD .infer = infer_grad, .split = split_grad

static const ll_op max_pool = {
    POOL_OP(max_pool, 1, 2),    .dims = "nhwc -> nhwc, nhwc", FORWARD, .grad = grad_max, .flop = 1,
    .trials = {WINDOWS(IMAGE)},
};

static const ll_op max_pool_grad = {
    GRAD_OP(max_pool_grad, 2),
    .dims = "nhwc, nhwc -> nhwc",
    BACKWARD,
    .grad = grad_max_grad,
    .flop = 1,
    .trials = {WINDOWS(MAX_GRAD)},
};

static const ll_op max_pool_pick = {
    POOL_OP(max_pool_pick, 2, 1), .dims = "nhwc, nhwc -> nhwc", FORWARD, .grad = grad_pick,
    .trials = {WINDOWS(PICK)},
};

static const ll_op avg_pool = {
    POOL_OP(avg_pool, 1, 1),    .dims = "nhwc -> nhwc", FORWARD, .grad = grad_avg, .flop = 1,
    .trials = {WINDOWS(IMAGE)},
};

static const ll_op avg_pool_grad = {
    GRAD_OP(avg_pool_grad, 1),
    .dims = "nhwc -> nhwc",
    BACKWARD,
    .grad = grad_avg_grad,
    .flop = 1,
    .trials = {WINDOWS(AVG_GRAD)},
};

const ll_op *const ll_ops_pool[] = {&max_pool, &max_pool_grad, &max_pool_pick,
                                    &avg_pool, &avg_pool_grad, NULL};
