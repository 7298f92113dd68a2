/* elementwise.c: ops that work on each element by itself: one shape and one element type in and out
 * (cast: another type out). LL_EW in kern/attr.h lists them with their values. The builders
 * broadcast operands to one shape as NumPy does, by nodes: a broadcast node's gradient is the sum
 * that the operand's gradient needs.
 *
 * Gradients use the result where that is cheaper than the operand (exp, tanh, sqrt...), and are of
 * these same ops, so that they fuse and can be differentiated again. */
#include "op/op_int.h"

static const ll_op ops[LL_N_EW]; /* but for those with a file of their own */

/* ---- builders ---- */

/* The shape both broadcast to; false where they do not fit. */
static bool common_shape(const ll_shape *a, const ll_shape *b, ll_shape *out)
{
    int n = a->n > b->n ? a->n : b->n;
    ll_shape s = {.n = n};
    for (int i = 0; i < n; i++) {
        int64_t x = i < n - a->n ? 1 : a->d[i - (n - a->n)];
        int64_t y = i < n - b->n ? 1 : b->d[i - (n - b->n)];
        if (x != y && x != 1 && y != 1) return false;
        s.d[i] = x == 1 ? y : x;
    }
    *out = s;
    return true;
}

/* x broadcast to shape: dimensions of 1 that grow are dropped first, then the letters of those that
 * stay say where they go. */
static ll_val fit(ll_graph *g, ll_val x, const ll_shape *shape)
{
    ll_shape have = ll_graph_shape(g, x), kept = {0};
    if (ll_shape_equal(&have, shape)) return x;
    char spec[LL_SPEC_MAX] = {0}, all[LL_MAX_DIMS + 1] = {0};
    int lead = shape->n - have.n;
    for (int i = 0; i < shape->n; i++) {
        all[i] = (char)('a' + i);
        if (i < lead || have.d[i - lead] != shape->d[i]) continue;
        spec[kept.n] = all[i];
        kept.d[kept.n++] = shape->d[i];
    }
    if (ll_numel(&have) == ll_numel(shape)) return ll_reshape(g, x, *shape);
    x = ll_reshape(g, x, kept);
    strcat(strcat(spec, "->"), all);
    return ll_broadcast(g, x, spec, *shape);
}

static ll_val emit(ll_graph *g, ll_ew ew, const void *attr, ll_val *x, int n)
{
    if (ll_rejected(g)) return (ll_val){0};
    for (int i = 0; i < n; i++) /* emit says which it is, and nothing is broadcast before */
        if (!ll_has_value(g, x[i])) return ll_emit(g, ll_ew_op(ew), attr, x, n);
    ll_shape shape = ll_graph_shape(g, x[0]);
    for (int i = 1; i < n; i++) {
        ll_shape s = ll_graph_shape(g, x[i]);
        if (ll_graph_dtype(g, x[i]) != ll_graph_dtype(g, x[0])) {
            return ll_reject(g, LL_E_ARG, "%s%s: operands are %s and %s; cast one of them",
                             ll_scope(g), ops[ew].name, ll_dtype_name(ll_graph_dtype(g, x[0])),
                             ll_dtype_name(ll_graph_dtype(g, x[i])));
        }
        if (!common_shape(&shape, &s, &shape)) {
            char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
            return ll_reject(g, LL_E_SHAPE, "%s%s: %s and %s cannot be broadcast to one shape",
                             ll_scope(g), ops[ew].name, ll_shape_print(&shape, a),
                             ll_shape_print(&s, b));
        }
    }
    for (int i = 0; i < n && n > 1; i++) x[i] = fit(g, x[i], &shape);
    return ll_emit(g, ll_ew_op(ew), attr, x, n);
}

ll_val ll_ew_unary(ll_graph *g, ll_ew ew, ll_val x)
{
    return emit(g, ew, NULL, &x, 1);
}

static ll_val dgelu(ll_graph *g, ll_val x)
{
    return ll_ew_unary(g, LL_EW_dgelu, x);
}

#define BINARY(X) X(add) X(sub) X(mul) X(div) X(max) X(min) X(less) X(equal) X(pow) X(mod)
#define X(name)                                                                                    \
    ll_val ll_##name(ll_graph *g, ll_val a, ll_val b)                                              \
    {                                                                                              \
        return emit(g, LL_EW_##name, NULL, (ll_val[]){a, b}, 2);                                   \
    }
BINARY(X)
#undef X

#define POWERS(X) X(neg) X(abs) X(sign) X(square) X(sqrt) X(rsqrt) X(exp) X(log) X(log1p) X(expm1)
#define CURVES(X) X(sin) X(cos) X(atan) X(sinh) X(asinh) X(tanh) X(sigmoid) X(erf) X(softplus)
#define OTHERS(X) X(relu) X(gelu) X(silu) X(floor) X(ceil) X(round) X(stop_gradient)
#define UNARY(X) POWERS(X) CURVES(X) OTHERS(X)
#define X(name)                                                                                    \
    ll_val ll_##name(ll_graph *g, ll_val x)                                                        \
    {                                                                                              \
        return ll_ew_unary(g, LL_EW_##name, x);                                                    \
    }
UNARY(X)
#undef X

ll_val ll_select(ll_graph *g, ll_val c, ll_val a, ll_val b)
{
    if (c.id && a.id && ll_graph_dtype(g, c) != ll_graph_dtype(g, a))
        c = ll_cast(g, ll_not(g, ll_not(g, c)), ll_graph_dtype(g, a)); /* a half is no 0 of i32 */
    return emit(g, LL_EW_select, NULL, (ll_val[]){c, a, b}, 3);
}

ll_val ll_scale(ll_graph *g, ll_val x, double by)
{
    return emit(g, LL_EW_scale, &(ll_number_attr){by}, &x, 1);
}

ll_val ll_shift(ll_graph *g, ll_val x, double by)
{
    return emit(g, LL_EW_shift, &(ll_number_attr){by}, &x, 1);
}

ll_val ll_cast(ll_graph *g, ll_val x, ll_dtype dtype)
{
    if (ll_has_value(g, x) && ll_graph_dtype(g, x) == dtype) return x;
    return emit(g, LL_EW_cast, &(ll_cast_attr){dtype}, &x, 1);
}

/* ---- types ---- */

static const bool takes_integers[LL_N_EW] = {
    [LL_EW_add] = true,           [LL_EW_sub] = true,   [LL_EW_mul] = true,   [LL_EW_max] = true,
    [LL_EW_min] = true,           [LL_EW_less] = true,  [LL_EW_equal] = true, [LL_EW_mod] = true,
    [LL_EW_neg] = true,           [LL_EW_abs] = true,   [LL_EW_sign] = true,  [LL_EW_square] = true,
    [LL_EW_stop_gradient] = true, [LL_EW_select] = true};

ll_err ll_ew_infer(ll_infer *i)
{
    const ll_type *x = &i->in[0];
    CHECK(ll_dtype_is_float(x->dtype) || (x->dtype == LL_I32 && takes_integers[i->op->ew]),
          LL_E_SHAPE, "%s does not take %s: cast it to f32%s", i->op->name, ll_dtype_name(x->dtype),
          takes_integers[i->op->ew] ? " or i32" : "");
    i->out[0] = *x;
    for (int k = 1; k < i->n_in; k++) {
        ll_dtype t = i->in[k].dtype;
        bool mix = ll_wide(t) == LL_F32 && ll_wide(x->dtype) == LL_F32; /* bf16 beside f32 */
        CHECK(t == x->dtype || mix, LL_E_SHAPE, "operands are %s and %s", ll_dtype_name(x->dtype),
              ll_dtype_name(t));
        if (t != LL_F32) i->out[0].dtype = t;
        CHECK(ll_shape_equal(&i->in[k].shape, &x->shape), LL_E_SHAPE,
              "operand %d has another shape", k);
    }
    return LL_OK;
}

static ll_err infer_cast(ll_infer *i)
{
    const ll_cast_attr *a = i->attr;
    CHECK((unsigned)a->dtype < LL_N_DTYPE, LL_E_ARG, "no element type has number %d",
          (int)a->dtype);
    i->out[0] = (ll_type){a->dtype, i->in[0].shape};
    return LL_OK;
}

/* ---- gradients; d: of the result, x, w: operands, y: the result ---- */

#define SLOPES(name, ...)                                                                          \
    static void name##_grad(ll_bwd *b)                                                             \
    {                                                                                              \
        ll_graph *g = b->g;                                                                        \
        ll_val d = b->dout[0], x = b->in[0], w = b->n_in > 1 ? b->in[1] : x, y = b->out[0];        \
        (void)g, (void)x, (void)w, (void)y;                                                        \
        __VA_ARGS__;                                                                               \
    }
#define SLOPE(name, value) SLOPES(name, b->din[0] = value)
#define SLOPE2(name, first, second) SLOPES(name, b->din[0] = first, b->din[1] = second)
SLOPE2(add, d, d)
SLOPE2(sub, d, ll_neg(g, d))
SLOPE2(mul, ll_mul(g, d, w), ll_mul(g, d, x))
SLOPE2(div, ll_div(g, d, w), ll_neg(g, ll_mul(g, b->din[0], y)))
SLOPE2(mod, d, ll_neg(g, ll_mul(g, d, ll_floor(g, ll_div(g, x, w)))))
/* Where the operands are equal the value is the second's, and so is the gradient. */
SLOPE2(max, ll_mul(g, ll_less(g, w, x), d), ll_sub(g, d, b->din[0]))
SLOPE2(min, ll_mul(g, ll_less(g, x, w), d), ll_sub(g, d, b->din[0]))
SLOPE(neg, ll_neg(g, d))
SLOPE(exp, ll_mul(g, d, y))
SLOPE(log, ll_div(g, d, x))
SLOPE(sqrt, ll_scale(g, ll_div(g, d, y), 0.5))
SLOPE(rsqrt, ll_scale(g, ll_mul(g, d, ll_mul(g, y, ll_square(g, y))), -0.5))
SLOPE(tanh, ll_sub(g, d, ll_mul(g, d, ll_square(g, y))))
SLOPE(sigmoid, ll_mul(g, d, ll_sub(g, y, ll_square(g, y))))
SLOPE(sin, ll_mul(g, d, ll_cos(g, x)))
SLOPE(cos, ll_neg(g, ll_mul(g, d, ll_sin(g, x))))
SLOPE(relu, ll_select(g, y, d, ll_like(g, y, 0))) /* y != 0 exactly where x > 0 */
SLOPE(gelu, ll_mul(g, d, dgelu(g, x)))
SLOPE(square, ll_scale(g, ll_mul(g, d, x), 2))
SLOPE(erf, ll_mul(g, d, ll_scale(g, ll_exp(g, ll_neg(g, ll_square(g, x))), 2 / sqrt(M_PI))))
SLOPE(log1p, ll_div(g, d, ll_shift(g, x, 1)))
SLOPE(expm1, ll_mul(g, d, ll_shift(g, y, 1)))
SLOPE(softplus, ll_mul(g, d, ll_sigmoid(g, x)))
SLOPE(atan, ll_div(g, d, ll_shift(g, ll_square(g, x), 1)))
SLOPE(sinh, ll_mul(g, d, ll_cosh(g, x)))
SLOPE(asinh, ll_div(g, d, ll_sqrt(g, ll_shift(g, ll_square(g, x), 1))))
SLOPE(scale, ll_scale(g, d, ((const ll_number_attr *)b->attr)->value))
SLOPE(shift, d)

static void select_grad(ll_bwd *b)
{
    ll_val none = ll_like(b->g, b->out[0], 0);
    b->din[1] = ll_select(b->g, b->in[0], b->dout[0], none);
    b->din[2] = ll_select(b->g, b->in[0], none, b->dout[0]);
}

static void abs_grad(ll_bwd *b) /* d sign(x), with sign(0) = 0 */
{
    ll_val none = ll_like(b->g, b->out[0], 0), x = b->in[0];
    ll_val sign = ll_sub(b->g, ll_less(b->g, none, x), ll_less(b->g, x, none));
    b->din[0] = ll_mul(b->g, b->dout[0], sign);
}

/* With u = A (x + B x^3), u' = A + 3 A B x^2 and t = tanh(u):
 * gelu'' = (1 - t^2) (A + 6 A B x^2 - x t u'^2). */
static void dgelu_grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val x = b->in[0], xx = ll_square(g, x);
    ll_val u1 = ll_shift(g, ll_scale(g, xx, 3 * LL_GELU_A * LL_GELU_B), LL_GELU_A);
    ll_val u = ll_mul(g, x, ll_shift(g, ll_scale(g, xx, LL_GELU_A * LL_GELU_B), LL_GELU_A));
    ll_val t = ll_tanh(g, u);
    ll_val inner = ll_shift(g, ll_scale(g, xx, 6 * LL_GELU_A * LL_GELU_B), LL_GELU_A);
    inner = ll_sub(g, inner, ll_mul(g, ll_mul(g, x, t), ll_square(g, u1)));
    ll_val sech2 = ll_shift(g, ll_neg(g, ll_square(g, t)), 1);
    b->din[0] = ll_mul(g, b->dout[0], ll_mul(g, sech2, inner));
}

static void silu_grad(ll_bwd *b) /* with s = sigmoid(x): d (s + y (1 - s)) */
{
    ll_val s = ll_sigmoid(b->g, b->in[0]), y = b->out[0];
    ll_val slope = ll_add(b->g, s, ll_sub(b->g, y, ll_mul(b->g, y, s)));
    b->din[0] = ll_mul(b->g, b->dout[0], slope);
}

/* d b a^(b-1), without 0 times infinity where b is 0; d y log(a), 0 where a is. */
static void pow_grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val none = ll_like(g, b->out[0], 0), x = b->in[0], e = b->in[1];
    ll_val lower = ll_select(g, e, ll_shift(g, e, -1), none);
    b->din[0] = ll_mul(g, b->dout[0], ll_mul(g, e, ll_pow(g, x, lower)));
    ll_val log = ll_log(g, ll_select(g, x, x, ll_shift(g, none, 1)));
    b->din[1] = ll_mul(g, b->dout[0], ll_mul(g, b->out[0], log));
}

static void cast_grad(ll_bwd *b) /* an integer's gradient is nothing */
{
    ll_dtype from = ll_graph_dtype(b->g, b->in[0]), to = ll_graph_dtype(b->g, b->out[0]);
    if (ll_dtype_is_float(from) && ll_dtype_is_float(to))
        b->din[0] = ll_cast(b->g, b->dout[0], from);
}

/* ---- the ops ---- */

#define OP2(fn) LL_EW_OP(fn, 1), .n_in = 2, .dims = "*, * -> *", .infer = ll_ew_infer
/* Of one operand, whose slope is 0 wherever there is one, or not to be had. */
#define STEP1(fn)                                                                                  \
    LL_EW_OP(fn, 1), .n_in = 1, .dims = "* -> *", .infer = ll_ew_infer, .no_grad = true
#define TRIALS1 .trials = {"f32[7,3]", "f32[1]", "f32[2,0,3]", "f32[]"}
#define POSITIVE1 .trials = {"f32[7,3]>", "f32[1,1]>", "f32[0]>", "f32[]>"}
#define TRIALS2                                                                                    \
    .trials = {"f32[7,3], f32[7,3]", "f32[1], f32[1]", "f32[0,5], f32[0,5]", "f32[], f32[]"}
/* A result of 0 or 1 that small integers make likely to be both. */
#define COUNTS2 .trials = {"f32[7,3], f32[7,3]", "i32[17]<3, i32[17]<3", "i32[]<2, i32[]<2"}

static const ll_op ops[LL_N_EW] = {
    [LL_EW_add] = {OP2(add), .linear = true, .grad = add_grad, TRIALS2},
    [LL_EW_sub] = {OP2(sub), .linear = true, .grad = sub_grad, TRIALS2},
    [LL_EW_mul] = {OP2(mul), .grad = mul_grad, TRIALS2},
    [LL_EW_div] = {OP2(div), .grad = div_grad,
                   .trials = {"f32[7,3], f32[7,3]>", "f32[1], f32[1]>", "f32[0], f32[0]>"}},
    [LL_EW_max] = {OP2(max), .grad = max_grad, TRIALS2},
    [LL_EW_min] = {OP2(min), .grad = min_grad, TRIALS2},
    [LL_EW_less] = {OP2(less), .no_grad = true, COUNTS2},
    [LL_EW_equal] = {OP2(equal), .no_grad = true, COUNTS2},
    [LL_EW_select] = {LL_EW_OP(select, 1), .n_in = 3, .dims = "*, *, * -> *", .grad = select_grad,
                      .trials = {"f32[7,3], f32[7,3], f32[7,3]", "i32[5]<2, i32[5]<9, i32[5]<9",
                                 "f32[1], f32[1], f32[1]"}},
    [LL_EW_neg] = {LL_EW_OP1(neg, 1), .linear = true,
                   .trials = {"f32[7,3]", "f32[1]", "f32[2,0,3]", "i32[5]<9"}},
    [LL_EW_abs] = {LL_EW_OP1(abs, 1), TRIALS1},
    [LL_EW_exp] = {LL_EW_OP1(exp, 10), TRIALS1},
    [LL_EW_log] = {LL_EW_OP1(log, 10), POSITIVE1},
    [LL_EW_sqrt] = {LL_EW_OP1(sqrt, 4), POSITIVE1},
    [LL_EW_rsqrt] = {LL_EW_OP1(rsqrt, 5), POSITIVE1},
    [LL_EW_tanh] = {LL_EW_OP1(tanh, 15), TRIALS1},
    [LL_EW_sigmoid] = {LL_EW_OP1(sigmoid, 12), TRIALS1},
    [LL_EW_sin] = {LL_EW_OP1(sin, 15), TRIALS1},
    [LL_EW_cos] = {LL_EW_OP1(cos, 15), TRIALS1},
    [LL_EW_relu] = {LL_EW_OP1(relu, 1), TRIALS1},
    [LL_EW_gelu] = {LL_EW_OP1(gelu, 20), TRIALS1},
    [LL_EW_dgelu] = {LL_EW_OP1(dgelu, 25), TRIALS1},
    [LL_EW_silu] = {LL_EW_OP1(silu, 13), TRIALS1},
    [LL_EW_square] = {LL_EW_OP1(square, 1), TRIALS1},
    [LL_EW_pow] = {OP2(pow), .grad = pow_grad,
                   .trials = {"f32[7,3]>, f32[7,3]", "f32[1]>, f32[1]", "f32[0]>, f32[0]"}},
    [LL_EW_mod] = {OP2(mod), .grad = mod_grad,
                   .trials = {"f32[7,3], f32[7,3]>", "f32[1], f32[1]", "f32[0], f32[0]"}},
    [LL_EW_erf] = {LL_EW_OP1(erf, 15), TRIALS1},
    [LL_EW_floor] = {STEP1(floor), TRIALS1},
    [LL_EW_ceil] = {STEP1(ceil), TRIALS1},
    [LL_EW_round] = {STEP1(round), TRIALS1},
    [LL_EW_sign] = {STEP1(sign), .trials = {"f32[7,3]", "i32[9]<3", "f32[]"}},
    [LL_EW_log1p] = {LL_EW_OP1(log1p, 12), POSITIVE1},
    [LL_EW_expm1] = {LL_EW_OP1(expm1, 10), TRIALS1},
    [LL_EW_softplus] = {LL_EW_OP1(softplus, 25), TRIALS1},
    [LL_EW_atan] = {LL_EW_OP1(atan, 20), TRIALS1},
    [LL_EW_sinh] = {LL_EW_OP1(sinh, 20), TRIALS1},
    [LL_EW_asinh] = {LL_EW_OP1(asinh, 20), TRIALS1},
    [LL_EW_stop_gradient] = {STEP1(stop_gradient), TRIALS1},
    [LL_EW_scale] = {LL_EW_OP1(scale, 1), .linear = true, LL_ATTRS(ll_number_attr, value),
                     .trials = {"f32[7,3] {value=-1.5}", "f32[] {value=0}", "f32[0] {value=2}"}},
    [LL_EW_shift] = {LL_EW_OP1(shift, 1), LL_ATTRS(ll_number_attr, value),
                     .trials = {"f32[7,3] {value=-1.5}", "f32[] {value=0.25}", "f32[0] {value=2}"}},
    [LL_EW_cast] = {LL_EW_OP(cast, 1), .n_in = 1, .dims = "* -> *", .infer = infer_cast,
                    .grad = cast_grad, LL_ATTRS(ll_cast_attr, dtype),
                    .trials = {"f32[7,3] {dtype=f64}", "i32[5]<300 {dtype=f32}",
                               "f32[3,5] {dtype=i32}", "u8[9]<256 {dtype=f32}",
                               "f32[2,2] {dtype=bf16}"}},
};

const ll_op *ll_ew_op(ll_ew ew)
{
    if (ops[ew].name) return &ops[ew];
    for (const ll_op *const *o = ll_ops(); *o; o++)
        if ((*o)->elementwise && (*o)->ew == (int)ew) return *o;
    LL_ASSERT(!"an elementwise op that no file declares");
    return NULL;
}

#define X(name) &ops[LL_EW_##name],
const ll_op *const ll_ops_elementwise[] = {BINARY(X) UNARY(X) X(select) X(dgelu) X(scale) X(shift)
                                               X(cast) NULL};
#undef X
