/* residual_rmsnorm.c: a residual's sum and its norm as one node: the sum is read while it is in
 * cache.
 *
 *     a, b, gain -> sum, y, rstd      sum = a + b      y = rmsnorm(sum)      [*,c], rstd [*] */
#include "fuse/fuse_int.h"
#include "op/rows.h"

LL_KERNELS(residual_rmsnorm)

static const ll_op residual_rmsnorm = {
    .name = "residual_rmsnorm",
    .n_in = 3,
    .n_out = 3,
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, *c, c -> *c, *c, *",
    .whole = "*c",
    .infer = ll_infer_floats,
    .no_grad = true,
    .flop = 5,
    .cpu = LL_KERNEL(.run = residual_rmsnorm_cpu),
    .trials = {"f32[3,7], f32[3,7], f32[7] {eps=1e-5}", "f32[6], f32[6], f32[6] {eps=1e-3}"},
};

static const ll_fusion_row rows[] = {
    {.pattern = "s = add(a, b)\ny, rstd = rmsnorm(s, gain) {eps=$eps}",
     .replace = "s, y, rstd = residual_rmsnorm(a, b, gain) {eps=$eps}",
     .same = "s a b"},
    {0}};

static const ll_fusion fusion = {
    .name = "residual_rmsnorm", .stage = LL_FUSE_FORWARD, .target = &ll_target_cpu, .rows = rows};
const ll_op *const ll_ops_residual_rmsnorm[] = {&residual_rmsnorm, NULL};
const ll_fusion *const ll_fusions_residual_rmsnorm[] = {&fusion, NULL};
