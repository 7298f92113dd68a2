/* central.c: rank 0 is a parameter server. All send it what they have; it sums, in canonical order,
 * and sends back. The simplest all-reduce and the slowest for many ranks or much data: everything
 * goes through one rank, 2 (p - 1) n elements.
 *
 * Segments halve that, since a rank can send while it receives: the server takes in one segment,
 * sums the one before and sends out the one before that.
 *
 *     p = 3, segments a b c of the data
 *     round   server (rank 0)                              ranks 1 and 2
 *     0       receives a from 1, from 2                    send a
 *     1       receives b from 1, from 2; a += +=           send b
 *     2       receives c; b += +=; sends a to 1, to 2      send c, receive a
 *     3       c += +=; sends b                             receive b
 *     4       sends c                                      receive c
 *
 * A server apart from the ranks that compute was the first way to share gradients (Li et al.:
 * Scaling distributed machine learning with the parameter server, OSDI 2014). */
#include "base/num.h"
#include "sched/algos.h"

enum { SEGMENT = 32768 }; /* elements by default: bounds what the server must hold */

static int n_segment(const ll_coll_spec *s)
{
    return ll_n_piece(s->count, s->segment ? s->segment : SEGMENT);
}

/* What everyone sent of segment k lies in one of two slots of scratch, rank by rank. */
static void fold(ll_steps *e, const ll_coll_spec *s, int k, int n, int64_t room)
{
    int64_t from, to;
    ll_share(s->count, n, k, &from, &to);
    ll_ref *parts = LL_NEW_ARRAY(e->arena, ll_ref, s->size);
    parts[0] = (ll_ref){0, LL_DATA, from};
    for (int r = 1; r < s->size; r++)
        parts[r] = (ll_ref){0, LL_SCRATCH, (k % 2 * (s->size - 1) + r - 1) * room};
    ll_emit_fold_all(e, LL_DATA, from, parts, s->size, to - from);
}

static void serve(ll_steps *e, const ll_coll_spec *s, int n)
{
    int64_t from, to, room = ll_ceil_div(s->count, n);
    for (int t = 0; t < n + 2; t++, ll_emit_next(e)) {
        if (t < n) ll_share(s->count, n, t, &from, &to);
        for (int r = 1; r < s->size && t < n; r++)
            ll_emit_recv(e, r, LL_SCRATCH, (t % 2 * (s->size - 1) + r - 1) * room, to - from);
        if (t >= 2) ll_share(s->count, n, t - 2, &from, &to);
        for (int r = 1; r < s->size && t >= 2; r++) ll_emit_send(e, r, LL_DATA, from, to - from);
        if (t >= 1 && t <= n) fold(e, s, t - 1, n, room);
    }
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    int n = n_segment(s);
    int64_t from, to;
    if (s->size < 2) return;
    if (me == 0) {
        serve(e, s, n);
        return;
    }
    for (int t = 0; t < n + 2; t++, ll_emit_next(e)) {
        if (t < n) {
            ll_share(s->count, n, t, &from, &to);
            ll_emit_send(e, 0, LL_DATA, from, to - from);
        }
        if (t >= 2) {
            ll_share(s->count, n, t - 2, &from, &to);
            ll_emit_recv(e, 0, LL_DATA, from, to - from);
        }
    }
}

/* The server is always busy: n rounds of receiving and two more. */
static ll_cost cost(const ll_coll_spec *s)
{
    if (!s->count) return (ll_cost){0};
    int n = n_segment(s);
    double others = s->size - 1, rounds = n > 1 ? n + 2 : 2;
    return (ll_cost){.messages = rounds * others,
                     .sent = rounds * others * (double)s->count / n,
                     .folded = n > 1 ? 0 : others * (double)s->count};
}

const ll_algo ll_algos_central[] = {
    {.name = "central",
     .coll = LL_COLL_ALLREDUCE,
     .help = "parameter server on rank 0, segments in and out at once: p - 1 times the data",
     .segmented = true,
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_canonical_always},
    {0}};
