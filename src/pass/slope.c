/* slope.c: gelu's gradient without a second tanh. A product that keeps its sum for gelu's gradient
 * (op/product.c: act gelu, two results) keeps the gradient itself, gelu'(p), if nothing but
 * products with gelu's gradient reads the sum; these then multiply by it. Both are of the same
 * size.
 *
 *     y, p = product2(x, w, b) gelu       ->  y, s = product2(x, w, b) slope
 *     d    = product1(dy, v, p) dgelu     ->  d    = product1(dy, v, s) times
 *
 * And a product with a factor sums its columns, where a bias's gradient is that sum:
 *
 *     d = product1(dy, v, s) times, sum(d)  ->  d, sum = product2(dy, v, s) times
 *
 * Both are for kernels of our own (kern/cuda/hopper.cu): in bf16. cuBLASLt has neither. */
#include "kern/attr.h"
#include "op/op_int.h"
#include "pass/pass.h"

typedef struct sloping {
    const ll_graph *g;
    const int *uses;
    bool *slopes; /* value -> a product's second result, which will be the slope */
    int *sum;     /* node -> the node that sums its result's columns; -1: none */
    bool *gone;   /* node -> such a sum */
} sloping;

static const ll_product_attr *product_of(const ll_graph *g, const ll_node *n)
{
    if (strncmp(n->op->name, "product", 7)) return NULL;
    const ll_product_attr *a = (const ll_product_attr *)n->attr;
    return a->scaled || ll_graph_dtype(g, n->in[0]) != LL_BF16 || a->out != LL_BF16 ? NULL : a;
}

/* Sums whose readers are all products with gelu's gradient. */
static void find_slopes(sloping *s, ll_arena *arena)
{
    const ll_graph *g = s->g;
    int *fitting = LL_NEW_ARRAY(arena, int, g->n_value); /* readers of that kind */
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        const ll_product_attr *a = product_of(g, n);
        if (a && a->act == LL_ACT_DGELU) fitting[n->in[n->n_in - 1].id]++;
    }
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        const ll_product_attr *a = product_of(g, n);
        if (!a || a->act != LL_ACT_GELU || n->n_out != 2) continue;
        int sum = n->out[1].id;
        s->slopes[sum] = fitting[sum] > 0 && fitting[sum] == s->uses[sum];
    }
}

/* Whether a sum's spec leaves the last dimensions, those that b alone has: "btf->f". */
static bool of_columns(const char *sum, const char *product)
{
    ll_matmul_parts p;
    if (ll_matmul_read(product, &p) != LL_OK) return false;
    int rows = 0;
    while (rows < p.len[2] && memchr(p.text[0], p.text[2][rows], (size_t)p.len[0])) rows++;
    const char *arrow = strstr(sum, "->");
    int all = arrow ? (int)(arrow - sum) : 0;
    size_t columns = (size_t)(all - rows);
    return all == p.len[2] && strlen(arrow + 2) == columns &&
           !strncmp(arrow + 2, sum + rows, columns);
}

static void find_sums(sloping *s)
{
    for (int i = 0; i < s->g->n_node; i++) {
        const ll_node *n = &s->g->nodes[i], *m = ll_is(n, "sum") ? ll_maker(s->g, n->in[0]) : NULL;
        const ll_product_attr *a = m ? product_of(s->g, m) : NULL;
        if (!a || a->act != LL_ACT_DGELU || !s->slopes[m->in[m->n_in - 1].id]) continue;
        int node = (int)(m - s->g->nodes);
        bool fits = ll_graph_dtype(s->g, n->out[0]) == LL_F32 && s->sum[node] < 0 &&
                    of_columns(((const ll_spec_attr *)n->attr)->spec, a->spec);
        if (!fits) continue;
        s->sum[node] = i;
        s->gone[i] = true;
    }
}

static ll_err emit(const sloping *s, ll_rewrite *rw, int node)
{
    const ll_node *n = &s->g->nodes[node];
    ll_product_attr attr = *(const ll_product_attr *)n->attr;
    int n_out = s->sum[node] < 0 ? n->n_out : 2;
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    attr.act = attr.act == LL_ACT_GELU ? LL_ACT_SLOPE : LL_ACT_TIMES;
    for (int k = 0; k < n->n_in; k++) in[k] = rw->map[n->in[k].id];
    ll_rewrite_at(rw, n);
    TRY(ll_emit_all(rw->to, ll_product_op(n_out), &attr, in, n->n_in, out));
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(rw, n->out[o], out[o]);
    if (s->sum[node] >= 0) ll_rewrite_map(rw, s->g->nodes[s->sum[node]].out[0], out[1]);
    return LL_OK;
}

ll_err ll_slopes(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    ll_arena *a = rw.to->arena;
    sloping s = {.g = g, .uses = ll_uses(g, a)};
    s.slopes = LL_NEW_ARRAY(a, bool, g->n_value);
    s.sum = LL_NEW_ARRAY(a, int, g->n_node + 1);
    s.gone = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    for (int i = 0; i < g->n_node; i++) s.sum[i] = -1;
    find_slopes(&s, a);
    find_sums(&s);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        if (s.gone[i]) continue;
        const ll_product_attr *p = product_of(g, n);
        bool changes = p && ((p->act == LL_ACT_GELU && n->n_out == 2 && s.slopes[n->out[1].id]) ||
                             (p->act == LL_ACT_DGELU && s.slopes[n->in[n->n_in - 1].id]));
        rc = changes ? emit(&s, &rw, i) : ll_rewrite_copy(&rw, n);
    }
    return ll_rewrite_end(&rw, rc, out);
}
