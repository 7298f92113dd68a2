/* pipetree.c: two trees through which segments follow each other. Sums go up a tree and results
 * come down it, both at once: while one segment is at the root, those behind it are on their way
 * up and those before it on their way down.
 *
 * Why binary trees: a chain is p - 1 deep, where a ring does better, and the root of a binomial
 * tree has log2 p children, so it is busy for log2 p messages a segment. Why two: an inner rank of
 * a binary tree has three neighbours, sends each one message a segment and is busy for three; a
 * leaf for one. In the second tree ranks are numbered backwards, so that the leaves of one are the
 * inner ranks of the other, and each tree has one half of the data: four messages for two segments,
 * for everyone. So it sends twice the data, as a ring does, is log2 p deep, as a tree is, and hides
 * the sums, as neither does. (Sanders, Speck, Traff: Two-tree algorithms for full bandwidth
 * broadcast, reduction and scan, 2009.)
 *
 *     p = 6, as a heap: the children of v are 2 v + 1 and 2 v + 2
 *     first tree    0: 1 2    1: 3 4    2: 5          leaves 3 4 5
 *     second tree   5: 4 3    4: 2 1    3: 0          leaves 2 1 0
 *
 * Every message has its slot: a rank sends one message in a slot and receives one. Segment k uses
 * the slots of segment 0 plus k times a period, so all that a rank sends must be at different slots
 * modulo the period, and all that it receives too. That is a colouring of the edges of a graph with
 * senders on one side and receivers on the other, and such a graph needs no more colours than the
 * busiest rank has messages (Konig, 1916): that is the period, at most 4.
 *
 * The first segments are through after about 5 log2 p slots, and then two come every 4 slots. There
 * is no simple formula for the first: ranks do not wait for slots in which they have nothing to do.
 */
#include "base/num.h"
#include "sched/algos.h"

#include <string.h>

enum { SEGMENT = 16384, N_TREE = 2, MAX_PERIOD = 4 }; /* SEGMENT: elements by default */

/* Slots of segment 0 of a node's messages with its parent. */
typedef struct slots {
    int up, down;
} slots;

typedef struct trees {
    int size, period;
    slots *at[N_TREE]; /* [size], by node: numbered from the root, see rank_of */
} trees;

static int rank_of(const trees *t, int tree, int node)
{
    return tree ? t->size - 1 - node : node;
}

static int child(int node, int i)
{
    return 2 * node + 1 + i;
}

static int parent(int node)
{
    return (node - 1) / 2;
}

/* ---- colours ---- */
/* Who sends and who receives, with which slots. */
typedef struct edge {
    int from, to;
    int *colour;
} edge;

typedef struct colouring {
    edge *edges;
    int *from, *to; /* [rank * MAX_PERIOD + colour]: edge, or -1 */
} colouring;

static int free_colour(const int *of_rank)
{
    int c = 0;
    while (of_rank[c] >= 0) c++;
    return c;
}

/* Colours a and b change places along the path from receiver r on that begins with colour a. */
static void swap_path(const colouring *g, int r, int a, int b)
{
    int want = b; /* of the edge; `was` of the next */
    for (int e = g->to[r * MAX_PERIOD + a], side = 0; e >= 0; side = !side) {
        const edge *d = &g->edges[e];
        int *near = side ? &g->from[d->from * MAX_PERIOD] : &g->to[d->to * MAX_PERIOD];
        int *far = side ? &g->to[d->to * MAX_PERIOD] : &g->from[d->from * MAX_PERIOD];
        int was = want == b ? a : b, next = far[want];
        if (near[was] == e) near[was] = -1; /* else the edge before it is there by now */
        far[was] = -1;
        near[want] = far[want] = e;
        *d->colour = want;
        want = was;
        e = next;
    }
}

static void colour_edge(const colouring *g, int e)
{
    const edge *d = &g->edges[e];
    int *from = &g->from[d->from * MAX_PERIOD], *to = &g->to[d->to * MAX_PERIOD];
    int a = free_colour(from), b = free_colour(to);
    if (to[a] >= 0) swap_path(g, d->to, a, b);
    from[a] = to[a] = e;
    *d->colour = a;
}

/* The slots modulo the period. */
static void colour_all(ll_arena *arena, trees *t)
{
    int n = 0, size = t->size;
    colouring g = {.edges = LL_NEW_ARRAY(arena, edge, 2 * N_TREE * size),
                   .from = LL_NEW_ARRAY(arena, int, MAX_PERIOD *size),
                   .to = LL_NEW_ARRAY(arena, int, MAX_PERIOD *size)};
    int *sends = LL_NEW_ARRAY(arena, int, size);
    memset(g.from, -1, sizeof(int) * MAX_PERIOD * (size_t)size);
    memset(g.to, -1, sizeof(int) * MAX_PERIOD * (size_t)size);
    for (int tree = 0; tree < N_TREE; tree++)
        for (int v = 1; v < size; v++) {
            int r = rank_of(t, tree, v), q = rank_of(t, tree, parent(v));
            g.edges[n++] = (edge){r, q, &t->at[tree][v].up};
            g.edges[n++] = (edge){q, r, &t->at[tree][v].down};
            if (++sends[r] > t->period) t->period = sends[r];
            if (++sends[q] > t->period) t->period = sends[q]; /* and receives as many */
        }
    for (int e = 0; e < n; e++) colour_edge(&g, e);
}

/* ---- slots ---- */
/* The first slot from `earliest` on that is `want` modulo the period. */
static int at_least(const trees *t, int earliest, int want)
{
    return earliest + ((want - earliest) % t->period + t->period) % t->period;
}

/* When a node sums segment 0: the slot after its children's last message. */
static int sums_at(const trees *t, int tree, int node)
{
    int last = -1;
    for (int i = 0; i < 2 && child(node, i) < t->size; i++)
        if (t->at[tree][child(node, i)].up > last) last = t->at[tree][child(node, i)].up;
    return last + 1;
}

static trees trees_of(ll_arena *arena, int size)
{
    trees t = {.size = size};
    for (int tree = 0; tree < N_TREE; tree++) t.at[tree] = LL_NEW_ARRAY(arena, slots, size);
    colour_all(arena, &t);
    for (int tree = 0; tree < N_TREE; tree++) {
        slots *at = t.at[tree];
        for (int v = size - 1; v >= 0; v--) { /* up, when its sum is there */
            int sum = sums_at(&t, tree, v);
            /* The child that could be earlier waits, so that it is less than a period ahead. */
            for (int i = 0; i < 2 && child(v, i) < size; i++)
                at[child(v, i)].up += (sum - 1 - at[child(v, i)].up) / t.period * t.period;
            if (v) at[v].up = at_least(&t, sum ? sum + 1 : 0, at[v].up);
        }
        for (int v = 1; v < size; v++) {
            int has = parent(v) ? at[parent(v)].down : sums_at(&t, tree, 0);
            at[v].down = at_least(&t, has + 1, at[v].down);
        }
    }
    return t;
}

/* ---- steps ---- */
/* The segments of a tree's half of the data. */
typedef struct segments {
    int64_t from, to; /* the half */
    int n, period;
    int64_t room;
    /* What is_due found: the segment's number and elements. */
    int k;
    int64_t at, len;
} segments;

static segments segments_of(const ll_coll_spec *s, const trees *t, int tree)
{
    int64_t half = (s->count + 1) / N_TREE;
    segments g = {.n = ll_n_piece(half, s->segment ? s->segment : SEGMENT), .period = t->period};
    ll_share(s->count, N_TREE, tree, &g.from, &g.to);
    g.room = ll_ceil_div(half, g.n);
    return g;
}

/* Is something that is done with segment 0 at slot `first` done at this slot with some segment? */
static bool is_due(segments *g, int slot, int first)
{
    int64_t to;
    if (slot < first || (slot - first) % g->period) return false;
    g->k = (slot - first) / g->period;
    if (g->k >= g->n) return false;
    ll_share(g->to - g->from, g->n, g->k, &g->at, &to);
    g->len = to - g->at;
    g->at += g->from;
    return true;
}

/* Where child i's part of the segment waits for its sum: a rank is inner in one tree only. */
static int64_t waits_at(const segments *g, int i)
{
    return (g->k % 2 * 2 + i) * g->room;
}

static void do_slot(ll_steps *e, const trees *t, int tree, segments *g, int v, int slot)
{
    const slots *at = t->at[tree];
    int me = rank_of(t, tree, v), up = rank_of(t, tree, parent(v));
    int n_child = child(v, 1) < t->size ? 2 : child(v, 0) < t->size;
    if (v && is_due(g, slot, at[v].up)) ll_emit_send(e, up, LL_DATA, g->at, g->len);
    if (v && is_due(g, slot, at[v].down)) ll_emit_recv(e, up, LL_DATA, g->at, g->len);
    for (int i = 0; i < n_child; i++) {
        int c = child(v, i), r = rank_of(t, tree, c);
        if (is_due(g, slot, at[c].up)) ll_emit_recv(e, r, LL_SCRATCH, waits_at(g, i), g->len);
        if (is_due(g, slot, at[c].down)) ll_emit_send(e, r, LL_DATA, g->at, g->len);
    }
    if (n_child && is_due(g, slot, sums_at(t, tree, v))) {
        ll_ref from[3] = {{me, LL_DATA, g->at}};
        for (int i = 0; i < n_child; i++) from[1 + i] = (ll_ref){me, LL_SCRATCH, waits_at(g, i)};
        if (tree) { /* in the order of ranks, as in the first tree */
            ll_ref own = from[0];
            from[0] = from[n_child];
            from[n_child] = own;
        }
        ll_emit_fold_all(e, LL_DATA, g->at, from, 1 + n_child, g->len);
    }
}

/* The last slot of segment 0 in which a node does something. */
static int last_slot(const trees *t, int tree, int v)
{
    int last = t->at[tree][v].down;
    for (int i = 0; i < 2 && child(v, i) < t->size; i++)
        if (t->at[tree][child(v, i)].down > last) last = t->at[tree][child(v, i)].down;
    return last;
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    if (s->size < 2) return;
    trees t = trees_of(e->arena, s->size);
    segments g[N_TREE];
    int node[N_TREE], last = 0;
    for (int tree = 0; tree < N_TREE; tree++) {
        g[tree] = segments_of(s, &t, tree);
        node[tree] = rank_of(&t, tree, me); /* the numbering is its own inverse */
        int l = last_slot(&t, tree, node[tree]);
        if (l > last) last = l;
    }
    last += (g[0].n - 1) * t.period;
    for (int slot = 0; slot <= last; slot++) {
        for (int tree = 0; tree < N_TREE; tree++) do_slot(e, &t, tree, &g[tree], node[tree], slot);
        ll_emit_next(e);
    }
}

static bool canonical(const ll_coll_spec *s)
{
    return s->size < 4;
}

const ll_algo ll_algos_pipetree[] = {
    {.name = "pipetree",
     .coll = LL_COLL_ALLREDUCE,
     .help = "segments up and down two binary trees at once: 2 messages a segment, log2 p deep",
     .segmented = true,
     .emit = allreduce,
     .canonical = canonical},
    {0}};
