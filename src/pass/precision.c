/* precision.c: element types of whole graphs: bf16 for speed, f64 for gradient checks.
 *
 * Two ways to bf16. Machines whose other kernels are f32 (cpu) narrow the operands of products and
 * attention, and results of products that nobody else but chains and sums reads; ranks do the
 * latter where they have put them together. On GPUs all activations and their gradients are bf16,
 * so that half the bytes move; f32 stays what is added up over a batch or kept: parameters, their
 * gradients, statistics, losses. Which results may be f32 of bf16 operands is said by the op
 * (wide_out) or by its attributes (products). No other op is known here. */
#include "kern/attr.h"
#include "pass/pass.h"

/* What reads bf16 and accumulates in f32. */
static bool takes_bf16(const ll_op *op)
{
    return op == &ll_op_matmul || op->work == LL_WORK_CONVOLUTION;
}

/* ---- all activations ---- */

typedef struct narrowing {
    const ll_graph *g;
    ll_rewrite rw;
    const bool *varies;
    bool *kept;   /* value -> must be f32 */
    ll_val *cast; /* value -> its copy in the type that it does not have */
} narrowing;

/* Whether result o can be f32 where the node's operands are bf16. */
static bool widens(const ll_node *n, int o)
{
    return takes_bf16(n->op) || n->op->wide_out >> o & 1;
}

static bool is_f32(const ll_graph *g, ll_val v)
{
    return ll_graph_dtype(g, v) == LL_F32;
}

/* What stays f32: what is handed out or averaged over micro-batches, scalars, and what these are
 * made of by ops that cannot make f32 of bf16. */
static void keep_wide(narrowing *w)
{
    const ll_graph *g = w->g;
    for (int i = 1; i < g->n_value; i++) w->kept[i] = g->values[i].type.shape.n == 0;
    for (int i = 0; i < g->n_result; i++) w->kept[g->results[i].value.id] = true;
    for (int i = 0; i < g->n_update; i++) w->kept[g->updates[i].next.id] = true;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool all = false;
        for (int o = 0; o < n->n_out; o++) all |= w->kept[n->out[o].id] && !widens(n, o);
        for (int k = 0; all && k < n->n_in; k++) w->kept[n->in[k].id] = true;
    }
}

/* Whether a node is to work in bf16. */
static bool narrows(const narrowing *w, const ll_node *n)
{
    bool varies = false, reads = n->op->picks, must = false;
    for (int k = 0; k < n->n_in; k++)
        reads |= !(n->op->wide_in >> k & 1) &&
                 ll_graph_dtype(w->rw.to, w->rw.map[n->in[k].id]) == LL_BF16;
    for (int o = 0; o < n->n_out; o++) {
        varies |= w->varies[n->out[o].id];
        must |= w->kept[n->out[o].id] && !widens(n, o);
    }
    if (takes_bf16(n->op)) return is_f32(w->g, n->in[0]);
    return reads && varies && !must;
}

/* The new value of old v in this type; ints and f64 are left alone. */
static ll_val as_type(narrowing *w, ll_val v, ll_dtype t)
{
    ll_val now = w->rw.map[v.id];
    ll_dtype is = ll_graph_dtype(w->rw.to, now);
    if (is == t || (is != LL_F32 && is != LL_BF16)) return now;
    if (!w->cast[v.id].id) w->cast[v.id] = ll_cast(w->rw.to, now, t);
    return w->cast[v.id];
}

static const void *product_attr(const narrowing *w, const ll_node *n, bool narrow)
{
    bool wide = w->kept[n->out[0].id];
    char *copy = (char *)ll_arena_copy(w->rw.to->arena, n->attr, n->op->attr_size);
    if (!takes_bf16(n->op) || !narrow) return n->attr;
    if (n->op == &ll_op_matmul)
        ((ll_matmul_attr *)(void *)copy)->out = wide ? LL_F32 : LL_BF16;
    else
        ((ll_conv_attr *)(void *)copy)->narrow = !wide;
    return copy;
}

static ll_err narrow_or_copy(narrowing *w, const ll_node *n)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    bool cast = n->op == ll_ew_op(LL_EW_cast), narrow = !cast && narrows(w, n);
    /* Elementwise ops read any mix, and compute in f32; casts say themselves what they make. */
    bool mixes = (n->op->elementwise && narrow) || cast;
    ll_graph_at(w->rw.to, n);
    for (int k = 0; k < n->n_in; k++) {
        bool wide = !narrow || n->op->wide_in >> k & 1;
        in[k] = mixes ? w->rw.map[n->in[k].id] : as_type(w, n->in[k], wide ? LL_F32 : LL_BF16);
    }
    TRY(ll_graph_check(w->rw.to));
    TRY(ll_emit_all(w->rw.to, n->op, product_attr(w, n, narrow), in, n->n_in, out));
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(&w->rw, n->out[o], out[o]);
    return LL_OK;
}

static void begin(narrowing *w)
{
    ll_rewrite_begin(&w->rw, w->g);
    ll_arena *a = w->rw.to->arena;
    w->varies = ll_varying(w->g, a);
    LL_ARRAYS(a, w->g->n_value, w->kept, w->cast);
    keep_wide(w);
}

ll_err ll_narrow(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    narrowing w = {.g = g};
    begin(&w);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = narrow_or_copy(&w, &g->nodes[i]);
    return ll_rewrite_end(&w.rw, rc, out);
}

/* ---- products alone ---- */

typedef struct lowering {
    narrowing w;
    bool *asked, *made; /* value -> some product or attention reads it; it was made as bf16 */
    bool *sent;         /* value -> ranks have it from a product */
} lowering;

/* Whether a node is to read bf16 where its machine's other kernels are f32. */
static bool lowers(const ll_graph *g, const ll_node *n)
{
    return n->n_in > 0 && is_f32(g, n->in[0]) &&
           (takes_bf16(n->op) || (n->op->work == LL_WORK_ATTENTION && !n->op->no_grad));
}

/* What others than products, attention and chains read is f32. */
static void find_readers(lowering *l)
{
    const ll_graph *g = l->w.g;
    LL_EACH (const ll_node, n, g->nodes, g->n_node) {
        for (int o = 0; o < n->n_out; o++) l->w.kept[n->out[o].id] |= !l->w.varies[n->out[o].id];
        for (int k = 0; k < n->n_in; k++) {
            bool narrow = lowers(g, n) && !(n->op->wide_in >> k & 1);
            l->asked[n->in[k].id] |= narrow;
            l->w.kept[n->in[k].id] |= !narrow && !n->op->elementwise && n->op != &ll_op_sum;
        }
    }
}

/* Attention works on bf16 too, and gives it, as do products whose readers do not mind: products
 * read such results as they are, others a widened copy, which chains make themselves. */
static ll_err lower_node(lowering *l, const ll_node *n)
{
    narrowing *w = &l->w;
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    for (int k = 0; k < n->n_in; k++) {
        ll_val *cast = &w->cast[n->in[k].id];
        in[k] = w->rw.map[n->in[k].id];
        if (n->op->wide_in >> k & 1) continue;
        if (!cast->id) *cast = ll_cast(w->rw.to, in[k], LL_BF16);
        in[k] = *cast;
    }
    TRY(ll_graph_check(w->rw.to));
    TRY(ll_emit_all(w->rw.to, n->op, product_attr(w, n, n->op == &ll_op_matmul), in, n->n_in, out));
    for (int o = 0; o < n->n_out; o++) {
        bool wide = ll_graph_dtype(w->rw.to, out[o]) != LL_BF16;
        if (!wide) w->cast[n->out[o].id] = out[o], l->made[n->out[o].id] = true;
        ll_rewrite_map(&w->rw, n->out[o], wide ? out[o] : ll_cast(w->rw.to, out[o], LL_F32));
    }
    return ll_graph_check(w->rw.to);
}

/* What ranks put together of products' results, in f32, is rounded where a serial run would round
 * the result: they round the same numbers. */
static void round_sent(lowering *l, const ll_node *n)
{
    narrowing *w = &l->w;
    const ll_node *maker = ll_maker(w->g, n->in[0]);
    int v = n->out[0].id;
    bool product = maker && maker->op == &ll_op_matmul && lowers(w->g, maker);
    l->sent[v] = product || l->sent[n->in[0].id];
    if (!l->sent[v] || w->kept[v] || !is_f32(w->g, n->out[0])) return;
    w->cast[v] = ll_cast(w->rw.to, w->rw.map[v], LL_BF16);
    w->rw.map[v] = ll_cast(w->rw.to, w->cast[v], LL_F32);
    l->made[v] = true;
}

/* What products will read is rounded where it is made, by a chain in the same one. Sums over rows
 * read that too, whoever made it: layouts differ in who does. */
static ll_err lower_or_copy(lowering *l, const ll_node *n)
{
    narrowing *w = &l->w;
    ll_graph_at(w->rw.to, n);
    if (lowers(w->g, n)) return lower_node(l, n);
    ll_val none = {0}, *read = n->op == &ll_op_sum ? &w->rw.map[n->in[0].id] : &none, wide = *read;
    if (n->op == &ll_op_sum && l->made[n->in[0].id]) *read = w->cast[n->in[0].id];
    TRY(ll_rewrite_copy(&w->rw, n));
    *read = wide;
    ll_collective talk = n->op->collective;
    if (talk && talk != LL_SEND && talk != LL_RECV) round_sent(l, n);
    for (int o = 0; o < n->n_out; o++) {
        int v = n->out[o].id;
        if (l->asked[v] && !l->made[v] && is_f32(w->g, n->out[o]))
            w->cast[v] = ll_cast(w->rw.to, w->rw.map[v], LL_BF16), l->made[v] = true;
    }
    return ll_graph_check(w->rw.to);
}

ll_err ll_lower_precision(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    lowering l = {.w = {.g = g}};
    begin(&l.w);
    LL_ARRAYS(l.w.rw.to->arena, g->n_value, l.asked, l.made, l.sent);
    find_readers(&l);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = lower_or_copy(&l, &g->nodes[i]);
    return ll_rewrite_end(&l.w.rw, rc, out);
}

/* ---- one type for another ---- */

const void *ll_attr_retype(ll_arena *a, const ll_node *n, ll_dtype to)
{
    if (!n->op->attr_size || !n->op->attrs) return n->attr;
    char *copy = (char *)ll_arena_copy(a, n->attr, n->op->attr_size);
    for (const ll_attr_field *f = n->op->attrs; f->name; f++) {
        ll_dtype *t = (ll_dtype *)(void *)(copy + f->offset);
        if (f->kind == LL_A_DTYPE && *t == LL_F32) *t = to;
        if (f->kind != LL_A_FUSED) continue;
        ll_fused_attr *chain = (ll_fused_attr *)(void *)copy;
        for (int o = 0; o < chain->n_out; o++)
            if (chain->out_dtype[o] == LL_F32) chain->out_dtype[o] = to;
    }
    return copy;
}

ll_err ll_retype(const ll_graph *g, ll_dtype to, bool cast_batch, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    for (int i = 1; i < g->n_value; i++) {
        ll_value *v = ll_value_of(rw.to, rw.map[i]);
        if (!rw.map[i].id || v->type.dtype != LL_F32) continue;
        if (cast_batch && v->kind == LL_BATCH)
            rw.map[i] = ll_cast(rw.to, rw.map[i], to);
        else
            v->type.dtype = to;
    }
    ll_err rc = ll_graph_check(rw.to);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        ll_node n = g->nodes[i];
        n.attr = ll_attr_retype(rw.to->arena, &n, to);
        rc = ll_rewrite_copy(&rw, &n);
    }
    return ll_rewrite_end(&rw, rc, out);
}
