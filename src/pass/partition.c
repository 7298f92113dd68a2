/* partition.c: one rank's graph. Nodes are copied with operands brought to the layout that the
 * placement wants, attributes of the part (the op's split), and results of the part's shape. A
 * value is brought to a layout once; whoever wants it so again finds it. Every rank's graph has the
 * same collectives in the same order: they follow from the placement alone, and carry serial
 * numbers so that no later pass makes one of two.
 *
 * Worked example, data=2: x [64,784] is cut to 32 rows; y = x w keeps them; dw = x^T dy sums over
 * rows, so each rank has a part of the sum: after the mean over micro-batches an all_reduce makes
 * it whole, and the update, on whole tensors, is the serial one. */
#include "kern/attr.h"
#include "pass/partition.h"

#include <stdio.h>
#include <string.h>

/* A value as it is held in some layout. */
typedef struct version {
    ll_layout layout;
    ll_val value;
    struct version *next;
} version;

/* What was gathered for a use, until others are gathered in its place. */
typedef struct loan {
    ll_layout layout;
    ll_val value; /* id 0: none */
    double at;    /* cutter.lent after it was last used */
} loan;

typedef struct cutter {
    const ll_placement *p;
    const ll_graph *g;
    const ll_mesh *m;
    ll_graph *to;
    ll_arena *arena;
    version **versions; /* [n_value] */
    loan *loans;        /* [n_value] */
    double lent;        /* bytes gathered for single uses so far */
    int rank;
    int64_t serial;
} cutter;

static void note(cutter *c, ll_val old, const ll_layout *l, ll_val made)
{
    version *v = LL_NEW(c->arena, version);
    *v = (version){*l, made, c->versions[old.id]};
    c->versions[old.id] = v;
}

static version *held_as(const cutter *c, ll_val old, const ll_layout *l)
{
    version *v = c->versions[old.id];
    while (v && !ll_layout_equal(&v->layout, l)) v = v->next;
    return v;
}

static ll_err emit(cutter *c, const char *op, const void *attr, ll_val in, ll_val *out)
{
    return ll_emit_all(c->to, ll_op_find(op), attr, &in, 1, out);
}

/* ---- moves ---- */

static ll_range range_in(const cutter *c, ll_axes axes, int64_t n)
{
    ll_range r;
    ll_layout_range(c->m, axes, n, c->rank, &r.from, &r.to);
    return r;
}

/* The range of dim under layout `after`, counted from where it starts under `before`. */
static ll_range relative(const cutter *c, const ll_layout *before, const ll_layout *after, int dim,
                         const ll_shape *s)
{
    ll_range b = range_in(c, before->split[dim], s->d[dim]);
    ll_range a = range_in(c, after->split[dim], s->d[dim]);
    return (ll_range){a.from - b.from, a.to - b.from};
}

static ll_err emit_move(cutter *c, const ll_move *v, const ll_layout *before, const ll_shape *s,
                        ll_val in, ll_val *out)
{
    static const char *const ops[] = {"slice", "all_gather", "all_to_all", "reduce_scatter",
                                      "all_reduce"};
    int cut = v->kind == LL_MOVE_ALLTOALL ? v->to_dim : v->dim;
    ll_range r = {0, 0};
    if (v->kind != LL_MOVE_ALLREDUCE && v->kind != LL_MOVE_ALLGATHER)
        r = relative(c, before, &v->after, cut, s);
    if (v->kind == LL_MOVE_SLICE) {
        ll_range_attr a = {v->dim, r.from, r.to};
        return emit(c, "slice", &a, in, out);
    }
    ll_coll_attr a = {.axes = v->axes, .max = v->max, .dim = v->dim, .serial = ++c->serial};
    a.from = r.from;
    a.to = r.to;
    if (v->kind == LL_MOVE_ALLTOALL) a.to_dim = v->to_dim;
    if (v->kind != LL_MOVE_ALLREDUCE) {
        const ll_layout *whole = v->kind == LL_MOVE_REDUCE_SCATTER ? before : &v->after;
        ll_range all = range_in(c, whole->split[v->dim], s->d[v->dim]);
        a.extent = all.to - all.from;
    }
    return emit(c, ops[v->kind], &a, in, out);
}

/* The moves from how x holds v to layout l. keep: whoever wants it so later finds it. */
static ll_err walk(cutter *c, ll_val v, const ll_layout *from, ll_val x, const ll_layout *l,
                   bool keep, ll_val *out)
{
    const ll_type *t = &ll_value_of(c->g, v)->type;
    double bytes = (double)ll_numel(&t->shape) * (double)ll_dtype_bytes(t->dtype);
    ll_layout at = *from;
    ll_move moves[LL_MAX_MOVES];
    const ll_value *old = ll_value_of(c->g, v);
    const char *name = old->node >= 0 ? old->name : NULL;
    int n;
    TRY(ll_reshard(c->m, &t->shape, bytes, from, l, moves, &n));
    for (int i = 0; i < n; i++) {
        version *there = keep ? held_as(c, v, &moves[i].after) : NULL;
        if (there)
            x = there->value;
        else
            TRY(emit_move(c, &moves[i], &at, &t->shape, x, &x));
        at = moves[i].after;
        if (keep && !there) note(c, v, &at, x);
        /* A gradient on its way is known by its name (exec/exec.c). */
        ll_value *moved = ll_value_of(c->to, x);
        if (name && !moved->name) moved->name = ll_arena_strdup(c->to->arena, name);
    }
    *out = x;
    return LL_OK;
}

/* ---- a part of a node ---- */

static void init_part(ll_part *x, void *attr, int n_in, ll_range r)
{
    *x = (ll_part){.attr = attr};
    for (int i = 0; i < n_in; i++) x->in[i] = r;
}

/* Where a window reads more than this rank owns of operand i along dim, the neighbours send it. */
static ll_err add_halo(cutter *c, const ll_node *n, const ll_loops *l, int loop, ll_axes axes,
                       int i, int dim, const ll_type *in, const void *attr, ll_val *x)
{
    int size = ll_mesh_group(c->m, axes);
    bool any = false;
    CHECK(size <= LL_HALO_MAX, LL_E_SHARD, "%s: a window cut by %d ranks, at most %d can be",
          n->name, size, LL_HALO_MAX);
    ll_halo_attr h = {.axes = axes, .dim = dim, .extent = in[i].shape.d[dim]};
    h.me = ll_mesh_member(c->m, axes, c->rank);
    for (int k = 0; k < size; k++) {
        ll_range r, own;
        ll_part part;
        ll_share(l->extent[loop], size, k, &r.from, &r.to);
        ll_share(h.extent, size, k, &own.from, &own.to);
        init_part(&part, ll_arena_copy(c->arena, attr, n->op->attr_size), n->n_in, r);
        TRY(n->op->split(attr, l, loop, r, in, &part));
        h.need[2 * k] = part.in[i].from;
        h.need[2 * k + 1] = part.in[i].to;
        any |= part.in[i].from != own.from || part.in[i].to != own.to;
    }
    return any ? emit(c, "halo", &h, *x, x) : LL_OK;
}

static ll_err cut_loops(cutter *c, const ll_node *n, const ll_loops *l, const int8_t *cuts,
                        const ll_type *in, void *attr, ll_val *x)
{
    for (int loop = 0; loop < l->n; loop++) {
        ll_axes axes = 0;
        for (int a = 0; a < c->m->n; a++)
            if (cuts[a] == loop) axes |= (ll_axes)(1u << a);
        if (!axes || !n->op->split) continue;
        for (int i = 0; i < n->n_in && l->window[loop]; i++)
            for (int d = 0; d < in[i].shape.n; d++)
                if (l->in[i][d] == loop) TRY(add_halo(c, n, l, loop, axes, i, d, in, attr, &x[i]));
        ll_range r = range_in(c, axes, l->extent[loop]);
        ll_part part;
        init_part(&part, attr, n->n_in, r);
        TRY(n->op->split(ll_arena_copy(c->arena, attr, n->op->attr_size), l, loop, r, in, &part));
    }
    return LL_OK;
}

static ll_err bring(cutter *c, ll_val v, const ll_layout *l, bool keep, ll_val *out);

/* Is v cheaper to make anew than to cut: spread from something smaller, without arithmetic? */
static bool is_spread(const cutter *c, ll_val v)
{
    int m = ll_value_of(c->g, v)->node;
    if (m < 0) return false;
    const ll_node *n = &c->g->nodes[m];
    if (n->op->flop || n->op->cost || n->op->random || n->n_out != 1 || n->n_in > 1) return false;
    return n->n_in == 0 || ll_numel(&ll_value_of(c->g, n->in[0])->type.shape) <
                               ll_numel(&ll_value_of(c->g, v)->type.shape);
}

/* v, which every rank could make whole, made in layout l alone. */
static ll_err spread_again(cutter *c, ll_val v, const ll_layout *l, ll_val *out)
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
    TRY(cut_loops(c, n, &loops, cuts, in, attr, x));
    TRY(ll_emit_all(c->to, n->op, attr, x, n->n_in, out));
    note(c, v, l, *out);
    return LL_OK;
}

/* Does every cut of l run along a loop of v's node? */
static bool can_spread(const cutter *c, ll_val v, const ll_layout *l)
{
    ll_loops loops;
    if (!is_spread(c, v) || l->sum || l->max || ll_layout_axes(&c->p->seen[v.id])) return false;
    const ll_node *n = &c->g->nodes[ll_value_of(c->g, v)->node];
    if (ll_node_loops(c->g, n, &loops) != LL_OK) return false;
    for (int d = 0; d < ll_value_of(c->g, v)->type.shape.n; d++)
        if (l->split[d] && (loops.out[0][d] < 0 || loops.window[loops.out[0][d]])) return false;
    return true;
}

/* v in layout l. keep: whoever wants it so later finds it. */
static ll_err bring(cutter *c, ll_val v, const ll_layout *l, bool keep, ll_val *out)
{
    bool input = ll_value_of(c->g, v)->node < 0;
    version *have = held_as(c, v, l);
    if (!have && can_spread(c, v, l)) return spread_again(c, v, l, out);
    if (!have) have = held_as(c, v, input ? &c->p->made[v.id] : &c->p->seen[v.id]);
    LL_ASSERT(have);
    return walk(c, v, &have->layout, have->value, l, keep, out);
}

static ll_err bring_kept(cutter *c, ll_val v, const ll_layout *l, ll_val *out)
{
    return bring(c, v, l, true, out);
}

/* The same of what is stored cut for memory's sake: gathered for a use, and dropped after it. But
 * it stays for its next one where fewer bytes than its own were gathered in between: the last
 * layers' for the backward pass. All that stays is then at most twice the largest: a parameter, and
 * what came after it. */
static ll_err borrow(cutter *c, ll_val v, const ll_layout *l, ll_val *out)
{
    const ll_type *t = &ll_value_of(c->g, v)->type;
    double bytes = (double)ll_numel(&t->shape) * (double)ll_dtype_bytes(t->dtype);
    loan *have = &c->loans[v.id];
    if (have->value.id && ll_layout_equal(&have->layout, l) && c->lent - have->at <= bytes) {
        *out = have->value;
    } else {
        TRY(bring(c, v, l, false, out));
        c->lent += ll_layout_equal(&c->p->made[v.id], l) ? 0 : bytes;
    }
    *have = (loan){*l, *out, c->lent};
    return LL_OK;
}

/* What a node made, and how later ones see it. */
static ll_err settle(cutter *c, ll_val v, ll_val made)
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
        if (v->node < 0 || !v->name || strncmp(v->name, "grad:", 5) || strcmp(v->name + 5, param))
            continue;
        double bytes = (double)ll_numel(&v->type.shape) * (double)ll_dtype_bytes(v->type.dtype);
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

static void enter_scope(cutter *c, const ll_node *n)
{
    const char *dot = strrchr(n->name, '.');
    c->to->n_block = n->block;
    snprintf(c->to->scope, sizeof c->to->scope, "%.*s", dot ? (int)(dot - n->name) + 1 : 0,
             n->name);
}

static ll_err check_shape(const cutter *c, const ll_node *n, ll_val old, ll_val made)
{
    ll_shape want =
        ll_layout_local(c->m, &c->p->made[old.id], &ll_value_of(c->g, old)->type.shape, c->rank);
    ll_shape have = ll_shape_of(c->to, made);
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    CHECK(ll_shape_equal(&want, &have), LL_E_SHARD, "%s: a part of the result is %s, want %s",
          n->name, ll_shape_print(&have, a), ll_shape_print(&want, b));
    return LL_OK;
}

static ll_err cut_node(cutter *c, int node)
{
    const ll_node *n = &c->g->nodes[node];
    ll_loops l;
    ll_type in[LL_MAX_IN];
    ll_val x[LL_MAX_IN], out[LL_MAX_OUT];
    TRY(ll_node_loops(c->g, n, &l));
    enter_scope(c, n);
    for (int i = 0; i < n->n_in; i++) {
        ll_layout w = ll_place_wanted(c->p, node, i, &l);
        const ll_value *v = ll_value_of(c->g, n->in[i]);
        in[i] = v->type;
        bool stored_cut = v->node < 0 && c->p->micro[node] &&
                          !ll_layout_equal(&c->p->made[n->in[i].id], &c->p->seen[n->in[i].id]);
        TRY((stored_cut ? borrow : bring_kept)(c, n->in[i], &w, &x[i]));
    }
    void *attr = ll_arena_copy(c->arena, n->attr, n->op->attr_size);
    TRY(cut_loops(c, n, &l, c->p->loop[node], in, attr, x));
    TRY(ll_emit_all(c->to, n->op, attr, x, n->n_in, out));
    for (int o = 0; o < n->n_out; o++) {
        const char *name = ll_value_of(c->g, n->out[o])->name;
        ll_value *made = ll_value_of(c->to, out[o]);
        if (name && !made->name) made->name = ll_arena_strdup(c->to->arena, name);
        TRY(check_shape(c, n, n->out[o], out[o]));
        TRY(settle(c, n->out[o], out[o]));
    }
    return LL_OK;
}

/* ---- inputs and outputs ---- */

static void cut_inputs(cutter *c)
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
            piece->at[d] = range_in(c, l->split[d], v->type.shape.d[d]).from;
        if (!ll_shape_equal(&t.shape, &v->type.shape)) ll_value_of(c->to, made)->piece = piece;
        note(c, (ll_val){i}, l, made);
    }
}

static ll_err cut_outputs(cutter *c)
{
    const ll_layout whole = {0};
    c->to->scope[0] = '\0';
    c->to->n_block = c->g->n_block;
    for (int i = 0; i < c->g->n_result; i++) {
        ll_val v;
        TRY(bring(c, c->g->results[i].value, &whole, true, &v));
        ll_result(c->to, c->g->results[i].name, v);
    }
    for (int i = 0; i < c->g->n_update; i++) {
        ll_pair u = c->g->updates[i];
        ll_val next;
        TRY(bring(c, u.next, &c->p->made[u.input.id], true, &next));
        ll_update(c->to, held_as(c, u.input, &c->p->made[u.input.id])->value, next);
    }
    return ll_graph_check(c->to);
}

static ll_err cut_all(cutter *c)
{
    cut_inputs(c);
    for (int i = 0; i < c->g->n_node; i++) TRY(cut_node(c, i));
    TRY(cut_outputs(c));
    return ll_verify(c->to);
}

ll_err ll_partition(const ll_placement *p, int rank, ll_graph **out)
{
    CHECK(rank >= 0 && rank < p->mesh.n_rank, LL_E_ARG, "rank %d of %d", rank, p->mesh.n_rank);
    cutter c = {.p = p, .g = p->g, .m = &p->mesh, .rank = rank};
    c.arena = ll_arena_new();
    c.to = ll_graph_new(p->g->name);
    c.versions = LL_NEW_ARRAY(c.arena, version *, p->g->n_value);
    c.loans = LL_NEW_ARRAY(c.arena, loan, p->g->n_value);
    ll_err rc = cut_all(&c);
    ll_arena_free(c.arena);
    if (rc != LL_OK) {
        ll_graph_free(c.to);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    *out = c.to;
    return LL_OK;
}
