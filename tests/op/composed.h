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
    bool no_grad, loose; /* loose: f32 rounds operands */
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
EACH1(powers,
      ll_add(g, ll_add(g, ll_power(g, x, 3), ll_power(g, x, 0.5)),
             ll_add(g, ll_power(g, x, -1), ll_power(g, x, 1.7))),
      x *x *x + sqrt(x) + 1 / x + pow(x, 1.7))
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

EACH2(mse, ll_mse(g, x, y), (x - y) * (x - y))
EACH2(l1, ll_l1(g, x, y), fabs(x - y))
EACH2(huber, ll_huber(g, x, y, 0.7),
      fabs(x - y) < 0.7 ? (x - y) * (x - y) / 2 : 0.7 * (fabs(x - y) - 0.35))
EACH2(smooth_l1, ll_smooth_l1(g, x, y, 0.7),
      fabs(x - y) < 0.7 ? (x - y) * (x - y) / 1.4 : fabs(x - y) - 0.35)
EACH2(bce, ll_bce_logits(g, x, y, (ll_val){0}),
      -y *log(1 / (1 + exp(-x))) - (1 - y) * log(1 / (1 + exp(x))))
EACH2(focal, ll_focal(g, x, ll_cast(g, y, LL_F32), 0.25, 2),
      y != 0 ? -0.25 * pow(1 / (1 + exp(x)), 2) * log(1 / (1 + exp(-x)))
             : -0.75 * pow(1 / (1 + exp(-x)), 2) * log(1 / (1 + exp(x))))
EACH2(kl_div, ll_kl_div(g, x, y), y *(log(y) - x))
EACH2(kl_div_0, ll_kl_div(g, x, ll_cast(g, y, LL_F32)), y != 0 ? y * (log(y) - x) : 0)

#define BUILT(id, built)                                                                           \
    static ll_val id##_of(ll_graph *g, const ll_val *v)                                            \
    {                                                                                              \
        return built;                                                                              \
    }
#define PLAIN(id) static void id##_plain(const double *const *in, const int64_t *n, double *out)
#define EACH(i, count) for (int i = 0; i < (count); i++)

/* x [3,4,5] */
#define AT(a, b, c) in[0][((a)*4 + (b)) * 5 + (c)]
BUILT(mean_over, ll_mean_over(g, v[0], "abc->b"))
PLAIN(mean_over)
{
    (void)n;
    EACH (b, 4) {
        out[b] = 0;
        EACH (a, 3)
            EACH (c, 5) out[b] += AT(a, b, c) / 15;
    }
}
BUILT(amin, ll_amin(g, v[0], "abc->ac"))
PLAIN(amin)
{
    (void)n;
    EACH (a, 3)
        EACH (c, 5) {
            out[a * 5 + c] = AT(a, 0, c);
            EACH (b, 4) out[a * 5 + c] = fmin(out[a * 5 + c], AT(a, b, c));
        }
}
BUILT(prod, ll_prod(g, v[0], "abc->b"))
PLAIN(prod)
{
    (void)n;
    EACH (b, 4) {
        out[b] = 1;
        EACH (a, 3)
            EACH (c, 5) out[b] *= AT(a, b, c);
    }
}
static double lse(const double *x, int n, int step)
{
    double sum = 0;
    EACH (i, n) sum += exp(x[i * step]);
    return log(sum);
}
BUILT(logsumexp, ll_logsumexp(g, v[0], "abc->ac"))
PLAIN(logsumexp)
{
    (void)n;
    EACH (a, 3)
        EACH (c, 5) out[a * 5 + c] = lse(&AT(a, 0, c), 4, 5);
}
BUILT(softmax_over, ll_softmax_over(g, v[0], 1))
PLAIN(softmax_over)
{
    (void)n;
    EACH (a, 3)
        EACH (b, 4)
            EACH (c, 5) out[(a * 4 + b) * 5 + c] = exp(AT(a, b, c) - lse(&AT(a, 0, c), 4, 5));
}
BUILT(log_softmax, ll_log_softmax(g, v[0], 0))
PLAIN(log_softmax)
{
    (void)n;
    EACH (a, 3)
        EACH (b, 4)
            EACH (c, 5) out[(a * 4 + b) * 5 + c] = AT(a, b, c) - lse(&AT(0, b, c), 3, 20);
}
/* 1000 and more do not overflow */
BUILT(log_softmax_large, ll_log_softmax(g, ll_shift(g, v[0], 1000), 2))
PLAIN(log_softmax_large)
{
    (void)n;
    EACH (a, 12)
        EACH (c, 5) out[a * 5 + c] = in[0][a * 5 + c] - lse(&in[0][a * 5], 5, 1);
}
BUILT(take, ll_gather(g, v[0], v[1], 1)) /* index [2,2] */
PLAIN(take)
{
    (void)n;
    EACH (a, 3)
        EACH (i, 4)
            EACH (c, 5) out[(a * 4 + i) * 5 + c] = AT(a, (int)in[1][i], c);
}
BUILT(take_rows, ll_gather(g, ll_reshape(g, v[0], LL_SHAPE(12, 5)), v[1], 0)) /* index [3] */
PLAIN(take_rows)
{
    (void)n;
    EACH (i, 3)
        EACH (c, 5) out[i * 5 + c] = in[0][(int)in[1][i] * 5 + c];
}
BUILT(take_along, ll_gather_elements(g, v[0], v[1], 1)) /* index [2,3,5] */
PLAIN(take_along)
{
    (void)n;
    EACH (a, 2)
        EACH (i, 3)
            EACH (c, 5) out[(a * 3 + i) * 5 + c] = AT(a, (int)in[1][(a * 3 + i) * 5 + c], c);
}
BUILT(scatter, ll_scatter_add(g, v[0], v[1], 1, 3)) /* index [3,4,5] */
PLAIN(scatter)
{
    EACH (i, 45) out[i] = 0;
    EACH (i, n[0]) out[(i / 20 * 3 + (int)in[1][i]) * 5 + i % 5] += in[0][i];
}
BUILT(one_hot, ll_one_hot(g, v[0], 3, LL_F32))
PLAIN(one_hot)
{
    EACH (i, n[0])
        EACH (c, 3) out[i * 3 + c] = in[0][i] == c;
}
static ll_val top_2_of(ll_graph *g, const ll_val *v) /* their values and, times 10, places */
{
    ll_val at, x = ll_top_k(g, v[0], 2, &at);
    return ll_add(g, x, ll_scale(g, ll_cast(g, at, LL_F32), 10));
}
PLAIN(top_2)
{
    (void)n;
    EACH (r, 12) {
        const double *x = in[0] + r * 5;
        int first = 0, second = -1;
        EACH (i, 5)
            if (x[i] > x[first]) first = i;
        EACH (i, 5)
            if (i != first && (second < 0 || x[i] > x[second])) second = i;
        out[2 * r] = x[first] + 10 * first, out[2 * r + 1] = x[second] + 10 * second;
    }
}
BUILT(argmin, ll_argmin(g, v[0], 2))
PLAIN(argmin)
{
    (void)n;
    EACH (r, 12) {
        out[r] = 0;
        EACH (i, 5)
            if (in[0][r * 5 + i] < in[0][r * 5 + (int)out[r]]) out[r] = i;
    }
}
/* Whole numbers through what moves and sums them. */
static ll_val integers_of(ll_graph *g, const ll_val *v) /* [4,5] -> [5] */
{
    ll_val x = ll_transpose(g, v[0], "ab->ba"), both[] = {x, ll_slice(g, x, 1, 1, 3)};
    x = ll_pad(g, ll_concat(g, both, 2, 1), 1, 0, 1); /* [5,7], the last of them 0 */
    ll_val big = ll_fill(g, LL_I32, LL_SHAPE(5, 7), 20000001);
    x = ll_sum(g, ll_add(g, x, big), "ab->a");
    return ll_sub(g, ll_add(g, x, ll_amax(g, v[0], "ab->b")), ll_amin(g, v[0], "ab->b"));
}
PLAIN(integers)
{
    (void)n;
    EACH (c, 5) {
        double most = in[0][c], least = in[0][c];
        out[c] = 7 * 20000001.0 + in[0][5 + c] + in[0][10 + c];
        EACH (r, 4) {
            double x = in[0][5 * r + c];
            out[c] += x, most = fmax(most, x), least = fmin(least, x);
        }
        out[c] += most - least;
    }
}
EACH1(arange, ll_mul(g, x, ll_arange(g, LL_F32, 31, 2, -0.5)), x *(2 - 0.5 * (double)i))
#undef AT

/* x [2,3,2,6], gain and bias [6] */
static void group_norm(const double *const *in, int groups, double *out)
{
    int c = 6 / groups;
    EACH (s, 2)
        EACH (g, groups) {
            double mean = 0, var = 0;
            EACH (i, 6)
                EACH (k, c) mean += in[0][(s * 6 + i) * 6 + g * c + k] / (6 * c);
            EACH (i, 6)
                EACH (k, c) var += pow(in[0][(s * 6 + i) * 6 + g * c + k] - mean, 2) / (6 * c);
            EACH (i, 6)
                EACH (k, c) {
                    int ch = g * c + k, at = (s * 6 + i) * 6 + ch;
                    out[at] = (in[0][at] - mean) / sqrt(var + 1e-3) * in[1][ch] + in[2][ch];
                }
        }
}
BUILT(group_norm, ll_group_norm(g, v[0], 3, v[1], v[2], 1e-3))
PLAIN(group_norm)
{
    (void)n;
    group_norm(in, 3, out);
}
BUILT(instance_norm, ll_instance_norm(g, v[0], v[1], v[2], 1e-3))
PLAIN(instance_norm)
{
    (void)n;
    group_norm(in, 6, out);
}
static void response(const double *const *in, int size, double *out) /* [5,7] */
{
    EACH (r, 5)
        EACH (c, 7) {
            double sum = 0;
            for (int k = c - size / 2; k < c - size / 2 + size; k++)
                if (k >= 0 && k < 7) sum += in[0][r * 7 + k] * in[0][r * 7 + k];
            out[r * 7 + c] = in[0][r * 7 + c] / pow(1.5 + 0.3 * sum / size, 0.75);
        }
}
BUILT(response_3, ll_local_response_norm(g, v[0], 3, 0.3, 0.75, 1.5))
PLAIN(response_3)
{
    (void)n;
    response(in, 3, out);
}
BUILT(response_4, ll_local_response_norm(g, v[0], 4, 0.3, 0.75, 1.5))
PLAIN(response_4)
{
    (void)n;
    response(in, 4, out);
}

/* x, target [4,5], weight [5] */
BUILT(bce_weight, ll_bce_logits(g, v[0], v[1], v[2]))
PLAIN(bce_weight)
{
    EACH (i, n[0]) {
        double x = in[0][i], z = in[1][i], w = in[2][i % 5];
        out[i] = w * z * log(1 + exp(-x)) + (1 - z) * log(1 + exp(x));
    }
}
static double cosine(const double *a, const double *b)
{
    double ab = 0, aa = 0, bb = 0;
    EACH (i, 5) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return ab / sqrt(aa * bb);
}
BUILT(cosine, ll_cosine_similarity(g, v[0], v[1], 1e-8))
PLAIN(cosine)
{
    (void)n;
    EACH (r, 4) out[r] = cosine(in[0] + 5 * r, in[1] + 5 * r);
}
BUILT(cosine_embedding,
      ll_cosine_embedding(g, v[0], v[1], ll_shift(g, ll_scale(g, ll_cast(g, v[2], LL_F32), 2), -1),
                          -0.9))
PLAIN(cosine_embedding)
{
    (void)n;
    EACH (r, 4) {
        double cos = cosine(in[0] + 5 * r, in[1] + 5 * r);
        out[r] = in[2][r] != 0 ? 1 - cos : fmax(0, cos + 0.9);
    }
}
BUILT(nll, ll_nll(g, v[0], v[1]))
PLAIN(nll)
{
    (void)n;
    EACH (r, 4) out[r] = -in[0][5 * r + (int)in[1][r]];
}
/* PyTorch's formula: (1 - e) of the label's term, e / 5 of the sum of all classes' terms. */
static double entropy(const double *const *in, double e, const double *weight)
{
    double loss = 0, total = 0;
    EACH (r, 4) {
        const double *x = in[0] + 5 * r;
        int y = (int)in[1][r];
        total += weight ? weight[y] : 1;
        EACH (c, 5) {
            double term = (lse(x, 5, 1) - x[c]) * (weight ? weight[c] : 1);
            loss += term * ((c == y) * (1 - e) + e / 5);
        }
    }
    return loss / total;
}
BUILT(entropy, ll_cross_entropy_mean(g, v[0], v[1], &(ll_cross_entropy_opts){0}))
PLAIN(entropy)
{
    (void)n;
    out[0] = entropy(in, 0, NULL);
}
BUILT(smoothed, ll_cross_entropy_mean(g, v[0], v[1], &(ll_cross_entropy_opts){.smoothing = 0.1}))
PLAIN(smoothed)
{
    (void)n;
    out[0] = entropy(in, 0.1, NULL);
}
BUILT(weighted, ll_cross_entropy_mean(g, v[0], v[1],
                                      &(ll_cross_entropy_opts){.smoothing = 0.1, .weight = v[2]}))
PLAIN(weighted)
{
    (void)n;
    out[0] = entropy(in, 0.1, in[2]);
}

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
    OF(powers, ">0.3"),
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

#define CUBE "f32[3,4,5]"
#define FOUR "f32[4,5]"
#define ROW(id, ...)                                                                               \
    {                                                                                              \
#id, {__VA_ARGS__ }, id##_of, id##_plain                                                   \
    }
    ROW(mse, FOUR, FOUR),
    ROW(l1, FOUR, FOUR),
    ROW(huber, FOUR, FOUR),
    ROW(smooth_l1, FOUR, FOUR),
    ROW(bce, FOUR, FOUR),
    ROW(bce_weight, FOUR, FOUR, "f32[5]>0"),
    ROW(focal, FOUR, "i32[4,5]<2"),
    ROW(kl_div, FOUR, FOUR ">0.1"),
    ROW(kl_div_0, FOUR, "i32[4,5]<3"),
    ROW(cosine, FOUR, FOUR),
    ROW(cosine_embedding, FOUR, FOUR, "i32[4]<2"),
    ROW(nll, FOUR, "i32[4]<5"),
    ROW(entropy, FOUR, "i32[4]<5"),
    ROW(smoothed, FOUR, "i32[4]<5"),
    ROW(weighted, FOUR, "i32[4]<5", "f32[5]>0.1"),
    ROW(mean_over, CUBE),
    ROW(amin, CUBE),
    ROW(prod, CUBE),
    ROW(logsumexp, CUBE),
    ROW(softmax_over, CUBE),
    ROW(log_softmax, CUBE),
    {"log_softmax of large numbers",
     {CUBE},
     log_softmax_large_of,
     log_softmax_large_plain,
     .loose = true},
    ROW(take, CUBE, "i32[2,2]<4"),
    ROW(take_rows, CUBE, "i32[3]<12"),
    ROW(take_along, CUBE, "i32[2,3,5]<4"),
    ROW(scatter, CUBE, "i32[3,4,5]<3"),
    {"integers", {"i32[4,5]<90"}, integers_of, integers_plain, .no_grad = true},
    {"one_hot", {"i32[31]<3"}, one_hot_of, one_hot_plain, .no_grad = true},
    ROW(top_2, CUBE),
    {"argmin", {CUBE}, argmin_of, argmin_plain, .no_grad = true},
    ROW(arange, "f32[31]"),
    ROW(group_norm, "f32[2,3,2,6]", "f32[6]", "f32[6]"),
    ROW(instance_norm, "f32[2,3,2,6]", "f32[6]", "f32[6]"),
    ROW(response_3, "f32[5,7]"),
    ROW(response_4, "f32[5,7]"),
};
