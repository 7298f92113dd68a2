/* ring.c: every rank talks to its right and left neighbour only. Of p blocks, each travels once
 * around and is summed on the way (reduce-scatter), then once more and is copied (all-gather):
 * 2 (p - 1) messages of n / p elements, as little as any algorithm can send.
 *
 *     p = 3, blocks a b c; rank r starts with its block r - 1, so that it ends with block r summed
 *     round    rank 0          rank 1          rank 2
 *     0        sends c         sends a         sends b        to the right
 *     1        b += , sends b  c += , sends c  a += , sends a
 *     2        a +=            b +=            c +=
 *
 * Segments: a block goes in pieces; while one is on the wire, the one before it is summed, and the
 * last of all is summed while the first goes around again.
 *
 * Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009. */
#include "base/num.h"
#include "sched/algos.h"

/* Leaves the last round open: it is a fold that an all-gather of several pieces does not touch. */
static void reduce_scatter_open(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size, n = ll_block_pieces(s);
    if (p < 2) return;
    int right = (me + 1) % p, left = (me + p - 1) % p;
    int64_t room = ll_ceil_div(ll_largest_block(s), n), at, len;
    /* Turn t of (p - 1) n: piece t % n of block me - 1 - t / n goes out; what came in the turn
     * before is summed meanwhile, unless this turn sends it (one piece only), and then before. */
    int turns = (p - 1) * n;
    for (int t = 0; t <= turns; t++) {
        if (t > 0) {
            len = ll_block_piece(s, me - 2 - (t - 1) / n, (t - 1) % n, n, &at);
            ll_emit_fold(e, LL_DATA, at, LL_DATA, at, LL_SCRATCH, (t - 1) % 2 * room, len);
            if (n == 1) ll_emit_next(e);
        }
        if (t == turns) break;
        len = ll_block_piece(s, me - 1 - t / n, t % n, n, &at);
        ll_emit_send(e, right, LL_DATA, at, len);
        len = ll_block_piece(s, me - 2 - t / n, t % n, n, &at);
        ll_emit_recv(e, left, LL_SCRATCH, t % 2 * room, len);
        ll_emit_next(e);
    }
}

static void reduce_scatter(ll_steps *e, const ll_coll_spec *s, int me)
{
    reduce_scatter_open(e, s, me);
    ll_emit_next(e);
}

static void allgather(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size, n = ll_block_pieces(s);
    if (p < 2) return;
    int right = (me + 1) % p, left = (me + p - 1) % p;
    int64_t at, len;
    for (int t = 0; t < (p - 1) * n; t++) {
        len = ll_block_piece(s, me - t / n, t % n, n, &at);
        ll_emit_send(e, right, LL_DATA, at, len);
        len = ll_block_piece(s, me - 1 - t / n, t % n, n, &at);
        ll_emit_recv(e, left, LL_DATA, at, len);
        ll_emit_next(e);
    }
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    reduce_scatter_open(e, s, me);
    allgather(e, s, me);
}

/* Of equal blocks. */
static ll_cost allgather_cost(const ll_coll_spec *s)
{
    return (ll_cost){.messages = s->count ? (s->size - 1) * ll_block_pieces(s) : 0,
                     .sent = (s->size - 1) * (double)ll_largest_block(s)};
}

static ll_cost reduce_scatter_cost(const ll_coll_spec *s)
{
    ll_cost c = allgather_cost(s);
    int n = ll_block_pieces(s);
    c.folded = n > 1 && s->size > 1 ? (double)ll_largest_block(s) / n : c.sent;
    return c;
}

static ll_cost allreduce_cost(const ll_coll_spec *s)
{
    ll_cost c = ll_cost_sum(reduce_scatter_cost(s), allgather_cost(s));
    if (ll_block_pieces(s) > 1) c.folded = 0;
    return c;
}

const ll_algo ll_algos_ring[] = {
    {.name = "ring",
     .coll = LL_COLL_REDUCE_SCATTER,
     .help = "blocks travel around once, summed on the way",
     .segmented = true,
     .emit = reduce_scatter,
     .cost = reduce_scatter_cost,
     .canonical = ll_canonical_of_two},
    {.name = "ring",
     .coll = LL_COLL_ALLGATHER,
     .help = "blocks travel around once",
     .segmented = true,
     .emit = allgather,
     .cost = allgather_cost},
    {.name = "ring",
     .coll = LL_COLL_ALLREDUCE,
     .help = "reduce-scatter and all-gather around a ring: least bytes, 2 (p - 1) messages",
     .segmented = true,
     .emit = allreduce,
     .cost = allreduce_cost,
     .canonical = ll_canonical_of_two},
    {0}};
