/* activation.c: elementwise functions that are made of others; a chain makes each one pass over
 * memory. Where a function has a corner, its slope there is PyTorch's: max and min hand the
 * gradient of equal operands to the second. No ops of its own. */
#include "op/op_int.h"

ll_val ll_one_minus(ll_graph *g, ll_val x)
{
    return ll_shift(g, ll_neg(g, x), 1);
}

/* ll_name of x, or of a and b, is this value. */
#define OF_ONE(name, value)                                                                        \
    ll_val ll_##name(ll_graph *g, ll_val x)                                                        \
    {                                                                                              \
        return value;                                                                              \
    }
#define OF_TWO(name, value)                                                                        \
    ll_val ll_##name(ll_graph *g, ll_val a, ll_val b)                                              \
    {                                                                                              \
        return value;                                                                              \
    }

/* ---- truth: 0 or not 0, with results of 0 and 1 ---- */

OF_ONE(not, ll_equal(g, x, ll_like(g, x, 0)))
OF_TWO(and, ll_not(g, ll_max(g, ll_not(g, a), ll_not(g, b))))
OF_TWO(or, ll_not(g, ll_mul(g, ll_not(g, a), ll_not(g, b))))
OF_TWO(xor, ll_not_equal(g, ll_not(g, a), ll_not(g, b)))
OF_TWO(not_equal, ll_not(g, ll_equal(g, a, b)))
OF_TWO(greater, ll_less(g, b, a))
OF_TWO(less_equal, ll_max(g, ll_less(g, a, b), ll_equal(g, a, b))) /* !(b < a) holds of NaN */
OF_TWO(greater_equal, ll_less_equal(g, b, a))
OF_ONE(isnan, ll_not_equal(g, x, x))
/* x - x is NaN of what is not finite */
OF_ONE(isinf, ll_sub(g, ll_isnan(g, ll_sub(g, x, x)), ll_isnan(g, x)))

/* ---- functions ---- */

/* pow goes through logarithms: the usual powers do not. */
ll_val ll_power(ll_graph *g, ll_val x, double by)
{
    if (by == 1) return x;
    if (by == 2) return ll_square(g, x);
    if (by == 3) return ll_mul(g, x, ll_square(g, x));
    if (by == 0.5) return ll_sqrt(g, x);
    if (by == -0.5) return ll_rsqrt(g, x);
    if (by == -1) return ll_reciprocal(g, x);
    return ll_pow(g, x, ll_like(g, x, by));
}

ll_val ll_clamp(ll_graph *g, ll_val x, double least, double most)
{
    return ll_min(g, ll_like(g, x, most), ll_max(g, ll_like(g, x, least), x));
}

OF_ONE(reciprocal, ll_div(g, ll_like(g, x, 1), x))
OF_ONE(tan, ll_div(g, ll_sin(g, x), ll_cos(g, x)))
OF_ONE(cosh, ll_scale(g, ll_add(g, ll_exp(g, x), ll_exp(g, ll_neg(g, x))), 0.5))
OF_ONE(atanh, ll_scale(g, ll_sub(g, ll_log1p(g, x), ll_log1p(g, ll_neg(g, x))), 0.5))
/* atan(x / sqrt((1 - x) (1 + x))), 2 atan(sqrt((1 - x) / (1 + x))) */
OF_ONE(asin,
       ll_atan(g, ll_mul(g, x, ll_rsqrt(g, ll_mul(g, ll_one_minus(g, x), ll_shift(g, x, 1))))))
OF_ONE(acos,
       ll_scale(g, ll_atan(g, ll_sqrt(g, ll_div(g, ll_one_minus(g, x), ll_shift(g, x, 1)))), 2))

ll_val ll_acosh(ll_graph *g, ll_val x) /* with t = x - 1: log1p(t + sqrt(t) sqrt(t + 2)) */
{
    ll_val t = ll_shift(g, x, -1);
    ll_val root = ll_mul(g, ll_sqrt(g, t), ll_sqrt(g, ll_shift(g, t, 2)));
    return ll_log1p(g, ll_add(g, t, root));
}

/* ---- activations ---- */

ll_val ll_gelu_erf(ll_graph *g, ll_val x)
{
    ll_val half = ll_scale(g, x, 0.5);
    return ll_mul(g, half, ll_shift(g, ll_erf(g, ll_scale(g, x, M_SQRT1_2)), 1));
}

/* What is below 0, with slope 1 at 0, where relu's is 0. */
static ll_val below(ll_graph *g, ll_val x)
{
    return ll_min(g, ll_like(g, x, 0), x);
}

ll_val ll_leaky_relu(ll_graph *g, ll_val x, double slope)
{
    return ll_add(g, ll_relu(g, x), ll_scale(g, below(g, x), slope));
}

ll_val ll_prelu(ll_graph *g, ll_val x, ll_val slope)
{
    return ll_add(g, ll_relu(g, x), ll_mul(g, below(g, x), slope));
}

ll_val ll_elu(ll_graph *g, ll_val x, double alpha)
{
    return ll_add(g, ll_relu(g, x), ll_scale(g, ll_expm1(g, below(g, x)), alpha));
}

ll_val ll_celu(ll_graph *g, ll_val x, double alpha)
{
    if (alpha == 0) return ll_reject(g, LL_E_ARG, "%scelu: alpha is 0", ll_scope(g));
    ll_val low = ll_scale(g, below(g, x), 1 / alpha);
    return ll_add(g, ll_relu(g, x), ll_scale(g, ll_expm1(g, low), alpha));
}

OF_ONE(selu, ll_scale(g, ll_elu(g, x, 1.6732632423543772), 1.0507009873554805))
OF_ONE(mish, ll_mul(g, x, ll_tanh(g, ll_softplus(g, x))))
OF_ONE(log_sigmoid, ll_neg(g, ll_softplus(g, ll_neg(g, x))))
OF_ONE(hard_sigmoid, ll_clamp(g, ll_shift(g, ll_scale(g, x, 1.0 / 6), 0.5), 0, 1))
OF_ONE(hard_swish, ll_mul(g, x, ll_hard_sigmoid(g, x)))

const ll_op *const ll_ops_activation[] = {NULL};
