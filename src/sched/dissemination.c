/* dissemination.c: a barrier in log2 p rounds. In round k a rank tells the one 2^k places on, and
 * hears from the one 2^k places back; what it says means that it and all that it heard of are here
 * (Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988).
 *
 *     p = 5, rank 0 has heard of:   round 0: 4    round 1: 3 2    round 2: 1 (and 0, 4 again)
 *
 * A message is one element of SCRATCH; what is in it does not matter. */
#include "sched/algos.h"

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size;
    for (int k = 0; 1 << k < p; k++) {
        ll_emit_recv(e, (rank + p - (1 << k)) % p, LL_SCRATCH, 1, 1);
        ll_emit_send(e, (rank + (1 << k)) % p, LL_SCRATCH, 0, 1);
        ll_emit_next(e);
    }
}

static ll_cost cost(const ll_coll_spec *s)
{
    double d = ll_log2_up(s->size);
    return (ll_cost){.messages = d, .sent = d};
}

const ll_algo ll_algos_dissemination[] = {
    {.name = "dissemination",
     .coll = LL_COLL_BARRIER,
     .help = "log2 p rounds; in each a rank tells one twice as far away",
     .emit = emit,
     .cost = cost},
    {0}};
