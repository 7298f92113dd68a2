/* server_rounds.c: gradients at a server, round by round (server.h; Li et al. 2020). Behind the
 * head a store has, on every rank, room for the gradient of its replica, and a part of the means of
 * the last s rounds, which stay until all replicas have made an update of them:
 *
 *     rank 0   [gradient of replica 0 | part 0 of means 0 .. s-1]
 *     rank 1   [gradient of replica 1 | part 1 of means 0 .. s-1] ...
 *
 * In turns a gradient joins a round, and a round closes: no more than numbers. Its members, who all
 * wait for it then, each make a piece of the mean: a sum in the replicas' order, divided by their
 * number. When all pieces are made it is made; then whoever has not seen it reads it and updates.
 * That something is made, or seen, is told in no turn: others wait for it, and nothing else comes
 * of it. */
#include "replicas/server_int.h"

#include "base/num.h"

#include <string.h>

typedef struct awaited {
    ll_server *x;
    bool (*over)(const ll_server *x, int64_t what);
    int64_t what;
} awaited;

static ll_err look(void *arg, ll_awaited *now)
{
    const awaited *w = (const awaited *)arg;
    now->what = "other replicas";
    now->site = "server of replicas";
    TRY(ll_rma_head(w->x->store, w->x->h));
    now->moved = (uint64_t)w->x->h->turns;
    now->done = w->over(w->x, w->what);
    return LL_OK;
}

ll_err ll_server_wait(ll_server *x, bool (*over)(const ll_server *x, int64_t what), int64_t what)
{
    awaited w = {x, over, what};
    return ll_comm_await(x->o.peers, look, &w);
}

/* ---- what lies where ---- */

static int64_t kept(const ll_server_opts *o)
{
    return o->how->staleness;
}

/* Elements of so many that lie on 64 bytes. */
static int64_t aligned(int64_t n)
{
    return ll_round_up(n, 16);
}

static int64_t part_of(const ll_server_opts *o)
{
    return aligned(ll_ceil_div(o->shared, o->n));
}

static size_t block_bytes(const ll_server_opts *o)
{
    return bytes_of(aligned(o->shared) + kept(o) * part_of(o));
}

size_t ll_rounds_bytes(const ll_server_opts *o)
{
    return block_bytes(o) * (size_t)o->n;
}

/* Of a gradient, the piece of a round's member; and how much of others' a replica comes to read, in
 * rounds of whichever members. */
static void piece_of(int64_t all, int64_t members, int64_t me, int64_t *from, int64_t *to)
{
    int64_t each = aligned(ll_ceil_div(all, members));
    *from = me * each < all ? me * each : all;
    *to = *from + each < all ? *from + each : all;
}

static int64_t read_of_others(const ll_server_opts *o)
{
    int64_t least = o->shared, most = 0, from, to;
    for (int64_t m = o->how->quorum > 2 ? o->how->quorum : 2; m <= o->n; m++)
        for (int64_t me = 0; me < m; me++) {
            if (me > o->index || o->index - me > o->n - m) continue;
            piece_of(o->shared, m, me, &from, &to);
            least = from < least ? from : least;
            most = to > most ? to : most;
        }
    return most > least ? most - least : 0;
}

size_t ll_rounds_seen(const ll_server_opts *o, int64_t near)
{
    return bytes_of(aligned(o->shared) + (near - 1) * read_of_others(o) +
                    near * kept(o) * part_of(o));
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

/* The round that its last gradient is in, from 1 on; 0: there is none. */
static int64_t *joined_by(const ll_server *x)
{
    return seen_by(x) + x->o.n;
}

/* Gradients in rounds before one that is kept. */
static int64_t *before(const ll_server *x, int64_t round)
{
    return joined_by(x) + x->o.n + round % kept(&x->o);
}

static size_t gradient_at(const ll_server *x, int replica)
{
    return (size_t)replica * block_bytes(&x->o);
}

/* Elements from..to of now from a round's mean, or to it. */
static ll_err move_mean(ll_server *x, int64_t round, bool write, int64_t from, int64_t to)
{
    const int64_t part = part_of(&x->o), place = aligned(x->o.shared) + round % kept(&x->o) * part;
    for (int64_t i = from, end; i < to; i = end) {
        end = (i / part + 1) * part < to ? (i / part + 1) * part : to;
        size_t at = gradient_at(x, (int)(i / part)) + bytes_of(place + i % part);
        TRY(write ? ll_rma_put(x->store, at, x->now + i, bytes_of(end - i))
                  : ll_rma_get(x->store, at, x->now + i, bytes_of(end - i)));
    }
    return LL_OK;
}

/* ---- turns ---- */

static bool closes(const ll_server *x, int64_t given, int64_t fresh, int64_t away)
{
    int64_t want = x->o.how->quorum - away;
    return given && (given >= x->o.n - away || fresh >= (want > 1 ? want : 1));
}

void ll_rounds_try_close(ll_server *x)
{
    ll_server_head *h = x->h;
    if (!closes(x, h->given, h->fresh, h->away)) return;
    *before(x, h->round) = h->before;
    h->before += h->given;
    h->unmade = h->given;
    h->given = h->fresh = 0;
    h->round++;
}

void ll_rounds_give(ll_server *x)
{
    ll_server_head *h = x->h;
    count_stale(x, h->round - x->made);
    x->joined = h->round;
    joined_by(x)[x->o.index] = h->round + 1;
    h->given++;
    h->fresh += x->made == h->round;
    ll_rounds_try_close(x);
}

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

/* ---- means ---- */

static bool is_closed(const ll_server *x, int64_t round)
{
    return x->h->round > round;
}

/* The next one does not close before. */
static bool is_made(const ll_server *x, int64_t round)
{
    return x->h->round > round + 1 || (x->h->round == round + 1 && !x->h->unmade);
}

/* What is told in no turn: *count of the head changes. */
static ll_err tell(ll_server *x, int64_t *count, int64_t now, int64_t less)
{
    TRY(ll_rma_enter(x->store));
    TRY(ll_rma_head(x->store, x->h));
    *count = less ? *count - less : now;
    TRY(ll_rma_set_head(x->store, x->h));
    return ll_rma_leave(x->store);
}

/* Elements from..to of now: the mean of what is given; v: by this one. */
static ll_err add_up(ll_server *x, const float *v, int64_t from, int64_t to)
{
    float *sum = x->now + from;
    int64_t n = to - from, given = 0;
    for (int k = 0; k < x->o.n; k++) {
        if (joined_by(x)[k] != x->joined + 1) continue;
        float *room = given++ ? x->more : sum;
        const float *g = k == x->o.index ? v + from : room;
        if (g == room)
            TRY(ll_rma_get(x->store, gradient_at(x, k) + bytes_of(from), room, bytes_of(n)));
        else if (room == sum)
            memcpy(sum, g, bytes_of(n));
        for (int64_t i = 0; room != sum && i < n; i++) sum[i] += g[i];
    }
    for (int64_t i = 0; i < n; i++) sum[i] /= (float)given;
    return LL_OK;
}

/* This member's piece of the mean of its round. */
static ll_err make_piece(ll_server *x, const float *v)
{
    int64_t members = 0, me = 0, all = x->o.shared;
    for (int k = 0; k < x->o.n; k++) {
        if (k == x->o.index) me = members;
        members += joined_by(x)[k] == x->joined + 1;
    }
    int64_t from, to;
    piece_of(all, members, me, &from, &to);
    for (int64_t i = from; i < to; i += LL_ROUNDS_PIECE)
        TRY(add_up(x, v, i, to - i < LL_ROUNDS_PIECE ? to : i + LL_ROUNDS_PIECE));
    TRY(move_mean(x, x->joined, true, from, to));
    return tell(x, &x->h->unmade, 0, 1);
}

/* ---- updates ---- */

/* Of rounds before this one. */
static ll_err catch_up(ll_server *x, int64_t round)
{
    for (; x->seen < round; x->seen++) {
        if (!is_made(x, x->seen)) TRY(ll_server_wait(x, is_made, x->seen));
        TRY(move_mean(x, x->seen, false, 0, x->o.shared));
        TRY(x->o.update(x->o.arg, x->now, x->seen, *before(x, x->seen)));
    }
    return LL_OK;
}

static ll_err tell_seen(ll_server *x)
{
    return tell(x, &seen_by(x)[x->o.index], x->seen, 0);
}

/* What it gives is still of what it had seen: that is told when it is given. */
ll_err ll_rounds_catch_up(ll_server *x, int64_t round, bool gives)
{
    TRY(catch_up(x, round));
    return gives ? LL_OK : tell_seen(x);
}

ll_err ll_rounds_wait(ll_server *x, bool gives)
{
    return ll_server_wait(x, is_time, gives);
}

ll_err ll_rounds_lay(ll_server *x, const float *v)
{
    x->made = x->seen;
    return ll_rma_put(x->store, gradient_at(x, x->o.index), v, bytes_of(x->o.shared));
}

ll_err ll_rounds_follow(ll_server *x, const float *v)
{
    if (!is_closed(x, x->joined)) { /* others are on their way, or wait for this one */
        TRY(catch_up(x, x->joined));
        if (x->made < x->joined) TRY(tell_seen(x));
        TRY(ll_server_wait(x, is_closed, x->joined));
    }
    TRY(make_piece(x, v));
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
