/* blocks.c: small arithmetic that algorithms share: blocks of a spec, and pieces of these. */
#include "base/num.h"
#include "sched/algos.h"

int64_t ll_largest_block(const ll_coll_spec *s)
{
    int64_t most = 0, from, to;
    for (int b = 0; b < s->size; b++) {
        ll_coll_block(s, b, &from, &to);
        if (to - from > most) most = to - from;
    }
    return most;
}

int64_t ll_block_span(const ll_coll_spec *s, int from, int to, int64_t *at)
{
    int64_t end, ignored;
    *at = 0;
    if (from >= to) return 0;
    ll_coll_block(s, from, at, &ignored);
    ll_coll_block(s, to - 1, &ignored, &end);
    return end - *at;
}

int ll_n_piece(int64_t n, int64_t segment)
{
    return segment > 0 && n > segment ? (int)ll_ceil_div(n, segment) : 1;
}

int ll_block_pieces(const ll_coll_spec *s)
{
    return ll_n_piece(ll_largest_block(s), s->segment);
}

int64_t ll_block_piece(const ll_coll_spec *s, int b, int k, int n, int64_t *at)
{
    int64_t start, end, from, to;
    ll_coll_block(s, (b + s->size) % s->size, &start, &end);
    ll_share(end - start, n, k, &from, &to);
    *at = start + from;
    return to - from;
}

int ll_log2_up(int n)
{
    int d = 0;
    while (1 << d < n) d++;
    return d;
}

ll_cost ll_cost_sum(ll_cost a, ll_cost b)
{
    return (ll_cost){.messages = a.messages + b.messages,
                     .sent = a.sent + b.sent,
                     .folded = a.folded + b.folded,
                     .copied = a.copied + b.copied,
                     .awaits = a.awaits + b.awaits};
}

bool ll_canonical_always(const ll_coll_spec *)
{
    return true;
}

bool ll_canonical_of_two(const ll_coll_spec *s)
{
    return s->size < 3;
}
