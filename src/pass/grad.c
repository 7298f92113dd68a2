/* grad.c: reverse-mode differentiation, graph to graph.
 *
 * Walks the nodes backwards from y; each node's op says, in nodes again, how a gradient of its
 * results becomes gradients of its operands. Gradients are ordinary values, so differentiating them
 * gives higher orders. An op without a rule of its own is rewritten as its expansion, which is
 * appended and walked in its place. Nodes made here are named after the node they differentiate,
 * led by "d.", and belong to its block. */
#include "pass/pass.h"

#include <stdio.h>

typedef struct walk {
    ll_graph *g;
    ll_val *d;     /* gradient of y by each value; none: zero so far */
    bool *depends; /* on one of the x */
    int cap;
} walk;

static void reserve(walk *w)
{
    if (w->g->n_value <= w->cap) return;
    walk old = *w;
    w->cap = 2 * w->g->n_value;
    LL_ARRAYS(w->g->arena, w->cap, w->d, w->depends);
    if (!old.cap) return;
    memcpy(w->d, old.d, sizeof *old.d * (size_t)old.cap);
    memcpy(w->depends, old.depends, sizeof *old.depends * (size_t)old.cap);
}

static void mark(walk *w, int from, int to)
{
    reserve(w);
    for (int i = from; i < to; i++) {
        const ll_node *n = &w->g->nodes[i];
        bool any = false;
        for (int k = 0; k < n->n_in; k++) any |= w->depends[n->in[k].id];
        any &= !n->op->no_grad;
        for (int o = 0; o < n->n_out; o++)
            w->depends[n->out[o].id] |=
                any && ll_dtype_is_float(ll_value_of(w->g, n->out[o])->type.dtype);
    }
}

static void add_to(walk *w, ll_val v, ll_val d)
{
    reserve(w);
    w->d[v.id] = w->d[v.id].id ? ll_add(w->g, w->d[v.id], d) : d;
}

static void back(walk *w, int from, int to);

/* Appends the expansion of n and walks it; the operands' gradients gather in w->d. */
static void back_expanded(walk *w, const ll_node *n, const ll_val *dout)
{
    ll_graph *g = w->g;
    ll_val out[LL_MAX_OUT] = {{0}};
    int first = g->n_node;
    n->op->expand(g, n->attr, n->in, n->n_in, out);
    if (g->err != LL_OK) return;
    mark(w, first, g->n_node);
    for (int o = 0; o < n->n_out; o++)
        if (dout[o].id && out[o].id) add_to(w, out[o], dout[o]);
    back(w, first, g->n_node);
}

static void back_node(walk *w, const ll_node *n)
{
    ll_graph *g = w->g;
    ll_val dout[LL_MAX_OUT], din[LL_MAX_IN] = {{0}};
    bool any = false, some = false, wanted[LL_MAX_IN];
    for (int o = 0; o < n->n_out; o++) {
        dout[o] = w->d[n->out[o].id];
        any |= dout[o].id != 0;
    }
    for (int i = 0; i < n->n_in; i++) some |= wanted[i] = w->depends[n->in[i].id];
    if (!any || !some || n->op->no_grad) return;
    if (n->op->straight) {
        add_to(w, n->in[0], dout[0]);
        return;
    }
    const char *dot = strrchr(n->name, '.');
    snprintf(g->scope, sizeof g->scope, "d.%.*s", dot ? (int)(dot - n->name) + 1 : 0, n->name);
    g->of = n->of;
    g->of.phase = LL_BACKWARD;
    if (!n->op->grad && n->op->expand) {
        back_expanded(w, n, dout);
        return;
    }
    if (!n->op->grad) {
        ll_reject(g, LL_E_GRAPH, "%s has no gradient", n->name);
        return;
    }
    ll_bwd b = {g, n->op, n->attr, n->n_in, n->in, n->out, dout, din, wanted};
    n->op->grad(&b);
    for (int i = 0; i < n->n_in && g->err == LL_OK; i++)
        if (din[i].id && wanted[i]) add_to(w, n->in[i], din[i]);
}

static void back(walk *w, int from, int to)
{
    for (int i = to - 1; i >= from && w->g->err == LL_OK; i--) {
        ll_node n = w->g->nodes[i]; /* a copy: appending may move the array */
        back_node(w, &n);
    }
}

bool ll_depends(ll_graph *g, ll_val y, const ll_val *x, int n)
{
    walk w = {.g = g};
    reserve(&w);
    for (int i = 0; i < n; i++) w.depends[x[i].id] = true;
    mark(&w, 0, g->n_node);
    return w.depends[y.id];
}

void ll_grad(ll_graph *g, ll_val y, const ll_val *x, int n, ll_val *dx)
{
    if (dx && n > 0) memset(dx, 0, sizeof *dx * (size_t)n);
    if (n > 0 &&
        (!ll_has_argument(g, "gradient", "x", x) || !ll_has_argument(g, "gradient", "dx", dx)))
        return;
    if (ll_rejected(g)) return;
    if (!ll_has_value(g, y)) {
        ll_graph_reject(g, "%sgradient of a value that is %s", g->scope, ll_no_value(y));
        return;
    }
    char scope[sizeof g->scope];
    memcpy(scope, g->scope, sizeof scope);
    ll_origin of = g->of;
    walk w = {.g = g};
    reserve(&w);
    for (int i = 0; i < n; i++) {
        if (!ll_has_value(g, x[i])) {
            ll_reject(g, LL_E_ARG, "gradient by value %d of %d, which is %s", i, n,
                      ll_no_value(x[i]));
            return;
        }
        w.depends[x[i].id] = true;
    }
    ll_type t = ll_value_of(g, y)->type;
    int end = g->n_node;
    mark(&w, 0, end);
    const ll_node *last = ll_maker(g, y);
    if (last) g->of = last->of;
    g->of.phase = LL_BACKWARD;
    ll_val one = ll_fill(g, t.dtype, t.shape, 1);
    reserve(&w);
    w.d[y.id] = one;
    back(&w, 0, end);
    memcpy(g->scope, scope, sizeof scope);
    g->of = of;
    for (int i = 0; i < n; i++) {
        t = ll_value_of(g, x[i])->type;
        dx[i] = w.d[x[i].id].id ? w.d[x[i].id] : ll_fill(g, t.dtype, t.shape, 0);
    }
}
