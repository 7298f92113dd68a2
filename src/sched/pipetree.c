/* pipetree.c: a tree through which segments follow each other. Sums go up a binary tree (the
 * children of rank v are 2 v + 1 and 2 v + 2) and results come down it, both at once: while one
 * segment is near the root, the ones behind it are on their way up and the ones before it on their
 * way down. Why binary, and neither a chain nor a binomial tree: a chain keeps a rank busy for 2
 * messages a segment, but is p - 1 deep, where a ring does better; a binomial tree's root has
 * log2 p children, so it is busy for log2 p messages a segment. Here it is 3 messages a segment,
 * and log2 p levels: for data too large for a tree on ranks too many for a ring.
 *
 * Every message has its slot. A rank sends one message in a slot, receives one, and sums one
 * segment; segment k uses the slots of segment 0 plus k times the period. The period is the number
 * of messages that the busiest rank receives or sends for a segment: 1 for two ranks, 2 up to four,
 * 3 beyond. What a rank sends (to its parent, to each child) must be at different slots modulo the
 * period, and what it receives too:
 *
 *     p = 3, period 2     slot 0      1           2           3           4           5
 *     up                  1: a        2: a        1: b        2: b
 *     rank 0                                      sums a                  sums b
 *     down                                                    1: a        2: a        1: b ...
 *
 * Such slots always exist: if a rank's messages to and from its parent are at x and y modulo 3, its
 * children's go up at y + 1 and y + 2, and down to them at x + 1 and x + 2.
 *
 * The order of summation is the tree's, own + left + right, not the canonical one. */
#include "sched/algos.h"

enum { SEGMENT = 16384 }; /* elements by default */

/* Slots of segment 0 of a rank's messages with its parent. */
typedef struct slots {
    int up, down;
} slots;

typedef struct pipe_tree {
    int size, period;
    slots *at; /* [size] */
} pipe_tree;

/* The first slot from `earliest` on that is `want` modulo the period. */
static int at_least(int earliest, int want, int period)
{
    return earliest + ((want - earliest) % period + period) % period;
}

static int child(int v, int i)
{
    return 2 * v + 1 + i;
}

/* When rank v sums segment 0: the slot after its children's last message. */
static int sums_at(const pipe_tree *t, int v)
{
    int last = -1;
    for (int i = 0; i < 2 && child(v, i) < t->size; i++)
        if (t->at[child(v, i)].up > last) last = t->at[child(v, i)].up;
    return last + 1;
}

static pipe_tree tree_of(ll_arena *arena, int size)
{
    pipe_tree t = {.size = size, .period = size < 3 ? 1 : size < 5 ? 2 : 3};
    t.at = LL_NEW_ARRAY(arena, slots, size);
    for (int v = 0; v < size; v++) /* what the slots shall be modulo the period */
        for (int i = 0; i < 2 && child(v, i) < size; i++)
            t.at[child(v, i)] =
                (slots){(t.at[v].down + 1 + i) % t.period, (t.at[v].up + 1 + i) % t.period};
    for (int v = size - 1; v >= 0; v--) { /* up, when its sum is there */
        int sum = sums_at(&t, v);
        /* The child that could be earlier waits, so that it is at most a segment ahead. */
        for (int i = 0; i < 2 && child(v, i) < size; i++) {
            int *up = &t.at[child(v, i)].up;
            *up += (sum - 1 - *up) / t.period * t.period;
        }
        t.at[v].up = at_least(child(v, 0) < size ? sum + 1 : 0, t.at[v].up, t.period);
    }
    for (int v = 1; v < size; v++) {
        int parent = (v - 1) / 2, has = parent ? t.at[parent].down : sums_at(&t, 0);
        t.at[v].down = at_least(has + 1, t.at[v].down, t.period);
    }
    return t;
}

/* The elements of the segment that what is first done at `first` is done with at a slot, if any. */
typedef struct segments {
    const ll_coll_spec *s;
    int n, period;
    int k; /* which it is */
    int64_t at, len;
} segments;

static bool is_due(segments *g, int slot, int first)
{
    int64_t to;
    if (slot < first || (slot - first) % g->period) return false;
    g->k = (slot - first) / g->period;
    if (g->k >= g->n) return false;
    ll_share(g->s->count, g->n, g->k, &g->at, &to);
    g->len = to - g->at;
    return true;
}

static int n_segment(const ll_coll_spec *s)
{
    return ll_n_piece(s->count, s->segment ? s->segment : SEGMENT);
}

/* Segment k of child i waits here for its sum. */
static int64_t waits_at(const segments *g, int i)
{
    return (g->k % 2 * 2 + i) * ((g->s->count + g->n - 1) / g->n);
}

static void do_slot(ll_steps *e, const pipe_tree *t, segments *g, int v, int slot)
{
    int n_child = child(v, 1) < t->size ? 2 : child(v, 0) < t->size;
    if (v && is_due(g, slot, t->at[v].up)) ll_emit_send(e, (v - 1) / 2, LL_DATA, g->at, g->len);
    if (v && is_due(g, slot, t->at[v].down)) ll_emit_recv(e, (v - 1) / 2, LL_DATA, g->at, g->len);
    for (int i = 0; i < n_child; i++) {
        const slots *c = &t->at[child(v, i)];
        if (is_due(g, slot, c->up))
            ll_emit_recv(e, child(v, i), LL_SCRATCH, waits_at(g, i), g->len);
        if (is_due(g, slot, c->down)) ll_emit_send(e, child(v, i), LL_DATA, g->at, g->len);
    }
    if (n_child && is_due(g, slot, sums_at(t, v))) {
        const ll_ref from[] = {
            {v, LL_DATA, g->at}, {v, LL_SCRATCH, waits_at(g, 0)}, {v, LL_SCRATCH, waits_at(g, 1)}};
        ll_emit_fold_all(e, LL_DATA, g->at, from, 1 + n_child, g->len);
    }
    ll_emit_next(e);
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    if (s->size < 2) return;
    pipe_tree t = tree_of(e->arena, s->size);
    segments g = {.s = s, .n = n_segment(s), .period = t.period};
    int last = t.at[me].down;
    for (int i = 0; i < 2 && child(me, i) < t.size; i++)
        if (t.at[child(me, i)].down > last) last = t.at[child(me, i)].down;
    last += (g.n - 1) * g.period;
    for (int slot = 0; slot <= last; slot++) do_slot(e, &t, &g, me, slot);
}

static bool canonical(const ll_coll_spec *s)
{
    return s->size < 4;
}

const ll_algo ll_algos_pipetree[] = {
    {.name = "pipetree",
     .coll = LL_COLL_ALLREDUCE,
     .help = "segments up and down a binary tree at once: 3 messages a segment, log2 p deep",
     .segmented = true,
     .emit = allreduce,
     .canonical = canonical},
    {0}};
