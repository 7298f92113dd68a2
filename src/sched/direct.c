/* direct.c: every rank talks to every other, once. In a reduce-scatter it sends each rank its block
 * of mine and receives all copies of its own, which it sums at once, in canonical order: the bits
 * are those of a serial sum by T (sched.h) whatever the number of ranks. In an all-gather it sends
 * everyone its block.
 *
 *     p = 4: who rank r sends to, in this order, and receives from at the same time
 *     rank 0    to 1 from 3    to 2 from 2    to 3 from 1
 *     rank 1    to 2 from 0    to 3 from 3    to 0 from 2
 *     rank 2    to 3 from 1    to 0 from 0    to 1 from 3
 *     rank 3    to 0 from 2    to 1 from 1    to 2 from 0
 *
 * In each column every rank is sent to once, so nobody waits for a busy rank: p - 1 messages of one
 * block, the same bytes as the ring's, with more peers and less dependence.
 *
 * A reduce-scatter needs scratch for p - 1 copies of a block, less than the data itself; or, with
 * segments, of two pieces of a block: one that is received while the other is summed.
 *
 * Both together are an all-reduce, called sharded: every rank is the parameter server of one block.
 * As few bytes as a ring, in an order of summation that does not depend on which rank does it. */
#include "base/num.h"
#include "sched/algos.h"

static void reduce_scatter(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size, n = ll_block_pieces(s);
    if (p < 2) return;
    int64_t at, mine = ll_block_piece(s, me, 0, 1, &at), room = ll_ceil_div(mine, n);
    ll_ref *parts = LL_NEW_ARRAY(e->arena, ll_ref, p);
    for (int t = 0; t <= n; t++, ll_emit_next(e)) {
        for (int d = 1; d < p && t < n; d++) {
            int64_t len = ll_block_piece(s, me + d, t, n, &at);
            ll_emit_send(e, (me + d) % p, LL_DATA, at, len);
        }
        for (int d = 1; d < p && t < n; d++) {
            int64_t len = ll_block_piece(s, me, t, n, &at);
            ll_emit_recv(e, (me + p - d) % p, LL_SCRATCH, (t % 2 * (p - 1) + d - 1) * room, len);
        }
        if (t == 0) continue;
        int64_t len = ll_block_piece(s, me, t - 1, n, &at);
        parts[me] = (ll_ref){me, LL_DATA, at};
        for (int d = 1; d < p; d++)
            parts[(me + p - d) % p] =
                (ll_ref){me, LL_SCRATCH, ((t - 1) % 2 * (p - 1) + d - 1) * room};
        ll_emit_fold_all(e, LL_DATA, at, parts, p, len);
    }
}

static void allgather(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size;
    int64_t at, len = ll_block_piece(s, me, 0, 1, &at);
    for (int d = 1; d < p; d++) ll_emit_send(e, (me + d) % p, LL_DATA, at, len);
    for (int d = 1; d < p; d++) {
        len = ll_block_piece(s, me - d, 0, 1, &at);
        ll_emit_recv(e, (me + p - d) % p, LL_DATA, at, len);
    }
    ll_emit_next(e);
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    reduce_scatter(e, s, me);
    allgather(e, s, me);
}

/* Of equal blocks: every rank is always busy, and the last piece is summed with no message. */
static ll_cost reduce_scatter_cost(const ll_coll_spec *s)
{
    double n = ll_block_pieces(s), all = (s->size - 1) * (double)ll_largest_block(s);
    return (ll_cost){.messages = s->count ? (s->size - 1) * n : 0, .sent = all, .folded = all / n};
}

static ll_cost allgather_cost(const ll_coll_spec *s)
{
    return (ll_cost){.messages = s->count ? s->size - 1 : 0,
                     .sent = (s->size - 1) * (double)ll_largest_block(s)};
}

static ll_cost allreduce_cost(const ll_coll_spec *s)
{
    return ll_cost_sum(reduce_scatter_cost(s), allgather_cost(s));
}

const ll_algo ll_algos_direct[] = {
    {.name = "direct",
     .coll = LL_COLL_REDUCE_SCATTER,
     .help = "each sends each its block and sums what it receives, in canonical order",
     .segmented = true,
     .emit = reduce_scatter,
     .cost = reduce_scatter_cost,
     .canonical = ll_canonical_always},
    {.name = "direct",
     .coll = LL_COLL_ALLGATHER,
     .help = "each sends its block to each: p - 1 messages",
     .emit = allgather,
     .cost = allgather_cost},
    {.name = "sharded",
     .coll = LL_COLL_ALLREDUCE,
     .help = "each rank is the parameter server of one block: least bytes, canonical sums",
     .segmented = true,
     .emit = allreduce,
     .cost = allreduce_cost,
     .canonical = ll_canonical_always},
    {0}};
