/* simplify.c: what a careful person would not have written.
 *
 * 1. Nodes that no result or update needs are dropped, also those that the rest leaves behind.
 * 2. Equal nodes (op, attributes, operands) become one.
 * 3. Constants: elementwise ops, sums and reshapings of fills are fills; a product with a constant
 *    is a scale, a sum with one a shift.
 * 4. Moves that change only the shape are reshapes, and of two reshapes the last one is enough.
 * 5. Transposes of a product's operands, and of a product that nobody else reads, become its spec.
 * 6. Identities go: scale by 1, shift by 0, casts, broadcasts and reshapes to what is there.
 * Nodes are visited in order, operands first, so that a graph simplified is not changed by
 * simplifying it again. */
#include "base/num.h"
#include "base/spec.h"
#include "kern/attr.h"
#include "kern/kern.h"
#include "pass/pass.h"

#include <math.h>

/* ---- equal nodes ---- */

typedef struct table { /* open addressing over the new graph's nodes */
    int *slot, mask;
} table;

static bool same(const ll_node *a, bool again, const ll_op *op, const void *attr, const ll_val *in,
                 int n_in)
{
    return a->of.again == again && a->op == op && a->n_in == n_in &&
           !memcmp(a->in, in, sizeof *in * (size_t)n_in) &&
           (!op->attr_size || !memcmp(a->attr, attr, op->attr_size));
}

/* Emits the node, or finds the equal one that is there. */
static ll_err emit_once(ll_rewrite *rw, table *t, const ll_op *op, const void *attr,
                        const ll_val *in, int n_in, ll_val *out)
{
    uint64_t h = ll_hash(LL_HASH, &op, sizeof op);
    if (op->attr_size) h = ll_hash(h, attr, op->attr_size);
    h = ll_hash(h, in, sizeof *in * (size_t)n_in);
    int at = (int)((h ^ (h >> 32)) & (uint64_t)t->mask);
    for (; t->slot[at] >= 0; at = (at + 1) & t->mask) {
        const ll_node *n = &rw->to->nodes[t->slot[at]];
        if (!same(n, rw->to->of.again, op, attr, in, n_in)) continue;
        memcpy(out, n->out, sizeof *out * (size_t)n->n_out);
        return LL_OK;
    }
    t->slot[at] = rw->to->n_node;
    return ll_emit_all(rw->to, op, attr, in, n_in, out);
}

/* ---- constants ---- */

bool ll_constant_value(const ll_graph *g, ll_val v, double *value)
{
    const ll_node *n = ll_maker(g, v);
    if (!ll_is_op(n, &ll_op_fill)) return false;
    const ll_fill_attr *a = (const ll_fill_attr *)n->attr;
    *value = a->value;
    if (a->dtype == LL_F64 || a->dtype == LL_F32) return true; /* f32 rounds when it is used */
    double element;
    ll_store(&element, a->dtype, 0, a->value);
    *value = ll_load(&element, a->dtype, 0);
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
        if (!ll_constant_value(to, in[i], &value[i])) return false;
    *out = value[0];
    if (ll_is_op(n, &ll_op_broadcast) || ll_is_op(n, &ll_op_reshape) ||
        ll_is_op(n, &ll_op_transpose) || ll_is_op(n, &ll_op_slice) || ll_is_op(n, &ll_op_accum))
        return true;
    if (ll_is_op(n, &ll_op_sum)) {
        ll_shape s = ll_graph_shape(to, in[0]);
        int64_t all = ll_numel(&s), kept = ll_numel(&type->shape);
        if (!kept) return false;
        *out = all ? value[0] * (double)(all / kept) : 0;
        return true;
    }
    return fold_elementwise(n->op, n->attr, value, n->n_in, out);
}

/* ---- other nodes for a node ---- */

/* Rewrites of one elementwise node with a constant operand: x*c, x+c, x-c, x/c. */
static const ll_op *with_number(const ll_graph *to, const ll_node *n, const ll_val *in, ll_val *x,
                                double *k)
{
    double c;
    if (n->n_in != 2 || !n->op->elementwise) return NULL;
    if (!ll_dtype_is_float(ll_graph_dtype(to, in[0]))) return NULL;
    bool right = ll_constant_value(to, in[1], &c),
         left = !right && ll_constant_value(to, in[0], &c);
    if (!right && !left) return NULL;
    *x = right ? in[0] : in[1];
    *k = c;
    if (n->op->ew == LL_EW_mul) return ll_ew_op(LL_EW_scale);
    if (n->op->ew == LL_EW_add) return ll_ew_op(LL_EW_shift);
    if (right && n->op->ew == LL_EW_sub) return *k = -c, ll_ew_op(LL_EW_shift);
    if (right && n->op->ew == LL_EW_div && isfinite(1 / c))
        return *k = 1 / c, ll_ew_op(LL_EW_scale);
    return NULL;
}

static void set_shape(ll_shape *to, const ll_shape *from) /* what is beyond n stays zero */
{
    to->n = from->n;
    for (int d = 0; d < from->n; d++) to->d[d] = from->d[d];
}

/* Whether a graph is one rank's part: its extents are other ones on other ranks. (Of a pipeline's
 * middle stage all inputs may be whole: it receives what is cut.) */
static bool is_part(const ll_graph *g)
{
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].piece) return true;
    for (int i = 0; i < g->n_node; i++)
        if (g->nodes[i].op->collective) return true;
    return false;
}

/* Whether n moves no element past another: its result is its operand in another shape. That a loop
 * has one element is no fact to build on where ranks must come to the same nodes. */
static bool only_reshapes(const ll_graph *to, const ll_node *n, ll_val x, const ll_type *result)
{
    ll_shape s = ll_graph_shape(to, x);
    if (ll_is_op(n, &ll_op_reshape)) return true;
    bool moves =
        ll_is_op(n, &ll_op_broadcast) || ll_is_op(n, &ll_op_sum) || ll_is_op(n, &ll_op_amax);
    return moves && ll_numel(&s) == ll_numel(&result->shape) &&
           ll_graph_dtype(to, x) == result->dtype && !is_part(to);
}

static bool identity(const ll_graph *to, const ll_op *op, const void *attr, ll_val x,
                     const ll_type *result)
{
    const ll_type *t = &ll_value_of(to, x)->type;
    if (!ll_type_equal(t, result)) return false;
    if (op == ll_ew_op(LL_EW_scale)) return ((const ll_number_attr *)attr)->value == 1;
    if (op == ll_ew_op(LL_EW_shift)) return ((const ll_number_attr *)attr)->value == 0;
    if (op == &ll_op_transpose) {
        const char *spec = ((const ll_spec_attr *)attr)->spec;
        return !strncmp(spec, spec + t->shape.n + 2, (size_t)t->shape.n);
    }
    return op == ll_ew_op(LL_EW_cast) || op == ll_ew_op(LL_EW_stop_gradient) ||
           op == &ll_op_reshape;
}

/* What stands for a node: an op, its attributes and operands. */
typedef struct draft {
    const ll_op *op;
    const void *attr;
    ll_val in[LL_MAX_IN];
    int n_in;
    union {
        ll_fill_attr fill;
        ll_number_attr number;
        ll_reshape_attr reshape;
        ll_matmul_attr matmul;
        ll_spec_attr transpose;
    } made;
} draft;

static bool transpose_of(const ll_node *n, ll_spec *s)
{
    return ll_is_op(n, &ll_op_transpose) &&
           ll_spec_parse(((const ll_spec_attr *)n->attr)->spec, s) == LL_OK;
}

/* A product reads its operands before they are transposed: their letters in that order. */
static bool fold_operands(const ll_graph *to, const ll_node *n, draft *d)
{
    bool any = false;
    if (!ll_is_op(n, &ll_op_matmul)) return false;
    memcpy(&d->made.matmul, n->attr, sizeof d->made.matmul);
    char *spec = d->made.matmul.spec;
    for (int k = 0; k < 2; k++) {
        char *letters = k ? strchr(spec, ',') + 1 : spec;
        const ll_node *before = ll_maker(to, d->in[k]);
        ll_spec s;
        char old[LL_MAX_DIMS];
        if (!transpose_of(before, &s)) continue;
        memcpy(old, letters, (size_t)s.n_out);
        for (int o = 0; o < s.n_out; o++) letters[s.from[o]] = old[o];
        d->in[k] = before->in[0];
        any = true;
    }
    if (any) d->attr = &d->made.matmul;
    return any;
}

/* A transpose of a product that it alone reads, or of another transpose. */
static bool fold_into(const ll_graph *to, const ll_node *n, bool alone, draft *d)
{
    ll_spec s, first;
    if (!transpose_of(n, &s)) return false;
    const ll_node *before = ll_maker(to, d->in[0]);
    if (transpose_of(before, &first)) {
        char *spec = d->made.transpose.spec;
        memcpy(spec, ((const ll_spec_attr *)before->attr)->spec, LL_SPEC_MAX);
        for (int o = 0; o < s.n_out; o++) spec[s.n_in + 2 + o] = first.out[s.from[o]];
        d->in[0] = before->in[0], d->attr = &d->made.transpose;
        return true;
    }
    if (!alone || !ll_is_op(before, &ll_op_matmul)) return false;
    memcpy(&d->made.matmul, before->attr, sizeof d->made.matmul);
    char *letters = strchr(d->made.matmul.spec, '>') + 1, old[LL_MAX_DIMS];
    memcpy(old, letters, (size_t)s.n_out);
    for (int o = 0; o < s.n_out; o++) letters[o] = old[s.from[o]];
    d->op = before->op, d->attr = &d->made.matmul;
    d->n_in = before->n_in;
    memcpy(d->in, before->in, sizeof *d->in * (size_t)before->n_in);
    return true;
}

static void improve(const ll_graph *to, const ll_node *n, const ll_type *type, bool alone, draft *d)
{
    ll_val x;
    double k;
    const ll_op *op;
    memset(&d->made, 0, sizeof d->made);
    if (fold_operands(to, n, d) || fold_into(to, n, alone, d)) return;
    if (ll_dtype_is_float(type->dtype) && folds(to, n, d->in, type, &k)) {
        d->made.fill.dtype = type->dtype;
        d->made.fill.value = k;
        set_shape(&d->made.fill.shape, &type->shape);
        d->op = &ll_op_fill, d->attr = &d->made.fill, d->n_in = 0;
    } else if ((op = with_number(to, n, d->in, &x, &k))) {
        d->made.number.value = k;
        d->op = op, d->attr = &d->made.number, d->in[0] = x, d->n_in = 1;
    } else if (n->n_in == 1 && only_reshapes(to, n, d->in[0], type)) {
        const ll_node *before = ll_maker(to, d->in[0]);
        if (ll_is_op(before, &ll_op_reshape)) d->in[0] = before->in[0];
        set_shape(&d->made.reshape.shape, &type->shape);
        d->op = &ll_op_reshape, d->attr = &d->made.reshape;
    }
}

static ll_err simplify_node(ll_rewrite *rw, table *t, const int *uses, const ll_node *n)
{
    draft d = {.op = n->op, .attr = n->attr, .n_in = n->n_in};
    ll_val out[LL_MAX_OUT];
    const ll_type *type = &ll_value_of(rw->from, n->out[0])->type;
    for (int i = 0; i < n->n_in; i++) d.in[i] = rw->map[n->in[i].id];
    ll_graph_at(rw->to, n);
    improve(rw->to, n, type, n->n_in == 1 && uses[n->in[0].id] == 1, &d);
    if (d.n_in == 1 && identity(rw->to, d.op, d.attr, d.in[0], type))
        out[0] = d.in[0];
    else
        TRY(emit_once(rw, t, d.op, d.attr, d.in, d.n_in, out));
    for (int o = 0; o < n->n_out; o++) ll_rewrite_map(rw, n->out[o], out[o]);
    return LL_OK;
}

/* ---- what is needed ---- */

const bool *ll_live(const ll_graph *g, ll_arena *arena)
{
    bool *live = LL_NEW_ARRAY(arena, bool, g->n_value);
    for (int i = 0; i < g->n_result; i++) live[g->results[i].value.id] = true;
    for (int i = 0; i < g->n_update; i++) live[g->updates[i].next.id] = true;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool any = n->op->collective == LL_SEND; /* another rank reads it */
        for (int o = 0; o < n->n_out; o++) any |= live[n->out[o].id];
        for (int o = 0; o < n->n_out; o++) live[n->out[o].id] = any;
        for (int k = 0; any && k < n->n_in; k++) live[n->in[k].id] = true;
    }
    return live;
}

/* What is live; only: inputs too, of which all stay else, and what is drawn (dropout) passes on. */
static ll_err keep_live(const ll_graph *g, bool only, ll_graph **out)
{
    TRY(ll_graph_check(g));
    ll_rewrite rw;
    (only ? ll_rewrite_bare : ll_rewrite_begin)(&rw, g);
    const bool *live = ll_live(g, rw.to->arena);
    ll_err rc = LL_OK;
    for (int i = 1; i < g->n_value && only; i++)
        if (live[i] && g->values[i].node < 0) rw.map[i] = ll_input_like(rw.to, &g->values[i]);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i];
        if (!live[n->out[0].id]) continue;
        if (only && n->op->random)
            ll_rewrite_map(&rw, n->out[0], rw.map[n->in[0].id]);
        else
            rc = ll_rewrite_copy(&rw, n);
    }
    return ll_rewrite_end(&rw, rc, out);
}

ll_err ll_sweep(const ll_graph *g, ll_graph **out)
{
    return keep_live(g, false, out);
}

ll_err ll_only(const ll_graph *g, ll_val v, const char *name, ll_graph **out)
{
    ll_graph part = *g;
    part.results = &(ll_named){name, v};
    part.n_result = 1;
    part.n_update = 0;
    return keep_live(&part, true, out);
}

static ll_err simplify_once(const ll_graph *g, ll_graph **out)
{
    ll_rewrite rw;
    LL_OWN(ll_graph) simple = NULL;
    ll_rewrite_begin(&rw, g);
    ll_arena *a = rw.to->arena;
    table t = {.mask = 15};
    while (t.mask < 4 * g->n_node) t.mask = 2 * t.mask + 1;
    t.slot = LL_NEW_ARRAY(a, int, t.mask + 1);
    memset(t.slot, -1, sizeof(int) * (size_t)(t.mask + 1));
    const bool *live = ll_live(g, a);
    const int *uses = ll_uses(g, a);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++)
        if (live[g->nodes[i].out[0].id]) rc = simplify_node(&rw, &t, uses, &g->nodes[i]);
    TRY(ll_rewrite_end(&rw, rc, &simple));
    return ll_sweep(simple, out);
}

/* Whether a product is left whose only reader, now that equal readers are one, transposes it. */
static bool more_to_do(const ll_graph *g, ll_arena *arena)
{
    const int *uses = ll_uses(g, arena);
    LL_EACH (const ll_node, n, g->nodes, g->n_node)
        if (ll_is_op(n, &ll_op_transpose) && ll_is_op(ll_maker(g, n->in[0]), &ll_op_matmul) &&
            uses[n->in[0].id] == 1)
            return true;
    return false;
}

ll_err ll_simplify(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    LL_OWN(ll_graph) simple = NULL;
    TRY(simplify_once(g, &simple));
    while (more_to_do(simple, simple->arena)) {
        LL_OWN(ll_graph) last = simple;
        simple = NULL;
        TRY(simplify_once(last, &simple));
    }
    return LL_HAND(out, simple);
}

/* ---- expanding ---- */

/* *g with what does not stay expanded, once; *n: how many did not. */
static ll_err expand_once(ll_graph **g, bool (*stays)(const ll_op *), const char *what, int *n)
{
    ll_rewrite rw;
    ll_graph *made;
    ll_err rc = LL_OK;
    *n = 0;
    ll_rewrite_begin(&rw, *g);
    for (int i = 0; i < (*g)->n_node && rc == LL_OK; i++) {
        const ll_node *x = &(*g)->nodes[i];
        bool as_is = stays(x->op);
        *n += !as_is;
        rc = as_is ? ll_rewrite_copy(&rw, x)
             : x->op->expand
                 ? ll_rewrite_expand(&rw, x)
                 : RAISE(LL_E_ARG, "%s: op %s has no %s form", x->name, x->op->name, what);
    }
    TRY(ll_rewrite_end(&rw, rc, &made));
    ll_graph_free(*g);
    *g = made;
    return LL_OK;
}

ll_err ll_expand(const ll_graph *g, bool (*stays)(const ll_op *), const char *what, ll_graph **out)
{
    LL_OWN(ll_graph) now = NULL;
    TRY(ll_simplify(g, &now));
    for (int n = 1; n;) TRY(expand_once(&now, stays, what, &n));
    return ll_simplify(now, out);
}
