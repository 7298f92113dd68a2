/* batchnorm: y = (x - mean) / sqrt(var + eps) gain + bias, with the mean and the (biased) variance
 * of each channel over all leading dimensions.   x, y [*,c]   gain, bias, mean, var [c]
 *
 * batchnorm_grad, with xhat = (x - mean) rstd and n values per channel:
 *   dbias = sum dy,  dgain = sum dy xhat,  dx = gain rstd (dy - dbias/n - xhat dgain/n)
 * Cutting the leading dimensions cuts the expansion: its sums over ranks are synchronised
 * statistics. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(batchnorm, batchnorm_grad)
ll_scratch col_sums_cpu_scratch;

/* Values per channel. */
static int64_t count(const ll_graph *g, ll_val x)
{
    ll_shape s = ll_graph_shape(g, x);
    int64_t n = 1;
    for (int i = 0; i < s.n - 1; i++) n *= s.d[i];
    return n;
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_norm_attr *a = (const ll_norm_attr *)attr;
    ll_val x = in[0];
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)count(g, x);
    ll_val mean = ll_scale(g, ll_col_sum(g, x), by);
    ll_val centred = ll_sub(g, x, ll_col_spread(g, mean, &s));
    ll_val var = ll_scale(g, ll_col_sum(g, ll_square(g, centred)), by);
    ll_val k = ll_mul(g, in[1], ll_rsqrt(g, ll_shift(g, var, a->eps)));
    out[0] = ll_add(g, ll_mul(g, centred, ll_col_spread(g, k, &s)), ll_col_spread(g, in[2], &s));
    out[1] = mean;
    out[2] = var;
}

static void expand_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_norm_attr *a = (const ll_norm_attr *)attr;
    ll_val dy = in[0], x = in[1], gain = in[2], mean = in[3], var = in[4];
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)count(g, x);
    ll_val rstd = ll_rsqrt(g, ll_shift(g, var, a->eps));
    ll_val centred = ll_sub(g, x, ll_col_spread(g, mean, &s));
    ll_val xhat = ll_mul(g, centred, ll_col_spread(g, rstd, &s));
    ll_val dgain = ll_col_sum(g, ll_mul(g, dy, xhat));
    ll_val dbias = ll_col_sum(g, dy);
    ll_val p = ll_col_spread(g, ll_scale(g, dbias, by), &s);
    ll_val q = ll_mul(g, xhat, ll_col_spread(g, ll_scale(g, dgain, by), &s));
    ll_val inner = ll_sub(g, ll_sub(g, dy, p), q);
    out[0] = ll_mul(g, inner, ll_col_spread(g, ll_mul(g, gain, rstd), &s));
    out[1] = dgain;
    out[2] = dbias;
}

static const ll_op batchnorm_grad = {
    LL_OP(batchnorm_grad, NORM, 5, 3, .scratch = col_sums_cpu_scratch, .parts = true),
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, *c, c, c, c -> *c, c, c",
    .wide_in = 1u << 2 | 1u << 3 | 1u << 4,
    .wide_out = 1u << 1 | 1u << 2,
    .whole = "*",
    .infer = ll_infer_floats,
    .expand = expand_grad,
    .flop = 9,
    .in_place = 1u << 0 | 1u << 1,
    .trials = {"*=7 c=3 4> {eps=1e-5}", "*=2,3,5 c=1 4> {eps=0.1}", "*=1 c=5 4> {eps=0.01}",
               "*=70 c=8 4> {eps=0.1}"},
};

/* What reaches mean and var flows on to x: d mean / dx = 1/n,  d var / dx = 2 (x - mean) / n. */
static ll_val grad_of_statistics(const ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val x = b->in[0], dx = {0};
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)count(g, x);
    if (b->dout[1].id) dx = ll_col_spread(g, ll_scale(g, b->dout[1], by), &s);
    if (b->dout[2].id) {
        ll_val centred = ll_sub(g, x, ll_col_spread(g, b->out[1], &s));
        ll_val k = ll_col_spread(g, ll_scale(g, b->dout[2], 2 * by), &s);
        dx = ll_add_some(g, dx, ll_mul(g, centred, k));
    }
    return dx;
}

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    b->din[0] = grad_of_statistics(b);
    if (!b->dout[0].id) return;
    ll_val dx =
        LL_EMIT(g, &batchnorm_grad, b->attr, b->dout[0], b->in[0], b->in[1], b->out[1], b->out[2]);
    b->din[0] = ll_add_some(g, b->din[0], dx);
    b->din[1] = ll_sibling(g, dx, 1);
    b->din[2] = ll_sibling(g, dx, 2);
}

static const ll_op batchnorm = {
    LL_OP(batchnorm, NORM, 3, 3, .scratch = batchnorm_cpu_scratch, .parts = true),
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, c, c -> *c, c, c",
    .wide_in = 1u << 1 | 1u << 2,
    .wide_out = 1u << 1 | 1u << 2,
    .whole = "*",
    .infer = ll_infer_floats,
    .expand = expand,
    .grad = grad,
    .flop = 7,
    .trials = {"*=7 c=3 {eps=1e-5}", "*=2,3,5 c=1 {eps=0.1}", "*=2,2,2 c=5 {eps=1e-5}",
               "*=1 c=5 {eps=0.01}", "*=70 c=8 {eps=1e-5}"},
};

/* Statistics of the batch; the running ones follow, once a step, by the micro-batches' average.
 * The running variance is the unbiased one, as other frameworks keep it. */
static ll_val train(ll_graph *g, ll_val x, const ll_norm *p)
{
    int64_t n = count(g, x);
    if (n < 2) {
        return ll_reject(g, LL_E_SHAPE,
                         "%sbatchnorm: training needs more than one value per channel",
                         ll_scope(g));
    }
    ll_val y = LL_EMIT(g, &batchnorm, &(ll_norm_attr){p->eps}, x, p->gain, p->bias);
    ll_val mean = ll_accum(g, ll_sibling(g, y, 1)), var = ll_accum(g, ll_sibling(g, y, 2));
    double unbias = (double)n / (double)(n - 1), keep = 1 - p->momentum;
    ll_graph_update(g, p->mean,
                    ll_add(g, ll_scale(g, p->mean, keep), ll_scale(g, mean, p->momentum)));
    ll_graph_update(g, p->var,
                    ll_add(g, ll_scale(g, p->var, keep), ll_scale(g, var, p->momentum * unbias)));
    return y;
}

/* Folded to x a + b, with a and b made on channels alone. */
static ll_val infer(ll_graph *g, ll_val x, const ll_norm *p)
{
    ll_shape s = ll_graph_shape(g, x);
    ll_val a = ll_mul(g, p->gain, ll_rsqrt(g, ll_shift(g, p->var, p->eps)));
    ll_val b = ll_sub(g, p->bias, ll_mul(g, p->mean, a));
    return ll_add(g, ll_mul(g, x, ll_col_spread(g, a, &s)), ll_col_spread(g, b, &s));
}

ll_val ll_batchnorm(ll_graph *g, ll_val x, const ll_norm *n)
{
    if (!x.id || !ll_has_argument(g, "batchnorm", "n", n)) return (ll_val){0};
    return n->training ? train(g, x, n) : infer(g, x, n);
}

ll_val ll_batchnorm_layer(ll_graph *g, const char *name, ll_val x, bool training)
{
    if (!x.id) return x;
    ll_shape c = LL_SHAPE(ll_row_length(g, x));
    const ll_init zero = {LL_ZEROS, 0}, one = {LL_CONSTANT, 1};
    ll_graph_push(g, name);
    ll_norm n = {.eps = 1e-5, .momentum = 0.1, .training = training};
    n.gain = ll_param(g, "weight", c, one), n.bias = ll_param(g, "bias", c, zero);
    n.mean = ll_state(g, "mean", c, zero), n.var = ll_state(g, "var", c, one);
    ll_val y = ll_batchnorm(g, x, &n);
    ll_graph_pop(g);
    return y;
}

const ll_op *const ll_ops_batchnorm[] = {&batchnorm, &batchnorm_grad, NULL};
