/* hierarchical.c: all-reduce for nodes of several ranks. Three stages, one after another: within
 * each node the first rank, its leader, sums what the others show it in their windows; the leaders
 * all-reduce among themselves by another algorithm; each leader shows the result in its window. So
 * the links between nodes carry a node's data once, not once for each of its ranks.
 *
 *     nodes {0 1 2} {3 4}
 *     sum       0: 0 + 1 + 2      3: 3 + 4
 *     between   0 <-> 3
 *     spread    1, 2 copy from 0    4 copies from 3
 *
 * Through a window goes one chunk after another, in two slots by turns. Both stages need one signal
 * a chunk from every rank of the node, leader and others alike: "it is there" and "I have read it,
 * the slot is free". Who fills a slot for chunk c awaits the reader's signal for chunk c - 2.
 *
 *     chunk       0                1                2
 *     other       puts, signals    puts, signals    awaits leader's 1st, puts, signals
 *     leader      awaits 1st of all, sums, signals  awaits 2nd of all, sums, signals ...
 *
 * The sum is canonical where nodes hold runs of 2^k ranks in order (the last may hold fewer) and
 * the leaders' algorithm is: the tree over runs then is the tree over ranks. */
#include "base/num.h"
#include "sched/emit.h"
#include "sched/nodes.h"

enum { SEGMENT = 65536 }; /* elements in a chunk by default */

static int64_t segment(const ll_coll_spec *s)
{
    return s->segment ? s->segment : SEGMENT;
}

static int n_chunk(const ll_coll_spec *s)
{
    return (int)ll_ceil_div(s->count, segment(s));
}

static int64_t chunk(const ll_coll_spec *s, int c, int64_t *at)
{
    *at = c * segment(s);
    return s->count - *at < segment(s) ? s->count - *at : segment(s);
}

static int64_t slot(const ll_coll_spec *s, int c)
{
    return c % 2 * segment(s);
}

static void sum(ll_steps *e, const ll_coll_spec *s, int rank, const ll_node_view *m)
{
    int leader = m->members[0];
    ll_ref *from = LL_NEW_ARRAY(e->arena, ll_ref, m->n_member);
    for (int c = 0; c < n_chunk(s); c++) {
        int64_t at, n = chunk(s, c, &at);
        from[0] = (ll_ref){leader, LL_DATA, at};
        if (rank != leader) {
            if (c >= 2) ll_emit_await(e, leader, c - 1);
            ll_emit_copy(e, LL_WINDOW, slot(s, c), (ll_ref){rank, LL_DATA, at}, n);
        }
        for (int i = 1; rank == leader && i < m->n_member; i++) {
            ll_emit_await(e, m->members[i], c + 1);
            from[i] = (ll_ref){m->members[i], LL_WINDOW, slot(s, c)};
        }
        if (rank == leader) ll_emit_fold_all(e, LL_DATA, at, from, m->n_member, n);
        ll_emit_signal(e);
        ll_emit_next(e);
    }
}

/* before: signals of the sum. */
static void spread(ll_steps *e, const ll_coll_spec *s, int rank, const ll_node_view *m, int before)
{
    int leader = m->members[0];
    for (int c = 0; c < n_chunk(s); c++) {
        int64_t at, n = chunk(s, c, &at);
        if (rank != leader) {
            ll_emit_await(e, leader, before + c + 1);
            ll_emit_copy(e, LL_DATA, at, (ll_ref){leader, LL_WINDOW, slot(s, c)}, n);
        } else {
            for (int i = 1; c >= 2 && i < m->n_member; i++)
                ll_emit_await(e, m->members[i], before + c - 1);
            ll_emit_copy(e, LL_WINDOW, slot(s, c), (ll_ref){rank, LL_DATA, at}, n);
        }
        ll_emit_signal(e);
        ll_emit_next(e);
    }
}

static ll_coll_spec between(const ll_coll_spec *s)
{
    return (ll_coll_spec){.coll = s->coll, .size = ll_nodes_count(s), .count = s->count};
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_node_view m = ll_nodes_view(e->arena, s, rank);
    ll_coll_spec spec = between(s);
    ll_group leaders = {.ranks = m.peers, .size = m.n_peer, .me = m.place ? -1 : m.me};
    if (m.n_member > 1) sum(e, s, rank, &m);
    if (spec.size > 1)
        ll_emit_within(e, &leaders, ll_nodes_between(spec.size, spec.count)->emit, &spec);
    if (m.n_member > 1) spread(e, s, rank, &m, n_chunk(s));
}

static bool canonical(const ll_coll_spec *s)
{
    ll_coll_spec spec = between(s);
    const ll_algo *a = ll_nodes_between(spec.size, spec.count);
    return ll_nodes_aligned(s) && (spec.size == 1 || (a->canonical && a->canonical(&spec)));
}

const ll_algo ll_algos_hierarchical[] = {
    {.name = "hierarchical",
     .coll = LL_COLL_ALLREDUCE,
     .help = "sums within nodes, all-reduces between them, spreads the result within nodes",
     .segmented = true,
     .emit = emit,
     .canonical = canonical},
    {0}};
