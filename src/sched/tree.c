/* tree.c: sums go up a binomial tree to rank 0, which ends with the sum of all, and the result goes
 * down the same tree. Step k of the way up: a rank whose number has k zeros at its end and then a
 * one sends to the rank without that one, which has the sum of an aligned range of ranks and adds
 * the next range to it: that is the canonical order, for any number of ranks.
 *
 *     p = 5       up                        down
 *     step 0      1 -> 0   3 -> 2           0 -> 4
 *     step 1      2 -> 0                    0 -> 2
 *     step 2      4 -> 0                    0 -> 1   2 -> 3
 *     rank 0 has  ((0 1) (2 3)) 4
 *
 * All of the data goes with each message: few messages, many bytes. For small data. With segments
 * the sums are hidden (swap.c), but steps still follow each other; pipetree.c has them overlap. */
#include "sched/algos.h"

static void reduce(ll_steps *e, const ll_coll_spec *s, int me)
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

static void broadcast(ll_steps *e, const ll_coll_spec *s, int me)
{
    int low = me & -me; /* the step of my parent's message; rank 0 has none */
    if (me) {
        ll_emit_recv(e, me - low, LL_DATA, 0, s->count);
        ll_emit_next(e);
    } else {
        low = 1 << ll_log2_up(s->size);
    }
    for (int k = low / 2; k >= 1; k /= 2) {
        if (me + k >= s->size) continue;
        ll_emit_send(e, me + k, LL_DATA, 0, s->count);
        ll_emit_next(e);
    }
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    reduce(e, s, me);
    broadcast(e, s, me);
}

/* Rank 0 takes part in every step. */
static ll_cost cost(const ll_coll_spec *s)
{
    double steps = s->count ? ll_log2_up(s->size) : 0, n = (double)s->count;
    ll_cost up = ll_swap_cost(n, s->segment);
    return (ll_cost){
        .messages = steps * (up.messages + 1), .sent = 2 * steps * n, .folded = steps * up.folded};
}

const ll_algo ll_algos_tree[] = {
    {.name = "tree",
     .coll = LL_COLL_ALLREDUCE,
     .help = "up a binomial tree and down again: 2 log2 p messages of all data",
     .segmented = true,
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_canonical_always},
    {0}};
