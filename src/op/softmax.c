/* softmax: y = exp(x - max x) / sum exp(x - max x) over the last dimension.   x, y [*,c]
 *
 * A row is whole: no rank can finish its part alone. Split over c the op becomes its expansion,
 * whose amax and sum are plain reductions that a partitioner knows how to combine. */
#include "op/rows.h"

LL_KERNELS(softmax)

static void expand(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_shape s = ll_graph_shape(g, in[0]);
    ll_val top = ll_row_spread(g, ll_row_max(g, in[0]), &s);
    ll_val e = ll_exp(g, ll_sub(g, in[0], top));
    out[0] = ll_div(g, e, ll_row_spread(g, ll_row_sum(g, e), &s));
}

/* dx = y (dy - sum y dy) */
static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val y = b->out[0], dy = b->dout[0];
    ll_shape s = ll_graph_shape(g, y);
    ll_val inner = ll_row_spread(g, ll_row_sum(g, ll_mul(g, y, dy)), &s);
    b->din[0] = ll_mul(g, y, ll_sub(g, dy, inner));
}

const ll_op ll_op_softmax = {
    LL_OP(softmax, LOSS, 1, 1),
    .dims = "*c -> *c",
    .whole = "c",
    .infer = ll_infer_floats,
    .expand = expand,
    .grad = grad,
    .flop = 4,
    .in_place = 1,
    .trials = {"f32[3,7]", "f32[2,1,5]", "f32[4,1]", "f32[13]", "f32[0,3]", "f32[3,72]"},
};

ll_val ll_softmax(ll_graph *g, ll_val x)
{
    return LL_EMIT(g, &ll_op_softmax, NULL, x);
}

const ll_op *const ll_ops_softmax[] = {&ll_op_softmax, NULL};
