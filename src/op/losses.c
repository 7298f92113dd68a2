/* losses.c: losses that are made of other ops, as PyTorch defines them. No ops of its own. */
#include "op/op_int.h"
#include "op/rows.h"

ll_val ll_mse(ll_graph *g, ll_val x, ll_val target)
{
    return ll_square(g, ll_sub(g, x, target));
}

ll_val ll_l1(ll_graph *g, ll_val x, ll_val target)
{
    return ll_abs(g, ll_sub(g, x, target));
}

ll_val ll_huber(ll_graph *g, ll_val x, ll_val target,
                double delta) /* c (d - c / 2), c = min(d, delta) */
{
    if (!(delta > 0))
        return ll_reject(g, LL_E_ARG, "%shuber: delta is %g, expected more than 0", ll_scope(g),
                         delta);
    ll_val d = ll_l1(g, x, target), c = ll_min(g, ll_like(g, d, delta), d);
    return ll_mul(g, c, ll_sub(g, d, ll_scale(g, c, 0.5)));
}

ll_val ll_smooth_l1(ll_graph *g, ll_val x, ll_val target, double beta)
{
    return beta > 0 ? ll_scale(g, ll_huber(g, x, target, beta), 1 / beta) : ll_l1(g, x, target);
}

/* (1 - z) x - w log sigmoid(x) with w = 1 + (weight - 1) z: nothing cancels. */
ll_val ll_bce_logits(ll_graph *g, ll_val x, ll_val target, ll_val weight)
{
    ll_val loss = ll_softplus(g, ll_neg(g, x));
    if (weight.id)
        loss = ll_mul(g, loss, ll_shift(g, ll_mul(g, ll_shift(g, weight, -1), target), 1));
    return ll_add(g, ll_mul(g, ll_one_minus(g, target), x), loss);
}

ll_val ll_focal(ll_graph *g, ll_val x, ll_val target, double alpha, double gamma)
{
    ll_val p = ll_sigmoid(g, x), not_p = ll_sigmoid(g, ll_neg(g, x)),
           not_z = ll_one_minus(g, target);
    ll_val missed = ll_add(g, ll_mul(g, not_p, target), ll_mul(g, p, not_z));
    ll_val loss = ll_mul(g, ll_bce_logits(g, x, target, (ll_val){0}), ll_power(g, missed, gamma));
    if (alpha < 0) return loss;
    ll_val side = ll_add(g, ll_scale(g, target, alpha), ll_scale(g, not_z, 1 - alpha));
    return ll_mul(g, loss, side);
}

ll_val ll_kl_div(ll_graph *g, ll_val log_p, ll_val target)
{
    ll_val safe = ll_select(g, target, target, ll_like(g, target, 1));
    return ll_mul(g, target, ll_sub(g, ll_log(g, safe), log_p));
}

ll_val ll_cosine_similarity(ll_graph *g, ll_val a, ll_val b, double eps)
{
    ll_val least = ll_like(g, a, eps * eps);
    ll_val aa = ll_max(g, least, ll_row_sum(g, ll_square(g, a)));
    ll_val bb = ll_max(g, least, ll_row_sum(g, ll_square(g, b)));
    ll_val dot = ll_row_sum(g, ll_mul(g, a, b));
    return ll_mul(g, dot, ll_mul(g, ll_rsqrt(g, aa), ll_rsqrt(g, bb)));
}

ll_val ll_cosine_embedding(ll_graph *g, ll_val a, ll_val b, ll_val sign, double margin)
{
    ll_val cos = ll_cosine_similarity(g, a, b, 1e-6);
    ll_val alike = ll_less(g, ll_like(g, sign, 0), sign);
    return ll_select(g, alike, ll_one_minus(g, cos), ll_relu(g, ll_shift(g, cos, -margin)));
}

ll_val ll_nll(ll_graph *g, ll_val log_p, ll_val label)
{
    if (!log_p.id || !label.id) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, label), one = s;
    if (s.n == LL_MAX_DIMS)
        return ll_reject(g, LL_E_SHAPE, "%snll: too many dimensions", ll_scope(g));
    one.d[one.n++] = 1;
    ll_val p = ll_gather_elements(g, log_p, ll_reshape(g, label, one), s.n);
    return ll_neg(g, ll_reshape(g, p, s));
}

/* Weights of another length would be broadcast, or read by labels that they do not have. */
static bool check_classes(ll_graph *g, ll_val logits, const ll_cross_entropy_opts *o)
{
    int64_t classes = ll_row_length(g, logits);
    ll_shape w = ll_graph_shape(g, o->weight);
    char text[LL_SHAPE_TEXT];
    if (!(o->smoothing >= 0 && o->smoothing < 1))
        ll_reject(g, LL_E_ARG,
                  "%scross_entropy_mean: smoothing is %g, expected 0 or more and less "
                  "than 1",
                  ll_scope(g), o->smoothing);
    else if (o->weight.id && (w.n != 1 || w.d[0] != classes))
        ll_reject(g, LL_E_SHAPE,
                  "%scross_entropy_mean: the weight is %s, expected [%ld], one "
                  "number for each class",
                  ll_scope(g), ll_shape_print(&w, text), classes);
    return !ll_rejected(g);
}

/* Means over rows, each of which counts as much as its label's class. */
ll_val ll_cross_entropy_mean(ll_graph *g, ll_val logits, ll_val label,
                             const ll_cross_entropy_opts *o)
{
    static const ll_cross_entropy_opts plain = {0};
    if (!o) o = &plain;
    ll_val loss = ll_cross_entropy(g, logits, label), total = {0};
    if (!loss.id || !check_classes(g, logits, o)) return (ll_val){0};
    if (o->weight.id) {
        ll_val w = ll_gather(g, o->weight, label, 0);
        loss = ll_mul(g, loss, w);
        total = ll_sum_all(g, w);
    }
    if (o->smoothing != 0) {
        ll_val all = ll_neg(g, ll_log_softmax(g, logits, ll_graph_shape(g, logits).n - 1));
        if (o->weight.id) all = ll_mul(g, all, o->weight);
        double each = o->smoothing / (double)ll_row_length(g, logits);
        loss =
            ll_add(g, ll_scale(g, loss, 1 - o->smoothing), ll_scale(g, ll_row_sum(g, all), each));
    }
    return total.id ? ll_div(g, ll_sum_all(g, loss), total) : ll_mean(g, loss);
}

ll_val ll_label_loss(ll_graph *g, const ll_build *b, ll_val logits)
{
    if (!logits.id || !ll_has_argument(g, "label_loss", "b", b)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, logits);
    s.n--;
    ll_val y = ll_batch(g, "y", LL_I32, s), each = ll_cross_entropy(g, logits, y);
    if (b->mixed) {
        ll_val other = ll_cross_entropy(g, logits, ll_batch(g, "y2", LL_I32, s));
        each = ll_add(g, other, ll_mul(g, ll_batch(g, "mix", LL_F32, s), ll_sub(g, each, other)));
    }
    ll_val loss = ll_mean(g, each);
    ll_graph_result(g, "loss", loss);
    ll_graph_result(g, "correct", ll_sum_all(g, ll_correct(g, logits, y)));
    return loss;
}

const ll_op *const ll_ops_losses[] = {NULL};
