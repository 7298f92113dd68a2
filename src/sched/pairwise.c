/* pairwise.c: all-to-all in p - 1 rounds; in round k a rank sends to the one k places on and
 * receives from the one k places back. Nothing is forwarded, so no element is sent twice.
 *
 *     p = 4       rank 0            rank 1            rank 2            rank 3
 *     round 1     to 1, from 3      to 2, from 0      to 3, from 1      to 0, from 2
 *     round 2     to 2, from 2      to 3, from 3      to 0, from 0      to 1, from 1
 *     round 3     to 3, from 1      to 0, from 2      to 1, from 3      to 2, from 0
 *
 * What a rank sends to itself is copied during the first round. */
#include "sched/emit.h"

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size;
    int64_t data, out, mine, mine_out, own = ll_coll_between(s, rank, rank, &mine, &mine_out);
    ll_emit_copy(e, LL_OUT, mine_out, (ll_ref){rank, LL_DATA, mine}, own);
    for (int k = 1; k < p; k++, ll_emit_next(e)) {
        int to = (rank + k) % p, from = (rank + p - k) % p;
        int64_t n = ll_coll_between(s, from, rank, &data, &out);
        ll_emit_recv(e, from, LL_OUT, out, n);
        n = ll_coll_between(s, rank, to, &data, &out);
        ll_emit_send(e, to, LL_DATA, data, n);
    }
}

/* The longest message of round k, or, in round 0, the longest copy. */
static int64_t longest(const ll_coll_spec *s, int k)
{
    int64_t most = 0, data, out;
    for (int r = 0; r < s->size; r++) {
        int64_t n = ll_coll_between(s, r, (r + k) % s->size, &data, &out);
        if (n > most) most = n;
    }
    return most;
}

/* Each round as long as its longest message: exact for even blocks, where copying is no slower than
 * sending; at most this otherwise. */
static ll_cost cost(const ll_coll_spec *s)
{
    ll_cost c = {0};
    for (int k = 1; k < s->size; k++) {
        c.messages += longest(s, k) > 0;
        c.sent += (double)longest(s, k);
    }
    if (c.messages == 0) c.copied = (double)longest(s, 0);
    return c;
}

const ll_algo ll_algos_pairwise[] = {{.name = "direct",
                                      .coll = LL_COLL_ALLTOALL,
                                      .help = "p - 1 rounds, each with another pair of ranks",
                                      .emit = emit,
                                      .cost = cost},
                                     {0}};
