/* softcap: y = cap tanh(x / cap): large numbers are kept below cap.   x, y [*] */
#include "op/op_int.h"

LL_KERNELS(softcap)

/* dy (1 - (y / cap)^2) */
static void grad(ll_bwd *b)
{
    double cap = ((const ll_softcap_attr *)b->attr)->cap;
    ll_val part = ll_square(b->g, ll_scale(b->g, b->out[0], 1 / cap));
    b->din[0] = ll_mul(b->g, b->dout[0], ll_shift(b->g, ll_neg(b->g, part), 1));
}

static ll_err infer(ll_infer *i)
{
    double cap = ((const ll_softcap_attr *)i->attr)->cap;
    CHECK(cap > 0, LL_E_ARG, "a cap of %g, want one over 0", cap);
    return ll_infer_dims(i);
}

static const ll_op softcap = {
    LL_REF_OP(softcap, OTHER, 1, 1),
    LL_ATTRS(ll_softcap_attr, cap),
    .dims = "* -> *",
    .infer = infer,
    .grad = grad,
    .flop = 17,
    .in_place = 1,
    .trials = {"f32[3,7] {cap=2}", "f32[1] {cap=0.5}", "f32[0,3] {cap=1}"},
};

ll_val ll_softcap(ll_graph *g, ll_val x, double cap)
{
    return LL_EMIT(g, &softcap, &(ll_softcap_attr){cap}, x);
}

const ll_op *const ll_ops_softcap[] = {&softcap, NULL};
