/* shout.c: everyone sends all it has to everyone, and sums all that came. One step deep and p - 1
 * times the data: for tiny data between ranks that talk to each other quickly.
 *
 *     p = 3    0 -> 1, 0 -> 2    1 -> 0, 1 -> 2    2 -> 0, 2 -> 1    then each sums three
 *
 * All ranks sum in the order of ranks, in one fold: canonical. */
#include "sched/algos.h"

static void allreduce(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (s->size < 2) return;
    ll_ref *from = LL_NEW_ARRAY(e->arena, ll_ref, s->size);
    int64_t at = 0;
    for (int r = 0; r < s->size; r++) {
        from[r] = (ll_ref){rank, LL_DATA, 0};
        if (r == rank) continue;
        from[r] = (ll_ref){rank, LL_SCRATCH, at};
        ll_emit_send(e, r, LL_DATA, 0, s->count);
        ll_emit_recv(e, r, LL_SCRATCH, at, s->count);
        at += s->count;
    }
    ll_emit_next(e);
    ll_emit_fold_all(e, LL_DATA, 0, from, s->size, s->count);
}

static ll_cost cost(const ll_coll_spec *s)
{
    double m = s->count ? s->size - 1 : 0, n = m * (double)s->count;
    return (ll_cost){.messages = m, .sent = n, .folded = n};
}

const ll_algo ll_algos_shout[] = {{.name = "shout",
                                   .coll = LL_COLL_ALLREDUCE,
                                   .help = "each sends to all, and sums all at once",
                                   .emit = allreduce,
                                   .cost = cost,
                                   .canonical = ll_canonical_always},
                                  {0}};
