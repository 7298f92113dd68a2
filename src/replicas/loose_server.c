/* loose_server.c: replicas of a server (server.h), and the list of turns that a run leaves and
 * another may repeat. */
#include "replicas/loose.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "run/ranks.h"

#include <unistd.h>

/* The file of this replica's turns. */
static const char *order_of(const ll_loose *x, const char *run)
{
    return ll_arena_printf(x->arena, "%s/order-%d.txt", run, x->index);
}

/* Of all but where the run's folder is. */
static uint32_t sum_settings(const ll_loose *x)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    uint32_t sum = 0;
    for (const char *line = ll_run_print(x->run, a), *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        if (strncmp(line, "out:", 4)) sum = ll_crc32c(sum, line, (size_t)(next - line));
    }
    return sum;
}

ll_err ll_loose_repeat(ll_loose *x, const char *run, int64_t *until)
{
    const char *path = order_of(x, run);
    CHECK(x->how->server != LL_SERVER_open, LL_E_ARG,
          "--replay cannot be combined with parallel.server=open, which keeps no order: use "
          "parallel.consistency=async");
    CHECK(access(path, R_OK) == 0, LL_E_IO, "--replay: %s: %m", path);
    CHECK(!ll_is_same_file(run, x->run->out), LL_E_ARG,
          "--replay: %s would be overwritten: repeat the run in another folder, with --out", run);
    TRY(ll_turns_read(path, x->index, sum_settings(x), &x->repeat));
    *until = x->repeat.until;
    return LL_OK;
}

/* Rates go by samples. */
static ll_err update(void *arg, const float *mean, int64_t round, int64_t before)
{
    const ll_loose *x = (const ll_loose *)arg;
    double lr =
        ll_lr_at(&x->run->train.schedule, x->run->train.batch, x->steps, x->first + before / x->n);
    return ll_session_update(x->s, mean, lr, (double)(x->first + round + 1));
}

ll_err ll_loose_start(ll_loose *x, int64_t step, int64_t steps)
{
    ll_server_opts o = ll_loose_server_opts(x);
    o.settings = sum_settings(x);
    o.update = update;
    o.arg = x;
    o.order = order_of(x, x->run->out);
    o.replay = x->repeat.turn ? &x->repeat : NULL;
    x->first = step;
    x->steps = steps;
    TRY(ll_comm_agree(x->world, ll_server_open(&o, step, &x->server)));
    if (x->rounds) ll_session_hold(x->s, x->own);
    ll_loose_take(x, x->own, x->shared);
    return ll_server_begin(x->server, step, x->own, x->velocity);
}

ll_err ll_loose_serve(ll_loose *x)
{
    if (x->rounds) return ll_server_step(x->server, x->own); /* where the session left it */
    ll_loose_take(x, x->own, x->shared);
    TRY(ll_server_step(x->server, x->own));
    return ll_loose_put(x, x->own, x->shared);
}

ll_err ll_loose_ready(ll_loose *x)
{
    if (x->how->staleness < 0 || x->rounds) return LL_OK;
    ll_loose_take(x, x->own, x->shared);
    TRY(ll_server_ready(x->server, x->own));
    return ll_loose_put(x, x->own, x->shared);
}

ll_err ll_loose_arrive(ll_loose *x)
{
    ll_loose_take(x, x->own, x->shared);
    return ll_server_arrive(x->server, x->own);
}

ll_err ll_loose_meet(ll_loose *x)
{
    TRY(ll_server_meet(x->server, x->own, x->velocity));
    return x->rounds ? LL_OK : ll_loose_put(x, x->own, x->shared);
}

/* ---- how long that takes ---- */

static ll_err update_nothing(void *arg, const float *mean, int64_t round, int64_t before)
{
    (void)arg, (void)mean, (void)round, (void)before;
    return LL_OK;
}

/* A share; the session's tensors stay as they are. */
static ll_err serve_nothing(ll_loose *x)
{
    if (x->rounds) return ll_server_step(x->server, x->own);
    ll_loose_take(x, x->own, x->shared);
    TRY(ll_server_step(x->server, x->own));
    ll_loose_take(x, x->own, x->shared); /* as long as putting it */
    return LL_OK;
}

/* All of steps before `until`, as in a run: some wait for others. */
static ll_err serve_until(ll_loose *x, int64_t until, double *seconds)
{
    double start = ll_now();
    while (ll_server_hand(x->server)->step < until) {
        TRY(ll_server_ready(x->server, x->own));
        TRY(serve_nothing(x));
    }
    *seconds = ll_now() - start;
    return LL_OK;
}

/* Seconds of a step. all: replicas come at once, again and again; alone: one behind another. */
static ll_err rehearse(ll_loose *x, double *all, double *alone)
{
    enum { TIMES = 4 };
    const int64_t every = x->how->every;
    bool may = !x->rounds && x->how->staleness; /* else nobody goes on without the others */
    ll_loose_take(x, x->own, x->shared);
    TRY(ll_server_begin(x->server, 0, x->own, x->velocity));
    TRY(serve_until(x, every, all)); /* which pages come with */
    TRY(serve_until(x, (1 + TIMES) * every, all));
    TRY(ll_server_arrive(x->server, x->own));
    TRY(ll_server_meet(x->server, x->own, NULL));
    *all /= (double)(TIMES * every);
    *alone = may ? INFINITY : 0;
    for (int i = 0; i < TIMES * x->n && may; i++) {
        double start = ll_now();
        for (int64_t k = 0; k < every && i % x->n == x->index; k++) TRY(serve_nothing(x));
        if (i % x->n == x->index) *alone = fmin(*alone, (ll_now() - start) / (double)every);
        TRY(ll_comm_barrier(x->world));
    }
    TRY(ll_ranks_max(x->world, all));
    return ll_ranks_max(x->world, alone);
}

static ll_err rehearse_server(ll_loose *x, double step_s, double *seconds)
{
    ll_server_opts o = ll_loose_server_opts(x);
    double all, alone;
    o.update = update_nothing;
    TRY(ll_comm_agree(x->world, ll_server_open(&o, 0, &x->server)));
    ll_err rc = rehearse(x, &all, &alone);
    ll_server_close(x->server);
    x->server = NULL;
    TRY(rc);
    *seconds = alone > 0 ? fmax(alone, all - step_s) : all; /* while some are there, others work */
    return LL_OK;
}

ll_err ll_loose_rehearse(ll_loose *x, double step_s, double *seconds, const char **without)
{
    *seconds = 0;
    *without = strcmp(x->how->codec, "none") ? "exchanges of replicas, which are coded"
               : x->due                      ? "exchanges of replicas, which overlap steps"
                                             : NULL;
    if (*without || !x->how->every) return LL_OK;
    return x->served ? rehearse_server(x, step_s, seconds) : ll_loose_rehearse_means(x, seconds);
}
