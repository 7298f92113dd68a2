/* conv2d.cu: convolutions and their gradients through cuDNN, NHWC. Where cuDNN wants other tensors,
 * copies of them lie in scratch (struct form):
 *
 * - its 16-bit engines read 8 channels at a time: others are filled up with zeros;
 * - an image of few channels read with stride s (the first layer) is folded: the pixels that a row
 *   of the filter reads, neighbours in memory, and those of the s - 1 rows below become the
 *   channels of one; filters alike. Columns are gone then, and the stride is 1: ResNet's 7x7 over 3
 *   channels with stride 2 becomes 4x1 over 42. Results cannot overlap so: not for dx;
 * - padding that differs between the two ends of an axis, or is negative (parts of a cut image), is
 *   put into the image or cut off it;
 * - of bf16, filters' gradients are made in bf16 and widened to f32: cuDNN sums in f32, but its
 *   engines that write f32 are 5 to 40 times slower.
 *
 * Of f32 without tf32, one tap (a 1x1 filter) is a product (conv2d_tap.cu): cuDNN has no good
 * engines. Nor has it for a few channels of small images of f32 (conv2d_small.cu).
 *
 * Plans are chosen by time at the first run (dnn.cuh). Their workspace is bounded: by the bytes of
 * the three tensors and ROOM, and by MOST_WORKSPACE.
 *
 * What is left (f64, empty tensors, 16-bit groups of odd sizes, what cuDNN has no engine for) runs
 * on a plain kernel: a thread for each element of the result; which is told. */
#include "kern/cuda/conv2d_small.cuh"
#include "kern/cuda/dnn.cuh"
#include "kern/notes.h"

#include <string.h>

enum { ID_X = 1, ID_W, ID_Y };
static const int result_of[3] = {2, 0, 1}; /* of image, filter, output */
static const size_t ROOM = (size_t)16 << 20, MOST_WORKSPACE = (size_t)256 << 20;

typedef struct conv { /* a key, compared as bytes: no padding */
    enum which which;
    ll_dtype t, out;
    int tf32;
    ll_conv_attr a;
    int64_t x[4], w[4], y[4];
} conv;

static_assert(sizeof(conv) == 16 + sizeof(ll_conv_attr) + 12 * sizeof(int64_t), "no padding");

/* t: image, filter, output, or their gradients. */
static conv conv_of(const ll_kcall *c, enum which which, const ll_tensor *t[3])
{
    conv v;
    t[0] = which == FORWARD ? &c->in[0] : which == IMAGE ? &c->out[0] : &c->in[1];
    t[1] = which == FILTER ? &c->out[0] : &c->in[1];
    t[2] = which == FORWARD ? &c->out[0] : &c->in[0];
    v.which = which;
    v.t = c->in[0].dtype;
    v.out = c->out[0].dtype;
    v.tf32 = c->tf32;
    v.a = *(const ll_conv_attr *)c->attr;
    memcpy(v.x, t[0]->shape.d, sizeof v.x);
    memcpy(v.w, t[1]->shape.d, sizeof v.w);
    memcpy(v.y, t[2]->shape.d, sizeof v.y);
    return v;
}

/* One of the three tensors, as it is (ours) and as cuDNN has it (theirs). Their pixel [i,j] has
 * `fold` runs of `run` numbers, as they lie in memory, from our rows i fold + shift[0] and the next
 * ones, column j step + shift[1] on; then zeros. */
typedef struct side {
    const int64_t *ours, *theirs;
    ll_dtype our_type, their_type;
    int64_t fold, run, step, shift[2];
} side;

/* A convolution and the one that cuDNN runs for it. */
typedef struct form {
    conv v, d;
    int64_t fold;                /* 1: not */
    int64_t image[2], filter[2]; /* shifts */
} form;

/* Few channels, and a stride that the filter overlaps: folding wastes little. */
static bool may_fold(const conv *v)
{
    int64_t s = v->a.stride[0];
    bool fits = v->t == LL_BF16 || v->t == LL_F16;
    fits &= v->which != IMAGE && v->a.groups == 1 && v->w[3] < 8 && v->w[3] * v->w[2] * s <= 256;
    fits &= s > 1 && s == v->a.stride[1];
    for (int k = 0; k < 2; k++)
        fits &= v->a.dilation[k] == 1 && v->a.pad[2 * k] >= 0 && v->w[1 + k] >= s;
    return fits;
}

/* Rows: the image's begin at a multiple of s before the padding, so that filters get as many rows
 * of zeros in front. */
static void fold(form *f)
{
    int64_t s = f->fold = f->v.a.stride[0];
    int64_t before = f->v.a.pad[0], lead = ll_round_up(before, s), front = lead - before;
    f->d.w[1] = ll_ceil_div(f->v.w[1] + front, s);
    f->d.w[2] = 1;
    f->d.x[1] = f->v.y[1] + f->d.w[1] - 1;
    f->d.x[2] = f->v.y[2];
    f->image[0] = -lead;
    f->image[1] = -f->v.a.pad[2];
    f->filter[0] = -front;
    for (int i = 0; i < 4; i++) f->d.a.pad[i] = 0;
    f->d.a.stride[0] = f->d.a.stride[1] = 1;
}

/* Equal padding at both ends; the rest is part of the image. */
static void even_padding(form *f)
{
    for (int k = 0; k < 2; k++) {
        int64_t *pad = &f->d.a.pad[2 * k], both = pad[0] < pad[1] ? pad[0] : pad[1];
        if (both < 0) both = 0;
        f->d.x[1 + k] += pad[0] + pad[1] - 2 * both;
        f->image[k] = both - pad[0];
        pad[0] = pad[1] = both;
    }
}

/* False: cuDNN is not for this one. */
static bool for_cudnn(const conv *v, bool folded, form *f)
{
    bool narrow = v->t == LL_BF16 || v->t == LL_F16;
    memset(f, 0, sizeof *f);
    f->v = f->d = *v;
    f->fold = 1;
    /* Shapes say it: equal ones share a plan. */
    f->d.a.size[0] = f->d.a.size[1] = f->d.a.narrow = 0;
    if (v->t != LL_F32 && !narrow) return false;
    if (folded)
        fold(f);
    else
        even_padding(f);
    if (narrow && v->a.groups == 1) {
        int64_t c = f->fold > 1 ? v->w[3] * v->w[2] * f->fold : v->w[3];
        f->d.x[3] = f->d.w[3] = ll_round_up(c, 8);
        f->d.y[3] = f->d.w[0] = ll_round_up(v->w[0], 8);
    }
    if (v->which == FILTER && v->t == LL_BF16) f->d.out = LL_BF16;
    for (int i = 0; i < 4; i++)
        if (f->d.x[i] <= 0 || f->d.w[i] <= 0 || f->d.y[i] <= 0 || v->x[i] <= 0) return false;
    return !narrow || (f->d.w[3] % 8 == 0 && f->d.w[0] / f->d.a.groups % 8 == 0);
}

/* One tap, of f32. */
static bool is_tap(const conv *v, tap *t)
{
    *t = tap{
        v->x[0], {v->x[1], v->x[2]}, {v->y[1], v->y[2]}, {v->a.stride[0], v->a.stride[1]}, v->x[3],
        v->y[3]};
    bool is = v->t == LL_F32 && v->out == LL_F32 && !v->tf32 && v->a.groups == 1;
    is &= v->w[1] == 1 && v->w[2] == 1;
    for (int k = 0; k < 4; k++) is &= v->a.pad[k] == 0 && v->x[k] > 0 && v->y[k] > 0;
    for (int k = 0; k < 2; k++) is &= ll_ceil_div(t->x[k], t->stride[k]) == t->y[k];
    return is;
}

/* A few channels of small images, of f32. */
static bool is_small(const conv *v, small_conv *s)
{
    bool is = v->t == LL_F32 && v->out == LL_F32 && v->a.groups == 1 && v->a.bits == 0;
    for (int k = 0; k < 4; k++)
        is &= v->x[k] > 0 && v->y[k] > 0 && v->w[k] > 0 && v->x[k] <= 4096 && v->y[k] <= 4096;
    if (!is) return false;
    s->n = (int)v->x[0], s->channels = (int)v->x[3], s->filters = (int)v->y[3];
    for (int k = 0; k < 2; k++) {
        s->x[k] = (int)v->x[k + 1], s->y[k] = (int)v->y[k + 1], s->window[k] = (int)v->w[k + 1];
        s->stride[k] = (int)v->a.stride[k], s->dilation[k] = (int)v->a.dilation[k];
        s->pad[k] = (int)v->a.pad[2 * k];
    }
    return ll_conv_small_fits(s);
}

/* Image, filter, output. */
static void sides_of(const form *f, side s[3])
{
    const conv *v = &f->v, *d = &f->d;
    int64_t run = f->fold > 1 ? v->w[2] * v->w[3] : v->x[3];
    int64_t step = f->fold; /* columns of the image from one of their pixels to the next */
    s[0] = side{v->x, d->x, v->t, d->t, f->fold, run, step, {f->image[0], f->image[1]}};
    s[1] = side{v->w,    d->w,
                v->t,    d->t,
                f->fold, f->fold > 1 ? run : v->w[3],
                step,    {f->filter[0], f->filter[1]}};
    s[2] = side{v->y, d->y, v->t, d->t, 1, v->y[3], 1, {0, 0}};
    side *result = &s[result_of[v->which]];
    result->our_type = v->out;
    result->their_type = d->out;
}

/* ---- plain ---- */

template <class T, class Y>
static __global__ void plain(conv v, const T *x, const T *w, const T *y, Y *out, int64_t n,
                             typename sum_of<T>::type start)
{
    typedef typename sum_of<T>::type S;
    int64_t fg = v.w[0] / v.a.groups, cg = v.w[3];
    GRID_STRIDE(e, n)
    {
        S sum = start; /* base/num.h */
        if (v.which == FORWARD) {
            int64_t f = e % v.y[3], p = e / v.y[3] % v.y[2], o = e / v.y[3] / v.y[2] % v.y[1];
            int64_t b = e / v.y[3] / v.y[2] / v.y[1], c0 = f / fg * cg;
            for (int64_t r = 0; r < v.w[1]; r++)
                for (int64_t s = 0; s < v.w[2]; s++) {
                    int64_t i = o * v.a.stride[0] - v.a.pad[0] + r * v.a.dilation[0];
                    int64_t j = p * v.a.stride[1] - v.a.pad[2] + s * v.a.dilation[1];
                    if (i < 0 || i >= v.x[1] || j < 0 || j >= v.x[2]) continue;
                    for (int64_t c = 0; c < cg; c++)
                        sum = fma(to_float(x[((b * v.x[1] + i) * v.x[2] + j) * v.x[3] + c0 + c]),
                                  to_float(w[((f * v.w[1] + r) * v.w[2] + s) * cg + c]), sum);
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
                        sum = fma(to_float(y[((b * v.y[1] + o) * v.y[2] + p) * v.y[3] + f]),
                                  to_float(w[((f * v.w[1] + r) * v.w[2] + s) * cg + c % cg]), sum);
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
                        sum = fma(to_float(y[((b * v.y[1] + o) * v.y[2] + p) * v.y[3] + f]),
                                  to_float(x[((b * v.x[1] + i) * v.x[2] + j) * v.x[3] + c0 + c]),
                                  sum);
                    }
        }
        out[e] = from_float<Y>::of(sum - start);
    }
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
    ll_dnn_give(g, op, names[v->which].conv, d);
    ll_dnn_give(g, op, names[v->which].x, x);
    ll_dnn_give(g, op, names[v->which].w, w);
    ll_dnn_give(g, op, names[v->which].y, y);
    ll_dnn_set(g, op, names[v->which].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    ll_dnn_set(g, op, names[v->which].beta, CUDNN_TYPE_FLOAT, 1, &zero);
    ll_dnn_add(g, op);
}

static size_t bytes_of(const int64_t d[4], ll_dtype t)
{
    return (size_t)(d[0] * d[1] * d[2] * d[3]) * ll_dtype_bytes(t);
}

/* No plan: cuDNN has none. */
static ll_err plan_of(ll_context *x, const conv *v, ll_dnn_plan **out)
{
    *out = ll_dnn_find(x, v, sizeof *v);
    ll_err rc = LL_OK;
    if (!*out) {
        ll_dnn_graph g = {};
        g.ctx = x;
        size_t most = ROOM + bytes_of(v->x, v->t) + bytes_of(v->w, v->t) + bytes_of(v->y, v->t);
        ll_dnn_wanted want = {.tensor_cores = v->t != LL_F32 || v->tf32, .timed = true};
        want.most_workspace = (int64_t)(most < MOST_WORKSPACE ? most : MOST_WORKSPACE);
        add_convolution(&g, v);
        rc = g.rc;
        if (rc == LL_OK) rc = ll_dnn_make(&g, v, sizeof *v, &want, out);
        ll_dnn_free(&g);
    }
    if (rc == LL_OK && ll_dnn_refused(*out)) *out = NULL;
    return rc;
}

/* ---- copies for cuDNN ---- */

struct box {
    int64_t to[4], from[4], fold, run, step, shift[2];
};

/* Ours to theirs, P channels a thread; 0 where ours has nothing. */
template <class T, int P, class I> static __global__ void give(box o, const T *from, T *to, I n)
{
    struct alignas(sizeof(T) * P) pack {
        T v[P];
    };
    const I packs = (I)o.to[3] / P, w = (I)o.to[2], h = (I)o.to[1];
    const I run = (I)o.run, line = (I)(o.from[2] * o.from[3]);
    for (I e = blockIdx.x * (I)blockDim.x + threadIdx.x; e < n; e += (I)gridDim.x * blockDim.x) {
        I pixel = e / packs, q = (e - pixel * packs) * P, row = pixel / w, b = row / h;
        I di = q / run, at = q - di * run;
        I i = (row - b * h) * (I)o.fold + (I)o.shift[0] + di;
        I j = ((pixel - row * w) * (I)o.step + (I)o.shift[1]) * (I)o.from[3];
        const T *rows = from + (int64_t)b * o.from[1] * line;
        pack p;
#pragma unroll
        for (int k = 0; k < P; k++) {
            bool in = b < o.from[0] && di < o.fold && i >= 0 && i < o.from[1] && j + at >= 0 &&
                      j + at < line;
            p.v[k] = in ? rows[(int64_t)i * line + j + at] : (T)0;
            if (++at == run) at = 0, di++, i++;
        }
        ((pack *)to)[e] = p;
    }
}

/* Theirs to ours. Theirs do not overlap: they are folded to one column, or not folded. */
template <class T, class Y> static __global__ void take(box o, const T *from, Y *to, int64_t n)
{
    GRID_STRIDE(e, n)
    {
        int64_t ch = e % o.to[3], pixel = e / o.to[3], b = pixel / o.to[2] / o.to[1];
        int64_t i = pixel / o.to[2] % o.to[1] - o.shift[0], j = pixel % o.to[2] - o.shift[1];
        int64_t bi = i / o.fold, bj = o.fold > 1 ? 0 : j;
        int64_t q = (i - bi * o.fold) * o.run + (j - bj) * o.to[3] + ch;
        bool in = i >= 0 && j >= 0 && bi < o.from[1] && bj < o.from[2];
        to[e] = in ? (Y)from[((b * o.from[1] + bi) * o.from[2] + bj) * o.from[3] + q] : (Y)0;
    }
}

static box box_of(const side *s, const int64_t *to, const int64_t *from)
{
    box o = {{}, {}, s->fold, s->run, s->step, {s->shift[0], s->shift[1]}};
    memcpy(o.to, to, sizeof o.to);
    memcpy(o.from, from, sizeof o.from);
    return o;
}

template <class T, int P>
static ll_err start_give(const ll_kcall *c, const box &o, const void *from, void *to)
{
    int64_t n = o.to[0] * o.to[1] * o.to[2] * (o.to[3] / P);
    /* a thread's next element, past the last one too, must be an int32 */
    return n < INT32_MAX / 2 / P ? launch_each(c, n, give<T, P, int32_t>, o, from, to, n)
                                 : launch_each(c, n, give<T, P, int64_t>, o, from, to, n);
}

static ll_err give_side(const ll_kcall *c, const side *s, const void *from, void *to)
{
    box o = box_of(s, s->theirs, s->ours);
    if (ll_dtype_bytes(s->our_type) == 4) return start_give<uint32_t, 1>(c, o, from, to);
    return o.to[3] % 8 ? start_give<uint16_t, 1>(c, o, from, to)
                       : start_give<uint16_t, 8>(c, o, from, to);
}

/* Theirs to ours where only the types differ. */
static __global__ void widen(const bf16 *from, float *to, int64_t n)
{
    GRID_STRIDE(e, n / 4)
    {
        uint2 p = ((const uint2 *)from)[e];
        ((float4 *)to)[e] =
            make_float4(__uint_as_float(p.x << 16), __uint_as_float(p.x & ~0xffffu),
                        __uint_as_float(p.y << 16), __uint_as_float(p.y & ~0xffffu));
    }
}

static ll_err take_side(const ll_kcall *c, const side *s, const void *from, void *to)
{
    box o = box_of(s, s->ours, s->theirs);
    int64_t n = o.to[0] * o.to[1] * o.to[2] * o.to[3];
    bool flat = s->fold == 1 && !memcmp(o.to, o.from, sizeof o.to) && !o.shift[0] && !o.shift[1];
    if (s->our_type != s->their_type && flat && n % 4 == 0)
        return launch_each(c, n / 4, widen, from, to, n);
    if (s->our_type != s->their_type) return launch_each(c, n, take<bf16, float>, o, from, to, n);
    return ll_dtype_bytes(s->our_type) == 4
               ? launch_each(c, n, take<uint32_t, uint32_t>, o, from, to, n)
               : launch_each(c, n, take<uint16_t, uint16_t>, o, from, to, n);
}

/* Bytes of the copy, 0: cuDNN takes our tensor. */
static size_t copy_bytes(const side *s)
{
    bool same = !memcmp(s->ours, s->theirs, 4 * sizeof *s->ours) && s->our_type == s->their_type;
    if (same && s->fold == 1 && !s->shift[0] && !s->shift[1]) return 0;
    return (size_t)ll_round_up((int64_t)bytes_of(s->theirs, s->their_type), LL_WORKSPACE_SLACK);
}

/* ---- the ways ---- */

/* How cuDNN runs it: folded where that is for it; no plan: not at all. */
static ll_err find_form(ll_context *x, const conv *v, form *f, ll_dnn_plan **out)
{
    *out = NULL;
    TRY(ll_dnn_open(x));
    if (may_fold(v) && for_cudnn(v, true, f)) TRY(plan_of(x, &f->d, out));
    if (!*out && for_cudnn(v, false, f)) TRY(plan_of(x, &f->d, out));
    return LL_OK;
}

template <which W> struct conv_call {
    const ll_tensor *t[3];
    conv v;
    tap one;
    small_conv few;
    form f;
    ll_dnn_plan *p;
    explicit conv_call(const ll_kcall *c) : p(NULL) { v = conv_of(c, W, t); }
};

/* Plans are made here. */
template <which W> static bool dnn_fits(const ll_kcall *c)
{
    conv_call<W> k(c);
    if (!c->ctx) return for_cudnn(&k.v, false, &k.f);
    return find_form(c->ctx, &k.v, &k.f, &k.p) != LL_OK || k.p; /* what fails, the run tells */
}

template <which W> static size_t dnn_scratch(const ll_kcall *c)
{
    conv_call<W> k(c);
    side s[3];
    if (!c->ctx)
        ll_kern_note("no GPU here: convolutions' workspaces are not known, and not counted");
    if (!c->ctx || find_form(c->ctx, &k.v, &k.f, &k.p) != LL_OK || !k.p) return 0;
    sides_of(&k.f, s);
    return ll_dnn_workspace(k.p) + LL_WORKSPACE_SLACK + copy_bytes(&s[0]) + copy_bytes(&s[1]) +
           copy_bytes(&s[2]);
}

template <which W> static ll_err run_dnn(const ll_kcall *c)
{
    const int64_t ids[3] = {ID_X, ID_W, ID_Y};
    const int result = result_of[W];
    conv_call<W> k(c);
    side s[3];
    void *data[3];
    TRY(find_form(c->ctx, &k.v, &k.f, &k.p));
    LL_ASSERT(k.p);
    sides_of(&k.f, s);
    char *at = (char *)workspace_of(c);
    for (int i = 0; i < 3; i++) {
        size_t n = copy_bytes(&s[i]);
        data[i] = n ? at : k.t[i]->data;
        at += n;
        if (n && i != result) TRY(give_side(c, &s[i], k.t[i]->data, data[i]));
    }
    TRY(ll_dnn_run(k.p, c, 3, ids, data, at));
    if (data[result] == k.t[result]->data) return LL_OK;
    return take_side(c, &s[result], data[result], k.t[result]->data);
}

template <which W> static bool tap_fits(const ll_kcall *c)
{
    conv_call<W> k(c);
    return is_tap(&k.v, &k.one);
}

template <which W> static size_t tap_scratch(const ll_kcall *c)
{
    conv_call<W> k(c);
    return is_tap(&k.v, &k.one) ? ll_conv_tap_scratch(&k.one) : 0;
}

template <which W> static ll_err run_tap(const ll_kcall *c)
{
    conv_call<W> k(c);
    is_tap(&k.v, &k.one);
    return ll_conv_tap(c, W, &k.one, k.t[0]->data, k.t[1]->data, k.t[2]->data);
}

template <which W> static bool small_fits(const ll_kcall *c)
{
    conv_call<W> k(c);
    return is_small(&k.v, &k.few);
}

template <which W> static size_t small_scratch(const ll_kcall *c)
{
    conv_call<W> k(c);
    return is_small(&k.v, &k.few) ? ll_conv_small_scratch(c, W, &k.few) : 0;
}

template <which W> static ll_err run_small(const ll_kcall *c)
{
    conv_call<W> k(c);
    is_small(&k.v, &k.few);
    return ll_conv_small(c, W, &k.few, k.t[0]->data, k.t[1]->data, k.t[2]->data);
}

/* Fits all; a person is told, but of f64, for which there is nothing else. */
template <which W> static bool plain_fits(const ll_kcall *c)
{
    const conv v = conv_call<W>(c).v;
    if (v.t != LL_F64 && ll_numel(&c->out[0].shape))
        ll_kern_note("a convolution of %s, %lld channels to %lld in %lld groups, runs on a plain, "
                     "slow kernel: cuDNN has none for it",
                     ll_dtype_name(v.t), (long long)v.x[3], (long long)v.y[3],
                     (long long)v.a.groups);
    return true;
}

template <which W> static ll_err run_plain(const ll_kcall *c)
{
    conv_call<W> k(c);
    int64_t n = ll_numel(&c->out[0].shape);
    return with_floats(k.v.t, k.v.out, [&](auto a, auto b) -> ll_err {
        return launch_each(c, n, plain<decltype(a), decltype(b)>, k.v, k.t[0]->data, k.t[1]->data,
                           k.t[2]->data, c->out[0].data, n, ll_sum_start(k.v.a.bits));
    });
}

#define WAYS(w)                                                                                    \
    {                                                                                              \
        {"tap", tap_fits<w>, tap_scratch<w>, run_tap<w>},                                          \
            {"small", small_fits<w>, small_scratch<w>, run_small<w>},                              \
            {"cudnn", dnn_fits<w>, dnn_scratch<w>, run_dnn<w>},                                    \
            {"plain", plain_fits<w>, NULL, run_plain<w>},                                          \
        {                                                                                          \
        }                                                                                          \
    }
extern "C" const ll_solver conv2d_cuda[] = WAYS(FORWARD), conv2d_dx_cuda[] = WAYS(IMAGE),
                           conv2d_dw_cuda[] = WAYS(FILTER);
