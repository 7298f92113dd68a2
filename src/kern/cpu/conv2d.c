/* conv2d.c: the convolution kernels of the CPU machine, which op/conv2d.c lists as solvers:
 *
 *     direct   conv2d, conv2d_dw of very few channels: vectors along the image's rows
 *     gather   conv2d, conv2d_dx: a matrix product that reads the image in place
 *     outer    conv2d_dw: sums of outer products over pixels
 *     winograd4, winograd2  all three, 3 x 3 (winograd2: and 5 x 5) filters, stride 1: tiles of
 *              4 x 4 or 2 x 2 outputs with fewer products; f32, and only where it is asked for
 *
 * f32, f64, or (gather and outer) bf16 operands with an f32 result. */
#include "kern/cpu/conv2d_int.h"

extern const ll_solver conv2d_cpu[], conv2d_dx_cpu[], conv2d_dw_cpu[];

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

static bool few_channels(const ll_conv_shape *v)
{
    return v->groups == 1 && v->a.stride[1] == 1 && v->c * v->s <= 8 && !v->bf16;
}

/* An algorithm for one of the three: what a solver needs of it. */
#define SOLVER(name, direction, algorithm)                                                         \
    static size_t name##_room(const ll_kcall *c)                                                   \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        return (v.f64 ? algorithm##_room_f64 : algorithm##_room_f32)(&v);                          \
    }                                                                                              \
    static ll_err name(const ll_kcall *c)                                                          \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        (v.f64 ? algorithm##_f64 : algorithm##_f32)(&v, c);                                        \
        return LL_OK;                                                                              \
    }
#define FITS(name, direction)                                                                      \
    static bool name##_fits(const ll_kcall *c)                                                     \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        return few_channels(&v);                                                                   \
    }
SOLVER(direct, LL_CONV, ll_conv_direct)
SOLVER(gather, LL_CONV, ll_conv_gather)
SOLVER(dx_gather, LL_CONV_DX, ll_conv_gather)
SOLVER(dw_direct, LL_CONV_DW, ll_conv_direct_dw)
SOLVER(dw_outer, LL_CONV_DW, ll_conv_outer)
FITS(direct, LL_CONV)
FITS(dw_direct, LL_CONV_DW)

#define WINOGRAD(name, direction, m)                                                               \
    static bool name##_fits(const ll_kcall *c)                                                     \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        return ll_conv_winograd_fits(&v, m);                                                       \
    }                                                                                              \
    static size_t name##_room(const ll_kcall *c)                                                   \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        return ll_conv_winograd_room(&v, m);                                                       \
    }                                                                                              \
    static ll_err name(const ll_kcall *c)                                                          \
    {                                                                                              \
        ll_conv_shape v = shape_of(direction, c);                                                  \
        ll_conv_winograd(&v, m, c);                                                                \
        return LL_OK;                                                                              \
    }
WINOGRAD(winograd4, LL_CONV, 4)
WINOGRAD(winograd2, LL_CONV, 2)
WINOGRAD(dx_winograd4, LL_CONV_DX, 4)
WINOGRAD(dx_winograd2, LL_CONV_DX, 2)
WINOGRAD(dw_winograd4, LL_CONV_DW, 4)
WINOGRAD(dw_winograd2, LL_CONV_DW, 2)
#define WINOGRADS(p)                                                                               \
    {"winograd4", p##winograd4_fits, p##winograd4_room, .run = p##winograd4, .asked = true},       \
    {                                                                                              \
        "winograd2", p##winograd2_fits, p##winograd2_room, .run = p##winograd2, .asked = true      \
    }

const ll_solver conv2d_cpu[] = {{"direct", direct_fits, direct_room, .run = direct},
                                {"gather", .scratch = gather_room, .run = gather},
                                WINOGRADS(),
                                {0}};
const ll_solver conv2d_dx_cpu[] = {
    {"gather", .scratch = dx_gather_room, .run = dx_gather}, WINOGRADS(dx_), {0}};
const ll_solver conv2d_dw_cpu[] = {{"direct", dw_direct_fits, dw_direct_room, .run = dw_direct},
                                   {"outer", .scratch = dw_outer_room, .run = dw_outer},
                                   WINOGRADS(dw_),
                                   {0}};
