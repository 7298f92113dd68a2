/* comm.c: communicators: opened on a transport, split, closed; their window and other memory that
 * the ranks of a node share. */
#include "comm/comm_int.h"
#include "sched/nodes.h"

#include <stdio.h>

static const double default_timeout_s = 60;
static const size_t default_window_bytes = (size_t)4 << 20;

static double timeout_of(const ll_comm_opts *o)
{
    return o && o->timeout_s > 0 ? o->timeout_s : default_timeout_s;
}

/* ---- memory that a node shares ---- */

/* A part is a line with the counter, then two halves. */
static ll_err open_window(ll_comm *c)
{
    ll_transport *t = c->t;
    if (ll_nodes_count(&(ll_coll_spec){.size = t->size, .node = t->node}) == t->size) return LL_OK;
    size_t half = c->opts.window_bytes / 2 / LL_LINE_BYTES * LL_LINE_BYTES;
    TRY(t->ops->share(t, LL_LINE_BYTES + 2 * half, &c->window));
    c->half_bytes = half;
    c->engine->used.held += c->window.bytes;
    c->parts = LL_NEW_ARRAY(c->arena, char *, t->size);
    for (int i = 0; i < c->window.n_rank; i++) c->parts[c->window.ranks[i]] = c->window.part[i];
    return LL_OK;
}

static int world_size(const ll_comm *c)
{
    while (c->parent) c = c->parent;
    return c->t->size;
}

/* Around what waits inside MPI, where nothing of ours moves and no failure is seen: entered when
 * all ranks are there. */
static ll_err enter(ll_comm *c, const char *what)
{
    const ll_coll_call barrier = {.spec.coll = LL_COLL_BARRIER, .dtype = LL_U8, .site = what};
    ll_err rc = c->t->size > 1 ? ll_comm_run(c, &barrier) : LL_OK;
    ll_engine_lock(c->engine);
    if (!rc) ll_watch_wait_begin(c->engine->watch, what, -1, NULL);
    return rc;
}

/* A rank that failed there is apart from the others for good. */
static ll_err leave(ll_comm *c, ll_err entered, ll_err rc)
{
    if (!entered) ll_watch_wait_end(c->engine->watch);
    if (rc) rc = ll_engine_fail(c->engine, rc);
    ll_engine_unlock(c->engine);
    if (rc && !entered) ll_comm_give_up(c);
    return rc;
}

static void unshare(ll_comm *c, ll_shared *s)
{
    if (!s->released) c->engine->used.held -= s->shm.bytes;
    c->t->ops->unshare(c->t, &s->shm);
    free(s);
}

/* What all ranks have released goes. */
static ll_err sweep(ll_comm *c)
{
    int64_t n = 0, i = 0;
    for (const ll_shared *s = c->shared; s; s = s->next) n++;
    if (!n) return LL_OK;
    LL_OWN(ll_arena) arena = ll_arena_new();
    uint8_t *released = LL_NEW_ARRAY(arena, uint8_t, n);
    for (const ll_shared *s = c->shared; s; s = s->next) released[i++] = s->released;
    const ll_coll_call all = {.spec = {.coll = LL_COLL_ALLREDUCE, .count = n},
                              .data = released,
                              .dtype = LL_U8,
                              .op = LL_REDUCE_MIN,
                              .site = "allocation"};
    TRY(ll_comm_run(c, &all));
    LL_LOCKED(c->engine);
    i = 0;
    for (ll_shared **at = &c->shared; *at;) {
        ll_shared *s = *at;
        if (!released[i++]) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        unshare(c, s);
    }
    return LL_OK;
}

static ll_err alloc(ll_comm *c, size_t bytes, void **out)
{
    ll_transport *t = c->t;
    ll_shared *s = (ll_shared *)calloc(1, sizeof *s + sizeof *s->by_world * (size_t)world_size(c));
    CHECK(s, LL_E_MEM, "not enough memory for an allocation");
    ll_err rc = t->ops->share(t, bytes, &s->shm);
    if (rc) free(s);
    TRY(rc);
    for (int i = 0; i < s->shm.n_rank; i++) s->by_world[t->world[s->shm.ranks[i]]] = s->shm.part[i];
    s->next = c->shared;
    c->shared = s;
    c->engine->used.held += s->shm.bytes;
    *out = s->shm.part[s->shm.me];
    return LL_OK;
}

ll_err ll_comm_alloc(ll_comm *c, size_t bytes, void **out)
{
    LL_GIVEN(c);
    LL_GIVEN(out);
    TRY(sweep(c));
    ll_err entered = enter(c, "allocation");
    return leave(c, entered, entered ? entered : alloc(c, bytes, out));
}

void ll_comm_release(ll_comm *c, const void *data)
{
    LL_LOCKED(c->engine);
    for (ll_shared *s = c->shared; s; s = s->next) {
        if (data != s->shm.part[s->shm.me] || s->released) continue;
        s->released = true;
        c->engine->used.held -= s->shm.bytes;
    }
}

/* ---- opening and closing ---- */

static void let_go(ll_comm *c, bool failed)
{
    ll_transport *t = c->t;
    ll_engine *e = c->engine;
    if (e && !failed) ll_watch_wait_begin(e->watch, "close", -1, NULL);
    if (e) ll_engine_lock(e);
    for (ll_shared *s = c->shared, *next; s && !failed; s = next) {
        next = s->next;
        unshare(c, s);
    }
    if (c->window.part && !failed) {
        e->used.held -= c->window.bytes;
        t->ops->unshare(t, &c->window);
    }
    t->ops->close(t, failed);
    if (e) ll_engine_unlock(e);
    if (e && !failed) ll_watch_wait_end(e->watch);
}

static void close_comm(ll_comm *c, bool failed)
{
    let_go(c, failed);
    if (!c->parent) ll_engine_close(c->engine);
    ll_comm_set_table(c, NULL);
    ll_plans_free(&c->plans);
    ll_arena_free(c->arena);
    free(c);
}

/* t belongs to the communicator from now on. */
static ll_err open_on(ll_transport *t, ll_comm *parent, const ll_comm_opts *opts, ll_comm *c)
{
    c->t = t;
    c->parent = parent;
    c->arena = ll_arena_new();
    c->number_now = -1;
    if (opts) c->opts = *opts;
    c->opts.timeout_s = timeout_of(opts);
    if (c->opts.window_bytes == 0) c->opts.window_bytes = default_window_bytes;
    if (parent)
        c->engine = parent->engine;
    else
        TRY(ll_engine_open(t, &c->opts, &c->engine));
    ll_engine_lock(c->engine);
    ll_watch_wait_begin(c->engine->watch, "opening of a communicator", -1, NULL);
    return leave(c, LL_OK, open_window(c));
}

static ll_err new_comm(ll_transport *t, ll_comm *parent, const ll_comm_opts *opts, ll_comm **out)
{
    ll_comm *c = (ll_comm *)calloc(1, sizeof *c);
    CHECK(c, LL_E_MEM, "not enough memory for a communicator");
    ll_err rc = open_on(t, parent, opts, c);
    if (rc)
        close_comm(c, true);
    else
        *out = c;
    return rc;
}

static ll_err check_options(const ll_comm_opts *o)
{
    if (!o) return LL_OK;
    CHECK(o->timeout_s >= 0, LL_E_ARG, "timeout is %g s, expected more than 0, or 0 for %g s",
          o->timeout_s, default_timeout_s);
    CHECK(o->window_bytes == 0 || o->window_bytes >= 2 * LL_LINE_BYTES, LL_E_ARG,
          "window has %zu bytes, expected at least %d, or 0 for %zu", o->window_bytes,
          2 * LL_LINE_BYTES, default_window_bytes);
    return LL_OK;
}

ll_err ll_comm_open_untuned(const void *comm, const ll_comm_opts *opts, ll_comm **out)
{
    ll_transport *t;
    LL_GIVEN(out);
    *out = NULL;
    TRY(check_options(opts));
    bool alone = !comm && !ll_transport_launched();
    ll_engine_lock(NULL); /* threads of others may be in MPI, and nothing of theirs moves there */
    if (!alone) ll_engines_drain();
    ll_err rc = alone ? ll_transport_self(&t) : ll_transport_mpi(comm, timeout_of(opts), &t);
    ll_engine_unlock(NULL);
    TRY(rc);
    return new_comm(t, NULL, opts, out);
}

ll_err ll_comm_split_untuned(ll_comm *c, int color, int key, ll_comm **out)
{
    ll_transport *t = NULL;
    LL_GIVEN(c);
    LL_GIVEN(out);
    *out = NULL;
    ll_err entered = enter(c, "split");
    TRY(leave(c, entered, entered ? entered : c->t->ops->split(c->t, color, key, &t)));
    return t ? new_comm(t, c, &c->opts, out) : LL_OK;
}

void ll_comm_abandon(ll_comm *c)
{
    close_comm(c, true);
}

void ll_comm_close(ll_comm *c)
{
    if (!c) return;
    LL_KEEP_ERROR;
    const ll_coll_call barrier = {.spec.coll = LL_COLL_BARRIER, .dtype = LL_U8, .site = "close"};
    ll_err rc = ll_comm_drain(c);
    if (!rc && c->t->size > 1) rc = ll_comm_run(c, &barrier);
    close_comm(c, rc != LL_OK);
}

void ll_comm_give_up(ll_comm *c)
{
    char message[1024];
    snprintf(message, sizeof message, "rank %d: %s", c->t->world[c->t->rank], ll_error_message());
    ll_err code = ll_error_code() ? ll_error_code() : LL_E_COMM; /* of another thread, perhaps */
    ll_engine_lock(c->engine);
    code = ll_engine_fail(c->engine, code);
    ll_engine_unlock(c->engine);
    if (code) ll_watch_give_up(c->engine->watch, message);
}

/* ---- what it is ---- */

int ll_comm_rank(const ll_comm *c)
{
    return c ? c->t->rank : 0;
}

int ll_comm_size(const ll_comm *c)
{
    return c ? c->t->size : 1;
}

ll_comm_usage ll_comm_used(ll_comm *c)
{
    LL_LOCKED(c->engine); /* a thread may be counting */
    return c->engine->used;
}

size_t ll_comm_own_bytes(const ll_comm *c)
{
    size_t window = c->half_bytes ? LL_LINE_BYTES + 2 * c->half_bytes : 0;
    return window + (c->parent || c->engine->alone ? 0 : LL_LEAST_SCRATCH);
}

void ll_comm_hold(ll_comm *c, int64_t bytes)
{
    LL_LOCKED(c->engine);
    c->engine->used.held += (size_t)bytes;
}

void ll_comm_trace(ll_comm *c, ll_trace *t)
{
    LL_LOCKED(c->engine);
    c->engine->trace = t;
}

const int *ll_comm_nodes(const ll_comm *c)
{
    return c->t->node;
}

const ll_comm_opts *ll_comm_options(const ll_comm *c)
{
    return &c->opts;
}

void ll_comm_doing(ll_comm *c, const char *what)
{
    if (c) ll_watch_doing(c->engine->watch, what ? what : "");
}

void ll_comm_tell(ll_comm *c)
{
    ll_watch_tell(c->engine->watch);
}

void ll_comm_slow(ll_comm *c, bool slow)
{
    ll_watch_slow(c->engine->watch, slow);
}

size_t ll_comm_window_bytes(const ll_comm *c)
{
    return c->half_bytes;
}

void ll_comm_set_table(ll_comm *c, ll_tuned_table *t)
{
    if (c->table != t) ll_tuned_table_free(c->table);
    c->table = t;
    c->n_table++; /* choices made by the one before are not found any more */
}

const ll_tuned_table *ll_comm_table(const ll_comm *c)
{
    return c->table;
}
