/* cross_entropy_back.c: a loss and its gradient as one node, for GPUs, if the gradient of the loss
 * is known by then; dlogits may lie on the logits:
 *
 *     logits [*,v], label i32 [*], dloss [*] -> dlogits, loss, lse */
#include "fuse/fuse_int.h"
#include "op/rows.h"

extern const ll_solver cross_entropy_back_cuda[];

static ll_err infer(ll_infer *i)
{
    ll_dtype t = i->in[0].dtype;
    CHECK(ll_dtype_is_float(t) && i->in[2].dtype == ll_wide(t), LL_E_ARG,
          "dloss is %s beside logits of %s", ll_dtype_name(i->in[2].dtype), ll_dtype_name(t));
    TRY(ll_check_index(i, 1));
    return ll_infer_dims(i);
}

static const ll_op cross_entropy_back = {
    LL_GPU_OP(cross_entropy_back, LOSS, 3, 3),
    .dims = "*v, *, * -> *v, *, *",
    .whole = "*v",
    .logits = 1,
    .wide_in = 1u << 2,
    .wide_out = 1u << 1 | 1u << 2,
    .infer = infer,
    .flop = 6,
    .in_place = 1u << 0,
    .trials = {"*=5 v=7 1:i32<7", "*=2,3 v=11 1:i32<11", "v=9 1:i32<9", "*=7 v=72 1:i32<72",
               "*=11 v=10256 1:i32<10256", "*=1 v=60008 1:i32<60008", "*=0 v=4 1:i32<4"},
};

static const ll_fusion_row rows[] = {
    {.pattern = "loss, lse = cross_entropy(logits, label)\n"
                "d = cross_entropy_grad(dloss, logits, label, lse)",
     .replace = "d, loss, lse = cross_entropy_back(logits, label, dloss)"},
    {0}};

LL_GPU_FUSION(cross_entropy_back, BACKWARD, .rows = rows)
const ll_op *const ll_ops_cross_entropy_back[] = {&cross_entropy_back, NULL};
