/* batchnorm_relu.c: a batch norm with the residual and relu behind it, and their gradients, for
 * GPUs, where each pass over an image costs.   x, y, r, dy [*,c]   others [c]
 *
 *     batchnorm_relu           x, gain, bias    -> y, mean, var        y = relu(batchnorm(x))
 *     batchnorm_add_relu       x, r, gain, bias -> y, mean, var        y = relu(batchnorm(x) + r)
 *     batchnorm_relu_grad      dy, x, gain, bias, mean, var -> dx, dgain, dbias
 *     batchnorm_add_relu_grad  dy, y, x, gain, mean, var    -> dx, dgain, dbias, dr
 *     batchnorm_sum_relu_grad  dy, dy2, y, x, gain, mean, var -> dx, dgain, dbias, dr
 *
 * Gradients of the first make the relu's mask again from x, of the second read it from y: dr is dy
 * where y is not 0. The last is of a y with two readers, whose gradients add up. */
#include "fuse/fuse_int.h"
#include "op/rows.h"

extern const ll_solver batchnorm_relu_cuda[], batchnorm_add_relu_cuda[], batchnorm_relu_grad_cuda[];
extern const ll_solver batchnorm_add_relu_grad_cuda[], batchnorm_sum_relu_grad_cuda[];

/* The mask is made again, of the statistics that are given. */
static void expand_relu_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    ll_val dy = in[0], x = in[1], gain = in[2], bias = in[3], mean = in[4], var = in[5];
    ll_val rstd = ll_rsqrt(g, ll_shift(g, var, ((const ll_norm_attr *)attr)->eps));
    ll_val y = ll_mul(g, ll_mul(g, ll_sub(g, x, mean), rstd), gain);
    ll_val zero = ll_fill(g, ll_graph_dtype(g, dy), LL_SCALAR, 0);
    dy = ll_select(g, ll_relu(g, ll_add(g, y, bias)), dy, zero);
    out[0] = LL_EMIT(g, ll_op_find("batchnorm_grad"), attr, dy, x, gain, mean, var);
    for (int o = 1; o < 3; o++) out[o] = ll_sibling(g, out[0], o);
}

#define OP(fn, ins, outs, how, wide, flops, ...)                                                   \
    {                                                                                              \
        LL_GPU_OP(fn, NORM, ins, outs), LL_ATTRS(ll_norm_attr, eps),                               \
            .dims = how, .whole = "*", .wide_in = wide, .wide_out = 1u << 1 | 1u << 2,             \
            .infer = ll_infer_floats, .flop = flops, __VA_ARGS__                                   \
    }

static const ll_op ops[] = {
    OP(batchnorm_relu, 3, 3, "*c, c, c -> *c, c, c", 3u << 1, 8,
       .trials = {"f32[7,3], f32[3], f32[3] {eps=1e-5}", "f32[2,3,5,8], f32[8], f32[8] {eps=0.1}",
                  "f32[2,300,3,72], f32[72], f32[72] {eps=1e-5}"}),
    OP(batchnorm_add_relu, 4, 3, "*c, *c, c, c -> *c, c, c", 3u << 2, 9,
       .trials = {"f32[7,3], f32[7,3], f32[3], f32[3] {eps=1e-5}",
                  "f32[2,3,5,8], f32[2,3,5,8], f32[8], f32[8] {eps=0.1}",
                  "f32[2,300,3,72], f32[2,300,3,72], f32[72], f32[72] {eps=1e-5}"}),
    OP(batchnorm_relu_grad, 6, 3, "*c, *c, c, c, c, c -> *c, c, c", 15u << 2, 11, .in_place = 3u,
       .expand = expand_relu_grad,
       .trials = {"f32[7,3], f32[7,3], f32[3], f32[3], f32[3], f32[3]> {eps=1e-5}",
                  "f32[2,3,5,8], f32[2,3,5,8], f32[8], f32[8], f32[8], f32[8]> {eps=0.1}",
                  "f32[999,72], f32[999,72], f32[72], f32[72], f32[72], f32[72]> {eps=0.1}"}),
    OP(batchnorm_add_relu_grad, 6, 4, "*c, *c, *c, c, c, c -> *c, c, c, *c", 7u << 3, 10,
       .in_place = 7u,
       .trials = {"f32[7,3], f32[7,3], f32[7,3], f32[3], f32[3], f32[3]> {eps=1e-5}",
                  "f32[2,3,5,8], f32[2,3,5,8], f32[2,3,5,8], f32[8], f32[8], f32[8]> {eps=0.1}",
                  "f32[999,72], f32[999,72], f32[999,72], f32[72], f32[72], f32[72]> {eps=0.1}"}),
    OP(batchnorm_sum_relu_grad, 7, 4, "*c, *c, *c, *c, c, c, c -> *c, c, c, *c", 7u << 4, 11,
       .in_place = 15u,
       .trials = {"f32[7,3], f32[7,3], f32[7,3], f32[7,3], f32[3], f32[3], f32[3]> {eps=1e-5}",
                  "f32[999,72], f32[999,72], f32[999,72], f32[999,72], f32[72], f32[72], "
                  "f32[72]> {eps=0.1}"}),
};
const ll_op *const ll_ops_batchnorm_relu[] = {&ops[0], &ops[1], &ops[2], &ops[3], &ops[4], NULL};

#define NORM "z, mean, var = batchnorm(x, gain, bias) {eps=$eps}\n"
#define GRAD "dx, dgain, dbias = batchnorm_grad(g, x, gain, mean, var) {eps=$eps}"

/* What stands in front of a norm must be made before it: its statistics may be read soon. Where
 * both operands of the sum are norms, the later one takes the other in. */
static const ll_fusion_row forward[] = {
    {.pattern = NORM "y = relu(z)",
     .replace = "y, mean, var = batchnorm_relu(x, gain, bias) {eps=$eps}",
     .same = "x z y"},
    {.pattern = NORM "s = add(z, r)\ny = relu(s)",
     .replace = "y, mean, var = batchnorm_add_relu(x, r, gain, bias) {eps=$eps}",
     .same = "x z r s y"},
    {0}};

/* Of the norms that have taken a relu in. */
#define RELU "+y, mean, var = batchnorm_relu(x, gain, bias) {eps=$eps}\n"
#define ADD_RELU "+y, mean, var = batchnorm_add_relu(x, r, gain, bias) {eps=$eps}\n"
#define TRIAL                                                                                      \
    "x: f32[7,3], gain: f32[3], bias: f32[3], r: f32[7,3], dy: f32[7,3], dy2: f32[7,3] $eps=1e-5"

static const ll_fusion_row backward[] = {
    {.pattern = RELU "g = select(y, dy, 0)\n" GRAD,
     .replace = "dx, dgain, dbias = batchnorm_relu_grad(dy, x, gain, bias, mean, var) {eps=$eps}",
     .same = "x y dy g",
     .trials = {TRIAL}},
    {.pattern = ADD_RELU "d = add(dy, dy2)\ng = select(y, d, 0)\n" GRAD,
     .replace = "dx, dgain, dbias, g = batchnorm_sum_relu_grad(dy, dy2, y, x, gain, mean, var) "
                "{eps=$eps}",
     .same = "x y dy dy2 d g",
     .trials = {TRIAL}},
    {.pattern = ADD_RELU "g = select(y, dy, 0)\n" GRAD,
     .replace =
         "dx, dgain, dbias, g = batchnorm_add_relu_grad(dy, y, x, gain, mean, var) {eps=$eps}",
     .same = "x y dy g",
     .trials = {TRIAL}},
    {0}};

static const ll_fusion fusions[] = {{.name = "batchnorm_relu",
                                     .stage = LL_FUSE_FORWARD,
                                     .target = &ll_target_cuda,
                                     .rows = forward},
                                    {.name = "batchnorm_relu_grad",
                                     .stage = LL_FUSE_LATE,
                                     .target = &ll_target_cuda,
                                     .rows = backward}};
const ll_fusion *const ll_fusions_batchnorm_relu[] = {&fusions[0], &fusions[1], NULL};
