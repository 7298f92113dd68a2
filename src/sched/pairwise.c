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

/* Elements from one rank to another. */
static int64_t length(const ll_coll_spec *s, int from, int to)
{
    if (s->matrix) return s->matrix[(int64_t)from * s->size + to];
    int64_t start, end;
    ll_coll_block(s, to, &start, &end);
    return end - start;
}

/* Where they lie in DATA of the sender. */
static int64_t data_at(const ll_coll_spec *s, int from, int to)
{
    int64_t at = 0, end;
    if (!s->matrix) ll_coll_block(s, to, &at, &end);
    for (int i = 0; s->matrix && i < to; i++) at += length(s, from, i);
    return at;
}

/* And in OUT of the receiver. */
static int64_t out_at(const ll_coll_spec *s, int from, int to)
{
    int64_t at = 0;
    for (int i = 0; i < from; i++) at += length(s, i, to);
    return at;
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size;
    for (int k = 1; k < p; k++) {
        int to = (rank + k) % p, from = (rank + p - k) % p;
        ll_emit_recv(e, from, LL_OUT, out_at(s, from, rank), length(s, from, rank));
        ll_emit_send(e, to, LL_DATA, data_at(s, rank, to), length(s, rank, to));
        if (k == 1)
            ll_emit_copy(e, LL_OUT, out_at(s, rank, rank),
                         (ll_ref){rank, LL_DATA, data_at(s, rank, rank)}, length(s, rank, rank));
        ll_emit_next(e);
    }
    if (p == 1) ll_emit_copy(e, LL_OUT, 0, (ll_ref){0, LL_DATA, 0}, length(s, 0, 0));
}

/* The longest message of round k, or, in round 0, the longest copy. */
static int64_t longest(const ll_coll_spec *s, int k)
{
    int64_t most = 0;
    for (int r = 0; r < s->size; r++) {
        int64_t n = length(s, r, (r + k) % s->size);
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
