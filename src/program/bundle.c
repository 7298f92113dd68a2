/* bundle.c: which collectives are one. Gradients are many and small: those that are summed,
 * scattered or gathered over the same ranks, and that nobody reads before the section is over but
 * means over micro-batches, are started together as a bundle. It has the place of its last member,
 * and is awaited as one.
 *
 *     nodes    dw3  scatter  mean   dw2  scatter  mean   dw1 ...
 *     list     dw3                  dw2  scatter (of both)  mean  mean   dw1 ...
 *
 * Sums of a few numbers, once a step (norms of tensors that are cut), are one too where none
 * depends on another: each has as many collectives before it. What reads the first waits for all.
 *
 * A member joins the newest bundle of its kind, until that is full: sums of gradients are so large
 * together as ll_lower_opts says, or of a fixed size where they are compressed, for what a codec
 * makes of a tensor depends on its neighbours. Ranks that hold the same parameter must add the same
 * to it: compressed ones share a bundle only where the same axes cut them. Sizes are those of the
 * largest part of any rank, so that all ranks bundle alike, whatever their own parts are. */
#include "op/ops.h"
#include "program/memory.h"

enum { SMALL = 1 << 20, COMPRESSED = 4 << 20, TINY = 4096 };

typedef struct bundle {
    const ll_node *first;
    int last; /* node index of the newest member */
    size_t bytes;
} bundle;

typedef struct bundler {
    ll_order *o;
    const ll_lower_opts *opts;
    int section;
    int *level;   /* node -> collectives of this section on the way to it */
    int *list, n; /* as it was */
    bool *read;   /* node -> read in this section, by others than means */
    bool *late;   /* node -> waits for a bundle */
    int *waiting, n_waiting;
    int *out, n_out;
} bundler;

static int maker(const ll_order *o, ll_val v)
{
    return ll_value_of(o->g, ll_alias_root(o->g, v, o->n_micro))->node;
}

static const ll_coll_attr *attr_of(const bundler *b, int node)
{
    return (const ll_coll_attr *)b->o->g->nodes[node].attr;
}

static bool is_sum(const bundler *b, int node)
{
    return b->o->g->nodes[node].op->collective == LL_ALL_REDUCE && !attr_of(b, node)->max;
}

/* A gradient that is summed once a step, and goes through a codec. */
static bool is_compressed(const bundler *b, int node, int section)
{
    if (!is_sum(b, node) || !(attr_of(b, node)->axes & b->opts->compress)) return false;
    const ll_value *v = ll_value_of(b->o->g, b->o->g->nodes[node].in[0]);
    return v->type.dtype == LL_F32 && v->gradient_of &&
           (b->o->last[node] ? !b->read[node] : section != LL_MICRO);
}

/* Of its packed operand, or result: on this rank, and on the one that has most. */
static size_t own_bytes(const bundler *b, int node)
{
    const ll_node *n = &b->o->g->nodes[node];
    bool gather = n->op->collective == LL_ALL_GATHER;
    return ll_type_bytes(&ll_value_of(b->o->g, gather ? n->out[0] : n->in[0])->type);
}

static size_t most_bytes(const bundler *b, int node)
{
    int64_t most = attr_of(b, node)->most;
    size_t each = ll_dtype_bytes(ll_graph_dtype(b->o->g, b->o->g->nodes[node].in[0]));
    return most ? (size_t)most * each : own_bytes(b, node);
}

static size_t limit(const bundler *b, int node)
{
    if (!is_sum(b, node)) return SMALL;
    if (b->o->compressed[node]) return COMPRESSED;
    return b->opts->bucket_bytes ? b->opts->bucket_bytes : b->opts->target->bucket_bytes;
}

static bool is_tiny(const bundler *b, int node)
{
    return b->section != LL_MICRO && is_sum(b, node) && most_bytes(b, node) <= TINY &&
           !b->o->compressed[node];
}

static bool may_bundle(const bundler *b, int node)
{
    if (is_tiny(b, node)) return true;
    const ll_node *n = &b->o->g->nodes[node];
    ll_collective kind = n->op->collective;
    if (b->read[node]) return false;
    if (is_sum(b, node)) return b->o->last[node];
    return (kind == LL_ALL_GATHER || kind == LL_REDUCE_SCATTER) && maker(b->o, n->in[0]) >= 0 &&
           most_bytes(b, node) < SMALL;
}

static bool same_kind(const bundler *b, const bundle *x, int node)
{
    const ll_order *o = b->o;
    const ll_node *n = &o->g->nodes[node];
    const ll_coll_attr *p = (const ll_coll_attr *)x->first->attr, *q = attr_of(b, node);
    bool any = b->opts->subsets && is_sum(b, node) && !o->compressed[node];
    return x->first->op == n->op && (p->axes == q->axes || any) && p->max == q->max &&
           o->last[x->last] == o->last[node] && o->compressed[x->last] == o->compressed[node] &&
           (!o->compressed[node] || p->cut == q->cut) &&
           (!is_tiny(b, node) || b->level[x->last] == b->level[node]) &&
           ll_graph_dtype(o->g, x->first->in[0]) == ll_graph_dtype(o->g, n->in[0]);
}

/* Each member knows the one before it; the last stands for all. Sums lie where their operands do,
 * and are packed by whoever runs them. */
static void join(const bundler *b, bundle *x, int node)
{
    ll_order *o = b->o;
    size_t packing = 0;
    o->before[node] = x->last + 1;
    for (int k = node; k >= 0; k = o->before[k] - 1) {
        o->bundle[k] = node;
        packing += own_bytes(b, k);
        if (!is_sum(b, node)) o->flight[k] = (ll_flight){0};
    }
    if (!is_sum(b, node)) o->flight[node].packing = packing;
    x->last = node;
    x->bytes += most_bytes(b, node);
}

static void find_bundles(bundler *b, ll_arena *arena)
{
    bundle *open = LL_NEW_ARRAY(arena, bundle, b->n + 1); /* the newest of each kind */
    int n_open = 0;
    for (int i = 0; i < b->n; i++) {
        int node = b->list[i], k = 0;
        if (!may_bundle(b, node)) continue;
        while (k < n_open && !same_kind(b, &open[k], node)) k++;
        size_t bytes = most_bytes(b, node);
        bool full =
            k == n_open || (open[k].bytes && bytes && open[k].bytes + bytes > limit(b, node));
        if (!full) {
            join(b, &open[k], node);
            continue;
        }
        open[k] = (bundle){&b->o->g->nodes[node], node, bytes};
        n_open += k == n_open;
    }
}

/* Is something late that a node reads, or a member of the bundle that it is the last of? */
static bool waits(const bundler *b, int node)
{
    for (; node >= 0; node = b->o->before[node] - 1) {
        const ll_node *n = &b->o->g->nodes[node];
        for (int k = 0; k < n->n_in; k++) {
            int m = maker(b->o, n->in[k]);
            if (m >= 0 && b->late[m]) return true;
        }
    }
    return false;
}

static void list_one(bundler *b, int node)
{
    b->out[b->n_out++] = node;
    for (int k = node; k >= 0; k = b->o->before[k] - 1) b->late[k] = false;
}

/* A node of the new list; behind the last of a bundle what waited for it. */
static void list_on(bundler *b, int node)
{
    list_one(b, node);
    for (bool again = b->o->before[node]; again;) {
        int n = b->n_waiting;
        again = false;
        b->n_waiting = 0;
        for (int i = 0; i < n; i++) {
            int k = b->waiting[i];
            if (waits(b, k)) {
                b->waiting[b->n_waiting++] = k;
                continue;
            }
            list_one(b, k);
            again |= b->o->before[k] > 0;
        }
    }
}

static void find_levels(bundler *b, ll_arena *arena)
{
    const ll_graph *g = b->o->g;
    int *adds = LL_NEW_ARRAY(arena, int, g->n_node + 1);
    for (int i = 0; i < b->n; i++) adds[b->list[i]] = g->nodes[b->list[i]].op->collective ? 1 : 0;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int m = maker(b->o, g->nodes[i].in[k]);
            if (m >= 0 && b->level[m] + adds[m] > b->level[i]) b->level[i] = b->level[m] + adds[m];
        }
}

int ll_bundle(ll_order *o, const ll_lower_opts *opts, int section, int *list, int n,
              ll_arena *arena)
{
    bundler b = {.o = o, .opts = opts, .section = section, .list = list, .n = n};
    LL_ARRAYS(arena, o->g->n_node + 1, b.level, b.read, b.late, b.waiting, b.out);
    find_levels(&b, arena);
    for (int i = 0; i < n; i++) {
        const ll_node *x = &o->g->nodes[list[i]];
        for (int k = 0; k < x->n_in && x->op != &ll_op_accum; k++) {
            int m = maker(o, x->in[k]);
            if (m >= 0) b.read[m] = true;
        }
    }
    for (int i = 0; i < n; i++) o->compressed[list[i]] = is_compressed(&b, list[i], section);
    find_bundles(&b, arena);
    for (int i = 0; i < n; i++) {
        int node = list[i];
        bool member = o->bundle[node] != node;
        if (!member && !waits(&b, node)) {
            list_on(&b, node);
            continue;
        }
        b.late[node] = true;
        if (!member) b.waiting[b.n_waiting++] = node;
    }
    LL_ASSERT(!b.n_waiting);
    memcpy(list, b.out, sizeof *list * (size_t)b.n_out);
    return b.n_out;
}
