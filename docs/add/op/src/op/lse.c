/* lse: y = log sum exp(x) over the last dimension.   x [*,c]   y [*] */
#include "op/rows.h"

LL_KERNELS(lse)

static void expand(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_shape s = ll_graph_shape(g, in[0]);
    ll_val top = ll_row_max(g, in[0]);
    ll_val e = ll_exp(g, ll_sub(g, in[0], ll_row_spread(g, top, &s)));
    out[0] = ll_add(g, ll_log(g, ll_row_sum(g, e)), top);
}

/* dx = dy softmax(x) */
static void grad(ll_bwd *b)
{
    ll_shape s = ll_graph_shape(b->g, b->in[0]);
    ll_val spread = ll_row_spread(b->g, b->dout[0], &s);
    b->din[0] = ll_mul(b->g, spread, ll_softmax(b->g, b->in[0]));
}

static const ll_op lse = {
    .name = "lse",
    .n_in = 1,
    .n_out = 1,
    .dims = "*c -> *",
    .whole = "c",
    .infer = ll_infer_floats,
    .expand = expand,
    .grad = grad,
    .flop = 3,
    .ref = lse_ref,
    .cpu = LL_KERNEL(.run = lse_cpu),
    .trials = {"f32[3,7]", "f32[2,1,5]", "f32[4,1]", "f32[13]", "f32[0,3]"},
};

ll_val ll_lse(ll_graph *g, ll_val x)
{
    return LL_EMIT(g, &lse, NULL, x);
}

const ll_op *const ll_ops_lse[] = {&lse, NULL};
