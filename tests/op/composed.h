/* composed.h: the table of test_composed.c. */
#pragma once
#include "op/op_int.h"

#include <math.h>

enum { MOST = 3, ROOM = 512 };

typedef struct row {
    const char *name, *operands[MOST]; /* as in trials; "f32[3]<1": between -1 and 1, "f32[3]>1" */
    ll_val (*build)(ll_graph *g, const ll_val *v);
    /* out[i] of operands in; n[k]: elements of operand k */
    void (*plain)(const double *const *in, const int64_t *n, double *out);
    bool no_grad;
} row;

/* Of each element x, or x and y, of operands of one shape. */
#define EACH1(id, built, value)                                                                    \
    static ll_val id##_of(ll_graph *g, const ll_val *v)                                            \
    {                                                                                              \
        ll_val x = v[0];                                                                           \
        return built;                                                                              \
    }                                                                                              \
    static void id##_plain(const double *const *in, const int64_t *n, double *out)                 \
    {                                                                                              \
        for (int64_t i = 0; i < n[0]; i++) {                                                       \
            double x = in[0][i];                                                                   \
            out[i] = value;                                                                        \
        }                                                                                          \
    }
#define EACH2(id, built, value)                                                                    \
    static ll_val id##_of(ll_graph *g, const ll_val *v)                                            \
    {                                                                                              \
        ll_val x = v[0], y = v[1];                                                                 \
        return built;                                                                              \
    }                                                                                              \
    static void id##_plain(const double *const *in, const int64_t *n, double *out)                 \
    {                                                                                              \
        for (int64_t i = 0; i < n[0]; i++) {                                                       \
            double x = in[0][i], y = in[1][i];                                                     \
            out[i] = value;                                                                        \
        }                                                                                          \
    }

EACH2(and, ll_and(g, x, y), x != 0 && y != 0)
EACH2(or, ll_or(g, x, y), x != 0 || y != 0)
EACH2(xor, ll_xor(g, x, y), (x != 0) != (y != 0))
EACH2(not_equal, ll_not_equal(g, x, y), x != y)
EACH2(greater, ll_greater(g, x, y), x > y)
EACH2(greater_equal, ll_greater_equal(g, x, y), x >= y)
EACH2(less_equal, ll_less_equal(g, x, y), x <= y)
EACH2(choose, ll_select(g, y, x, ll_neg(g, x)), y != 0 ? x : -x)
EACH2(mod_of_ints, ll_mod(g, x, ll_sub(g, y, ll_fill(g, LL_I32, LL_SCALAR, 7))),
      x - (y - 7) * floor(x / (y - 7)))
EACH1(not, ll_not(g, x), x == 0)
/* log of -1, 0 and 1: NaN, -inf and a number */
static ll_val odd(ll_graph *g, ll_val x)
{
    return ll_log(g, ll_shift(g, ll_cast(g, x, LL_F32), -1));
}
EACH1(isnan, ll_isnan(g, odd(g, x)), x == 0)
EACH1(isinf, ll_isinf(g, odd(g, x)), x == 1)
EACH1(le_nan, ll_less_equal(g, odd(g, x), ll_neg(g, odd(g, x))), x == 1 || x == 2)
EACH1(reciprocal, ll_reciprocal(g, x), 1 / x)
EACH1(clamp, ll_clamp(g, x, -0.5, 0.75), fmin(fmax(x, -0.5), 0.75))
EACH1(tan, ll_tan(g, x), tan(x))
EACH1(asin, ll_asin(g, x), asin(x))
EACH1(acos, ll_acos(g, x), acos(x))
EACH1(cosh, ll_cosh(g, x), cosh(x))
EACH1(acosh, ll_acosh(g, x), acosh(x))
EACH1(atanh, ll_atanh(g, x), atanh(x))
EACH1(gelu_erf, ll_gelu_erf(g, x), 0.5 * x * erfc(-x / sqrt(2)))
EACH1(leaky_relu, ll_leaky_relu(g, x, 0.1), x > 0 ? x : 0.1 * x)
EACH2(prelu, ll_prelu(g, x, y), x > 0 ? x : y * x)
EACH1(elu, ll_elu(g, x, 1.5), x > 0 ? x : 1.5 * (exp(x) - 1))
EACH1(celu, ll_celu(g, x, 1.5), x > 0 ? x : 1.5 * (exp(x / 1.5) - 1))
EACH1(selu, ll_selu(g, x), 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * (exp(x) - 1)))
EACH1(mish, ll_mish(g, x), x *tanh(log(1 + exp(x))))
EACH1(log_sigmoid, ll_log_sigmoid(g, x), -log(1 + exp(-x)))
EACH1(hard_sigmoid, ll_hard_sigmoid(g, ll_scale(g, x, 4)), fmin(fmax(4 * x / 6 + 0.5, 0), 1))
EACH1(hard_swish, ll_hard_swish(g, ll_scale(g, x, 4)), 4 * x * fmin(fmax(4 * x / 6 + 0.5, 0), 1))

#define TRUTH(id)                                                                                  \
    {                                                                                              \
#id, {"i32[31]<2", "i32[31]<2" }, id##_of, id##_plain, .no_grad = true                     \
    }
#define COMPARES(id)                                                                               \
    {                                                                                              \
#id, {"i32[31]<4", "i32[31]<4" }, id##_of, id##_plain, .no_grad = true                     \
    }
#define OF(id, range)                                                                              \
    {                                                                                              \
#id, {"f32[5,7]" range }, id##_of, id##_plain                                              \
    }

static const row rows[] = {
    TRUTH(and),
    TRUTH(or),
    TRUTH(xor),
    {"not", {"i32[31]<2"}, not_of, not_plain, .no_grad = true},
    COMPARES(not_equal),
    COMPARES(greater),
    COMPARES(greater_equal),
    COMPARES(less_equal),
    {"select of another type", {"f32[31]", "i32[31]<2"}, choose_of, choose_plain},
    {"mod of i32", {"i32[31]<50", "i32[31]<7"}, mod_of_ints_of, mod_of_ints_plain, .no_grad = true},
    {"isnan", {"i32[31]<3"}, isnan_of, isnan_plain, .no_grad = true},
    {"isinf", {"i32[31]<3"}, isinf_of, isinf_plain, .no_grad = true},
    {"less_equal of NaN", {"i32[31]<3"}, le_nan_of, le_nan_plain, .no_grad = true},
    OF(reciprocal, ">0.3"),
    OF(clamp, ""),
    OF(tan, "<1"),
    OF(asin, "<1"),
    OF(acos, "<1"),
    OF(cosh, ""),
    OF(acosh, ">1"),
    OF(atanh, "<1"),
    OF(gelu_erf, ""),
    OF(leaky_relu, ""),
    {"prelu", {"f32[31]", "f32[31]"}, prelu_of, prelu_plain},
    OF(elu, ""),
    OF(celu, ""),
    OF(selu, ""),
    OF(mish, ""),
    OF(log_sigmoid, ""),
    OF(hard_sigmoid, ""),
    OF(hard_swish, ""),
};
