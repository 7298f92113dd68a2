/* batchnorm_relu.c: a batch norm with the residual and relu behind it, and their gradients, for
 * GPUs, where each pass over an image costs.   x, y, r, dy [*,c]   bits [*,c/8]   others [c]
 *
 *     batchnorm_relu           x, gain, bias    -> y, mean, var        y = relu(batchnorm(x))
 *     batchnorm_add_relu       x, r, gain, bias -> y, mean, var        y = relu(batchnorm(x) + r)
 *     batchnorm_add_relu_bits  x, r, gain, bias -> y, mean, var, bits  bits: where y is not 0
 *     batchnorm_relu_grad      dy, x, gain, bias, mean, var    -> dx, dgain, dbias
 *     batchnorm_add_relu_grad  dy, bits, x, gain, mean, var    -> dx, dgain, dbias, dr
 *     batchnorm_sum_relu_grad  dy, dy2, bits, x, gain, mean, var -> dx, dgain, dbias, dr
 *
 * Gradients of the first make the relu's mask again from x, of the second read its bits, an eighth
 * of a byte each where y is two: dr is dy where y is not 0. The last is of a y with two readers,
 * whose gradients add up. Where the residual is a batch norm too, both are one, and gradients make
 * the mask again from x and x2:
 *
 *     batchnorm_stats              x -> mean, var
 *     batchnorm_two_relu           x, x2, norm, norm2 -> y       norm: gain, bias, mean, var
 *     batchnorm_two_relu_grad      dy, x, x2, norm, norm2      -> dx, dgain, dbias, and of x2
 *     batchnorm_two_sum_relu_grad  dy, dy2, x, x2, norm, norm2 -> dx, dgain, dbias, and of x2
 *
 * Where statistics come with x (fuse/tap_stats.c):
 *
 *     batchnorm_known_relu           x, norm    -> y
 *     batchnorm_known_add_relu_bits  x, r, norm -> y, bits */
#include "fuse/fuse_int.h"
#include "op/rows.h"

LL_KERNELS(batchnorm_relu, batchnorm_add_relu, batchnorm_add_relu_bits, batchnorm_relu_grad,
           batchnorm_add_relu_grad, batchnorm_sum_relu_grad, batchnorm_stats, batchnorm_two_relu,
           batchnorm_two_relu_grad, batchnorm_two_sum_relu_grad, batchnorm_known_relu,
           batchnorm_known_add_relu_bits)

enum { BITS = 8 };

/* ---- what they mean ---- */

ll_val ll_normed(ll_graph *g, double eps, ll_val x, const ll_val *norm)
{
    ll_val rstd = ll_rsqrt(g, ll_shift(g, norm[3], eps));
    ll_val y = ll_mul(g, ll_mul(g, ll_sub(g, x, norm[2]), rstd), norm[0]);
    return ll_add(g, y, norm[1]);
}

static ll_val masked(ll_graph *g, ll_val y, ll_val dy)
{
    return ll_select(g, y, dy, ll_fill(g, ll_graph_dtype(g, dy), LL_SCALAR, 0));
}

static void put_grad(ll_graph *g, const void *attr, ll_val dy, ll_val x, const ll_val *norm,
                     ll_val *out)
{
    ll_val dx = LL_EMIT(g, ll_op_find("batchnorm_grad"), attr, dy, x, norm[0], norm[2], norm[3]);
    for (int o = 0; o < 3; o++) out[o] = ll_sibling(g, dx, o);
}

static void expand_relu_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    double eps = ((const ll_norm_attr *)attr)->eps;
    ll_val y = ll_relu(g, ll_normed(g, eps, in[1], in + 2));
    put_grad(g, attr, masked(g, y, in[0]), in[1], in + 2, out);
}

/* 1, 2, 4 ... for the bits of a byte. */
static ll_val powers(ll_graph *g)
{
    return ll_round(g, ll_exp(g, ll_arange(g, LL_F64, BITS, 0, log(2))));
}

/* Where y is not 0: a bit each. */
static ll_val bits_of(ll_graph *g, ll_val y)
{
    ll_shape s = ll_graph_shape(g, y);
    s.d[s.n - 1] /= BITS;
    s.d[s.n++] = BITS;
    ll_val one = ll_fill(g, LL_F64, LL_SCALAR, 1);
    ll_val on = ll_reshape(g, masked(g, y, one), s);
    return ll_cast(g, ll_row_sum(g, ll_mul(g, on, powers(g))), LL_U8);
}

static void expand_bits(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    ll_val norm = LL_EMIT(g, ll_op_find("batchnorm"), attr, in[0], in[2], in[3]);
    out[0] = ll_relu(g, ll_add(g, norm, in[1]));
    for (int o = 1; o < 3; o++) out[o] = ll_sibling(g, norm, o);
    out[3] = bits_of(g, out[0]);
}

static void expand_known(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    out[0] = ll_relu(g, ll_normed(g, ((const ll_norm_attr *)attr)->eps, in[0], in + 1));
}

static void expand_known_bits(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    ll_val z = ll_normed(g, ((const ll_norm_attr *)attr)->eps, in[0], in + 2);
    out[0] = ll_relu(g, ll_add(g, z, in[1]));
    out[1] = bits_of(g, out[0]);
}

/* With one part of dy, or two. */
static void expand_bits_grad(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    bool sum = n_in == 7;
    ll_val dy = sum ? ll_add(g, in[0], in[1]) : in[0];
    in += sum;
    ll_val x = in[2], norm[4] = {in[3], {0}, in[4], in[5]};
    ll_shape s = ll_graph_shape(g, in[1]), all = ll_graph_shape(g, x);
    s.d[s.n++] = 1;
    ll_val bits = ll_reshape(g, ll_cast(g, in[1], LL_F64), s);
    bits = ll_floor(g, ll_div(g, bits, powers(g)));
    bits = ll_mod(g, bits, ll_fill(g, LL_F64, LL_SCALAR, 2));
    out[3] = masked(g, ll_reshape(g, bits, all), dy);
    put_grad(g, attr, out[3], x, norm, out);
}

static void expand_stats(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val one = ll_fill(g, ll_graph_dtype(g, in[0]), LL_SHAPE(ll_row_length(g, in[0])), 1);
    ll_val y = LL_EMIT(g, ll_op_find("batchnorm"), &(ll_norm_attr){1}, in[0], one, one);
    for (int o = 0; o < 2; o++) out[o] = ll_sibling(g, y, 1 + o);
}

static void expand_two(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    double eps = ((const ll_norm_attr *)attr)->eps;
    ll_val z = ll_normed(g, eps, in[0], in + 2);
    out[0] = ll_relu(g, ll_add(g, z, ll_normed(g, eps, in[1], in + 6)));
}

static void expand_two_grad(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    bool sum = n_in == 12;
    ll_val dy = sum ? ll_add(g, in[0], in[1]) : in[0], y;
    in += 1 + sum;
    expand_two(g, attr, in, 10, &y);
    dy = masked(g, y, dy);
    for (int i = 0; i < 2; i++) put_grad(g, attr, dy, in[i], in + 2 + 4 * i, out + 3 * i);
}

/* ---- ops ---- */

/* The default rule, but for the bits: operand or result k. */
static ll_err infer_bits(ll_infer *i)
{
    int k = i->n_in - 5; /* of a gradient */
    bool made = i->n_in == 4 || i->n_out == 2;
    ll_infer plain = *i;
    ll_type in[LL_MAX_IN];
    memcpy(in, i->in, sizeof *in * (size_t)i->n_in);
    ll_shape s = in[0].shape;
    CHECK(s.n && s.d[s.n - 1] % BITS == 0, LL_E_SHAPE, "channels are no multiple of %d", BITS);
    s.d[s.n - 1] /= BITS;
    const ll_type bits = {LL_U8, s};
    if (!made) {
        CHECK(in[k].dtype == LL_U8 && ll_shape_equal(&in[k].shape, &s), LL_E_SHAPE,
              "operand %d is not u8 of a bit for each number", k);
        in[k] = in[0];
    }
    plain.in = in;
    TRY(ll_infer_floats(&plain));
    if (made) i->out[i->n_out - 1] = bits;
    return LL_OK;
}

#define OP(fn, ins, outs, how, wide, flops, ...)                                                   \
    {                                                                                              \
        LL_GPU_OP(fn, NORM, ins, outs), .dims = how, .wide_in = wide, .flop = flops, __VA_ARGS__   \
    }
#define EPS LL_ATTRS(ll_norm_attr, eps)
#define WHOLE .whole = "*"
#define FLOATS .infer = ll_infer_floats
#define STATS .wide_out = 3u << 1

static const ll_op ops[] = {
    OP(batchnorm_relu, 3, 3, "*c, c, c -> *c, c, c", 3u << 1, 8, EPS, WHOLE, FLOATS, STATS,
       .trials = {"*=7 c=3 {eps=1e-5}", "*=2,3,5 c=8 {eps=0.1}", "*=2,300,3 c=72 {eps=1e-5}"}),
    OP(batchnorm_add_relu, 4, 3, "*c, *c, c, c -> *c, c, c", 3u << 2, 9, EPS, WHOLE, FLOATS, STATS,
       .trials = {"*=7 c=3 {eps=1e-5}", "*=2,3,5 c=8 {eps=0.1}", "*=2,300,3 c=72 {eps=1e-5}"}),
    OP(batchnorm_add_relu_bits, 4, 4, "*c, *c, c, c -> *c, c, c, *_", 3u << 2, 9, EPS, WHOLE, STATS,
       .infer = infer_bits, .expand = expand_bits,
       .trials = {"*=2,3,5 c=8 {eps=0.1}", "*=2,300,3 c=72 {eps=1e-5}"}),
    OP(batchnorm_relu_grad, 6, 3, "*c, *c, c, c, c, c -> *c, c, c", 15u << 2, 11, EPS, WHOLE,
       FLOATS, STATS, .in_place = 3u, .expand = expand_relu_grad,
       .trials = {"*=7 c=3 5> {eps=1e-5}", "*=2,3,5 c=8 5> {eps=0.1}", "*=999 c=72 5> {eps=0.1}"}),
    OP(batchnorm_add_relu_grad, 6, 4, "*c, *_, *c, c, c, c -> *c, c, c, *c", 7u << 3, 10, EPS,
       WHOLE, STATS, .infer = infer_bits, .expand = expand_bits_grad, .in_place = 5u,
       .trials = {"*=2,3,5 c=8 _=1 1:u8<256 5> {eps=0.1}", "*=999 c=72 _=9 1:u8<256 5> {eps=0.1}"}),
    OP(batchnorm_sum_relu_grad, 7, 4, "*c, *c, *_, *c, c, c, c -> *c, c, c, *c", 7u << 4, 11, EPS,
       WHOLE, STATS, .infer = infer_bits, .expand = expand_bits_grad, .in_place = 11u,
       .trials = {"*=7 c=16 _=2 2:u8<256 6> {eps=1e-5}", "*=999 c=72 _=9 2:u8<256 6> {eps=0.1}"}),
    OP(batchnorm_stats, 1, 2, "*c -> c, c", 0, 4, WHOLE, FLOATS, .wide_out = 3u,
       .expand = expand_stats, .trials = {"*=7 c=3", "*=2,3,5 c=8", "*=2,300,3 c=72"}),
    OP(batchnorm_two_relu, 10, 1, "*c, *c, c, c, c, c, c, c, c, c -> *c", 255u << 2, 9, EPS, FLOATS,
       .in_place = 3u, .expand = expand_two,
       .trials = {"*=7 c=3 5> 9> {eps=1e-5}", "*=2,3,5 c=8 5> 9> {eps=0.1}",
                  "*=999 c=72 5> 9> {eps=0.1}"}),
    OP(batchnorm_two_relu_grad, 11, 6, "*c, *c, *c, c, c, c, c, c, c, c, c -> *c, c, c, *c, c, c",
       255u << 3, 20, EPS, WHOLE, FLOATS, .wide_out = 3u << 1 | 3u << 4, .in_place = 7u,
       .expand = expand_two_grad,
       .trials = {"*=7 c=3 6> 10> {eps=1e-5}", "*=300 c=72 6> 10> {eps=0.1}"}),
    OP(batchnorm_two_sum_relu_grad, 12, 6,
       "*c, *c, *c, *c, c, c, c, c, c, c, c, c -> *c, c, c, *c, c, c", 255u << 4, 21, EPS, WHOLE,
       FLOATS, .wide_out = 3u << 1 | 3u << 4, .in_place = 15u, .expand = expand_two_grad,
       .trials = {"*=7 c=3 7> 11> {eps=1e-5}", "*=300 c=72 7> 11> {eps=0.1}"}),
    OP(batchnorm_known_relu, 5, 1, "*c, c, c, c, c -> *c", 15u << 1, 5, EPS, FLOATS, .in_place = 1u,
       .expand = expand_known, .trials = {"*=7 c=3 4> {eps=1e-5}", "*=2,300,3 c=72 4> {eps=0.1}"}),
    OP(batchnorm_known_add_relu_bits, 6, 2, "*c, *c, c, c, c, c -> *c, *_", 15u << 2, 6, EPS,
       .infer = infer_bits, .expand = expand_known_bits, .in_place = 3u,
       .trials = {"*=2,3,5 c=8 5> {eps=0.1}", "*=2,300,3 c=72 5> {eps=1e-5}"}),
};
const ll_op *const ll_ops_batchnorm_relu[] = {&ops[0],  &ops[1],  &ops[2], &ops[3], &ops[4],
                                              &ops[5],  &ops[6],  &ops[7], &ops[8], &ops[9],
                                              &ops[10], &ops[11], NULL};

/* ---- patterns ---- */

#define NORM "z, mean, var = batchnorm(x, gain, bias) {eps=$eps}\n"
#define NORM2 "z2, mean2, var2 = batchnorm(x2, gain2, bias2) {eps=$eps}\n"
#define GRAD "dx, dgain, dbias = batchnorm_grad(g, x, gain, mean, var) {eps=$eps}"
#define GRAD2 "dx2, dgain2, dbias2 = batchnorm_grad(g, x2, gain2, mean2, var2) {eps=$eps}"
#define BOTH "gain, bias, mean, var, gain2, bias2, mean2, var2) {eps=$eps}"
#define TRIAL                                                                                      \
    "x: f32[7,8], gain: f32[8], bias: f32[8], r: f32[7,8], dy: f32[7,8], dy2: f32[7,8], x2: "      \
    "f32[7,8], gain2: f32[8], bias2: f32[8], mean: f32[8], var: f32[8]>, mean2: f32[8], var2: "    \
    "f32[8]> $eps=1e-5"

/* What stands in front of a norm must be made before it: its statistics may be read soon. Those of
 * two norms are made apart, therefore. */
static const ll_fusion_row forward[] = {
    {.pattern = NORM NORM2 "s = add(z, z2)\ny = relu(s)",
     .replace = "mean, var = batchnorm_stats(x)\nmean2, var2 = batchnorm_stats(x2)\n"
                "y = batchnorm_two_relu(x, x2, " BOTH,
     .same = "x z x2 z2 s y",
     .trials = {TRIAL}},
    {.pattern = NORM "y = relu(z)",
     .replace = "y, mean, var = batchnorm_relu(x, gain, bias) {eps=$eps}",
     .same = "x z y"},
    {.pattern = NORM "s = add(z, r)\ny = relu(s)",
     .replace = "y, mean, var = batchnorm_add_relu(x, r, gain, bias) {eps=$eps}",
     .same = "x z r s y"},
    {0}};

static bool in_bytes(ll_match *m)
{
    ll_shape s = ll_graph_shape(m->g, ll_match_value(m, "x"));
    return s.d[s.n - 1] % BITS == 0 || ll_match_no(m, "channels are no multiple of %d", BITS);
}

/* Of the norms that have taken a relu in. */
#define RELU "+y, mean, var = batchnorm_relu(x, gain, bias) {eps=$eps}\n"
#define ADD_RELU "y, mean, var = batchnorm_add_relu(x, r, gain, bias) {eps=$eps}\n"
#define WITH_BITS "y, mean, var, bits = batchnorm_add_relu_bits(x, r, gain, bias) {eps=$eps}\n"
#define TWO "+y = batchnorm_two_relu(x, x2, " BOTH "\n"
#define SUM "d = add(dy, dy2)\ng = select(y, d, 0)\n"
#define ALONE "g = select(y, dy, 0)\n"
#define OF_BOTH "dx, dgain, dbias, dx2, dgain2, dbias2 = "

static const ll_fusion_row backward[] = {
    {.pattern = RELU ALONE GRAD,
     .replace = "dx, dgain, dbias = batchnorm_relu_grad(dy, x, gain, bias, mean, var) {eps=$eps}",
     .same = "x y dy g",
     .trials = {TRIAL}},
    {.pattern = ADD_RELU SUM GRAD,
     .replace = WITH_BITS "dx, dgain, dbias, g = batchnorm_sum_relu_grad(dy, dy2, bits, x, gain, "
                          "mean, var) {eps=$eps}",
     .same = "x y dy dy2 d g",
     .guard = in_bytes,
     .trials = {TRIAL}},
    {.pattern = ADD_RELU ALONE GRAD,
     .replace = WITH_BITS
     "dx, dgain, dbias, g = batchnorm_add_relu_grad(dy, bits, x, gain, mean, var) {eps=$eps}",
     .same = "x y dy g",
     .guard = in_bytes,
     .trials = {TRIAL}},
    {.pattern = TWO SUM GRAD "\n" GRAD2,
     .replace = OF_BOTH "batchnorm_two_sum_relu_grad(dy, dy2, x, x2, " BOTH,
     .same = "x x2 y dy dy2 d g",
     .trials = {TRIAL}},
    {.pattern = TWO ALONE GRAD "\n" GRAD2,
     .replace = OF_BOTH "batchnorm_two_relu_grad(dy, x, x2, " BOTH,
     .same = "x x2 y dy g",
     .trials = {TRIAL}},
    {0}};

static const ll_fusion fusions[] = {{.name = "batchnorm_relu",
                                     .stage = LL_FUSE_FORWARD,
                                     .target = &ll_target_cuda,
                                     .rows = forward},
                                    {.name = "batchnorm_relu_grad",
                                     .stage = LL_FUSE_LATE,
                                     .target = &ll_target_cuda,
                                     .rows = backward}};
const ll_fusion *const ll_fusions_batchnorm_relu[] = {&fusions[0], &fusions[1], NULL};
