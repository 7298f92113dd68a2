/* circulant.c: halving and doubling for any number of ranks. Rank r keeps a list of sums for blocks
 * r, r + 1, ... (mod p), at first all p of them. At each step it sends the second half of its list
 * to the rank whose list starts there, and adds what comes to the first half; when only block r is
 * left it is the sum of all. The steps backwards are an all-gather (Bruck's).
 *
 *     p = 5      list lengths 5 -> 3 -> 2 -> 1, so the distances are 3, 2, 1
 *     distance   rank 0 sends blocks    to rank    and adds, from rank    to its blocks
 *     3          3 4                    3          2                      0 1
 *     2          2                      2          3                      0
 *     1          1                      1          4                      0
 *     all-gather:                       to                from
 *     1          0                      4          1                      1
 *     2          0                      3          2                      2
 *     3          0 1                    2          3                      3 4
 *
 * Messages of log2 p, rounded up, and (p - 1) / p of the data: the least of both at once, for every
 * p. One wrinkle: blocks that wrap around the end of DATA are two pieces, so two messages. Only the
 * longest step has that; at the others lists lie in SCRATCH, where they need not wrap, and are
 * copied there or back while longer messages are under way.
 *
 * Bruck et al.: Efficient algorithms for all-to-all communications in multiport message-passing
 * systems, 1997. Traff: Optimal, non-pipelined reduce-scatter and allreduce algorithms, 2024. */
#include "sched/algos.h"

enum { MAX_STEPS = 32 };

typedef struct circle {
    const ll_coll_spec *s;
    int me, size;
    int n_step;
    int length[MAX_STEPS + 1]; /* of the list before step k; the distance is the length after it */
} circle;

static circle circle_of(const ll_coll_spec *s, int me)
{
    circle c = {.s = s, .me = me, .size = s->size, .length = {s->size}};
    for (; c.length[c.n_step] > 1; c.n_step++)
        c.length[c.n_step + 1] = (c.length[c.n_step] + 1) / 2;
    return c;
}

/* Elements that are together in DATA and in a list in SCRATCH, from places data and list on. */
typedef struct run {
    int64_t data, list, n;
} run;

/* Entries from..to-1 of my list: those up to the last block, and those from block 0 on. Either run
 * may be empty. */
static void runs(const circle *c, int from, int to, run out[2])
{
    int begin = c->me + from, end = c->me + to, p = c->size;
    int64_t at, up_to_last = ll_block_span(c->s, c->me, p, &at);
    int cut = end < p ? end : p, again = begin > p ? begin - p : 0;
    out[0].n = ll_block_span(c->s, begin, cut, &out[0].data);
    out[0].list = ll_block_span(c->s, c->me, begin < p ? begin : p, &at);
    out[1].n = ll_block_span(c->s, again, end - p, &out[1].data);
    out[1].list = up_to_last + ll_block_span(c->s, 0, again, &at);
}

/* Where entry j begins in a list. */
static int64_t entry(const circle *c, int j)
{
    run r[2];
    runs(c, 0, j, r);
    return r[0].n + r[1].n;
}

/* The longest step of a reduce-scatter: from DATA, in up to two runs; got is what comes, to the
 * beginning of SCRATCH. */
static void first_half(ll_steps *e, const circle *c, int half, int64_t list, run got[2])
{
    int p = c->size;
    run out[2], raw[2];
    runs(c, half, p, out);
    runs(c, 0, p - half, got);
    runs(c, p - half, half, raw);
    for (int i = 0; i < 2; i++) ll_emit_send(e, (c->me + half) % p, LL_DATA, out[i].data, out[i].n);
    for (int i = 0; i < 2; i++)
        ll_emit_recv(e, (c->me + p - half) % p, LL_SCRATCH, got[i].list, got[i].n);
    for (int i = 0; i < 2 && half > 1; i++) /* the middle one of an odd list: nothing is added */
        ll_emit_copy(e, LL_SCRATCH, list + raw[i].list, (ll_ref){c->me, LL_DATA, raw[i].data},
                     raw[i].n);
    ll_emit_next(e);
}

void ll_emit_circulant_reduce_scatter(ll_steps *e, const ll_coll_spec *s, int me)
{
    circle c = circle_of(s, me);
    int64_t list = entry(&c, c.size / 2), mine; /* behind what is received */
    ll_block_span(s, me, me + 1, &mine);
    for (int k = 0; k < c.n_step; k++, ll_emit_next(e)) {
        int half = c.length[k + 1], n = c.length[k] - half;
        run got[2] = {{0, 0, entry(&c, n)}, {0}};
        if (k == 0) {
            first_half(e, &c, half, list, got);
        } else {
            int64_t from = entry(&c, half);
            ll_emit_send(e, (me + half) % c.size, LL_SCRATCH, list + from,
                         entry(&c, c.length[k]) - from);
            ll_emit_recv(e, (me + c.size - half) % c.size, LL_SCRATCH, 0, got[0].n);
            ll_emit_next(e);
        }
        for (int i = 0; i < 2; i++) {
            int64_t a = k == 0 ? got[i].data : list + got[i].list;
            int64_t dst = half == 1 ? mine : list + got[i].list;
            ll_emit_fold(e, half == 1 ? LL_DATA : LL_SCRATCH, dst, k == 0 ? LL_DATA : LL_SCRATCH, a,
                         LL_SCRATCH, got[i].list, got[i].n);
        }
    }
}

/* The longest step: what is in the list goes out, the rest comes in where it belongs. */
static void last_half(ll_steps *e, const circle *c)
{
    int p = c->size, half = c->length[1];
    run out[2], in[2];
    runs(c, 0, p - half, out);
    runs(c, half, p, in);
    for (int i = 0; i < 2; i++)
        ll_emit_send(e, (c->me + p - half) % p, half > 1 ? LL_SCRATCH : LL_DATA,
                     half > 1 ? out[i].list : out[i].data, out[i].n);
    for (int i = 0; i < 2; i++) ll_emit_recv(e, (c->me + half) % p, LL_DATA, in[i].data, in[i].n);
}

void ll_emit_circulant_allgather(ll_steps *e, const ll_coll_spec *s, int me)
{
    circle c = circle_of(s, me);
    int64_t mine, n_mine = ll_block_span(s, me, me + 1, &mine);
    for (int k = c.n_step - 1; k >= 0; k--, ll_emit_next(e)) {
        int half = c.length[k + 1], n = c.length[k] - half;
        run got[2];
        if (k == 0) {
            last_half(e, &c);
        } else {
            int64_t at = entry(&c, half);
            ll_emit_send(e, (me + c.size - half) % c.size, half > 1 ? LL_SCRATCH : LL_DATA,
                         half > 1 ? 0 : mine, entry(&c, n));
            ll_emit_recv(e, (me + half) % c.size, LL_SCRATCH, at, entry(&c, c.length[k]) - at);
        }
        if (half == 1) { /* the list begins; afterwards, what came goes where it belongs */
            if (k > 0) ll_emit_copy(e, LL_SCRATCH, 0, (ll_ref){me, LL_DATA, mine}, n_mine);
            continue;
        }
        runs(&c, c.length[k + 2], half, got);
        for (int i = 0; i < 2; i++)
            ll_emit_copy(e, LL_DATA, got[i].data, (ll_ref){me, LL_SCRATCH, got[i].list}, got[i].n);
    }
}

static void allreduce(ll_steps *e, const ll_coll_spec *s, int me)
{
    ll_emit_circulant_reduce_scatter(e, s, me);
    ll_emit_circulant_allgather(e, s, me);
}

/* Of equal blocks. Some rank's longest step wraps if it has two blocks or more. */
ll_cost ll_circulant_allgather_cost(const ll_coll_spec *s)
{
    return (ll_cost){.messages = s->count ? ll_log2_up(s->size) + (s->size > 3) : 0,
                     .sent = (s->size - 1) * (double)ll_largest_block(s)};
}

ll_cost ll_circulant_reduce_scatter_cost(const ll_coll_spec *s)
{
    ll_cost c = ll_circulant_allgather_cost(s);
    c.folded = c.sent;
    return c;
}

static ll_cost cost(const ll_coll_spec *s)
{
    return ll_cost_sum(ll_circulant_reduce_scatter_cost(s), ll_circulant_allgather_cost(s));
}

const ll_algo ll_algos_circulant[] = {
    {.name = "circulant",
     .coll = LL_COLL_ALLREDUCE,
     .help = "halving and doubling around a circle: least bytes, 2 log2 p messages, any p",
     .emit = allreduce,
     .cost = cost,
     .canonical = ll_canonical_of_two},
    {0}};
