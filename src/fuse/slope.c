/* slope.c: gelu's gradient without a second tanh. A product that keeps its sum p for gelu's
 * gradient (product.c: act 2, two results) keeps the gradient itself, gelu'(p), if nothing but the
 * product with gelu's gradient (act 3) reads p; that one then multiplies by it. Both are of the
 * same size. And a product with such a factor sums its columns, where a bias's gradient is that
 * sum. For kernels of our own (kern/cuda/hopper.cu), in bf16; cuBLASLt has neither. */
#include "fuse/fuse_int.h"

/* The sum leaves the product's columns: "btf->f". */
static bool guard(ll_match *m)
{
    const ll_graph *g = m->g;
    const ll_node *sum = ll_match_node(m, "n"), *product = ll_match_node(m, "d");
    const char *spec = ((const ll_spec_attr *)sum->attr)->spec, *arrow = strstr(spec, "->");
    int n = ll_product_columns(((const ll_product_attr *)product->attr)->spec);
    return ll_graph_dtype(g, sum->out[0]) == LL_F32 && (int)strlen(arrow + 2) == n &&
           !strncmp(arrow - n, arrow + 2, (size_t)n);
}

#define PATTERN                                                                                    \
    "y, p = product2(x, w, b) {spec=$f, out=bf16, bias=1, act=2, scaled=0}\n"                      \
    "d = product1(dy, v, p) {spec=$g, out=bf16, bias=0, act=3, scaled=0}\n"
#define FORWARD "y, q = product2(x, w, b) {spec=$f, out=bf16, bias=1, act=4, scaled=0}\n"
#define TRIAL                                                                                      \
    "x: bf16[6,5], w: bf16[8,5], b: bf16[8], dy: bf16[6,5], v: bf16[5,8] $f=\"nc,kc->nk\" "        \
    "$g=\"nc,ck->nk\" $h=\"nk->k\""

static const ll_fusion_row rows[] = {
    {.pattern = PATTERN "n = sum(d) {spec=$h}",
     .replace = FORWARD "d, n = product2(dy, v, q) {spec=$g, out=bf16, bias=0, act=5, scaled=0}",
     .guard = guard,
     .trials = {TRIAL}},
    {.pattern = PATTERN,
     .replace = FORWARD "d = product1(dy, v, q) {spec=$g, out=bf16, bias=0, act=5, scaled=0}",
     .trials = {TRIAL}},
    {0}};

LL_GPU_FUSION(slope, LATE, .precisions = LL_IN_16, .level = 90, .rows = rows)
const ll_op *const ll_ops_slope[] = {NULL};
