/* server_rounds.c: gradients at a server, round by round (server.h; Li et al. 2020). Behind the
 * head a store has, on every rank, room for the gradient of its replica, and a part of the means of
 * the last s rounds, which stay until all replicas have made an update of them:
 *
 *     rank 0   [gradient of replica 0 | part 0 of means 0 .. s-1]
 *     rank 1   [gradient of replica 1 | part 1 of means 0 .. s-1] ...
 *
 * Whoever gives the gradient that closes a round makes its mean: a sum in the replicas' order,
 * divided by their number. What it then does is what the others do: reads means that it has not
 * seen, and updates. When it has seen them is no turn: a round waits for it, and is the same. */
#include "train/server_int.h"

#include <string.h>

/* ---- what lies where ---- */

static int64_t kept(const ll_server_opts *o)
{
    return o->how->staleness;
}

/* Elements of so many that lie on 64 bytes. */
static int64_t aligned(int64_t n)
{
    return (n + 15) / 16 * 16;
}

static int64_t part_of(const ll_server_opts *o)
{
    return aligned((o->shared + o->n - 1) / o->n);
}

static size_t block_bytes(const ll_server_opts *o)
{
    return bytes_of(aligned(o->shared) + kept(o) * part_of(o));
}

size_t ll_rounds_bytes(const ll_server_opts *o)
{
    return block_bytes(o) * (size_t)o->n;
}

size_t ll_rounds_counters(const ll_server_opts *o)
{
    return (size_t)(2 * o->n + kept(o));
}

/* Rounds that a replica has made updates of. */
static int64_t *seen_by(const ll_server *x)
{
    return x->h->at + x->o.n;
}

/* Is its gradient in the open round? */
static int64_t *has_given(const ll_server *x)
{
    return seen_by(x) + x->o.n;
}

/* Gradients in rounds before one that is kept. */
static int64_t *before(const ll_server *x, int64_t round)
{
    return has_given(x) + x->o.n + round % kept(&x->o);
}

static size_t gradient_at(const ll_server *x, int replica)
{
    return (size_t)replica * block_bytes(&x->o);
}

/* now from a round's mean, or to it. */
static ll_err move_mean(ll_server *x, int64_t round, bool write)
{
    const int64_t part = part_of(&x->o), all = x->o.shared;
    for (int i = 0; i < x->o.n && i * part < all; i++) {
        int64_t first = i * part, n = all - first < part ? all - first : part;
        size_t at = gradient_at(x, i) + bytes_of(aligned(all) + round % kept(&x->o) * part);
        TRY(write ? ll_rma_write(x->store, at, x->now + first, bytes_of(n))
                  : ll_rma_get(x->store, at, x->now + first, bytes_of(n)));
    }
    x->mean = round;
    return LL_OK;
}

/* ---- closing ---- */

static bool closes(const ll_server *x, int64_t given, int64_t fresh, int64_t away)
{
    int64_t want = x->o.how->quorum - away;
    return given && (given >= x->o.n - away || fresh >= (want > 1 ? want : 1));
}

/* Elements from..to of now: the mean of what was given; mine: this replica's; NULL: if at all, it
 * lies with the others. */
static ll_err add_piece(ll_server *x, const float *mine, int64_t from, int64_t to)
{
    const float by = (float)x->h->given;
    float *sum = x->now + from;
    bool any = false;
    for (int k = 0; k < x->o.n; k++) {
        const float *g = mine && k == x->o.index ? mine + from : any ? x->more : sum;
        if (!has_given(x)[k]) continue;
        if (!mine || k != x->o.index)
            TRY(ll_rma_read(x->store, gradient_at(x, k) + bytes_of(from), any ? x->more : sum,
                            bytes_of(to - from)));
        if (!any && g != sum) memcpy(sum, g, bytes_of(to - from));
        for (int64_t i = 0; any && i < to - from; i++) sum[i] += g[i];
        any = true;
    }
    for (int64_t i = 0; i < to - from; i++) sum[i] /= by;
    return LL_OK;
}

static ll_err close_round(ll_server *x, const float *mine)
{
    ll_server_head *h = x->h;
    if (!closes(x, h->given, h->fresh, h->away)) return LL_OK;
    for (int64_t i = 0; i < x->o.shared; i += LL_ROUNDS_PIECE) {
        int64_t rest = x->o.shared - i;
        TRY(add_piece(x, mine, i, rest < LL_ROUNDS_PIECE ? x->o.shared : i + LL_ROUNDS_PIECE));
    }
    TRY(move_mean(x, h->round, true));
    *before(x, h->round) = h->before;
    memset(has_given(x), 0, sizeof(int64_t) * (size_t)x->o.n);
    h->before += h->given;
    h->given = h->fresh = 0;
    h->round++;
    return LL_OK;
}

ll_err ll_rounds_lay(ll_server *x, const float *v)
{
    x->made = x->seen;
    return ll_rma_put(x->store, gradient_at(x, x->o.index), v, bytes_of(x->o.shared));
}

ll_err ll_rounds_give(ll_server *x, const float *v)
{
    ll_server_head *h = x->h;
    count_stale(x, h->round - x->made);
    x->joined = h->round;
    has_given(x)[x->o.index] = 1;
    h->given++;
    h->fresh += x->made == h->round;
    return close_round(x, v);
}

ll_err ll_rounds_left(ll_server *x)
{
    return close_round(x, NULL);
}

/* ---- following ---- */

/* Who has yet to see the mean whose place the open round's would take. */
static bool is_behind(const ll_server *x, int64_t seen)
{
    return seen < x->h->round + 1 - kept(&x->o);
}

/* Would its turn (gives: a gradient; else it goes to a meeting) close the round too early for
 * another one? */
static bool is_early(const ll_server *x, int64_t gives)
{
    const ll_server_head *h = x->h;
    bool fresh = gives && x->made == h->round;
    if (!closes(x, h->given + gives, h->fresh + fresh, h->away + !gives)) return false;
    for (int k = 0; k < x->o.n; k++)
        if (k != x->o.index && is_behind(x, seen_by(x)[k])) return true;
    return false;
}

static bool is_time(const ll_server *x, int64_t gives)
{
    return !is_early(x, gives);
}

bool ll_rounds_full(const ll_server *x, bool gives)
{
    return is_behind(x, x->seen) || is_early(x, gives);
}

/* Updates of rounds before this one are made. */
static ll_err catch_up(ll_server *x, int64_t round)
{
    for (; x->seen < round; x->seen++) {
        if (x->mean != x->seen) TRY(move_mean(x, x->seen, false));
        TRY(x->o.update(x->o.arg, x->now, x->seen, *before(x, x->seen)));
    }
    return LL_OK;
}

static ll_err tell_seen(ll_server *x)
{
    TRY(ll_rma_enter(x->store));
    TRY(ll_rma_head(x->store, x->h));
    seen_by(x)[x->o.index] = x->seen;
    TRY(ll_rma_set_head(x->store, x->h));
    return ll_rma_leave(x->store);
}

/* What it gives is still of what it had seen: that is told when it is given. */
ll_err ll_rounds_make_room(ll_server *x, bool gives)
{
    TRY(catch_up(x, x->h->round));
    if (!gives) TRY(tell_seen(x));
    return ll_server_wait(x, is_time, gives);
}

static bool is_closed(const ll_server *x, int64_t round)
{
    return x->h->round > round;
}

ll_err ll_rounds_follow(ll_server *x)
{
    if (!is_closed(x, x->joined)) { /* others are on their way, or wait for this one */
        TRY(catch_up(x, x->joined));
        if (x->made < x->joined) TRY(tell_seen(x));
        TRY(ll_server_wait(x, is_closed, x->joined));
    }
    TRY(catch_up(x, x->joined + 1));
    return tell_seen(x);
}

static bool goes_on(const ll_server *x, int64_t seen)
{
    return x->h->round > seen || x->h->away == x->o.n;
}

ll_err ll_rounds_gather(ll_server *x)
{
    do {
        TRY(ll_server_wait(x, goes_on, x->seen));
        TRY(catch_up(x, x->h->round));
        TRY(tell_seen(x));
    } while (x->h->away < x->o.n || x->h->round > x->seen);
    return LL_OK;
}
