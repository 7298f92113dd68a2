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
 * Segments: a block goes in pieces; while one is on the wire, the one before it is summed. */
#include "sched/algos.h"

/* Pieces of a block of at most segment elements each: how many, and which elements. */
static int n_piece(int64_t block, int64_t segment)
{
    return segment > 0 && block > segment ? (int)((block + segment - 1) / segment) : 1;
}

static int64_t largest_block(const ll_coll_spec *s)
{
    int64_t most = 0, from, to;
    for (int b = 0; b < s->size; b++) {
        ll_coll_block(s, b, &from, &to);
        if (to - from > most) most = to - from;
    }
    return most;
}

/* Piece k of n of block b (which may be before 0 or past the end: the ring wraps). */
static void piece(const ll_coll_spec *s, int b, int k, int n, int64_t *from, int64_t *to)
{
    int64_t start, end;
    ll_coll_block(s, ((b % s->size) + s->size) % s->size, &start, &end);
    ll_share(end - start, n, k, from, to);
    *from += start;
    *to += start;
}

void ll_emit_ring_reduce_scatter(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size, n = n_piece(largest_block(s), s->segment);
    if (p < 2) return;
    int right = (me + 1) % p, left = (me + p - 1) % p;
    int64_t room = largest_block(s) / n + 1, from, to;
    /* Turn t of (p - 1) n: piece t % n of block me - 1 - t / n goes out; what came in the turn
     * before is summed meanwhile, unless this turn sends it (one piece only), and then before. */
    int turns = (p - 1) * n;
    for (int t = 0; t <= turns; t++) {
        bool fold = t > 0;
        if (fold) {
            piece(s, me - 2 - (t - 1) / n, (t - 1) % n, n, &from, &to);
            ll_emit_fold(e, LL_DATA, from, LL_DATA, from, LL_SCRATCH, (t - 1) % 2 * room,
                         to - from);
            if (n == 1) ll_emit_next(e);
        }
        if (t == turns) break;
        piece(s, me - 1 - t / n, t % n, n, &from, &to);
        ll_emit_send(e, right, LL_DATA, from, to - from);
        piece(s, me - 2 - t / n, t % n, n, &from, &to);
        ll_emit_recv(e, left, LL_SCRATCH, t % 2 * room, to - from);
        ll_emit_next(e);
    }
    ll_emit_next(e);
}

void ll_emit_ring_allgather(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size, n = n_piece(largest_block(s), s->segment);
    if (p < 2) return;
    int right = (me + 1) % p, left = (me + p - 1) % p;
    int64_t from, to;
    for (int t = 0; t < (p - 1) * n; t++) {
        piece(s, me - t / n, t % n, n, &from, &to);
        ll_emit_send(e, right, LL_DATA, from, to - from);
        piece(s, me - 1 - t / n, t % n, n, &from, &to);
        ll_emit_recv(e, left, LL_DATA, from, to - from);
        ll_emit_next(e);
    }
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    ll_emit_ring_reduce_scatter(e, s, me);
    ll_emit_ring_allgather(e, s, me);
}

const ll_algo ll_algos_ring[] = {
    {.name = "ring",
     .coll = LL_COLL_REDUCE_SCATTER,
     .help = "blocks travel around once, summed on the way",
     .segmented = true,
     .emit = ll_emit_ring_reduce_scatter},
    {.name = "ring",
     .coll = LL_COLL_ALLGATHER,
     .help = "blocks travel around once",
     .segmented = true,
     .emit = ll_emit_ring_allgather},
    {.name = "ring",
     .coll = LL_COLL_ALLREDUCE,
     .help = "reduce-scatter and all-gather around a ring: least bytes, 2 (p - 1) messages",
     .segmented = true,
     .emit = allreduce},
    {0}};
