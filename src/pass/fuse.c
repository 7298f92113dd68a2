/* fuse.c: chains of elementwise nodes become single nodes that read and write memory once.
 *
 * A group is a set of elementwise nodes of one shape; it stands where its last member stood. A node
 * joins the group of one of its operands if no outsider between reads anything of that group: then
 * moving the group down to the node changes nothing. Broadcasts of a contiguous run of dimensions,
 * and fills, are absorbed as periodic operands. Values that leave the group are its results; what
 * only the group reads never touches memory. Registers are f32: a value of another element type may
 * enter or leave a group but is not passed on inside one. */
#include "kern/attr.h"
#include "op/op_int.h"
#include "pass/pass.h"

typedef struct group {
    int *member; /* node indices, ascending */
    int n, cap;
    int n_in; /* distinct operands from outside, an upper bound */
} group;

typedef struct fusing {
    const ll_graph *g;
    ll_rewrite rw;
    int *group_of; /* node -> group or -1 */
    bool *leaves;  /* value -> read outside the group that makes it, or kept */
    group *groups;
    int n_group;
    ll_val *scalar; /* per old value: the one-element fill that stands for a constant */
} fusing;

static const ll_node *maker(const ll_graph *g, ll_val v)
{
    int n = ll_value_of(g, v)->node;
    return n < 0 ? NULL : &g->nodes[n];
}

static bool is_fill(const ll_node *n)
{
    return n && !strcmp(n->op->name, "fill");
}

/* Whether element e of a broadcast reads (e / repeat) % period of its operand. */
static bool periodic(const ll_graph *g, const ll_node *n, int64_t *period, int64_t *repeat)
{
    if (!n || strcmp(n->op->name, "broadcast")) return false;
    const ll_broadcast_attr *a = (const ll_broadcast_attr *)n->attr;
    int from = ll_value_of(g, n->in[0])->type.shape.n;
    const char *out = a->spec + from + 2; /* "c->nhwc" */
    *period = *repeat = 1;
    int at = 0;
    if (from) {
        char letters[LL_SPEC_MAX] = {0};
        memcpy(letters, a->spec, (size_t)from);
        const char *run = strstr(out, letters);
        if (!run) return false;
        at = (int)(run - out);
    }
    for (int d = at; d < at + from; d++) *period *= a->shape.d[d];
    for (int d = at + from; from && d < a->shape.n; d++) *repeat *= a->shape.d[d];
    return true;
}

static bool may_fuse(const ll_graph *g, const ll_node *n)
{
    if (!n->op->elementwise || n->n_out != 1) return false;
    const ll_value *out = ll_value_of(g, n->out[0]);
    if (out->type.dtype != LL_F32 && out->type.dtype != LL_BF16) return false;
    bool cast = !strcmp(n->op->name, "cast");
    for (int i = 0; i < n->n_in; i++) {
        ll_dtype t = ll_value_of(g, n->in[i])->type.dtype;
        if (t != LL_F32 && t != LL_BF16 && !cast) return false;
        if (t == LL_F64) return false;
    }
    return ll_numel(&out->type.shape) > 0;
}

/* Nobody outside group k, up to node `before`, reads a value of it. */
static bool unread_before(const fusing *f, int k, int before)
{
    const group *gr = &f->groups[k];
    int first = gr->member[0];
    for (int i = first + 1; i < before; i++) {
        if (f->group_of[i] == k) continue;
        const ll_node *n = &f->g->nodes[i];
        for (int j = 0; j < n->n_in; j++) {
            int m = ll_value_of(f->g, n->in[j])->node;
            if (m >= 0 && f->group_of[m] == k) return false;
        }
    }
    return true;
}

static void join(fusing *f, int k, int node)
{
    group *gr = &f->groups[k];
    gr->member = (int *)ll_arena_grow(f->rw.to->arena, gr->member, sizeof(int), gr->n, &gr->cap);
    gr->member[gr->n++] = node;
    gr->n_in += f->g->nodes[node].n_in;
    f->group_of[node] = k;
}

/* A group of an operand that this node may join, or -1. */
static int group_to_join(fusing *f, int node)
{
    const ll_node *n = &f->g->nodes[node];
    const ll_type *out = &ll_value_of(f->g, n->out[0])->type;
    for (int i = 0; i < n->n_in; i++) {
        const ll_value *v = ll_value_of(f->g, n->in[i]);
        int k = v->node >= 0 ? f->group_of[v->node] : -1;
        if (k < 0 || v->type.dtype != LL_F32 || !ll_shape_equal(&v->type.shape, &out->shape))
            continue;
        const group *gr = &f->groups[k];
        if (gr->n >= LL_FUSE_STEPS - 1 || gr->n_in + n->n_in > LL_FUSE_IN) continue;
        /* a narrow value made in the group must not be read in it */
        bool narrow = false;
        for (int j = 0; j < n->n_in; j++) {
            const ll_value *w = ll_value_of(f->g, n->in[j]);
            narrow |= w->node >= 0 && f->group_of[w->node] == k && w->type.dtype != LL_F32;
        }
        if (!narrow && unread_before(f, k, node)) return k;
    }
    return -1;
}

static void find_groups(fusing *f)
{
    for (int i = 0; i < f->g->n_node; i++) {
        f->group_of[i] = -1;
        if (!may_fuse(f->g, &f->g->nodes[i])) continue;
        int k = group_to_join(f, i);
        if (k < 0) k = f->n_group++;
        join(f, k, i);
    }
}

/* The register of an operand of group k, or LL_FUSE_K for a constant that the step can hold; added
 * to the node's operands when new. */
static int operand(fusing *f, int k, ll_fused_attr *a, ll_val *in, const int16_t *reg_of, ll_val v,
                   double *number)
{
    const ll_graph *g = f->g;
    const ll_value *x = ll_value_of(g, v);
    if (x->node >= 0 && f->group_of[x->node] == k) return reg_of[x->node];
    int64_t period = ll_numel(&x->type.shape), repeat = 1;
    ll_val use;
    const ll_node *n = maker(g, v);
    if (is_fill(n) && number) {
        *number = ((const ll_fill_attr *)n->attr)->value;
        return LL_FUSE_K;
    }
    if (is_fill(n)) {
        ll_val *s = &f->scalar[v.id];
        if (!s->id)
            *s =
                ll_fill(f->rw.to, x->type.dtype, LL_SCALAR, ((const ll_fill_attr *)n->attr)->value);
        use = *s, period = 1;
    } else if (periodic(g, n, &period, &repeat)) {
        use = f->rw.map[n->in[0].id];
    } else
        use = f->rw.map[v.id];
    for (int i = 0; i < a->n_in; i++)
        if (in[i].id == use.id && a->period[i] == period && a->repeat[i] == repeat) return i;
    in[a->n_in] = use;
    a->period[a->n_in] = period;
    a->repeat[a->n_in] = repeat;
    return a->n_in++;
}

/* Which values leave their groups; groups with too many of those are taken apart again. */
static void find_results(fusing *f)
{
    const ll_graph *g = f->g;
    for (int i = 0; i < g->n_result; i++) f->leaves[g->results[i].value.id] = true;
    for (int i = 0; i < g->n_update; i++) f->leaves[g->updates[i].next.id] = true;
    for (int i = 0; i < g->n_node; i++)
        for (int j = 0; j < g->nodes[i].n_in; j++) {
            int m = ll_value_of(g, g->nodes[i].in[j])->node;
            if (m >= 0 && f->group_of[m] != f->group_of[i]) f->leaves[g->nodes[i].in[j].id] = true;
        }
    for (int k = 0, n_group = f->n_group; k < n_group; k++) {
        group gr = f->groups[k];
        int n_out = 0;
        for (int s = 0; s < gr.n; s++) n_out += f->leaves[g->nodes[gr.member[s]].out[0].id];
        if (n_out <= LL_FUSE_OUT) continue;
        f->groups[k] = (group){0};
        for (int s = 0; s < gr.n; s++) {
            f->leaves[g->nodes[gr.member[s]].out[0].id] = true;
            join(f, s ? f->n_group++ : k, gr.member[s]);
        }
    }
}

static ll_err emit_group(fusing *f, int k)
{
    const group *gr = &f->groups[k];
    ll_fused_attr *a = LL_NEW(f->rw.to->arena, ll_fused_attr);
    ll_val in[LL_FUSE_IN + 3], results[LL_FUSE_OUT];
    int16_t *reg_of = LL_NEW_ARRAY(f->rw.to->arena, int16_t, f->g->n_node);
    const ll_node *last = &f->g->nodes[gr->member[gr->n - 1]];
    a->shape = ll_value_of(f->g, last->out[0])->type.shape;
    ll_rewrite_at(&f->rw, last);
    /* members' registers are marked by 1000 + step until the number of operands is known */
    for (int s = 0; s < gr->n; s++) {
        const ll_node *n = &f->g->nodes[gr->member[s]];
        ll_fused_step *st = &a->step[a->n_step++];
        int16_t r[3] = {0, 0, 0};
        bool has_number = n->op->ew == LL_EW_scale || n->op->ew == LL_EW_shift;
        if (has_number) st->k = ((const ll_number_attr *)n->attr)->value;
        bool held = has_number; /* a step holds one number */
        for (int i = 0; i < n->n_in; i++) {
            r[i] = (int16_t)operand(f, k, a, in, reg_of, n->in[i], held ? NULL : &st->k);
            held |= r[i] == LL_FUSE_K;
        }
        st->op = (int16_t)n->op->ew, st->a = r[0], st->b = r[1], st->c = r[2];
        reg_of[gr->member[s]] = (int16_t)(1000 + s);
    }
    for (int s = 0; s < a->n_step; s++) {
        int16_t *r[3] = {&a->step[s].a, &a->step[s].b, &a->step[s].c};
        for (int i = 0; i < 3; i++)
            if (*r[i] >= 1000) *r[i] = (int16_t)(*r[i] - 1000 + a->n_in);
    }
    for (int s = 0; s < gr->n; s++) {
        ll_val v = f->g->nodes[gr->member[s]].out[0];
        if (!f->leaves[v.id]) continue;
        results[a->n_out] = v;
        a->out_dtype[a->n_out] = ll_value_of(f->g, v)->type.dtype;
        a->out[a->n_out++] = a->n_in + s;
    }
    ll_val out[LL_MAX_OUT];
    TRY(ll_emit_all(f->rw.to, ll_fused_op(a->n_out), a, in, a->n_in, out));
    for (int o = 0; o < a->n_out; o++) {
        f->rw.map[results[o].id] = out[o];
        const char *name = ll_value_of(f->g, results[o])->name;
        if (name) ll_value_of(f->rw.to, out[o])->name = ll_arena_strdup(f->rw.to->arena, name);
    }
    return LL_OK;
}

static ll_err emit_node(fusing *f, int i)
{
    int k = f->group_of[i];
    if (k < 0) return ll_rewrite_copy(&f->rw, &f->g->nodes[i]);
    const group *gr = &f->groups[k];
    return i == gr->member[gr->n - 1] ? emit_group(f, k) : LL_OK;
}

static ll_err fuse_all(const ll_graph *g, ll_graph **out)
{
    fusing f = {.g = g};
    ll_rewrite_begin(&f.rw, g);
    ll_arena *a = f.rw.to->arena;
    f.group_of = LL_NEW_ARRAY(a, int, g->n_node);
    f.groups = LL_NEW_ARRAY(a, group, 2 * g->n_node);
    f.scalar = LL_NEW_ARRAY(a, ll_val, g->n_value);
    f.leaves = LL_NEW_ARRAY(a, bool, g->n_value);
    find_groups(&f);
    find_results(&f);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = emit_node(&f, i);
    return ll_rewrite_end(&f.rw, rc, out);
}

ll_err ll_fuse(const ll_graph *g, ll_graph **out)
{
    ll_graph *fused;
    TRY(fuse_all(g, &fused));
    ll_err rc = ll_simplify(fused, out); /* broadcasts and fills that chains absorbed go */
    ll_graph_free(fused);
    return rc;
}
