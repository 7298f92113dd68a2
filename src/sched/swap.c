/* swap.c: two ranks trade data, or one gives to the other, and who receives adds. In pieces, where
 * a segment is given: a piece is added while the next one is on the wire, and scratch is needed for
 * two of them only, which stay in the cache.
 *
 *     3 pieces      round 0      1            2            3
 *     messages      piece 0      piece 1      piece 2
 *     added                      piece 0      piece 1      piece 2 */
#include "base/num.h"
#include "sched/algos.h"

#include <math.h>

void ll_emit_swap(ll_steps *e, const ll_swap *w, int64_t segment)
{
    int64_t most = w->n_in > w->n_out ? w->n_in : w->n_out, from, to;
    int n = ll_n_piece(most, segment); /* the same on both sides */
    int64_t room = ll_ceil_div(most, n);
    for (int t = 0; t <= n; t++, ll_emit_next(e)) {
        if (t < n) {
            ll_share(w->n_out, n, t, &from, &to);
            ll_emit_send(e, w->peer, LL_DATA, w->out + from, to - from);
            ll_share(w->n_in, n, t, &from, &to);
            ll_emit_recv(e, w->peer, LL_SCRATCH, t % 2 * room, to - from);
        }
        if (t > 0) {
            ll_share(w->n_in, n, t - 1, &from, &to);
            ll_emit_fold(e, LL_DATA, w->in + from, LL_DATA, w->in + from, LL_SCRATCH,
                         (t - 1) % 2 * room, to - from);
        }
    }
}

/* What is left when the last message is over is one piece, the last. */
ll_cost ll_swap_cost(double n, int64_t segment)
{
    int pieces = ll_n_piece((int64_t)n, segment);
    return (ll_cost){.messages = n > 0 ? pieces : 0, .sent = n, .folded = ceil(n / pieces)};
}
