/* reduce.c: sum, largest value, largest magnitude and sum of squares over the dimensions whose
 * letters vanish: "nhwc->c". */
#include "op/op_int.h"

LL_KERNELS(sum, amax, absmax, sumsq)
ll_scratch reduce_cpu_scratch;

static const ll_op absmax, sumsq;

static ll_val reduce(ll_graph *g, const ll_op *op, ll_val x, const char *spec)
{
    ll_spec_attr a = {0};
    if (!ll_has_argument(g, op->name, "spec", spec)) return (ll_val){0};
    strncpy(a.spec, spec, LL_SPEC_MAX - 1);
    ll_dtype t = x.id ? ll_graph_dtype(g, x) : LL_F32;
    if (ll_dtype_is_float(t)) return LL_EMIT(g, op, &a, x);
    x = ll_cast(g, x, LL_F64); /* which holds all integers that matter, on every machine */
    return ll_cast(g, LL_EMIT(g, op, &a, x), t);
}

ll_val ll_sum(ll_graph *g, ll_val x, const char *spec)
{
    return reduce(g, &ll_op_sum, x, spec);
}

ll_val ll_amax(ll_graph *g, ll_val x, const char *spec)
{
    return reduce(g, &ll_op_amax, x, spec);
}

ll_val ll_absmax(ll_graph *g, ll_val x, const char *spec)
{
    return reduce(g, &absmax, x, spec);
}

static ll_val reduce_all(ll_graph *g, const ll_op *op, ll_val x)
{
    char spec[LL_SPEC_MAX] = {0};
    int n = ll_graph_shape(g, x).n;
    for (int i = 0; i < n; i++) spec[i] = (char)('a' + i);
    return reduce(g, op, x, strcat(spec, "->"));
}

ll_val ll_sum_all(ll_graph *g, ll_val x)
{
    return reduce_all(g, &ll_op_sum, x);
}

ll_val ll_sumsq(ll_graph *g, ll_val x)
{
    return reduce_all(g, &sumsq, x);
}

ll_val ll_mean(ll_graph *g, ll_val x)
{
    ll_shape s = ll_graph_shape(g, x);
    int64_t n = ll_numel(&s);
    if (n == 0) ll_reject(g, LL_E_SHAPE, "%smean: the operand has no elements", ll_scope(g));
    return ll_scale(g, ll_sum_all(g, x), 1.0 / (double)n);
}

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    return ll_spec_loops(((const ll_spec_attr *)attr)->spec, ll_spec_shrinks,
                         "reduction: the result's letters must be the operand's, in their order",
                         dims);
}

static void sum_grad(ll_bwd *b)
{
    const ll_spec_attr *a = b->attr;
    char back[LL_SPEC_MAX];
    b->din[0] = ll_broadcast(b->g, b->dout[0], ll_spec_reverse(a->spec, back),
                             ll_graph_shape(b->g, b->in[0]));
}

/* The gradient goes to the largest element; equal ones share it. */
static void amax_grad(ll_bwd *b)
{
    const ll_spec_attr *a = b->attr;
    char back[LL_SPEC_MAX];
    ll_spec_reverse(a->spec, back);
    ll_shape shape = ll_graph_shape(b->g, b->in[0]);
    ll_val largest = ll_equal(b->g, b->in[0], ll_broadcast(b->g, b->out[0], back, shape));
    ll_val share = ll_div(b->g, b->dout[0], ll_sum(b->g, largest, a->spec));
    b->din[0] = ll_mul(b->g, largest, ll_broadcast(b->g, share, back, shape));
}

static void expand_sumsq(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    out[0] = ll_sum(g, ll_square(g, in[0]), ((const ll_spec_attr *)attr)->spec);
}

#define REDUCE_OP(fn)                                                                              \
    LL_SOME_OP(fn, REDUCTION, 1, 1, .scratch = reduce_cpu_scratch, .parts = true),                 \
        LL_ATTRS(ll_spec_attr, spec),                                                              \
        .loops = loops, .f64 = true,                                                               \
        .trials = {"f32[40,9,1,24] {spec=\"nhwc->c\"}", "f32[7,40] {spec=\"nc->n\"}",              \
                   "f32[2,3,5,3] {spec=\"nhwc->nc\"}",  "f32[3,7] {spec=\"ab->\"}",                \
                   "f32[5,3] {spec=\"ab->ab\"}",        "f32[2,3,5,2] {spec=\"abcd->ac\"}",        \
                   "f32[0,3] {spec=\"ab->b\"}",         "f32[] {spec=\"->\"}"}

const ll_op ll_op_sum = {
    REDUCE_OP(sum), .wide_out = 1u << 0, .flop = 1, .sum = "?", .linear = true, .grad = sum_grad,
};
const ll_op ll_op_amax = {REDUCE_OP(amax), .flop = 1, .max = "?", .grad = amax_grad};
static const ll_op absmax = {REDUCE_OP(absmax), .flop = 1, .max = "?", .no_grad = true};
static const ll_op sumsq = {
    REDUCE_OP(sumsq), .wide_out = 1u << 0, .flop = 2, .sum = "?", .expand = expand_sumsq,
};

const ll_op *const ll_ops_reduce[] = {&ll_op_sum, &ll_op_amax, &absmax, &sumsq, NULL};
