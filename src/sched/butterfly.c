/* butterfly.c: recursive doubling. At step k rank r swaps all of its sum with rank r xor 2^k, and
 * both add: after log2 p steps everyone has the whole sum, with half the messages of a tree.
 *
 *     p = 4       step 0            step 1
 *     rank 0      1: (0 1)          2: (0 1) (2 3)
 *     rank 1      0: (0 1)          3: (0 1) (2 3)
 *     rank 2      3: (2 3)          0: (0 1) (2 3)
 *     rank 3      2: (2 3)          1: (0 1) (2 3)
 *
 * The distance grows, so each sum is over an aligned range of ranks: canonical.
 *
 * Other numbers of ranks: with q the largest power of two up to p, the first p - q pairs of ranks
 * add up first, and one of each acts for both; the q units that remain do as above; the others get
 * the result at the end. p = 6, q = 4: units (0 1) (2 3) 4 5, and the sum is
 * ((0 1) (2 3)) (4 5): canonical. p = 5: units (0 1) 2 3 4, ((0 1) 2) (3 4): not canonical. It is
 * where p's binary digits are ones and then zeros (2, 3, 4, 6, 7, 8, 12, 14, 15, 16, ...): then all
 * units of the first half are pairs, or all are single ranks, and so on down the second half.
 *
 * With segments, sums are hidden behind messages (swap.c).
 *
 * Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005.
 */
#include "sched/algos.h"

ll_units ll_units_of(int size)
{
    ll_units u = {.n = 1};
    while (u.n * 2 <= size) u.n *= 2, u.log2++;
    u.extra = size - u.n;
    return u;
}

int ll_unit_rank(const ll_units *u, int unit)
{
    return unit < u->extra ? 2 * unit : unit + u->extra;
}

int ll_emit_fold_extras(ll_steps *e, const ll_coll_spec *s, int me)
{
    ll_units u = ll_units_of(s->size);
    if (me >= 2 * u.extra) return me - u.extra;
    ll_swap w = {.peer = me ^ 1};
    if (me % 2)
        w.n_out = s->count;
    else
        w.n_in = s->count;
    ll_emit_swap(e, &w, s->segment);
    return me % 2 ? -1 : me / 2;
}

void ll_emit_unfold_extras(ll_steps *e, const ll_coll_spec *s, int me)
{
    if (me >= 2 * ll_units_of(s->size).extra) return;
    if (me % 2)
        ll_emit_recv(e, me - 1, LL_DATA, 0, s->count);
    else
        ll_emit_send(e, me + 1, LL_DATA, 0, s->count);
    ll_emit_next(e);
}

bool ll_units_canonical(const ll_coll_spec *s)
{
    int up = s->size + (s->size & -s->size); /* a carry runs through all ones, if they are in one */
    return (up & (up - 1)) == 0;
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    ll_units u = ll_units_of(s->size);
    int unit = ll_emit_fold_extras(e, s, me);
    for (int k = 1; k < u.n && unit >= 0; k *= 2) {
        ll_swap w = {ll_unit_rank(&u, unit ^ k), 0, s->count, 0, s->count};
        ll_emit_swap(e, &w, s->segment);
    }
    ll_emit_unfold_extras(e, s, me);
}

static ll_cost cost(const ll_coll_spec *s)
{
    ll_units u = ll_units_of(s->size);
    if (!s->count) return (ll_cost){0};
    double pairs = u.extra > 0, n = (double)s->count, steps = u.log2 + pairs;
    ll_cost swap = ll_swap_cost(n, s->segment);
    return (ll_cost){.messages = steps * swap.messages + pairs,
                     .sent = (steps + pairs) * n,
                     .folded = steps * swap.folded};
}

const ll_algo ll_algos_butterfly[] = {
    {.name = "butterfly",
     .coll = LL_COLL_ALLREDUCE,
     .help = "recursive doubling: log2 p messages of all data, 2 more if p is no power of two",
     .segmented = true,
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_units_canonical},
    {0}};
