/* chain.c: chains of elementwise nodes become single nodes that read and write memory once: ops
 * fused1 to fused8, by the number of results. ll_fused_attr in kern/attr.h says what a chain is.
 *
 * A group is a set of elementwise nodes of one shape; it stands where its last member stood. A node
 * joins the groups of its operands, which become one, if no outsider so far reads anything of them:
 * then moving them down to the node changes nothing. So a group is open until an outsider reads
 * one of its values, and closed for good from there on. Broadcasts of a contiguous run of
 * dimensions, and fills, are absorbed as periodic operands. Values that leave the group are its
 * results; what only the group reads never touches memory. What is the same in all micro-batches
 * and what is not are kept apart: the former may be wanted once a step. Registers are f32: bf16
 * values are rounded where they leave a group, not inside of it; a cast to bf16 always rounds. On
 * CPUs a bias that was added to a product's result is added again where the sum would be read back;
 * on GPUs a function of what is kept anyway is made again. */
#include "fuse/fuse_int.h"

LL_KERNELS(fused)

static ll_err check_steps(const ll_fused_attr *f)
{
    CHECK(f->n_step >= 0 && f->n_step <= LL_FUSE_STEPS, LL_E_GRAPH, "%d steps; expected 0 to %d",
          f->n_step, LL_FUSE_STEPS);
    for (int s = 0; s < f->n_step; s++) {
        const ll_fused_step *t = &f->step[s];
        CHECK(t->op >= 0 && t->op < LL_N_EW, LL_E_GRAPH, "step %d is no elementwise op", s);
        int16_t reg[3] = {t->a, t->b, t->c};
        for (int i = 0; i < ll_ew_op((ll_ew)t->op)->n_in; i++)
            CHECK(reg[i] == LL_FUSE_K || (reg[i] >= 0 && reg[i] < f->n_in + s), LL_E_GRAPH,
                  "step %d reads register %d, which has no value yet", s, reg[i]);
    }
    return LL_OK;
}

static ll_err check_inputs(const ll_fused_attr *f, const ll_type *in)
{
    int64_t n = ll_numel(&f->shape);
    for (int i = 0; i < f->n_in; i++) {
        int64_t period = f->period[i], repeat = f->repeat[i];
        CHECK(period == ll_numel(&in[i].shape), LL_E_GRAPH, "operand %d has %ld elements, not %ld",
              i, ll_numel(&in[i].shape), period);
        CHECK(repeat > 0 && (n == 0 || (period > 0 && n / repeat >= period && n % repeat == 0 &&
                                        n / repeat % period == 0)),
              LL_E_GRAPH, "operand %d: %ld elements, each %ld times, do not fill %ld", i, period,
              repeat, n);
    }
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_fused_attr *f = i->attr;
    TRY(ll_check_shape(&f->shape));
    CHECK(f->n_in == i->n_in && f->n_in <= LL_FUSE_IN && f->n_out == i->n_out, LL_E_GRAPH,
          "a chain of %d operands and %d results, given %d and %d", f->n_in, f->n_out, i->n_in,
          i->n_out);
    TRY(check_steps(f));
    TRY(check_inputs(f, i->in));
    for (int o = 0; o < i->n_out; o++) {
        CHECK(f->out[o] >= 0 && f->out[o] < f->n_in + f->n_step, LL_E_GRAPH,
              "result %d is register %d, which there is not", o, f->out[o]);
        CHECK((unsigned)f->out_dtype[o] < LL_N_DTYPE, LL_E_GRAPH, "result %d has no element type",
              o);
        i->out[o] = (ll_type){f->out_dtype[o], f->shape};
    }
    return LL_OK;
}

static double cost(const void *attr, const ll_loops *)
{
    const ll_fused_attr *f = attr;
    double flop = 0;
    for (int s = 0; s < f->n_step; s++) flop += ll_ew_op((ll_ew)f->step[s].op)->flop;
    return flop * (double)ll_numel(&f->shape);
}

static const ll_attr_field attrs[] = {{"chain", LL_A_FUSED, 0, 0}, {0}};
/* out: the registers written, r2 to r4 of a small chain */
#define TRIAL(out)                                                                                 \
    "f32[4,3], f32[3] {chain=(shape=[4,3], in=[12, 3], r2=add(r0,r1), r3=tanh(r2), r4=mul(r3,r0)," \
    " out=[" out "])}"
#define FUSED(count, out)                                                                          \
    {                                                                                              \
        .name = "fused" #count, .work = LL_WORK_CHAIN, .n_in = -1, .n_out = count,                 \
        .attr_size = sizeof(ll_fused_attr), .attrs = attrs, .infer = infer, .cost = cost,          \
        .no_grad = true, .ref = fused_ref, .cpu = LL_KERNEL(.run = fused_cpu, .parts = true),      \
        .cuda = LL_GPU(fused_cuda), .trials = {TRIAL(out)},                                        \
    }
static const ll_op ops[LL_FUSE_OUT] = {
    FUSED(1, "r4:f32"),
    FUSED(2, "r3:f32, r4:f32"),
    FUSED(3, "r2:f32, r3:f32, r4:f32"),
    FUSED(4, "r2:f32, r3:f32, r4:f32, r0:f32"),
    FUSED(5, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32"),
    FUSED(6, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32, r4:f32"),
    FUSED(7, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32, r4:f32, r3:f32"),
    FUSED(8, "r2:f32, r3:f32, r4:f32, r0:f32, r1:f32, r4:f32, r3:f32, r2:f32"),
};

const ll_op *const ll_ops_chain[] = {&ops[0], &ops[1], &ops[2], &ops[3], &ops[4],
                                     &ops[5], &ops[6], &ops[7], NULL};

/* ---- finding chains ---- */

enum { MAX_IN = 3 }; /* operands of an elementwise node */

typedef struct group {
    int *member; /* node indices, ascending */
    int n;
    bool closed; /* an outsider reads a value of it: nothing may join */
} group;

typedef struct fusing {
    const ll_graph *g;
    ll_rewrite rw;
    int *group_of; /* node -> group or -1 */
    const bool *varies;
    bool *leaves; /* value -> read outside the group that makes it, or kept */
    group *groups;
    int n_group;
    ll_val *scalar;  /* per old value: the one-element fill that stands for a constant */
    int16_t *reg_of; /* node -> its register, while its group is emitted */
    bool lone;       /* nodes by themselves become chains too */
    int n_emitted;
} fusing;

/* The group that makes v, or -1. */
static int home(const fusing *f, ll_val v)
{
    int n = ll_value_of(f->g, v)->node;
    return n < 0 ? -1 : f->group_of[n];
}

/* Whether element e of a broadcast reads (e / repeat) % period of its operand; leaves both as they
 * are if not. */
static bool periodic(const ll_graph *g, const ll_node *n, int64_t *period, int64_t *repeat)
{
    if (!ll_is_op(n, &ll_op_broadcast)) return false;
    const ll_broadcast_attr *a = (const ll_broadcast_attr *)n->attr;
    int from = ll_value_of(g, n->in[0])->type.shape.n;
    const char *out = a->spec + from + 2; /* "c->nhwc" */
    int at = 0;
    if (from) {
        char letters[LL_SPEC_MAX] = {0};
        memcpy(letters, a->spec, (size_t)from);
        const char *run = strstr(out, letters);
        if (!run) return false;
        at = (int)(run - out);
    }
    *period = *repeat = 1;
    for (int d = at; d < at + from; d++) *period *= a->shape.d[d];
    for (int d = at + from; from && d < a->shape.n; d++) *repeat *= a->shape.d[d];
    if (!*repeat) *repeat = 1; /* nothing is read */
    return true;
}

static bool may_fuse(const ll_graph *g, const ll_node *n)
{
    if (!n->op->elementwise || n->n_out != 1) return false;
    const ll_value *out = ll_value_of(g, n->out[0]);
    if (out->type.dtype != LL_F32 && out->type.dtype != LL_BF16) return false;
    bool cast = n->op == ll_ew_op(LL_EW_cast);
    for (int i = 0; i < n->n_in; i++) {
        ll_dtype t = ll_value_of(g, n->in[i])->type.dtype;
        if (t != LL_F32 && t != LL_BF16 && !cast) return false;
        if (t == LL_F64) return false;
    }
    return true; /* empty or not: of one value, some ranks may hold nothing */
}

/* ---- what is made again ---- */

/* Whether v is a bias added to what some other node made, which nothing else reads: then that can
 * be kept in place of the sum. from: the sum and, where it is the sum's first, a cast. */
static bool biased(const ll_graph *g, const int *uses, ll_val v, const ll_node *from[2])
{
    int64_t period, repeat;
    const ll_node *n = ll_maker(g, v);
    from[0] = n, from[1] = NULL;
    if (!n || n->op->ew != LL_EW_add || !may_fuse(g, n)) return false;
    ll_val x = n->in[0];
    if (uses[x.id] != 1 || !periodic(g, ll_maker(g, n->in[1]), &period, &repeat)) return false;
    const ll_node *maker = ll_maker(g, x);
    if (!maker || !may_fuse(g, maker)) return maker;
    from[1] = maker;
    const ll_node *source = ll_maker(g, maker->in[0]);
    return maker->op->ew == LL_EW_cast && source && !may_fuse(g, source);
}

/* Whether v is a function of one number of what some other node made, which others read too and so
 * is kept: swiglu's silu. */
static bool of_kept(const ll_graph *g, const int *uses, ll_val v, const ll_node *from[2])
{
    const ll_node *n = ll_maker(g, v);
    from[0] = n, from[1] = NULL;
    if (!n || n->n_in != 1 || n->op->ew == LL_EW_cast || !may_fuse(g, n)) return false;
    const ll_node *maker = ll_maker(g, n->in[0]);
    return maker && !may_fuse(g, maker) && uses[n->in[0].id] > 1;
}

/* The value again, for node n. */
static ll_err emit_again(ll_rewrite *rw, const ll_node *n, const ll_node *const from[2])
{
    ll_graph_at(rw->to, n);
    for (int m = 1; m >= 0; m--) {
        ll_val in[LL_MAX_IN], sum;
        if (!from[m]) continue;
        for (int i = 0; i < from[m]->n_in; i++) in[i] = rw->map[from[m]->in[i].id];
        TRY(ll_emit_all(rw->to, from[m]->op, from[m]->attr, in, from[m]->n_in, &sum));
        rw->map[from[m]->out[0].id] = sum;
    }
    return LL_OK;
}

/* Such a value is made by each chain that reads it, if chains are all that do: it is not stored for
 * the backward pass. A chain is over where a node comes that is none of one. */
typedef bool again_fn(const ll_graph *g, const int *uses, ll_val v, const ll_node *from[2]);
static ll_err make_again(const ll_graph *g, again_fn *may, ll_graph **out)
{
    ll_rewrite rw;
    ll_rewrite_begin(&rw, g);
    const int *uses = ll_uses(g, rw.to->arena);
    int *chained = LL_NEW_ARRAY(rw.to->arena, int, g->n_value); /* uses in chains */
    int *made = LL_NEW_ARRAY(rw.to->arena, int, g->n_value);    /* at which node */
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            chained[g->nodes[i].in[k].id] += may_fuse(g, &g->nodes[i]);
    ll_err rc = LL_OK;
    for (int i = 0, end = 0; i < g->n_node && rc == LL_OK; i++) {
        const ll_node *n = &g->nodes[i], *from[2];
        bool fuses = may_fuse(g, n);
        if (!fuses && !n->op->alias && !ll_is_op(n, &ll_op_broadcast)) end = i;
        for (int k = 0; k < n->n_in && fuses && rc == LL_OK; k++) {
            int v = n->in[k].id;
            if (made[v] < end && chained[v] == uses[v] && may(g, uses, n->in[k], from))
                rc = emit_again(&rw, n, from), made[v] = i;
        }
        if (rc == LL_OK) rc = ll_rewrite_copy(&rw, n);
        for (int o = 0; o < n->n_out; o++) made[n->out[o].id] = i;
    }
    return ll_rewrite_end(&rw, rc, out);
}

/* ---- which nodes go together ---- */

/* What a node would be one of: some groups and itself. */
typedef struct joining {
    int node, group[MAX_IN], n;
} joining;

static bool in_joining(const joining *j, int group)
{
    for (int i = 0; i < j->n; i++)
        if (j->group[i] == group) return true;
    return false;
}

/* Adds the operands of n from outside to the distinct ones so far; false when they are too many. */
static bool count_operands(const fusing *f, const joining *j, const ll_node *n, ll_val *in,
                           int *n_in)
{
    for (int i = 0; i < n->n_in; i++) {
        int k = home(f, n->in[i]), at = 0;
        if (k >= 0 && in_joining(j, k)) continue;
        while (at < *n_in && in[at].id != n->in[i].id) at++;
        if (at < *n_in) continue;
        if (*n_in == LL_FUSE_IN) return false;
        in[(*n_in)++] = n->in[i];
    }
    return true;
}

/* Whether the groups and the node are within the limits of one chain. */
static bool fits(const fusing *f, const joining *j)
{
    ll_val in[LL_FUSE_IN];
    int n_in = 0, n_step = 1;
    for (int i = 0; i < j->n; i++) n_step += f->groups[j->group[i]].n;
    if (n_step > LL_FUSE_STEPS) return false;
    for (int i = 0; i < j->n; i++) {
        const group *gr = &f->groups[j->group[i]];
        for (int s = 0; s < gr->n; s++)
            if (!count_operands(f, j, &f->g->nodes[gr->member[s]], in, &n_in)) return false;
    }
    return count_operands(f, j, &f->g->nodes[j->node], in, &n_in);
}

/* Whether operand v lets the node join the group that makes it. */
static bool may_join(const fusing *f, const ll_node *n, ll_val v)
{
    int k = home(f, v);
    if (k < 0 || f->groups[k].closed) return false;
    const ll_type *t = &ll_value_of(f->g, v)->type, *out = &ll_value_of(f->g, n->out[0])->type;
    if (!ll_shape_equal(&t->shape, &out->shape)) return false;
    if (f->varies[v.id] != f->varies[n->out[0].id]) return false;
    if (ll_apart(ll_maker(f->g, v), n)) return false;
    for (int i = 0; i < n->n_in; i++) { /* a cast to few bits asks for them */
        const ll_node *from = ll_maker(f->g, n->in[i]);
        bool narrow = ll_graph_dtype(f->g, n->in[i]) != LL_F32;
        if (home(f, n->in[i]) == k && narrow && from->op->ew == LL_EW_cast) return false;
    }
    return true;
}

/* The groups of operands that the node can be in one chain with, as many as fit. */
static joining groups_to_join(const fusing *f, int node)
{
    const ll_node *n = &f->g->nodes[node];
    joining j = {.node = node};
    for (int i = 0; i < n->n_in; i++) {
        int k = home(f, n->in[i]);
        if (!may_join(f, n, n->in[i]) || in_joining(&j, k)) continue;
        j.group[j.n++] = k;
        if (!fits(f, &j)) j.n--;
    }
    return j;
}

/* One group of the members of several, in order, and the node. */
static void join(fusing *f, const joining *j)
{
    int k = j->n ? j->group[0] : f->n_group++, total = 1, at[MAX_IN] = {0};
    for (int i = 0; i < j->n; i++) total += f->groups[j->group[i]].n;
    int *member = LL_NEW_ARRAY(f->rw.to->arena, int, total);
    for (int m = 0; m < total - 1; m++) {
        int from = -1, first = j->node;
        for (int i = 0; i < j->n; i++) {
            const group *gr = &f->groups[j->group[i]];
            if (at[i] < gr->n && gr->member[at[i]] < first) from = i, first = gr->member[at[i]];
        }
        at[from]++;
        member[m] = first;
    }
    member[total - 1] = j->node;
    for (int i = 0; i < j->n; i++) f->groups[j->group[i]] = (group){0};
    f->groups[k] = (group){.member = member, .n = total};
    for (int m = 0; m < total; m++) f->group_of[member[m]] = k;
}

static void find_groups(fusing *f)
{
    const ll_graph *g = f->g;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        f->group_of[i] = -1;
        if (may_fuse(g, n)) {
            joining j = groups_to_join(f, i);
            join(f, &j);
        }
        for (int k = 0; k < n->n_in; k++) {
            int from = home(f, n->in[k]);
            if (from >= 0 && from != f->group_of[i]) f->groups[from].closed = true;
        }
    }
}

/* ---- what leaves a group ---- */

static void mark_leaving(fusing *f)
{
    const ll_graph *g = f->g;
    memset(f->leaves, 0, sizeof *f->leaves * (size_t)g->n_value);
    for (int i = 0; i < g->n_result; i++) f->leaves[g->results[i].value.id] = true;
    for (int i = 0; i < g->n_update; i++) f->leaves[g->updates[i].next.id] = true;
    for (int i = 0; i < g->n_node; i++)
        for (int j = 0; j < g->nodes[i].n_in; j++)
            if (home(f, g->nodes[i].in[j]) != f->group_of[i])
                f->leaves[g->nodes[i].in[j].id] = true;
}

static int count_leaving(const fusing *f, const group *gr)
{
    int n = 0;
    for (int s = 0; s < gr->n; s++) n += f->leaves[f->g->nodes[gr->member[s]].out[0].id];
    return n;
}

/* Groups of more results than a chain can have are cut, in order, into pieces that cannot: so few
 * members that neither results nor operands can be too many. */
static void cut_groups(fusing *f)
{
    enum { PIECE = LL_FUSE_IN / MAX_IN < LL_FUSE_OUT ? LL_FUSE_IN / MAX_IN : LL_FUSE_OUT };
    for (int k = 0, n = f->n_group; k < n; k++) {
        group gr = f->groups[k];
        if (count_leaving(f, &gr) <= LL_FUSE_OUT) continue;
        for (int s = 0; s < gr.n; s += PIECE) {
            int to = s ? f->n_group++ : k, left = gr.n - s;
            f->groups[to] = (group){.member = gr.member + s, .n = left < PIECE ? left : PIECE};
            for (int m = 0; m < f->groups[to].n; m++) f->group_of[gr.member[s + m]] = to;
        }
    }
}

/* ---- the chain of a group ---- */

/* The register of an operand of group k, or LL_FUSE_K for a constant that the step can hold; added
 * to the node's operands when new. */
static int operand(fusing *f, int k, ll_fused_attr *a, ll_val *in, ll_val v, double *number)
{
    const ll_graph *g = f->g;
    const ll_value *x = ll_value_of(g, v);
    if (home(f, v) == k) return f->reg_of[x->node];
    int64_t period = ll_numel(&x->type.shape), repeat = 1;
    ll_val use;
    double value;
    const ll_node *n = ll_maker(g, v);
    bool constant = ll_constant_value(g, v, &value);
    if (constant && number) {
        *number = value;
        return LL_FUSE_K;
    }
    if (constant) {
        ll_val *s = &f->scalar[v.id];
        if (!s->id) *s = ll_fill(f->rw.to, x->type.dtype, LL_SCALAR, value);
        use = *s, period = 1;
    } else if (periodic(g, n, &period, &repeat)) {
        use = f->rw.map[n->in[0].id];
    } else
        use = f->rw.map[v.id];
    for (int i = 0; i < a->n_in; i++)
        if (in[i].id == use.id && a->period[i] == period && a->repeat[i] == repeat) return i;
    LL_ASSERT(a->n_in < LL_FUSE_IN);
    in[a->n_in] = use;
    a->period[a->n_in] = period;
    a->repeat[a->n_in] = repeat;
    return a->n_in++;
}

/* The steps. Members' registers are marked by 1000 + step until the number of operands is known. */
static void make_steps(fusing *f, int k, ll_fused_attr *a, ll_val *in)
{
    const group *gr = &f->groups[k];
    for (int s = 0; s < gr->n; s++) {
        const ll_node *n = &f->g->nodes[gr->member[s]];
        ll_fused_step *st = &a->step[a->n_step++];
        int16_t r[MAX_IN] = {0, 0, 0};
        bool held = n->op->ew == LL_EW_scale || n->op->ew == LL_EW_shift;
        if (held) st->k = ((const ll_number_attr *)n->attr)->value; /* a step holds one number */
        for (int i = 0; i < n->n_in; i++) {
            r[i] = (int16_t)operand(f, k, a, in, n->in[i], held ? NULL : &st->k);
            held |= r[i] == LL_FUSE_K;
        }
        st->op = (int16_t)n->op->ew, st->a = r[0], st->b = r[1], st->c = r[2];
        f->reg_of[gr->member[s]] = (int16_t)(1000 + s);
    }
    for (int s = 0; s < a->n_step; s++) {
        int16_t *r[MAX_IN] = {&a->step[s].a, &a->step[s].b, &a->step[s].c};
        for (int i = 0; i < MAX_IN; i++)
            if (*r[i] >= 1000) *r[i] = (int16_t)(*r[i] - 1000 + a->n_in);
    }
}

static ll_err emit_group(fusing *f, int k)
{
    const group *gr = &f->groups[k];
    const ll_node *last = &f->g->nodes[gr->member[gr->n - 1]];
    ll_fused_attr *a = LL_NEW(f->rw.to->arena, ll_fused_attr);
    ll_val in[LL_FUSE_IN], results[LL_FUSE_OUT], out[LL_MAX_OUT];
    ll_shape shape = ll_graph_shape(f->g, last->out[0]);
    a->shape.n = shape.n;
    for (int d = 0; d < shape.n; d++) a->shape.d[d] = shape.d[d];
    ll_graph_at(f->rw.to, last);
    make_steps(f, k, a, in);
    for (int s = 0; s < gr->n; s++) {
        ll_val v = f->g->nodes[gr->member[s]].out[0];
        if (!f->leaves[v.id]) continue;
        results[a->n_out] = v;
        a->out_dtype[a->n_out] = ll_graph_dtype(f->g, v);
        a->out[a->n_out++] = a->n_in + s;
    }
    TRY(ll_graph_check(f->rw.to));
    TRY(ll_emit_all(f->rw.to, &ops[a->n_out - 1], a, in, a->n_in, out));
    for (int o = 0; o < a->n_out; o++) ll_rewrite_map(&f->rw, results[o], out[o]);
    f->n_emitted++;
    return LL_OK;
}

/* A node by itself that reads nothing a chain would absorb stays what it is. */
static bool stays(const fusing *f, const group *gr)
{
    const ll_node *n = &f->g->nodes[gr->member[0]];
    int64_t period, repeat;
    double value;
    for (int i = 0; i < n->n_in; i++)
        if (ll_constant_value(f->g, n->in[i], &value) ||
            periodic(f->g, ll_maker(f->g, n->in[i]), &period, &repeat))
            return false;
    return gr->n == 1;
}

static ll_err emit_node(fusing *f, int i)
{
    int k = f->group_of[i];
    if (k < 0) return ll_rewrite_copy(&f->rw, &f->g->nodes[i]);
    const group *gr = &f->groups[k];
    if (!f->lone && stays(f, gr)) return ll_rewrite_copy(&f->rw, &f->g->nodes[i]);
    return i == gr->member[gr->n - 1] && count_leaving(f, gr) ? emit_group(f, k) : LL_OK;
}

static ll_err fuse(const ll_graph *g, bool lone, int *fired, ll_graph **out)
{
    fusing f = {.g = g, .lone = lone};
    ll_rewrite_begin(&f.rw, g);
    ll_arena *a = f.rw.to->arena;
    f.group_of = LL_NEW_ARRAY(a, int, g->n_node + 1);
    f.groups = LL_NEW_ARRAY(a, group, 2 * g->n_node + 1);
    f.scalar = LL_NEW_ARRAY(a, ll_val, g->n_value);
    f.leaves = LL_NEW_ARRAY(a, bool, g->n_value);
    f.reg_of = LL_NEW_ARRAY(a, int16_t, g->n_node + 1);
    f.varies = ll_varying(g, a);
    find_groups(&f);
    mark_leaving(&f);
    cut_groups(&f);
    mark_leaving(&f);
    ll_err rc = LL_OK;
    for (int i = 0; i < g->n_node && rc == LL_OK; i++) rc = emit_node(&f, i);
    *fired = f.n_emitted;
    return ll_rewrite_end(&f.rw, rc, out);
}

static ll_err rewrite(const ll_graph *g, int *fired, ll_graph **out)
{
    LL_OWN(ll_graph) again = NULL;
    TRY(make_again(g, biased, &again));
    return fuse(again, false, fired, out);
}

/* And chains of one op, where chains are all that is compiled well. */
static ll_err rewrite_lone(const ll_graph *g, int *fired, ll_graph **out)
{
    LL_OWN(ll_graph) again = NULL;
    TRY(make_again(g, of_kept, &again));
    return fuse(again, true, fired, out);
}

#define TRIAL_GRAPH                                                                                \
    "  %1: f32[4,3] = batch \"x\"\n"                                                               \
    "  %2: f32[3] = batch \"b\"\n"                                                                 \
    "  %3: f32[4,3] = broadcast(%2) {spec=\"c->nc\", shape=[4,3]}\n"                               \
    "  %4: f32[4,3] = add(%1, %3)\n"                                                               \
    "  %5: f32[4,3] = gelu(%4)\n"                                                                  \
    "  result \"r\" = %5\n"

static const ll_fusion fusions[] = {{.name = "chain",
                                     .stage = LL_FUSE_CHAINS,
                                     .target = &ll_target_cpu,
                                     .rewrite = rewrite,
                                     .trials = {TRIAL_GRAPH}},
                                    {.name = "chain_gpu",
                                     .stage = LL_FUSE_CHAINS,
                                     .target = &ll_target_cuda,
                                     .rewrite = rewrite_lone,
                                     .trials = {TRIAL_GRAPH}}};
const ll_fusion *const ll_fusions_chain[] = {&fusions[0], &fusions[1], NULL};
