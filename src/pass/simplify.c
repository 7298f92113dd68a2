/* simplify.c: what a careful person would not have written.
 *
 * 1. Nodes that no result or update needs are dropped.
 * 2. Equal nodes (op, attributes, operands) become one.
 * 3. Constants: elementwise ops, sums and reshapings of fills are fills; a product with a constant
 *    is a scale, a sum with one a shift.
 * 4. Identities go: scale by 1, shift by 0, casts, broadcasts and reshapes to what is there. */
#include "kern/attr.h"
#include "kern/kern.h"
#include "pass/pass.h"

#include <stdlib.h>

typedef struct table { /* open addressing over the new graph's nodes */
    int *slot, mask;
} table;

static uint64_t mix(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static bool same(const ll_node *a, const ll_op *op, const void *attr, const ll_val *in, int n_in)
{
    return a->op == op && a->n_in == n_in && !memcmp(a->in, in, sizeof *in * (size_t)n_in) &&
           (!op->attr_size || !memcmp(a->attr, attr, op->attr_size));
}

/* Emits the node, or finds the equal one that is there. */
static ll_err emit_once(ll_rewrite *rw, table *t, const ll_op *op, const void *attr,
                        const ll_val *in, int n_in, ll_val *out)
{
    uint64_t h = mix(14695981039346656037u, &op, sizeof op);
    if (op->attr_size) h = mix(h, attr, op->attr_size);
    h = mix(h, in, sizeof *in * (size_t)n_in);
    int at = (int)((h ^ (h >> 32)) & (uint64_t)t->mask);
    for (; t->slot[at] >= 0; at = (at + 1) & t->mask) {
        const ll_node *n = &rw->to->nodes[t->slot[at]];
        if (!same(n, op, attr, in, n_in)) continue;
        memcpy(out, n->out, sizeof *out * (size_t)n->n_out);
        return LL_OK;
    }
    t->slot[at] = rw->to->n_node;
    return ll_emit_all(rw->to, op, attr, in, n_in, out);
}

static const ll_node *maker(const ll_graph *g, ll_val v)
{
    int n = ll_value_of(g, v)->node;
    return n < 0 ? NULL : &g->nodes[n];
}

static bool is_op(const ll_node *n, const char *name)
{
    return n && !strcmp(n->op->name, name);
}

static bool constant(const ll_graph *g, ll_val v, double *value)
{
    const ll_node *n = maker(g, v);
    if (!is_op(n, "fill")) return false;
    *value = ((const ll_fill_attr *)n->attr)->value;
    return true;
}

/* An elementwise op of constants, by its reference kernel on one element. */
static bool fold_elementwise(const ll_op *op, const void *attr, const double *value, int n,
                             double *out)
{
    ll_tensor in[3], result = {out, LL_F64, LL_SCALAR};
    double operand[3];
    if (!op->elementwise || n > 3 || !op->ref) return false;
    for (int i = 0; i < n; i++) {
        operand[i] = value[i];
        in[i] = (ll_tensor){&operand[i], LL_F64, LL_SCALAR};
    }
    ll_kcall c = {
        .attr = attr, .n_in = n, .n_out = 1, .in = in, .out = &result, .threads = 1, .n_micro = 1};
    return op->ref(&c) == LL_OK;
}

/* The value of a node all of whose elements are one constant. */
static bool folds(const ll_graph *to, const ll_node *n, const ll_val *in, const ll_type *type,
                  double *out)
{
    double value[LL_MAX_IN];
    if (!n->n_in || n->n_out != 1 || n->n_in > 3) return false;
    for (int i = 0; i < n->n_in; i++)
        if (!constant(to, in[i], &value[i])) return false;
    *out = value[0];
    if (is_op(n, "broadcast") || is_op(n, "reshape") || is_op(n, "transpose") || is_op(n, "slice"))
        return true;
    if (is_op(n, "sum")) {
        ll_shape s = ll_shape_of(to, in[0]);
        int64_t kept = ll_numel(&type->shape);
        if (!kept) return false;
        *out = value[0] * (double)(ll_numel(&s) / kept);
        return true;
    }
    return fold_elementwise(n->op, n->attr, value, n->n_in, out);
}

/* Rewrites of one elementwise node with a constant operand: x*c, x+c, x-c, x/c. */
static const ll_op *with_number(const ll_graph *to, const ll_node *n, const ll_val *in, ll_val *x,
                                double *k)
{
    double c;
    if (n->n_in != 2 || !n->op->elementwise) return NULL;
    if (!ll_dtype_is_float(ll_dtype_of(to, in[0]))) return NULL;
    bool right = constant(to, in[1], &c), left = !right && constant(to, in[0], &c);
    if (!right && !left) return NULL;
    *x = right ? in[0] : in[1];
    *k = c;
    if (is_op(n, "mul")) return ll_op_find("scale");
    if (is_op(n, "add")) return ll_op_find("shift");
    if (right && is_op(n, "sub")) return *k = -c, ll_op_find("shift");
    if (right && is_op(n, "div") && c != 0) return *k = 1 / c, ll_op_find("scale");
    return NULL;
}

static bool identity(const ll_graph *to, const ll_op *op, const void *attr, ll_val x,
                     const ll_type *result)
{
    const ll_type *t = &ll_value_of(to, x)->type;
    bool same_type = t->dtype == result->dtype && ll_shape_equal(&t->shape, &result->shape);
    if (!same_type) return false;
    if (!strcmp(op->name, "scale")) return ((const ll_number_attr *)attr)->value == 1;
    if (!strcmp(op->name, "shift")) return ((const ll_number_attr *)attr)->value == 0;
    if (!strcmp(op->name, "transpose")) {
        const char *spec = ((const ll_spec_attr *)attr)->spec;
        return !strncmp(spec, spec + t->shape.n + 2, (size_t)t->shape.n);
    }
    return !strcmp(op->name, "cast") || !strcmp(op->name, "broadcast") ||
           !strcmp(op->name, "reshape");
}

static ll_err simplify_node(ll_rewrite *rw, table *t, const ll_node *n)
{
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT], x = {0};
    const ll_type *type = &ll_value_of(rw->from, n->out[0])->type;
    for (int i = 0; i < n->n_in; i++) in[i] = rw->map[n->in[i].id];
    ll_rewrite_at(rw, n);
    const ll_op *op = n->op;
    const void *attr = n->attr;
    ll_fill_attr fill;
    ll_number_attr number;
    memset(&fill, 0, sizeof fill);
    int n_in = n->n_in;
    double k;
    if (ll_dtype_is_float(type->dtype) && folds(rw->to, n, in, type, &k)) {
        fill.dtype = type->dtype, fill.shape = type->shape, fill.value = k;
        op = ll_op_find("fill"), attr = &fill, n_in = 0;
    } else if ((op = with_number(rw->to, n, in, &x, &k))) {
        number.value = k;
        attr = &number, in[0] = x, n_in = 1;
    } else
        op = n->op;
    if (n_in == 1 && identity(rw->to, op, attr, in[0], type))
        out[0] = in[0];
    else
        TRY(emit_once(rw, t, op, attr, in, n_in, out));
    for (int o = 0; o < n->n_out; o++) {
        rw->map[n->out[o].id] = out[o];
        const char *name = ll_value_of(rw->from, n->out[o])->name;
        ll_value *v = ll_value_of(rw->to, out[o]);
        if (name && !v->name) v->name = ll_arena_strdup(rw->to->arena, name);
    }
    return LL_OK;
}

static void mark_live(const ll_graph *g, bool *live)
{
    for (int i = 0; i < g->n_result; i++) live[g->results[i].value.id] = true;
    for (int i = 0; i < g->n_update; i++) live[g->updates[i].next.id] = true;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool any = false;
        for (int o = 0; o < n->n_out; o++) any |= live[n->out[o].id];
        for (int k = 0; any && k < n->n_in; k++) live[n->in[k].id] = true;
    }
}

ll_err ll_simplify(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    ll_arena *a = rw.to->arena;
    table t = {.mask = 15};
    while (t.mask < 4 * g->n_node) t.mask = 2 * t.mask + 1;
    t.slot = LL_NEW_ARRAY(a, int, t.mask + 1);
    memset(t.slot, -1, sizeof(int) * (size_t)(t.mask + 1));
    bool *live = LL_NEW_ARRAY(a, bool, g->n_value);
    mark_live(g, live);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        bool any = false;
        for (int o = 0; o < n->n_out; o++) any |= live[n->out[o].id];
        if (any) rc = simplify_node(&rw, &t, n);
    }
    return ll_rewrite_end(&rw, rc, out);
}
