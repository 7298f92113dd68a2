/* bound.c: what no algorithm can beat, where a rank sends one message and receives one at a time.
 *
 * Messages: what one rank knows reaches at most twice as many ranks with each message, so all know
 * it after log2 p of them, rounded up; and one rank knows of all after as many.
 * Elements sent: what must leave or enter one rank. An all-gather brings a rank every block but its
 * own, a reduce-scatter takes every block but its own away; an all-reduce can be no cheaper than
 * both together, 2 (p - 1) / p n; a broadcast brings all n.
 * Elements folded: n (p - 1) additions in all, shared by p ranks.
 * Each bound holds by itself: an algorithm need not reach two of them, and the time of one that
 * sums while messages are under way can be less than all three together.
 *
 *     p = 4, n elements   messages   sent      folded
 *     all-reduce          2          3/2 n     3/4 n     rabenseifner sends so little in 4 messages
 *     reduce-scatter      2          3/4 n     3/4 n     halving reaches all three
 *     all-gather          2          3/4 n               doubling reaches both
 *
 * Chan, Heimlich, Purkayastha, van de Geijn: Collective communication: theory, practice, and
 * experience, 2007; Thakur, Rabenseifner, Gropp: Optimization of collective communication
 * operations in MPICH, 2005; for the all-reduce's bytes Patarasuk, Yuan, 2009. */
#include "sched/algos.h"

/* Elements of all blocks but the smallest. */
static double most_others(const ll_coll_spec *s)
{
    int64_t from, to, all = 0, least = INT64_MAX;
    for (int b = 0; b < s->size; b++) {
        ll_coll_block(s, b, &from, &to);
        all += to - from;
        if (to - from < least) least = to - from;
    }
    return (double)(all - least);
}

/* The busiest rank's blocks to others, or from them. */
static double most_exchanged(const ll_coll_spec *s)
{
    int64_t most = 0, data, at;
    for (int r = 0; r < s->size; r++) {
        int64_t in = 0, out = 0;
        for (int q = 0; q < s->size; q++) {
            if (q == r) continue;
            out += ll_coll_between(s, r, q, &data, &at);
            in += ll_coll_between(s, q, r, &data, &at);
        }
        if (in > most) most = in;
        if (out > most) most = out;
    }
    return (double)most;
}

ll_cost ll_coll_bound(const ll_coll_spec *s)
{
    ll_cost c = {0};
    double n = (double)s->count, part = n * (s->size - 1) / s->size;
    if (s->size < 2) return c;
    switch (s->coll) {
    case LL_COLL_ALLREDUCE: c = (ll_cost){.sent = 2 * part, .folded = part}; break;
    case LL_COLL_REDUCE_SCATTER: c = (ll_cost){.sent = most_others(s), .folded = part}; break;
    case LL_COLL_ALLGATHER: c.sent = most_others(s); break;
    case LL_COLL_ALLTOALL: c.sent = most_exchanged(s); break;
    case LL_COLL_BROADCAST: c.sent = n; break;
    case LL_COLL_BARRIER:
    case LL_N_COLL: break;
    }
    if (c.sent > 0 || s->coll == LL_COLL_BARRIER) c.messages = ll_log2_up(s->size);
    return c;
}
