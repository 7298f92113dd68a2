/* ops_loss.c: losses of classes: scores [n,c,...] and labels [n,...]. */
#include "onnx/walk.h"

/* Rows of scores, classes last, against labels; those of ignore_index do not count. */
static ll_err loss_of(op *o, ll_val log_p)
{
    value *t = o->in[1];
    ll_val label = ll_onnx_plain(o, t), weight = {0};
    ll_dtype type = ll_graph_dtype(o->g, log_p);
    const Onnx__Attribute *skip = ll_attr(o, "ignore_index");
    ll_shape s = ll_graph_shape(o->g, log_p);
    int64_t c = s.d[s.n - 1];
    if (skip) {
        ll_val none = ll_equal(o->g, label, ll_one(o, label, (double)skip->i));
        label = ll_select(o->g, none, ll_one(o, label, 0), label);
        weight = ll_cast(o->g, ll_sub(o->g, ll_one(o, none, 1), none), type);
    }
    if (has(o, 2)) {
        ll_val w = ll_gather(o->g, ll_onnx_plain(o, o->in[2]), label, 0);
        weight = weight.id ? ll_mul(o->g, w, weight) : w;
    }
    int64_t n = ll_numel(&t->shape);
    ll_val loss =
        ll_nll(o->g, ll_reshape(o->g, log_p, LL_SHAPE(n, c)), ll_reshape(o->g, label, LL_SHAPE(n)));
    if (weight.id) weight = ll_reshape(o->g, weight, LL_SHAPE(n));
    if (weight.id) loss = ll_mul(o->g, loss, weight);
    const char *how = ll_attr_text(o, "reduction", "mean");
    bool mean = !strcmp(how, "mean"), sum = !strcmp(how, "sum");
    WANT(o, mean || sum || !strcmp(how, "none"), "reduction %s", how);
    if (mean && !weight.id)
        loss = ll_mean(o->g, loss);
    else if (mean)
        loss = ll_div(o->g, ll_sum_all(o->g, loss), ll_sum_all(o->g, weight));
    else if (sum)
        loss = ll_sum_all(o->g, loss);
    else
        loss = ll_reshape(o->g, loss, t->shape);
    return ll_onnx_give(o, 0, o->in[0]->type, loss, NULL);
}

/* kind 1: scores, not yet logarithms of probabilities; those are a second result. */
static ll_err loss(op *o)
{
    value *x = o->in[0];
    WANT(o, x->shape.n >= 2 && has(o, 1) && o->in[1]->shape.n == x->shape.n - 1, "no labels");
    order lies = ll_last(x->shape.n);
    ll_val v = ll_onnx_as(o, x, &lies);
    if (o->row->kind) v = ll_log_softmax(o->g, v, x->shape.n - 1);
    TRY(loss_of(o, v));
    return o->row->kind ? ll_onnx_give(o, 1, x->type, v, &lies) : LL_OK;
}

const row ll_rows_loss[] = {
    {"NegativeLogLikelihoodLoss", loss},
    {"SoftmaxCrossEntropyLoss", loss, .kind = 1},
    {0},
};
