/* flight.c: what a collective needs while it is under way, and which collectives are one.
 *
 * Gradients are many and small: those that are scattered or gathered over the same ranks, and that
 * nobody reads before the section is over but means over micro-batches, are started together, as a
 * bundle of at most BUNDLE bytes. A bundle has the place of its last member, packs all of them, and
 * is awaited as one.
 *
 *     nodes    dw3  scatter  mean   dw2  scatter  mean   dw1 ...
 *     list     dw3                  dw2  scatter (of both)  mean  mean   dw1 ...
 *
 * Members are as large on one rank of the group as on another, so all bundle alike. */
#include "kern/attr.h"
#include "program/memory.h"

#include <string.h>

enum { BUNDLE = 1 << 20 };

static int readers(const ll_graph *g, ll_val v)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) n += g->nodes[i].in[k].id == v.id;
    for (int i = 0; i < g->n_result; i++) n += g->results[i].value.id == v.id;
    for (int i = 0; i < g->n_update; i++) n += g->updates[i].next.id == v.id;
    return n;
}

/* Whether v's bytes, through aliases, are read by one node alone. */
static bool read_once(const ll_graph *g, ll_val v, int n_micro)
{
    for (;;) {
        int m = ll_value_of(g, v)->node;
        if (m < 0 || readers(g, v) != 1) return false;
        if (!ll_is_alias(&g->nodes[m], n_micro)) return true;
        v = g->nodes[m].in[0];
    }
}

/* Is a range of this dimension one piece of memory? */
static bool outermost(const ll_shape *s, int64_t dim)
{
    int64_t n = 1;
    for (int d = 0; d < dim; d++) n *= s->d[d];
    return n == 1;
}

/* Room for what goes to each rank, and for what comes: bytes. */
static size_t exchanged(const ll_node *n, const ll_value *in, const ll_value *out)
{
    size_t given = ll_value_bytes(in), taken = ll_value_bytes(out);
    if (n->op->collective == LL_HALO) {
        const ll_halo_attr *h = (const ll_halo_attr *)n->attr;
        /* Each neighbour is sent at most what this rank owns. */
        int64_t own = in->type.shape.d[h->dim], wanted = 0;
        for (int k = 0; k < LL_HALO_MAX; k++) {
            int64_t w = h->need[2 * k + 1] - h->need[2 * k];
            wanted += w < own ? w : own;
        }
        given = own ? given / (size_t)own * (size_t)wanted : 0;
    }
    return given + taken + 128;
}

ll_flight ll_flight_of(const ll_graph *g, const ll_node *n, int n_micro)
{
    const ll_value *in = ll_value_of(g, n->in[0]), *out = ll_value_of(g, n->out[0]);
    const ll_coll_attr *a = (const ll_coll_attr *)n->attr;
    ll_flight f = {0};
    if (n->op->collective == LL_ALL_REDUCE) {
        f.early = true;
    } else if (n->op->collective == LL_ROTATE) {
        f.early = f.holds = true;
    } else if (n->op->collective == LL_ALL_GATHER) {
        f.early = outermost(&in->type.shape, a->dim);
        f.packing = f.early ? 0 : ll_value_bytes(out);
    } else if (n->op->collective == LL_REDUCE_SCATTER) {
        /* it sums in its operand, if nobody else reads that */
        f.holds = outermost(&in->type.shape, a->dim) && read_once(g, n->in[0], n_micro);
        f.packing = f.holds ? 0 : ll_value_bytes(in);
    } else
        f.packing = exchanged(n, in, out);
    return f;
}

/* ---- bundles ---- */

typedef struct bundle {
    const ll_node *first;
    int last; /* node index of the newest member */
    bool joins_last;
    size_t bytes;
} bundle;

typedef struct bundler {
    ll_order *o;
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

static size_t bundled_bytes(const ll_graph *g, const ll_node *n)
{
    bool gather = n->op->collective == LL_ALL_GATHER;
    return ll_value_bytes(ll_value_of(g, gather ? n->out[0] : n->in[0]));
}

static bool may_bundle(const bundler *b, int node)
{
    const ll_node *n = &b->o->g->nodes[node];
    return (n->op->collective == LL_ALL_GATHER || n->op->collective == LL_REDUCE_SCATTER) &&
           !b->read[node] && maker(b->o, n->in[0]) >= 0 && bundled_bytes(b->o->g, n) < BUNDLE;
}

static bool fits(const bundler *b, const bundle *x, int node)
{
    const ll_node *n = &b->o->g->nodes[node];
    const ll_coll_attr *p = (const ll_coll_attr *)x->first->attr;
    const ll_coll_attr *q = (const ll_coll_attr *)n->attr;
    return x->first->op == n->op && p->axes == q->axes && p->max == q->max &&
           x->joins_last == b->o->last[node] &&
           ll_graph_dtype(b->o->g, x->first->in[0]) == ll_graph_dtype(b->o->g, n->in[0]) &&
           x->bytes + bundled_bytes(b->o->g, n) <= BUNDLE;
}

/* Each member knows the one before it; the last stands for all. */
static void join(ll_order *o, bundle *x, int node)
{
    o->mate[node] = x->last + 1;
    for (int k = node; k >= 0; k = o->mate[k] - 1) {
        o->joint[k] = node;
        o->flight[k] = (ll_flight){0};
    }
    x->last = node;
    x->bytes += bundled_bytes(o->g, &o->g->nodes[node]);
    o->flight[node].packing = x->bytes;
}

static void find_bundles(bundler *b, ll_arena *arena)
{
    bundle *open = LL_NEW_ARRAY(arena, bundle, b->n + 1);
    int n_open = 0;
    for (int i = 0; i < b->n; i++) {
        int node = b->list[i], k = 0;
        if (!may_bundle(b, node)) continue;
        while (k < n_open && !fits(b, &open[k], node)) k++;
        if (k < n_open) {
            join(b->o, &open[k], node);
            continue;
        }
        const ll_node *n = &b->o->g->nodes[node];
        open[n_open++] = (bundle){n, node, b->o->last[node], bundled_bytes(b->o->g, n)};
    }
}

static bool waits(const bundler *b, int node)
{
    const ll_node *n = &b->o->g->nodes[node];
    for (int k = 0; k < n->n_in; k++) {
        int m = maker(b->o, n->in[k]);
        if (m >= 0 && b->late[m]) return true;
    }
    return false;
}

static void list_one(bundler *b, int node)
{
    b->out[b->n_out++] = node;
    for (int k = node; k >= 0; k = b->o->mate[k] - 1) b->late[k] = false;
}

/* A node of the new list; behind the last of a bundle what waited for it. */
static void list_on(bundler *b, int node)
{
    list_one(b, node);
    for (bool again = b->o->mate[node]; again;) {
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
            again |= b->o->mate[k] > 0;
        }
    }
}

int ll_bundle(ll_order *o, int *list, int n, ll_arena *arena)
{
    int nodes = o->g->n_node + 1;
    bundler b = {.o = o, .list = list, .n = n};
    b.read = LL_NEW_ARRAY(arena, bool, nodes);
    b.late = LL_NEW_ARRAY(arena, bool, nodes);
    b.waiting = LL_NEW_ARRAY(arena, int, nodes);
    b.out = LL_NEW_ARRAY(arena, int, nodes);
    for (int i = 0; i < n; i++) {
        const ll_node *x = &o->g->nodes[list[i]];
        for (int k = 0; k < x->n_in && strcmp(x->op->name, "accum"); k++) {
            int m = maker(o, x->in[k]);
            if (m >= 0) b.read[m] = true;
        }
    }
    find_bundles(&b, arena);
    for (int i = 0; i < n; i++) {
        int node = list[i];
        bool member = o->joint[node] != node;
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
