/* rabenseifner.c: recursive halving, then recursive doubling. A rank swaps with its partner one
 * half of what it still answers for, and adds the half it keeps; after log2 p such steps it has a
 * p-th of the data, summed over all ranks. The steps backwards give everyone all of it.
 *
 *     p = 4, data a b c d      rank 0         rank 1         rank 2         rank 3
 *     step 0: with r xor 1     keeps a b      keeps c d      keeps a b      keeps c d
 *     step 1: with r xor 2     keeps a        keeps c        keeps b        keeps d
 *     step 1 backwards         has a b        has c d        has a b        has c d
 *     step 0 backwards         has all
 *
 * As many messages as a tree and as few bytes as a ring. The nearest partner comes first, unlike in
 * most descriptions: so sums are over aligned ranges of ranks, which is the canonical order; the
 * parts end in bit-reversed order, which an all-reduce does not mind. (The largest messages then
 * go to the nearest rank, which usually is also the nearest in the machine.)
 *
 * Where p is no power of two, pairs add up first, as in butterfly.c; that costs 2 n elements more,
 * and circulant.c is then the better one.
 *
 * With segments, sums are hidden behind messages (swap.c).
 *
 * Rabenseifner: A new optimized MPI reduce algorithm, 1997; Thakur, Rabenseifner, Gropp, 2005. */
#include "sched/algos.h"

enum { MAX_LOG2 = 31 };

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    ll_units u = ll_units_of(s->size);
    int unit = ll_emit_fold_extras(e, s, me);
    int64_t lo[MAX_LOG2 + 1] = {0}, hi[MAX_LOG2 + 1] = {s->count}; /* mine before step k */
    for (int k = 0; k < u.log2 && unit >= 0; k++) {
        int peer = ll_unit_rank(&u, unit ^ 1 << k);
        int64_t mid = lo[k] + (hi[k] - lo[k]) / 2;
        bool upper = unit >> k & 1;
        lo[k + 1] = upper ? mid : lo[k];
        hi[k + 1] = upper ? hi[k] : mid;
        int64_t kept = hi[k + 1] - lo[k + 1], rest = hi[k] - lo[k] - kept;
        ll_emit_swap(e, &(ll_swap){peer, upper ? lo[k] : mid, rest, lo[k + 1], kept}, s->segment);
    }
    for (int k = u.log2 - 1; k >= 0 && unit >= 0; k--) {
        int peer = ll_unit_rank(&u, unit ^ 1 << k);
        int64_t have = hi[k + 1] - lo[k + 1], at = unit >> k & 1 ? lo[k] : hi[k + 1];
        ll_emit_send(e, peer, LL_DATA, lo[k + 1], have);
        ll_emit_recv(e, peer, LL_DATA, at, hi[k] - lo[k] - have);
        ll_emit_next(e);
    }
    ll_emit_unfold_extras(e, s, me);
}

static ll_cost cost(const ll_coll_spec *s)
{
    ll_units u = ll_units_of(s->size);
    ll_cost c = {0};
    if (!s->count) return c;
    double pairs = u.extra > 0, n = (double)s->count, half = n / 2;
    if (pairs) c = ll_swap_cost(n, s->segment);
    for (int k = 0; k < u.log2; k++, half /= 2) c = ll_cost_sum(c, ll_swap_cost(half, s->segment));
    c.messages += u.log2 + pairs;
    c.sent += (u.n - 1) * n / u.n + pairs * n;
    return c;
}

const ll_algo ll_algos_rabenseifner[] = {
    {.name = "rabenseifner",
     .coll = LL_COLL_ALLREDUCE,
     .help = "recursive halving and doubling: least bytes and 2 log2 p messages, p = 2^k",
     .segmented = true,
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_units_canonical},
    {0}};
