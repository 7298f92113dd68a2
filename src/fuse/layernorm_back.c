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
    .trials = {"*=3 c=7 4>",       "*=2,3 c=5 4> 5",  "*=301 c=768 4> 5",                          \
               "*=37 c=1600 4> 5", "*=9 c=2056 4> 5", "*=0 c=8 4> 5"}

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
    .trials = {"*=3 c=7 3>", "*=2,3 c=5 3> 4", "*=301 c=576 3> 4", "*=37 c=1600 3>",
               "*=9 c=4096 3> 4", "*=0 c=8 3> 4"},
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
