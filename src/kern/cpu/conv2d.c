/* conv2d.c: the convolution kernels of the CPU machine, which op/conv2d.c lists as solvers:
 *
 *     direct   conv2d, conv2d_dw of very few channels: vectors along the image's rows
 *     gather   conv2d, conv2d_dx: a matrix product that reads the image in place
 *     outer    conv2d_dw: sums of outer products over pixels
 *
 * f32, f64, or (gather and outer) bf16 operands with an f32 result. */
#include "kern/cpu/conv2d_int.h"

ll_kernel conv2d_direct_cpu, conv2d_dw_direct_cpu, conv2d_gather_cpu, conv2d_dx_gather_cpu;
ll_kernel conv2d_dw_outer_cpu;
ll_scratch conv2d_direct_cpu_scratch, conv2d_dw_direct_cpu_scratch, conv2d_gather_cpu_scratch;
ll_scratch conv2d_dx_gather_cpu_scratch, conv2d_dw_outer_cpu_scratch;
bool conv2d_direct_cpu_fits(const ll_kcall *c), conv2d_dw_direct_cpu_fits(const ll_kcall *c);

static ll_conv_shape shape_of(ll_conv_direction d, const ll_kcall *c)
{
    const ll_tensor *const sets[3][3] = {
        {&c->in[0], &c->in[1], &c->out[0]}, /* image, filter, output */
        {&c->out[0], &c->in[1], &c->in[0]},
        {&c->in[1], &c->out[0], &c->in[0]},
    };
    const int64_t *x = sets[d][0]->shape.d, *w = sets[d][1]->shape.d, *y = sets[d][2]->shape.d;
    ll_conv_shape v = {.d = d, .a = *(const ll_conv_attr *)c->attr};
    v.bf16 = c->in[0].dtype == LL_BF16;
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

static size_t room(ll_conv_direction d, const ll_kcall *c, ll_conv_room *f32, ll_conv_room *f64)
{
    ll_conv_shape v = shape_of(d, c);
    return (v.f64 ? f64 : f32)(&v);
}

static ll_err run(ll_conv_direction d, const ll_kcall *c, ll_conv_run *f32, ll_conv_run *f64)
{
    ll_conv_shape v = shape_of(d, c);
    (v.f64 ? f64 : f32)(&v, c);
    return LL_OK;
}

static bool few_channels(ll_conv_direction d, const ll_kcall *c)
{
    ll_conv_shape v = shape_of(d, c);
    return v.groups == 1 && v.a.stride[1] == 1 && v.c * v.s <= 8 && !v.bf16;
}

bool conv2d_direct_cpu_fits(const ll_kcall *c)
{
    return few_channels(LL_CONV, c);
}

bool conv2d_dw_direct_cpu_fits(const ll_kcall *c)
{
    return few_channels(LL_CONV_DW, c);
}

size_t conv2d_direct_cpu_scratch(const ll_kcall *c)
{
    return room(LL_CONV, c, ll_conv_direct_room_f32, ll_conv_direct_room_f64);
}

ll_err conv2d_direct_cpu(const ll_kcall *c)
{
    return run(LL_CONV, c, ll_conv_direct_f32, ll_conv_direct_f64);
}

size_t conv2d_dw_direct_cpu_scratch(const ll_kcall *c)
{
    return room(LL_CONV_DW, c, ll_conv_direct_room_f32, ll_conv_direct_room_f64);
}

ll_err conv2d_dw_direct_cpu(const ll_kcall *c)
{
    return run(LL_CONV_DW, c, ll_conv_direct_dw_f32, ll_conv_direct_dw_f64);
}

size_t conv2d_gather_cpu_scratch(const ll_kcall *c)
{
    return room(LL_CONV, c, ll_conv_gather_room_f32, ll_conv_gather_room_f64);
}

ll_err conv2d_gather_cpu(const ll_kcall *c)
{
    return run(LL_CONV, c, ll_conv_gather_f32, ll_conv_gather_f64);
}

size_t conv2d_dx_gather_cpu_scratch(const ll_kcall *c)
{
    return room(LL_CONV_DX, c, ll_conv_gather_room_f32, ll_conv_gather_room_f64);
}

ll_err conv2d_dx_gather_cpu(const ll_kcall *c)
{
    return run(LL_CONV_DX, c, ll_conv_gather_f32, ll_conv_gather_f64);
}

size_t conv2d_dw_outer_cpu_scratch(const ll_kcall *c)
{
    return room(LL_CONV_DW, c, ll_conv_outer_room_f32, ll_conv_outer_room_f64);
}

ll_err conv2d_dw_outer_cpu(const ll_kcall *c)
{
    return run(LL_CONV_DW, c, ll_conv_outer_f32, ll_conv_outer_f64);
}
