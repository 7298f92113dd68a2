/* ops_elementwise.c: ops on each element by itself. Operands keep the order of dimensions in which
 * they lie. Whole numbers are of 32 bits; narrower ones wrap around as ONNX's do. */
#include "onnx/walk.h"

/* Of the first operand, f; wide: whole numbers by way of f64. */
static ll_err each(op *o, int type, bool wide, ll_val (*f)(op *o, ll_val x))
{
    value *x = o->in[0];
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    if (wide && ll_onnx_whole(x->type)) v = ll_cast(o->g, v, LL_F64);
    return ll_onnx_give(o, 0, type, f(o, v), &lies);
}

static ll_val by_row(op *o, ll_val x)
{
    return o->row->one(o->g, x);
}

/* What a row makes: as the type is; of whole numbers by way of f64, cut off behind the point and,
 * but for FAR, wrapped (of one operand they are as f64 has them); a truth. */
enum { EXACT, BY_F64, FAR, TRUTH };

static ll_err unary(op *o)
{
    int kind = o->row->kind;
    return each(o, kind == TRUTH ? ONNX_BOOL : o->in[0]->type, kind == BY_F64, by_row);
}

/* Activations with numbers; what ONNX has where they are not given. */
typedef enum activation_kind {
    LEAKY,
    ELU,
    CELU,
    SELU,
    HARD_SIGMOID,
    THRESHOLDED,
    SHRINK,
    SOFTSIGN,
    SWISH,
    GELU
} activation_kind;
static const double alphas[] = {
    [LEAKY] = 0.01,       [ELU] = 1,         [CELU] = 1,  [SELU] = 1.67326319217681884765625,
    [HARD_SIGMOID] = 0.2, [THRESHOLDED] = 1, [SWISH] = 1, [GELU] = 0};

static ll_val shrink(op *o, ll_val x)
{
    double edge = ll_attr_float(o, "lambd", 0.5), bias = ll_attr_float(o, "bias", 0);
    ll_val none = ll_one(o, x, 0);
    ll_val low =
        ll_select(o->g, ll_less(o->g, x, ll_one(o, x, -edge)), ll_shift(o->g, x, bias), none);
    return ll_select(o->g, ll_less(o->g, ll_one(o, x, edge), x), ll_shift(o->g, x, -bias), low);
}

static ll_val activate(op *o, ll_val x)
{
    ll_graph *g = o->g;
    double alpha = ll_attr_float(o, "alpha", alphas[o->row->kind]);
    switch ((activation_kind)o->row->kind) {
    case LEAKY: return ll_leaky_relu(g, x, alpha);
    case ELU: return ll_elu(g, x, alpha);
    case CELU: return ll_celu(g, x, alpha);
    case SELU:
        return ll_scale(g, ll_elu(g, x, alpha),
                        ll_attr_float(o, "gamma", 1.05070102214813232421875));
    case HARD_SIGMOID:
        return ll_clamp(g, ll_shift(g, ll_scale(g, x, alpha), ll_attr_float(o, "beta", 0.5)), 0, 1);
    case THRESHOLDED: return ll_select(g, ll_less(g, ll_one(o, x, alpha), x), x, ll_one(o, x, 0));
    case SHRINK: return shrink(o, x);
    case SOFTSIGN: return ll_div(g, x, ll_shift(g, ll_abs(g, x), 1));
    case SWISH: return ll_mul(g, x, ll_sigmoid(g, ll_scale(g, x, alpha)));
    case GELU:
        return strcmp(ll_attr_text(o, "approximate", "none"), "tanh") ? ll_gelu_erf(g, x)
                                                                      : ll_gelu(g, x);
    }
    LL_ASSERT(!"an activation");
}

static ll_err activation(op *o)
{
    return each(o, o->in[0]->type, true, activate);
}

/* Whole numbers of fewer than 32 bits, wrapped around. */
static ll_val wrap(ll_graph *g, int type, ll_val v)
{
    int bits = type == ONNX_UINT8 || type == ONNX_INT8     ? 8
               : type == ONNX_UINT16 || type == ONNX_INT16 ? 16
                                                           : 0;
    if (!bits) return v;
    double low = type == ONNX_INT8 || type == ONNX_INT16 ? 1 << (bits - 1) : 0;
    ll_val by = ll_fill(g, ll_graph_dtype(g, v), LL_SCALAR, 1 << bits);
    ll_val start = ll_fill(g, ll_graph_dtype(g, v), LL_SCALAR, low);
    return ll_sub(g, ll_mod(g, ll_add(g, v, start), by), start);
}

static ll_val trunc_of(ll_graph *g, ll_val x)
{
    return ll_mul(g, ll_sign(g, x), ll_floor(g, ll_abs(g, x)));
}

/* The result's type is the first one's, but of truths. */
static ll_err binary(op *o)
{
    ll_val v[2];
    order lies;
    WANT(o, o->n_in == 2, "%d operands", o->n_in);
    TRY(ll_onnx_align(o, 2, o->in, v, &lies));
    int type = o->in[0]->type;
    if (o->row->kind == TRUTH)
        return ll_onnx_give(o, 0, ONNX_BOOL, o->row->two(o->g, v[0], v[1]), &lies);
    bool whole = ll_onnx_whole(type), far = whole && o->row->kind != EXACT;
    for (int i = 0; i < 2; i++) v[i] = ll_cast(o->g, v[i], far ? LL_F64 : ll_onnx_dtype(type));
    ll_val y = o->row->two(o->g, v[0], v[1]);
    if (far) y = trunc_of(o->g, y);
    return ll_onnx_give(o, 0, type, whole && o->row->kind != FAR ? wrap(o->g, type, y) : y, &lies);
}

static ll_err many(op *o)
{
    ll_val *v = LL_NEW_ARRAY(o->w->arena, ll_val, o->n_in + 1);
    order lies;
    WANT(o, o->n_in, "no operands");
    TRY(ll_onnx_align(o, o->n_in, o->in, v, &lies));
    for (int i = 1; i < o->n_in; i++) v[0] = o->row->two(o->g, v[0], v[i]);
    if (o->row->kind) v[0] = ll_scale(o->g, v[0], 1.0 / o->n_in);
    return ll_onnx_give(o, 0, o->in[0]->type, v[0], &lies);
}

static ll_val times_slope(ll_graph *g, ll_val x, ll_val slope)
{
    return ll_select(g, ll_less(g, x, ll_fill(g, ll_graph_dtype(g, x), LL_SCALAR, 0)),
                     ll_mul(g, slope, x), x);
}

/* The sign is the divisor's, or with fmod the dividend's. */
static ll_err modulo(op *o)
{
    ll_val v[2];
    order lies;
    TRY(ll_onnx_align(o, 2, o->in, v, &lies));
    int type = o->in[0]->type;
    bool c = ll_attr_int(o, "fmod", 0) != 0;
    WANT(o, c || ll_onnx_whole(type), "of broken numbers without fmod");
    ll_val y =
        c ? ll_mul(o->g, ll_sign(o->g, v[0]), ll_mod(o->g, ll_abs(o->g, v[0]), ll_abs(o->g, v[1])))
          : ll_mod(o->g, v[0], v[1]);
    return ll_onnx_give(o, 0, type, y, &lies);
}

static ll_err clip(op *o)
{
    value *x = o->in[0];
    order lies;
    ll_val v = ll_onnx_any(o, x, &lies);
    for (int i = 1; i < 3; i++) {
        const char *name = i == 1 ? "min" : "max";
        ll_val edge;
        if (o->version < 11 && ll_attr(o, name)) {
            edge = ll_one(o, v, ll_attr_float(o, name, 0));
        } else if (has(o, i)) {
            WANT(o, ll_numel(&o->in[i]->shape) == 1, "%s is not one number", name);
            edge = ll_reshape(o->g, ll_onnx_plain(o, o->in[i]), LL_SCALAR);
        } else {
            continue;
        }
        v = (i == 1 ? ll_max : ll_min)(o->g, v, edge);
    }
    return ll_onnx_give(o, 0, x->type, v, &lies);
}

const row ll_rows_elementwise[] = {
    {"Abs", unary, .one = ll_abs},
    {"Neg", unary, .one = ll_neg},
    {"Sign", unary, .one = ll_sign},
    {"Exp", unary, .one = ll_exp, .kind = BY_F64},
    {"Log", unary, .one = ll_log, .kind = BY_F64},
    {"Sqrt", unary, .one = ll_sqrt, .kind = BY_F64},
    {"Reciprocal", unary, .one = ll_reciprocal, .kind = BY_F64},
    {"Floor", unary, .one = ll_floor, .kind = BY_F64},
    {"Ceil", unary, .one = ll_ceil, .kind = BY_F64},
    {"Round", unary, .one = ll_round, .kind = BY_F64},
    {"Erf", unary, .one = ll_erf, .kind = BY_F64},
    {"Sin", unary, .one = ll_sin, .kind = BY_F64},
    {"Cos", unary, .one = ll_cos, .kind = BY_F64},
    {"Tan", unary, .one = ll_tan, .kind = BY_F64},
    {"Asin", unary, .one = ll_asin, .kind = BY_F64},
    {"Acos", unary, .one = ll_acos, .kind = BY_F64},
    {"Atan", unary, .one = ll_atan, .kind = BY_F64},
    {"Sinh", unary, .one = ll_sinh, .kind = BY_F64},
    {"Cosh", unary, .one = ll_cosh, .kind = BY_F64},
    {"Tanh", unary, .one = ll_tanh, .kind = BY_F64},
    {"Asinh", unary, .one = ll_asinh, .kind = BY_F64},
    {"Acosh", unary, .one = ll_acosh, .kind = BY_F64},
    {"Atanh", unary, .one = ll_atanh, .kind = BY_F64},
    {"Sigmoid", unary, .one = ll_sigmoid, .kind = BY_F64},
    {"Relu", unary, .one = ll_relu, .kind = BY_F64},
    {"Softplus", unary, .one = ll_softplus, .kind = BY_F64},
    {"Mish", unary, .one = ll_mish, .kind = BY_F64},
    {"HardSwish", unary, .one = ll_hard_swish, .kind = BY_F64},
    {"LeakyRelu", activation, .kind = LEAKY},
    {"Elu", activation, .kind = ELU},
    {"Celu", activation, .kind = CELU},
    {"Selu", activation, .kind = SELU},
    {"HardSigmoid", activation, .kind = HARD_SIGMOID},
    {"ThresholdedRelu", activation, .kind = THRESHOLDED},
    {"Shrink", activation, .kind = SHRINK},
    {"Softsign", activation, .kind = SOFTSIGN},
    {"Swish", activation, .kind = SWISH},
    {"Gelu", activation, .kind = GELU},
    {"Add", binary, 7, .two = ll_add},
    {"Sub", binary, 7, .two = ll_sub},
    {"Mul", binary, 7, .two = ll_mul},
    {"Div", binary, 7, .two = ll_div, .kind = BY_F64},
    {"PRelu", binary, 7, .two = times_slope},
    {"Pow", binary, 7, .two = ll_pow, .kind = FAR}, /* a whole base may have a broken exponent */
    {"Mod", modulo},
    {"Max", many, 8, .two = ll_max},
    {"Min", many, 8, .two = ll_min},
    {"Sum", many, 8, .two = ll_add},
    {"Mean", many, 8, .two = ll_add, .kind = 1},
    {"Clip", clip},
    {0},
};

/* ---- truths, comparisons, types ---- */

static ll_val infinite(op *o, ll_val v)
{
    ll_val none = ll_one(o, v, 0), y = ll_isinf(o->g, v);
    if (!ll_attr_int(o, "detect_positive", 1)) y = ll_mul(o->g, y, ll_less(o->g, v, none));
    if (!ll_attr_int(o, "detect_negative", 1)) y = ll_mul(o->g, y, ll_less(o->g, none, v));
    return y;
}

static ll_err is_inf(op *o)
{
    return each(o, ONNX_BOOL, false, infinite);
}

static ll_err where(op *o)
{
    ll_val v[3];
    order lies;
    WANT(o, o->n_in == 3, "%d operands", o->n_in);
    TRY(ll_onnx_align(o, 3, o->in, v, &lies));
    v[0] = ll_cast(o->g, v[0], ll_onnx_dtype(o->in[1]->type));
    return ll_onnx_give(o, 0, o->in[1]->type, ll_select(o->g, v[0], v[1], v[2]), &lies);
}

/* kind 1: to the type of the second operand. */
static ll_err cast(op *o)
{
    value *x = o->in[0];
    order lies;
    WANT(o, !o->row->kind || o->n_in == 2, "%d operands", o->n_in);
    int type = o->row->kind ? o->in[1]->type : (int)ll_attr_int(o, "to", 0);
    ll_val v = ll_onnx_any(o, x, &lies);
    WANT(o, ll_onnx_dtype(type) != LL_N_DTYPE, "to %s", ll_onnx_type_name(type));
    bool from_whole = ll_onnx_whole(x->type), to_whole = ll_onnx_whole(type);
    if (type == ONNX_BOOL)
        v = ll_not_equal(o->g, v, ll_one(o, v, 0));
    else if (to_whole && !from_whole)
        v = wrap(o->g, type, ll_cast(o->g, trunc_of(o->g, v), LL_I32));
    else if (to_whole)
        v = wrap(o->g, type, v);
    else if ((type == ONNX_FLOAT16 || type == ONNX_BFLOAT16) && x->type != type)
        v = ll_cast(o->g, v, type == ONNX_FLOAT16 ? LL_F16 : LL_BF16);
    else if (type == ONNX_FLOAT && x->type == ONNX_DOUBLE)
        v = ll_cast(o->g, v, LL_F32);
    return ll_onnx_give(o, 0, type, v, &lies);
}

/* Bits that leave on the left are gone: wrapped; to the right: whole parts of halves. */
static ll_err bit_shift(op *o)
{
    ll_val v[2];
    order lies;
    TRY(ll_onnx_align(o, 2, o->in, v, &lies));
    int type = o->in[0]->type;
    bool left = !strcmp(ll_attr_text(o, "direction", ""), "LEFT");
    WANT(o, !left || type == ONNX_UINT8 || type == ONNX_UINT16, "to the left of %s",
         ll_onnx_type_name(type));
    ll_val x = ll_cast(o->g, v[0], LL_F64), n = ll_cast(o->g, v[1], LL_F64), far = ll_one(o, n, 40);
    n = ll_select(o->g, ll_less(o->g, n, ll_one(o, n, 0)), far, ll_min(o->g, n, far));
    ll_val by = ll_pow(o->g, ll_one(o, x, 2), n);
    ll_val y = left ? wrap(o->g, type, ll_mul(o->g, x, by)) : ll_floor(o->g, ll_div(o->g, x, by));
    return ll_onnx_give(o, 0, type, y, &lies);
}

const row ll_rows_logic[] = {
    {"Less", binary, 7, .two = ll_less, .kind = TRUTH},
    {"LessOrEqual", binary, .two = ll_less_equal, .kind = TRUTH},
    {"Greater", binary, 7, .two = ll_greater, .kind = TRUTH},
    {"GreaterOrEqual", binary, .two = ll_greater_equal, .kind = TRUTH},
    {"Equal", binary, 7, .two = ll_equal, .kind = TRUTH},
    {"And", binary, 7, .two = ll_and, .kind = TRUTH},
    {"Or", binary, 7, .two = ll_or, .kind = TRUTH},
    {"Xor", binary, 7, .two = ll_xor, .kind = TRUTH},
    {"Not", unary, .one = ll_not, .kind = TRUTH},
    {"IsNaN", unary, .one = ll_isnan, .kind = TRUTH},
    {"IsInf", is_inf},
    {"Where", where},
    {"Cast", cast, 6},
    {"CastLike", cast, .kind = 1},
    {"BitShift", bit_shift},
    {0},
};
