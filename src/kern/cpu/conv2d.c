/* conv2d.c: the convolution kernels of the CPU machine: which algorithm runs which call.
 *
 *     gather   conv2d, conv2d_dx: a matrix product that reads the image in place
 *     outer    conv2d_dw: sums of outer products over pixels
 *     direct   conv2d, conv2d_dw of very few channels: vectors along the image's rows
 *
 * f32, f64 (gather and outer), or bf16 operands with an f32 result. */
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

const char *ll_conv_algorithm(ll_conv_direction d, const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(d, c);
    if (ll_conv_direct_fits(&v, d)) return "direct";
    return d == LL_CONV_DW ? "outer" : "gather";
}

static size_t scratch(ll_conv_direction d, const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(d, c);
    if (ll_conv_direct_fits(&v, d)) return ll_conv_direct_scratch(&v, d);
    if (d == LL_CONV_DW) return (v.f64 ? ll_conv_outer_scratch_f64 : ll_conv_outer_scratch_f32)(&v);
    return (v.f64 ? ll_conv_gather_scratch_f64 : ll_conv_gather_scratch_f32)(&v, d);
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

static ll_conv_gather_run *gather(const ll_conv_shape *v)
{
    return v->f64 ? ll_conv_gather_f64 : ll_conv_gather_f32;
}

ll_err conv2d_cpu(const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(LL_CONV, c);
    const void *x = c->in[0].data, *w = c->in[1].data;
    void *y = c->out[0].data;
    if (ll_conv_direct_fits(&v, LL_CONV))
        ll_conv_direct(&v, (const float *)x, (const float *)w, (float *)y, c->scratch);
    else
        gather (&v)(&v, LL_CONV, x, w, y, c->scratch);
    return LL_OK;
}

ll_err conv2d_dx_cpu(const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(LL_CONV_DX, c);
    gather (&v)(&v, LL_CONV_DX, c->in[0].data, c->in[1].data, c->out[0].data, c->scratch);
    return LL_OK;
}

ll_err conv2d_dw_cpu(const ll_kcall *c)
{
    ll_conv_shape v = ll_conv_shape_of(LL_CONV_DW, c);
    const void *dy = c->in[0].data, *x = c->in[1].data;
    void *dw = c->out[0].data;
    if (ll_conv_direct_fits(&v, LL_CONV_DW))
        ll_conv_direct_dw(&v, (const float *)dy, (const float *)x, (float *)dw, c->scratch);
    else
        (v.f64 ? ll_conv_outer_f64 : ll_conv_outer_f32)(&v, dy, x, dw, c->scratch);
    return LL_OK;
}
