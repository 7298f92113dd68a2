/* tree.c: from a root to all, and back. In a binomial tree rank r's parent is the rank without the
 * lowest one of r's number; in a flat one everybody's is the root. An all-reduce goes up the
 * binomial tree to rank 0, which ends with the sum of all, and the result goes down the same tree.
 * Step k of the way up: a rank whose number has k zeros at its end and then a one sends to its
 * parent, which has the sum of an aligned range of ranks and adds the next range to it: that is the
 * canonical order, for any number of ranks.
 *
 *     p = 5       up                        down
 *     step 0      1 -> 0   3 -> 2           0 -> 4
 *     step 1      2 -> 0                    0 -> 2
 *     step 2      4 -> 0                    0 -> 1   2 -> 3
 *     rank 0 has  ((0 1) (2 3)) 4
 *
 * A broadcast from another root numbers the ranks from there on. All of the data goes with each
 * message: few messages, many bytes. For small data. With segments the sums are hidden (swap.c),
 * but steps still follow each other; pipetree.c has them overlap. */
#include "sched/algos.h"

static void up(ll_steps *e, const ll_coll_spec *s, int me)
{
    for (int k = 1; k < s->size; k *= 2) {
        if (me & k) {
            ll_emit_swap(e, &(ll_swap){.peer = me - k, .n_out = s->count}, s->segment);
            return;
        }
        if (me + k < s->size)
            ll_emit_swap(e, &(ll_swap){.peer = me + k, .n_in = s->count}, s->segment);
    }
}

static void down(ll_steps *e, const ll_coll_spec *s, int me, int root)
{
    int p = s->size, v = (me - root + p) % p, low = v ? v & -v : 1 << ll_log2_up(p);
    if (v) ll_emit_recv(e, (me - low + p) % p, LL_DATA, 0, s->count);
    ll_emit_next(e);
    for (int k = low / 2; k >= 1; k /= 2)
        if (v + k < p) ll_emit_send(e, (me + k) % p, LL_DATA, 0, s->count);
    ll_emit_next(e);
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    up(e, s, me);
    down(e, s, me, 0);
}

static void broadcast(ll_steps *e, const ll_coll_spec *s, int me)
{
    down(e, s, me, s->root);
}

static void flat_broadcast(ll_steps *e, const ll_coll_spec *s, int me)
{
    if (me != s->root) ll_emit_recv(e, s->root, LL_DATA, 0, s->count);
    for (int r = 0; r < s->size && me == s->root; r++)
        if (r != me) ll_emit_send(e, r, LL_DATA, 0, s->count);
}

/* The root takes part in every step. */
static ll_cost broadcast_cost(const ll_coll_spec *s)
{
    double steps = s->count ? ll_log2_up(s->size) : 0;
    return (ll_cost){.messages = steps, .sent = steps * (double)s->count};
}

static ll_cost cost(const ll_coll_spec *s)
{
    ll_cost down = broadcast_cost(s), swap = ll_swap_cost((double)s->count, s->segment);
    return (ll_cost){.messages = down.messages * (swap.messages + 1),
                     .sent = 2 * down.sent,
                     .folded = down.messages * swap.folded};
}

static ll_cost flat_cost(const ll_coll_spec *s)
{
    double m = s->count ? s->size - 1 : 0;
    return (ll_cost){.messages = m, .sent = m * (double)s->count};
}

const ll_algo ll_algos_tree[] = {
    {.name = "tree",
     .coll = LL_COLL_ALLREDUCE,
     .help = "up a binomial tree and down again: 2 log2 p messages of all data",
     .segmented = true,
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_canonical_always},
    {.name = "tree",
     .coll = LL_COLL_BROADCAST,
     .help = "binomial tree: log2 p messages one after another",
     .emit = broadcast,
     .cost = broadcast_cost},
    {.name = "flat",
     .coll = LL_COLL_BROADCAST,
     .help = "the root sends to each: p - 1 messages, one after another",
     .emit = flat_broadcast,
     .cost = flat_cost},
    {0}};
