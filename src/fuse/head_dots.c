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
    .trials = {"b=2 t=3 n=2 g=2 e=5", "b=1 t=70 n=3 g=1 e=64", "b=2 t=33 n=1 g=4 e=128",
               "b=3 t=1 n=2 g=1 e=24", "b=0 t=2 n=1 g=1 e=8"},
};

static const ll_fusion_row rows[] = {{.pattern =
                                          "p = mul(a, b)\ns = sum(p) {spec=\"btnge->btng\"}\n"
                                          "d = transpose(s) {spec=\"btng->bngt\"}",
                                      .replace = "d = head_dots(a, b)",
                                      .same = "p a b"},
                                     {0}};

LL_GPU_FUSION(head_dots, BACKWARD, .rows = rows)
const ll_op *const ll_ops_head_dots[] = {&head_dots, NULL};
