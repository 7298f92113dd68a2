/* rails.c: all-reduce for nodes with as many ranks each, in which every rank leads for a block of
 * the data. Within a node each rank sums its block of all (a reduce-scatter through windows); then
 * it all-reduces the block with those that have it on the other nodes, all blocks at once; then the
 * blocks are gathered within each node. Between nodes it sends what hierarchical sends, but all
 * ranks of a node share the sums, the copies and the messages.
 *
 *     nodes {0 1} {2 3}, blocks a b
 *     sum       0: a of 0 1    1: b of 0 1        2: a of 2 3    3: b of 2 3
 *     between   0 <-> 2: a     1 <-> 3: b
 *     gather    0 takes b from 1, 1 takes a from 0; 2 and 3 alike
 *
 * The gather may fill windows that the sum has used, with no meeting between: it puts a rank's own
 * block, at the place in its window that is never read while summing (window.c). */
#include "sched/emit.h"
#include "sched/nodes.h"

static bool fits(const ll_coll_spec *s, const char **why)
{
    *why = "as many ranks on every node";
    return ll_nodes_even(s);
}

static const ll_algo *window(ll_coll coll)
{
    const ll_algo *a = ll_algo_find(coll, "window");
    LL_ASSERT(a);
    return a;
}

/* Between nodes, on one of the blocks. */
static ll_coll_spec between(const ll_coll_spec *s, int block)
{
    int n = ll_nodes_count(s);
    int64_t from, to;
    ll_share(s->count, s->size / n, block, &from, &to);
    return (ll_coll_spec){.coll = s->coll, .size = n, .count = to - from};
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_node_view v = ll_nodes_view(e->arena, s, rank);
    ll_group node = {.ranks = v.members, .size = v.n_member, .me = v.place};
    ll_group rail = {.ranks = v.peers, .size = v.n_peer, .me = v.me};
    ll_coll_spec in = {.size = v.n_member, .count = s->count, .segment = s->segment};
    ll_coll_spec out = between(s, v.place);
    int64_t end;
    ll_share(s->count, v.n_member, v.place, &rail.at, &end);
    in.coll = LL_COLL_REDUCE_SCATTER;
    ll_emit_within(e, &node, window(in.coll)->emit, &in);
    ll_emit_within(e, &rail, ll_nodes_between(out.size, out.count)->emit, &out);
    in.coll = LL_COLL_ALLGATHER;
    ll_emit_within(e, &node, window(in.coll)->emit, &in);
}

static bool canonical(const ll_coll_spec *s)
{
    if (!ll_nodes_aligned(s)) return false;
    for (int b = 0; b < s->size / ll_nodes_count(s); b++) {
        ll_coll_spec out = between(s, b);
        const ll_algo *a = ll_nodes_between(out.size, out.count);
        if (out.size > 1 && (!a->canonical || !a->canonical(&out))) return false;
    }
    return true;
}

const ll_algo ll_algos_rails[] = {
    {.name = "rails",
     .coll = LL_COLL_ALLREDUCE,
     .help = "each rank of a node sums a block, and all-reduces it with its peers of other nodes",
     .segmented = true,
     .fits = fits,
     .emit = emit,
     .canonical = canonical},
    {0}};
