/* ops_reduce.c: reductions over axes, softmax and its kin. */
#include "onnx/walk.h"

#include <math.h>

typedef enum kind { SUM, MEAN, MAX, MIN, PROD, L1, L2, LOG_SUM, LOG_SUM_EXP, SUM_SQUARE } kind;

/* Letters of all dimensions, then of those that stay. */
static void spec_of(int n, const order *lies, const bool *gone, char spec[2 * LL_MAX_DIMS + 3])
{
    char *at = spec;
    for (int i = 0; i < n; i++) *at++ = (char)('a' + lies->d[i]);
    *at++ = '-', *at++ = '>';
    for (int i = 0; i < n; i++)
        if (!gone[lies->d[i]]) *at++ = (char)('a' + lies->d[i]);
    *at = '\0';
}

/* Of operands without numbers: what the reduction starts with. */
static double begin(kind k)
{
    return k == MAX                           ? -INFINITY
           : k == MIN                         ? INFINITY
           : k == PROD                        ? 1
           : k == LOG_SUM || k == LOG_SUM_EXP ? -INFINITY
           : k == MEAN                        ? NAN
                                              : 0;
}

static ll_val apply(ll_graph *g, kind k, ll_val x, const char *spec)
{
    switch (k) {
    case SUM: return ll_sum(g, x, spec);
    case MEAN: return ll_mean_over(g, x, spec);
    case MAX: return ll_amax(g, x, spec);
    case MIN: return ll_amin(g, x, spec);
    case PROD: return ll_prod(g, x, spec);
    case L1: return ll_sum(g, ll_abs(g, x), spec);
    case L2: return ll_sqrt(g, ll_sum(g, ll_square(g, x), spec));
    case LOG_SUM: return ll_log(g, ll_sum(g, x, spec));
    case LOG_SUM_EXP: return ll_logsumexp(g, x, spec);
    case SUM_SQUARE: return ll_sum(g, ll_square(g, x), spec);
    }
    LL_ASSERT(!"a reduction");
}

/* keep: what is gone stays as a dimension of 1. */
static ll_err reduce_over(op *o, const bool *gone, bool keep)
{
    value *x = o->in[0];
    kind k = (kind)o->row->kind;
    int64_t count = 1;
    order lies, left;
    ll_val v = ll_onnx_any(o, x, &lies);
    if (ll_onnx_whole(x->type)) v = ll_cast(o->g, v, LL_F64);
    ll_shape shorter = ll_without(&x->shape, &lies, gone, &left), kept = {.n = x->shape.n};
    for (int i = 0; i < x->shape.n; i++) {
        bool stays = !gone[lies.d[i]];
        kept.d[i] = stays ? x->shape.d[lies.d[i]] : 1;
        if (!stays) count *= x->shape.d[lies.d[i]];
    }
    char spec[2 * LL_MAX_DIMS + 3];
    spec_of(x->shape.n, &lies, gone, spec);
    ll_val y;
    WANT(o, count || x->type == ONNX_BOOL || !ll_onnx_whole(x->type) || k == SUM || k == PROD,
         "of no %s", ll_onnx_type_name(x->type));
    if (!count && x->type == ONNX_BOOL)
        y = ll_fill(o->g, LL_F64, shorter, k == MIN);
    else if (!count)
        y = ll_fill(o->g, ll_graph_dtype(o->g, v), shorter, begin(k));
    else
        y = apply(o->g, k, v, spec);
    if (keep) y = ll_reshape(o->g, y, kept);
    if (ll_onnx_whole(x->type) && k != SUM && k != PROD) /* a mean is cut off behind the point */
        y = ll_mul(o->g, ll_sign(o->g, y), ll_floor(o->g, ll_abs(o->g, y)));
    return ll_onnx_give(o, 0, x->type, y, keep ? &lies : &left);
}

static ll_err reduce(op *o)
{
    int64_t axes[LL_MAX_DIMS];
    int n, d, rank = o->in[0]->shape.n;
    bool gone[LL_MAX_DIMS] = {0}, keep = ll_attr_int(o, "keepdims", 1) != 0;
    TRY(ll_onnx_list(o, 1, "axes", axes, LL_MAX_DIMS, &n));
    bool all = !ll_attr_int(o, "noop_with_empty_axes", 0) && n <= 0;
    for (int i = 0; i < rank && all; i++) gone[i] = true;
    for (int i = 0; i < n; i++) {
        TRY(ll_onnx_axis(o, axes[i], rank, &d));
        gone[d] = true;
    }
    return reduce_over(o, gone, keep);
}

/* Over all but the first two dimensions. */
static ll_err global_pool(op *o)
{
    bool gone[LL_MAX_DIMS] = {0};
    int n = o->in[0]->shape.n;
    WANT(o, n >= 3, "%d dimensions", n);
    for (int i = 2; i < n; i++) gone[i] = true;
    return reduce_over(o, gone, true);
}

/* ---- softmax ---- */

static ll_val log_softmax(ll_graph *g, ll_val x)
{
    return ll_log_softmax(g, x, ll_graph_shape(g, x).n - 1);
}

static ll_val hardmax(ll_graph *g, ll_val x)
{
    ll_shape s = ll_graph_shape(g, x);
    int last = s.n - 1;
    return ll_one_hot(g, ll_argmax(g, x, last), s.d[last], ll_graph_dtype(g, x));
}

/* Over one axis; before opset 13 over it and all that follow. */
static ll_err softmax(op *o)
{
    value *x = o->in[0];
    int axis;
    order lies = ll_plain;
    bool old = o->version < 13;
    TRY(ll_onnx_axis(o, ll_attr_int(o, "axis", old ? 1 : -1), x->shape.n, &axis));
    ll_val v;
    if (old && axis < x->shape.n - 1) {
        int64_t rows = 1, cols = 1;
        for (int i = 0; i < x->shape.n; i++) *(i < axis ? &rows : &cols) *= x->shape.d[i];
        v = ll_reshape(o->g, ll_onnx_plain(o, x), LL_SHAPE(rows, cols));
        v = ll_reshape(o->g, o->row->one(o->g, v), x->shape);
    } else {
        v = o->row->one(o->g, ll_onnx_with_last(o, x, axis, &lies));
    }
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

const row ll_rows_reduce[] = {
    {"ReduceSum", reduce, .kind = SUM},
    {"ReduceMean", reduce, .kind = MEAN},
    {"ReduceMax", reduce, .kind = MAX},
    {"ReduceMin", reduce, .kind = MIN},
    {"ReduceProd", reduce, .kind = PROD},
    {"ReduceL1", reduce, .kind = L1},
    {"ReduceL2", reduce, .kind = L2},
    {"ReduceLogSum", reduce, .kind = LOG_SUM},
    {"ReduceLogSumExp", reduce, .kind = LOG_SUM_EXP},
    {"ReduceSumSquare", reduce, .kind = SUM_SQUARE},
    {"GlobalMaxPool", global_pool, .kind = MAX},
    {"GlobalAveragePool", global_pool, .kind = MEAN},
    {"Softmax", softmax, .one = ll_softmax},
    {"LogSoftmax", softmax, .one = log_softmax},
    {"Hardmax", softmax, .one = hardmax},
    {0},
};
