/* binomial.c: trees of depth log2 p, by halving the range of ranks (halving.h). Data that goes down
 * the tree (broadcast, scatter) takes the largest half first; data that comes up (reduce, gather)
 * the smallest.
 *
 *     p = 6, root 0      broadcast           reduce
 *     step 0             0 -> 4              1 -> 0   3 -> 2   5 -> 4
 *     step 1             0 -> 2   4 -> 5     2 -> 0
 *     step 2             0 -> 1   2 -> 3     4 -> 0       = ((0 1) (2 3)) (4 5), as canonical says
 *
 * Scatter and gather cut evenly instead (0 1 2 | 3 4 5), which makes the root's way the longest of
 * all: log2 p messages with every block but its own once, the least that is possible. Ranks on the
 * way keep the blocks of others at their places in DATA. A reduce leaves partial sums there. */
#include "sched/algos.h"
#include "sched/halving.h"

static int links(const ll_coll_spec *s, ll_halving how, int rank, ll_link out[LL_MAX_LINKS])
{
    return ll_halving_links(how, s->size, s->root, rank, out);
}

static void broadcast(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_link l[LL_MAX_LINKS];
    int n = links(s, LL_HALVE_CANONICAL, rank, l);
    for (int i = 0; i < n; i++) {
        if (!l[i].parent) {
            ll_emit_send(e, l[i].peer, LL_DATA, 0, s->count);
            continue;
        }
        ll_emit_recv(e, l[i].peer, LL_DATA, 0, s->count);
        ll_emit_next(e);
    }
}

static void reduce(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_link l[LL_MAX_LINKS];
    for (int i = links(s, LL_HALVE_CANONICAL, rank, l) - 1; i >= 0; i--) {
        if (l[i].parent) {
            ll_emit_send(e, l[i].peer, LL_DATA, 0, s->count);
            continue;
        }
        ll_emit_recv(e, l[i].peer, LL_SCRATCH, 0, s->count);
        ll_emit_next(e);
        ll_emit_fold(e, LL_DATA, 0, LL_DATA, 0, LL_SCRATCH, 0, s->count);
        ll_emit_next(e);
    }
}

static void scatter(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_link l[LL_MAX_LINKS];
    int n = links(s, LL_HALVE_EVENLY, rank, l);
    int64_t at;
    for (int i = 0; i < n; i++) {
        int64_t len = ll_block_span(s, l[i].from, l[i].to, &at);
        if (!l[i].parent) {
            ll_emit_send(e, l[i].peer, LL_DATA, at, len);
            continue;
        }
        ll_emit_recv(e, l[i].peer, LL_DATA, at, len);
        ll_emit_next(e);
    }
}

static void gather(ll_steps *e, const ll_coll_spec *s, int rank)
{
    ll_link l[LL_MAX_LINKS];
    int64_t at;
    for (int i = links(s, LL_HALVE_EVENLY, rank, l) - 1; i >= 0; i--) {
        int64_t len = ll_block_span(s, l[i].from, l[i].to, &at);
        if (l[i].parent) {
            ll_emit_next(e);
            ll_emit_send(e, l[i].peer, LL_DATA, at, len);
        } else {
            ll_emit_recv(e, l[i].peer, LL_DATA, at, len);
        }
    }
}

static ll_cost broadcast_cost(const ll_coll_spec *s)
{
    double d = s->count ? ll_log2_up(s->size) : 0;
    return (ll_cost){.messages = d, .sent = d * (double)s->count};
}

static ll_cost reduce_cost(const ll_coll_spec *s)
{
    ll_cost c = broadcast_cost(s);
    c.folded = c.sent;
    return c;
}

/* Ranks from..to-1 of which root has (scatter) or shall have (gather) all blocks. */
typedef struct range {
    int from, to, root;
} range;

static void halve(const range *r, range *mine, range *other)
{
    int mid = ll_halving_cut(LL_HALVE_EVENLY, r->from, r->to, r->root);
    range first = {r->from, mid, r->from}, second = {mid, r->to, mid};
    *mine = r->root < mid ? first : second;
    *other = r->root < mid ? second : first;
    mine->root = r->root;
}

static ll_cost later(ll_cost a, ll_cost b)
{
    bool first = a.messages != b.messages ? a.messages > b.messages : a.sent > b.sent;
    return first ? a : b;
}

/* A message with the blocks of a range, which is none where they are empty. */
static bool message(const ll_coll_spec *s, const range *r, ll_cost *c)
{
    int64_t at, len = ll_block_span(s, r->from, r->to, &at);
    c->messages += len > 0;
    c->sent += (double)len;
    return len > 0;
}

/* When the last rank of a range has its block, its root having all at `start`. */
static ll_cost scattered(const ll_coll_spec *s, range r, ll_cost start)
{
    if (r.to - r.from < 2) return start;
    range mine, other;
    halve(&r, &mine, &other);
    bool any = message(s, &other, &start);
    ll_cost c = scattered(s, mine, start);
    return any ? later(c, scattered(s, other, start)) : c;
}

static ll_cost gathered(const ll_coll_spec *s, range r)
{
    if (r.to - r.from < 2) return (ll_cost){0};
    range mine, other;
    halve(&r, &mine, &other);
    ll_cost c = gathered(s, mine), there = gathered(s, other), both = later(c, there);
    return message(s, &other, &both) ? both : c;
}

/* Exact for even blocks: log2 p messages and all elements but the root's. Among uneven ones the way
 * of most messages counts as the longest. */
static ll_cost scatter_cost(const ll_coll_spec *s)
{
    return scattered(s, (range){0, s->size, s->root}, (ll_cost){0});
}

static ll_cost gather_cost(const ll_coll_spec *s)
{
    return gathered(s, (range){0, s->size, s->root});
}

const ll_algo ll_algos_binomial[] = {
    {.name = "tree",
     .coll = LL_COLL_BROADCAST,
     .help = "binomial tree: log2 p messages one after another",
     .emit = broadcast,
     .cost = broadcast_cost},
    {.name = "tree",
     .coll = LL_COLL_REDUCE,
     .help = "binomial tree in the canonical order, whatever the root",
     .emit = reduce,
     .cost = reduce_cost,
     .canonical = ll_canonical_always},
    {.name = "tree",
     .coll = LL_COLL_GATHER,
     .help = "blocks join up a tree: log2 p messages at the root",
     .emit = gather,
     .cost = gather_cost},
    {.name = "tree",
     .coll = LL_COLL_SCATTER,
     .help = "half of the blocks go on at each step: log2 p messages at the root",
     .emit = scatter,
     .cost = scatter_cost},
    {0}};
