/* attention: softmax(q k^T) v of each head.
 *   s[i,j] = scale q[i] k[j] + mask[i,j],  lse[i] = log sum_j exp s[i,j],
 *   p = exp(s - lse),  o[i] = sum_j p[i,j] v[j]
 * and its gradient, which makes p again of lse; delta[i] = sum of do o, less what lse is owed:
 *   dv[j] = sum_i p[i,j] do[i],  ds = p (do v - delta),  dq = scale ds k, dk = scale ds q
 * Where one key has all the weight, do v - delta is 0, of two large numbers. Expansions that may
 * (own) make delta as the sum of p (do v), of the same numbers, so that it comes out as 0.
 *
 * attend is the general one: groups of g heads share keys and values, and s may differ from t.
 *   q [b,t,n,g,d]  k [b,s,n,d]  v [b,s,n,e]  mask [b,n,g,t,s], any of them 1  ->
 *   o [b,t,n,g,e]  lse [b,n,g,t]
 * A query that sees no key gives zeros. Queries are a free loop: a cut of t has whole keys, and
 * causal says how far ahead of its part a query sees; results of parts of s are put together by
 * their lse. In the gradient t, s and g are free for some results and summed for others.
 * attention is the packed one, causal self-attention, with kernels of its own:
 *   qkv [b,t,3,h,d] -> o [b,t,h,d], lse [b,h,t]
 * Its time is whole; its expansion is attend. Attend's is plain products, softmax and a mask.
 * Kernels work on tiles: no [t,s] matrix is ever stored.
 * causal_mask: x [*,t,s] with value where s > t. */
#include "op/op_int.h"
#include "op/rows.h"

#include <stdio.h>

LL_KERNELS(attention, attention_grad, attend, attend_grad, causal_mask)

/* ---- causal_mask ---- */

static ll_err mask_split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                         ll_part *part)
{
    ll_mask_attr *a = (ll_mask_attr *)part->attr;
    if (l->letter[loop] == 't') a->at[0] += range.from;
    if (l->letter[loop] == 's') a->at[1] += range.from;
    return LL_OK;
}

static void mask_grad(ll_bwd *b);

static const ll_op causal_mask = {
    LL_REF_OP(causal_mask, OTHER, 1, 1),
    LL_ATTRS(ll_mask_attr, value, at),
    .dims = "*ts -> *ts",
    .infer = ll_infer_floats,
    .split = mask_split,
    .grad = mask_grad,
    .trials = {"f32[2,3,4,4] {value=-2, at=[0,0]}", "f32[5,3] {value=0, at=[0,1]}",
               "f32[1,1,1] {value=-1e30, at=[0,0]}", "f32[2,3] {value=7, at=[0,5]}"},
};

static void mask_grad(ll_bwd *b)
{
    ll_mask_attr a = *(const ll_mask_attr *)b->attr;
    a.value = 0;
    b->din[0] = LL_EMIT(b->g, &causal_mask, &a, b->dout[0]);
}

ll_val ll_masked(ll_graph *g, ll_val x, double value, int64_t ahead)
{
    return LL_EMIT(g, &causal_mask, (&(ll_mask_attr){value, {ahead, 0}}), x);
}

/* ---- attend: expansions ---- */

/* s [b,n,g,t,s]; what is masked is far below any score, yet finite. */
static ll_val scores(ll_graph *g, const ll_attend_attr *a, ll_val q, ll_val k, ll_val mask)
{
    ll_val s = ll_scale(g, ll_matmul(g, "btngd,bsnd->bngts", q, k), a->scale);
    if (mask.id) s = ll_add(g, s, mask);
    return a->causal ? ll_masked(g, s, -1e30, a->ahead) : s;
}

static ll_val at_least(ll_graph *g, ll_val x, double least)
{
    return ll_max(g, x, ll_fill(g, ll_graph_dtype(g, x), (ll_shape){0}, least));
}

/* p of scores, and lse; none: some query may see no key. */
static ll_val weights(ll_graph *g, ll_val s, bool none, ll_val *lse)
{
    ll_shape shape = ll_graph_shape(g, s);
    ll_val top = ll_row_max(g, s);
    if (none) top = at_least(g, top, (double)LL_ATTEND_NONE);
    ll_val e = ll_exp(g, ll_sub(g, s, ll_row_spread(g, top, &shape)));
    ll_val sum = ll_row_sum(g, e);
    if (none) sum = at_least(g, sum, 1e-30);
    if (lse) *lse = ll_add(g, ll_log(g, sum), top);
    return ll_div(g, e, ll_row_spread(g, sum, &shape));
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    const ll_attend_attr *a = (const ll_attend_attr *)attr;
    ll_val mask = n_in > 3 ? in[3] : (ll_val){0}, s = scores(g, a, in[0], in[1], mask);
    if (!s.id) return;
    out[0] = ll_matmul(g, "bngts,bsne->btnge", weights(g, s, mask.id || a->causal, &out[1]), in[2]);
}

/* o and lse of two parts of the keys: o weighed by their shares of the sum. */
static void merge(ll_graph *g, const ll_val *a, const ll_val *b, ll_val *out)
{
    ll_shape shape = ll_graph_shape(g, a[0]);
    ll_val top = ll_max(g, a[1], b[1]), p = ll_exp(g, ll_sub(g, a[1], top));
    ll_val q = ll_exp(g, ll_sub(g, b[1], top)), sum = ll_add(g, p, q);
    p = ll_transpose(g, ll_div(g, p, sum), "bngt->btng");
    q = ll_transpose(g, ll_div(g, q, sum), "bngt->btng");
    out[0] = ll_add(g, ll_mul(g, a[0], ll_row_spread(g, p, &shape)),
                    ll_mul(g, b[0], ll_row_spread(g, q, &shape)));
    out[1] = ll_add(g, ll_log(g, sum), top);
}

/* p and ds, before scaling. */
static void slopes(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *p, ll_val *ds)
{
    const ll_attend_attr *a = (const ll_attend_attr *)attr;
    ll_val mask = n_in > 6 ? in[6] : (ll_val){0}, s = scores(g, a, in[1], in[2], mask);
    if (!s.id) return;
    ll_shape shape = ll_graph_shape(g, s);
    *p = a->own ? weights(g, s, mask.id || a->causal, NULL)
                : ll_exp(g, ll_sub(g, s, ll_row_spread(g, in[4], &shape)));
    ll_val dp = ll_matmul(g, "btnge,bsne->bngts", in[0], in[3]);
    ll_val delta = a->own ? ll_row_sum(g, ll_mul(g, *p, dp)) : in[5];
    *ds = ll_mul(g, *p, ll_sub(g, dp, ll_row_spread(g, delta, &shape)));
}

static void expand_grad(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    ll_val p = {0}, ds = {0};
    slopes(g, attr, in, n_in, &p, &ds);
    ds = ll_scale(g, ds, ((const ll_attend_attr *)attr)->scale);
    out[0] = ll_matmul(g, "bngts,bsnd->btngd", ds, in[2]);
    out[1] = ll_matmul(g, "bngts,btngd->bsnd", ds, in[1]);
    out[2] = ll_matmul(g, "bngts,btnge->bsne", p, in[0]);
}

/* ---- attend: ops ---- */

/* So many operands, the mask's ",bngts" with '_' for its dimensions that are 1, and results. */
#define LOOPS(name, before, operands, results)                                                     \
    static ll_err name(const void *, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])         \
    {                                                                                              \
        char letters[8] = ",bngts";                                                                \
        for (int i = 0; n_in > before && in[before].shape.n == 5 && i < 5; i++)                    \
            if (in[before].shape.d[i] == 1) letters[1 + i] = '_';                                  \
        snprintf(dims, LL_DIMS_TEXT, operands "%s->" results, n_in > before ? letters : "");       \
        return LL_OK;                                                                              \
    }
LOOPS(attend_loops, 3, "btngd,bsnd,bsne", "btnge,bngt")
LOOPS(attend_grad_loops, 6, "btnge,btngd,bsnd,bsne,bngt,bngt", "btngd,bsnd,bsne")

static ll_err attend_split(const void *, const ll_loops *l, int loop, ll_range range,
                           const ll_type *, ll_part *part)
{
    ll_attend_attr *a = (ll_attend_attr *)part->attr;
    if (a->causal && l->letter[loop] == 't') a->ahead += range.from;
    if (a->causal && l->letter[loop] == 's') a->ahead -= range.from;
    if (l->letter[loop] == 's') a->own = 0; /* delta is of all keys */
    return LL_OK;
}

/* Two flops for each pair of a query and a key that it sees, times so many of d and e. */
static double cost_of(const ll_attend_attr *a, const ll_loops *l, double d, double e)
{
    double t = ll_extent(l, 't'), s = ll_extent(l, 's'), x = a->causal ? (double)a->ahead : s;
    double some = fmin(fmax(-x, 0), t), all = fmin(fmax(s - 1 - x, some), t);
    double pairs = (all - some) * (some + all + 1 + 2 * x) / 2 + (t - all) * s;
    return 2 * pairs * ll_extent(l, 'b') * ll_extent(l, 'n') * ll_extent(l, 'g') *
           (d * ll_extent(l, 'd') + e * ll_extent(l, 'e'));
}

static double attend_cost(const void *attr, const ll_loops *l)
{
    return cost_of((const ll_attend_attr *)attr, l, 1, 1);
}

static double attend_grad_cost(const void *attr, const ll_loops *l)
{
    return cost_of((const ll_attend_attr *)attr, l, 3, 2);
}

static const ll_op attend_grad = {
    LL_OP(attend_grad, ATTENTION, 6, 3, .scratch = attend_grad_cpu_scratch, .parts = true),
    LL_ATTRS(ll_attend_attr, scale, causal, ahead, own),
    .n_more = 1,
    .loops = attend_grad_loops,
    .sum = "tsg",
    .wide_in = 7u << 4,
    .whole = "de",
    .infer = ll_infer_floats,
    .split = attend_split,
    .expand = expand_grad,
    .cost = attend_grad_cost,
    .trials = {"f32[2,3,2,2,3], f32[2,3,2,2,4], f32[2,5,2,4], f32[2,5,2,3], f32[2,2,2,3], "
               "f32[2,2,2,3], f32[1,2,2,1,5] {scale=0.6, causal=1, ahead=-1}",
               "f32[1,7,1,1,8], f32[1,7,1,1,8], f32[1,7,1,8], f32[1,7,1,8], f32[1,1,1,7], "
               "f32[1,1,1,7] {scale=0.3, causal=1, ahead=0}",
               "f32[1,4,3,1,2], f32[1,4,3,1,2], f32[1,6,3,2], f32[1,6,3,2], f32[1,3,1,4], "
               "f32[1,3,1,4] {scale=0.7, causal=0, ahead=0}",
               "f32[2,2,1,3,1], f32[2,2,1,3,1], f32[2,4,1,1], f32[2,4,1,1], f32[2,1,3,2], "
               "f32[2,1,3,2], f32[2,1,1,2,4] {scale=1, causal=1, ahead=2}"},
};

/* The gradient of a mask, which is seldom wanted: by the expansion, summed where it is 1. */
static ll_val mask_slopes(ll_bwd *b, const ll_attend_attr *a, const ll_val *in)
{
    ll_val p = {0}, ds = {0};
    ll_shape mask = ll_graph_shape(b->g, b->in[3]);
    char spec[16] = "bngts->", *end = spec + strlen(spec);
    slopes(b->g, a, in, 7, &p, &ds);
    for (int i = 0; i < 5; i++)
        if (mask.d[i] > 1) *end++ = spec[i];
    return ll_reshape(b->g, ll_sum(b->g, ds, spec), mask);
}

static void attend_grad_of(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_attend_attr a = *(const ll_attend_attr *)b->attr;
    ll_val o = b->out[0], lse = b->out[1], dout = b->dout[0], delta = {0}, d[3];
    a.own = !b->dout[1].id;
    if (!dout.id) dout = ll_fill(g, ll_graph_dtype(g, o), ll_graph_shape(g, o), 0);
    delta = ll_transpose(g, ll_row_sum(g, ll_mul(g, dout, o)), "btng->bngt");
    if (b->dout[1].id) delta = ll_sub(g, delta, b->dout[1]); /* d lse / ds = p */
    ll_val in[7] = {dout, b->in[0], b->in[1], b->in[2], lse, delta};
    if (b->n_in > 3) in[6] = b->in[3];
    if (ll_emit_all(g, &attend_grad, &a, in, b->n_in + 3, d) != LL_OK) return;
    memcpy(b->din, d, sizeof d);
    if (b->n_in > 3 && b->wanted[3]) b->din[3] = mask_slopes(b, &a, in);
}

static const ll_op attend = {
    LL_OP(attend, ATTENTION, 3, 2, .scratch = attend_cpu_scratch, .parts = true),
    LL_ATTRS(ll_attend_attr, scale, causal, ahead),
    .n_more = 1,
    .model = LL_WITH_GRADIENT,
    .loops = attend_loops,
    .wide_in = 1u << 3,
    .wide_out = 1u << 1,
    .whole = "sde",
    .infer = ll_infer_floats,
    .split = attend_split,
    .expand = expand,
    .merge = merge,
    .grad = attend_grad_of,
    .cost = attend_cost,
    .trials = {"f32[2,3,2,2,4], f32[2,5,2,4], f32[2,5,2,3], f32[1,2,2,1,5] {scale=0.6, causal=1, "
               "ahead=-1}",
               "f32[1,7,1,1,8], f32[1,7,1,8], f32[1,7,1,8] {scale=0.3, causal=1, ahead=0}",
               "f32[1,4,3,1,2], f32[1,6,3,2], f32[1,6,3,2] {scale=0.7, causal=0, ahead=0}",
               "f32[2,2,1,3,1], f32[2,4,1,1], f32[2,4,1,1], f32[2,1,1,2,4] {scale=1, causal=1, "
               "ahead=2}"},
};

/* The mask as [b,n,g,t,s], of q's type; of one of integers 0 hides. */
static ll_val mask_of(ll_graph *g, ll_val mask, const ll_shape *q, int64_t keys, ll_dtype dtype)
{
    ll_shape have = ll_graph_shape(g, mask), s = {.n = 5, .d = {1, 1, 1, 1, 1}};
    const int64_t whole[4] = {q->d[0], q->d[2] * q->d[3], q->d[1], keys};
    char text[LL_SHAPE_TEXT];
    bool fits = have.n <= 4;
    for (int i = 0; i < have.n && fits; i++) {
        int k = 4 - have.n + i; /* of b, h, t, s */
        fits = have.d[i] == 1 || have.d[i] == whole[k];
        if (k == 1 && have.d[i] > 1) s.d[1] = q->d[2], s.d[2] = q->d[3];
        if (k != 1) s.d[k ? k + 1 : 0] = have.d[i];
    }
    if (!fits)
        return ll_reject(
            g, LL_E_SHAPE, "%sattend: the mask is %s, expected [%ld,%ld,%ld,%ld], any of them 1",
            ll_scope(g), ll_shape_print(&have, text), whole[0], whole[1], whole[2], whole[3]);
    if (!ll_dtype_is_float(ll_graph_dtype(g, mask)))
        mask = ll_select(g, ll_cast(g, mask, dtype), ll_fill(g, dtype, LL_SCALAR, 0),
                         ll_fill(g, dtype, LL_SCALAR, -1e30));
    return ll_reshape(g, ll_cast(g, mask, dtype), s);
}

ll_val ll_attend(ll_graph *g, ll_val q, ll_val k, ll_val v, const ll_attend_opts *opts)
{
    ll_attend_opts o = opts ? *opts : (ll_attend_opts){0};
    if (ll_rejected(g) || !q.id || !k.id || !v.id) return LL_EMIT(g, &attend, NULL, q, k, v);
    ll_shape s = ll_graph_shape(g, q), key = ll_graph_shape(g, k), value = ll_graph_shape(g, v);
    bool packed = s.n == 4;
    if (key.n != 4 || value.n != 4 || (s.n != 4 && s.n != 5) || key.d[2] < 1 ||
        (packed && s.d[2] % key.d[2])) {
        char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT], c[LL_SHAPE_TEXT];
        return ll_reject(g, LL_E_SHAPE,
                         "%sattend: q %s, k %s, v %s; expected [b,t,h,d], [b,s,n,d], [b,s,n,e], "
                         "and h a multiple of n",
                         ll_scope(g), ll_shape_print(&s, a), ll_shape_print(&key, b),
                         ll_shape_print(&value, c));
    }
    if (packed) s = LL_SHAPE(s.d[0], s.d[1], key.d[2], s.d[2] / key.d[2], s.d[3]);
    ll_attend_attr a = {.scale = o.scale ? o.scale : 1 / sqrt((double)s.d[4])};
    a.causal = o.causal != LL_SEES_ALL;
    if (o.causal == LL_CAUSAL_ENDS) a.ahead = key.d[1] - s.d[1];
    ll_val in[4] = {ll_reshape(g, q, s), k, v};
    if (o.mask.id) in[3] = mask_of(g, o.mask, &s, key.d[1], ll_graph_dtype(g, q));
    ll_val y = ll_emit(g, &attend, &a, in, o.mask.id ? 4 : 3);
    return packed && y.id ? ll_reshape(g, y, LL_SHAPE(s.d[0], s.d[1], s.d[2] * s.d[3], value.d[3]))
                          : y;
}

/* ---- attention ---- */

static const ll_op attention_grad;

/* A reshape even where shapes are equal: every rank has the same nodes, whatever its heads. */
static ll_val as(ll_graph *g, ll_val x, ll_shape shape)
{
    return LL_EMIT(g, &ll_op_reshape, (&(ll_reshape_attr){shape}), x);
}

/* Part z of qkv as q, k or v of attend */
static ll_val part_of(ll_graph *g, ll_val qkv, int z)
{
    ll_shape s = ll_graph_shape(g, qkv);
    ll_val x = ll_slice(g, qkv, 2, z, z + 1);
    return as(g, x,
              z ? LL_SHAPE(s.d[0], s.d[1], s.d[3], s.d[4])
                : LL_SHAPE(s.d[0], s.d[1], s.d[3], 1, s.d[4]));
}

static ll_attend_attr attr_of(const ll_graph *g, ll_val qkv)
{
    return (ll_attend_attr){1 / sqrt((double)ll_graph_shape(g, qkv).d[4]), 1, 0, 0};
}

static void expand_packed(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val x[3] = {part_of(g, in[0], 0), part_of(g, in[0], 1), part_of(g, in[0], 2)}, y[2];
    ll_shape s = ll_graph_shape(g, in[0]);
    ll_attend_attr a = attr_of(g, in[0]);
    if (ll_emit_all(g, &attend, &a, x, 3, y) != LL_OK) return;
    out[0] = as(g, y[0], LL_SHAPE(s.d[0], s.d[1], s.d[3], s.d[4]));
    out[1] = as(g, y[1], LL_SHAPE(s.d[0], s.d[3], s.d[1]));
}

/* dqkv of do, less what lse is owed (none: nothing). */
static ll_val grad_packed(ll_graph *g, ll_val dout, ll_val qkv, ll_val o, ll_val lse, ll_val dlse,
                          bool own)
{
    ll_shape s = ll_graph_shape(g, qkv), stat = LL_SHAPE(s.d[0], s.d[3], 1, s.d[1]);
    ll_attend_attr a = attr_of(g, qkv);
    a.own = own;
    ll_val delta = ll_transpose(g, ll_row_sum(g, ll_mul(g, dout, o)), "bth->bht"), d[3];
    if (dlse.id) delta = ll_sub(g, delta, dlse);
    ll_val in[6] = {as(g, dout, LL_SHAPE(s.d[0], s.d[1], s.d[3], 1, s.d[4])),
                    part_of(g, qkv, 0),
                    part_of(g, qkv, 1),
                    part_of(g, qkv, 2),
                    as(g, lse, stat),
                    as(g, delta, stat)};
    if (ll_emit_all(g, &attend_grad, &a, in, 6, d) != LL_OK) return (ll_val){0};
    s.d[2] = 1;
    for (int i = 0; i < 3; i++) d[i] = as(g, d[i], s);
    return ll_concat(g, d, 3, 2);
}

static void expand_packed_grad(ll_graph *g, const void *attr, const ll_val *in, int, ll_val *out)
{
    bool own = ((const ll_own_attr *)attr)->own;
    out[0] = grad_packed(g, in[0], in[1], in[2], in[3], (ll_val){0}, own);
}

static ll_err infer(ll_infer *i)
{
    const ll_shape *qkv = &i->in[i->op == &attention_grad].shape;
    char text[LL_SHAPE_TEXT];
    CHECK(qkv->n == 5 && qkv->d[2] == 3 && qkv->d[4] > 0, LL_E_SHAPE,
          "qkv is %s, expected [batch,time,3,heads,width]", ll_shape_print(qkv, text));
    return ll_infer_floats(i);
}

/* Two products over the lower triangle forward, five backward. */
static double cost_packed(const ll_loops *l, double products)
{
    double t = ll_extent(l, 't');
    return products * ll_extent(l, 'b') * ll_extent(l, 'h') * ll_extent(l, 'd') * t * (t + 1);
}

static double cost(const void *, const ll_loops *l)
{
    return cost_packed(l, 2);
}

static double cost_grad(const void *, const ll_loops *l)
{
    return cost_packed(l, 5);
}

static const ll_op attention_grad = {
    LL_OP(attention_grad, ATTENTION, 4, 1, .scratch = attend_grad_cpu_scratch, .parts = true),
    LL_ATTRS(ll_own_attr, own),
    .dims = "bthd, btzhd, bthd, bht -> btzhd",
    .wide_in = 1u << 3,
    .whole = "tzd",
    .infer = infer,
    .expand = expand_packed_grad,
    .cost = cost_grad,
    .trials = {"b=2 t=5 h=2 d=3 z=3", "b=1 t=1 h=1 d=1 z=3", "b=1 t=7 h=3 d=4 z=3",
               "b=2 t=5 h=1 d=8 z=3"},
};

static void grad(ll_bwd *b)
{
    ll_val qkv = b->in[0], o = b->out[0], lse = b->out[1], dout = b->dout[0];
    if (!dout.id) dout = ll_fill(b->g, ll_graph_dtype(b->g, o), ll_graph_shape(b->g, o), 0);
    b->din[0] = b->dout[1].id
                    ? grad_packed(b->g, dout, qkv, o, lse, b->dout[1], false)
                    : LL_EMIT(b->g, &attention_grad, &(ll_own_attr){1}, dout, qkv, o, lse);
}

static const ll_op attention = {
    LL_OP(attention, ATTENTION, 1, 2, .scratch = attend_cpu_scratch, .parts = true),
    .model = LL_WITH_GRADIENT,
    .dims = "btzhd -> bthd, bht",
    .wide_out = 1u << 1,
    .whole = "tzd",
    .infer = infer,
    .expand = expand_packed,
    .grad = grad,
    .cost = cost,
    .trials = {"f32[2,5,3,2,3]", "f32[1,1,3,1,1]", "f32[1,7,3,3,4]", "f32[3,2,3,1,5]",
               "f32[2,5,3,1,8]"},
};

ll_val ll_attention(ll_graph *g, ll_val qkv)
{
    return LL_EMIT(g, &attention, NULL, qkv);
}

const ll_op *const ll_ops_attention[] = {&attention,   &attention_grad, &attend,
                                         &attend_grad, &causal_mask,    NULL};
