/* batchnorm_relu.c: a batch norm with what surrounds it, for GPUs, where each pass over an image
 * costs. The compiler makes these late (pass/batchnorm.c).   x, y, r, dy [*,c]   others [c]
 *
 *     batchnorm_relu           x, gain, bias    -> y, mean, var        y = relu(batchnorm(x))
 *     batchnorm_add_relu       x, r, gain, bias -> y, mean, var        y = relu(batchnorm(x) + r)
 *     batchnorm_relu_grad      dy, x, gain, bias, mean, var -> dx, dgain, dbias
 *     batchnorm_add_relu_grad  dy, y, x, gain, mean, var    -> dx, dgain, dbias, dr
 *     batchnorm_sum_relu_grad  dy, dy2, y, x, gain, mean, var -> dx, dgain, dbias, dr
 *
 * Gradients of the first make the relu's mask again from x, of the second read it from y: dr is dy
 * where y is not 0. The last is of a y with two readers, whose gradients add up. */
#include "kern/attr.h"
#include "op/op_int.h"
#include "op/rows.h"

ll_kernel batchnorm_relu_ref, batchnorm_add_relu_ref, batchnorm_relu_grad_ref;
ll_kernel batchnorm_add_relu_grad_ref, batchnorm_sum_relu_grad_ref;
ll_kernel batchnorm_relu_cuda, batchnorm_add_relu_cuda, batchnorm_relu_grad_cuda;
ll_kernel batchnorm_add_relu_grad_cuda, batchnorm_sum_relu_grad_cuda;
ll_scratch batchnorm_cuda_scratch;

static const ll_attr_field fields[] = {LL_FIELD(ll_norm_attr, eps, LL_A_F64), {0}};

#define LATE                                                                                       \
    .attr_size = sizeof(ll_norm_attr), .attrs = fields, .whole = "*", .infer = ll_infer_floats

static const ll_op ops[] = {
    {
        .name = "batchnorm_relu",
        .n_in = 3,
        .n_out = 3,
        LATE,
        .dims = "*c, c, c -> *c, c, c",
        .wide_in = 1u << 1 | 1u << 2,
        .wide_out = 1u << 1 | 1u << 2,
        .flop = 8,
        .ref = batchnorm_relu_ref,
        .cuda = LL_GPU(LL_KERNEL(.run = batchnorm_relu_cuda, .scratch = batchnorm_cuda_scratch)),
        .trials = {"f32[7,3], f32[3], f32[3] {eps=1e-5}", "f32[2,3,5,8], f32[8], f32[8] {eps=0.1}",
                   "f32[2,300,3,72], f32[72], f32[72] {eps=1e-5}"},
    },
    {
        .name = "batchnorm_add_relu",
        .n_in = 4,
        .n_out = 3,
        LATE,
        .dims = "*c, *c, c, c -> *c, c, c",
        .wide_in = 1u << 2 | 1u << 3,
        .wide_out = 1u << 1 | 1u << 2,
        .flop = 9,
        .ref = batchnorm_add_relu_ref,
        .cuda =
            LL_GPU(LL_KERNEL(.run = batchnorm_add_relu_cuda, .scratch = batchnorm_cuda_scratch)),
        .trials = {"f32[7,3], f32[7,3], f32[3], f32[3] {eps=1e-5}",
                   "f32[2,3,5,8], f32[2,3,5,8], f32[8], f32[8] {eps=0.1}",
                   "f32[2,300,3,72], f32[2,300,3,72], f32[72], f32[72] {eps=1e-5}"},
    },
    {
        .name = "batchnorm_relu_grad",
        .n_in = 6,
        .n_out = 3,
        LATE,
        .dims = "*c, *c, c, c, c, c -> *c, c, c",
        .wide_in = 15u << 2,
        .wide_out = 1u << 1 | 1u << 2,
        .flop = 11,
        .in_place = 1u << 0 | 1u << 1,
        .ref = batchnorm_relu_grad_ref,
        .cuda =
            LL_GPU(LL_KERNEL(.run = batchnorm_relu_grad_cuda, .scratch = batchnorm_cuda_scratch)),
        .trials = {"f32[7,3], f32[7,3], f32[3], f32[3], f32[3], f32[3]> {eps=1e-5}",
                   "f32[2,3,5,8], f32[2,3,5,8], f32[8], f32[8], f32[8], f32[8]> {eps=0.1}",
                   "f32[999,72], f32[999,72], f32[72], f32[72], f32[72], f32[72]> {eps=0.1}"},
    },
    {
        .name = "batchnorm_add_relu_grad",
        .n_in = 6,
        .n_out = 4,
        LATE,
        .dims = "*c, *c, *c, c, c, c -> *c, c, c, *c",
        .wide_in = 7u << 3,
        .wide_out = 1u << 1 | 1u << 2,
        .flop = 10,
        .in_place = 7u,
        .ref = batchnorm_add_relu_grad_ref,
        .cuda = LL_GPU(
            LL_KERNEL(.run = batchnorm_add_relu_grad_cuda, .scratch = batchnorm_cuda_scratch)),
        .trials = {"f32[7,3], f32[7,3], f32[7,3], f32[3], f32[3], f32[3]> {eps=1e-5}",
                   "f32[2,3,5,8], f32[2,3,5,8], f32[2,3,5,8], f32[8], f32[8], f32[8]> {eps=0.1}",
                   "f32[999,72], f32[999,72], f32[999,72], f32[72], f32[72], f32[72]> {eps=0.1}"},
    },
    {
        .name = "batchnorm_sum_relu_grad",
        .n_in = 7,
        .n_out = 4,
        LATE,
        .dims = "*c, *c, *c, *c, c, c, c -> *c, c, c, *c",
        .wide_in = 7u << 4,
        .wide_out = 1u << 1 | 1u << 2,
        .flop = 11,
        .in_place = 15u,
        .ref = batchnorm_sum_relu_grad_ref,
        .cuda = LL_GPU(
            LL_KERNEL(.run = batchnorm_sum_relu_grad_cuda, .scratch = batchnorm_cuda_scratch)),
        .trials = {"f32[7,3], f32[7,3], f32[7,3], f32[7,3], f32[3], f32[3], f32[3]> {eps=1e-5}",
                   "f32[999,72], f32[999,72], f32[999,72], f32[999,72], f32[72], f32[72], "
                   "f32[72]> {eps=0.1}"},
    },
};

const ll_op *const ll_ops_batchnorm_relu[] = {&ops[0], &ops[1], &ops[2], &ops[3], &ops[4], NULL};
