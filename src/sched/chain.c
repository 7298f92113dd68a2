/* chain.c: a broadcast in which every rank hands on to the next what the one before gave it, cut
 * into segments, so that after p - 2 steps all links are busy at once. For large data and few ranks
 * close to the bound: each element passes each link once.
 *
 *     p = 4, root 0, segments a b c
 *     step      0 -> 1    1 -> 2    2 -> 3
 *     0         a
 *     1         b         a
 *     2         c         b         a
 *     3                   c         b
 *     4                             c */
#include "base/num.h"
#include "sched/emit.h"

enum { SEGMENT = 16384 };

static int64_t segment(const ll_coll_spec *s)
{
    return s->segment ? s->segment : SEGMENT;
}

/* Where segment i begins, or, past the last, where the data ends. */
static int64_t begin(const ll_coll_spec *s, int64_t i)
{
    int64_t at = i * segment(s);
    return at < s->count ? at : s->count;
}

static int64_t n_segment(const ll_coll_spec *s)
{
    return ll_ceil_div(s->count, segment(s));
}

static void emit(ll_steps *e, const ll_coll_spec *s, int rank)
{
    int p = s->size, place = (rank - s->root + p) % p;
    int before = (rank + p - 1) % p, next = (rank + 1) % p;
    int64_t n = n_segment(s);
    /* Step t: segment t comes in while the one before it goes out; the root has all of them. */
    for (int64_t t = 0; t <= n; t++) {
        int64_t out = place ? t - 1 : t;
        if (place && t < n)
            ll_emit_recv(e, before, LL_DATA, begin(s, t), begin(s, t + 1) - begin(s, t));
        if (place < p - 1 && out >= 0 && out < n)
            ll_emit_send(e, next, LL_DATA, begin(s, out), begin(s, out + 1) - begin(s, out));
        ll_emit_next(e);
    }
}

/* The last segment, the only short one, waits nowhere. */
static ll_cost cost(const ll_coll_spec *s)
{
    double links = s->size - 1, n = (double)n_segment(s);
    if (s->size < 2 || !s->count) return (ll_cost){0};
    return (ll_cost){.messages = n + links - 1,
                     .sent = (double)s->count + (links - 1) * (double)begin(s, 1)};
}

const ll_algo ll_algos_chain[] = {{.name = "chain",
                                   .coll = LL_COLL_BROADCAST,
                                   .help = "segments pass from rank to rank, all links at once",
                                   .segmented = true,
                                   .emit = emit,
                                   .cost = cost},
                                  {0}};
