/* batchnorm.c: batch norms take in what surrounds them, where each pass over an image costs (GPUs):
 *
 *     relu(batchnorm(x))          select(y, dy, 0), then batchnorm_grad
 *     relu(batchnorm(x) + r)      the same, with dy = a + b where y has two readers
 *
 * become single nodes (op/batchnorm_relu.c). A forward node stands where its batch norm stood,
 * whose statistics others may read before the relu: so r must be made before it. Where both
 * operands of the sum are batch norms, the later one takes the other in. A backward node stands
 * where its select stood, which is what the residual's gradient is read from. */
#include "kern/attr.h"
#include "pass/pass.h"

enum { NONE = -1 };

typedef struct joining {
    const ll_graph *g;
    ll_rewrite rw;
    const int *uses;
    bool *gone;   /* node -> another has taken it in */
    int *relu_of; /* batch norm -> the relu that it takes in */
    int *norm_of; /* that relu -> its batch norm */
    int *grad_of; /* select -> the batch norm's gradient that it takes in */
} joining;

static bool is(const ll_graph *g, int node, const char *op)
{
    return node >= 0 && !strcmp(g->nodes[node].op->name, op);
}

static int maker(const ll_graph *g, ll_val v)
{
    return ll_value_of(g, v)->node;
}

static bool same_type(const ll_graph *g, ll_val a, ll_val b)
{
    const ll_type *s = &ll_value_of(g, a)->type, *t = &ll_value_of(g, b)->type;
    return s->dtype == t->dtype && ll_shape_equal(&s->shape, &t->shape);
}

/* The batch norm whose result v is, read by nobody but one; or NONE. */
static int norm_behind(const joining *j, ll_val v)
{
    int n = maker(j->g, v);
    bool fits = is(j->g, n, "batchnorm") && ll_value_of(j->g, v)->out == 0 && j->uses[v.id] == 1;
    return fits && same_type(j->g, v, j->g->nodes[n].in[0]) && j->relu_of[n] == NONE ? n : NONE;
}

/* What a batch norm's relu adds to it, or none. */
static ll_val residual(const joining *j, int norm)
{
    const ll_graph *g = j->g;
    const ll_node *relu = &g->nodes[j->relu_of[norm]];
    int sum = maker(g, relu->in[0]);
    if (sum == norm) return (ll_val){0};
    const ll_node *add = &g->nodes[sum];
    return add->in[maker(g, add->in[0]) == norm ? 1 : 0];
}

static void find_forward(joining *j, int relu)
{
    const ll_graph *g = j->g;
    ll_val v = g->nodes[relu].in[0];
    int sum = maker(g, v), norm = norm_behind(j, v);
    if (j->uses[v.id] != 1 || !same_type(g, v, g->nodes[relu].out[0])) return;
    for (int k = 0; k < 2 && norm == NONE && is(g, sum, "add"); k++) {
        ll_val other = g->nodes[sum].in[1 - k];
        int n = norm_behind(j, g->nodes[sum].in[k]);
        if (n == NONE || maker(g, other) >= n || !same_type(g, other, v)) continue;
        norm = n;
        j->gone[sum] = true;
    }
    if (norm == NONE) return;
    j->relu_of[norm] = relu;
    j->norm_of[relu] = norm;
    j->gone[relu] = true;
}

/* The gradient of a batch norm with this operand as what comes from above. */
static int grad_after(const ll_graph *g, int norm, ll_val dy)
{
    const ll_node *b = &g->nodes[norm];
    for (int i = maker(g, dy) + 1; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        if (is(g, i, "batchnorm_grad") && n->in[0].id == dy.id && n->in[1].id == b->in[0].id &&
            n->in[3].id == b->out[1].id && n->in[4].id == b->out[2].id)
            return i;
    }
    return NONE;
}

/* The node that sums two gradients for nobody but v's reader, or NONE. */
static int sum_behind(const joining *j, ll_val v)
{
    int n = maker(j->g, v);
    if (!is(j->g, n, "add") || j->uses[v.id] != 1) return NONE;
    const ll_node *add = &j->g->nodes[n];
    return same_type(j->g, add->in[0], v) && same_type(j->g, add->in[1], v) ? n : NONE;
}

static void find_backward(joining *j, int select)
{
    const ll_graph *g = j->g;
    const ll_node *s = &g->nodes[select];
    double zero;
    int relu = maker(g, s->in[0]), norm = relu < 0 ? NONE : j->norm_of[relu];
    if (norm == NONE || !ll_constant(g, s->in[2], &zero) || zero != 0) return;
    int grad = grad_after(g, norm, s->out[0]);
    bool add = residual(j, norm).id != 0;
    if (grad == NONE || (!add && j->uses[s->out[0].id] != 1)) return;
    if (!same_type(g, s->in[1], s->out[0]) || !same_type(g, s->in[0], s->out[0])) return;
    j->grad_of[select] = grad;
    j->gone[grad] = true;
    int sum = add ? sum_behind(j, s->in[1]) : NONE;
    if (sum != NONE) j->gone[sum] = true;
}

static ll_err emit(joining *j, const ll_node *at, const char *op, const void *attr,
                   const ll_val *old, int n_in, ll_val *out)
{
    ll_val in[LL_MAX_IN];
    ll_rewrite_at(&j->rw, at);
    for (int i = 0; i < n_in; i++) in[i] = j->rw.map[old[i].id];
    return ll_emit_all(j->rw.to, ll_op_find(op), attr, in, n_in, out);
}

static ll_err emit_forward(joining *j, int norm)
{
    const ll_node *b = &j->g->nodes[norm], *relu = &j->g->nodes[j->relu_of[norm]];
    ll_val r = residual(j, norm), out[LL_MAX_OUT];
    if (r.id)
        TRY(emit(j, b, "batchnorm_add_relu", b->attr, (ll_val[]){b->in[0], r, b->in[1], b->in[2]},
                 4, out));
    else
        TRY(emit(j, b, "batchnorm_relu", b->attr, b->in, 3, out));
    ll_rewrite_map(&j->rw, relu->out[0], out[0]);
    ll_rewrite_map(&j->rw, b->out[1], out[1]);
    ll_rewrite_map(&j->rw, b->out[2], out[2]);
    return LL_OK;
}

static ll_err emit_backward(joining *j, int select)
{
    const ll_graph *g = j->g;
    const ll_node *s = &g->nodes[select], *d = &g->nodes[j->grad_of[select]];
    int norm = j->norm_of[maker(g, s->in[0])], above = maker(g, s->in[1]);
    ll_val y = s->in[0], dy = s->in[1], x = d->in[1], gain = d->in[2], mean = d->in[3];
    ll_val var = d->in[4], bias = g->nodes[norm].in[2], out[LL_MAX_OUT];
    bool add = residual(j, norm).id != 0;
    if (!add)
        TRY(emit(j, d, "batchnorm_relu_grad", d->attr, (ll_val[]){dy, x, gain, bias, mean, var}, 6,
                 out));
    else if (above >= 0 && j->gone[above]) {
        const ll_val *sum = g->nodes[above].in;
        TRY(emit(j, d, "batchnorm_sum_relu_grad", d->attr,
                 (ll_val[]){sum[0], sum[1], y, x, gain, mean, var}, 7, out));
    } else
        TRY(emit(j, d, "batchnorm_add_relu_grad", d->attr, (ll_val[]){dy, y, x, gain, mean, var}, 6,
                 out));
    for (int o = 0; o < 3; o++) ll_rewrite_map(&j->rw, d->out[o], out[o]);
    if (add) ll_rewrite_map(&j->rw, s->out[0], out[3]);
    return LL_OK;
}

static int *no_nodes(const ll_graph *g, ll_arena *a)
{
    int *n = LL_NEW_ARRAY(a, int, g->n_node + 1);
    for (int i = 0; i < g->n_node; i++) n[i] = NONE;
    return n;
}

ll_err ll_join_batchnorms(const ll_graph *g, ll_graph **out)
{
    TRY(ll_graph_check(g));
    joining j = {.g = g};
    ll_rewrite_begin(&j.rw, g);
    ll_arena *a = j.rw.to->arena;
    j.uses = ll_uses(g, a);
    j.gone = LL_NEW_ARRAY(a, bool, g->n_node + 1);
    j.relu_of = no_nodes(g, a);
    j.norm_of = no_nodes(g, a);
    j.grad_of = no_nodes(g, a);
    for (int i = 0; i < g->n_node; i++)
        if (is(g, i, "relu")) find_forward(&j, i);
    for (int i = 0; i < g->n_node; i++)
        if (is(g, i, "select")) find_backward(&j, i);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) {
        if (j.gone[i]) continue;
        if (j.relu_of[i] != NONE)
            rc = emit_forward(&j, i);
        else if (j.grad_of[i] != NONE)
            rc = emit_backward(&j, i);
        else
            rc = ll_rewrite_copy(&j.rw, &g->nodes[i]);
    }
    return ll_rewrite_end(&j.rw, rc, out);
}
