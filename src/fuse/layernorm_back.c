/* layernorm_back.c: the gradients of a layernorm or rmsnorm as one node, for GPUs, with the
 * gradient that comes along a residual past the norm (more), and the sum of columns that is the
 * gradient of a bias:
 *
 *     dy, x, gain, mean, rstd[, more] -> dx (+ more), dgain, dbias[, sum of dx over the rows]
 *     dy, x, gain, rstd[, more] -> dx (+ more), dgain
 *     dy, x, dx, more [*,c]   mean, rstd [*]   others [c] */
#include "fuse/fuse_int.h"
#include "op/rows.h"

extern const ll_solver layernorm_back_cuda[], rmsnorm_back_cuda[];

#define BACK                                                                                       \
    .n_in = 5, .n_more = 1, .wide_in = 1u << 2 | 1u << 3 | 1u << 4,                                \
    .wide_out = 1u << 1 | 1u << 2 | 1u << 3, .whole = "*c", .infer = ll_infer_floats,              \
    .no_grad = true, .flop = 15, .in_place = 1u << 0 | 1u << 1 | 1u << 5,                          \
    .cuda = LL_GPU(layernorm_back_cuda),                                                           \
    .trials = {"f32[3,7], f32[3,7], f32[7], f32[3], f32[3]>",                                      \
               "f32[2,3,5], f32[2,3,5], f32[5], f32[2,3], f32[2,3]>, f32[2,3,5]",                  \
               "f32[301,768], f32[301,768], f32[768], f32[301], f32[301]>, f32[301,768]",          \
               "f32[37,1600], f32[37,1600], f32[1600], f32[37], f32[37]>, f32[37,1600]",           \
               "f32[9,2056], f32[9,2056], f32[2056], f32[9], f32[9]>, f32[9,2056]",                \
               "f32[0,8], f32[0,8], f32[8], f32[0], f32[0]>, f32[0,8]"}

static const ll_op ops[] = {{.name = "layernorm_back",
                             .work = LL_WORK_NORM,
                             .n_out = 3,
                             .dims = "*c, *c, c, *, *, *c -> *c, c, c",
                             BACK},
                            {.name = "layernorm_back_sum",
                             .work = LL_WORK_NORM,
                             .n_out = 4,
                             .dims = "*c, *c, c, *, *, *c -> *c, c, c, c",
                             BACK}};

static const ll_op rmsnorm_back = {
    LL_GPU_OP(rmsnorm_back, NORM, 4, 2),
    .n_more = 1,
    .dims = "*c, *c, c, *, *c -> *c, c",
    .wide_in = 1u << 2 | 1u << 3,
    .wide_out = 1u << 1,
    .whole = "*c",
    .infer = ll_infer_floats,
    .flop = 11,
    .in_place = 1u << 0 | 1u << 1 | 1u << 4,
    .trials = {"f32[3,7], f32[3,7], f32[7], f32[3]>",
               "f32[2,3,5], f32[2,3,5], f32[5], f32[2,3]>, f32[2,3,5]",
               "f32[301,576], f32[301,576], f32[576], f32[301]>, f32[301,576]",
               "f32[37,1600], f32[37,1600], f32[1600], f32[37]>",
               "f32[9,4096], f32[9,4096], f32[4096], f32[9]>, f32[9,4096]",
               "f32[0,8], f32[0,8], f32[8], f32[0]>, f32[0,8]"},
};

#define RMS_GRADS                                                                                  \
    "dgain = rmsnorm_dw(dy, x, rstd)\n"                                                            \
    "dx = rmsnorm_dx(dy, x, gain, rstd)\n"
#define GRADS                                                                                      \
    "dgain, dbias = layernorm_dw(dy, x, mean, rstd)\n"                                             \
    "dx = layernorm_dx(dy, x, gain, mean, rstd)\n"

static const ll_fusion_row rows[] = {
    {.pattern = GRADS "r = add(dx, more)\nn = sum(r) {spec=\"*c->c\"}",
     .replace = "r, dgain, dbias, n = layernorm_back_sum(dy, x, gain, mean, rstd, more)",
     .same = "r dx more"},
    {.pattern = GRADS "r = add(dx, more)",
     .replace = "r, dgain, dbias = layernorm_back(dy, x, gain, mean, rstd, more)",
     .same = "r dx more"},
    {.pattern = GRADS "n = sum(dx) {spec=\"*c->c\"}",
     .replace = "dx, dgain, dbias, n = layernorm_back_sum(dy, x, gain, mean, rstd)"},
    {.pattern = GRADS, .replace = "dx, dgain, dbias = layernorm_back(dy, x, gain, mean, rstd)"},
    {.pattern = RMS_GRADS "r = add(dx, more)",
     .replace = "r, dgain = rmsnorm_back(dy, x, gain, rstd, more)",
     .same = "r dx more"},
    {.pattern = RMS_GRADS, .replace = "dx, dgain = rmsnorm_back(dy, x, gain, rstd)"},
    {0}};

LL_GPU_FUSION(layernorm_back, BACKWARD, .rows = rows)
const ll_op *const ll_ops_layernorm_back[] = {&ops[0], &ops[1], &rmsnorm_back, NULL};
