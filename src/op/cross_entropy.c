/* cross_entropy: loss = lse - logits[label], lse = log sum exp(logits) of each row.
 *   logits [*,v]   label i32 [*]   loss, lse [*] (lse is kept for the gradient)
 * cross_entropy_grad: dlogits = (exp(logits - lse) - onehot(label)) dloss, so the probabilities are
 *   never stored. Split over v, both become their expansions (vocabulary-parallel loss).
 * correct: 1 where the first largest logit of a row is the label's, else 0. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(cross_entropy, cross_entropy_grad, correct)

static ll_err infer(ll_infer *i)
{
    TRY(ll_check_float(i->in[0].dtype, "logits are"));
    TRY(ll_check_index(i, 1));
    return ll_infer_dims(i);
}

static ll_err infer_grad(ll_infer *i)
{
    ll_dtype t = i->in[1].dtype;
    for (int k = 0; k < i->n_in; k++)
        CHECK(k == 2 || (ll_dtype_is_float(t) && i->in[k].dtype == (k == 1 ? t : ll_wide(t))),
              LL_E_ARG, "operand %d is %s, beside logits of %s", k, ll_dtype_name(i->in[k].dtype),
              ll_dtype_name(t));
    TRY(ll_check_index(i, 2));
    return ll_infer_dims(i);
}

static ll_err infer_correct(ll_infer *i)
{
    TRY(infer(i));
    i->out[0].dtype = LL_F32;
    return LL_OK;
}

static ll_val onehot_like(ll_graph *g, ll_val label, ll_val logits)
{
    return ll_onehot_labels(g, label, ll_row_length(g, logits), ll_graph_dtype(g, logits));
}

/* exp(logits - lse) */
static ll_val probability(ll_graph *g, ll_val logits, ll_val lse)
{
    ll_shape s = ll_graph_shape(g, logits);
    return ll_exp(g, ll_sub(g, logits, ll_row_spread(g, lse, &s)));
}

static void expand(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val top = ll_row_max(g, in[0]);
    ll_val picked = ll_row_sum(g, ll_mul(g, in[0], onehot_like(g, in[1], in[0])));
    out[1] = ll_add(g, ll_log(g, ll_row_sum(g, probability(g, in[0], top))), top);
    out[0] = ll_sub(g, out[1], picked);
}

static void expand_grad(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val dloss = in[0], logits = in[1], label = in[2], lse = in[3];
    ll_shape s = ll_graph_shape(g, logits);
    ll_val d = ll_sub(g, probability(g, logits, lse), onehot_like(g, label, logits));
    out[0] = ll_mul(g, d, ll_row_spread(g, dloss, &s));
}

static const ll_op cross_entropy_grad = {
    LL_OP(cross_entropy_grad, LOSS, 4, 1, .parts = true),
    .dims = "*, *v, *, * -> *v",
    .wide_in = 1u << 0 | 1u << 3,
    .whole = "v",
    .logits = 2,
    .infer = infer_grad,
    .expand = expand_grad,
    .flop = 3,
    .in_place = 1u << 1, /* the largest tensor of a language model */
    .trials = {"*=5 v=7 2:i32<7", "*=2,3 v=11 2:i32<11", "*=2 v=1 2:i32<1", "v=9 2:i32<9",
               "*=3 v=88 2:i32<88"},
};

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val logits = b->in[0], lse = b->out[1];
    if (b->dout[1].id) { /* d lse / dlogits = exp(logits - lse) */
        ll_shape s = ll_graph_shape(g, logits);
        b->din[0] = ll_mul(g, probability(g, logits, lse), ll_row_spread(g, b->dout[1], &s));
    }
    if (!b->dout[0].id) return;
    ll_val d = LL_EMIT(g, &cross_entropy_grad, NULL, b->dout[0], logits, b->in[1], lse);
    b->din[0] = ll_add_some(g, b->din[0], d);
}

static const ll_op cross_entropy = {
    LL_OP(cross_entropy, LOSS, 2, 2, .parts = true),
    .dims = "*v, * -> *, *",
    .wide_out = 1u << 0 | 1u << 1,
    .whole = "v",
    .logits = 1,
    .infer = infer,
    .expand = expand,
    .grad = grad,
    .flop = 3,
    .trials = {"f32[5,7], i32[5]<7", "f32[2,3,11], i32[2,3]<11", "f32[2,1], i32[2]<1",
               "f32[9], i32[]<9", "f32[0,4], i32[0]<4", "f32[3,88], i32[3]<88"},
};

static const ll_op correct = {
    LL_REF_OP(correct, LOSS, 2, 1, .parts = true),
    .dims = "*v, * -> *",
    .whole = "v",
    .wide_out = 1u << 0,
    .infer = infer_correct,
    .no_grad = true,
    .flop = 1,
    .trials = {"f32[5,3], i32[5]<3", "f32[2,3,4], i32[2,3]<4", "f32[2,1], i32[2]<1",
               "f32[5], i32[]<5"},
};

ll_val ll_cross_entropy(ll_graph *g, ll_val logits, ll_val label)
{
    return LL_EMIT(g, &cross_entropy, NULL, logits, label);
}

ll_val ll_correct(ll_graph *g, ll_val logits, ll_val label)
{
    return LL_EMIT(g, &correct, NULL, logits, label);
}

const ll_op *const ll_ops_cross_entropy[] = {&cross_entropy, &cross_entropy_grad, &correct, NULL};
