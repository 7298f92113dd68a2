/* linear_attend.c: causal linear attention (Katharopoulos et al., 2020): sums without softmax, of
 * queries and keys that are features already,
 *   p[i,j] = f^(i + ahead - j) q[i] k[j] for j <= i + ahead, else 0
 *   o[i] = sum_j p[i,j] v[j],  l[i] = sum_j p[i,j]
 * and its gradient, with dp[i,j] = f^(i + ahead - j) (do[i] v[j] + dl[i]) there:
 *   dq[i] = sum_j dp[i,j] k[j],  dk[j] = sum_i dp[i,j] q[i],  dv[j] = sum_i p[i,j] do[i]
 * f is what a head keeps as the next token comes: 1, or RetNet's (Sun et al., 2023).
 *
 *   q [b,t,n,g,d]  k [b,s,n,d]  v [b,s,n,e]  ->  o [b,t,n,g,e]  l [b,n,g,t]
 *
 * Kernels walk the keys in chunks, with the sum of k' v so far as state: time and memory grow with
 * t. All is sums, so every loop but e can be cut: a part of t has the keys before it, and a part of
 * s gives part of the sums. The expansion is products and a mask, with all of p.
 *
 * linear_step is its form for generation: the state, [b,n,d,e+1] with l's sum as the last column,
 * is all that is kept of a sequence, which begins where at[b] is 0. Of new tokens the first
 * last[b] + 1 count; others give zeros. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(linear_attend, linear_attend_grad, linear_step)

/* ---- expansion ---- */

/* f^(t + ahead - s), [n,1,t,s]. */
static ll_val fading(ll_graph *g, const ll_linear_attr *a, ll_dtype type, int64_t n, int64_t t,
                     int64_t s)
{
    double first = a->decay + (double)a->at;
    ll_val head = ll_arange(g, type, n, first, 1),
           time = ll_arange(g, type, t, (double)a->ahead, 1);
    ll_val rate = ll_log1p(g, ll_neg(g, ll_exp(g, ll_scale(g, head, -log(2)))));
    ll_val past = ll_sub(g, ll_reshape(g, time, LL_SHAPE(t, 1)), ll_arange(g, type, s, 0, 1));
    past = ll_max(g, past, ll_fill(g, type, LL_SCALAR, 0)); /* what is masked may not overflow */
    rate = ll_broadcast(g, rate, "n->nts", LL_SHAPE(n, t, s));
    past = ll_broadcast(g, past, "ts->nts", LL_SHAPE(n, t, s));
    return ll_reshape(g, ll_exp(g, ll_mul(g, rate, past)), LL_SHAPE(n, 1, t, s));
}

/* x [b,n,g,t,s] as it decays, and masked. */
static ll_val seen(ll_graph *g, const ll_linear_attr *a, ll_val x)
{
    if (!x.id) return x;
    ll_shape s = ll_graph_shape(g, x);
    if (a->decay > 0) x = ll_mul(g, x, fading(g, a, ll_graph_dtype(g, x), s.d[1], s.d[3], s.d[4]));
    return ll_masked(g, x, 0, a->ahead);
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_linear_attr *a = (const ll_linear_attr *)attr;
    ll_val p = seen(g, a, ll_matmul(g, "btngd,bsnd->bngts", in[0], in[1]));
    out[0] = ll_matmul(g, "bngts,bsne->btnge", p, in[2]);
    out[1] = ll_row_sum(g, p);
}

/* in: do, dl, q, k, v */
static void expand_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    const ll_linear_attr *a = (const ll_linear_attr *)attr;
    ll_val p = seen(g, a, ll_matmul(g, "btngd,bsnd->bngts", in[2], in[3]));
    ll_val dp = ll_matmul(g, "btnge,bsne->bngts", in[0], in[4]);
    if (!p.id || !dp.id) return;
    ll_shape s = ll_graph_shape(g, dp);
    dp = seen(g, a, ll_add(g, dp, ll_row_spread(g, in[1], &s)));
    out[0] = ll_matmul(g, "bngts,bsnd->btngd", dp, in[3]);
    out[1] = ll_matmul(g, "bngts,btngd->bsnd", dp, in[2]);
    out[2] = ll_matmul(g, "bngts,btnge->bsne", p, in[0]);
}

/* ---- ops ---- */

static ll_err infer(ll_infer *i)
{
    double decay = ((const ll_linear_attr *)i->attr)->decay;
    CHECK(decay == 0 || decay >= 1, LL_E_ARG,
          "decay is %g: heads keep 1 - 2^-decay of a token, expected 1 or more, or 0 for all of it",
          decay);
    return ll_infer_floats(i);
}

static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    ll_linear_attr *a = (ll_linear_attr *)part->attr;
    if (l->letter[loop] == 't') a->ahead += range.from;
    if (l->letter[loop] == 's') a->ahead -= range.from;
    if (l->letter[loop] == 'n') a->at += range.from;
    return LL_OK;
}

/* Products of pairs within chunks, and with the state: of queries, of keys. */
static double flops(const ll_loops *l, double d, double e, double queries, double keys)
{
    double t = ll_extent(l, 't'), s = ll_extent(l, 's'), g = ll_extent(l, 'g');
    double pairs = fmin(s, (LL_LINEAR_CHUNK + 1) / 2.0) * t;
    double state = ll_extent(l, 'd') * ll_extent(l, 'e') * (queries * g * t + keys * s);
    if (s <= LL_LINEAR_CHUNK) state = 0;
    return 2 * ll_extent(l, 'b') * ll_extent(l, 'n') *
           (g * pairs * (d * ll_extent(l, 'd') + e * ll_extent(l, 'e')) + state);
}

static double cost(const void *, const ll_loops *l)
{
    return flops(l, 1, 1, 1, 1);
}

static double cost_grad(const void *, const ll_loops *l)
{
    return flops(l, 3, 3, 2, 3);
}

static const ll_op linear_attend_grad = {
    LL_OP(linear_attend_grad, ATTENTION, 5, 3, .scratch = linear_attend_grad_cpu_scratch),
    LL_ATTRS(ll_linear_attr, decay, ahead, at),
    .dims = "btnge, bngt, btngd, bsnd, bsne -> btngd, bsnd, bsne",
    .sum = "tsg",
    .wide_in = 1u << 1,
    .whole = "de",
    .infer = infer,
    .split = split,
    .expand = expand_grad,
    .cost = cost_grad,
    .trials = {"b=2 t=3 n=2 g=2 e=3 d=4 s=5 {decay=0, ahead=-1, at=0}",
               "b=1 t=7 n=1 g=1 e=8 d=8 s=7 {decay=1, ahead=0, at=0}",
               "b=1 t=4 n=3 g=1 e=2 d=2 s=6 {decay=2, ahead=2, at=1}",
               "b=1 t=3 n=1 g=2 e=1 d=1 s=1 {decay=0, ahead=5, at=0}",
               "b=1 t=98 n=1 g=1 e=1 d=2 s=105 {decay=3, ahead=7, at=0}"},
};

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val d[2], to[3];
    for (int i = 0; i < 2; i++) {
        d[i] = b->dout[i];
        if (!d[i].id)
            d[i] = ll_fill(g, ll_graph_dtype(g, b->out[i]), ll_graph_shape(g, b->out[i]), 0);
    }
    ll_val in[5] = {d[0], d[1], b->in[0], b->in[1], b->in[2]};
    if (ll_emit_all(g, &linear_attend_grad, b->attr, in, 5, to) != LL_OK) return;
    memcpy(b->din, to, sizeof to);
}

static const ll_op linear_attend = {
    LL_OP(linear_attend, ATTENTION, 3, 2, .scratch = linear_attend_cpu_scratch),
    LL_ATTRS(ll_linear_attr, decay, ahead, at),
    .model = LL_WITH_GRADIENT,
    .dims = "btngd, bsnd, bsne -> btnge, bngt",
    .sum = "sd",
    .wide_out = 1u << 1,
    .whole = "e",
    .infer = infer,
    .split = split,
    .expand = expand,
    .grad = grad,
    .cost = cost,
    .trials = {"f32[2,3,2,2,4], f32[2,5,2,4], f32[2,5,2,3] {decay=0, ahead=-1, at=0}",
               "f32[1,7,1,1,8], f32[1,7,1,8], f32[1,7,1,8] {decay=1, ahead=0, at=0}",
               "f32[1,4,3,1,2], f32[1,6,3,2], f32[1,6,3,2] {decay=2, ahead=2, at=1}",
               "f32[1,3,1,2,1], f32[1,1,1,1], f32[1,1,1,1] {decay=0, ahead=5, at=0}",
               "f32[1,98,1,1,2], f32[1,105,1,2], f32[1,105,1,1] {decay=3, ahead=7, at=0}"},
};

/* ---- generation ---- */

static ll_err step_infer(ll_infer *i)
{
    const ll_shape *s = &i->in[0].shape, *v = &i->in[3].shape;
    CHECK(s->n == 4 && v->n == 4 && s->d[3] == v->d[3] + 1, LL_E_SHAPE,
          "expected a state [b,n,d,e+1] and values [b,t,n,e]");
    for (int k = 0; k < 4; k++) {
        ll_dtype q = i->in[1].dtype, want = k ? q : ll_wide(q);
        CHECK(ll_dtype_is_float(q) && i->in[k].dtype == want, LL_E_ARG,
              "operand %d is %s, expected %s", k, ll_dtype_name(i->in[k].dtype),
              ll_dtype_name(want));
    }
    for (int k = 4; k < 6; k++) TRY(ll_check_index(i, k));
    return ll_infer_dims(i);
}

static const ll_op linear_step = {
    LL_REF_OP(linear_step, ATTENTION, 6, 3, .parts = true),
    LL_ATTRS(ll_linear_attr, decay, at),
    .dims = "bndf, btngd, btnd, btne, b, b -> bndf, btnge, bngt",
    .whole = "tgdfe",
    .wide_in = 1,
    .wide_out = 5,
    .infer = step_infer,
    .split = split,
    .no_grad = true,
    .flop = 4,
    .in_place = 1,
    .trials = {"b=2 n=2 d=4 f=4 t=3 g=2 e=3 4:i32<2 5:i32<3 {decay=0, at=0}",
               "b=3 n=1 d=5 f=34 t=1 g=3 e=33 4:i32<3 5:i32<1 {decay=2, at=1}",
               "b=1 n=3 d=1 f=2 t=4 g=1 e=1 4:i32<9 5:i32<4 {decay=1, at=0}"},
};

/* ---- what models are made with ---- */

/* elu(x) + 1, which is positive. */
static ll_val feature(ll_graph *g, ll_val x)
{
    return ll_add(g, ll_relu(g, x), ll_exp(g, ll_min(g, x, ll_like(g, x, 0))));
}

/* o over l, results k and k + 1 of the node that made v, as q's heads lie. */
static ll_val weighed(ll_graph *g, ll_val v, int k, bool packed)
{
    if (!v.id) return v;
    ll_val o = ll_sibling(g, v, k), l = ll_sibling(g, v, k + 1);
    ll_shape s = ll_graph_shape(g, o);
    l = ll_transpose(g, ll_shift(g, l, LL_LINEAR_EPS), "bngt->btng");
    o = ll_div(g, o, ll_row_spread(g, ll_cast(g, l, ll_graph_dtype(g, o)), &s));
    return packed ? ll_reshape(g, o, LL_SHAPE(s.d[0], s.d[1], s.d[2] * s.d[3], s.d[4])) : o;
}

/* q [b,t,h,d] as [b,t,n,h/n,d], and features of q and k; false: they do not fit. */
static bool features(ll_graph *g, ll_val *q, ll_val *k, ll_val v)
{
    if (ll_rejected(g) || !q->id || !k->id || !v.id) return false;
    ll_shape s = ll_graph_shape(g, *q), n = ll_graph_shape(g, *k), e = ll_graph_shape(g, v);
    if (n.n != 4 || e.n != 4 || (s.n != 4 && s.n != 5) || n.d[2] < 1 || n.d[1] != s.d[1] ||
        (s.n == 4 && s.d[2] % n.d[2])) {
        char t[3][LL_SHAPE_TEXT];
        ll_reject(g, LL_E_SHAPE,
                  "%slinear_attend: q %s, k %s, v %s; expected [b,t,h,d], [b,t,n,d], [b,t,n,e], "
                  "and h a multiple of n",
                  ll_scope(g), ll_shape_print(&s, t[0]), ll_shape_print(&n, t[1]),
                  ll_shape_print(&e, t[2]));
        return false;
    }
    if (s.n == 4) s = LL_SHAPE(s.d[0], s.d[1], n.d[2], s.d[2] / n.d[2], s.d[3]);
    *q = feature(g, ll_reshape(g, *q, s));
    *k = feature(g, *k);
    return q->id && k->id;
}

ll_val ll_linear_attend(ll_graph *g, ll_val q, ll_val k, ll_val v, double decay)
{
    ll_linear_attr a = {.decay = decay};
    bool packed = q.id && ll_graph_shape(g, q).n == 4;
    if (!features(g, &q, &k, v)) return (ll_val){0};
    return weighed(g, LL_EMIT(g, &linear_attend, &a, q, k, v), 0, packed);
}

ll_val ll_self_linear(const ll_build *b, const char *name, ll_val q, ll_val k, ll_val v,
                      double decay)
{
    ll_graph *g = b->g;
    if (!b->cache) return ll_linear_attend(g, q, k, v, decay);
    if (b->cache_bits)
        return ll_reject(g, LL_E_ARG,
                         "%s%s: linear attention keeps a state of f32, no keys and values: these "
                         "cannot be of %d bits: use --cache f32, of compress forms without +kv%d",
                         ll_scope(g), name, b->cache_bits, b->cache_bits);
    ll_linear_attr a = {.decay = decay};
    bool packed = q.id && ll_graph_shape(g, q).n == 4;
    if (!features(g, &q, &k, v)) return (ll_val){0};
    ll_shape s = ll_graph_shape(g, k), e = ll_graph_shape(g, v);
    const char *full = ll_scoped(g, ll_arena_printf(g->arena, "%s" LL_STATE_CACHE, name));
    ll_type type = {LL_F32, LL_SHAPE(s.d[0], s.d[2], s.d[3], e.d[3] + 1)};
    ll_val state = ll_input(g, full, LL_STATE, type, (ll_init){LL_ZEROS, 0});
    ll_val next = LL_EMIT(g, &linear_step, &a, state, q, k, v, ll_build_each(b, "at"),
                          ll_build_each(b, "last"));
    ll_graph_update(g, state, next);
    return weighed(g, next, 1, packed);
}

const ll_op *const ll_ops_linear_attend[] = {&linear_attend, &linear_attend_grad, &linear_step,
                                             NULL};
