/* join.c: nodes that move the same memory become one node, for GPUs: made late, after gradients,
 * partitioning and precision, before chains.
 *
 *     sum = a + b, read by a layernorm; b may be a      -> add_layernorm(a, b, ...[, bias]), and b
 *       product with a bias that nobody else reads         without it, which is a quicker product
 *     layernorm_dw and layernorm_dx of one dy           -> layernorm_back(dy, x, ...), and where
 *       dx is only added to a value that is known then     that sum: the gradient that comes along
 *                                                          a residual past the norm; and a sum of
 *                                                          its columns: the gradient of a bias
 *     cross_entropy and its cross_entropy_grad, if      -> cross_entropy_back(logits, ...), whose
 *       the gradient of the loss is known by then          gradient may lie on the logits
 *     an embedding_grad that is only added to a value   -> embedding_grad_onto(..., value): tied
 *                                                          input and output tables
 *
 * A joined node stands where the first of its parts stood (the last of them for the embedding), if
 * all that it reads is made by then; otherwise the parts stay as they are. */
#include "kern/attr.h"
#include "pass/pass.h"

enum { NONE = -1 };

typedef struct joining {
    const ll_graph *g;
    ll_rewrite rw;
    const int *uses;
    bool *done; /* node -> its results have been made by a joined node */
    /* Value -> a node that reads it: the first layernorm of it; the layernorm_dx, and the
     * cross_entropy_grad, whose last operand it is; the first sum of its columns; the last node of
     * all. */
    int *norm, *dx, *loss, *sum, *reader;
} joining;

static bool is_op(const ll_node *n, const char *op)
{
    return !strcmp(n->op->name, op);
}

static const ll_node *maker(const joining *j, ll_val v)
{
    return ll_maker(j->g, v);
}

/* Whether n sums a tensor of at least two dimensions over all but the last. */
static bool sums_columns(const joining *j, const ll_node *n)
{
    if (!is_op(n, "sum")) return false;
    ll_shape from = ll_graph_shape(j->g, n->in[0]), to = ll_graph_shape(j->g, n->out[0]);
    const char *spec = ((const ll_spec_attr *)n->attr)->spec; /* "btc->c" */
    return from.n > 1 && to.n == 1 && spec[from.n + 2] == spec[from.n - 1];
}

static void find_readers(joining *j)
{
    const ll_graph *g = j->g;
    for (int i = 0; i < g->n_value; i++)
        j->norm[i] = j->dx[i] = j->loss[i] = j->sum[i] = j->reader[i] = NONE;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            if (j->reader[n->in[k].id] == NONE) j->reader[n->in[k].id] = i;
        if (is_op(n, "layernorm")) j->norm[n->in[0].id] = i;
        if (is_op(n, "layernorm_dx")) j->dx[n->in[4].id] = i;
        if (is_op(n, "cross_entropy_grad")) j->loss[n->in[3].id] = i;
        if (sums_columns(j, n)) j->sum[n->in[0].id] = i;
    }
}

/* The new values of old ones; false: one of them is not made yet. */
static bool now(const joining *j, const ll_val *old, int n, ll_val *out)
{
    for (int k = 0; k < n; k++) {
        out[k] = j->rw.map[old[k].id];
        if (!out[k].id) return false;
    }
    return true;
}

static bool same_type(const joining *j, ll_val a, ll_val b)
{
    const ll_type *x = &ll_value_of(j->g, a)->type, *y = &ll_value_of(j->g, b)->type;
    return x->dtype == y->dtype && ll_shape_equal(&x->shape, &y->shape);
}

/* The only reader of v, if it adds v to another value of v's type, which is *other. */
static const ll_node *only_added(const joining *j, ll_val v, ll_val *other)
{
    if (j->uses[v.id] != 1 || j->reader[v.id] == NONE) return NULL;
    const ll_node *n = &j->g->nodes[j->reader[v.id]];
    if (!is_op(n, "add")) return NULL;
    *other = n->in[n->in[0].id == v.id];
    return same_type(j, *other, v) && same_type(j, n->out[0], v) ? n : NULL;
}

/* op, with the attributes of `of`, where node `at` stood. */
static ll_err emit(joining *j, const ll_node *at, const char *op, const ll_node *of,
                   const ll_val *in, int n_in, ll_val *out)
{
    ll_rewrite_at(&j->rw, at);
    return ll_emit_all(j->rw.to, ll_op_find(op), of->attr, in, n_in, out);
}

static void put(joining *j, const ll_node *n, int o, ll_val made)
{
    ll_rewrite_map(&j->rw, n->out[o], made);
    j->done[n - j->g->nodes] = true;
}

/* Whether a chain would take the node that makes v in, so that v never touches memory. */
static bool chains(const joining *j, ll_val v)
{
    const ll_node *n = maker(j, v);
    if (!n) return false;
    return is_op(n, "broadcast") || is_op(n, "fill") || (n->op->elementwise && j->uses[v.id] == 1);
}

/* An embedding_grad that is made by the node that adds it. */
static bool waits(const joining *j, const ll_node *n)
{
    ll_val other;
    return is_op(n, "embedding_grad") && only_added(j, n->out[0], &other);
}

/* Whether v is made by the time that a joined node stands at node number `at`. */
static bool early(const joining *j, ll_val v, int at)
{
    const ll_node *n = maker(j, v);
    return !n || (n - j->g->nodes < at && !waits(j, n));
}

/* The layernorm that n, a sum, can be joined with, or NULL. */
static const ll_node *norm_of(const joining *j, const ll_node *n)
{
    int k = is_op(n, "add") ? j->norm[n->out[0].id] : NONE, at = (int)(n - j->g->nodes);
    if (k == NONE) return NULL;
    const ll_node *norm = &j->g->nodes[k];
    for (int side = 0; side < 2; side++) {
        ll_val v = n->in[side];
        const ll_node *from = maker(j, v);
        if (!same_type(j, v, n->out[0]) || chains(j, v) || !early(j, v, at)) return NULL;
        if (from && is_op(from, "layernorm_dx")) return NULL; /* whose node may take the sum in */
    }
    return early(j, norm->in[1], at) && early(j, norm->in[2], at) ? norm : NULL;
}

/* What a product with nothing but a bias takes in, for a norm to do it: one number for each column,
 * of the type of the norm's statistics; else none. */
static ll_val bias_of(const joining *j, ll_val v)
{
    const ll_node *n = maker(j, v);
    if (!n || !is_op(n, "product1") || n->n_in != 3 || j->uses[v.id] != 1) return (ll_val){0};
    const ll_product_attr *a = (const ll_product_attr *)n->attr;
    ll_val bias = n->in[2];
    const ll_node *cast = maker(j, bias);
    if (cast && is_op(cast, "cast")) bias = cast->in[0];
    bool fits = a->bias && a->act == LL_ACT_NONE && a->out == ll_graph_dtype(j->g, v) &&
                ll_graph_shape(j->g, bias).n == 1 &&
                ll_graph_dtype(j->g, bias) == ll_wide(ll_graph_dtype(j->g, v));
    return fits && early(j, bias, ll_value_of(j->g, v)->node) ? bias : (ll_val){0};
}

/* Which operand of a sum that a norm is joined with gives its bias to the norm, or NONE. */
static int gives_bias(const joining *j, const ll_node *n)
{
    for (int side = 0; side < 2 && norm_of(j, n); side++)
        if (bias_of(j, n->in[side]).id) return side;
    return NONE;
}

static ll_err join_norm(joining *j, const ll_node *n)
{
    const ll_node *norm = norm_of(j, n);
    if (!norm) return LL_OK;
    int side = gives_bias(j, n);
    ll_val old[5] = {n->in[0], n->in[1], norm->in[1], norm->in[2]}, in[5], out[4];
    if (side != NONE) old[4] = bias_of(j, n->in[side]);
    int n_in = side == NONE ? 4 : 5;
    LL_ASSERT(now(j, old, n_in, in));
    TRY(emit(j, n, "add_layernorm", norm, in, n_in, out));
    put(j, n, 0, out[0]);
    for (int o = 0; o < 3; o++) put(j, norm, o, out[o + 1]);
    return LL_OK;
}

/* A product whose bias a norm adds. */
static ll_err join_product(joining *j, const ll_node *n)
{
    if (!is_op(n, "product1") || !bias_of(j, n->out[0]).id) return LL_OK;
    int reader = j->reader[n->out[0].id];
    if (reader == NONE) return LL_OK;
    const ll_node *sum = &j->g->nodes[reader];
    int side = gives_bias(j, sum);
    if (side == NONE || sum->in[side].id != n->out[0].id) return LL_OK;
    const ll_product_attr *a = (const ll_product_attr *)n->attr;
    ll_matmul_attr plain = {.out = a->out};
    ll_val in[2], out;
    memcpy(plain.spec, a->spec, sizeof plain.spec);
    LL_ASSERT(now(j, n->in, 2, in));
    ll_rewrite_at(&j->rw, n);
    TRY(ll_emit_all(j->rw.to, ll_op_find("matmul"), &plain, in, 2, &out));
    put(j, n, 0, out);
    return LL_OK;
}

static ll_err join_norm_grads(joining *j, const ll_node *dw)
{
    if (!is_op(dw, "layernorm_dw") || j->dx[dw->in[3].id] == NONE) return LL_OK;
    const ll_node *dx = &j->g->nodes[j->dx[dw->in[3].id]];
    bool same = dw->in[0].id == dx->in[0].id && dw->in[1].id == dx->in[1].id &&
                dw->in[2].id == dx->in[3].id;
    ll_val in[6], out[4], other;
    if (!same || !now(j, dx->in, 5, in)) return LL_OK;
    const ll_node *add = only_added(j, dx->out[0], &other);
    if (add && !now(j, &other, 1, &in[5])) add = NULL;
    int k = j->sum[(add ? add : dx)->out[0].id];
    const char *op = k == NONE ? "layernorm_back" : "layernorm_back_sum";
    TRY(emit(j, dw, op, dx, in, add ? 6 : 5, out));
    if (k != NONE) put(j, &j->g->nodes[k], 0, out[3]);
    put(j, dx, 0, out[0]);
    if (add) put(j, add, 0, out[0]);
    put(j, dw, 0, out[1]);
    put(j, dw, 1, out[2]);
    return LL_OK;
}

static ll_err join_loss(joining *j, const ll_node *n)
{
    if (!is_op(n, "cross_entropy") || j->loss[n->out[1].id] == NONE) return LL_OK;
    const ll_node *grad = &j->g->nodes[j->loss[n->out[1].id]];
    ll_val dloss = grad->in[0], old[2] = {n->in[0], n->in[1]}, in[3], out[3];
    double value;
    if (grad->in[1].id != old[0].id || grad->in[2].id != old[1].id || !now(j, old, 2, in))
        return LL_OK;
    ll_rewrite_at(&j->rw, n);
    if (ll_constant(j->g, dloss, &value))
        in[2] = ll_fill(j->rw.to, ll_graph_dtype(j->g, dloss), ll_graph_shape(j->g, dloss), value);
    else if (!now(j, &dloss, 1, &in[2]))
        return LL_OK;
    TRY(ll_graph_check(j->rw.to));
    TRY(emit(j, n, "cross_entropy_back", n, in, 3, out));
    put(j, grad, 0, out[0]);
    put(j, n, 0, out[1]);
    put(j, n, 1, out[2]);
    return LL_OK;
}

static ll_err join_embedding(joining *j, const ll_node *n)
{
    for (int k = 0; k < 2 && is_op(n, "add"); k++) {
        const ll_node *grad = maker(j, n->in[k]);
        ll_val old[3], in[3], out;
        if (!grad || j->done[n - j->g->nodes] || !waits(j, grad)) continue;
        bool both = maker(j, n->in[1 - k]) && waits(j, maker(j, n->in[1 - k]));
        if (both && k == 0) TRY(ll_rewrite_copy(&j->rw, maker(j, n->in[1])));
        old[0] = grad->in[0], old[1] = grad->in[1], old[2] = n->in[1 - k];
        LL_ASSERT(now(j, old, 3, in));
        TRY(emit(j, n, "embedding_grad_onto", grad, in, 3, &out));
        put(j, n, 0, out);
    }
    return LL_OK;
}

static ll_err join_node(joining *j, int i)
{
    const ll_node *n = &j->g->nodes[i];
    if (j->done[i] || waits(j, n)) return LL_OK;
    TRY(join_norm(j, n));
    if (!j->done[i]) TRY(join_product(j, n));
    if (!j->done[i]) TRY(join_norm_grads(j, n));
    if (!j->done[i]) TRY(join_loss(j, n));
    if (!j->done[i]) TRY(join_embedding(j, n));
    return j->done[i] ? LL_OK : ll_rewrite_copy(&j->rw, n);
}

ll_err ll_join(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    joining j = {.g = g};
    ll_rewrite_begin(&j.rw, g);
    ll_arena *a = j.rw.to->arena;
    j.uses = ll_uses(g, a);
    j.done = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    j.norm = LL_NEW_ARRAY(a, int, g->n_value);
    j.dx = LL_NEW_ARRAY(a, int, g->n_value);
    j.loss = LL_NEW_ARRAY(a, int, g->n_value);
    j.sum = LL_NEW_ARRAY(a, int, g->n_value);
    j.reader = LL_NEW_ARRAY(a, int, g->n_value);
    find_readers(&j);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = join_node(&j, i);
    return ll_rewrite_end(&j.rw, rc, out);
}
