/* lower.c: a graph becomes a program: passes, order (order.c), memory (memory.c), kernels. */
#include "base/num.h"
#include "kern/attr.h"
#include "fuse/fuse.h"
#include "program/memory.h"
#include "program/ways.h"

/* ---- passes ---- */

static ll_err next(ll_err (*pass)(const ll_graph *, ll_graph **), ll_graph **g)
{
    ll_graph *made;
    ll_err rc = pass(*g, &made);
    ll_graph_free(*g);
    *g = rc == LL_OK ? made : NULL;
    return rc;
}

static ll_err check_target(const ll_lower_opts *opts)
{
    const ll_target *t = opts->target;
    CHECK(t->precisions >> opts->precision & 1, LL_E_ARG,
          "machine %s has no precision %s: use f32 or bf16", t->name,
          ll_precision_name(opts->precision));
    CHECK(!opts->any_order || t->any_order, LL_E_ARG,
          "machine %s has one order of sums: sums in any order are not for it", t->name);
    return LL_OK;
}

static bool has_f64(const ll_graph *g)
{
    bool any = false;
    for (int i = 1; i < g->n_value; i++) any |= g->values[i].type.dtype == LL_F64;
    return any;
}

static ll_err run_passes(const ll_graph *g, const ll_lower_opts *opts, ll_buf *log, ll_graph **out)
{
    TRY(check_target(opts));
    TRY((opts->as_is ? ll_sweep : ll_simplify)(g, out));
    if (!opts->as_is && (LL_IN_16 >> opts->precision & 1)) {
        TRY(next(opts->target->narrow, out));
        TRY(next(ll_simplify, out));
    }
    if (!opts->target->fuses) return next(ll_expand_fused, out);
    if (has_f64(*out)) TRY(next(ll_expand_f64, out));
    if (opts->as_is) return LL_OK;
    return ll_fuse(out, opts->target, opts->precision, opts->level, opts->no_fuse, log);
}

/* ---- old values ---- */

/* v, or a copy of it where it is an input that changes. */
static ll_err copy_of(ll_graph *g, ll_val v, const bool *changes, int n_micro, ll_val *out)
{
    *out = v;
    if (!changes[ll_alias_root(g, v, n_micro).id]) return LL_OK;
    ll_cast_attr same = {ll_graph_dtype(g, v)};
    return ll_emit_all(g, ll_ew_op(LL_EW_cast), &same, &v, 1, out);
}

/* What a result, or another input's update, shows of an input that is updated is its old value: a
 * copy, taken before the new one is written. An update to what is there already is dropped. */
static ll_err keep_old_values(ll_graph *g, int n_micro)
{
    bool *changes = LL_NEW_ARRAY(g->arena, bool, g->n_value); /* input -> gets a new value */
    int n = 0;
    LL_EACH (const ll_pair, u, g->updates, g->n_update) {
        if (ll_alias_root(g, u->next, n_micro).id == u->input.id) continue;
        changes[u->input.id] = true;
        g->updates[n++] = *u;
    }
    g->n_update = n;
    for (int i = 0; i < g->n_result; i++)
        TRY(copy_of(g, g->results[i].value, changes, n_micro, &g->results[i].value));
    for (int i = 0; i < n; i++)
        TRY(copy_of(g, g->updates[i].next, changes, n_micro, &g->updates[i].next));
    return LL_OK;
}

/* ---- instructions ---- */

double ll_graph_flops(const ll_graph *g)
{
    double sum = 0;
    for (int i = 0; i < g->n_node; i++) sum += ll_node_flops(g, &g->nodes[i]);
    return sum;
}

static void fill_tensors(const ll_program *p, const int *slots, int n, ll_tensor *t)
{
    for (int i = 0; i < n; i++)
        t[i] = (ll_tensor){NULL, p->slots[slots[i]].type.dtype, p->slots[slots[i]].type.shape};
}

void ll_program_call(const ll_program *p, const ll_instr *x, ll_unbound *out)
{
    fill_tensors(p, x->in, x->n_in, out->in);
    fill_tensors(p, x->out, x->n_out, out->out);
    out->c = (ll_kcall){.attr = x->attr,
                        .n_in = x->n_in,
                        .n_out = x->n_out,
                        .in = out->in,
                        .out = out->out,
                        .threads = p->threads,
                        .n_micro = p->n_micro,
                        .ctx = p->ctx,
                        .tf32 = p->tf32,
                        .any_order = p->any_order};
}

/* The way of a convolution, within the limit of its own. */
static bool choose_way(const ll_program *p, const ll_op *op, const ll_lower_opts *opts,
                       size_t limit, ll_kcall *c, ll_instr *x)
{
    const ll_solver *list = ll_way_list(p->target, op);
    if (!list) return p->target->pick(op, c, &x->kernel);
    const char *key = opts->ways || opts->limited ? ll_way_key(op, c, p->arena) : "";
    c->solver = opts->solver;
    const ll_solver *s = ll_way_pick(list, opts->ways, key, limit, c);
    if (!s) return false;
    x->kernel = *s;
    x->solver = c->solver;
    x->at_once = c->at_once;
    x->seconds = ll_ways_seconds(opts->ways, key, s->name, c->at_once);
    return true;
}

static ll_err choose_kernel(const ll_program *p, const ll_node *n, const ll_lower_opts *opts,
                            size_t limit, ll_instr *x)
{
    ll_unbound k;
    ll_program_call(p, x, &k);
    CHECK(choose_way(p, n->op, opts, limit, &k.c, x), LL_E_GRAPH,
          "%s: machine %s has no kernel for %s", n->name, p->target->name, n->op->name);
    x->scratch = x->kernel.scratch ? x->kernel.scratch(&k.c) : 0;
    if (x->kernel.work) x->kernel.work(&k.c, &x->done, &x->padded);
    return LL_OK;
}

static int *slots_of(ll_program *p, const ll_val *v, int n)
{
    int *slots = LL_NEW_ARRAY(p->arena, int, n + 1);
    for (int i = 0; i < n; i++) slots[i] = v[i].id;
    return slots;
}

static double slot_bytes(const ll_program *p, const int *slots, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)p->slots[slots[i]].bytes;
    return sum;
}

static ll_err add_instr(ll_program *p, const ll_graph *g, const ll_node *n,
                        const ll_lower_opts *opts, size_t limit)
{
    ll_instr *x = &p->instrs[p->n_instr++];
    x->name = ll_arena_strdup(p->arena, n->name);
    x->op = n->op->name;
    x->micro = n->micro;
    x->action = n->action;
    x->before = n->before;
    x->attr = ll_arena_copy(p->arena, n->attr, n->op->attr_size);
    x->n_in = n->n_in;
    x->n_out = n->n_out;
    x->in = slots_of(p, n->in, n->n_in);
    x->out = slots_of(p, n->out, n->n_out);
    x->flops = ll_node_flops(g, n);
    x->bytes = slot_bytes(p, x->in, x->n_in) + slot_bytes(p, x->out, x->n_out);
    x->collective = n->op->collective;
    x->aside = ll_aside_of(n);
    x->at = n->of.at;
    x->done = x->flops;
    if (!ll_has_wait(n) && !opts->replayed) TRY(choose_kernel(p, n, opts, limit, x));
    if (x->scratch > p->scratch_bytes) p->scratch_bytes = x->scratch;
    return LL_OK;
}

/* A value that must end up in its input and was not written there. */
static ll_err add_copy(ll_program *p, const ll_graph *g, const ll_lower_opts *opts, ll_pair u)
{
    const ll_op *op = &ll_op_reshape; /* its kernel copies */
    ll_node n = {.op = op, .n_in = 1, .n_out = 1, .in = &u.next, .out = &u.input};
    n.attr = LL_NEW_ARRAY(p->arena, char, op->attr_size);
    n.name = ll_arena_printf(p->arena, "%s.copy", ll_value_of(g, u.input)->name);
    return add_instr(p, g, &n, opts, 0);
}

/* A start has the operands and results of all that are started together; a wait their results. */
static void add_members(ll_program *p, const ll_order *o, int node, ll_instr *x)
{
    int n = 0;
    for (int k = node; k >= 0; k = o->before[k] - 1) n++;
    LL_ARRAYS(p->arena, n, x->in, x->out, x->attrs);
    x->n_out = n;
    for (int k = node; k >= 0; k = o->before[k] - 1) {
        const ll_node *m = &o->g->nodes[k];
        n--; /* the last member is first */
        x->in[n] = m->in[0].id;
        x->out[n] = m->out[0].id;
        x->attrs[n] = ll_arena_copy(p->arena, m->attr, m->op->attr_size);
    }
    if (x->wait) return;
    x->n_in = x->n_out;
    x->attr = x->attrs[0];
    x->bytes = slot_bytes(p, x->in, x->n_in) + slot_bytes(p, x->out, x->n_out);
    /* A sum of gradients is told from others by the first one's parameter: people see it, and
     * codecs draw by it. */
    for (n = x->n_in - 1; n >= 0; n--)
        if (p->slots[x->in[n]].gradient_of) x->name = p->slots[x->in[n]].gradient_of;
}

/* What is live meanwhile leaves the more room, the less it is. */
static size_t limit_at(const ll_lower_opts *opts, const ll_places *lay, int at)
{
    if (!opts->limited) return SIZE_MAX;
    if (opts->apart) return opts->workspace;
    return opts->workspace + (lay->ideal_work_bytes - lay->live[at]) / (size_t)opts->share;
}

static ll_err add_position(ll_program *p, const ll_order *o, const ll_places *lay,
                           const ll_lower_opts *opts, int at)
{
    int node = o->node[at];
    const ll_node *n = &o->g->nodes[node];
    ll_instr *x = &p->instrs[at];
    if (o->wait[at]) {
        *x = (ll_instr){.name = p->instrs[o->place[node]].name, .op = "wait", .wait = true};
        x->pair = o->place[node];
        p->n_instr++;
    } else
        TRY(add_instr(p, o->g, n, opts, limit_at(opts, lay, at)));
    x->last = at < o->end[LL_MICRO] && o->last[node];
    if (!ll_has_wait(n)) return LL_OK;
    add_members(p, o, node, x);
    if (x->wait) return LL_OK;
    x->pair = o->done[node];
    x->compressed = o->compressed[node];
    x->packing = o->flight[node].packing;
    if (x->packing) x->packing_at = lay->offset[lay->packing[node]];
    return LL_OK;
}

static void add_slots(ll_program *p, const ll_graph *g, const ll_places *lay)
{
    LL_ARRAYS(p->arena, g->n_value, p->slots, p->inputs);
    p->n_slot = g->n_value;
    p->n_input = p->n_result = 0;
    p->results = LL_NEW_ARRAY(p->arena, ll_binding, g->n_result + 1);
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        int s = lay->storage[i];
        p->slots[i] = (ll_slot){.type = v->type,
                                .kind = v->kind,
                                .init = v->init,
                                .piece = v->piece ? (const ll_piece *)ll_arena_copy(
                                                        p->arena, v->piece, sizeof *v->piece)
                                                  : NULL,
                                .region = lay->region[s],
                                .offset = lay->offset[s],
                                .input = lay->input[s]};
        p->slots[i].init.data = ll_data_copy(p->arena, v->init.data);
        p->slots[i].bytes = ll_type_bytes(&v->type);
        if (v->name) p->slots[i].name = ll_arena_strdup(p->arena, v->name);
        if (v->gradient_of) p->slots[i].gradient_of = ll_arena_strdup(p->arena, v->gradient_of);
        if (v->node < 0) p->inputs[p->n_input++] = (ll_binding){p->slots[i].name, i};
    }
    LL_EACH (const ll_named, r, g->results, g->n_result)
        p->results[p->n_result++] = (ll_binding){ll_arena_strdup(p->arena, r->name), r->value.id};
}

/* The graph of all that a rank of a pipeline does in a step, in place of one micro-batch's. */
static ll_err unroll(ll_graph **g, const ll_lower_opts *opts, ll_arena *arena, ll_unrolled *out)
{
    if (!opts->pipe) return LL_OK;
    TRY(ll_unroll(*g, opts->pipe, opts->n_micro, arena, out));
    ll_graph_free(*g);
    *g = out->g;
    return LL_OK;
}

/* What is done before its turn, since something was waited for, is done in the action that waits.
 */
static void ascend_actions(ll_program *p, const ll_pipe *how)
{
    int next = how->n_action;
    for (int i = p->end[LL_MICRO] - 1; i >= 0; i--) {
        int *action = &p->instrs[i].action;
        if (*action && *action < next) next = *action;
        if (*action) *action = next;
    }
    ll_pipe *pipe = (ll_pipe *)ll_arena_copy(p->arena, how, sizeof *how);
    pipe->actions = (const ll_action *)ll_arena_copy(p->arena, how->actions,
                                                     sizeof *how->actions * (size_t)how->n_action);
    pipe->all = NULL, pipe->left = NULL; /* are the plan's */
    p->pipe = pipe;
}

static ll_err add_instrs(ll_program *p, const ll_order *o, const ll_places *lay,
                         const ll_lower_opts *opts)
{
    const ll_graph *g = o->g;
    add_slots(p, g, lay);
    p->instrs = LL_NEW_ARRAY(p->arena, ll_instr, o->n + g->n_update + 1);
    p->n_instr = 0;
    p->scratch_bytes = 0;
    for (int i = 0; i < o->n; i++) TRY(add_position(p, o, lay, opts, i));
    memcpy(p->end, o->end, sizeof p->end);
    for (int i = 0; i < g->n_update; i++)
        if (!lay->in_place[i]) TRY(add_copy(p, g, opts, g->updates[i]));
    p->end[LL_UPDATE] = p->n_instr;
    for (int i = 0; i < p->n_instr; i++) p->instrs[i].scratch_at = lay->work_bytes;
    return LL_OK;
}

/* How large work region and scratch may be: what products ask is no matter of choice. */
static size_t most_bytes(const ll_program *p, const ll_lower_opts *opts, const ll_places *lay)
{
    size_t most = opts->workspace;
    LL_EACH (const ll_instr, x, p->instrs, p->n_instr)
        if (x->scratch > most && !ll_way_list(p->target, ll_op_find(x->op))) most = x->scratch;
    return lay->work_bytes + most;
}

/* Slots and scratch where lay has them. */
static void move_all(ll_program *p, const ll_order *o, const ll_places *lay)
{
    add_slots(p, o->g, lay);
    for (int i = 0; i < p->n_instr; i++) {
        ll_instr *x = &p->instrs[i];
        x->scratch_at = i < o->n ? lay->offset[lay->scratch[i]] : lay->work_bytes;
        if (x->packing) x->packing_at = lay->offset[lay->packing[o->node[i]]];
    }
    p->scratch_bytes = 0;
}

/* Under a limit: room in the slab for what each instruction asks, where it has it. Planning may
 * waste some: then a smaller share of what is not live is given out, in the end none, when all
 * have one place, within the limit. */
static ll_err fit_scratch(ll_program *p, const ll_order *o, const ll_lower_opts *opts,
                          ll_places *lay)
{
    enum { SMALLEST = 64 };
    size_t *scratch = LL_NEW_ARRAY(p->arena, size_t, o->n + 1);
    ll_lower_opts how = *opts;
    for (how.share = 1; how.share <= SMALLEST; how.share *= 2) {
        ll_places packed;
        TRY(add_instrs(p, o, lay, &how));
        for (int i = 0; i < o->n; i++) scratch[i] = p->instrs[i].scratch;
        ll_plan_memory(o, scratch, p->arena, &packed);
        if (packed.work_bytes > most_bytes(p, opts, lay)) continue;
        *lay = packed;
        move_all(p, o, lay);
        return LL_OK;
    }
    how.apart = true;
    return add_instrs(p, o, lay, &how);
}

typedef struct layout { /* of a graph: what runs when, and what lies where */
    ll_order o;
    ll_places places;
} layout;

static ll_err lay_out(const ll_program *p, const ll_graph *g, const ll_unrolled *un,
                      const int *until, const ll_lower_opts *opts, layout *out)
{
    TRY(ll_find_order(g, un->g ? un : NULL, until, opts, p->arena, &out->o));
    ll_plan_memory(&out->o, NULL, p->arena, &out->places);
    return LL_OK;
}

static ll_err write_program(ll_program *p, layout *l, const ll_lower_opts *opts)
{
    if (!opts->limited || opts->apart)
        TRY(add_instrs(p, &l->o, &l->places, opts));
    else
        TRY(fit_scratch(p, &l->o, opts, &l->places));
    if (opts->pipe) ascend_actions(p, opts->pipe);
    p->persistent_bytes = l->places.persistent_bytes;
    p->work_bytes = l->places.work_bytes;
    p->aside_bytes = l->places.aside_bytes;
    p->ideal_work_bytes = l->places.ideal_work_bytes;
    p->scratch_bytes = ll_align64(p->scratch_bytes);
    p->bytes = p->persistent_bytes + p->work_bytes + p->scratch_bytes;
    p->flops = 0;
    for (int i = 0; i < p->n_instr; i++)
        p->flops += p->instrs[i].flops * (i < p->end[LL_MICRO] && !opts->pipe ? p->n_micro : 1);
    return LL_OK;
}

/* The program with the n best of what may be laid aside there. */
static ll_err write_aside(ll_program *p, const ll_offload *f, int n, const ll_unrolled *un,
                          const ll_lower_opts *opts)
{
    ll_offloaded made;
    layout l;
    TRY(ll_offload_write(f, n, un, &made));
    LL_OWN(ll_graph) g = made.g;
    if (made.un.g) made.un.g = g;
    TRY(lay_out(p, g, &made.un, made.until, opts, &l));
    return write_program(p, &l, opts);
}

/* How large it would be: what that takes, as much as a program, is let go. */
static ll_err try_aside(const ll_program *p, const ll_offload *f, int n, const ll_unrolled *un,
                        const ll_lower_opts *opts, size_t *bytes)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_program trial = *p;
    trial.arena = a;
    TRY(write_aside(&trial, f, n, un, opts));
    *bytes = trial.bytes;
    return LL_OK;
}

/* As few values laid aside as bring the program within its limit; where none do, what was least of
 * those tried: more of them need not take less. */
static ll_err lay_aside(ll_program *p, const ll_graph *g, const ll_unrolled *un,
                        const ll_lower_opts *opts)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_offload *f = ll_offload_find(g, opts, a);
    int low = 0, high = ll_offload_most(f), best = 0; /* low: is too large */
    size_t bytes, least = p->bytes;
    while (high - low > 1) {
        int now = (low + high) / 2;
        TRY(try_aside(p, f, now, un, opts, &bytes));
        if (bytes < least) least = bytes, best = now;
        *(bytes <= opts->memory ? &high : &low) = now;
    }
    TRY(write_aside(p, f, high, un, opts));
    return p->bytes > least && p->bytes > opts->memory ? write_aside(p, f, best, un, opts) : LL_OK;
}

static ll_err build(ll_program *p, ll_graph **graph, const ll_lower_opts *opts)
{
    layout l;
    ll_unrolled un = {0};
    TRY(unroll(graph, opts, p->arena, &un));
    TRY(keep_old_values(*graph, p->n_micro));
    TRY(lay_out(p, *graph, &un, un.until, opts, &l));
    TRY(write_program(p, &l, opts));
    return opts->memory && p->bytes > opts->memory ? lay_aside(p, *graph, &un, opts) : LL_OK;
}

ll_err ll_lower(const ll_graph *g, const ll_lower_opts *opts, ll_program **out)
{
    TRY(ll_graph_check(g));
    LL_OWN(ll_graph) lowered = NULL;
    ll_arena *a = ll_arena_new();
    LL_OWN(ll_program) p = LL_NEW(a, ll_program);
    p->arena = a;
    ll_buf log = {.arena = a};
    TRY(run_passes(g, opts, &log, &lowered));
    p->fusions = log.text;
    p->target = opts->target;
    p->threads = opts->threads > 0 ? opts->threads : 1;
    p->any_order = opts->any_order;
    p->flush = opts->flush;
    p->ctx = opts->ctx;
    p->tf32 = opts->precision == LL_PRECISION_tf32;
    p->n_micro = opts->n_micro > 0 ? opts->n_micro : 1;
    ll_lower_opts how = *opts;
    how.n_micro = p->n_micro;
    p->unrolled = how.pipe != NULL;
    ll_noting before = ll_kern_notes_to(opts->notes);
    ll_err rc = build(p, &lowered, &how);
    ll_kern_notes_to(before);
    TRY(rc);
    return LL_HAND(out, p);
}

void ll_program_free(ll_program *p)
{
    if (p) ll_arena_free(p->arena);
}

static int binding(const ll_binding *b, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(b[i].name, name)) return b[i].slot;
    return -1;
}

int ll_program_input(const ll_program *p, const char *name)
{
    return binding(p->inputs, p->n_input, name);
}

int ll_program_result(const ll_program *p, const char *name)
{
    return binding(p->results, p->n_result, name);
}
