/* flat.c: everyone talks to the root alone. One step deep, so the root is busy for p - 1 messages:
 * right for few ranks or tiny data, and the plainest thing to hold the others against.
 *
 *     p = 4, root 1        broadcast, scatter     1 -> 0, 1 -> 2, 1 -> 3
 *                          gather, reduce         0 -> 1, 2 -> 1, 3 -> 1
 *
 * A reduce receives everything first and sums it in one fold, in canonical order. */
#include "sched/algos.h"

static void broadcast(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (rank != s->root) {
        ll_emit_recv(e, s->root, LL_DATA, 0, s->count);
        return;
    }
    for (int r = 0; r < s->size; r++)
        if (r != rank) ll_emit_send(e, r, LL_DATA, 0, s->count);
}

static void reduce(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (rank != s->root) {
        ll_emit_send(e, s->root, LL_DATA, 0, s->count);
        return;
    }
    if (s->size < 2) return;
    ll_ref *from = LL_NEW_ARRAY(e->arena, ll_ref, s->size);
    int64_t at = 0;
    for (int r = 0; r < s->size; r++) {
        from[r] = (ll_ref){rank, LL_DATA, 0};
        if (r == rank) continue;
        from[r] = (ll_ref){rank, LL_SCRATCH, at};
        ll_emit_recv(e, r, LL_SCRATCH, at, s->count);
        at += s->count;
    }
    ll_emit_next(e);
    ll_emit_fold_all(e, LL_DATA, 0, from, s->size, s->count);
}

static void gather(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int64_t from, to;
    for (int r = 0; r < s->size; r++) {
        ll_coll_block(s, r, &from, &to);
        if (r == s->root) continue;
        if (rank == s->root) ll_emit_recv(e, r, LL_DATA, from, to - from);
        if (rank == r) ll_emit_send(e, s->root, LL_DATA, from, to - from);
    }
}

static void scatter(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int64_t from, to;
    for (int r = 0; r < s->size; r++) {
        ll_coll_block(s, r, &from, &to);
        if (r == s->root) continue;
        if (rank == s->root) ll_emit_send(e, r, LL_DATA, from, to - from);
        if (rank == r) ll_emit_recv(e, s->root, LL_DATA, from, to - from);
    }
}

/* The root's port is the only one that is busy all the time. */
static ll_cost broadcast_cost(const ll_coll_spec *s)
{
    double m = s->count ? s->size - 1 : 0;
    return (ll_cost){.messages = m, .sent = m * (double)s->count};
}

static ll_cost reduce_cost(const ll_coll_spec *s)
{
    double m = s->count ? s->size - 1 : 0;
    return (ll_cost){.messages = m, .sent = m * (double)s->count, .folded = m * (double)s->count};
}

static ll_cost blocks_cost(const ll_coll_spec *s)
{
    ll_cost c = {0};
    int64_t from, to;
    for (int r = 0; r < s->size; r++) {
        ll_coll_block(s, r, &from, &to);
        if (r == s->root || to == from) continue;
        c.messages += 1;
        c.sent += (double)(to - from);
    }
    return c;
}

const ll_algo ll_algos_flat[] = {
    {.name = "flat",
     .coll = LL_COLL_BROADCAST,
     .help = "the root sends to each: p - 1 messages, one after another",
     .emit = broadcast,
     .cost = broadcast_cost},
    {.name = "flat",
     .coll = LL_COLL_REDUCE,
     .help = "each sends to the root, which sums all at once",
     .emit = reduce,
     .cost = reduce_cost,
     .canonical = ll_canonical_always},
    {.name = "flat",
     .coll = LL_COLL_GATHER,
     .help = "each sends its block to the root",
     .emit = gather,
     .cost = blocks_cost},
    {.name = "flat",
     .coll = LL_COLL_SCATTER,
     .help = "the root sends each its block",
     .emit = scatter,
     .cost = blocks_cost},
    {0}};
