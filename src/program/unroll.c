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
 * awaited when the schedule's slack is over.
 *
 * Where steps overlap, two batches are under way, the step's own and the one before. What the
 * latter reads and this step does not make, the step before made: it is an input (LL_CARRY), and
 * what this step leaves of its own batch is the input's next value. Sums over micro-batches are
 * carried too; what runs once is of the batch before: results, and the update, which micro-batches
 * of this step read nothing of but what ll_delay has made ready. The first step carries nothing in,
 * what is left over behind the last one nothing out. Messages are within a step: what is made for
 * another rank's next step is carried, and sent as this rank's begins. */
#include "program/memory.h"

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
    int batch;       /* 0: the step's, 1: the one before */
    ll_val *once[2]; /* of a batch, [n_value] what no micro-batch changes; inputs */
    int *made_in;    /* [n_value] of what is gathered: the action it was made in, + 1 */
    ll_val **of[2];  /* of a batch, [n_micro][n_value] */
    ll_val **carry;  /* [n_micro + 1][n_value] what was left of the batch before; the last: once */
    bool *reported;  /* [n_node] of what runs once: results and messages need it */
    int *begin;      /* [n_action + 1] the first node of each action */
    int action;
    bool settled; /* what the batch before reports is placed */
    bool *wanted; /* [n_node] of what is gathered: by this action */
} unroller;

static const ll_message_attr *message(const ll_node *n)
{
    bool is = n->op->collective == LL_SEND || n->op->collective == LL_RECV;
    return is ? (const ll_message_attr *)n->attr : NULL;
}

/* ---- what belongs where ---- */

/* The micro-batches' nodes: all that means and messages between stages need. */
static void find_each(unroller *u)
{
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_message_attr *a = message(&u->g->nodes[i]);
        u->each[i] = ll_is_mean(&u->g->nodes[i]) || (a && a->when <= LL_BEFORE);
    }
    ll_mark_makers(u->g, u->each);
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
            if (m < 0 || !u->each[i] || ll_is_mean(n)) continue;
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
    if (ll_is_mean(n)) return u->varies[n->in[0].id];
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
    ll_graph_at(to, n);
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
    to->nodes[to->n_node - 1].before = u->batch;
    for (int o = 0; o < n->n_out; o++)
        ll_value_stands_for(to, out[o], ll_value_of(u->g, n->out[o]));
    return LL_OK;
}

static ll_err place(unroller *u, int i, int micro);

/* What the step before left of v; micro -1: of what runs once. */
static ll_val carried(unroller *u, ll_val v, int micro)
{
    const ll_value *x = ll_value_of(u->g, v);
    ll_val *at = &u->carry[micro < 0 ? u->n_micro : micro][v.id];
    char name[64];
    snprintf(name, sizeof name, "carry.%d.%d", v.id, micro);
    if (!at->id) *at = ll_input(u->to, name, LL_CARRY, x->type, (ll_init){0});
    return *at;
}

/* Of the batch before, and not made in this step. */
static ll_err find_left(unroller *u, ll_val v, int micro, ll_val *out)
{
    const ll_value *x = ll_value_of(u->g, v);
    const ll_node *n = x->node < 0 ? NULL : &u->g->nodes[x->node];
    if (n && n->op->alias) {
        TRY(place(u, x->node, micro));
        *out = u->of[1][micro][v.id].id ? u->of[1][micro][v.id] : u->once[1][v.id];
        return LL_OK;
    }
    *out = carried(u, v, u->varies[v.id] && !(n && ll_is_mean(n)) ? micro : -1);
    return LL_OK;
}

/* Does it come from another rank before the micro-batches? */
static bool comes_before(const ll_node *n)
{
    return n->op->collective == LL_RECV && message(n)->when == LL_BEFORE;
}

/* v as a node of this micro-batch reads it. */
static ll_err operand(unroller *u, ll_val v, int micro, ll_val *out)
{
    int m = ll_value_of(u->g, v)->node;
    ll_val *once = &u->once[u->batch][v.id];
    const ll_node *n = m < 0 ? NULL : &u->g->nodes[m];
    if (n && !u->varies[v.id] && !ll_is_mean(n) && !(u->batch && comes_before(n))) {
        bool again = u->gathered[m] && u->made_in[v.id] != u->action + 1;
        if (!once->id || again) TRY(place(u, m, 0));
    }
    *out = once->id ? *once : u->of[u->batch][micro][v.id];
    if (!out->id && u->batch) TRY(find_left(u, v, micro, out));
    CHECK(out->id, LL_E_GRAPH, "pipeline: %s is read before it is made",
          m < 0 ? ll_value_of(u->g, v)->name : u->g->nodes[m].name);
    return LL_OK;
}

/* The running mean. */
static ll_err place_mean(unroller *u, const ll_node *n, int micro)
{
    ll_val in[2], *sum = &u->once[u->batch][n->out[0].id];
    TRY(operand(u, n->in[0], micro, &in[0]));
    if (!sum->id && u->batch && micro) *sum = carried(u, n->out[0], -1);
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
    ll_val in[LL_MAX_IN], out[LL_MAX_OUT], *once = u->once[u->batch];
    if (ll_is_mean(n) && node_varies(u, n)) return place_mean(u, n, micro);
    if (ll_is_mean(n))
        return operand(u, n->in[0], 0, &once[n->out[0].id]); /* of what is constant */
    for (int k = 0; k < n->n_in; k++) TRY(operand(u, n->in[k], micro, &in[k]));
    TRY(emit(u, n, n->op, in, n->n_in, micro, out));
    bool varies = node_varies(u, n) && u->each[i];
    for (int o = 0; o < n->n_out; o++) {
        *(varies ? &u->of[u->batch][micro][n->out[o].id] : &once[n->out[o].id]) = out[o];
        u->made_in[n->out[o].id] = u->action + 1;
    }
    return LL_OK;
}

/* ---- actions ---- */

static ll_err place_receives(unroller *u, int action)
{
    if (action >= u->how->n_action) return LL_OK;
    const ll_action *a = &u->how->actions[action];
    u->batch = a->before;
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        if (n->op->collective == LL_RECV && node_varies(u, n) && belongs(u, i, a))
            TRY(place(u, i, a->micro));
    }
    return LL_OK;
}

/* Sums of means over ranks start as soon as there is nothing more to add; those of a batch that the
 * next step goes on with, then. */
static ll_err place_sums(unroller *u, const ll_node *mean, const ll_action *a)
{
    if (a->micro < u->n_micro - 1 || (u->how->span != LL_WHOLE_STEP && !u->batch)) return LL_OK;
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

/* Whether what a node sends of a micro-batch of this step is for the receiver's next one. */
static bool goes_later(const unroller *u, const ll_node *n, int micro)
{
    const ll_message_attr *m = n->op->collective == LL_SEND ? message(n) : NULL;
    const ll_pipeline *all = u->how->all;
    if (!all || !m || m->when != LL_EACH_MICRO) return false;
    for (int k = 0; k < all->n_action[m->peer]; k++) {
        ll_action a = all->actions[m->peer][k];
        if (a.micro == micro && a.kind != LL_ACT_W &&
            (a.kind == LL_ACT_F) == (n->of.phase == LL_FORWARD))
            return a.before;
    }
    return false;
}

/* Does an action of this step finish what the batch before has of a node? */
static bool is_before(const unroller *u, int i, int micro)
{
    LL_EACH (const ll_action, a, u->how->actions, u->how->n_action)
        if (a->before && a->micro == micro && belongs(u, i, a)) return true;
    return false;
}

/* What the step before left to be sent and summed. */
static ll_err place_left(unroller *u)
{
    u->batch = 1;
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        for (int micro = 0; micro < u->n_micro; micro++) {
            if (!u->each[i] || !goes_later(u, n, micro) || is_before(u, i, micro)) continue;
            TRY(place(u, i, micro));
            u->out->until[u->to->n_node - 1] = u->how->slack + 1;
        }
    }
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        if (ll_is_mean(n) && node_varies(u, n) && !is_before(u, i, u->n_micro - 1))
            TRY(place_sums(u, n, &(ll_action){.micro = u->n_micro - 1}));
    }
    return LL_OK;
}

/* Once, and not for the update alone: what ranks send each other of it, and results. */
static void find_reported(unroller *u)
{
    ll_mark_results(u->g, u->reported);
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_message_attr *a = message(&u->g->nodes[i]);
        u->reported[i] |= a && a->when > LL_BEFORE;
    }
    ll_mark_makers(u->g, u->reported);
}

static ll_err place_action(unroller *u, int action)
{
    const ll_action *a = &u->how->actions[action];
    u->action = action;
    u->batch = a->before;
    u->begin[action] = u->to->n_node;
    if (action == 0) TRY(place_receives(u, 0));
    TRY(place_receives(u, action + 1));
    u->batch = a->before;
    find_wanted(u, a);
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        if (u->wanted[i] && u->made_in[n->out[0].id] != action + 1) TRY(place(u, i, 0));
        if (!is_of(u, i, a) || (!a->before && goes_later(u, n, a->micro))) continue;
        TRY(place(u, i, a->micro));
        if (n->op->collective == LL_SEND)
            u->out->until[u->to->n_node - 1] = action + u->how->slack + 1;
        if (ll_is_mean(n)) TRY(place_sums(u, n, a));
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

/* What runs once, after them; of those (NULL: all). */
static ll_err place_rest(unroller *u, const bool *which)
{
    u->batch = u->how->span != LL_WHOLE_STEP;
    for (int i = 0; i < u->g->n_node; i++) {
        const ll_node *n = &u->g->nodes[i];
        bool constant_mean = ll_is_mean(n) && !node_varies(u, n);
        if ((u->each[i] && !constant_mean) || (which && !which[i])) continue;
        if (u->once[u->batch][n->out[0].id].id) continue;
        TRY(place(u, i, 0));
        if (which && n->op->collective == LL_SEND)
            u->out->until[u->to->n_node - 1] = u->how->n_action + 1;
    }
    return LL_OK;
}

/* Where steps overlap, results of the batch before are sent for when every rank has them: there is
 * time until the step's end. */
static ll_err place_report(unroller *u, int action)
{
    bool then = action == u->how->settled || (action == u->how->n_action && !u->settled);
    if (u->how->span < LL_ANY_STEP || u->settled || !then) return LL_OK;
    u->settled = true;
    find_reported(u);
    return place_rest(u, u->reported);
}

static void copy_inputs(unroller *u)
{
    const ll_graph *g = u->g;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0) continue;
        ll_val in = ll_input_like(u->to, v);
        u->once[0][i] = in;
        if (v->kind != LL_BATCH && v->kind != LL_STEP) u->once[1][i] = in; /* else: as it was */
    }
}

static bool is_read(const unroller *u, ll_val v)
{
    for (int i = 0; i < u->g->n_node; i++)
        for (int k = 0; k < u->g->nodes[i].n_in && u->each[i]; k++)
            if (u->g->nodes[i].in[k].id == v.id) return true;
    return false;
}

/* What the step's own batch reads of parameters is what the update of the batch before last, which
 * is there, has made: their next value but for the update of the batch before. */
static ll_err find_versions(unroller *u)
{
    const ll_graph *g = u->g;
    u->batch = 1;
    for (int i = 0; i < g->n_update && u->how->span == LL_ANY_STEP; i++) {
        ll_pair p = g->updates[i];
        if (!is_read(u, p.input)) continue;
        int n = u->to->n_value;
        TRY(operand(u, p.next, 0, &u->once[0][p.input.id]));
        for (; n < u->to->n_value; n++)
            CHECK(u->to->values[n].kind != LL_CARRY, LL_E_GRAPH,
                  "pipeline: %s is read by micro-batches of the step after, and comes of them",
                  ll_value_of(g, p.input)->name);
    }
    return LL_OK;
}

/* What a step leaves of its batch is what the next one finds. */
static ll_err leave(unroller *u, ll_val v, int micro)
{
    const ll_value *x = ll_value_of(u->g, v);
    ll_val to = u->carry[micro < 0 ? u->n_micro : micro][v.id];
    ll_val from = u->once[0][v.id].id || micro < 0 ? u->once[0][v.id] : u->of[0][micro][v.id];
    CHECK(from.id, LL_E_GRAPH, "pipeline: %s is read before it is made",
          x->node < 0 ? x->name : u->g->nodes[x->node].name);
    if (x->node < 0 && x->kind == LL_BATCH) { /* of that micro-batch */
        ll_cast_attr same = {x->type.dtype};
        TRY(ll_emit_all(u->to, ll_ew_op(LL_EW_cast), &same, &from, 1, &from));
        u->to->nodes[u->to->n_node - 1].micro = micro;
    }
    ll_graph_update(u->to, to, from);
    return LL_OK;
}

static ll_err leave_all(unroller *u)
{
    for (int m = -1; m < u->n_micro; m++)
        for (int v = 1; v < u->g->n_value; v++)
            if (u->carry[m < 0 ? u->n_micro : m][v].id) TRY(leave(u, (ll_val){v}, m));
    return LL_OK;
}

static ll_err finish(unroller *u)
{
    const ll_graph *g = u->g;
    ll_val v;
    u->to->scope[0] = '\0';
    u->batch = u->how->span != LL_WHOLE_STEP;
    for (int i = 0; i < g->n_result && u->how->span != LL_FIRST_STEP; i++) {
        TRY(operand(u, g->results[i].value, 0, &v));
        ll_graph_result(u->to, g->results[i].name, v);
    }
    for (int i = 0; i < g->n_update && u->how->span != LL_FIRST_STEP; i++) {
        TRY(operand(u, g->updates[i].next, 0, &v));
        ll_graph_update(u->to, u->once[1][g->updates[i].input.id], v);
    }
    if (u->how->span == LL_FIRST_STEP || u->how->span == LL_ANY_STEP) TRY(leave_all(u));
    return ll_verify(u->to);
}

static ll_err unroll(unroller *u)
{
    int n = (u->g->n_node + 1) * (2 * u->n_micro + u->how->n_action + 2);
    find_each(u);
    find_inputs(u);
    find_gathered(u);
    LL_ARRAYS(u->arena, n, u->out->until, u->out->last);
    copy_inputs(u);
    u->action = -1;
    TRY(find_versions(u));
    if (u->how->span >= LL_ANY_STEP) TRY(place_left(u));
    u->batch = 0;
    if (u->how->span != LL_LEFT_OVER) TRY(place_before(u));
    for (int i = 0; i < u->how->n_action; i++) {
        TRY(place_report(u, i));
        TRY(place_action(u, i));
    }
    TRY(place_report(u, u->how->n_action));
    u->begin[u->how->n_action] = u->to->n_node;
    u->out->n_each = u->to->n_node;
    u->action = u->how->n_action;
    if (u->how->span != LL_FIRST_STEP) TRY(place_rest(u, NULL));
    for (int i = 0; i < u->to->n_node; i++) { /* actions to nodes */
        int *until = &u->out->until[i];
        if (*until) *until = *until > u->how->n_action ? u->out->n_each : u->begin[*until];
    }
    return LL_OK;
}

static unroller begin(const ll_graph *g, const ll_pipe *how, int n_micro, ll_arena *arena,
                      ll_unrolled *out)
{
    unroller u = {.g = g, .how = how, .arena = arena, .out = out, .n_micro = n_micro};
    u.to = ll_graph_new(g->name);
    u.to->of.at = -1;
    LL_ARRAYS(arena, g->n_node + 1, u.each, u.input, u.gathered, u.reported, u.wanted);
    u.varies = ll_varying(g, arena);
    u.made_in = LL_NEW_ARRAY(arena, int, g->n_value);
    u.begin = LL_NEW_ARRAY(arena, int, how->n_action + 1);
    u.carry = LL_NEW_ARRAY(arena, ll_val *, n_micro + 1);
    for (int b = 0; b < 2; b++) {
        u.once[b] = LL_NEW_ARRAY(arena, ll_val, g->n_value);
        u.of[b] = LL_NEW_ARRAY(arena, ll_val *, n_micro);
        for (int m = 0; m < n_micro; m++) u.of[b][m] = LL_NEW_ARRAY(arena, ll_val, g->n_value);
    }
    for (int m = 0; m <= n_micro; m++) u.carry[m] = LL_NEW_ARRAY(arena, ll_val, g->n_value);
    return u;
}

/* What the first step leaves is what steps behind it find. */
static ll_err find_carries(unroller *u, const ll_pipe *left)
{
    ll_unrolled none = {0};
    unroller x = begin(u->g, left, u->n_micro, u->arena, &none);
    ll_err rc = unroll(&x);
    if (rc == LL_OK) rc = finish(&x);
    ll_graph_free(x.to);
    for (int m = 0; m <= u->n_micro; m++)
        for (int v = 1; v < u->g->n_value; v++)
            if (x.carry[m][v].id) carried(u, (ll_val){v}, m == u->n_micro ? -1 : m);
    return rc;
}

ll_err ll_unroll(const ll_graph *g, const ll_pipe *how, int n_micro, ll_arena *arena,
                 ll_unrolled *out)
{
    *out = (ll_unrolled){0};
    unroller u = begin(g, how, n_micro, arena, out);
    ll_err rc = how->left ? find_carries(&u, how->left) : LL_OK;
    if (rc == LL_OK) rc = unroll(&u);
    if (rc == LL_OK) rc = finish(&u);
    out->g = rc == LL_OK ? u.to : NULL;
    if (rc != LL_OK) ll_graph_free(u.to);
    return rc;
}
