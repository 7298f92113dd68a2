/* place.c: which axes cut which loops.
 *
 * Axes begin at inputs: `data` cuts the samples of batch data, `height` and `width` the image's
 * dimensions, `sequence` its positions; `tensor`, `channel`, `filter`, `cols` and `depth` a layer's
 * weights when the first product with them is met. From there on a node follows its operands: for
 * each axis, every loop that some operand is cut along is weighed by the bytes that would have to
 * move (operands brought to that cut, and the sum that a vanishing loop leaves owed), and so is not
 * cutting at all, which moves bytes or repeats arithmetic. So Megatron's columns and rows, summed
 * weight gradients, halo exchange and synchronised statistics come out; none of them is written
 * down. A parameter is stored the way its first use wants it. What makes a parameter's gradient by
 * summing over samples may also gather its operands (by_factors).
 *
 * A loop that must be whole, of an op with an expansion, is cut by taking the expansion instead:
 * such nodes are rewritten, and placing starts over with the new graph. Or another loop is cut in
 * its stead, there and back: place_detour.c. What axis tensor does besides: place_weights.c. What a
 * person asks for: layouts.c. */
#include "pass/place_int.h"

/* ---- inputs ---- */

/* Which dimension of batch data an axis cuts; -1: none. */
static int batch_dim(ll_axis_kind k, const ll_type *t)
{
    int n = t->shape.n;
    switch (k) {
    case LL_AXIS_DATA:
    case LL_AXIS_ROWS: return n >= 1 ? 0 : -1;
    case LL_AXIS_HEIGHT: return n == 4 ? 1 : -1;
    case LL_AXIS_WIDTH: return n == 4 ? 2 : -1;
    case LL_AXIS_SEQUENCE: return n == 2 || n == 3 ? 1 : -1;
    case LL_AXIS_TENSOR:
    case LL_AXIS_CHANNEL:
    case LL_AXIS_FILTER:
    case LL_AXIS_COLS:
    case LL_AXIS_DEPTH:
    case LL_AXIS_PIPE: return -1;
    case LL_N_AXIS_KIND: break;
    }
    LL_ASSERT(!"a kind of axis");
}

static ll_err place_batch(placer *c, int v)
{
    const ll_value *x = &c->g->values[v];
    for (int a = 0; a < c->m->n; a++) {
        int d = batch_dim(ll_mesh_kind(c->m, a), &x->type);
        if (d < 0) continue;
        c->p->made[v].split[d] |= bit(a);
        int ranks = ll_mesh_group(c->m, c->p->made[v].split[d]);
        if (c->o->like && x->type.shape.d[d] < ranks) {
            c->p->made[v].split[d] &= (ll_axes)~bit(a);
            continue;
        }
        CHECK(d || x->type.shape.d[d] >= ranks, LL_E_SHARD,
              "%s=%d: the batch (dimension 0 of %s) has %ld elements, fewer than the %d ranks that "
              "share it: use fewer ranks, or a larger batch or micro-batch",
              c->m->name[a], c->m->size[a], x->name, x->type.shape.d[d], ranks);
        CHECK(x->type.shape.d[d] >= ranks, LL_E_SHARD,
              "%s=%d: dimension %d of %s has %ld elements, fewer than the %d ranks that share it",
              c->m->name[a], c->m->size[a], d, x->name, x->type.shape.d[d], ranks);
    }
    if (c->p->pins[v]) c->p->made[v] = ll_pin_settle(c->p->pins[v], &c->p->made[v]);
    c->p->seen[v] = c->p->made[v];
    c->decided[v] = true;
    return LL_OK;
}

static ll_err place_inputs(placer *c)
{
    const ll_placement *like = c->o->like;
    for (int v = 1; v < c->g->n_value; v++) {
        const ll_value *x = &c->g->values[v];
        if (x->node >= 0) continue;
        if (x->kind == LL_BATCH) TRY(place_batch(c, v));
        if (x->kind == LL_STEP) c->decided[v] = true;
        ll_val same = like ? ll_find(like->g, x->name) : (ll_val){0};
        if (!same.id || !ll_kind_stays(x->kind)) continue;
        c->p->made[v] = like->made[same.id];
        c->p->seen[v] = like->seen[same.id];
        c->decided[v] = true;
    }
    return LL_OK;
}

/* ---- gradients and moments belong to a parameter ---- */

/* Follows elementwise nodes of one shape back from an update to the means that it is made of. */
static void claim(placer *c, ll_val v, ll_val param, int depth)
{
    int n = value(c, v)->node;
    bool same = ll_shape_equal(&value(c, v)->type.shape, &value(c, param)->type.shape);
    if (n < 0 || depth > 64 || !same) return;
    const ll_node *x = &c->g->nodes[n];
    if (x->op == &ll_op_accum) {
        c->grad_of[v.id] = param;
        ll_place_aim(c, x->in[0], param, 0);
    }
    if (!x->op->elementwise) return;
    for (int i = 0; i < x->n_in; i++) claim(c, x->in[i], param, depth + 1);
}

/* What a parameter becomes; of one that becomes a state as it is (ll_delay), what that does. */
static ll_val next_of(const placer *c, ll_pair u)
{
    for (int i = 0; i < c->g->n_update && value(c, u.next)->node < 0; i++)
        if (c->g->updates[i].input.id == u.next.id) return c->g->updates[i].next;
    return u.next;
}

static void find_gradients(placer *c)
{
    LL_EACH (const ll_pair, u, c->g->updates, c->g->n_update)
        if (value(c, u->input)->kind == LL_PARAM) claim(c, next_of(c, *u), u->input, 0);
}

/* Whose moment a state is: the parameter whose name leads its own, of one shape. */
static ll_val moment_of(const placer *c, int state)
{
    const ll_value *s = &c->g->values[state];
    const char *dot = strrchr(s->name, '.');
    for (int v = 1; dot && v < c->g->n_value; v++) {
        const ll_value *x = &c->g->values[v];
        if (x->kind == LL_PARAM && x->node < 0 && ll_shape_equal(&x->type.shape, &s->type.shape) &&
            strlen(x->name) == (size_t)(dot - s->name) &&
            !strncmp(x->name, s->name, (size_t)(dot - s->name)))
            return (ll_val){v};
    }
    return (ll_val){0};
}

/* The layout with one more dimension cut by axis data: the first that is whole yet and long enough,
 * so that parts are as few pieces of memory as can be. Small tensors stay as they are. */
static ll_layout cut_for_memory(const placer *c, const ll_layout *l, const ll_shape *s)
{
    ll_layout out = *l;
    int a = ll_mesh_axis(c->m, LL_AXIS_DATA), best = -1;
    if (a < 0 || (ll_layout_axes(l) & bit(a))) return out;
    for (int d = 0; d < s->n; d++)
        if (best < 0 && !l->split[d] && s->d[d] >= c->m->size[a]) best = d;
    if (best >= 0) out.split[best] |= bit(a);
    return out;
}

/* Where a parameter's gradient and moments live. */
static ll_layout update_layout(const placer *c, ll_val param)
{
    ll_layout l = c->p->seen[param.id];
    return c->o->zero > 0 ? cut_for_memory(c, &l, &value(c, param)->type.shape) : l;
}

static void decide_input(placer *c, ll_val v, const ll_layout *l)
{
    c->decided[v.id] = true;
    c->p->seen[v.id] = c->p->made[v.id] = *l;
    if (value(c, v)->kind == LL_PARAM && c->o->zero >= 3)
        c->p->made[v.id] = cut_for_memory(c, l, &value(c, v)->type.shape);
    c->updated[v.id] = update_layout(c, v);
}

/* Parameters and states that are to lie in a certain way; those of another placement stay. */
static void place_pins(placer *c)
{
    for (int v = 1; v < c->g->n_value; v++)
        if (c->p->pins[v] && undecided(c, (ll_val){v}))
            decide_input(c, (ll_val){v}, &c->p->pins[v]->layout);
}

/* ---- what a choice costs ---- */

/* Updates see parameters as they see gradients and moments. */
static const ll_layout *operand(const placer *c, const ll_node *n, int i)
{
    int v = n->in[i].id;
    bool update = !c->p->micro[n - c->g->nodes] && c->g->values[v].kind == LL_PARAM &&
                  c->g->values[v].node < 0 && c->decided[v];
    return update ? &c->updated[v] : &c->p->seen[v];
}

/* Bytes to bring operand i to be cut by axis a along dimension need (-1: not cut). */
static double bring(const placer *c, const ll_node *n, int i, int a, int need)
{
    const ll_layout *l = operand(c, n, i);
    if (undecided(c, n->in[i]) || ll_place_holds(c, n->in[i], a, need)) return 0;
    ll_axes others = 0;
    for (int d = 0; d < LL_MAX_DIMS; d++) others |= l->split[d] & (ll_axes)~bit(a);
    int p = c->m->size[a], have = cut_dim(l, a);
    double b = ll_val_bytes(c->g, n->in[i]) / ll_mesh_group(c->m, others) * (p - 1) / p;
    if ((l->sum | l->max) & bit(a)) return need < 0 ? 2 * b : b;
    if (have < 0 || have == need) return 0;
    return need < 0 ? b : b / p;
}

static double bring_all(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop)
{
    double sum = 0;
    for (int i = 0; i < n->n_in; i++) sum += bring(c, n, i, a, ll_dim_of(l->in[i], loop));
    return sum;
}

/* ---- choosing ---- */

static bool follows(const placer *c, const ll_node *n, const ll_loops *l, int a, int loop)
{
    for (int i = 0; i < n->n_in; i++) {
        int d = ll_dim_of(l->in[i], loop);
        if (d < 0 || undecided(c, n->in[i])) continue;
        if (operand(c, n, i)->split[d] & bit(a)) return true;
        if ((operand(c, n, i)->sum & bit(a)) && c->positions[n->in[i].id][a] == d + 1) return true;
    }
    return false;
}

/* Do partial operands give a partial result? All of them must be partial, and nobody else read
 * them, or the sum would be made twice. */
static bool passes(const placer *c, const ll_node *n, int a)
{
    if (!n->op->linear || n->n_in == 0 || c->o->exact) return false;
    bool accum = n->op == &ll_op_accum;
    for (int i = 0; i < n->n_in; i++)
        if (!(operand(c, n, i)->sum & bit(a)) || (c->n_reader[n->in[i].id] > 1 && !accum))
            return false;
    return true;
}

/* With exact sums attention is products, in which positions of queries and of keys are both free
 * loops; sequence: rows has those of the first operand, the queries, stay cut. -1: bytes decide. */
static int row_loop(const placer *c, int node, const ll_loops *l, int a)
{
    const ll_node *n = &c->g->nodes[node];
    if (!c->o->exact || c->o->sequence != LL_TURN_ROWS || n->n_in < 2 ||
        ll_mesh_kind(c->m, a) != LL_AXIS_SEQUENCE || undecided(c, n->in[0]))
        return -1;
    int d = cut_dim(operand(c, n, 0), a), loop = d >= 0 ? l->in[0][d] : -1;
    return loop >= 0 && ll_place_cuttable(c, node, l, loop) ? loop : -1;
}

/* The loop that moves the fewest bytes, one that must be whole only where there is no other; -1:
 * none may be cut. *asked: the cut begins here, as the mesh asks for. */
static int cheapest_loop(const placer *c, int node, const ll_loops *l, int a, double *best,
                         bool *asked)
{
    const ll_node *n = &c->g->nodes[node];
    double share = 1 - 1.0 / c->m->size[a];
    bool begin = ll_place_may_begin(c, n, l, a);
    int chosen = -1, row = row_loop(c, node, l, a);
    for (int loop = 0; loop < l->n; loop++) {
        double cost = 0;
        bool follow = follows(c, n, l, a, loop) && !ll_place_weights_first(c, n, l, a, loop, begin);
        if (!follow && !ll_place_asked(c, n, l, a, loop) &&
            !ll_place_begins(c, n, l, a, loop, &cost))
            continue;
        if (row >= 0 && loop != row) continue;
        if (!ll_place_cuttable(c, node, l, loop) || ll_place_forbidden(c, n, l, a, loop)) continue;
        cost += bring_all(c, n, l, a, loop) + ll_place_unpinned(c, n, l, a, loop);
        if (l->combine[loop] == LL_SUM || l->combine[loop] == LL_MAX)
            for (int o = 0; o < n->n_out; o++)
                if (ll_dim_of(l->out[o], loop) < 0) cost += ll_val_bytes(c->g, n->out[o]) * share;
        bool whole = l->combine[loop] == LL_WHOLE;
        bool before = chosen >= 0 && l->combine[chosen] == LL_WHOLE;
        if (chosen < 0 || whole == before ? cost < *best : before) {
            *best = cost;
            chosen = loop;
            *asked = !follow;
        }
    }
    return chosen;
}

ll_factors ll_factors_of(const char *compress, bool against)
{
    if (compress && !strcmp(compress, "factors")) return LL_FACTORS_ALL;
    return against || (compress && strcmp(compress, "none")) ? LL_FACTORS_NONE : LL_FACTORS_AUTO;
}

/* A weight's gradient, summed over the samples that axis a cuts: gather both operands, and sum all
 * on every rank, rather than all-reduce? Where nobody asks for it, it must send less than half, be
 * worth its arithmetic, and save enough: small all-reduces are bundled, gathers come one by one. */
static bool by_factors(const placer *c, int node, const ll_loops *l, int a, int loop)
{
    const double enough = 1 << 20;
    const ll_node *n = &c->g->nodes[node];
    ll_val param = c->aim[n->out[0].id];
    ll_factors how = c->o->factors;
    if (how == LL_FACTORS_NONE || !param.id || ll_mesh_kind(c->m, a) != LL_AXIS_DATA) return false;
    if (n->n_in != 2 || l->combine[loop] != LL_SUM || ll_dim_of(l->in[0], loop) < 0 ||
        ll_dim_of(l->in[1], loop) < 0 || value(c, param)->type.shape.n < 2)
        return false;
    for (int k = 0; k < l->n; k++)
        if (l->window[k]) return false;
    if (how == LL_FACTORS_ALL) return true;
    double share = 1 - 1.0 / c->m->size[a];
    double parts = ll_mesh_group(c->m, ll_layout_axes(&c->p->seen[param.id]));
    double sum = 2 * ll_val_bytes(c->g, n->out[0]) * share / parts,
           sent = bring_all(c, n, l, a, -1);
    double repeated = ll_node_flops(c->g, n) * share / parts / LL_FLOPS_PER_BYTE;
    return !c->o->zero && !c->o->exact && 2 * (sent + repeated) < sum &&
           sum - sent - repeated > enough;
}

static ll_err choose(placer *c, int node, const ll_loops *l, int a)
{
    const ll_node *n = &c->g->nodes[node];
    int8_t *chosen = &c->p->loop[node][a];
    double best = INFINITY, share = 1 - 1.0 / c->m->size[a];
    bool asked = false;
    int pinned;
    c->home[a] = *chosen = -1;
    TRY(ll_place_pinned(c, node, l, a, &pinned));
    *chosen = (int8_t)pinned;
    if (pinned >= 0) return LL_OK;
    if (passes(c, n, a)) {
        c->p->through[node] |= bit(a);
        return LL_OK;
    }
    *chosen = (int8_t)ll_place_aimed(c, n, l, a);
    if (*chosen >= 0 && ll_place_cuttable(c, node, l, *chosen)) return LL_OK;
    *chosen = (int8_t)cheapest_loop(c, node, l, a, &best, &asked);
    if (*chosen < 0 || asked) return LL_OK;
    if (by_factors(c, node, l, a, *chosen)) {
        c->p->factors[node] |= bit(a);
        *chosen = -1;
        return LL_OK;
    }
    if (l->combine[*chosen] == LL_WHOLE) {
        int8_t turn;
        TRY(ll_place_detour(c, node, l, a, *chosen, &turn));
        if (turn >= 0) c->home[a] = *chosen;
        if (turn >= 0) *chosen = turn;
        if (turn >= 0) return LL_OK;
    }
    if (bring_all(c, n, l, a, *chosen) == 0) return LL_OK; /* everything lies as it should */
    double repeated = ll_node_flops(c->g, n) * share / LL_FLOPS_PER_BYTE;
    if (bring_all(c, n, l, a, -1) + repeated < best) *chosen = -1;
    return LL_OK;
}

/* ---- nodes ---- */

/* Gradients that are kept cut (zero 2), and all in exact mode, are summed and cut in each
 * micro-batch, before their mean is taken; otherwise once a step, after it. */
static void cut_early(placer *c, int node, const ll_loops *l)
{
    ll_val param = c->grad_of[c->g->nodes[node].out[0].id];
    if (!param.id || c->o->zero < (c->o->exact ? 1 : 2)) return;
    ll_layout want = update_layout(c, param);
    for (int a = 0; a < c->m->n; a++) {
        int d = cut_dim(&want, a);
        c->p->loop[node][a] = d >= 0 ? l->out[0][d] : -1;
    }
    c->p->through[node] = 0;
}

/* How results lie, and how later nodes see them: come back from a detour, or as a gradient. */
static void place_results(placer *c, int node, const ll_loops *l)
{
    const ll_node *n = &c->g->nodes[node];
    int8_t back[LL_MAX_AXES];
    for (int a = 0; a < c->m->n; a++) back[a] = c->home[a] >= 0 ? c->home[a] : c->p->loop[node][a];
    for (int o = 0; o < n->n_out; o++) {
        ll_val v = n->out[o], param = c->grad_of[v.id];
        c->p->made[v.id] = ll_place_result(c, node, l, o, c->p->loop[node]);
        c->p->seen[v.id] = ll_place_result(c, node, l, o, back);
        if (c->p->pins[v.id]) c->p->seen[v.id] = ll_pin_settle(c->p->pins[v.id], &c->p->made[v.id]);
        if (param.id) c->p->seen[v.id] = update_layout(c, param);
    }
    ll_place_positions(c, node, l);
    ll_place_hold(c, node, l);
}

static ll_err place_node(placer *c, int node)
{
    const ll_node *n = &c->g->nodes[node];
    ll_loops l;
    TRY(ll_node_loops(c->g, n, &l));
    for (int a = 0; a < c->m->n; a++) c->p->loop[node][a] = -1;
    for (int a = 0; a < c->m->n; a++) {
        TRY(choose(c, node, &l, a));
        int loop = c->p->loop[node][a];
        if (loop >= 0) c->used |= bit(a);
        if (loop >= 0 && l.combine[loop] == LL_WHOLE) c->expand[node] = true;
    }
    cut_early(c, node, &l);
    for (int i = 0; i < n->n_in; i++) {
        if (!undecided(c, n->in[i])) continue;
        ll_layout w = ll_place_wanted(c->p, node, i, &l);
        decide_input(c, n->in[i], &w);
    }
    place_results(c, node, &l);
    return LL_OK;
}

/* Moments and parameters met for the first time in their update. */
static void place_states(placer *c)
{
    for (int v = 1; v < c->g->n_value; v++) {
        const ll_value *x = &c->g->values[v];
        if (x->node < 0 && x->kind == LL_PARAM) c->updated[v] = update_layout(c, (ll_val){v});
        if (x->node >= 0 || x->kind != LL_STATE || c->decided[v]) continue;
        ll_val param = moment_of(c, v);
        if (!param.id || !c->decided[param.id]) continue;
        c->decided[v] = true;
        c->p->made[v] = c->p->seen[v] = update_layout(c, param);
    }
}

static void find_micro(placer *c)
{
    bool any = false;
    c->p->micro = ll_micro_nodes(c->g, c->p->arena);
    for (int i = 0; i < c->g->n_node; i++) any |= c->p->micro[i];
    for (int i = 0; i < c->g->n_node && !any; i++) c->p->micro[i] = true;
}

static ll_err place_all(placer *c)
{
    TRY(place_inputs(c));
    place_pins(c);
    find_gradients(c);
    find_micro(c);
    for (int i = 0; i < c->g->n_node; i++) {
        if (!c->p->micro[i] && (i == 0 || c->p->micro[i - 1])) place_states(c);
        TRY(place_node(c, i));
    }
    for (int v = 1; v < c->g->n_value; v++) {
        ll_layout whole = {0};
        if (undecided(c, (ll_val){v})) decide_input(c, (ll_val){v}, &whole);
    }
    return LL_OK;
}

/* ---- expansions ---- */

static ll_err expanded(ll_placement *p, const bool *expand, ll_graph **out)
{
    const ll_graph *g = p->g;
    ll_rewrite rw;
    ll_err rc = LL_OK;
    ll_rewrite_begin(&rw, g);
    for (int i = 0; i < g->n_node && rc == LL_OK; i++)
        rc = expand[i] ? ll_rewrite_expand(&rw, &g->nodes[i]) : ll_rewrite_copy(&rw, &g->nodes[i]);
    const ll_pin **pins = LL_NEW_ARRAY(p->arena, const ll_pin *, rw.to->n_value);
    for (int v = 1; v < g->n_value && rc == LL_OK; v++)
        if (rw.map[v].id) pins[rw.map[v].id] = p->pins[v];
    p->pins = pins;
    return ll_rewrite_end(&rw, rc, out);
}

/* ---- all of it ---- */

static ll_err attempt(ll_placement *p, const ll_place_opts *o, bool **expand, ll_axes *used)
{
    const ll_graph *g = p->g;
    ll_arena *a = p->arena;
    placer c = {.p = p, .o = o, .g = g, .m = &p->mesh, .n_reader = ll_uses(g, a)};
    LL_ARRAYS(a, g->n_node + 1, p->loop, p->through, p->factors, c.expand);
    LL_ARRAYS(a, g->n_value, p->made, p->seen, c.decided, c.updated, c.grad_of, c.aim, c.positions,
              c.held);
    TRY(place_all(&c));
    *expand = NULL;
    *used = c.used;
    for (int i = 0; i < g->n_node; i++)
        if (c.expand[i]) *expand = c.expand;
    return LL_OK;
}

static ll_err place(ll_placement *p, const ll_graph *g, const ll_place_opts *o)
{
    ll_axes used = 0;
    TRY(o->exact ? ll_exact_prepare(g, &p->g) : ll_sweep(g, &p->g));
    TRY(ll_pins_find(p->g, &p->mesh, o->layouts, o->like != NULL, p->arena, &p->pins));
    for (int round = 0;; round++) {
        bool *expand;
        TRY(attempt(p, o, &expand, &used));
        if (!expand) break;
        CHECK(round < 16, LL_E_SHARD, "%s: expansions do not end", g->name);
        ll_graph *next;
        TRY(expanded(p, expand, &next));
        ll_graph_free(p->g);
        p->g = next;
    }
    for (int a = 0; a < p->mesh.n && !o->like; a++)
        CHECK(used >> a & 1 || ll_mesh_kind(&p->mesh, a) == LL_AXIS_PIPE, LL_E_SHARD,
              "%s=%d: nothing in %s can be cut along this axis; leave it out", p->mesh.name[a],
              p->mesh.size[a], g->name);
    if (!o->exact) return LL_OK;
    p->pins = NULL; /* of another graph from now on */
    p->factors = NULL;
    return ll_exact_place(p, o->wide);
}

ll_err ll_place(const ll_graph *g, const ll_place_opts *opts, ll_placement **out)
{
    CHECK(opts->zero >= 0 && opts->zero <= 3, LL_E_ARG, "zero is %d, expected 0 to 3", opts->zero);
    CHECK(opts->zero == 0 || opts->mesh->n_rank == 1 || ll_mesh_axis(opts->mesh, LL_AXIS_DATA) >= 0,
          LL_E_SHARD, "zero=%d needs axis data, which the mesh does not have", opts->zero);
    bool turns = opts->sequence != LL_TURN_AUTO && opts->mesh->n_rank > 1;
    CHECK(!turns || ll_mesh_axis(opts->mesh, LL_AXIS_SEQUENCE) >= 0, LL_E_SHARD,
          "sequence needs axis sequence, which the mesh does not have");
    CHECK(!opts->exact || opts->sequence != LL_TURN_HEADS || !turns, LL_E_SHARD,
          "sequence=heads cannot be combined with exact sums, which split up attention: "
          "use sequence=rows, or auto");
    TRY(ll_graph_check(g));
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_placement) p = LL_NEW(a, ll_placement);
    p->arena = a;
    p->mesh = *opts->mesh;
    p->overlap = opts->overlap;
    p->near = opts->near;
    TRY(place(p, g, opts));
    return LL_HAND(out, p);
}

void ll_placement_free(ll_placement *p)
{
    if (!p) return;
    ll_graph_free(p->g);
    ll_arena_free(p->arena);
}
