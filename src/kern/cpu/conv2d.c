/* conv2d.c: the convolution kernels of the CPU machine: which algorithm runs which call.
 *
 *     gather   conv2d, conv2d_dx: a matrix product that reads the image in place
 *     outer    conv2d_dw: sums of outer products over pixels
 *     direct   conv2d, conv2d_dw of very few channels: vectors along the image's rows
 *
 * f32, f64, or (gather and outer) bf16 operands with an f32 result. */
#include "kern/cpu/conv2d_int.h"

ll_kernel conv2d_cpu, conv2d_dx_cpu, conv2d_dw_cpu;
ll_scratch conv2d_cpu_scratch, conv2d_dx_cpu_scratch, conv2d_dw_cpu_scratch;

ll_conv_shape ll_conv_shape_of(ll_conv_direction d, const ll_kcall *c)
{
    const ll_tensor *const sets[3][3] = {
        {&c->in[0], &c->in[1], &c->out[0]}, /* image, filter, output */
        {&c->out[0], &c->in[1], &c->in[0]},
        {&c->in[1], &c->out[0], &c->in[0]},
    };
    const int64_t *x = sets[d][0]->shape.d, *w = sets[d][1]->shape.d, *y = sets[d][2]->shape.d;
    ll_conv_shape v = {.a = *(const ll_conv_attr *)c->attr, .bf16 = c->in[0].dtype == LL_BF16};
    v.f64 = c->in[0].dtype == LL_F64;
    v.n = x[0], v.h = x[1], v.w = x[2], v.c = x[3];
    v.f = w[0], v.r = w[1], v.s = w[2];
    v.oh = y[1], v.ow = y[2];
    v.groups = v.a.groups;
    v.cg = v.c / v.groups, v.fg = v.f / v.groups;
    double work = (double)(v.n * v.oh * v.ow) * (double)(v.f * v.r * v.s * v.cg);
    v.threads = work < LL_PARALLEL_WORK || c->threads < 1 ? 1 : c->threads;
    return v;
}

/* ---- which algorithm ---- */

typedef struct algorithm {
    const char *name;
    ll_conv_room *scratch;
    ll_conv_image *image;   /* conv2d, conv2d_dx */
    ll_conv_filter *filter; /* conv2d_dw */
} algorithm;

enum { DIRECT, GATHER, OUTER };
/* [f64][..] */
static const algorithm algorithms[2][3] = {
    {{"direct", ll_conv_direct_scratch_f32, ll_conv_direct_f32, ll_conv_direct_dw_f32},
     {"gather", ll_conv_gather_scratch_f32, ll_conv_gather_f32, NULL},
     {"outer", ll_conv_outer_scratch_f32, NULL, ll_conv_outer_f32}},
    {{"direct", ll_conv_direct_scratch_f64, ll_conv_direct_f64, ll_conv_direct_dw_f64},
     {"gather", ll_conv_gather_scratch_f64, ll_conv_gather_f64, NULL},
     {"outer", ll_conv_outer_scratch_f64, NULL, ll_conv_outer_f64}},
};

static const algorithm *choose(const ll_conv_shape *v, ll_conv_direction d)
{
    bool few = v->groups == 1 && v->a.stride[1] == 1 && v->c * v->s <= 8;
    if (few && d != LL_CONV_DX && !v->bf16) return &algorithms[v->f64][DIRECT];
    return &algorithms[v->f64][d == LL_CONV_DW ? OUTER : GATHER];
}

const char *ll_conv_algorithm(ll_conv_direction d, const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(d, c);
    return choose(&v, d)->name;
}

/* ---- the kernels ---- */

static size_t scratch(ll_conv_direction d, const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(d, c);
    return choose(&v, d)->scratch(&v, d);
}

size_t conv2d_cpu_scratch(const ll_kcall *c)
{
    return scratch(LL_CONV, c);
}

size_t conv2d_dx_cpu_scratch(const ll_kcall *c)
{
    return scratch(LL_CONV_DX, c);
}

size_t conv2d_dw_cpu_scratch(const ll_kcall *c)
{
    return scratch(LL_CONV_DW, c);
}

static ll_err make_image(ll_conv_direction d, const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(d, c);
    choose(&v, d)->image(&v, d, c->in[0].data, c->in[1].data, c->out[0].data, c->scratch);
    return LL_OK;
}

ll_err conv2d_cpu(const ll_kcall *c)
{
    return make_image(LL_CONV, c);
}

ll_err conv2d_dx_cpu(const ll_kcall *c)
{
    return make_image(LL_CONV_DX, c);
}

ll_err conv2d_dw_cpu(const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(LL_CONV_DW, c);
    choose(&v, LL_CONV_DW)->filter(&v, c->in[0].data, c->in[1].data, c->out[0].data, c->scratch);
    return LL_OK;
}
