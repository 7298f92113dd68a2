/* sharded.c: every rank is the parameter server of one block: all send it theirs, it sums them in
 * canonical order and sends the sum to all. That is a direct reduce-scatter and a direct all-gather
 * (direct.c): as few bytes as a ring, in an order of summation that does not depend on which rank
 * does it.
 *
 *     p = 3, blocks a b c; r.a is what rank r has of block a
 *     round   rank 0                        rank 1                      rank 2
 *     0       sends b to 1, c to 2          sends c to 2, a to 0        sends a to 0, b to 1
 *     1       a = (0.a + 1.a) + 2.a         b = (0.b + 1.b) + 2.b       c = (0.c + 1.c) + 2.c
 *     2       sends a to 1, to 2            sends b to 2, to 0          sends c to 0, to 1
 *
 * With segments the pieces of a block are summed while the next ones arrive. */
#include "sched/algos.h"

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    ll_emit_direct_reduce_scatter(e, s, me);
    ll_emit_direct_allgather(e, s, me);
}

static ll_cost cost(const ll_coll_spec *s)
{
    return ll_cost_sum(ll_direct_reduce_scatter_cost(s), ll_direct_allgather_cost(s));
}

const ll_algo ll_algos_sharded[] = {
    {.name = "sharded",
     .coll = LL_COLL_ALLREDUCE,
     .help = "each rank is the parameter server of one block: least bytes, canonical sums",
     .segmented = true,
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_canonical_always},
    {0}};
