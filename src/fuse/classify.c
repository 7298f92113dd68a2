/* classify: a classifier's last product, its cross-entropy and the gradient of that, of which the
 * logits are never stored. For GPUs.
 *
 *     x [*,k]   w [v,k]   label i32 [*]   dloss [*]   [bias [v]]
 *     l = x w' [+ bias]
 *     e     [*,v]  exp(l - l[label]), and at the label itself 1 - sum
 *     scale [*]    dloss / sum, with sum the row's of exp(l - l[label]): so dl = scale e
 *     loss  [*]    log(sum)
 *
 * The label's logit is known before all others, and a row's largest is never less: nothing that
 * counts is lost to small numbers. Sums are too large, and the scale times x too small, for a float
 * only where a loss is very large: rows whose sum is over LL_CLASSIFY_MOST are made with the
 * largest logit, m, in place of the label's: exp(l - m), less the sum of all at the label, dloss
 * over the sum, and log(sum) + m - l[label].
 *
 * The gradient is one factor for each row times e: products that read it take the factor outside of
 * their sum, or to their other operand. Taken are products in bf16 whose logits (even_logits.c may
 * have given them columns that count for nothing, by a bias) nobody else reads. */
#include "fuse/fuse_int.h"
#include "op/rows.h"

#include <stdio.h>

enum { LEAST = 64 }; /* of every side of the product: less is not worth it */

extern const ll_solver classify_cuda[];

static ll_err infer(ll_infer *i)
{
    ll_dtype t = i->in[0].dtype;
    CHECK(t == LL_F32 || t == LL_BF16, LL_E_ARG, "operand 0 is %s, expected f32 or bf16",
          ll_dtype_name(t));
    for (int k = 1; k < i->n_in; k++) {
        ll_dtype want = k == 2 ? LL_I32 : k == 3 ? LL_F32 : t;
        CHECK(i->in[k].dtype == want, LL_E_ARG, "operand %d is %s, expected %s", k,
              ll_dtype_name(i->in[k].dtype), ll_dtype_name(want));
    }
    TRY(ll_infer_dims(i));
    i->out[0].dtype = t;
    i->out[1].dtype = i->out[2].dtype = LL_F32;
    return LL_OK;
}

static void expand(ll_graph *g, const void *, const ll_val *in, int n_in, ll_val *out)
{
    int rows = ll_graph_shape(g, in[0]).n - 1;
    char spec[LL_SPEC_MAX];
    snprintf(spec, sizeof spec, "%.*sk,vk->%.*sv", rows, "abcde", rows, "abcde");
    ll_val l = ll_matmul(g, spec, in[0], in[1]);
    if (n_in > 4) l = ll_add(g, l, in[4]);
    ll_shape s = ll_graph_shape(g, l);
    ll_val label = ll_onehot_labels(g, in[2], s.d[rows], ll_graph_dtype(g, l));
    ll_val picked = ll_row_sum(g, ll_mul(g, l, label));
    ll_val sum = ll_row_sum(g, ll_exp(g, ll_sub(g, l, ll_row_spread(g, picked, &s))));
    ll_val most = ll_fill(g, ll_graph_dtype(g, l), LL_SCALAR, LL_CLASSIFY_MOST);
    ll_val from = ll_select(g, ll_less(g, most, sum), ll_row_max(g, l), picked);
    ll_val e = ll_exp(g, ll_sub(g, l, ll_row_spread(g, from, &s)));
    sum = ll_row_sum(g, e);
    out[0] = ll_sub(g, e, ll_mul(g, label, ll_row_spread(g, sum, &s)));
    out[1] = ll_div(g, in[3], sum);
    out[2] = ll_sub(g, ll_add(g, ll_log(g, sum), from), picked);
}

static const ll_op classify = {
    LL_GPU_OP(classify, PRODUCT, 4, 3),
    .n_more = 1,
    .dims = "*k, vk, *, *, v -> *v, *, *",
    .whole = "*kv",
    .wide_in = 1u << 3,
    .wide_out = 1u << 1 | 1u << 2,
    .infer = infer,
    .flop = 2,
    .expand = expand,
    .trials = {"*=5 k=3 v=7 2:i32<7", "*=2,3 k=4 v=11 2:i32<11 4", "k=4 v=9 2:i32<9",
               "*=0 k=4 v=4 2:i32<4", "*=70 k=64 v=72 2:i32<72", "*=3,100 k=72 v=392 2:i32<392 4",
               "*=66 k=1032 v=136 2:i32<136"},
};

static bool guard(ll_match *m)
{
    const ll_graph *g = m->g;
    ll_val l = ll_match_value(m, "l");
    const ll_node *product = ll_match_node(m, "l");
    ll_shape w = ll_graph_shape(g, product->in[1]), y = ll_graph_shape(g, l);
    int64_t rows = w.d[0] ? ll_numel(&y) / w.d[0] : 0;
    if (product->n_in > 2 && ll_graph_dtype(g, product->in[2]) != LL_BF16)
        return ll_match_no(m, "the bias is not bf16");
    if (rows < LEAST || w.d[0] < LEAST || w.d[1] < LEAST || w.d[0] % 8 || w.d[1] % 8)
        return ll_match_no(m, "logits of %ld rows, %ld columns, by sums of %ld", rows, w.d[0],
                           w.d[1]);
    ll_match_set(m, "dx_shape", &ll_value_of(g, ll_match_value(m, "dx"))->type.shape,
                 sizeof(ll_shape));
    ll_match_set(m, "u_shape", &ll_value_of(g, ll_match_value(m, "u"))->type.shape,
                 sizeof(ll_shape));
    return true;
}

#define PATTERN                                                                                    \
    "dl, loss, lse = cross_entropy_back(l, label, dloss)\n"                                        \
    "dx = matmul(dl, v) {spec=\"*v,vk->*k\", out=$x_out}\n"                                        \
    "dw = matmul(u, dl) {spec=\"*k,*v->vk\", out=$w_out}"
#define READERS                                                                                    \
    "y = matmul(e, v) {spec=\"*v,vk->*k\", out=$x_out}\n"                                          \
    "f = broadcast(scale) {spec=\"*->*k\", shape=$dx_shape}\n"                                     \
    "dx = mul(y, f)\n"                                                                             \
    "h = broadcast(scale) {spec=\"*->*k\", shape=$u_shape}\n"                                      \
    "z = mul(u, h)\n"                                                                              \
    "dw = matmul(z, e) {spec=\"*k,*v->vk\", out=$w_out}"
#define TRIAL                                                                                      \
    "x: bf16[2,40,64], w: bf16[72,64], b: bf16[72], label: i32[2,40]<72, dloss: f32[2,40], "       \
    "v: bf16[72,64], u: bf16[2,40,64] $x_out=bf16 $w_out=f32"

static const ll_fusion_row rows[] = {
    {.pattern = "l = matmul(x, w) {spec=\"*k,vk->*v\", out=bf16}\n" PATTERN,
     .replace = "e, scale, loss = classify(x, w, label, dloss)\n" READERS,
     .guard = guard,
     .trials = {TRIAL}},
    {.pattern =
         "l = product1(x, w, b) {spec=\"*k,vk->*v\", out=bf16, bias=1, act=0, scaled=0}\n" PATTERN,
     .replace = "e, scale, loss = classify(x, w, label, dloss, b)\n" READERS,
     .guard = guard,
     .trials = {TRIAL}},
    {0}};

LL_GPU_FUSION(classify, LATE, .precisions = LL_IN_16, .level = 90, .rows = rows)
const ll_op *const ll_ops_classify[] = {&classify, NULL};
