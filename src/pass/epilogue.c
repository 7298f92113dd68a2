/* epilogue.c: products take in what surrounds them, for machines whose products do that in passing
 * (GPUs): nodes become `product1` and `product2` of op/product.c. What pays was measured
 * (bench/product_gpu.c):
 *
 *     matmul, + bias                      unless a chain takes the bias in: one elementwise node
 *                                         reads the sum, and is no residual's sum, which a norm
 *                                         may take in (join.c)
 *     matmul, + bias, gelu                and the sum is kept where its gradient needs it
 *     matmul, + bias, relu
 *     matmul * dgelu(pre)                 the gradient, as it comes through the next product
 *
 * What did not pay with cuBLASLt and is left to others: adding a residual, and sums of columns for
 * a bias's gradient, both of which slow its products down by more than their own pass costs
 * (slope.c has the latter, for a kernel of ours). A product takes something in only if nobody else
 * reads it, and a bias is of its result's type. The new node stands where the bias is added
 * (activations come after; nothing that it reads does). */
#include "kern/attr.h"
#include "op/op_int.h"
#include "pass/pass.h"

typedef struct plan { /* what a node becomes: a product, or nothing (matmul -1) */
    int matmul;
    ll_val bias, pre;
    ll_act act;
    ll_val result, kept; /* old values of the results; kept none: there is one result */
} plan;

typedef struct finding {
    const ll_graph *g;
    const int *uses;
    int *reader, *gelu; /* value -> the last node that reads it; a gelu of it, or -1 */
    plan *plans;
    bool *gone; /* node -> another one makes its result */
} finding;

/* Whether v is a product that only one node reads, with columns as its last dimensions: how many of
 * its dimensions they are, else 0. */
static int columns_of(const finding *f, ll_val v)
{
    const ll_node *n = ll_maker(f->g, v);
    if (!ll_is(n, "matmul") || f->uses[v.id] != 1) return 0;
    const char *spec = ((const ll_matmul_attr *)n->attr)->spec;
    ll_dtype t = ll_graph_dtype(f->g, v);
    if (t != ll_graph_dtype(f->g, n->in[0]) || t == LL_F64 || !ll_product_plain(spec)) return 0;
    ll_matmul_parts p;
    if (ll_matmul_read(spec, &p) != LL_OK) return 0;
    int last = 0;
    while (last < p.len[2] && memchr(p.text[1], p.text[2][p.len[2] - 1 - last], (size_t)p.len[1]))
        last++;
    return last;
}

/* Rows of 16 bytes or multiples: what activations in a product ask for. */
static bool aligned(const ll_graph *g, ll_val v, int columns)
{
    ll_shape s = ll_graph_shape(g, v);
    int64_t n = (int64_t)ll_dtype_bytes(ll_graph_dtype(g, v));
    for (int i = s.n - columns; i < s.n; i++) n *= s.d[i];
    return n % 16 == 0;
}

/* What is spread along all but the last `columns` dimensions of v's shape, or none. */
static ll_val bias_of(const ll_graph *g, ll_val v, int columns)
{
    const ll_node *n = ll_maker(g, v);
    if (!ll_is(n, "broadcast")) return (ll_val){0};
    const ll_broadcast_attr *a = (const ll_broadcast_attr *)n->attr;
    int have = ll_graph_shape(g, n->in[0]).n;
    const char *from = a->spec, *to = from + have + 2; /* "c->nhwc" */
    if (have != columns || (int)strlen(to) < have) return (ll_val){0};
    bool last = !strncmp(to + strlen(to) - have, from, (size_t)have);
    return last && ll_wide(ll_graph_dtype(g, n->in[0])) == LL_F32 ? n->in[0] : (ll_val){0};
}

/* A product whose result (or sum) v is, with the activation that follows, if there is one. */
static plan with_activation(const finding *f, int matmul, ll_val v, bool may_act)
{
    int gelu = f->gelu[v.id], next = f->reader[v.id];
    plan p = {.matmul = matmul, .result = v};
    if (gelu >= 0 && may_act) {
        p.act = LL_ACT_GELU;
        p.result = f->g->nodes[gelu].out[0];
        if (f->uses[v.id] > 1) p.kept = v;
    } else if (next >= 0 && f->uses[v.id] == 1 && ll_is(&f->g->nodes[next], "relu")) {
        p.act = LL_ACT_RELU;
        p.result = f->g->nodes[next].out[0];
    }
    return p;
}

static void find_bias(finding *f, int node)
{
    const ll_node *n = &f->g->nodes[node];
    for (int side = 0; side < 2; side++) {
        ll_val m = n->in[side], v = n->out[0];
        int columns = columns_of(f, m);
        ll_val bias = columns ? bias_of(f->g, n->in[1 - side], columns) : (ll_val){0};
        if (!bias.id || ll_graph_dtype(f->g, v) != ll_graph_dtype(f->g, m)) continue;
        plan p = with_activation(f, ll_value_of(f->g, m)->node, v, aligned(f->g, v, columns));
        int next = f->reader[v.id];
        bool chain = f->uses[v.id] == 1 && next >= 0 && f->g->nodes[next].op->elementwise &&
                     !ll_is(&f->g->nodes[next], "add");
        if (!p.act && chain) continue;
        p.bias = bias;
        f->plans[node] = p;
        f->gone[p.matmul] = true;
        if (p.act) f->gone[ll_value_of(f->g, p.result)->node] = true;
        return;
    }
}

static void find_dgelu(finding *f, int node)
{
    const ll_node *n = &f->g->nodes[node];
    for (int side = 0; side < 2; side++) {
        const ll_node *d = ll_maker(f->g, n->in[1 - side]);
        int columns = columns_of(f, n->in[side]);
        if (!columns || !ll_is(d, "dgelu") || f->uses[d->out[0].id] != 1) continue;
        ll_dtype t = ll_graph_dtype(f->g, n->out[0]);
        if (!aligned(f->g, n->out[0], columns) || ll_graph_dtype(f->g, d->in[0]) != t) continue;
        int matmul = ll_value_of(f->g, n->in[side])->node;
        f->plans[node] =
            (plan){.matmul = matmul, .pre = d->in[0], .act = LL_ACT_DGELU, .result = n->out[0]};
        f->gone[matmul] = f->gone[ll_value_of(f->g, d->out[0])->node] = true;
        return;
    }
}

static ll_err emit(finding *f, ll_rewrite *rw, const ll_node *at, const plan *p)
{
    const ll_node *m = &f->g->nodes[p->matmul];
    const ll_matmul_attr *old = (const ll_matmul_attr *)m->attr;
    ll_product_attr attr = {.out = old->out, .bias = p->bias.id != 0, .act = p->act};
    memcpy(attr.spec, old->spec, sizeof attr.spec);
    ll_val in[4] = {rw->map[m->in[0].id], rw->map[m->in[1].id]}, out[2];
    int n_in = 2, n_out = p->kept.id ? 2 : 1;
    ll_rewrite_at(rw, at);
    if (p->bias.id) in[n_in++] = ll_cast(rw->to, rw->map[p->bias.id], old->out);
    if (p->pre.id) in[n_in++] = rw->map[p->pre.id];
    TRY(ll_graph_check(rw->to));
    TRY(ll_emit_all(rw->to, ll_product_op(n_out), &attr, in, n_in, out));
    ll_rewrite_map(rw, p->result, out[0]);
    if (n_out == 2) ll_rewrite_map(rw, p->kept, out[1]);
    return LL_OK;
}

ll_err ll_epilogues(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    ll_arena *a = rw.to->arena;
    finding f = {.g = g, .uses = ll_uses(g, a)};
    f.reader = LL_NEW_ARRAY(a, int, g->n_value);
    f.gelu = LL_NEW_ARRAY(a, int, g->n_value);
    f.plans = LL_NEW_ARRAY(a, plan, g->n_node + 1);
    f.gone = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    for (int i = 0; i < g->n_value; i++) f.reader[i] = f.gelu[i] = -1;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        f.plans[i].matmul = -1;
        for (int k = 0; k < n->n_in; k++) f.reader[n->in[k].id] = i;
        if (ll_is(n, "gelu")) f.gelu[n->in[0].id] = i;
    }
    for (int i = 0; i < g->n_node; i++) {
        if (ll_is(&g->nodes[i], "add")) find_bias(&f, i);
        if (ll_is(&g->nodes[i], "mul")) find_dgelu(&f, i);
    }
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        if (f.gone[i]) continue;
        const plan *p = &f.plans[i];
        rc = p->matmul < 0 ? ll_rewrite_copy(&rw, &g->nodes[i]) : emit(&f, &rw, &g->nodes[i], p);
    }
    return ll_rewrite_end(&rw, rc, out);
}
