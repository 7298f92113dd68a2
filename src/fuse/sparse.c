/* sparse.c: products of the forward pass that read weights which are 2:4 (train.prune) say so, for
 * tensor cores that skip the zeros (kern/cuda/sparse.cu). Gradients of x sum over the other
 * dimension, in which zeros come as they like. */
#include "fuse/fuse_int.h"

enum { LEAST = 64 }; /* of every side of the product: less is not worth it */

/* Weights lie as [features, summed]. */
static bool guard(ll_match *m)
{
    const ll_graph *g = m->g;
    ll_shape w = ll_graph_shape(g, ll_match_value(m, "w")),
             x = ll_graph_shape(g, ll_match_value(m, "x"));
    if (!ll_value_of(g, ll_match_value(m, "w"))->init.two_of_four) return false;
    const ll_node *n = ll_match_node(m, "y");
    const char *spec = (const char *)n->attr; /* of a matmul and a product the first field */
    ll_matmul_parts p;
    if (ll_matmul_read(spec, &p) != LL_OK || !ll_product_plain(spec) || !ll_product_columns(spec))
        return false;
    int64_t features = 1, summed = 1;
    for (int i = 0; i < p.len[1]; i++) {
        bool is = ll_matmul_has(&p, 2, p.text[1][i]);
        if (is && summed > 1) return false;
        *(is ? &features : &summed) *= w.d[i];
    }
    int64_t rows = ll_numel(&x) / (summed ? summed : 1);
    if (features < LEAST || summed < LEAST || rows < LEAST || summed % 16 || features % 8)
        return ll_match_no(
            m,
            "2:4 weights of %lld x %lld and %lld rows: expected %d and more, multiples of 8 and 16",
            (long long)features, (long long)summed, (long long)rows, LEAST);
    return true;
}

#define WEIGHTS "+c = cast(w) {dtype=bf16}\n"
#define TRIAL "x: bf16[66,80], w: f32[72,80]%, b: bf16[72] $spec=\"nc,kc->nk\""

static const ll_fusion_row rows[] = {
    {.pattern = WEIGHTS "y = matmul(x, c) {spec=$spec, out=bf16}",
     .replace = "y = product1(x, c) {spec=$spec, out=bf16, bias=0, act=0, scaled=0, sparse=1}",
     .guard = guard,
     .trials = {TRIAL}},
    {.pattern = WEIGHTS "y = product1(x, c, b) {spec=$spec, out=bf16, bias=1, act=0, scaled=0, "
                        "sparse=0}",
     .replace = "y = product1(x, c, b) {spec=$spec, out=bf16, bias=1, act=0, scaled=0, sparse=1}",
     .guard = guard,
     .trials = {TRIAL}},
    {0}};

LL_GPU_FUSION(sparse, LATE, .precisions = 1 << LL_PRECISION_bf16, .level = 90, .rows = rows)
const ll_op *const ll_ops_sparse[] = {NULL};
