/* precision.c: element types of whole graphs: bf16 products for speed, f64 for gradient checks. */
#include "kern/attr.h"
#include "pass/pass.h"

/* What reads bf16 and accumulates in f32. */
static bool takes_bf16(const ll_op *op)
{
    return !strcmp(op->name, "matmul") || !strncmp(op->name, "conv2d", 6);
}

static ll_err narrow_node(ll_rewrite *rw, const ll_node *n, ll_val *narrow)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    ll_rewrite_at(rw, n);
    for (int i = 0; i < n->n_in; i++) {
        ll_val *cast = &narrow[n->in[i].id];
        if (!cast->id) *cast = ll_cast(rw->to, rw->map[n->in[i].id], LL_BF16);
        in[i] = *cast;
    }
    TRY(ll_graph_check(rw->to));
    ll_matmul_attr m;
    const void *attr = n->attr;
    if (!strcmp(n->op->name, "matmul")) {
        memcpy(&m, n->attr, sizeof m);
        m.out = LL_F32;
        attr = &m;
    }
    TRY(ll_emit_all(rw->to, n->op, attr, in, n->n_in, out));
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(rw, n->out[o], out[o]);
    return LL_OK;
}

ll_err ll_lower_precision(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    ll_val *narrow = LL_NEW_ARRAY(rw.to->arena, ll_val, g->n_value);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        bool f32 = n->n_in > 0 && ll_dtype_of(g, n->in[0]) == LL_F32;
        rc = takes_bf16(n->op) && f32 ? narrow_node(&rw, n, narrow) : ll_rewrite_copy(&rw, n);
    }
    return ll_rewrite_end(&rw, rc, out);
}

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

ll_err ll_retype(const ll_graph *g, ll_dtype to, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    for (int i = 1; i < rw.to->n_value; i++)
        if (rw.to->values[i].type.dtype == LL_F32) rw.to->values[i].type.dtype = to;
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        ll_node n = g->nodes[i];
        n.attr = ll_attr_retype(rw.to->arena, &n, to);
        rc = ll_rewrite_copy(&rw, &n);
    }
    return ll_rewrite_end(&rw, rc, out);
}
