/* even_logits.c: logits whose rows are no multiples of 16 bytes get columns that count for nothing,
 * for GPUs, whose products are several times slower on uneven rows (GPT-2's 50257 tokens). The
 * table gets rows of zeros, the columns that these make are lowered by 30000, so that a softmax
 * gives them 0, and so does its gradient; the table's gradient loses the rows again. Losses and
 * gradients are what they were. Taken are bf16 products that cross_entropy and its gradient alone
 * read, if the gradients of the product alone read that gradient. */
#include "fuse/fuse_int.h"

#include "base/num.h"

#include <stdio.h>

enum { EVEN = 8, TO = 64, LEAST = 512 };

static bool guard(ll_match *m)
{
    const ll_graph *g = m->g;
    ll_shape s = ll_graph_shape(g, ll_match_value(m, "l"));
    int64_t n = s.d[s.n - 1];
    char spread[LL_SPEC_MAX] = {0};
    if (n < LEAST) return ll_match_no(m, "%ld columns are few", n);
    if (n % EVEN == 0) return false;
    s.d[s.n - 1] = ll_round_up(n, TO);
    int64_t more = s.d[s.n - 1] - n;
    snprintf(spread, sizeof spread, "z->%.*sz", s.n - 1, "abcde");
    ll_match_set(m, "n", &n, sizeof n);
    ll_match_set(m, "more", &more, sizeof more);
    ll_match_set(m, "columns", &LL_SHAPE(n), sizeof(ll_shape));
    ll_match_set(m, "spread", spread, sizeof spread);
    ll_match_set(m, "wide", &s, sizeof s);
    return true;
}

#define LOSS                                                                                       \
    "l = matmul(x, w) {spec=\"*k,vk->*v\", out=bf16}\n"                                            \
    "loss, lse = cross_entropy(l, label)\n"
#define WIDE_LOSS                                                                                  \
    "z = pad(w) {dim=0, from=0, to=$more}\n"                                                       \
    "m = matmul(x, z) {spec=\"*k,vk->*v\", out=bf16}\n"                                            \
    "ones = fill() {dtype=f32, shape=$columns, value=1}\n"                                         \
    "padded = pad(ones) {dim=0, from=0, to=$more}\n"                                               \
    "less = shift(padded) {value=-1}\n"                                                            \
    "far = scale(less) {value=30000}\n"                                                            \
    "spread = broadcast(far) {spec=$spread, shape=$wide}\n"                                        \
    "c = add(m, spread)\n"                                                                         \
    "loss, lse = cross_entropy(c, label)\n"
#define TRIAL                                                                                      \
    "x: bf16[2,5,8], w: bf16[515,8], label: i32[2,5]<515, dloss: f32[2,5], u: bf16[2,5,8] "        \
    "$x_out=bf16 $w_out=f32"

static const ll_fusion_row rows[] = {
    {.pattern = LOSS "dl = cross_entropy_grad(dloss, l, label, lse)\n"
                     "dx = matmul(dl, w) {spec=\"*v,vk->*k\", out=$x_out}\n"
                     "dw = matmul(u, dl) {spec=\"*k,*v->vk\", out=$w_out}",
     .replace = WIDE_LOSS "d = cross_entropy_grad(dloss, c, label, lse)\n"
                          "dx = matmul(d, z) {spec=\"*v,vk->*k\", out=$x_out}\n"
                          "dz = matmul(u, d) {spec=\"*k,*v->vk\", out=$w_out}\n"
                          "dw = slice(dz) {dim=0, from=0, to=$n}",
     .guard = guard,
     .trials = {TRIAL}},
    {.pattern = LOSS, .replace = WIDE_LOSS, .guard = guard, .trials = {TRIAL}},
    {0}};

LL_GPU_FUSION(even_logits, SHAPES, .precisions = LL_IN_16, .rows = rows)
const ll_op *const ll_ops_even_logits[] = {NULL};
