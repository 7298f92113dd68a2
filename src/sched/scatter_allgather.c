/* scatter_allgather.c: a broadcast of large data. The root deals out blocks down a tree, then all
 * ranks pass them around a ring (van de Geijn: On global combine operations, JPDC 1994; Thakur,
 * Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005). Each
 * element leaves the root once and every rank helps to spread it: 2 n (p - 1) / p elements sent in
 * place of the tree's n log2 p.
 *
 *     p = 4, root 0, blocks a b c d
 *     scatter        0 -> 2: c d      0 -> 1: b   2 -> 3: d
 *     all-gather     0 has a, 1 has b, 2 has c, 3 has d: three steps around
 *
 * From another root ranks are numbered from there on, and so are their blocks: those of a subtree
 * are one piece of DATA. */
#include "base/num.h"
#include "sched/algos.h"

/* Of root 0. s: of the all-gather. */
static void from_first(ll_steps *e, const ll_coll_spec *s, int me)
{
    int p = s->size, low = me ? me & -me : 1 << ll_log2_up(p); /* blocks me.. of my subtree */
    int64_t at, n = ll_block_span(s, me, me + low < p ? me + low : p, &at);
    if (me) ll_emit_recv(e, me - low, LL_DATA, at, n);
    ll_emit_next(e);
    for (int k = low / 2; k >= 1; k /= 2) {
        n = ll_block_span(s, me + k, me + 2 * k < p ? me + 2 * k : p, &at);
        if (me + k < p) ll_emit_send(e, me + k, LL_DATA, at, n);
    }
    ll_emit_next(e);
    ll_algo_find(LL_COLL_ALLGATHER, "ring")->emit(e, s, me);
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size, *ranks = LL_NEW_ARRAY(e->arena, int, p);
    for (int i = 0; i < p; i++) ranks[i] = (s->root + i) % p;
    ll_group rotated = {.ranks = ranks, .size = p, .me = (rank - s->root + p) % p};
    ll_coll_spec spec = {.coll = LL_COLL_ALLGATHER, .size = p, .count = s->count};
    ll_emit_within(e, &rotated, from_first, &spec);
}

/* The root's way down is the longest, and then its last block is carried around: exact for even
 * blocks. */
static ll_cost cost(const ll_coll_spec *s)
{
    double others = s->size - 1, most = (double)ll_ceil_div(s->count, s->size);
    return (ll_cost){.messages = s->count ? ll_log2_up(s->size) + others : 0,
                     .sent = 2 * others * most};
}

const ll_algo ll_algos_scatter_allgather[] = {
    {.name = "scatter-allgather",
     .coll = LL_COLL_BROADCAST,
     .help = "blocks down a tree, then around a ring: for large data",
     .emit = emit,
     .cost = cost},
    {0}};
