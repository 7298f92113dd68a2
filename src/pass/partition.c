/* partition.c: one rank's graph. Nodes are copied with operands brought to the layout that the
 * placement wants, attributes of the part (the op's split), and results of the part's shape. A
 * value is brought to a layout once; whoever wants it so again finds it. Every rank's graph has the
 * same collectives in the same order: they follow from the placement alone, and carry serial
 * numbers so that no later pass makes one of two.
 *
 * Worked example, data=2: x [64,784] is cut to 32 rows; y = x w keeps them; dw = x^T dy sums over
 * rows, so each rank has a part of the sum: after the mean over micro-batches an all_reduce makes
 * it whole, and the update, on whole tensors, is the serial one. */
#include "pass/partition_int.h"

#include "base/num.h"

static void note(ll_cutter *c, ll_val old, const ll_layout *l, ll_val made)
{
    ll_held *v = LL_NEW(c->arena, ll_held);
    *v = (ll_held){*l, made, c->versions[old.id]};
    c->versions[old.id] = v;
}

static ll_held *held_as(const ll_cutter *c, ll_val old, const ll_layout *l)
{
    ll_held *v = c->versions[old.id];
    while (v && !ll_layout_equal(&v->layout, l)) v = v->next;
    return v;
}

/* ---- moves ---- */

/* The range of dim under layout `after`, counted from where it starts under `before`. */
static ll_range relative(const ll_cutter *c, const ll_layout *before, const ll_layout *after,
                         int dim, const ll_shape *s)
{
    ll_range b = ll_cut_range(c, before->split[dim], s->d[dim]);
    ll_range a = ll_cut_range(c, after->split[dim], s->d[dim]);
    return (ll_range){a.from - b.from, a.to - b.from};
}

/* Elements of the largest part of a value that any rank holds. */
static int64_t largest_part(const ll_mesh *m, const ll_layout *l, const ll_shape *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->n; d++) n *= ll_ceil_div(s->d[d], ll_mesh_group(m, l->split[d]));
    return n;
}

static ll_err emit_move(ll_cutter *c, const ll_move *v, const ll_layout *before, const ll_shape *s,
                        ll_val in, ll_val *out)
{
    static const ll_collective kinds[] = {LL_NO_COLLECTIVE, LL_ALL_GATHER, LL_ALL_TO_ALL,
                                          LL_REDUCE_SCATTER, LL_ALL_REDUCE};
    int cut = v->kind == LL_MOVE_ALLTOALL ? v->to_dim : v->dim;
    ll_range r = {0, 0};
    if (v->kind != LL_MOVE_ALLREDUCE && v->kind != LL_MOVE_ALLGATHER)
        r = relative(c, before, &v->after, cut, s);
    if (v->kind == LL_MOVE_SLICE) {
        ll_range_attr a = {v->dim, r.from, r.to};
        return ll_cut_emit(c, &ll_op_slice, &a, in, out);
    }
    ll_coll_attr a = {.axes = v->axes, .max = v->max, .dim = v->dim, .serial = ++c->serial};
    a.from = r.from;
    a.to = r.to;
    const ll_layout *large = v->kind == LL_MOVE_REDUCE_SCATTER ? before : &v->after;
    a.most = largest_part(c->m, large, s);
    a.cut = ll_layout_axes(large);
    if (v->kind == LL_MOVE_ALLTOALL) a.to_dim = v->to_dim;
    if (v->kind != LL_MOVE_ALLREDUCE) {
        ll_range all = ll_cut_range(c, large->split[v->dim], s->d[v->dim]);
        a.extent = all.to - all.from;
    }
    return ll_cut_emit(c, ll_collective_op(kinds[v->kind]), &a, in, out);
}

/* The moves from how x holds v to layout l. keep: whoever wants it so later finds it. */
static ll_err walk(ll_cutter *c, ll_val v, const ll_layout *from, ll_val x, const ll_layout *l,
                   bool keep, ll_val *out)
{
    const ll_value *old = ll_value_of(c->g, v);
    const ll_type *t = &old->type;
    ll_layout at = *from;
    ll_move moves[LL_MAX_MOVES];
    int n;
    TRY(ll_reshard(c->m, &t->shape, (double)ll_type_bytes(t), from, l, moves, &n));
    for (int i = 0; i < n; i++) {
        ll_held *there = keep ? held_as(c, v, &moves[i].after) : NULL;
        if (there)
            x = there->value;
        else
            TRY(emit_move(c, &moves[i], &at, &t->shape, x, &x));
        at = moves[i].after;
        if (keep && !there) note(c, v, &at, x);
        /* A gradient on its way is one still. */
        if (old->node >= 0) ll_value_stands_for(c->to, x, old);
    }
    *out = x;
    return LL_OK;
}

/* ---- operands ---- */

static ll_err bring(ll_cutter *c, ll_val v, const ll_layout *l, bool keep, ll_val *out);

/* Is v cheaper to make anew than to cut: spread from something smaller, without arithmetic? */
static bool is_spread(const ll_cutter *c, ll_val v)
{
    int m = ll_value_of(c->g, v)->node;
    if (m < 0) return false;
    const ll_node *n = &c->g->nodes[m];
    if (n->op->flop || n->op->cost || n->op->random || n->n_out != 1 || n->n_in > 1) return false;
    return n->n_in == 0 || ll_numel(&ll_value_of(c->g, n->in[0])->type.shape) <
                               ll_numel(&ll_value_of(c->g, v)->type.shape);
}

/* v, which every rank could make whole, made in layout l alone. */
static ll_err spread_again(ll_cutter *c, ll_val v, const ll_layout *l, ll_val *out)
{
    const ll_node *n = &c->g->nodes[ll_value_of(c->g, v)->node];
    ll_loops loops;
    int8_t cuts[LL_MAX_AXES];
    ll_val x[LL_MAX_IN];
    ll_type in[LL_MAX_IN];
    TRY(ll_node_loops(c->g, n, &loops));
    for (int a = 0; a < c->m->n; a++) {
        cuts[a] = -1;
        for (int d = 0; d < ll_value_of(c->g, v)->type.shape.n; d++)
            if (l->split[d] >> a & 1) cuts[a] = loops.out[0][d];
    }
    for (int i = 0; i < n->n_in; i++) {
        ll_layout w = {0};
        in[i] = ll_value_of(c->g, n->in[i])->type;
        for (int d = 0; d < in[i].shape.n; d++)
            for (int a = 0; a < c->m->n; a++)
                if (cuts[a] >= 0 && cuts[a] == loops.in[i][d]) w.split[d] |= (ll_axes)(1u << a);
        TRY(bring(c, n->in[i], &w, true, &x[i]));
    }
    void *attr = ll_arena_copy(c->arena, n->attr, n->op->attr_size);
    TRY(ll_make_node(c, &(ll_job){.n = n, .l = &loops, .cuts = cuts, .in = in}, 0, attr, x, out));
    note(c, v, l, *out);
    return LL_OK;
}

/* Does every cut of l run along a loop of v's node? */
static bool can_spread(const ll_cutter *c, ll_val v, const ll_layout *l)
{
    ll_loops loops;
    if (!is_spread(c, v) || l->sum || l->max || ll_layout_axes(&c->p->seen[v.id])) return false;
    const ll_node *n = &c->g->nodes[ll_value_of(c->g, v)->node];
    if (ll_node_loops(c->g, n, &loops) != LL_OK) return false;
    for (int d = 0; d < ll_value_of(c->g, v)->type.shape.n; d++)
        if (l->split[d] && (loops.out[0][d] < 0 || loops.window[loops.out[0][d]])) return false;
    return true;
}

/* As v is held from the start: an input as stored, a result as later nodes find it. */
static const ll_layout *first_layout(const ll_cutter *c, ll_val v)
{
    return ll_value_of(c->g, v)->node < 0 ? &c->p->made[v.id] : &c->p->seen[v.id];
}

/* Is v stored cut for memory's sake, and gathered for its uses? */
static bool stored_cut(const ll_cutter *c, int node, ll_val v)
{
    return ll_value_of(c->g, v)->node < 0 && c->p->micro[node] &&
           !ll_layout_equal(&c->p->made[v.id], &c->p->seen[v.id]);
}

/* v in layout l. keep: whoever wants it so later finds it. */
static ll_err bring(ll_cutter *c, ll_val v, const ll_layout *l, bool keep, ll_val *out)
{
    ll_held *have = held_as(c, v, l);
    if (!have && can_spread(c, v, l)) return spread_again(c, v, l, out);
    const ll_paneled *panels = have ? NULL : ll_find_panels(c, v, l);
    if (panels) {
        *out = ll_concat(c->to, panels->panel, panels->n, panels->dim);
        if (keep) note(c, v, l, *out);
        return ll_graph_check(c->to);
    }
    if (!have) have = held_as(c, v, first_layout(c, v));
    LL_ASSERT(have);
    return walk(c, v, &have->layout, have->value, l, keep, out);
}

static bool is_lent(const ll_cutter *c, ll_val v, const ll_layout *l)
{
    const ll_loan *x = &c->loans[v.id];
    return x->value.id && ll_layout_equal(&x->layout, l) &&
           c->lent - x->at <= ll_val_bytes(c->g, v);
}

/* The same of what is stored cut for memory's sake: gathered for a use, and dropped after it. But
 * it stays for its next one where fewer bytes than its own were gathered in between: the last
 * layers' for the backward pass. All that stays is then at most twice the largest: a parameter, and
 * what came after it. */
static ll_err borrow(ll_cutter *c, ll_val v, const ll_layout *l, ll_val *out)
{
    ll_loan *have = &c->loans[v.id];
    if (is_lent(c, v, l)) {
        *out = have->value;
    } else {
        bool gathers = !ll_layout_equal(&c->p->made[v.id], l) && !ll_find_panels(c, v, l);
        TRY(bring(c, v, l, false, out));
        c->lent += gathers ? ll_val_bytes(c->g, v) : 0;
    }
    *have = (ll_loan){*l, *out, c->lent};
    return LL_OK;
}

/* ---- panels ---- */

/* Does anything after this node read v? */
static bool read_later(const ll_cutter *c, int node, ll_val v)
{
    bool any = false;
    for (int k = node + 1; k < c->g->n_node && !any; k++)
        for (int i = 0; i < c->g->nodes[k].n_in; i++) any |= c->g->nodes[k].in[i].id == v.id;
    for (int i = 0; i < c->g->n_result; i++) any |= c->g->results[i].value.id == v.id;
    for (int i = 0; i < c->g->n_update; i++) any |= c->g->updates[i].next.id == v.id;
    return any;
}

/* May the gather that ends the way of operand i to layout want be made in panels? The loop must be
 * whole otherwise. Panels come in another order on every rank of the axis: where they are added up
 * or merged, these ranks must not be making the same result, or they would differ by rounding. */
static ll_err can_panel(const ll_cutter *c, const ll_job *j, int i, const ll_layout *want,
                        ll_panels *out, bool *yes)
{
    ll_val v = j->n->in[i];
    const ll_type *t = &j->in[i];
    ll_move moves[LL_MAX_MOVES];
    int n, axis = 0;
    *yes = false;
    if (held_as(c, v, want) || is_lent(c, v, want) || can_spread(c, v, want)) return LL_OK;
    const ll_layout *from = first_layout(c, v);
    TRY(ll_reshard(c->m, &t->shape, (double)ll_numel(&t->shape), from, want, moves, &n));
    if (!n || moves[n - 1].kind != LL_MOVE_ALLGATHER) return LL_OK;
    int dim = moves[n - 1].dim, loop = j->l->in[i][dim];
    while (!(moves[n - 1].axes >> axis & 1)) axis++;
    int size = c->m->size[axis];
    if (want->split[dim] || loop < 0 || j->l->window[loop] || t->shape.d[dim] < size) return LL_OK;
    bool apart = j->cuts[axis] >= 0; /* every rank makes another part */
    if (j->l->combine[loop] == LL_WHOLE && (!j->n->op->merge || !apart)) return LL_OK;
    if (j->l->combine[loop] == LL_SUM && !apart) return LL_OK;
    *out = (ll_panels){.n = 1, .axis = axis, .loop = loop};
    out->of[0] = (ll_panels_of){.operand = i, .dim = dim, .whole = *want};
    out->of[0].before = n > 1 ? moves[n - 2].after : *from;
    out->of[0].there = ll_find_panels(c, v, want);
    *yes = size <= LL_MAX_IN;
    return LL_OK;
}

/* The operands that can come in panels of one loop, if that pays: of that which has most bytes. */
static ll_err find_panels(ll_cutter *c, const ll_job *j, int node, const ll_layout *want,
                          ll_panels *out)
{
    double most = 0;
    ll_panels p[LL_MAX_IN], best = {0};
    bool yes[LL_MAX_IN];
    out->n = 0;
    if (c->p->overlap == LL_OVERLAP_NONE || j->n->op->elementwise || j->n->op->linear) return LL_OK;
    for (int i = 0; i < j->n->n_in; i++) {
        TRY(can_panel(c, j, i, &want[i], &p[i], &yes[i]));
        double bytes = (double)ll_numel(&j->in[i].shape);
        if (!yes[i] || bytes <= most) continue;
        most = bytes;
        best = p[i];
        best.n = 0;
    }
    for (int i = 0; i < j->n->n_in && most > 0; i++) {
        if (!yes[i] || p[i].axis != best.axis || p[i].loop != best.loop) continue;
        p[i].of[0].keep = read_later(c, node, j->n->in[i]);
        p[i].of[0].lent = stored_cut(c, node, j->n->in[i]);
        best.of[best.n++] = p[i].of[0];
    }
    if (best.n && ll_panels_pay(c, j, &best)) *out = best;
    return LL_OK;
}

/* What a node made, and how later ones see it. */
static ll_err settle(ll_cutter *c, ll_val v, ll_val made)
{
    ll_val seen;
    note(c, v, &c->p->made[v.id], made);
    return walk(c, v, &c->p->made[v.id], made, &c->p->seen[v.id], true, &seen);
}

bool ll_gradient_layout(const ll_placement *p, const char *param, ll_axes axes, ll_layout *out)
{
    ll_move moves[LL_MAX_MOVES];
    int n = 0;
    for (int i = 1; i < p->g->n_value; i++) {
        const ll_value *v = &p->g->values[i];
        if (!v->gradient_of || strcmp(v->gradient_of, param)) continue;
        double bytes = (double)ll_type_bytes(&v->type);
        if (ll_reshard(&p->mesh, &v->type.shape, bytes, &p->made[i], &p->seen[i], moves, &n))
            return false;
        for (int k = 0; k < n; k++) {
            if (moves[k].kind != LL_MOVE_ALLREDUCE || moves[k].axes != axes) continue;
            *out = moves[k].after;
            return true;
        }
    }
    return false;
}

static ll_err check_shape(const ll_cutter *c, const ll_node *n, ll_val old, ll_val made)
{
    ll_shape want =
        ll_layout_local(c->m, &c->p->made[old.id], &ll_value_of(c->g, old)->type.shape, c->rank);
    ll_shape have = ll_graph_shape(c->to, made);
    CHECK(ll_shape_equal(&want, &have), LL_E_SHARD, "%s: a part of the result is %s, expected %s",
          n->name, LL_DIMS(&have), LL_DIMS(&want));
    return LL_OK;
}

/* The parts of the node's results that this rank makes. */
static ll_err make_results(ll_cutter *c, int node, ll_val *out)
{
    const ll_node *n = &c->g->nodes[node];
    ll_loops l;
    ll_type in[LL_MAX_IN];
    ll_val x[LL_MAX_IN];
    ll_layout want[LL_MAX_IN];
    ll_panels p;
    TRY(ll_node_loops(c->g, n, &l));
    for (int i = 0; i < n->n_in; i++) {
        in[i] = ll_value_of(c->g, n->in[i])->type;
        want[i] = ll_place_wanted(c->p, node, i, &l);
    }
    ll_job j = {n, &l, c->p->loop[node], in, c->p->overlap != LL_OVERLAP_NONE};
    TRY(find_panels(c, &j, node, want, &p));
    bool paneled[LL_MAX_IN] = {false};
    for (int k = 0; k < p.n; k++) {
        want[p.of[k].operand] = p.of[k].before;
        paneled[p.of[k].operand] = true;
    }
    for (int i = 0; i < n->n_in; i++) {
        bool lent = !paneled[i] && stored_cut(c, node, n->in[i]);
        TRY(lent ? borrow(c, n->in[i], &want[i], &x[i])
                 : bring(c, n->in[i], &want[i], true, &x[i]));
    }
    void *attr = ll_arena_copy(c->arena, n->attr, n->op->attr_size);
    ll_view v[2];
    int loop;
    TRY(ll_balance(c, &j, attr, x, v, &loop));
    int views = loop < 0 ? 1 : 2;
    if (p.n) TRY(ll_make_panels(c, v, views, &p));
    for (int k = 0; k < views && !p.n; k++)
        TRY(ll_make_node(c, &v[k].j, 0, v[k].attr, v[k].x, v[k].out));
    return ll_unite(c, &j, loop, v, out);
}

static ll_err cut_node(ll_cutter *c, int node)
{
    const ll_node *n = &c->g->nodes[node];
    ll_val out[LL_MAX_OUT];
    ll_graph_at(c->to, n);
    TRY(make_results(c, node, out));
    for (int o = 0; o < n->n_out; o++) {
        ll_value_stands_for(c->to, out[o], ll_value_of(c->g, n->out[o]));
        TRY(check_shape(c, n, n->out[o], out[o]));
        TRY(settle(c, n->out[o], out[o]));
    }
    return LL_OK;
}

/* ---- inputs and outputs ---- */

static void cut_inputs(ll_cutter *c)
{
    for (int i = 1; i < c->g->n_value; i++) {
        const ll_value *v = &c->g->values[i];
        if (v->node >= 0) continue;
        const ll_layout *l = &c->p->made[i];
        ll_type t = {v->type.dtype, ll_layout_local(c->m, l, &v->type.shape, c->rank)};
        ll_val made = ll_input(c->to, v->name, v->kind, t, v->init);
        ll_piece *piece = LL_NEW(c->to->arena, ll_piece);
        piece->whole = v->type.shape;
        for (int d = 0; d < t.shape.n; d++)
            piece->at[d] = ll_cut_range(c, l->split[d], v->type.shape.d[d]).from;
        if (!ll_shape_equal(&t.shape, &v->type.shape)) ll_value_of(c->to, made)->piece = piece;
        note(c, (ll_val){i}, l, made);
    }
}

static ll_err cut_outputs(ll_cutter *c)
{
    const ll_layout whole = {0};
    c->to->scope[0] = '\0';
    c->to->of = (ll_origin){.block = c->g->of.block, .at = -1, .phase = c->g->of.phase};
    for (int i = 0; i < c->g->n_result; i++) {
        ll_val v;
        TRY(bring(c, c->g->results[i].value, &whole, true, &v));
        ll_graph_result(c->to, c->g->results[i].name, v);
    }
    LL_EACH (const ll_pair, u, c->g->updates, c->g->n_update) {
        ll_val next;
        TRY(bring(c, u->next, &c->p->made[u->input.id], true, &next));
        ll_graph_update(c->to, held_as(c, u->input, &c->p->made[u->input.id])->value, next);
    }
    return ll_graph_check(c->to);
}

static ll_err cut_all(ll_cutter *c)
{
    cut_inputs(c);
    for (int i = 0; i < c->g->n_node; i++) TRY(cut_node(c, i));
    TRY(cut_outputs(c));
    return ll_verify(c->to);
}

ll_err ll_partition(const ll_placement *p, int rank, ll_graph **out)
{
    return ll_partition_told(p, rank, NULL, out);
}

ll_err ll_partition_told(const ll_placement *p, int rank, struct ll_buf *told, ll_graph **out)
{
    CHECK(rank >= 0 && rank < p->mesh.n_rank, LL_E_ARG, "rank %d of %d", rank, p->mesh.n_rank);
    LL_OWN(ll_arena) arena = ll_arena_new();
    ll_cutter c = {.p = p, .g = p->g, .m = &p->mesh, .told = told, .rank = rank, .arena = arena};
    LL_OWN(ll_graph) to = c.to = ll_graph_new(p->g->name);
    to->of.at = -1;
    LL_ARRAYS(arena, p->g->n_value, c.versions, c.loans);
    TRY(cut_all(&c));
    return LL_HAND(out, to);
}
