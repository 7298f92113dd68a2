/* recursive.c: halving and doubling of blocks, for reduce-scatter and all-gather. Halving: ranks
 * are cut into two halves; each rank sends its partner in the other half all blocks of that half,
 * and adds what it gets for its own. Then the same within the half. Doubling is the way back.
 *
 *     p = 4, blocks a b c d    rank 0      rank 1      rank 2      rank 3
 *     halving, r xor 2         sends c d   sends c d   sends a b   sends a b
 *              r xor 1         sends b     sends a     sends d     sends c
 *     doubling, r xor 1        sends a     sends b     sends c     sends d
 *               r xor 2        sends a b   sends a b   sends c d   sends c d
 *
 * The far partner comes first, so that blocks that travel together lie together; sums are then not
 * in canonical order (for more than two ranks): direct.c has it. Where p is no power of two,
 * circulant.c does the like with as few bytes. With segments, sums are hidden behind messages
 * (swap.c) where p is a power of two.
 *
 * Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005.
 */
#include "sched/algos.h"

static bool power_of_two(int p)
{
    return (p & (p - 1)) == 0;
}

static void reduce_scatter(ll_steps *e, const ll_coll_spec *s, int me)
{
    if (!power_of_two(s->size)) {
        ll_emit_circulant_reduce_scatter(e, s, me);
        return;
    }
    for (int half = s->size / 2; half >= 1; half /= 2) {
        int mine = me & -half, others = mine ^ half; /* first ranks of the two halves */
        ll_swap w = {.peer = me ^ half};
        w.n_out = ll_block_span(s, others, others + half, &w.out);
        w.n_in = ll_block_span(s, mine, mine + half, &w.in);
        ll_emit_swap(e, &w, s->segment);
    }
}

static void allgather(ll_steps *e, const ll_coll_spec *s, int me)
{
    if (!power_of_two(s->size)) {
        ll_emit_circulant_allgather(e, s, me);
        return;
    }
    for (int half = 1; half < s->size; half *= 2) {
        int mine = me & -half, others = mine ^ half;
        int64_t at, len = ll_block_span(s, mine, mine + half, &at);
        ll_emit_send(e, me ^ half, LL_DATA, at, len);
        len = ll_block_span(s, others, others + half, &at);
        ll_emit_recv(e, me ^ half, LL_DATA, at, len);
        ll_emit_next(e);
    }
}

/* Of equal blocks. */
static ll_cost allgather_cost(const ll_coll_spec *s)
{
    if (!power_of_two(s->size)) return ll_circulant_allgather_cost(s);
    return (ll_cost){.messages = s->count ? ll_log2_up(s->size) : 0,
                     .sent = (s->size - 1) * (double)ll_largest_block(s)};
}

static ll_cost reduce_scatter_cost(const ll_coll_spec *s)
{
    ll_cost c = {0};
    if (!power_of_two(s->size)) return ll_circulant_reduce_scatter_cost(s);
    for (int half = s->size / 2; half >= 1; half /= 2)
        c = ll_cost_sum(c, ll_swap_cost(half * (double)ll_largest_block(s), s->segment));
    return c;
}

const ll_algo ll_algos_recursive[] = {
    {.name = "halving",
     .coll = LL_COLL_REDUCE_SCATTER,
     .help = "half of the blocks go at each step: least bytes, log2 p messages",
     .segmented = true,
     .emit = reduce_scatter,
     .cost = reduce_scatter_cost,
     .canonical = ll_canonical_of_two},
    {.name = "doubling",
     .coll = LL_COLL_ALLGATHER,
     .help = "twice the blocks at each step: least bytes, log2 p messages",
     .emit = allgather,
     .cost = allgather_cost},
    {0}};
