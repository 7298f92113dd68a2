/* softsign: y = x / (1 + |x|), a slower tanh. */
#include "op/op_int.h"

static void softsign_grad(ll_bwd *b) /* d / (1 + |x|)^2 */
{
    ll_val square = ll_square(b->g, ll_shift(b->g, ll_abs(b->g, b->in[0]), 1));
    b->din[0] = ll_div(b->g, b->dout[0], square);
}

static const ll_op softsign = {LL_EW_OP1(softsign, 6),
                               .trials = {"f32[7,3]", "f32[1]", "f32[2,0,3]", "f32[]"}};

ll_val ll_softsign(ll_graph *g, ll_val x)
{
    return ll_ew_unary(g, LL_EW_softsign, x);
}

const ll_op *const ll_ops_softsign[] = {&softsign, NULL};
