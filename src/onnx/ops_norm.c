/* ops_norm.c: layer, group and other normalisation. */
#include "onnx/walk.h"

/* Operand i as a row of n, broadcast over x's dimensions from axis on. */
static ll_val row_of(op *o, int i, const value *x, int axis, int64_t n)
{
    ll_shape s = {0};
    for (int k = axis; k < x->shape.n; k++) s.d[s.n++] = x->shape.d[k];
    return ll_reshape(o->g, ll_spread(o->g, ll_onnx_plain(o, o->in[i]), &s), LL_SHAPE(n));
}

/* Over all dimensions from axis on; kind 1: by the root of the mean of squares alone. */
static ll_err layer_norm(op *o)
{
    value *x = o->in[0];
    int axis;
    int64_t rows = 1, n = 1;
    double eps = ll_attr_float(o, "epsilon", 1e-5);
    TRY(ll_onnx_axis(o, ll_attr_int(o, "axis", -1), x->shape.n, &axis));
    WANT(o, has(o, 1), "no scale");
    ll_shape few = x->shape;
    for (int i = 0; i < x->shape.n; i++) *(i < axis ? &rows : &n) *= x->shape.d[i];
    for (int i = axis; i < x->shape.n; i++) few.d[i] = 1;
    ll_val v = ll_reshape(o->g, ll_onnx_plain(o, x), LL_SHAPE(rows, n)),
           gain = row_of(o, 1, x, axis, n), y;
    if (o->row->kind)
        y = ll_rmsnorm(o->g, v, gain, eps);
    else
        y = ll_layernorm(o->g, v, gain,
                         has(o, 2) ? row_of(o, 2, x, axis, n)
                                   : ll_fill(o->g, ll_graph_dtype(o->g, v), LL_SHAPE(n), 0),
                         eps);
    if (o->n_out > 1) {
        ll_val mean = ll_mean_over(o->g, v, "ab->a");
        ll_val off = ll_sub(o->g, v, ll_reshape(o->g, mean, LL_SHAPE(rows, 1)));
        ll_val var = ll_mean_over(o->g, ll_square(o->g, off), "ab->a");
        TRY(ll_onnx_give(o, 1, ONNX_FLOAT, ll_reshape(o->g, mean, few), NULL));
        var = ll_rsqrt(o->g, ll_shift(o->g, var, eps));
        TRY(ll_onnx_give(o, 2, ONNX_FLOAT, ll_reshape(o->g, var, few), NULL));
    }
    return ll_onnx_give(o, 0, x->type, ll_reshape(o->g, y, x->shape), NULL);
}

/* kind 1: a group is a channel */
static ll_err group_norm(op *o)
{
    value *x = o->in[0];
    WANT(o, x->shape.n >= 3 && o->n_in == 3 && has(o, 1), "%d operands", o->n_in);
    order lies = ll_last(x->shape.n);
    int64_t c = x->shape.d[1], groups = o->row->kind ? c : ll_attr_int(o, "num_groups", 0);
    WANT(o, groups > 0 && c % groups == 0, "%ld groups", groups);
    for (int i = 1; i < 3; i++)
        WANT(o, o->in[i]->shape.n == 1 && o->in[i]->shape.d[0] == c, "a scale for each group");
    ll_val y = ll_group_norm(o->g, ll_onnx_as(o, x, &lies), groups, ll_onnx_plain(o, o->in[1]),
                             ll_onnx_plain(o, o->in[2]), ll_attr_float(o, "epsilon", 1e-5));
    return ll_onnx_give(o, 0, x->type, y, &lies);
}

static ll_err lp_norm(op *o)
{
    value *x = o->in[0];
    int axis;
    order lies;
    int64_t p = ll_attr_int(o, "p", 2);
    TRY(ll_onnx_axis(o, ll_attr_int(o, "axis", -1), x->shape.n, &axis));
    WANT(o, p == 1 || p == 2, "p of %ld", p);
    ll_val v = ll_onnx_with_last(o, x, axis, &lies);
    ll_shape s = ll_graph_shape(o->g, v);
    int64_t n = s.d[s.n - 1];
    v = ll_reshape(o->g, v, LL_SHAPE(ll_numel(&s) / (n ? n : 1), n));
    ll_val sum = ll_sum(o->g, p == 1 ? ll_abs(o->g, v) : ll_square(o->g, v), "ab->a");
    if (p == 2) sum = ll_sqrt(o->g, sum);
    sum = ll_select(o->g, sum, sum, ll_one(o, sum, 1)); /* of nothing but zeros: zeros */
    ll_val y = ll_div(o->g, v, ll_reshape(o->g, sum, LL_SHAPE(ll_graph_shape(o->g, sum).d[0], 1)));
    return ll_onnx_give(o, 0, x->type, ll_reshape(o->g, y, s), &lies);
}

const row ll_rows_norm[] = {
    {"LayerNormalization", layer_norm}, {"RMSNormalization", layer_norm, .kind = 1},
    {"GroupNormalization", group_norm}, {"InstanceNormalization", group_norm, .kind = 1},
    {"LpNormalization", lp_norm},       {0},
};
