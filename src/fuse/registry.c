/* registry.c: all fusions, from the lists that the build found in src/fuse/, and their order; what
 * ops that they make mean. */
#include "fuse/fuse_int.h"

#define FUSIONS(file) extern const ll_fusion *const ll_fusions_##file[];
#include "fuse_list.inc"
#undef FUSIONS

enum { FUSIONS_MAX = 64 };

const ll_fusion *const *ll_fusions(void)
{
    static const ll_fusion *const *const lists[] = {
#define FUSIONS(file) ll_fusions_##file,
#include "fuse_list.inc"
#undef FUSIONS
        NULL};
    static const ll_fusion *all[FUSIONS_MAX + 1];
    static _Thread_local bool done;
    if (done) return all; /* filling twice writes the same pointers: threads need no lock */
    int n = 0;
    for (int stage = 0; stage <= LL_FUSE_CHAINS; stage++)
        for (int i = 0; lists[i]; i++)
            for (int j = 0; lists[i][j]; j++) {
                LL_ASSERT(n < FUSIONS_MAX);
                if ((int)lists[i][j]->stage == stage) all[n++] = lists[i][j];
            }
    done = true;
    return all;
}

ll_err ll_fuse(ll_graph **g, const ll_target *t, ll_precision p, int level, bool always_only,
               ll_buf *log)
{
    for (const ll_fusion *const *f = ll_fusions(); *f; f++) {
        ll_graph *made;
        if ((*f)->target != t || (always_only && !(*f)->always)) continue;
        if ((*f)->precisions && !((*f)->precisions >> p & 1)) continue;
        if (level && (*f)->level && (*f)->level != level) continue;
        TRY(ll_fuse_one(*f, *g, log, NULL, &made));
        if (!made) continue;
        ll_graph_free(*g);
        *g = made;
    }
    return LL_OK;
}

/* ---- what late ops mean ---- */

/* The pattern that a row replaces by this op and nothing else. *fits: whether it does. */
static ll_err expand_row(ll_graph *g, const ll_fusion_row *row, const ll_node *n, const ll_val *in,
                         ll_arena *a, bool *fits, ll_val *out)
{
    ll_fuse_text t;
    ll_fuse_holes holes = {0};
    ll_val now[LL_FUSE_WORDS] = {{0}};
    TRY(ll_fuse_read(row, a, &t));
    const ll_fuse_line *l = t.put;
    ll_shape first = ll_graph_shape(g, in[0]);
    *fits = t.n_new == 1 && l->op == n->op && l->n_in == n->n_in &&
            ll_fuse_attrs(l, n->attr, &first, &holes);
    for (int k = 0; *fits && k < l->n_in; k++) now[l->in[k]] = in[k];
    for (int i = 0; *fits && i < t.n_line; i++)
        if (!t.line[i].kept) TRY(ll_fuse_put(g, &t.line[i], &holes, now));
    for (int o = 0; *fits && o < l->n_out; o++) out[o] = now[l->out[o]];
    return LL_OK;
}

static ll_err expand_pattern(ll_graph *g, const ll_node *n, const ll_val *in, ll_arena *a,
                             ll_val *out)
{
    bool fits = false;
    for (const ll_fusion *const *f = ll_fusions(); *f; f++)
        for (const ll_fusion_row *row = (*f)->rows; row && row->pattern && !fits; row++)
            TRY(expand_row(g, row, n, in, a, &fits, out));
    CHECK(fits, LL_E_GRAPH, "%s has no reference kernel, expansion or pattern", n->op->name);
    return LL_OK;
}

/* Operands and results as they are, all between them in f64. */
static ll_err expand(ll_rewrite *rw, const ll_node *n)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT] = {{0}};
    ll_graph_at(rw->to, n);
    for (int k = 0; k < n->n_in; k++) {
        in[k] = rw->map[n->in[k].id];
        if (ll_dtype_is_float(ll_graph_dtype(rw->to, in[k])))
            in[k] = ll_cast(rw->to, in[k], LL_F64);
    }
    TRY(ll_graph_check(rw->to));
    LL_OWN(ll_arena) a = ll_arena_new();
    if (n->op->expand)
        n->op->expand(rw->to, n->attr, in, n->n_in, out);
    else
        TRY(expand_pattern(rw->to, n, in, a, out));
    TRY(ll_graph_check(rw->to));
    for (int o = 0; o < n->n_out; o++)
        ll_rewrite_map(rw, n->out[o], ll_cast(rw->to, out[o], ll_graph_dtype(rw->from, n->out[o])));
    return ll_graph_check(rw->to);
}

static bool in_f64(const ll_graph *g, const ll_node *n)
{
    bool any = false;
    for (int i = 0; i < n->n_in; i++) any |= ll_graph_dtype(g, n->in[i]) == LL_F64;
    for (int o = 0; o < n->n_out; o++) any |= ll_graph_dtype(g, n->out[o]) == LL_F64;
    return any;
}

/* What fused ops mean may have an expansion itself: until all have kernels. */
static ll_err expand_all(const ll_graph *g, bool f64_only, ll_graph **out)
{
    ll_rewrite rw;
    ll_err rc = LL_OK;
    int n = 0;
    ll_rewrite_begin(&rw, g);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_op *op = g->nodes[i].op;
        bool stays =
            op->ref || op->collective || (f64_only && (op->f64 || !in_f64(g, &g->nodes[i])));
        n += !stays;
        rc = (stays ? ll_rewrite_copy : expand)(&rw, &g->nodes[i]);
    }
    LL_OWN(ll_graph) made = NULL;
    TRY(ll_rewrite_end(&rw, rc, &made));
    return n ? expand_all(made, f64_only, out) : ll_sweep(made, out);
}

ll_err ll_expand_fused(const ll_graph *g, ll_graph **out)
{
    return expand_all(g, false, out);
}

ll_err ll_expand_f64(const ll_graph *g, ll_graph **out)
{
    return expand_all(g, true, out);
}
