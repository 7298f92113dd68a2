/* peaks: of levels, the largest in each window, so that a convolution is a product of what its
 * windows and its filters have (op/matmul.c).
 *
 *     peaks  x [n,h,w,c]  ->  [n,h,w,c]; in groups of channels [n,h,w,g]
 *
 * y[n,o,p,c] = the largest of x[n, o stride - pad + r dilation, p ..., c] over all taps, 0 outside;
 * back: of conv2d_dx, whose image row i meets those rows o of x whose windows have it. */
#include "op/op_int.h"
#include "op/window.h"

LL_KERNELS(peaks)

static ll_axis axis(const ll_peaks_attr *a, int k)
{
    return (ll_axis){a->size[k], a->stride[k], a->dilation[k], {a->pad[2 * k], a->pad[2 * k + 1]}};
}

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    strcpy(dims, ((const ll_peaks_attr *)attr)->groups > 1 ? "nhw_ -> nhwg" : "nhwc -> nhwc");
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_peaks_attr *a = (const ll_peaks_attr *)i->attr;
    const ll_shape *x = &i->in[0].shape;
    CHECK(x->n == 4, LL_E_SHAPE, "the image has %d dimensions, expected [n,h,w,c]", x->n);
    CHECK(a->groups >= 1 && x->d[3] % a->groups == 0, LL_E_ARG, "%ld channels in %ld groups",
          x->d[3], a->groups);
    CHECK(i->in[0].dtype == LL_U8, LL_E_ARG, "operand 0 is %s, expected u8",
          ll_dtype_name(i->in[0].dtype));
    ll_shape y = {4, {x->d[0], 0, 0, a->groups > 1 ? a->groups : x->d[3]}};
    for (int k = 0; k < 2; k++) {
        CHECK(a->stride[k] >= 1 && a->dilation[k] >= 1 && a->size[k] >= 1, LL_E_ARG,
              "stride %ld, dilation %ld, %ld taps; expected at least 1 of each", a->stride[k],
              a->dilation[k], a->size[k]);
        ll_axis ax = axis(a, k);
        int64_t n = ll_axis_out(&ax, a->back ? a->image[k] : x->d[1 + k]);
        CHECK(n >= 0 && (!a->back || (n == x->d[1 + k] && a->image[k] >= 0)), LL_E_SHAPE,
              "%ld rows of windows over %ld", n, (a->back ? a->image[k] : x->d[1 + k]));
        y.d[1 + k] = a->back ? a->image[k] : n;
    }
    i->out[0] = (ll_type){i->in[0].dtype, y};
    return LL_OK;
}

static ll_err split(const void *attr, const ll_loops *l, int loop, ll_range range,
                    const ll_type *in, ll_part *part)
{
    ll_peaks_attr *mine = (ll_peaks_attr *)part->attr;
    int k = ll_axis_of(l, loop);
    if (k < 0) return LL_OK;
    ll_axis ax = axis((const ll_peaks_attr *)attr, k);
    int64_t n = in[0].shape.d[1 + k];
    part->in[0] = mine->back ? ll_axis_out_part(&ax, range, n) : ll_axis_image_part(&ax, range, n);
    mine->pad[2 * k] = ax.pad[0];
    mine->pad[2 * k + 1] = ax.pad[1];
    if (mine->back) mine->image[k] = range.to - range.from;
    return LL_OK;
}

#define ONE "stride=[1,1], pad=[1,1,1,1], dilation=[1,1], groups=1, size=[3,3]"
#define ODD "stride=[2,3], pad=[0,1,1,0], dilation=[2,3], groups=1, size=[3,2]"
#define THREE "stride=[1,2], pad=[1,0,0,0], dilation=[1,1], groups=3, size=[2,2]"
static const ll_op peaks = {
    LL_REF_OP(peaks, OTHER, 1, 1, .scratch = peaks_cpu_scratch),
    LL_ATTRS(ll_peaks_attr, stride, pad, dilation, groups, size, back, image),
    .loops = loops,
    .whole = "g",
    .window = "hw",
    .infer = infer,
    .split = split,
    .no_grad = true,
    .trials = {"u8[2,7,5,3]<61 {" ONE "}", "u8[2,7,5,33]<61 {" ONE ", back=1, image=[7,5]}",
               "u8[3,9,7,2]<61 {" ODD "}", "u8[2,3,2,16]<61 {" ODD ", back=1, image=[9,7]}",
               "u8[2,5,6,6]<61 {" THREE "}", "u8[2,5,3,6]<61 {" THREE ", back=1, image=[5,6]}",
               "u8[1,6,5,1]<61 {stride=[1,1], pad=[-1,2,3,-2], dilation=[1,1], groups=1, "
               "size=[3,2]}",
               "u8[0,4,4,2]<61 {" ONE "}", "u8[1,4,4,0]<61 {" ONE ", back=1, image=[4,4]}"},
};

ll_val ll_peaks(ll_graph *g, ll_val x, const ll_peaks_attr *a)
{
    return LL_EMIT(g, &peaks, a, x);
}

const ll_op *const ll_ops_peaks[] = {&peaks, NULL};
