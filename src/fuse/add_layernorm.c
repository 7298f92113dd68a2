/* add_layernorm.c: a residual's sum and its norm as one node, for GPUs, which then move the sum
 * once:
 *
 *     a, b, gain, bias[, before] -> sum, y, mean, rstd
 *     sum = a + b (+ before)     y = layernorm(sum)      a, b, sum, y [*,c]   mean, rstd [*]
 *     a, b, gain -> sum, y, rstd                         y = rmsnorm(sum)
 *
 * before is the bias of a product that is added: without it that is a quicker product. */
#include "fuse/fuse_int.h"
#include "op/rows.h"

extern const ll_solver add_layernorm_cuda[], add_rmsnorm_cuda[];

/* The norm is of the sum as it is kept: of the type that operands had before ll_expand_fused. */
static ll_val kept(ll_graph *g, ll_val sum, ll_val like)
{
    const ll_node *wider = ll_maker(g, like);
    if (!ll_is_op(wider, ll_ew_op(LL_EW_cast))) return sum;
    ll_val rounded = ll_cast(g, sum, ll_graph_dtype(g, wider->in[0]));
    return ll_cast(g, rounded, ll_graph_dtype(g, sum));
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    out[0] = ll_add(g, in[0], in[1]);
    if (n_in > 4) out[0] = ll_add(g, out[0], in[4]);
    out[0] = kept(g, out[0], in[0]);
    out[1] = LL_EMIT(g, ll_op_find("layernorm"), attr, out[0], in[2], in[3]);
    for (int o = 1; o < 3; o++) out[1 + o] = ll_sibling(g, out[1], o);
}

static const ll_op add_layernorm = {
    LL_GPU_OP(add_layernorm, NORM, 4, 4),
    .n_more = 1,
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, *c, c, c -> *c, *c, *, *",
    .whole = "*c",
    .wide_in = 1u << 2 | 1u << 3 | 1u << 4,
    .wide_out = 1u << 2 | 1u << 3,
    .infer = ll_infer_floats,
    .expand = expand,
    .flop = 8,
    .in_place = 1u << 0 | 1u << 1,
    .trials = {"f32[3,7], f32[3,7], f32[7], f32[7] {eps=1e-5}",
               "f32[2,3,8], f32[2,3,8], f32[8], f32[8] {eps=1e-3}",
               "f32[5,1600], f32[5,1600], f32[1600], f32[1600], f32[1600] {eps=1e-5}",
               "f32[3,4104], f32[3,4104], f32[4104], f32[4104], f32[4104] {eps=1e-5}",
               "f32[4,5], f32[4,5], f32[5], f32[5], f32[5] {eps=1e-5}",
               "f32[6], f32[6], f32[6], f32[6] {eps=1e-5}"},
};

static void expand_rms(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    out[0] = kept(g, ll_add(g, in[0], in[1]), in[0]);
    out[1] = LL_EMIT(g, ll_op_find("rmsnorm"), attr, out[0], in[2]);
    out[2] = ll_sibling(g, out[1], 1);
}

static const ll_op add_rmsnorm = {
    LL_GPU_OP(add_rmsnorm, NORM, 3, 3),
    LL_ATTRS(ll_norm_attr, eps),
    .dims = "*c, *c, c -> *c, *c, *",
    .whole = "*c",
    .wide_in = 1u << 2,
    .wide_out = 1u << 2,
    .infer = ll_infer_floats,
    .expand = expand_rms,
    .flop = 6,
    .in_place = 1u << 0 | 1u << 1,
    .trials = {"*=3 c=7 {eps=1e-5}", "*=2,3 c=8 {eps=1e-3}", "*=5 c=1600 {eps=1e-5}",
               "*=3 c=4104 {eps=1e-5}", "c=6 {eps=1e-5}"},
};

/* Whether a chain would take the node that makes v in, so that v never touches memory. */
static bool chains(const ll_match *m, ll_val v)
{
    const ll_node *n = ll_maker(m->g, v);
    return ll_is_op(n, &ll_op_broadcast) || ll_is_op(n, &ll_op_fill) ||
           (n && n->op->elementwise && m->uses[v.id] == 1);
}

static bool guard(ll_match *m)
{
    if (chains(m, ll_match_value(m, "a")) || chains(m, ll_match_value(m, "b")))
        return ll_match_no(m, "an operand of the sum is part of a chain");
    return true;
}

/* The product's bias is one number for each column, of the type of the norm's statistics, before it
 * was rounded. */
static bool guard_bias(ll_match *m)
{
    const ll_graph *g = m->g;
    ll_val v = ll_match_value(m, "c");
    const ll_node *cast = ll_maker(g, v);
    if (ll_is_op(cast, ll_ew_op(LL_EW_cast))) v = cast->in[0];
    ll_match_bind(m, "c", v);
    return guard(m) && ll_graph_shape(g, v).n == 1 &&
           ll_graph_dtype(g, v) == ll_wide(ll_graph_dtype(g, ll_match_value(m, "b")));
}

#define NORM "s = add(a, b)\ny, mean, rstd = layernorm(s, gain, bias) {eps=$eps}"

static const ll_fusion_row rows[] = {
    {.pattern = "b = product1(x, w, c) {spec=$spec, out=$out, bias=1, act=0, scaled=0}\n" NORM,
     .replace = "p = matmul(x, w) {spec=$spec, out=$out}\n"
                "s, y, mean, rstd = add_layernorm(a, p, gain, bias, c) {eps=$eps}",
     .same = "s a b",
     .guard = guard_bias,
     .trials = {"x: f32[4,5], w: f32[6,5], c: f32[6], a: f32[4,6], gain: f32[6], bias: f32[6] "
                "$spec=\"rk,nk->rn\" $out=f32 $eps=1e-5"}},
    {.pattern = NORM,
     .replace = "s, y, mean, rstd = add_layernorm(a, b, gain, bias) {eps=$eps}",
     .same = "s a b",
     .guard = guard},
    {.pattern = "s = add(a, b)\ny, rstd = rmsnorm(s, gain) {eps=$eps}",
     .replace = "s, y, rstd = add_rmsnorm(a, b, gain) {eps=$eps}",
     .same = "s a b",
     .guard = guard},
    {0}};

LL_GPU_FUSION(add_layernorm, FORWARD, .rows = rows)
const ll_op *const ll_ops_add_layernorm[] = {&add_layernorm, &add_rmsnorm, NULL};
