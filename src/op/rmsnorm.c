/* rmsnorm: y = x rstd gain, rstd = 1/sqrt(average of x^2 + eps) of each row.
 *   x, y [*,c]   gain [c]   rstd [*] (kept for the gradient)
 *
 * Gradient: two ops, as layernorm's.  xhat = x rstd,  u = dy gain
 *   rmsnorm_dx:  dx = rstd (u - xhat average(u xhat)) along the row
 *   rmsnorm_dw:  dgain = sum of dy xhat over the rows */
#include "kern/attr.h"
#include "op/rows.h"

LL_KERNELS(rmsnorm, rmsnorm_dx, rmsnorm_dw)
ll_scratch col_sums_cpu_scratch;

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_norm_attr *a = (const ll_norm_attr *)attr;
    ll_shape s = ll_graph_shape(g, in[0]);
    double by = 1.0 / (double)ll_row_length(g, in[0]);
    ll_val power = ll_scale(g, ll_row_sum(g, ll_square(g, in[0])), by);
    ll_val rstd = ll_rsqrt(g, ll_shift(g, power, a->eps));
    ll_val xhat = ll_mul(g, in[0], ll_row_spread(g, rstd, &s));
    out[0] = ll_mul(g, xhat, ll_col_spread(g, in[1], &s));
    out[1] = rstd;
}

static void expand_dx(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val dy = in[0], x = in[1], gain = in[2], rstd = in[3];
    ll_shape s = ll_graph_shape(g, x);
    double by = 1.0 / (double)ll_row_length(g, x);
    ll_val spread = ll_row_spread(g, rstd, &s);
    ll_val xhat = ll_mul(g, x, spread);
    ll_val u = ll_mul(g, dy, ll_col_spread(g, gain, &s));
    ll_val b = ll_row_spread(g, ll_scale(g, ll_row_sum(g, ll_mul(g, u, xhat)), by), &s);
    out[0] = ll_mul(g, ll_sub(g, u, ll_mul(g, xhat, b)), spread);
}

static void expand_dw(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_shape s = ll_graph_shape(g, in[1]);
    ll_val xhat = ll_mul(g, in[1], ll_row_spread(g, in[2], &s));
    out[0] = ll_col_sum(g, ll_mul(g, in[0], xhat));
}

static const ll_op rmsnorm_dx = {
    LL_OP(rmsnorm_dx, NORM, 4, 1, .parts = true),
    .dims = "*c, *c, c, * -> *c",
    .wide_in = 1u << 2 | 1u << 3,
    .whole = "c",
    .infer = ll_infer_floats,
    .expand = expand_dx,
    .flop = 7,
    .in_place = 1u << 0 | 1u << 1,
    .trials = {"*=3 c=7 3>", "*=2,3 c=5 3>", "*=2 c=1 3>", "c=6 3>"},
};

static const ll_op rmsnorm_dw = {
    LL_OP(rmsnorm_dw, NORM, 3, 1, .scratch = col_sums_cpu_scratch, .parts = true),
    .dims = "*c, *c, * -> c",
    .wide_in = 1u << 2,
    .wide_out = 1u << 0,
    .sum = "*",
    .infer = ll_infer_floats,
    .expand = expand_dw,
    .flop = 3,
    .trials = {"*=3 c=7 2>", "*=2,5 c=3 2>", "*=1 c=1 2>", "*=0 c=2 2>"},
};

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val dy = b->dout[0], x = b->in[0], rstd = b->out[1];
    if (b->dout[1].id) { /* d rstd / dx = -rstd^3 x / c */
        ll_shape s = ll_graph_shape(g, x);
        ll_val cube = ll_mul(g, ll_square(g, rstd), rstd);
        ll_val k = ll_scale(g, ll_mul(g, b->dout[1], cube), -1.0 / (double)ll_row_length(g, x));
        b->din[0] = ll_mul(g, x, ll_row_spread(g, k, &s));
    }
    if (!dy.id) return;
    b->din[1] = LL_EMIT(g, &rmsnorm_dw, NULL, dy, x, rstd);
    ll_val dx = LL_EMIT(g, &rmsnorm_dx, NULL, dy, x, b->in[1], rstd); /* may end dy */
    b->din[0] = ll_add_some(g, b->din[0], dx);
}

static const ll_op rmsnorm = {
    LL_OP(rmsnorm, NORM, 2, 2, .parts = true),
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, c -> *c, *",
    .wide_in = 1u << 1,
    .wide_out = 1u << 1,
    .gain = 1u << 1,
    .whole = "c",
    .infer = ll_infer_floats,
    .expand = expand,
    .grad = grad,
    .flop = 4,
    .trials = {"*=3 c=7 {eps=1e-5}", "*=2,3 c=5 {eps=1e-3}", "*=2 c=1 {eps=0.1}", "c=6 {eps=1e-5}"},
};

ll_val ll_rmsnorm(ll_graph *g, ll_val x, ll_val gain, double eps)
{
    return LL_EMIT(g, &rmsnorm, &(ll_norm_attr){eps}, x, gain);
}

const ll_op *const ll_ops_rmsnorm[] = {&rmsnorm, &rmsnorm_dx, &rmsnorm_dw, NULL};
