/* norms.c: reductions, softmax and normalisations that are made of other ops: sums and maxima over
 * the dimensions that they are over, and chains between them, so that all of them can be cut along
 * every dimension that a sum can. No ops of its own. */
#include "op/op_int.h"
#include "op/rows.h"

#include <float.h>
#include <stdio.h>

/* v, reduced by spec from a tensor of this shape, at all of its places. */
static ll_val spread(ll_graph *g, ll_val v, const char *spec, ll_shape shape)
{
    char back[LL_SPEC_MAX];
    return ll_broadcast(g, v, ll_spec_reverse(spec, back), shape);
}

/* "abc->ac" for dimension 1 of 3; false: there is no such dimension. */
static bool without(ll_graph *g, const char *what, ll_val x, int dim, char spec[LL_SPEC_MAX])
{
    if (!ll_is_dim(g, what, x, dim)) return false;
    int n = ll_graph_shape(g, x).n;
    snprintf(spec, LL_SPEC_MAX, "%.*s->%.*s%.*s", n, "abcdef", dim, "abcdef", n - dim - 1,
             &"abcdef"[dim + 1]);
    return true;
}

/* ---- reductions ---- */

ll_val ll_mean_over(ll_graph *g, ll_val x, const char *spec)
{
    ll_val sum = ll_sum(g, x, spec);
    if (!sum.id) return sum;
    ll_shape all = ll_graph_shape(g, x), kept = ll_graph_shape(g, sum);
    if (!ll_numel(&all)) return ll_reject(g, LL_E_SHAPE, "%smean_over: no elements", ll_scope(g));
    return ll_scale(g, sum, (double)ll_numel(&kept) / (double)ll_numel(&all));
}

ll_val ll_amin(ll_graph *g, ll_val x, const char *spec)
{
    return ll_neg(g, ll_amax(g, ll_neg(g, x), spec));
}

/* Halves are multiplied with each other until one is left: no element is divided by, so that
 * gradients are right where some are 0. */
ll_val ll_prod(ll_graph *g, ll_val x, const char *spec)
{
    ll_val like = ll_sum(g, x, spec); /* nobody reads it: it has the shape, and checks the spec */
    ll_spec s;
    char order[LL_SPEC_MAX] = {0};
    if (!like.id || ll_spec_parse(spec, &s) != LL_OK) return (ll_val){0};
    ll_shape kept = ll_graph_shape(g, like), rows = kept;
    strcat(strcat(strcat(order, s.in), "->"), s.out);
    for (int i = 0; i < s.n_in; i++)
        if (s.to[i] < 0) strncat(order, &s.in[i], 1);
    ll_shape all = ll_graph_shape(g, x);
    int64_t n = ll_numel(&kept) ? ll_numel(&all) / ll_numel(&kept) : 0;
    if (!n) return ll_fill(g, ll_graph_dtype(g, x), kept, 1);
    if (kept.n == LL_MAX_DIMS) return x;
    rows.d[rows.n++] = n;
    x = ll_reshape(g, ll_transpose(g, x, order), rows);
    for (int64_t half; n > 1; n = half + n % 2) {
        half = n / 2;
        ll_val y =
            ll_mul(g, ll_slice(g, x, kept.n, 0, half), ll_slice(g, x, kept.n, half, 2 * half));
        ll_val rest = n % 2 ? ll_slice(g, x, kept.n, n - 1, n) : y;
        x = n % 2 ? ll_concat(g, (ll_val[]){y, rest}, 2, kept.n) : y;
    }
    return ll_reshape(g, x, kept);
}

/* What is taken off before exp: the largest, as a number, so that infinities stay what they are. */
static ll_val top(ll_graph *g, ll_val x, const char *spec)
{
    return ll_stop_gradient(g, ll_clamp(g, ll_amax(g, x, spec), -FLT_MAX, FLT_MAX));
}

ll_val ll_logsumexp(ll_graph *g, ll_val x, const char *spec)
{
    ll_val most = top(g, x, spec);
    ll_val e = ll_exp(g, ll_sub(g, x, spread(g, most, spec, ll_graph_shape(g, x))));
    return ll_add(g, ll_log(g, ll_sum(g, e, spec)), most);
}

ll_val ll_softmax_over(ll_graph *g, ll_val x, int dim)
{
    char spec[LL_SPEC_MAX];
    if (!without(g, "softmax_over", x, dim, spec)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x);
    if (dim == s.n - 1) return ll_softmax(g, x);
    ll_val e = ll_exp(g, ll_sub(g, x, spread(g, top(g, x, spec), spec, s)));
    return ll_div(g, e, spread(g, ll_sum(g, e, spec), spec, s));
}

ll_val ll_log_softmax(ll_graph *g, ll_val x, int dim)
{
    char spec[LL_SPEC_MAX];
    if (!without(g, "log_softmax", x, dim, spec)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, x);
    ll_val z = ll_sub(g, x, spread(g, top(g, x, spec), spec, s));
    return ll_sub(g, z, spread(g, ll_log(g, ll_sum(g, ll_exp(g, z), spec)), spec, s));
}

/* ---- normalisations ---- */

ll_val ll_group_norm(ll_graph *g, ll_val x, int64_t groups, ll_val gain, ll_val bias, double eps)
{
    ll_shape s = ll_graph_shape(g, x), split = s;
    if (!x.id) return x;
    int last = s.n - 1;
    if (s.n < 2 || s.n == LL_MAX_DIMS || groups < 1 || s.d[last] % groups) {
        char text[LL_SHAPE_TEXT];
        return ll_reject(g, LL_E_SHAPE,
                         "%sgroup_norm: %ld groups of %s, expected a divisor of its channels, of 2 "
                         "to %d dimensions",
                         ll_scope(g), groups, ll_shape_print(&s, text), LL_MAX_DIMS - 1);
    }
    split.d[last] = groups;
    split.d[split.n++] = s.d[last] / groups;
    char spec[LL_SPEC_MAX]; /* "abcyz->ay" */
    snprintf(spec, sizeof spec, "%.*syz->ay", last, "abcdef");
    ll_val y = ll_reshape(g, x, split);
    y = ll_sub(g, y, spread(g, ll_mean_over(g, y, spec), spec, split));
    ll_val var = ll_mean_over(g, ll_square(g, y), spec);
    y = ll_mul(g, y, spread(g, ll_rsqrt(g, ll_shift(g, var, eps)), spec, split));
    y = ll_reshape(g, y, s);
    if (gain.id) y = ll_mul(g, y, gain);
    return bias.id ? ll_add(g, y, bias) : y;
}

ll_val ll_instance_norm(ll_graph *g, ll_val x, ll_val gain, ll_val bias, double eps)
{
    return ll_group_norm(g, x, x.id ? ll_row_length(g, x) : 1, gain, bias, eps);
}

ll_val ll_local_response_norm(ll_graph *g, ll_val x, int64_t size, double alpha, double beta,
                              double k)
{
    if (!x.id) return x;
    if (size < 1 || !ll_graph_shape(g, x).n)
        return ll_reject(g, LL_E_ARG, "%slocal_response_norm: a window of %ld channels",
                         ll_scope(g), size);
    int last = ll_graph_shape(g, x).n - 1;
    int64_t c = ll_row_length(g, x);
    ll_val padded = ll_pad(g, ll_square(g, x), last, size / 2, (size - 1) / 2);
    ll_val sum = ll_slice(g, padded, last, 0, c);
    for (int64_t i = 1; i < size; i++) sum = ll_add(g, sum, ll_slice(g, padded, last, i, i + c));
    ll_val base = ll_shift(g, ll_scale(g, sum, alpha / (double)size), k);
    return ll_mul(g, x, ll_exp(g, ll_scale(g, ll_log(g, base), -beta)));
}

const ll_op *const ll_ops_norms[] = {NULL};
