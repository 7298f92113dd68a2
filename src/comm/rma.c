/* rma.c: see rma.h. Who is in holds the first rank's memory alone; that of the others needs no
 * more than to be reached. */
#include "comm/rma.h"

#include "base/num.h"
#include "comm/comm_int.h"

struct ll_rma {
    ll_comm *c;
    ll_transport *t; /* of the first communicator of the family: MPI's libraries may take windows of
                      * two that have no rank in common for one */
    void *window;
    size_t head, room, block; /* room: of the head; block: of the rest, on a rank */
    int64_t moved;
    bool entered;
};

static ll_err open_window(ll_rma *s, size_t mine)
{
    CHECK(s->t->ops->expose, LL_E_COMM, "a store needs several ranks, but there is one");
    LL_LOCKED(s->c->engine);
    return s->t->ops->expose(s->t, mine ? mine : 1, &s->window);
}

ll_err ll_rma_open(ll_comm *c, size_t head, size_t bytes, bool sharded, ll_rma **out)
{
    ll_rma *s = (ll_rma *)calloc(1, sizeof *s);
    *out = s;
    CHECK(s, LL_E_MEM, "not enough memory for a store");
    size_t n = sharded ? (size_t)ll_comm_size(c) : 1;
    const ll_comm *first = c;
    while (first->parent) first = first->parent;
    *s = (ll_rma){.c = c, .t = first->t, .head = head, .room = ll_align64(head)};
    s->block = ll_align64(ll_ceil_div(bytes, n));
    int rank = ll_comm_rank(c);
    TRY(ll_comm_drain(c));
    TRY(open_window(s, (rank == 0 ? s->room : 0) + ((size_t)rank < n ? s->block : 0)));
    bool far_apart = !ll_one_node(c->t->node, c->t->size);
    if (!far_apart && !s->t->lazy) return LL_OK;
    CHECK(c->engine->threaded || !far_apart, LL_E_ARG,
          "a store between nodes needs a thread to serve it");
    LL_LOCKED(c->engine);
    c->engine->served = s->t;
    pthread_cond_signal(&c->engine->wake);
    return LL_OK;
}

void ll_rma_close(ll_rma *s)
{
    if (!s) return;
    ll_engine_lock(s->c->engine);
    /* All together: not where one is gone. */
    if (!s->c->engine->failed && !ll_watch_failed(s->c->engine->watch))
        s->t->ops->conceal(s->t, s->window);
    s->c->engine->served = NULL;
    ll_engine_unlock(s->c->engine);
    free(s);
}

int64_t ll_rma_moved(const ll_rma *s)
{
    return s->moved;
}

/* Around calls that wait for what another rank holds, or serves. */
static void begin(ll_rma *s)
{
    ll_watch_held(s->c->engine->watch, true);
    ll_engine_lock(s->c->engine);
}

static void end(ll_rma *s)
{
    ll_engine_unlock(s->c->engine);
    ll_watch_held(s->c->engine->watch, false);
}

static ll_err reach(ll_rma *s, int rank, bool alone)
{
    TRY(ll_watch_check(s->c->engine->watch));
    begin(s);
    ll_err rc = s->t->ops->reach(s->t, s->window, s->c->t->world[rank], alone);
    end(s);
    return rc;
}

static ll_err let_go(ll_rma *s, int rank)
{
    begin(s);
    ll_err rc = s->t->ops->leave(s->t, s->window, s->c->t->world[rank]);
    end(s);
    return rc;
}

static ll_err move(ll_rma *s, int rank, size_t at, void *to, const void *from, size_t bytes)
{
    ll_transport *t = s->t;
    int peer = s->c->t->world[rank];
    begin(s);
    ll_err rc = t->ops->move(t, s->window, peer, at, (const char *)from, (char *)to, bytes);
    end(s);
    if (peer != t->rank) s->moved += (int64_t)bytes * (to && from ? 2 : 1);
    return rc;
}

/* Bytes at .. of what follows the head, part by part. */
static ll_err move_all(ll_rma *s, size_t at, char *to, const char *from, size_t bytes)
{
    for (size_t done = 0, some; done < bytes; done += some) {
        int rank = (int)((at + done) / s->block);
        size_t begin = (at + done) % s->block;
        bool held = s->entered && rank == 0;
        some = s->block - begin < bytes - done ? s->block - begin : bytes - done;
        if (!held) TRY(reach(s, rank, false));
        TRY(move(s, rank, begin + (rank ? 0 : s->room), to ? to + done : NULL,
                 from ? from + done : NULL, some));
        if (!held) TRY(let_go(s, rank));
    }
    return LL_OK;
}

ll_err ll_rma_enter(ll_rma *s)
{
    ll_comm_waits(s->c, "its turn", "server of replicas");
    ll_err rc = reach(s, 0, true);
    ll_comm_waits(s->c, NULL, NULL);
    s->entered = rc == LL_OK;
    return rc;
}

ll_err ll_rma_leave(ll_rma *s)
{
    s->entered = false;
    return let_go(s, 0);
}

ll_err ll_rma_head(ll_rma *s, void *head)
{
    if (s->entered) return move(s, 0, 0, head, NULL, s->head);
    TRY(reach(s, 0, false));
    TRY(move(s, 0, 0, head, NULL, s->head));
    return let_go(s, 0);
}

ll_err ll_rma_set_head(ll_rma *s, const void *head)
{
    return move(s, 0, 0, NULL, head, s->head);
}

ll_err ll_rma_get(ll_rma *s, size_t at, void *to, size_t bytes)
{
    return move_all(s, at, (char *)to, NULL, bytes);
}

ll_err ll_rma_put(ll_rma *s, size_t at, const void *from, size_t bytes)
{
    return move_all(s, at, NULL, (const char *)from, bytes);
}

ll_err ll_rma_add(ll_rma *s, size_t at, const float *from, float *was, size_t bytes)
{
    return move_all(s, at, (char *)was, (const char *)from, bytes);
}
