/* softplus: y = log(1 + exp(x)), relu without the corner. */
#include "op/op_int.h"

static void softplus_grad(ll_bwd *b)
{
    b->din[0] = ll_mul(b->g, b->dout[0], ll_sigmoid(b->g, b->in[0]));
}

static const ll_op softplus = {LL_EW_OP1(softplus, 20),
                               .trials = {"f32[7,3]", "f32[1]", "f32[2,0,3]", "f32[]"}};

ll_val ll_softplus(ll_graph *g, ll_val x)
{
    return ll_ew_unary(g, LL_EW_softplus, x);
}

const ll_op *const ll_ops_softplus[] = {&softplus, NULL};
