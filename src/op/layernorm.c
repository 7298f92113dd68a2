/* layernorm: y = (x - mean) rstd gain + bias, mean and rstd = 1/sqrt(variance + eps) of each row.
 *   x, y [*,c]   gain, bias [c]   mean, rstd [*] (kept for the gradient)
 *
 * Its gradient is two ops, since rows are free for dx and summed for dgain and dbias:
 *   xhat = (x - mean) rstd,  u = dy gain
 *   layernorm_dx:  dx = rstd (u - average u - xhat average(u xhat)) along the row
 *   layernorm_dw:  dgain = sum of dy xhat, dbias = sum of dy over the rows
 * On GPUs these are joined with each other and with residuals (fuse/). */
#include "kern/attr.h"
#include "op/rows.h"

LL_KERNELS(layernorm, layernorm_dx, layernorm_dw)
ll_scratch col_sums_cpu_scratch;

/* (x - mean) rstd, of the row statistics [*] */
static ll_val normal(ll_graph *g, ll_val x, ll_val mean, ll_val rstd)
{
    ll_shape s = ll_graph_shape(g, x);
    ll_val centred = ll_sub(g, x, ll_row_spread(g, mean, &s));
    return ll_mul(g, centred, ll_row_spread(g, rstd, &s));
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_norm_attr *a = (const ll_norm_attr *)attr;
    ll_val x = in[0];
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)ll_row_length(g, x);
    ll_val mean = ll_scale(g, ll_row_sum(g, x), by);
    ll_val centred = ll_sub(g, x, ll_row_spread(g, mean, &s));
    ll_val var = ll_scale(g, ll_row_sum(g, ll_square(g, centred)), by);
    ll_val rstd = ll_rsqrt(g, ll_shift(g, var, a->eps));
    ll_val xhat = ll_mul(g, centred, ll_row_spread(g, rstd, &s));
    out[0] = ll_add(g, ll_mul(g, xhat, ll_col_spread(g, in[1], &s)), ll_col_spread(g, in[2], &s));
    out[1] = mean;
    out[2] = rstd;
}

static void expand_dx(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val dy = in[0], x = in[1], gain = in[2], mean = in[3], rstd = in[4];
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)ll_row_length(g, x);
    ll_val xhat = normal(g, x, mean, rstd);
    ll_val u = ll_mul(g, dy, ll_col_spread(g, gain, &s));
    ll_val a = ll_row_spread(g, ll_scale(g, ll_row_sum(g, u), by), &s);
    ll_val b = ll_row_spread(g, ll_scale(g, ll_row_sum(g, ll_mul(g, u, xhat)), by), &s);
    ll_val inner = ll_sub(g, ll_sub(g, u, a), ll_mul(g, xhat, b));
    out[0] = ll_mul(g, inner, ll_row_spread(g, rstd, &s));
}

static void expand_dw(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    out[0] = ll_col_sum(g, ll_mul(g, in[0], normal(g, in[1], in[2], in[3])));
    out[1] = ll_col_sum(g, in[0]);
}

static const ll_op layernorm_dx = {
    LL_OP(layernorm_dx, NORM, 5, 1, .parts = true),
    .dims = "*c, *c, c, *, * -> *c",
    .wide_in = 1u << 2 | 1u << 3 | 1u << 4,
    .whole = "c",
    .infer = ll_infer_floats,
    .expand = expand_dx,
    .flop = 9,
    .in_place = 1u << 0 | 1u << 1,
    .trials = {"*=3 c=7 4>", "*=2,3 c=5 4>", "*=2 c=1 4>", "c=6 4>", "*=9 c=264 4>"},
};

static const ll_op layernorm_dw = {
    LL_OP(layernorm_dw, NORM, 4, 2, .scratch = col_sums_cpu_scratch, .parts = true),
    .dims = "*c, *c, *, * -> c, c",
    .wide_in = 1u << 2 | 1u << 3,
    .wide_out = 1u << 0 | 1u << 1,
    .sum = "*",
    .infer = ll_infer_floats,
    .expand = expand_dw,
    .flop = 5,
    .trials = {"*=3 c=7 3>", "*=2,5 c=3 3>", "*=1 c=1 3>", "*=0 c=2 3>", "*=77 c=264 3>"},
};

/* What reaches mean and rstd (as it does in second derivatives) flows on to x:
 * d mean / dx = 1/c,  d rstd / dx = -rstd^3 (x - mean) / c. */
static ll_val grad_of_statistics(const ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val x = b->in[0], mean = b->out[1], rstd = b->out[2], dx = {0};
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)ll_row_length(g, x);
    if (b->dout[1].id) dx = ll_row_spread(g, ll_scale(g, b->dout[1], by), &s);
    if (b->dout[2].id) {
        ll_val k = ll_mul(g, b->dout[2], ll_scale(g, ll_square(g, rstd), -by));
        dx = ll_add_some(g, dx, ll_mul(g, normal(g, x, mean, rstd), ll_row_spread(g, k, &s)));
    }
    return dx;
}

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val dy = b->dout[0], x = b->in[0], mean = b->out[1], rstd = b->out[2];
    b->din[0] = grad_of_statistics(b);
    if (!dy.id) return;
    b->din[1] = LL_EMIT(g, &layernorm_dw, NULL, dy, x, mean, rstd);
    b->din[2] = ll_sibling(g, b->din[1], 1);
    ll_val dx = LL_EMIT(g, &layernorm_dx, NULL, dy, x, b->in[1], mean, rstd); /* may end dy */
    b->din[0] = ll_add_some(g, b->din[0], dx);
}

static const ll_op layernorm = {
    LL_OP(layernorm, NORM, 3, 3, .parts = true),
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, c, c -> *c, *, *",
    .wide_in = 1u << 1 | 1u << 2,
    .wide_out = 1u << 1 | 1u << 2,
    .gain = 1u << 1 | 1u << 2,
    .whole = "c",
    .infer = ll_infer_floats,
    .expand = expand,
    .grad = grad,
    .flop = 7,
    .trials = {"*=3 c=7 {eps=1e-5}", "*=2,3 c=5 {eps=1e-3}", "*=2 c=1 {eps=0.1}", "c=6 {eps=1e-5}",
               "*=9 c=776 {eps=1e-5}", "*=3 c=4104 {eps=1e-5}"},
};

ll_val ll_layernorm(ll_graph *g, ll_val x, ll_val gain, ll_val bias, double eps)
{
    return LL_EMIT(g, &layernorm, &(ll_norm_attr){eps}, x, gain, bias);
}

ll_val ll_layernorm_layer(ll_graph *g, const char *name, ll_val x)
{
    if (!x.id) return x;
    int64_t c = ll_row_length(g, x);
    ll_graph_push(g, name);
    ll_val gain = ll_param(g, "weight", LL_SHAPE(c), (ll_init){LL_CONSTANT, 1});
    ll_val bias = ll_param(g, "bias", LL_SHAPE(c), (ll_init){LL_ZEROS, 0});
    ll_val y = ll_layernorm(g, x, gain, bias, 1e-5);
    ll_graph_pop(g);
    return y;
}

const ll_op *const ll_ops_layernorm[] = {&layernorm, &layernorm_dx, &layernorm_dw, NULL};
