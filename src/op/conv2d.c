/* conv2d and its two gradients. Images NHWC, filters FRSC.
 *
 *     conv2d      x, w   -> y      y[n,h,w,f]  = sum over r,s,c of x[n,h',w',c] w[f,r,s,c]
 *     conv2d_dx   dy, w  -> dx     where h' = h*stride - pad + r*dilation, and w' alike
 *     conv2d_dw   dy, x  -> dw
 *
 * All three are the same sum of products x w dy, solved for one of them; so each one's gradients
 * are the other two, and gradients of any order stay within the three.
 * The loops h and w are those of the result (of dy in conv2d_dw); the image is read through a
 * window. With groups, channels and filters go together in blocks that the plain rule cannot cut:
 * such nodes use loops g (filters) and d (channels of a group), which are whole.
 * Operands of type bf16 give an f32 result. */
#include "op/op_int.h"
#include "op/window.h"

ll_kernel conv2d_ref, conv2d_dx_ref, conv2d_dw_ref;
extern const ll_solver conv2d_cpu[], conv2d_dx_cpu[], conv2d_dw_cpu[];
extern const ll_solver conv2d_cuda[], conv2d_dx_cuda[], conv2d_dw_cuda[];
static const ll_op conv2d, conv2d_dx, conv2d_dw;

/* ---- windows ---- */

static ll_axis axis(const ll_conv_attr *a, int k, int64_t taps)
{
    return (ll_axis){taps, a->stride[k], a->dilation[k], {a->pad[2 * k], a->pad[2 * k + 1]}};
}

static void set_axis(ll_conv_attr *a, int k, const ll_axis *x)
{
    a->pad[2 * k] = x->pad[0];
    a->pad[2 * k + 1] = x->pad[1];
}

/* ---- shapes ---- */

/* Checks what the three have in common: an image [n,h,w,c], a filter [f,r,s,c/groups] and the
 * other image [n,h',w',f], one of which is the result. */
static ll_err set_result(ll_infer *i, const ll_shape *x, const ll_shape *w, const ll_shape *y,
                         const ll_shape *result)
{
    const ll_conv_attr *a = (const ll_conv_attr *)i->attr;
    ll_dtype s = i->in[0].dtype, t = i->in[1].dtype;
    CHECK(s == t, LL_E_ARG, "operands are %s and %s, expected one type", ll_dtype_name(s),
          ll_dtype_name(t));
    CHECK(ll_dtype_is_float(t), LL_E_ARG, "operands are %s, expected a float type",
          ll_dtype_name(t));
    CHECK(a->groups >= 1, LL_E_ARG, "%ld groups, expected at least 1", a->groups);
    CHECK(x->d[3] % a->groups == 0 && w->d[0] % a->groups == 0, LL_E_SHAPE,
          "%ld channels and %ld filters do not divide into %ld groups", x->d[3], w->d[0],
          a->groups);
    CHECK(w->d[3] == x->d[3] / a->groups, LL_E_SHAPE,
          "filters of %ld channels, expected %ld (%ld of the image in %ld groups)", w->d[3],
          (x->d[3] / a->groups), x->d[3], a->groups);
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "width" : "height";
        CHECK(a->stride[k] >= 1 && a->dilation[k] >= 1 && w->d[1 + k] >= 1, LL_E_ARG,
              "%s: stride %ld, dilation %ld, filter %ld; expected at least 1 of each", name,
              a->stride[k], a->dilation[k], w->d[1 + k]);
        ll_axis ax = axis(a, k, w->d[1 + k]);
        int64_t n = ll_axis_out(&ax, x->d[1 + k]);
        CHECK(n >= 0 && n == y->d[1 + k], LL_E_SHAPE, "%s: %ld rows of result from %ld, not %ld",
              name, n, x->d[1 + k], y->d[1 + k]);
    }
    TRY(ll_check_bits(a->bits, t));
    i->out[0] = (ll_type){a->narrow ? t : ll_wide(t), *result};
    return LL_OK;
}

static ll_err check_dims(const ll_infer *i, const char *first, const char *second)
{
    const char *want[2] = {first, second};
    for (int k = 0; k < 2; k++)
        CHECK(i->in[k].shape.n == 4, LL_E_SHAPE, "operand %d has %d dimensions, expected %s", k,
              i->in[k].shape.n, want[k]);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_conv_attr *a = (const ll_conv_attr *)i->attr;
    TRY(check_dims(i, "[n,h,w,c]", "[f,r,s,c]"));
    const ll_shape *x = &i->in[0].shape, *w = &i->in[1].shape;
    ll_shape y = {4, {x->d[0], 0, 0, w->d[0]}};
    for (int k = 0; k < 2; k++) {
        if (a->stride[k] < 1) continue; /* set_result tells */
        ll_axis ax = axis(a, k, w->d[1 + k]);
        y.d[1 + k] = ll_axis_out(&ax, x->d[1 + k]);
    }
    return set_result(i, x, w, &y, &y);
}

static ll_err infer_dx(ll_infer *i)
{
    const ll_conv_attr *a = (const ll_conv_attr *)i->attr;
    TRY(check_dims(i, "[n,h,w,f]", "[f,r,s,c]"));
    const ll_shape *y = &i->in[0].shape, *w = &i->in[1].shape;
    CHECK(a->size[0] >= 0 && a->size[1] >= 0, LL_E_ARG, "an image of %ld x %ld", a->size[0],
          a->size[1]);
    CHECK(y->d[3] == w->d[0], LL_E_SHAPE, "%ld channels for %ld filters", y->d[3], w->d[0]);
    CHECK(a->groups >= 1 && (a->groups == 1 || a->groups <= w->d[0]), LL_E_ARG,
          "%ld groups of %ld filters", a->groups, w->d[0]);
    ll_shape x = {4, {y->d[0], a->size[0], a->size[1], w->d[3] * a->groups}};
    return set_result(i, &x, w, y, &x);
}

static ll_err infer_dw(ll_infer *i)
{
    const ll_conv_attr *a = (const ll_conv_attr *)i->attr;
    TRY(check_dims(i, "[n,h,w,f]", "[n,h,w,c]"));
    const ll_shape *y = &i->in[0].shape, *x = &i->in[1].shape;
    CHECK(a->groups >= 1, LL_E_ARG, "%ld groups, expected at least 1", a->groups);
    ll_shape w = {4, {y->d[3], a->size[0], a->size[1], x->d[3] / a->groups}};
    return set_result(i, x, &w, y, &w);
}

/* ---- loops, parts, cost ---- */

#define LOOPS(name, plain, grouped)                                                                \
    static ll_err name(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])            \
    {                                                                                              \
        strcpy(dims, ((const ll_conv_attr *)attr)->groups > 1 ? grouped : plain);                  \
        return LL_OK;                                                                              \
    }
LOOPS(loops, "nhwc, frsc -> nhwf", "nhw_, grsd -> nhwg")
LOOPS(loops_dx, "nhwf, frsc -> nhwc", "nhwg, grsd -> nhw_")
LOOPS(loops_dw, "nhwf, nhwc -> frsc", "nhwg, nhw_ -> grsd")

/* A range of outputs, of the convolution or of dy: the rows of the image that it reads. */
static ll_err split_image(const ll_loops *l, int loop, ll_range range, const ll_type *in, int image,
                          ll_part *part)
{
    int k = ll_axis_of(l, loop);
    if (k < 0) return LL_OK;
    ll_conv_attr *a = (ll_conv_attr *)part->attr;
    ll_axis ax = axis(a, k, image ? a->size[k] : in[1].shape.d[1 + k]);
    part->in[image] = ll_axis_image_part(&ax, range, in[image].shape.d[1 + k]);
    set_axis(a, k, &ax);
    a->at[k] += range.from;
    return LL_OK;
}

static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *in,
                    ll_part *part)
{
    return split_image(l, loop, range, in, 0, part);
}

static ll_err split_dw(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *in,
                       ll_part *part)
{
    return split_image(l, loop, range, in, 1, part);
}

static ll_err split_dx(const void *attr, const ll_loops *l, int loop, ll_range range,
                       const ll_type *in, ll_part *part)
{
    int k = ll_axis_of(l, loop);
    if (k < 0) return LL_OK;
    ll_conv_attr *mine = (ll_conv_attr *)part->attr;
    ll_axis ax = axis((const ll_conv_attr *)attr, k, in[1].shape.d[1 + k]);
    part->in[0] = ll_axis_out_part(&ax, range, in[0].shape.d[1 + k]);
    set_axis(mine, k, &ax);
    mine->size[k] = range.to - range.from;
    mine->at[k] += range.from;
    return LL_OK;
}

/* The image's gradient multiplies as often as the convolution itself: over the rows of dy. */
static double cost_dx(const void *attr, const ll_loops *l)
{
    const ll_conv_attr *a = (const ll_conv_attr *)attr;
    double points = 2;
    int64_t taps[2] = {1, 1};
    for (int i = 0; i < l->n; i++) {
        if (l->letter[i] == 'r') taps[0] = l->extent[i];
        if (l->letter[i] == 's') taps[1] = l->extent[i];
        if (ll_axis_of(l, i) < 0) points *= (double)l->extent[i];
    }
    for (int k = 0; k < 2; k++) {
        ll_axis ax = axis(a, k, taps[k]);
        points *= (double)ll_axis_out(&ax, a->size[k]);
    }
    return points;
}

/* ---- gradients ---- */

typedef enum direction { CONV, CONV_DX, CONV_DW } direction;

/* One of the three on operands brought to one type, the result brought to it too. */
static ll_val emit(ll_bwd *b, direction d, ll_val p, ll_val q, ll_val like)
{
    static const ll_op *const ops[] = {&conv2d, &conv2d_dx, &conv2d_dw};
    ll_graph *g = b->g;
    ll_conv_attr a = *(const ll_conv_attr *)b->attr;
    ll_dtype t = ll_graph_dtype(g, like);
    ll_shape s = ll_graph_shape(g, like);
    for (int k = 0; k < 2; k++) a.size[k] = d == CONV ? 0 : s.d[1 + k], a.at[k] = 0;
    if (p.id && ll_graph_dtype(g, p) != t) p = ll_cast(g, p, t);
    if (q.id && ll_graph_dtype(g, q) != t) q = ll_cast(g, q, t);
    ll_val v = LL_EMIT(g, ops[d], &a, p, q);
    return v.id && ll_graph_dtype(g, v) != t ? ll_cast(g, v, t) : v;
}

/* d: of the result; x, y: the operands, whose gradients are p and q. */
#define GRAD(name, p, q)                                                                           \
    static void name(ll_bwd *b)                                                                    \
    {                                                                                              \
        ll_val d = b->dout[0], x = b->in[0], y = b->in[1];                                         \
        b->din[0] = p;                                                                             \
        b->din[1] = q;                                                                             \
    }
GRAD(grad, emit(b, CONV_DX, d, y, x), emit(b, CONV_DW, d, x, y))
GRAD(grad_dx, emit(b, CONV, d, y, x), emit(b, CONV_DW, x, d, y))
GRAD(grad_dw, emit(b, CONV, y, d, x), emit(b, CONV_DX, x, d, y))

/* ---- the largest terms: of what a window has and what a filter has, wherever in it ---- */

static ll_peaks_attr window_of(const ll_conv_attr *a, const int64_t *size)
{
    ll_peaks_attr w = {.groups = a->groups, .size = {size[0], size[1]}};
    memcpy(w.stride, a->stride, sizeof w.stride);
    memcpy(w.pad, a->pad, sizeof w.pad);
    memcpy(w.dilation, a->dilation, sizeof w.dilation);
    return w;
}

/* x: levels of windows. In groups, of whole ones: their filters [f] one by one. */
static ll_val reach_of(ll_graph *g, const ll_conv_attr *a, const char *spec, ll_val x, ll_val w,
                       int enough)
{
    if (a->groups == 1) return ll_reach(g, spec, x, w, enough);
    w = ll_reshape(g, w, LL_SHAPE(a->groups, ll_graph_shape(g, w).d[0] / a->groups));
    return ll_reach(g, "nhwg,ge->nhwge", x, w, enough);
}

static ll_val reach(ll_graph *g, const void *attr, const ll_type *in, const ll_val *level,
                    int enough)
{
    const ll_conv_attr *a = (const ll_conv_attr *)attr;
    ll_peaks_attr w = window_of(a, in[1].shape.d + 1);
    return reach_of(g, a, "nhwc,fc->nhwf", ll_peaks(g, level[0], &w), level[1], enough);
}

static ll_val reach_dx(ll_graph *g, const void *attr, const ll_type *in, const ll_val *level,
                       int enough)
{
    const ll_conv_attr *a = (const ll_conv_attr *)attr;
    ll_peaks_attr w = window_of(a, in[1].shape.d + 1);
    w.back = 1;
    memcpy(w.image, a->size, sizeof w.image);
    return reach_of(g, a, "nhwf,fc->nhwc", ll_peaks(g, level[0], &w), level[1], enough);
}

static ll_val reach_dw(ll_graph *g, const void *attr, const ll_type *, const ll_val *level,
                       int enough)
{
    const ll_conv_attr *a = (const ll_conv_attr *)attr;
    ll_peaks_attr w = window_of(a, a->size);
    ll_val x = ll_peaks(g, level[1], &w);
    return ll_reach(g, a->groups > 1 ? "nhwf,nhwg->fg" : "nhwf,nhwc->fc", level[0], x, enough);
}

/* ---- builders; of other dimensions and layers: op/spatial.c ---- */

/* The two axes of a window; false: rejected. */
static bool attr_of(ll_graph *g, const char *op, ll_val x, ll_val filter, const ll_conv *o,
                    ll_conv_attr *a)
{
    static const ll_conv plain;
    if (!o) o = &plain;
    *a = (ll_conv_attr){.groups = o->groups ? o->groups : 1};
    for (int k = 0; k < 2; k++) {
        a->stride[k] = o->stride[k] ? o->stride[k] : 1;
        a->dilation[k] = o->dilation[k] ? o->dilation[k] : 1;
        a->pad[2 * k] = o->pad[k];
        a->pad[2 * k + 1] = o->pad[k] + o->pad_more[k];
        if (o->pad[k] < 0 || a->pad[2 * k + 1] < 0)
            ll_reject(g, LL_E_ARG, "%s%s: padding of %ld before and %ld after", ll_scope(g), op,
                      a->pad[2 * k], a->pad[2 * k + 1]);
    }
    if (o->stride[2] || o->pad[2] || o->dilation[2] || o->pad_more[2])
        ll_reject(g, LL_E_ARG, "%s%s has two dimensions, the window has a third", ll_scope(g), op);
    int n[2] = {ll_graph_shape(g, x).n, ll_graph_shape(g, filter).n};
    if (x.id && filter.id && (n[0] != 4 || n[1] != 4))
        ll_reject(g, LL_E_SHAPE,
                  "%s%s: an image of %d dimensions and a filter of %d, expected [n,h,w,c] and "
                  "[.,r,s,.]; [n,d,h,w,c] is conv3d's and [n,l,c] conv1d's",
                  ll_scope(g), op, n[0], n[1]);
    return !ll_rejected(g) && x.id && filter.id;
}

ll_val ll_conv2d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts)
{
    ll_conv_attr a;
    if (!attr_of(g, "conv2d", x, filter, opts, &a)) return LL_EMIT(g, &conv2d, &a, x, filter);
    ll_shape image = ll_graph_shape(g, x), f = ll_graph_shape(g, filter);
    for (int k = 0; k < 2; k++) {
        ll_axis ax = axis(&a, k, f.d[1 + k]);
        if (a.stride[k] >= 1 && ll_axis_out(&ax, image.d[1 + k]) < 1) {
            return ll_reject(
                g, LL_E_SHAPE,
                "%sconv2d: a filter of %ld x %ld on an image of %ld x %ld, padding %ld x %ld",
                ll_scope(g), f.d[1], f.d[2], image.d[1], image.d[2], a.pad[0], a.pad[2]);
        }
    }
    return LL_EMIT(g, &conv2d, &a, x, filter);
}

ll_val ll_conv2d_transpose(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts,
                           const int64_t *out_pad)
{
    ll_conv_attr a;
    if (!attr_of(g, "conv_transpose", x, filter, opts, &a))
        return LL_EMIT(g, &conv2d_dx, &a, x, filter);
    for (int k = 0; k < 2; k++) {
        int64_t n = ll_graph_shape(g, x).d[1 + k], more = out_pad ? out_pad[k] : 0;
        ll_axis ax = axis(&a, k, ll_graph_shape(g, filter).d[1 + k]);
        int64_t most = ax.stride > ax.dilation ? ax.stride : ax.dilation;
        a.size[k] = (n - 1) * ax.stride - ax.pad[0] - ax.pad[1] + ll_axis_span(&ax) + more;
        if (n < 1 || more < 0 || more >= most || a.size[k] < 1) {
            return ll_reject(
                g, LL_E_SHAPE,
                "%sconv_transpose: %ld from %ld, output padding %ld; expected at least 1 of each, "
                "and the output padding less than the stride or dilation, %ld",
                ll_scope(g), a.size[k], n, more, most);
        }
        if (more >= ax.stride) a.pad[2 * k + 1] -= more; /* or there would be one more of x */
    }
    return LL_EMIT(g, &conv2d_dx, &a, x, filter);
}

/* ---- declarations ---- */

static const ll_attr_field attrs[] = {LL_FIELD_OF(ll_conv_attr, stride),
                                      LL_FIELD_OF(ll_conv_attr, pad),
                                      LL_FIELD_OF(ll_conv_attr, dilation),
                                      LL_FIELD_OF(ll_conv_attr, groups),
                                      LL_FIELD_OF(ll_conv_attr, size),
                                      LL_FIELD_OF(ll_conv_attr, narrow),
                                      LL_FIELD_OF(ll_conv_attr, at),
                                      LL_FIELD(ll_conv_attr, bits, LL_A_BITS),
                                      {0}};

#define CONV_OP(fn)                                                                                \
    .name = #fn, .work = LL_WORK_CONVOLUTION, .model = 1, .n_in = 2, .n_out = 1,                   \
    .attr_size = sizeof(ll_conv_attr), .attrs = attrs, .whole = "rsgd", .window = "hw", .flop = 2, \
    .f64 = true, .ref = fn##_ref, .cpu = fn##_cpu, .cuda = LL_GPU(fn##_cuda)

/* To try: image, filter, output; what the window is; the image's size, the filter's. */
#define WINDOWS(X)                                                                                 \
    X("2,7,5,3", "4,3,3,3", "2,7,5,4", "stride=[1,1], pad=[1,1,1,1], dilation=[1,1], groups=1",    \
      "7,5", "3,3")                                                                                \
    X("1,8,9,1", "2,5,4,1", "1,6,5,2", "stride=[1,2], pad=[2,0,1,3], dilation=[1,1], groups=1",    \
      "8,9", "5,4")                                                                                \
    X("3,9,7,2", "3,3,2,2", "3,3,2,3", "stride=[2,3], pad=[0,1,1,0], dilation=[2,3], groups=1",    \
      "9,7", "3,2")                                                                                \
    X("2,5,6,6", "9,1,2,2", "2,5,3,9", "stride=[1,2], pad=[0,0,0,0], dilation=[1,1], groups=3",    \
      "5,6", "1,2")                                                                                \
    X("2,6,5,8", "8,1,1,8", "2,3,3,8", "stride=[2,2], pad=[0,0,0,0], dilation=[1,1], groups=1",    \
      "6,5", "1,1")                                                                                \
    X("0,4,4,2", "3,3,3,2", "0,4,4,3", "stride=[1,1], pad=[1,1,1,1], dilation=[1,1], groups=1",    \
      "4,4", "3,3")                                                                                \
    X("1,6,5,2", "2,3,2,2", "1,5,5,2", "stride=[1,1], pad=[-1,2,3,-2], dilation=[1,1], groups=1",  \
      "6,5", "3,2")                                                                                \
    X("2,9,10,3", "4,5,3,3", "2,5,5,4", "stride=[2,2], pad=[2,2,1,1], dilation=[1,1], groups=1",   \
      "9,10", "5,3")
#define FORWARD(x, f, y, a, image, size) "f32[" x "], f32[" f "] {" a "}",
#define TO_IMAGE(x, f, y, a, image, size) "f32[" y "], f32[" f "] {" a ", size=[" image "]}",
#define TO_FILTER(x, f, y, a, image, size) "f32[" y "], f32[" x "] {" a ", size=[" size "]}",
#define SAME " {stride=[1,1], pad=[1,1,1,1], dilation=[1,1], groups=1"

static const ll_op conv2d = {
    CONV_OP(conv2d),
    .loops = loops,
    .sum = "c",
    .infer = infer,
    .split = split,
    .grad = grad,
    .reach = reach,
    .trials = {WINDOWS(FORWARD) "f32[2,5,6,8], f32[16,3,3,8]" SAME ", narrow=1}",
               "f64[2,7,5,3], f64[4,3,3,3]" SAME ", bits=34}"},
};

static const ll_op conv2d_dx = {
    CONV_OP(conv2d_dx),
    .loops = loops_dx,
    .sum = "f",
    .infer = infer_dx,
    .split = split_dx,
    .grad = grad_dx,
    .reach = reach_dx,
    .cost = cost_dx,
    .trials = {WINDOWS(TO_IMAGE) "f32[2,5,6,16], f32[16,3,3,8]" SAME ", size=[5,6], narrow=1}",
               "f64[2,7,5,4], f64[4,3,3,3]" SAME ", size=[7,5], bits=35}"},
};

static const ll_op conv2d_dw = {
    CONV_OP(conv2d_dw),
    .loops = loops_dw,
    .sum = "nhw",
    .infer = infer_dw,
    .split = split_dw,
    .grad = grad_dw,
    .reach = reach_dw,
    .trials = {WINDOWS(TO_FILTER) "f64[2,7,5,4], f64[2,7,5,3]" SAME ", size=[3,3], bits=36}"},
};

const ll_op *const ll_ops_conv2d[] = {&conv2d, &conv2d_dx, &conv2d_dw, NULL};
