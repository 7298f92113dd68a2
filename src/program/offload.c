/* offload.c: values laid aside: to a file, or to other memory that is not the slab's, while nobody
 * reads them (KARMA: Wahib et al., 2020). Two nodes do that:
 *
 *     forward     x -> ... ; h = store(x)             x's bytes are free when the copy is made
 *     backward    ... ; y = load(h) ; ... reads y     it is read back ahead of its reader
 *
 * h has x's type, and lies in region LL_ASIDE, where no kernel works. State that the update alone
 * reads (moments) is there always: its update is a store over what a load has read.
 *
 * How long nodes and copies take is the target's to say (ll_aside_place).
 *
 * Copies are made beside the kernels, one behind another. A store begins where its value is made
 * and is awaited when, by the costs of nodes and copies, it is over; a load begins so early that it
 * is over when its reader comes. No more than AHEAD stores, and as many loads, are under way: where
 * copies take longer than the arithmetic, ranks wait for them, and memory stays what was planned.
 *
 * What is laid aside is as little as will do: first values whose copies are hidden best, the time
 * that they lie unread over that of a copy; the state where activations hide less well than that;
 * and as many of these as the program then needs, as planned (ll_lower), to be within the limit. */
#include "program/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    SMALLEST = 512, /* bytes that are worth a copy */
    AHEAD = 2
};
static const double STATE_RATE = 2; /* its copies are hidden by the update alone */

static ll_err loops(const void *, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    snprintf(dims, LL_DIMS_TEXT, "%.*s->%.*s", in[0].shape.n, "______", in[0].shape.n, "______");
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    i->out[0] = i->in[0];
    return LL_OK;
}

#define COPY .work = LL_WORK_COPY, .n_in = 1, .n_out = 1, .loops = loops, .infer = infer
const ll_op ll_op_store = {.name = "store", COPY};
const ll_op ll_op_load = {.name = "load", COPY};

/* ---- what may be laid aside ---- */

typedef struct ll_lull { /* a value that nobody reads for a while */
    int value;
    int from, to; /* nodes: its last reader before, or its maker; the first one after */
    int update;   /* of state: which update makes its next value; -1: it is none */
    double rate;  /* the time that it lies unread, over that of a copy */
    double copy;  /* that time */
} ll_lull;

struct ll_offload {
    const ll_graph *g;
    int n_micro;
    const ll_aside_place *place;
    double flop; /* of place, in the program's precision */
    ll_arena *arena;
    int first_once;    /* the first node of the update */
    double *time;      /* [n_node + 1] before each node */
    int *root;         /* [n_value] the value whose bytes it shows */
    int *first, *last; /* [n_value] nodes that read it, or what shows its bytes */
    int *sent;         /* [n_value] the last collective of these */
    ll_lull *lulls;    /* the best first */
    int n;
};

static void find_times(ll_offload *f)
{
    const ll_graph *g = f->g;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        bool runs = !ll_is_alias(n, f->n_micro) && !n->op->collective;
        double takes =
            f->flop * ll_node_flops(g, n) + f->place->byte * ll_node_bytes(g, n) + f->place->node;
        f->time[i + 1] = f->time[i] + (runs ? takes : 0);
    }
}

static void find_readers(ll_offload *f)
{
    const ll_graph *g = f->g;
    for (int v = 0; v < g->n_value; v++) f->first[v] = g->n_node;
    for (int i = g->n_node - 1; i >= 0; i--) {
        const ll_node *n = &g->nodes[i];
        bool shows = ll_is_alias(n, f->n_micro);
        int first = shows ? f->first[n->out[0].id] : i, last = shows ? f->last[n->out[0].id] : i;
        for (int k = 0; k < n->n_in; k++) {
            int v = n->in[k].id;
            if (first < f->first[v]) f->first[v] = first;
            if (last > f->last[v]) f->last[v] = last;
        }
    }
}

/* Of each value the longest time between two nodes that read it, or its maker and one. */
static void find_longest(ll_offload *f, ll_lull *of)
{
    const ll_graph *g = f->g;
    int *last = LL_NEW_ARRAY(f->arena, int, g->n_value);
    for (int v = 1; v < g->n_value; v++) last[v] = g->values[v].node;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        for (int k = 0; k < n->n_in && !ll_is_alias(n, f->n_micro); k++) {
            int v = f->root[n->in[k].id];
            double unread = f->time[i] - f->time[last[v] + 1];
            if (last[v] < i && last[v] >= 0 && unread > of[v].rate)
                of[v] = (ll_lull){.from = last[v], .to = i, .update = -1, .rate = unread};
            last[v] = i;
            if (n->op->collective) f->sent[v] = i;
        }
    }
}

static bool sums(const ll_node *n)
{
    return n->op == &ll_op_accum || n->op == &ll_op_accum_on;
}

/* Activations: made in a micro-batch, read in it again; not what is seen outside of it. Nor what a
 * collective reads then: that would start later than on ranks that have room for it. */
static bool may_go(const ll_offload *f, int v, const ll_lull *x)
{
    const ll_graph *g = f->g;
    int m = g->values[v].node;
    if (m < 0 || f->root[v] != v || !x->to || ll_type_bytes(&g->values[v].type) < SMALLEST)
        return false;
    const ll_node *made = &g->nodes[m], *reads = &g->nodes[x->to];
    if ((made->op->collective && x->from == m) || f->sent[v] >= x->to) return false;
    return made->of.phase != LL_ONCE && reads->of.phase != LL_ONCE && !sums(made) && !sums(reads);
}

/* State that the update alone reads, and makes anew. */
static bool find_state(const ll_offload *f, const int *readers, int u, ll_lull *out)
{
    const ll_graph *g = f->g;
    ll_pair p = g->updates[u];
    const ll_value *v = ll_value_of(g, p.input);
    int maker = ll_value_of(g, p.next)->node, first = -1;
    if (v->kind != LL_STATE || ll_type_bytes(&v->type) < SMALLEST || maker < 0) return false;
    if (g->nodes[maker].op->alias || sums(&g->nodes[maker])) return false;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            if (g->nodes[i].in[k].id != p.input.id) continue;
            if (g->nodes[i].op->alias || g->nodes[i].of.phase != LL_ONCE || i > maker) return false;
            if (first < 0) first = i;
        }
    *out = (ll_lull){.value = p.input.id, .from = maker, .to = first, .update = u};
    out->rate = STATE_RATE;
    return first >= 0 && readers[p.input.id] >= 0;
}

static int best_first(const void *a, const void *b)
{
    const ll_lull *x = (const ll_lull *)a, *y = (const ll_lull *)b;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    return x->value - y->value;
}

static double copy_time(const ll_offload *f, const ll_value *v)
{
    return f->place->copied * (double)ll_type_bytes(&v->type) + f->place->copy;
}

ll_offload *ll_offload_find(const ll_graph *g, const ll_lower_opts *opts, ll_arena *arena)
{
    int n_micro = opts->n_micro;
    ll_offload *f = LL_NEW(arena, ll_offload);
    *f = (ll_offload){.g = g, .n_micro = n_micro, .arena = arena, .first_once = g->n_node};
    f->place = &opts->target->aside;
    f->flop = f->place->flop[opts->precision];
    f->time = LL_NEW_ARRAY(arena, double, g->n_node + 1);
    f->lulls = LL_NEW_ARRAY(arena, ll_lull, g->n_value + g->n_update);
    ll_lull *of;
    int *seen; /* -1: as a result, or an update */
    LL_ARRAYS(arena, g->n_value, f->root, f->first, f->last, f->sent, of, seen);
    for (int v = 1; v < g->n_value; v++) f->root[v] = ll_alias_root(g, (ll_val){v}, n_micro).id;
    for (int i = g->n_node - 1; i >= 0; i--)
        if (g->nodes[i].of.phase == LL_ONCE) f->first_once = i;
    for (int i = 0; i < g->n_result; i++) seen[f->root[g->results[i].value.id]] = -1;
    for (int i = 0; i < g->n_update; i++) seen[f->root[g->updates[i].next.id]] = -1;
    find_times(f);
    find_readers(f);
    find_longest(f, of);
    for (int v = 1; v < g->n_value; v++) {
        if (seen[v] < 0 || !may_go(f, v, &of[v])) continue;
        of[v].value = v;
        of[v].rate /= copy_time(f, &g->values[v]);
        f->lulls[f->n++] = of[v];
    }
    for (int u = 0; u < g->n_update; u++)
        if (find_state(f, seen, u, &f->lulls[f->n])) f->n++;
    for (int i = 0; i < f->n; i++) f->lulls[i].copy = copy_time(f, &g->values[f->lulls[i].value]);
    qsort(f->lulls, (size_t)f->n, sizeof *f->lulls, best_first);
    return f;
}

int ll_offload_most(const ll_offload *f)
{
    return f->n;
}

/* ---- when copies are made ---- */

typedef struct copy {
    const ll_lull *of;
    int maker;    /* the node behind which a store begins; -1: there is none before the load */
    int start;    /* of a load: the node before which it begins */
    int until;    /* of a store: the node before which it is awaited */
    ll_val aside; /* what was stored, in the new graph */
} copy;

/* The first node that begins at a time, or later. */
static int node_at(const ll_offload *f, double time)
{
    int low = 0, high = f->g->n_node;
    while (low < high) {
        int middle = (low + high) / 2;
        if (f->time[middle] < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int by_load(const void *a, const void *b)
{
    const copy *x = *(copy *const *)a, *y = *(copy *const *)b;
    return x->of->to != y->of->to ? x->of->to - y->of->to : x->of->value - y->of->value;
}

static int by_store(const void *a, const void *b)
{
    const copy *x = *(copy *const *)a, *y = *(copy *const *)b;
    return x->maker != y->maker ? x->maker - y->maker : x->of->value - y->of->value;
}

/* Backwards: each is over when its reader comes, and when the next one begins; state from node
 * `once` on. */
static void time_loads(const ll_offload *f, copy **c, int n, int once)
{
    double next = INFINITY;
    qsort(c, (size_t)n, sizeof *c, by_load);
    for (int i = n - 1; i >= 0; i--) {
        const ll_lull *x = c[i]->of;
        next = fmin(next, f->time[x->to]) - x->copy;
        int least = x->update >= 0 ? once : x->from + 1;
        if (i >= AHEAD && c[i - AHEAD]->of->to > least) least = c[i - AHEAD]->of->to;
        c[i]->start = node_at(f, next);
        if (c[i]->start < least) c[i]->start = least;
        if (c[i]->start > x->to) c[i]->start = x->to;
    }
}

/* Forwards: each begins when its value is made, and the one before it is over. */
static void time_stores(const ll_offload *f, copy **c, int n)
{
    double over = 0;
    qsort(c, (size_t)n, sizeof *c, by_store);
    for (int i = 0; i < n; i++) {
        int at = c[i]->maker + 1;
        over = fmax(over, f->time[at]) + c[i]->of->copy;
        c[i]->until = node_at(f, over);
        if (i + AHEAD < n && c[i + AHEAD]->maker + 1 < c[i]->until)
            c[i]->until = c[i + AHEAD]->maker + 1;
        if (c[i]->until <= at) c[i]->until = at + 1;
        if (c[i]->of->update < 0 && c[i]->until > c[i]->of->to) c[i]->until = c[i]->of->to;
    }
}

/* ---- the new graph ---- */

typedef struct writer {
    const ll_offload *f;
    ll_rewrite rw;
    ll_offloaded *out;
    int *to_new;            /* [n_node + 1] where a node came to be */
    copy **loads, **stores; /* in the order that they begin in */
    int *load_at; /* [n_value] the node before which it is loaded; 0: it is not, or state */
    int n, next_load, next_store;
    ll_val *next_of; /* [n_update] what was stored of state; 0: it is not */
} writer;

static void hand_on(writer *w, const ll_node *like)
{
    ll_node *made = &w->rw.to->nodes[w->rw.to->n_node - 1];
    made->micro = like->micro;
    made->action = like->action;
    made->before = like->before;
}

static ll_err write_copy(writer *w, const ll_op *op, ll_val of, const ll_node *like, ll_val *out)
{
    ll_graph_at(w->rw.to, like);
    TRY(ll_emit_all(w->rw.to, op, NULL, &of, 1, out));
    hand_on(w, like);
    return LL_OK;
}

/* Readers from here on find what is loaded; what shows its bytes to one of them does so anew. */
static ll_err write_load(writer *w, copy *c, int at)
{
    const ll_graph *g = w->f->g;
    int v = c->of->value;
    ll_val from = c->of->update >= 0 ? w->rw.map[v] : c->aside, out;
    TRY(write_copy(w, &ll_op_load, from, &g->nodes[at], &out));
    w->rw.map[v] = out;
    for (int i = 0; i < at && c->of->update < 0; i++) {
        const ll_node *n = &g->nodes[i];
        if (!ll_is_alias(n, w->f->n_micro) || w->f->root[n->out[0].id] != v) continue;
        if (w->f->last[n->out[0].id] < at) continue;
        TRY(ll_rewrite_copy(&w->rw, n));
        hand_on(w, &g->nodes[at]);
    }
    return LL_OK;
}

static ll_err write_stores(writer *w, int node)
{
    const ll_graph *g = w->f->g;
    for (; w->next_store < w->n && w->stores[w->next_store]->maker == node; w->next_store++) {
        copy *c = w->stores[w->next_store];
        int u = c->of->update;
        ll_val of = u >= 0 ? g->updates[u].next : (ll_val){c->of->value};
        TRY(write_copy(w, &ll_op_store, w->rw.map[of.id], &g->nodes[node], &c->aside));
        w->out->until[w->rw.to->n_node - 1] = c->until;
        if (u >= 0) w->next_of[u] = c->aside;
    }
    return LL_OK;
}

static int earlier_load(const void *a, const void *b)
{
    const copy *x = *(copy *const *)a, *y = *(copy *const *)b;
    return x->start != y->start ? x->start - y->start : by_load(a, b);
}

/* Shows bytes that nobody reads before they are loaded: then it is made anew, and here it would be
 * a node that nobody reads. */
static bool shown_later(const writer *w, int i)
{
    const ll_node *n = &w->f->g->nodes[i];
    if (!ll_is_alias(n, w->f->n_micro)) return false;
    int v = n->out[0].id, load = w->load_at[w->f->root[v]];
    return load > i && w->f->first[v] >= load;
}

static ll_err write_nodes(writer *w)
{
    const ll_graph *g = w->f->g;
    for (int i = 0; i < g->n_node; i++) {
        for (; w->next_load < w->n && w->loads[w->next_load]->start == i; w->next_load++)
            TRY(write_load(w, w->loads[w->next_load], i));
        w->to_new[i] = w->rw.to->n_node;
        if (shown_later(w, i)) continue;
        TRY(ll_rewrite_copy(&w->rw, &g->nodes[i]));
        hand_on(w, &g->nodes[i]);
        TRY(write_stores(w, i));
    }
    w->to_new[g->n_node] = w->rw.to->n_node;
    return LL_OK;
}

/* What was known of nodes, of their new places. */
static void hand_on_facts(writer *w, const ll_unrolled *un, bool *last)
{
    ll_offloaded *out = w->out;
    for (int i = 0; i < w->rw.to->n_node; i++)
        if (out->until[i]) out->until[i] = w->to_new[out->until[i]];
    if (!un->g) return;
    out->un = *un;
    for (int i = 0; i < w->f->g->n_node; i++) {
        last[w->to_new[i]] = un->last[i];
        if (un->until[i]) out->until[w->to_new[i]] = w->to_new[un->until[i]];
    }
    out->un.n_each = un->n_each < w->f->g->n_node ? w->to_new[un->n_each] : w->rw.to->n_node;
    out->un.until = out->until;
    out->un.last = last;
}

/* Where a value is there: what other ranks send has come when it is read, not when asked for. */
static int store_behind(const ll_graph *g, const ll_lull *x)
{
    int maker = g->values[x->value].node;
    return g->nodes[maker].op->collective ? x->from : maker;
}

ll_err ll_offload_write(const ll_offload *f, int n, const ll_unrolled *un, ll_offloaded *out)
{
    const ll_graph *g = f->g;
    ll_arena *a = f->arena;
    copy *copies;
    int room = 2 * (g->n_node + g->n_value) + 2;
    *out = (ll_offloaded){.until = LL_NEW_ARRAY(a, int, room)};
    writer w = {.f = f, .out = out, .n = n, .to_new = LL_NEW_ARRAY(a, int, g->n_node + 1)};
    LL_ARRAYS(a, n + 1, copies, w.loads, w.stores);
    w.next_of = LL_NEW_ARRAY(a, ll_val, g->n_update + 1);
    for (int i = 0; i < n; i++) {
        const ll_lull *x = &f->lulls[i];
        copies[i].of = x;
        copies[i].maker = x->update >= 0 ? x->from : store_behind(g, x);
        w.loads[i] = w.stores[i] = &copies[i];
    }
    time_loads(f, w.loads, n, un->g && un->n_each > f->first_once ? un->n_each : f->first_once);
    time_stores(f, w.stores, n);
    w.load_at = LL_NEW_ARRAY(a, int, g->n_value);
    for (int i = 0; i < n; i++)
        if (copies[i].of->update < 0) w.load_at[copies[i].of->value] = copies[i].start;
    qsort(w.loads, (size_t)n, sizeof *w.loads, earlier_load);
    ll_rewrite_begin(&w.rw, g);
    ll_err rc = write_nodes(&w);
    if (rc == LL_OK) hand_on_facts(&w, un, LL_NEW_ARRAY(a, bool, room));
    for (int i = 0; i < g->n_update; i++) /* which have been read; the input is one still */
        w.rw.map[g->updates[i].input.id] =
            ll_find(w.rw.to, ll_value_of(g, g->updates[i].input)->name);
    TRY(ll_rewrite_end(&w.rw, rc, &out->g));
    for (int i = 0; i < g->n_update; i++)
        if (w.next_of[i].id) out->g->updates[i].next = w.next_of[i];
    return LL_OK;
}
