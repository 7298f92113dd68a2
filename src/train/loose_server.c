/* loose_server.c: replicas of a server (server.h), and the list of turns that a run leaves and
 * another may repeat. */
#include "train/loose_int.h"

#include "base/crc32c.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

bool ll_loose_served(const ll_loose *x)
{
    return x->served;
}

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

/* Would writing the one destroy the other? */
static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return !stat(a, &x) && !stat(b, &y) && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

ll_err ll_loose_repeat(ll_loose *x, const char *run, int64_t *until)
{
    const char *path = order_of(x, run);
    CHECK(strcmp(x->how->server, "open"), LL_E_ARG,
          "--replay: changes at an open server have no order that could be repeated: use "
          "parallel.consistency async");
    CHECK(access(path, R_OK) == 0, LL_E_IO, "--replay: %s: %s", path, strerror(errno));
    CHECK(!same_folder(run, x->run->out), LL_E_ARG,
          "--replay: %s would be written over: repeat the run in another folder, with --out", run);
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
    ll_server_opts o = {.how = x->how,
                        .mine = x->mine,
                        .peers = x->peers,
                        .index = x->index,
                        .n = x->n,
                        .params = x->params,
                        .shared = x->rounds ? x->made : x->shared,
                        .seed = (uint64_t)x->run->train.seed,
                        .settings = sum_settings(x),
                        .update = update,
                        .arg = x,
                        .order = order_of(x, x->run->out),
                        .replay = x->repeat.turn ? &x->repeat : NULL};
    x->first = step;
    x->steps = steps;
    TRY(ll_comm_agree(x->world, ll_server_open(&o, step, &x->server)));
    if (x->rounds) ll_session_hold(x->s, x->own);
    ll_loose_take(x, x->own, x->shared);
    return ll_server_begin(x->server, step, x->own, x->velocity);
}

const ll_ticket *ll_loose_hand(const ll_loose *x)
{
    return ll_server_hand(x->server);
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

void ll_loose_end(ll_loose *x, int64_t step)
{
    ll_server_end(x->server, step);
}
