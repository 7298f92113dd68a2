/* attention: causal self-attention of h heads.   qkv [b,t,3,h,d]   o [b,t,h,d]   lse [b,h,t]
 *   s[i,j] = q[i] k[j] / sqrt(d) for j <= i,  lse[i] = log sum_j exp s[i,j],
 *   p = exp(s - lse),  o[i] = sum_j p[i,j] v[j]
 * attention_grad recomputes p from qkv and lse:
 *   dv[j] = sum_i p[i,j] do[i],  ds = p (do v - sum_d do o),  dq = ds k, dk = ds q, / sqrt(d)
 * Kernels work on tiles: no [t,t] matrix is ever stored. Batch and heads are free loops; time is
 * whole, its expansion is plain products, softmax and a mask.
 * causal_mask: x [*,t,s] with value where s > t. */
#include "kern/attr.h"
#include "op/rows.h"

#include <math.h>

ll_kernel attention_cpu, attention_grad_cpu, causal_mask_ref, causal_mask_cpu;
ll_scratch attention_cpu_scratch, attention_grad_cpu_scratch;
extern const ll_solver causal_mask_cuda[], attention_grad_cuda[], attention_cuda[];

/* ---- causal_mask ---- */

static const ll_attr_field mask_fields[] = {
    LL_FIELD(ll_mask_attr, value, LL_A_F64), LL_FIELDS(ll_mask_attr, at, 2), {0}};

static ll_err mask_split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                         ll_part *part)
{
    ll_mask_attr *a = (ll_mask_attr *)part->attr;
    part->in[0] = range;
    if (l->letter[loop] == 't') a->at[0] += range.from;
    if (l->letter[loop] == 's') a->at[1] += range.from;
    return LL_OK;
}

static void mask_grad(ll_bwd *b);

static const ll_op causal_mask = {
    LL_REF_OP(causal_mask, OTHER, 1, 1),
    LL_ATTRS(ll_mask_attr, mask_fields),
    .dims = "*ts -> *ts",
    .infer = ll_infer_floats,
    .split = mask_split,
    .grad = mask_grad,
    .trials = {"f32[2,3,4,4] {value=-2, at=[0,0]}", "f32[5,3] {value=0, at=[0,1]}",
               "f32[1,1,1] {value=-1e30, at=[0,0]}", "f32[2,3] {value=7, at=[0,5]}"},
};

static void mask_grad(ll_bwd *b)
{
    if (!b->dout[0].id) return;
    ll_mask_attr a = *(const ll_mask_attr *)b->attr;
    a.value = 0;
    b->din[0] = LL_EMIT(b->g, &causal_mask, &a, b->dout[0]);
}

/* ---- expansion ---- */

/* Part z of qkv: [b,t,h,d] */
static ll_val part_of(ll_graph *g, ll_val qkv, int z)
{
    ll_shape s = ll_graph_shape(g, qkv);
    ll_val x = ll_slice(g, qkv, 2, z, z + 1);
    return ll_reshape(g, x, LL_SHAPE(s.d[0], s.d[1], s.d[3], s.d[4]));
}

static double scale_of(const ll_graph *g, ll_val qkv)
{
    return 1 / sqrt((double)ll_graph_shape(g, qkv).d[4]);
}

/* s [b,h,t,s] of q and k; the value above the diagonal is far below any score, yet finite. */
static ll_val scores(ll_graph *g, ll_val qkv, ll_val q, ll_val k)
{
    ll_val s = ll_matmul(g, "bthd,bshd->bhts", q, k);
    return LL_EMIT(g, &causal_mask, (&(ll_mask_attr){-1e30, {0, 0}}),
                   ll_scale(g, s, scale_of(g, qkv)));
}

static ll_val probability(ll_graph *g, ll_val qkv, ll_val q, ll_val k, ll_val lse)
{
    ll_val s = scores(g, qkv, q, k);
    if (!s.id) return s;
    ll_shape shape = ll_graph_shape(g, s);
    return ll_exp(g, ll_sub(g, s, ll_row_spread(g, lse, &shape)));
}

static void expand(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val s = scores(g, in[0], part_of(g, in[0], 0), part_of(g, in[0], 1));
    if (!s.id) return;
    ll_shape shape = ll_graph_shape(g, s);
    ll_val top = ll_row_max(g, s);
    ll_val e = ll_exp(g, ll_sub(g, s, ll_row_spread(g, top, &shape)));
    ll_val sum = ll_row_sum(g, e);
    ll_val p = ll_div(g, e, ll_row_spread(g, sum, &shape));
    out[0] = ll_matmul(g, "bhts,bshd->bthd", p, part_of(g, in[0], 2));
    out[1] = ll_add(g, ll_log(g, sum), top);
}

/* dqkv from ds (before scaling) and, where there is one, dv. */
static ll_val gather(ll_graph *g, ll_val qkv, ll_val q, ll_val k, ll_val ds, ll_val dv)
{
    ll_shape s = ll_graph_shape(g, qkv);
    s.d[2] = 1;
    ds = ll_scale(g, ds, scale_of(g, qkv));
    ll_val dq = ll_matmul(g, "bhts,bshd->bthd", ds, k);
    ll_val dk = ll_matmul(g, "bhts,bthd->bshd", ds, q);
    ll_val part[3] = {ll_reshape(g, dq, s), ll_reshape(g, dk, s)};
    part[2] = dv.id ? ll_reshape(g, dv, s) : ll_fill(g, ll_graph_dtype(g, qkv), s, 0);
    return ll_concat(g, part, 3, 2);
}

static void expand_grad(ll_graph *g, const void *, const ll_val *in, int, ll_val *out)
{
    ll_val dout = in[0], qkv = in[1], o = in[2], lse = in[3];
    ll_val q = part_of(g, qkv, 0), k = part_of(g, qkv, 1); /* once: a cut of s gathers k */
    ll_val p = probability(g, qkv, q, k, lse);
    if (!p.id) return;
    ll_shape shape = ll_graph_shape(g, p);
    ll_val dv = ll_matmul(g, "bhts,bthd->bshd", p, dout);
    ll_val dp = ll_matmul(g, "bthd,bshd->bhts", dout, part_of(g, qkv, 2));
    ll_val delta = ll_transpose(g, ll_row_sum(g, ll_mul(g, dout, o)), "bth->bht");
    ll_val ds = ll_mul(g, p, ll_sub(g, dp, ll_row_spread(g, delta, &shape)));
    out[0] = gather(g, qkv, q, k, ds, dv);
}

/* ---- ops ---- */

static ll_err check_qkv(const ll_type *t)
{
    char text[LL_SHAPE_TEXT];
    CHECK(t->shape.n == 5 && t->shape.d[2] == 3 && t->shape.d[4] > 0, LL_E_SHAPE,
          "qkv is %s, want [batch,time,3,heads,width]", ll_shape_print(&t->shape, text));
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    TRY(check_qkv(&i->in[0]));
    return ll_infer_floats(i);
}

static ll_err infer_grad(ll_infer *i)
{
    TRY(check_qkv(&i->in[1]));
    return ll_infer_floats(i);
}

/* Two products over the lower triangle forward, five backward; loops b t z h d. */
static double cost_of(const ll_loops *l, double products)
{
    double n = 1, t = 0;
    for (int k = 0; k < l->n; k++) {
        if (l->letter[k] != 'z') n *= (double)l->extent[k];
        if (l->letter[k] == 't') t = (double)l->extent[k];
    }
    return products * n * (t + 1);
}

static double cost(const void *, const ll_loops *l)
{
    return cost_of(l, 2);
}

static double cost_grad(const void *, const ll_loops *l)
{
    return cost_of(l, 5);
}

static const ll_op attention_grad = {
    LL_OP(attention_grad, ATTENTION, 4, 1, .scratch = attention_grad_cpu_scratch),
    .dims = "bthd, btzhd, bthd, bht -> btzhd",
    .wide_in = 1u << 3,
    .whole = "tzd",
    .infer = infer_grad,
    .expand = expand_grad,
    .cost = cost_grad,
    .trials = {"f32[2,5,2,3], f32[2,5,3,2,3], f32[2,5,2,3], f32[2,2,5]",
               "f32[1,1,1,1], f32[1,1,3,1,1], f32[1,1,1,1], f32[1,1,1]",
               "f32[1,7,3,4], f32[1,7,3,3,4], f32[1,7,3,4], f32[1,3,7]",
               "f32[2,5,1,8], f32[2,5,3,1,8], f32[2,5,1,8], f32[2,1,5]"},
};

static void grad(ll_bwd *b)
{
    ll_graph *g = b->g;
    ll_val qkv = b->in[0], lse = b->out[1];
    if (b->dout[1].id) { /* d lse / ds = p */
        ll_val q = part_of(g, qkv, 0), k = part_of(g, qkv, 1);
        ll_val p = probability(g, qkv, q, k, lse);
        if (!p.id) return;
        ll_shape shape = ll_graph_shape(g, p);
        ll_val ds = ll_mul(g, p, ll_row_spread(g, b->dout[1], &shape));
        b->din[0] = gather(g, qkv, q, k, ds, (ll_val){0});
    }
    if (!b->dout[0].id) return;
    ll_val d = LL_EMIT(g, &attention_grad, NULL, b->dout[0], qkv, b->out[0], lse);
    b->din[0] = ll_add_some(g, b->din[0], d);
}

static const ll_op attention = {
    LL_OP(attention, ATTENTION, 1, 2, .scratch = attention_cpu_scratch),
    .model = 3,
    .dims = "btzhd -> bthd, bht",
    .wide_out = 1u << 1,
    .whole = "tzd",
    .infer = infer,
    .expand = expand,
    .grad = grad,
    .cost = cost,
    .trials = {"f32[2,5,3,2,3]", "f32[1,1,3,1,1]", "f32[1,7,3,3,4]", "f32[3,2,3,1,5]",
               "f32[2,5,3,1,8]"},
};

ll_val ll_attention(ll_graph *g, ll_val qkv)
{
    return LL_EMIT(g, &attention, NULL, qkv);
}

const ll_op *const ll_ops_attention[] = {&attention, &attention_grad, &causal_mask, NULL};
