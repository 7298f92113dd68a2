/* head_dots.c: what attend's gradient wants of its result and that result's gradient, as one node,
 * for GPUs: products are summed as they are made, in f32, and no tensor of them is written.
 *
 *     do, o [b,t,n,g,e] -> sum over e of do o, [b,n,g,t] */
#include "fuse/fuse_int.h"
#include "op/rows.h"

extern const ll_solver head_dots_cuda[];

static const ll_op head_dots = {
    LL_GPU_OP(head_dots, REDUCTION, 2, 1),
    .dims = "btnge, btnge -> bngt",
    .whole = "e",
    .wide_out = 1u << 0,
    .infer = ll_infer_floats,
    .flop = 2,
    .trials = {"f32[2,3,2,2,5], f32[2,3,2,2,5]", "f32[1,70,3,1,64], f32[1,70,3,1,64]",
               "f32[2,33,1,4,128], f32[2,33,1,4,128]", "f32[3,1,2,1,24], f32[3,1,2,1,24]",
               "f32[0,2,1,1,8], f32[0,2,1,1,8]"},
};

static const ll_fusion_row rows[] = {{.pattern =
                                          "p = mul(a, b)\ns = sum(p) {spec=\"btnge->btng\"}\n"
                                          "d = transpose(s) {spec=\"btng->bngt\"}",
                                      .replace = "d = head_dots(a, b)",
                                      .same = "p a b"},
                                     {0}};

LL_GPU_FUSION(head_dots, BACKWARD, .rows = rows)
const ll_op *const ll_ops_head_dots[] = {&head_dots, NULL};
