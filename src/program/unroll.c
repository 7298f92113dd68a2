/* unroll.c: a stage's graph, of one micro-batch, becomes that of a whole step: the nodes of each
 * action of the pipeline's schedule, one action after another, each micro-batch with nodes of its
 * own. So activations that wait for their backward pass are values like any other: order and memory
 * are planned as ever, and are as exact.
 *
 *   F   nodes of the forward pass
 *   I   of the backward pass, what is received, and what something that is sent depends on
 *   W   the others of the backward pass
 *
 * What no micro-batch changes is made once, where it is first wanted; what is gathered for its use
 * (ZeRO 3), for each action anew. Receives are posted an action ahead; what an action has sent is
 * awaited when the schedule's slack is over. */
#include "program/unroll.h"

#include "kern/attr.h"
#include "op/ops.h"

#include <stdio.h>

typedef struct unroller {
    const ll_graph *g;
    const ll_pipe *how;
    ll_arena *arena;
    ll_graph *to;
    ll_unrolled *out;
    int n_micro;
    bool *each;     /* [n_node] runs in the micro-batches */
    bool *input;    /* [n_node] of the backward pass: something that is sent depends on it */
    bool *gathered; /* [n_node] of the micro-batches, what does not vary: a collective is on the way
                     * to it */
    const bool *varies;
    ll_val *once; /* [n_value] what no micro-batch changes; inputs */
    int *made_in; /* [n_value] of what is gathered: the action it was made in, + 1 */
    ll_val **of;  /* [n_micro][n_value] */
    int *begin;   /* [n_action + 1] the first node of each action */
    int action;
    bool *wanted; /* [n_node] of what is gathered: by this action */
} unroller;

static const ll_message_attr *message(const ll_node *n)
{
    bool is = n->op->collective == LL_SEND || n->op->collective == LL_RECV;
    return is ? (const ll_message_attr *)n->attr : NULL;
}

static bool is_mean(const ll_node *n)
{
    return n->op == &ll_op_accum;
}

/* ---- what belongs where ---- */

/* The micro-batches' nodes: all that means and messages between stages need. */
static void find_each(unroller *u)
{
    const ll_graph *g = u->g;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        const ll_message_attr *a = message(n);
        u->each[i] |= is_mean(n) || (a && a->when <= LL_BEFORE);
        for (int k = 0; k < n->n_in && u->each[i]; k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m >= 0) u->each[m] = true;
        }
    }
}

static void find_inputs(unroller *u)
{
    const ll_graph *g = u->g;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        const ll_message_attr *a = message(n);
        u->input[i] |= a && a->when == LL_EACH_MICRO; /* as the schedule has it */
        for (int k = 0; k < n->n_in; k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m < 0 || !u->each[i] || is_mean(n)) continue;
            const ll_origin *x = &g->nodes[m].of;
            if (u->input[i] || x->stage != n->of.stage || x->phase != n->of.phase)
                u->input[m] = true;
        }
    }
}

static void find_gathered(unroller *u)
{
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        u->gathered[i] = u->each[i] && n->op->collective && !message(n);
        for (int k = 0; k < n->n_in && u->each[i]; k++) {
            int m = ll_value_of(u->g, n->in[k])->node;
            if (m >= 0) u->gathered[i] |= u->gathered[m] && !u->varies[n->in[k].id];
        }
    }
}

static bool node_varies(const unroller *u, const ll_node *n)
{
    if (is_mean(n)) return u->varies[n->in[0].id];
    if (n->op->collective == LL_SEND) return message(n)->when == LL_EACH_MICRO;
    return u->varies[n->out[0].id];
}

/* Of which action of a stage a node is. */
static bool belongs(const unroller *u, int i, const ll_action *a)
{
    const ll_node *n = &u->g->nodes[i];
    if (!u->each[i] || n->of.stage != a->stage + 1) return false;
    if ((n->of.phase == LL_FORWARD) != (a->kind == LL_ACT_F)) return false;
    return a->kind == LL_ACT_F || a->kind == LL_ACT_B || u->input[i] == (a->kind == LL_ACT_I);
}

/* ---- nodes ---- */

static ll_err emit(unroller *u, const ll_node *n, const ll_op *op, const ll_val *in, int n_in,
                   int micro, ll_val *out)
{
    ll_graph *to = u->to;
    const char *dot = strrchr(n->name, '.');
    snprintf(to->scope, sizeof to->scope, "%.*s", dot ? (int)(dot - n->name) + 1 : 0, n->name);
    to->of = n->of;
    const void *attr = n->attr;
    ll_message_attr a;
    if (message(n)) { /* each micro-batch's is another one */
        a = *message(n);
        a.serial = a.serial * u->n_micro + micro;
        attr = &a;
    }
    TRY(ll_emit_all(to, op, attr, in, n_in, out));
    to->nodes[to->n_node - 1].micro = micro;
    to->nodes[to->n_node - 1].action = u->action < u->how->n_action ? u->action + 1 : 0;
    for (int o = 0; o < n->n_out; o++)
        ll_value_stands_for(to, out[o], ll_value_of(u->g, n->out[o]));
    return LL_OK;
}

static ll_err place(unroller *u, int i, int micro);

/* v as a node of this micro-batch reads it. */
static ll_err operand(unroller *u, ll_val v, int micro, ll_val *out)
{
    int m = ll_value_of(u->g, v)->node;
    if (m >= 0 && !u->varies[v.id] && !is_mean(&u->g->nodes[m])) {
        bool again = u->gathered[m] && u->made_in[v.id] != u->action + 1;
        if (!u->once[v.id].id || again) TRY(place(u, m, 0));
    }
    *out = u->once[v.id].id ? u->once[v.id] : u->of[micro][v.id];
    CHECK(out->id, LL_E_GRAPH, "pipeline: %s is read before it is made",
          m < 0 ? ll_value_of(u->g, v)->name : u->g->nodes[m].name);
    return LL_OK;
}

/* The running mean. */
static ll_err place_mean(unroller *u, const ll_node *n, int micro)
{
    ll_val in[2], *sum = &u->once[n->out[0].id];
    TRY(operand(u, n->in[0], micro, &in[0]));
    in[1] = *sum;
    bool first = !in[1].id;
    CHECK(first == (micro == 0), LL_E_GRAPH,
          "pipeline: %s is summed out of order: micro-batch %d comes %s", n->name, micro,
          first ? "first" : "later");
    return emit(u, n, first ? &ll_op_accum : &ll_op_accum_on, in, first ? 1 : 2, micro, sum);
}

static ll_err place(unroller *u, int i, int micro)
{
    const ll_node *n = &u->g->nodes[i];
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT];
    if (is_mean(n) && node_varies(u, n)) return place_mean(u, n, micro);
    if (is_mean(n))
        return operand(u, n->in[0], 0, &u->once[n->out[0].id]); /* of what is constant */
    for (int k = 0; k < n->n_in; k++) TRY(operand(u, n->in[k], micro, &in[k]));
    TRY(emit(u, n, n->op, in, n->n_in, micro, out));
    bool varies = node_varies(u, n) && u->each[i];
    for (int o = 0; o < n->n_out; o++) {
        *(varies ? &u->of[micro][n->out[o].id] : &u->once[n->out[o].id]) = out[o];
        u->made_in[n->out[o].id] = u->action + 1;
    }
    return LL_OK;
}

/* ---- actions ---- */

static ll_err place_receives(unroller *u, int action)
{
    if (action >= u->how->n_action) return LL_OK;
    const ll_action *a = &u->how->actions[action];
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        if (n->op->collective == LL_RECV && node_varies(u, n) && belongs(u, i, a))
            TRY(place(u, i, a->micro));
    }
    return LL_OK;
}

/* Sums of means over ranks start as soon as there is nothing more to add. */
static ll_err place_sums(unroller *u, const ll_node *mean, const ll_action *a)
{
    if (a->micro < u->n_micro - 1) return LL_OK;
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        if (!n->op->collective || message(n) || n->in[0].id != mean->out[0].id) continue;
        TRY(place(u, i, 0));
        u->each[i] = true;
        u->out->last[u->to->n_node - 1] = true;
    }
    return LL_OK;
}

static bool is_of(const unroller *u, int i, const ll_action *a)
{
    const ll_node *n = &u->g->nodes[i];
    return n->op->collective != LL_RECV && node_varies(u, n) && belongs(u, i, a);
}

/* What is gathered for an action, in the graph's order: every rank starts its collectives in one,
 * whichever of its nodes comes first to want them. */
static void find_wanted(unroller *u, const ll_action *a)
{
    const ll_graph *g = u->g;
    memset(u->wanted, 0, sizeof *u->wanted * (size_t)g->n_node);
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in && (u->wanted[i] || is_of(u, i, a)); k++) {
            int m = ll_value_of(g, n->in[k])->node;
            if (m >= 0 && u->gathered[m] && !node_varies(u, &g->nodes[m])) u->wanted[m] = true;
        }
    }
}

static ll_err place_action(unroller *u, int action)
{
    const ll_action *a = &u->how->actions[action];
    u->action = action;
    u->begin[action] = u->to->n_node;
    if (action == 0) TRY(place_receives(u, 0));
    TRY(place_receives(u, action + 1));
    find_wanted(u, a);
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        if (u->wanted[i] && u->made_in[n->out[0].id] != action + 1) TRY(place(u, i, 0));
        if (!is_of(u, i, a)) continue;
        TRY(place(u, i, a->micro));
        if (n->op->collective == LL_SEND)
            u->out->until[u->to->n_node - 1] = action + u->how->slack + 1;
        if (is_mean(n)) TRY(place_sums(u, n, a));
    }
    return LL_OK;
}

/* What is sent before the micro-batches: parameters that several stages read. */
static ll_err place_before(unroller *u)
{
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_message_attr *a = message(&u->g->nodes[i]);
        if (a && a->when == LL_BEFORE) TRY(place(u, i, 0));
    }
    return LL_OK;
}

/* What runs once, after them. */
static ll_err place_rest(unroller *u)
{
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        bool constant_mean = is_mean(n) && !node_varies(u, n);
        if (u->each[i] && !constant_mean) continue;
        if (!u->once[n->out[0].id].id) TRY(place(u, i, 0));
    }
    return LL_OK;
}

static void copy_inputs(unroller *u)
{
    const ll_graph *g = u->g;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0) continue;
        u->once[i] = ll_input(u->to, v->name, v->kind, v->type, v->init);
        if (v->piece)
            ll_value_of(u->to, u->once[i])->piece =
                (const ll_piece *)ll_arena_copy(u->to->arena, v->piece, sizeof *v->piece);
    }
}

static ll_err finish(unroller *u)
{
    const ll_graph *g = u->g;
    ll_val v;
    u->to->scope[0] = '\0';
    for (int i = 0; i < g->n_result; i++) {
        TRY(operand(u, g->results[i].value, 0, &v));
        ll_graph_result(u->to, g->results[i].name, v);
    }
    for (int i = 0; i < g->n_update; i++) {
        TRY(operand(u, g->updates[i].next, 0, &v));
        ll_graph_update(u->to, u->once[g->updates[i].input.id], v);
    }
    TRY(ll_graph_check(u->to));
    return ll_verify(u->to);
}

static ll_err unroll(unroller *u)
{
    int n = (u->g->n_node + 1) * (u->n_micro + u->how->n_action + 1);
    find_each(u);
    find_inputs(u);
    find_gathered(u);
    u->out->until = LL_NEW_ARRAY(u->arena, int, n);
    u->out->last = LL_NEW_ARRAY(u->arena, bool, n);
    copy_inputs(u);
    u->action = -1;
    TRY(place_before(u));
    for (int i = 0; i < u->how->n_action; i++) TRY(place_action(u, i));
    u->begin[u->how->n_action] = u->to->n_node;
    u->out->n_each = u->to->n_node;
    u->action = u->how->n_action;
    TRY(place_rest(u));
    for (int i = 0; i < u->to->n_node; i++) { /* actions to nodes */
        int *until = &u->out->until[i];
        if (*until) *until = *until > u->how->n_action ? u->out->n_each : u->begin[*until];
    }
    return finish(u);
}

ll_err ll_unroll(const ll_graph *g, const ll_pipe *how, int n_micro, ll_arena *arena,
                 ll_unrolled *out)
{
    int n = g->n_node + 1;
    unroller u = {.g = g, .how = how, .arena = arena, .out = out, .n_micro = n_micro};
    *out = (ll_unrolled){0};
    u.to = ll_graph_new(g->name);
    u.to->of.at = -1;
    u.each = LL_NEW_ARRAY(arena, bool, n);
    u.input = LL_NEW_ARRAY(arena, bool, n);
    u.gathered = LL_NEW_ARRAY(arena, bool, n);
    u.varies = ll_varying(g, arena);
    u.wanted = LL_NEW_ARRAY(arena, bool, n);
    u.once = LL_NEW_ARRAY(arena, ll_val, g->n_value);
    u.made_in = LL_NEW_ARRAY(arena, int, g->n_value);
    u.begin = LL_NEW_ARRAY(arena, int, how->n_action + 1);
    u.of = LL_NEW_ARRAY(arena, ll_val *, n_micro);
    for (int m = 0; m < n_micro; m++) u.of[m] = LL_NEW_ARRAY(arena, ll_val, g->n_value);
    ll_err rc = unroll(&u);
    out->g = rc == LL_OK ? u.to : NULL;
    if (rc != LL_OK) ll_graph_free(u.to);
    return rc;
}
