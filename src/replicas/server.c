/* server.c: see server.h. A store (comm/rma.h) has a head of counters, then parameters and
 * statistics, and the outer optimizer's velocity; of pairs, everyone's parameters and statistics;
 * of gradients, what server_rounds.c says. */
#include "replicas/server_int.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "base/rng.h"
#include "run/ranks.h"

#include <errno.h>

enum { TAKE = 1, LEAVE = 2, READ = 4, AWAY = 8, BACK = 16 }; /* what a turn is for */

static bool has_velocity(const ll_server_opts *o)
{
    return o->how->outer != LL_OUTER_sgd;
}

static size_t head_bytes(const ll_server_opts *o)
{
    size_t more = in_rounds(o) ? ll_rounds_counters(o) : 0;
    return sizeof(ll_server_head) + ((size_t)o->n + more) * sizeof(int64_t);
}

static bool in_pairs(const ll_server_opts *o)
{
    return o->how->peers == LL_PEERS_pairs;
}

/* Nobody waits to change it (Hogwild). */
static bool is_open(const ll_server *x)
{
    return x->o.how->server == LL_SERVER_open;
}

static size_t store_bytes(const ll_server_opts *o)
{
    if (in_rounds(o)) return ll_rounds_bytes(o);
    if (in_pairs(o)) return bytes_of(o->shared) * (size_t)o->n;
    return bytes_of(o->shared + (has_velocity(o) ? o->params : 0));
}

/* Of this process's own memory, in elements. */
static int64_t room_of(const ll_server_opts *o)
{
    if (!in_rounds(o)) return 3 * o->shared;
    return o->shared + (o->shared < LL_ROUNDS_PIECE ? o->shared : LL_ROUNDS_PIECE);
}

size_t ll_server_bytes(const ll_server_opts *o)
{
    size_t n = o->how->server == LL_SERVER_central ? 1 : (size_t)o->n, near = 0;
    const int *node = ll_comm_nodes(o->peers), me = ll_comm_rank(o->peers);
    for (size_t k = 0; k < n; k++) near += node[k] == node[me]; /* their pages are seen here, too */
    return bytes_of(room_of(o)) +
           (in_rounds(o) ? ll_rounds_seen(o, (int64_t)near) : store_bytes(o) / n * near);
}

/* ---- opening ---- */

/* A number at *at, and the character behind it. */
static bool take_number(const char **at, char end, int64_t *out)
{
    char *rest;
    if (**at < '0' || **at > '9') return false;
    errno = 0;
    *out = strtoll(*at, &rest, 10);
    if (errno || *rest != end) return false;
    *at = rest + 1;
    return true;
}

/* A word at *at. */
static bool take_word(const char **at, const char *word)
{
    size_t n = strlen(word);
    if (strncmp(*at, word, n)) return false;
    *at += n;
    return true;
}

/* Eight digits, and the end of the line. */
static bool take_sum(const char **at, uint32_t *out)
{
    if (strspn(*at, "0123456789abcdef") != 8 || (*at)[8] != '\n') return false;
    *out = (uint32_t)strtoul(*at, NULL, 16);
    *at += 9;
    return true;
}

static ll_err parse_lines(const char *at, const char *file, ll_turns *out)
{
    while (strchr(at, '\n')) {
        int64_t last = out->n ? out->turn[out->n - 1] : -1;
        const char *end = at;
        out->ended = take_word(&end, "end ") && take_number(&end, ' ', &out->until) &&
                     take_sum(&end, &out->sum) && !*end;
        if (out->ended) break;
        CHECK(take_number(&at, '\n', &out->turn[out->n]) && out->turn[out->n] > last, LL_E_IO,
              "%s, line %ld: not the number of a turn after %ld", file, out->n + 2, last);
        out->n++;
    }
    return LL_OK;
}

ll_err ll_turns_parse(const char *text, size_t size, const char *file, ll_turns *out)
{
    const char *at = text;
    *out = (ll_turns){0};
    CHECK(take_word(&at, "from ") && take_number(&at, ' ', &out->from) &&
              take_word(&at, "settings ") && take_sum(&at, &out->settings) && strlen(text) == size,
          LL_E_IO, "%s is not a list of turns at a server", file);
    out->turn = (int64_t *)malloc((size / 2 + 1) * sizeof *out->turn); /* a line has 2 bytes */
    CHECK(out->turn, LL_E_MEM, "not enough memory for the turns of %s", file);
    ll_err rc = parse_lines(at, file, out);
    if (rc == LL_OK) return rc;
    free(out->turn);
    out->turn = NULL;
    return rc;
}

/* begun: of the replica's number, and of turns. */
static uint32_t sum_end(uint32_t begun, int64_t until)
{
    return ll_crc32c(begun, &until, sizeof until);
}

static uint32_t sum_begin(int index, const int64_t *turn, int64_t n)
{
    return ll_crc32c(ll_crc32c(0, &index, sizeof index), turn, (size_t)n * sizeof *turn);
}

static ll_err check_turns(const ll_turns *t, const char *path, int index, uint32_t settings)
{
    CHECK(t->from == 0, LL_E_ARG,
          "%s is of a run that continued from step %ld: only runs that were never resumed or "
          "restarted can be repeated",
          path, t->from);
    CHECK(t->settings == settings, LL_E_ARG,
          "%s is of a run with other settings: repeat it with its own run.yaml", path);
    CHECK(t->ended, LL_E_ARG, "%s is of a run that did not finish, and cannot be repeated", path);
    CHECK(t->sum == sum_end(sum_begin(index, t->turn, t->n), t->until), LL_E_ARG,
          "%s was changed since replica %d wrote it: the checksum of its turns differs", path,
          index);
    return LL_OK;
}

ll_err ll_turns_read(const char *path, int index, uint32_t settings, ll_turns *out)
{
    LL_OWN_MEMORY uint8_t *text = NULL;
    size_t size;
    TRY(ll_file_read(path, (size_t)1 << 30, &text, &size));
    TRY(ll_turns_parse((const char *)text, size, path, out));
    return check_turns(out, path, index, settings);
}

/* A list of turns begins with the step before the first, and a sum of the run's settings. */
static ll_err open_order(ll_server *x, int64_t step)
{
    const ll_server_opts *o = &x->o;
    x->sum = sum_begin(o->index, NULL, 0);
    if (!o->order || is_open(x) || !ll_ranks_lead(o->mine)) return LL_OK;
    CHECK(!o->replay || step == 0, LL_E_ARG, "--replay repeats a run from its beginning");
    x->order = fopen(o->order, "w");
    CHECK(x->order, LL_E_IO, "%s: %m", o->order);
    fprintf(x->order, "from %ld settings %08x\n", step, (unsigned)o->settings);
    return LL_OK;
}

ll_err ll_server_open(const ll_server_opts *o, int64_t step, ll_server **out)
{
    ll_server *x = (ll_server *)calloc(1, sizeof *x);
    *out = x;
    CHECK(x, LL_E_MEM, "not enough memory for a server");
    x->o = *o;
    x->room = malloc(bytes_of(room_of(o)) + 64);
    x->h = (ll_server_head *)calloc(1, head_bytes(o));
    CHECK(x->room && x->h, LL_E_MEM, "not enough memory for a server: %zu bytes",
          ll_server_bytes(o));
    x->now = (float *)x->room;
    x->more = x->now + o->shared;
    x->base = in_rounds(o) ? NULL : x->more + o->shared;
    ll_err rc = ll_comm_agree(o->peers, open_order(x, step)); /* all open the store, or none */
    TRY(o->mine ? ll_comm_agree(o->mine, rc) : rc);
    return ll_rma_open(o->peers, head_bytes(o), store_bytes(o), o->how->server != LL_SERVER_central,
                       &x->store);
}

void ll_server_close(ll_server *x)
{
    if (!x) return;
    ll_rma_close(x->store);
    if (x->order) fclose(x->order);
    free(x->room);
    free(x->h);
    free(x);
}

const ll_ticket *ll_server_hand(const ll_server *x)
{
    return x->hand;
}

ll_server_count ll_server_counted(const ll_server *x)
{
    ll_server_count c = x->count;
    c.bytes = ll_rma_moved(x->store);
    return c;
}

/* ---- what lies where ---- */

static size_t velocity_at(const ll_server *x)
{
    return bytes_of(x->o.shared);
}

/* Of a replica, what it goes on from. */
static size_t params_at(const ll_server *x, int replica)
{
    return in_pairs(&x->o) ? bytes_of(x->o.shared) * (size_t)replica : 0;
}

/* ---- changes ---- */

/* The outer optimizer's step of the parameters at the server along d; d is overwritten. */
static ll_err apply(ll_server *x, float *d)
{
    const ll_consistency *h = x->o.how;
    float lr = (float)h->outer_lr, mu = (float)h->outer_momentum;
    bool ahead = h->outer == LL_OUTER_nesterov;
    TRY(ll_rma_get(x->store, 0, x->now, bytes_of(x->o.shared)));
    for (int64_t i = x->o.params; i < x->o.shared; i++) x->now[i] += d[i];
    if (has_velocity(&x->o)) {
        float *v = x->base; /* read anew after any change */
        TRY(ll_rma_get(x->store, velocity_at(x), v, bytes_of(x->o.params)));
        for (int64_t i = 0; i < x->o.params; i++) {
            v[i] = mu * v[i] + d[i];
            d[i] = ahead ? d[i] + mu * v[i] : v[i];
        }
        TRY(ll_rma_put(x->store, velocity_at(x), v, bytes_of(x->o.params)));
    }
    for (int64_t i = 0; i < x->o.params; i++) x->now[i] += lr * d[i];
    return ll_rma_put(x->store, 0, x->now, bytes_of(x->o.shared));
}

/* The mean with another one, and what came of v on top of this one's. */
static ll_err mix(ll_server *x, const float *v)
{
    const uint64_t others = (uint64_t)x->o.n - 1;
    int64_t n = x->o.shared;
    int one = (int)ll_below_at(x->o.seed, ll_stream("pairs", 0), (uint64_t)x->h->turns, others);
    one += one >= x->o.index;
    TRY(ll_rma_get(x->store, params_at(x, x->o.index), x->now, bytes_of(n)));
    TRY(ll_rma_get(x->store, params_at(x, one), x->more, bytes_of(n)));
    for (int64_t i = 0; i < n; i++) {
        float mean = 0.5f * (x->now[i] + x->more[i]);
        x->more[i] = mean;
        x->now[i] = mean + (v[i] - x->base[i]);
    }
    TRY(ll_rma_put(x->store, params_at(x, one), x->more, bytes_of(n)));
    x->h->applied++;
    return ll_rma_put(x->store, params_at(x, x->o.index), x->now, bytes_of(n));
}

/* more: this replica's share of what came of v, of parameters at some rate. */
static void change_of(ll_server *x, const float *v, double rate)
{
    const double n = (double)x->o.n;
    const float of_params = (float)(rate / n), of_rest = (float)(1 / n);
    for (int64_t i = 0; i < x->o.shared; i++)
        x->more[i] = (i < x->o.params ? of_params : of_rest) * (v[i] - x->base[i]);
}

/* Of an open server: a change, element by element, whoever else makes one; v: what came of it. */
static ll_err add_change(ll_server *x, float *v)
{
    int64_t n = x->o.shared;
    change_of(x, v, x->o.how->outer_lr);
    TRY(ll_rma_add(x->store, 0, x->more, x->now, bytes_of(n)));
    for (int64_t i = 0; i < n; i++) v[i] = x->base[i] = x->now[i] + x->more[i];
    return LL_OK;
}

static ll_err leave_change(ll_server *x, const float *v)
{
    count_stale(x, x->h->applied - x->seen);
    x->since = 0;
    if (is_open(x)) { /* it is there already */
        x->seen = ++x->h->applied;
        x->unread = false;
        return LL_OK;
    }
    if (in_pairs(&x->o)) return mix(x, v);
    change_of(x, v, 1);
    x->h->applied++;
    return apply(x, x->more);
}

static void take_share(ll_server *x)
{
    x->hand[0] = x->hand[1];
    x->hand[1] = (ll_ticket){x->h->share / x->o.n, (int)(x->h->share % x->o.n)};
    x->h->share++;
    x->h->at[x->o.index] = x->hand[0].step;
}

/* changed: by this one, in this turn, so that now is what there is. */
static ll_err read_all(ll_server *x, float *v, bool changed)
{
    if (changed)
        memcpy(v, x->now, bytes_of(x->o.shared));
    else
        TRY(ll_rma_get(x->store, params_at(x, x->o.index), v, bytes_of(x->o.shared)));
    memcpy(x->base, v, bytes_of(x->o.shared));
    x->seen = x->h->applied;
    x->unread = false;
    return LL_OK;
}

/* ---- turns ---- */

/* May it begin a step? */
static bool in_bound(const ll_server *x, int64_t step)
{
    for (int i = 0; i < x->o.n; i++)
        if (x->h->at[i] < step - x->o.how->staleness) return false;
    return true;
}

/* Who leaves a change, and need not wait, goes on from what came of it. */
static ll_err do_turn(ll_server *x, unsigned what, float *v)
{
    bool changed = what & LEAVE && !in_rounds(&x->o);
    if (changed) TRY(leave_change(x, v));
    if (what & LEAVE && !changed) ll_rounds_give(x);
    if (what & TAKE) take_share(x);
    if (what & TAKE && changed && in_bound(x, x->hand[0].step)) what |= READ;
    if (what & AWAY) x->h->away++;
    if (what & AWAY && in_rounds(&x->o)) ll_rounds_try_close(x);
    if (what & BACK) x->h->away = 0;
    if (what & READ && !is_open(x)) TRY(read_all(x, v, changed));
    x->h->turns++;
    return LL_OK;
}

static bool is_turn(const ll_server *x, int64_t turn)
{
    return x->h->turns == turn;
}

/* The turn that is this replica's, as its first rank has it; -1: the next there is. */
static ll_err next_turn(ll_server *x, int64_t *turn)
{
    *turn = -1;
    if (!x->o.replay) return LL_OK;
    CHECK(x->repeated < x->o.replay->n, LL_E_IO,
          "replica %d took %ld turns in the repeated run, but takes more now: another version of "
          "loopline made it",
          x->o.index, x->o.replay->n);
    *turn = x->o.replay->turn[x->repeated++];
    return LL_OK;
}

/* In, and the head is as it is. */
static ll_err enter(ll_server *x)
{
    TRY(ll_rma_enter(x->store));
    return ll_rma_head(x->store, x->h);
}

/* Before a turn of rounds, its others make updates as the first rank says: ranks of a replica make
 * them together. */
static ll_err say_catch_up(ll_server *x)
{
    int64_t said = -1 - x->h->round;
    return ll_ranks_share(x->o.mine, &said, sizeof said);
}

static ll_err hear_turn(ll_server *x, bool gives, int64_t *turn)
{
    for (;;) {
        TRY(ll_ranks_share(x->o.mine, turn, sizeof *turn));
        if (*turn >= 0) return LL_OK;
        TRY(ll_rounds_catch_up(x, -1 - *turn, gives));
    }
}

/* A replica's first rank takes the turn; its others follow, each at its own store. */
static ll_err take_turn(ll_server *x, unsigned what, float *v)
{
    bool leads = ll_ranks_lead(x->o.mine);
    int64_t turn = 0;
    ll_err rc = LL_OK;
    if (!leads) TRY(hear_turn(x, what & LEAVE, &turn));
    if (leads) rc = next_turn(x, &turn);
    if (rc == LL_OK && turn >= 0) rc = ll_server_wait(x, is_turn, turn);
    TRY(rc);
    if (is_open(x) && what & LEAVE) TRY(add_change(x, v));
    TRY(enter(x));
    while (in_rounds(&x->o) && what & (LEAVE | AWAY) && ll_rounds_full(x, what & LEAVE)) {
        TRY(ll_rma_leave(x->store));
        if (leads) TRY(say_catch_up(x));
        if (leads) TRY(ll_rounds_catch_up(x, x->h->round, what & LEAVE));
        TRY(ll_rounds_wait(x, what & LEAVE));
        TRY(enter(x));
    }
    turn = x->h->turns;
    TRY(do_turn(x, what, v));
    TRY(ll_rma_set_head(x->store, x->h));
    TRY(ll_rma_leave(x->store));
    if (!leads) return LL_OK;
    if (x->order) fprintf(x->order, "%ld\n", turn);
    x->sum = ll_crc32c(x->sum, &turn, sizeof turn);
    return ll_ranks_share(x->o.mine, &turn, sizeof turn);
}

ll_err ll_server_step(ll_server *x, float *v)
{
    const ll_consistency *h = x->o.how;
    if (in_rounds(&x->o)) {
        TRY(ll_rounds_lay(x, v));
        TRY(take_turn(x, LEAVE | TAKE, v));
        return ll_rounds_follow(x, v);
    }
    bool due = ++x->since >= h->every;
    unsigned at_once = h->staleness < 0 ? READ : 0;
    x->unread = due;
    return take_turn(x, due ? LEAVE | TAKE | at_once : TAKE, v);
}

ll_err ll_server_ready(ll_server *x, float *v)
{
    if (x->o.how->staleness < 0 || in_rounds(&x->o)) return LL_OK;
    /* A replica's first rank waits for others; in a run that is repeated, for its turn alone. */
    if (ll_ranks_lead(x->o.mine) && !x->o.replay) TRY(ll_server_wait(x, in_bound, x->hand[0].step));
    return x->unread ? take_turn(x, READ, v) : LL_OK;
}

ll_err ll_server_arrive(ll_server *x, float *v)
{
    TRY(take_turn(x, AWAY | (x->since ? LEAVE : 0), v));
    return in_rounds(&x->o) ? ll_rounds_gather(x) : LL_OK;
}

/* Where pairs meet: v, and what this one has there, becomes the mean of everyone's. */
static ll_err level(ll_server *x, float *v)
{
    int64_t n = x->o.shared;
    memset(v, 0, bytes_of(n));
    TRY(ll_rma_enter(x->store));
    for (int k = 0; k < x->o.n; k++) {
        TRY(ll_rma_get(x->store, params_at(x, k), x->now, bytes_of(n)));
        for (int64_t i = 0; i < n; i++) v[i] += x->now[i];
    }
    TRY(ll_rma_leave(x->store));
    for (int64_t i = 0; i < n; i++) v[i] *= 1.0f / (float)x->o.n;
    memcpy(x->base, v, bytes_of(n));
    TRY(ll_comm_barrier(x->o.peers)); /* all have read */
    TRY(ll_rma_enter(x->store));
    TRY(ll_rma_put(x->store, params_at(x, x->o.index), v, bytes_of(n)));
    return ll_rma_leave(x->store);
}

static ll_err read_there(ll_server *x, float *v, float *velocity)
{
    TRY(ll_rma_enter(x->store));
    TRY(read_all(x, v, false));
    if (velocity && has_velocity(&x->o))
        TRY(ll_rma_get(x->store, velocity_at(x), velocity, bytes_of(x->o.params)));
    return ll_rma_leave(x->store);
}

ll_err ll_server_meet(ll_server *x, float *v, float *velocity)
{
    if (x->order) fflush(x->order);
    TRY(ll_rma_head(x->store, x->h));
    if (!in_rounds(&x->o)) TRY(read_there(x, v, velocity));
    if (in_pairs(&x->o)) TRY(level(x, v));
    TRY(ll_comm_barrier(x->o.peers));
    if (x->o.index == 0) TRY(take_turn(x, BACK, NULL));
    return ll_comm_barrier(x->o.peers);
}

void ll_server_end(ll_server *x, int64_t step)
{
    if (!x->order) return;
    fprintf(x->order, "end %ld %08x\n", step, (unsigned)sum_end(x->sum, step));
    fflush(x->order);
}

static ll_err write_there(ll_server *x, const float *v, const float *velocity)
{
    for (int i = 0; i < (in_pairs(&x->o) ? x->o.n : 1); i++)
        TRY(ll_rma_put(x->store, params_at(x, i), v, bytes_of(x->o.shared)));
    if (velocity && has_velocity(&x->o))
        TRY(ll_rma_put(x->store, velocity_at(x), velocity, bytes_of(x->o.params)));
    return LL_OK;
}

/* Shares of the first two steps are dealt. */
ll_err ll_server_begin(ll_server *x, int64_t step, const float *v, const float *velocity)
{
    if (!in_rounds(&x->o)) memcpy(x->base, v, bytes_of(x->o.shared));
    for (int i = 0; i < 2; i++) x->hand[i] = (ll_ticket){step + i, x->o.index};
    if (x->o.index == 0) {
        TRY(ll_rma_enter(x->store));
        x->h->share = (step + 2) * x->o.n;
        for (int i = 0; i < x->o.n; i++) x->h->at[i] = step;
        TRY(ll_rma_set_head(x->store, x->h));
        if (!in_rounds(&x->o)) TRY(write_there(x, v, velocity));
        TRY(ll_rma_leave(x->store));
    }
    return ll_comm_barrier(x->o.peers);
}
