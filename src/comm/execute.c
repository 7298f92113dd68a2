/* execute.c: runs schedules. A request is a schedule, the round it is in, and the messages of that
 * round that are under way; ll_request_advance takes it as far as it goes without waiting, and is
 * called for every request of the family again and again, by whoever waits and by the thread.
 *
 * Invariants
 *   1. A request is in the engine's list from its start until it is done, oldest first.
 *   2. Of the window collectives of a communicator only the one whose turn it is leaves round 0's
 *      awaits; turns are given in the order of starts, which is the same on every rank.
 *   3. A rank's counter in the window is c->signals + what it signalled in the collective whose
 *      turn it is; c->signals is the same on all ranks of a node when their turns are.
 *   4. Nothing is allocated once every kind of call has been made: requests, their lists of
 *      messages and scratch memory are kept. */
#include "comm/comm_int.h"

#include "base/text.h"
#include "base/types.h"

#include <stdlib.h>
#include <string.h>

static ll_message *message_slot(ll_request *r)
{
    if (r->n_message == r->capacity) {
        int n = r->capacity ? 2 * r->capacity : 8;
        ll_message *more = (ll_message *)realloc(r->messages, sizeof *more * (size_t)n);
        if (!more) return NULL;
        r->messages = more;
        r->capacity = n;
    }
    return &r->messages[r->n_message++];
}

/* ---- steps ---- */

static char *own(const ll_request *r, const ll_ref *f)
{
    return r->own[f->buf] + (size_t)f->at * r->elem_bytes;
}

static const char *source(const ll_request *r, const ll_ref *f)
{
    const ll_comm *c = r->c;
    if (f->rank == c->t->rank) return own(r, f);
    const char *base = f->buf == LL_WINDOW
                           ? c->parts[f->rank] + r->half_at
                           : r->shared->by_world[c->t->world[f->rank]] + r->shared_at;
    return base + (size_t)f->at * r->elem_bytes;
}

static uint64_t *counter(const ll_comm *c, int rank)
{
    return (uint64_t *)(void *)c->parts[rank];
}

static void count_sent(ll_comm *c, size_t bytes)
{
    c->count.messages++;
    c->count.bytes += (int64_t)bytes;
    c->engine->used.count.messages++;
    c->engine->used.count.bytes += (int64_t)bytes;
}

/* What a fold reads of other ranks' memory. */
static void count_read(const ll_request *r, const ll_step *s)
{
    ll_comm *c = r->c;
    int64_t n = 0;
    for (int i = 0; i < s->n_from; i++) n += s->from[i].rank != c->t->rank;
    n *= s->n * (int64_t)r->elem_bytes;
    c->count.read += n;
    c->engine->used.count.read += n;
}

static ll_err send_or_receive(ll_request *r, const ll_step *s)
{
    ll_comm *c = r->c;
    ll_transport *t = c->t;
    ll_message *m = message_slot(r);
    CHECK(m, LL_E_MEM, "no memory for %d messages", r->n_message + 1);
    size_t bytes = (size_t)s->n * r->elem_bytes;
    if (s->kind == LL_STEP_RECV) return t->ops->recv(t, own(r, &s->dst), bytes, s->peer, r->tag, m);
    count_sent(c, bytes);
    return t->ops->send(t, own(r, s->from), bytes, s->peer, r->tag, m);
}

static ll_err fold(ll_request *r, const ll_step *s)
{
    count_read(r, s);
    if (s->n_from == 1) {
        memcpy(own(r, &s->dst), source(r, s->from), (size_t)s->n * r->elem_bytes);
        return LL_OK;
    }
    ll_engine *e = r->c->engine;
    if (s->n_from > e->n_source) {
        const void **more = (const void **)realloc(e->sources, sizeof *more * (size_t)s->n_from);
        CHECK(more, LL_E_MEM, "no memory for a list of %d operands", s->n_from);
        e->sources = more;
        e->n_source = s->n_from;
    }
    for (int i = 0; i < s->n_from; i++) e->sources[i] = source(r, &s->from[i]);
    ll_fold(own(r, &s->dst), e->sources, s->n_from, s->n, r->dtype, r->op);
    return LL_OK;
}

/* ---- rounds ---- */

/* Are all awaits of the round over? Sets its end on the way. */
static bool awaited(ll_request *r)
{
    const ll_sched *s = r->sched;
    const ll_step *steps = s->steps;
    int round = steps[r->at].round;
    for (; r->await < s->n_step && steps[r->await].round == round; r->await++) {
        const ll_step *x = &steps[r->await];
        if (x->kind == LL_STEP_AWAIT && __atomic_load_n(counter(r->c, x->peer), __ATOMIC_ACQUIRE) <
                                            r->base + (uint64_t)x->value)
            return false;
    }
    r->end = r->await;
    return true;
}

/* Everything of a round between its awaits and the end of its messages. */
static ll_err perform(ll_request *r)
{
    const ll_step *from = r->sched->steps + r->at, *to = r->sched->steps + r->end;
    bool folds = false, signals = false;
    for (const ll_step *s = from; s < to; s++) {
        switch (s->kind) {
        case LL_STEP_SEND:
        case LL_STEP_RECV: TRY(send_or_receive(r, s)); break;
        case LL_STEP_LIBRARY: {
            ll_message *m = message_slot(r);
            CHECK(m, LL_E_MEM, "no memory for a message");
            r->c->count.library++;
            r->c->engine->used.count.library++;
            TRY(r->c->t->ops->library(r->c->t, &r->library, m));
            break;
        }
        case LL_STEP_FOLD: folds = true; break;
        case LL_STEP_SIGNAL: signals = true; break;
        case LL_STEP_AWAIT: break;
        }
    }
    for (const ll_step *s = from; folds && s < to; s++)
        if (s->kind == LL_STEP_FOLD) TRY(fold(r, s));
    if (signals)
        __atomic_store_n(counter(r->c, r->c->t->rank), r->base + ++r->signalled, __ATOMIC_RELEASE);
    return LL_OK;
}

static ll_err test_messages(ll_request *r)
{
    ll_transport *t = r->c->t;
    for (int i = 0; i < r->n_message;) {
        bool done;
        TRY(t->ops->test(t, &r->messages[i], &done));
        if (!done) {
            i++;
            continue;
        }
        r->received += r->messages[i].bytes;
        r->c->engine->moved++;
        r->messages[i] = r->messages[--r->n_message];
    }
    return LL_OK;
}

static void trace(ll_trace *t, const ll_request *r)
{
    ll_trace_add(t, &(ll_trace_event){.row = LL_TRACE_COMM,
                                      .name = r->site,
                                      .kind = r->what,
                                      .algorithm = r->algorithm,
                                      .peers = r->c->peers,
                                      .bytes = (int64_t)r->bytes,
                                      .number = r->number,
                                      .from = r->began,
                                      .to = ll_now()});
}

static void finish(ll_request *r)
{
    ll_comm *c = r->c;
    ll_engine *e = c->engine;
    if (e->trace && r->began > 0) trace(e->trace, r);
    if (r->turn >= 0) {
        LL_ASSERT(r->signalled == (uint64_t)r->sched->n_signal);
        c->signals += r->signalled;
        c->turn++;
    }
    if (r->scratch >= 0) e->scratch[r->scratch].used = false;
    if (r->planned) c->plans.in_use--;
    *(r->prev ? &r->prev->next : &e->first) = r->next;
    *(r->next ? &r->next->prev : &e->last) = r->prev;
    __atomic_store_n(&r->done, true, __ATOMIC_RELEASE);
}

/* A window collective may begin once those before it are over: the window is free then, and how far
 * the counters have come is known. */
static bool my_turn(ll_request *r)
{
    ll_comm *c = r->c;
    if (c->turn != r->turn) return false;
    r->base = c->signals;
    return true;
}

ll_err ll_request_advance(ll_request *r)
{
    if (r->turn >= 0 && !my_turn(r)) return LL_OK;
    while (r->at < r->sched->n_step || r->posted) {
        if (!r->posted) {
            if (!awaited(r)) return LL_OK;
            TRY(perform(r));
            r->posted = true;
        }
        if (r->n_message) {
            TRY(test_messages(r));
            if (r->n_message) return LL_OK;
        }
        r->at = r->end;
        r->posted = false;
        r->c->engine->moved++;
    }
    size_t expected = (size_t)r->sched->n_received * r->elem_bytes;
    CHECK(!expected || r->received == expected, LL_E_COMM,
          "%s %lld%s%s: %zu bytes came where %zu were expected: all ranks must call the same "
          "collectives on as many elements, in one order",
          r->what, (long long)r->number, r->site ? " of " : "", r->site ? r->site : "", r->received,
          expected);
    finish(r);
    return LL_OK;
}

/* ---- starting ---- */

static void enlist(ll_engine *e, ll_request *r)
{
    r->prev = e->last;
    r->next = NULL;
    *(e->last ? &e->last->next : &e->first) = r;
    e->last = r;
}

static int tag_of(const ll_comm *c, int64_t number)
{
    return (int)(number % ((int64_t)c->t->max_tag + 1));
}

static bool uses_window(const ll_sched *s)
{
    return s->window > 0 || s->n_signal > 0;
}

static const ll_shared *find_shared(const ll_comm *c, const void *data, size_t bytes, size_t *at)
{
    const char *d = (const char *)data;
    for (; c; c = c->parent)
        for (const ll_shared *s = c->shared; s; s = s->next) {
            const char *part = s->shm.part[s->shm.me];
            if (d >= part && d + bytes <= part + s->shm.bytes) {
                *at = (size_t)(d - part);
                return s;
            }
        }
    return NULL;
}

bool ll_comm_is_shared(const ll_comm *c, const void *data, size_t bytes)
{
    size_t at;
    return find_shared(c, data, bytes, &at) != NULL;
}

/* "0 2 4": by their numbers in the first communicator. */
static const char *peers_of(ll_comm *c)
{
    ll_buf b = {.arena = c->arena};
    for (int i = 0; i < c->t->size; i++) ll_buf_printf(&b, "%s%d", i ? " " : "", c->t->world[i]);
    return b.text;
}

/* Everything but what depends on the schedule. */
static ll_err prepare(ll_comm *c, const ll_coll_call *call, ll_request **out)
{
    ll_request *r;
    TRY(ll_request_take(c->engine, &r));
    ll_message *messages = r->messages;
    int capacity = r->capacity;
    int64_t number = c->n_started++;
    *r = (ll_request){.c = c,
                      .turn = -1,
                      .scratch = -1,
                      .elem_bytes = ll_dtype_bytes(call->dtype),
                      .dtype = call->dtype,
                      .op = call->op,
                      .messages = messages,
                      .capacity = capacity,
                      .tag = tag_of(c, number),
                      .number = number,
                      .what = ll_coll_name(call->spec.coll),
                      .site = call->site};
    r->own[LL_DATA] = (char *)call->data;
    r->own[LL_OUT] = (char *)call->out;
    c->count.collectives++;
    c->engine->used.count.collectives++;
    if (c->engine->trace) {
        r->began = ll_now();
        r->bytes = (size_t)call->spec.count * r->elem_bytes;
        if (!c->peers) c->peers = peers_of(c);
    }
    *out = r;
    return LL_OK;
}

static ll_err give_buffers(ll_request *r, void *scratch)
{
    ll_comm *c = r->c;
    const ll_sched *s = r->sched;
    r->own[LL_SCRATCH] = (char *)scratch;
    if (s->scratch && !scratch) {
        TRY(ll_scratch_take(c->engine, (size_t)s->scratch * r->elem_bytes, &r->scratch));
        r->own[LL_SCRATCH] = (char *)c->engine->scratch[r->scratch].data;
    }
    if (uses_window(s)) {
        CHECK(c->parts, LL_E_COMM, "a schedule with signals, and no window for them");
        CHECK((size_t)s->window * r->elem_bytes <= c->half_bytes, LL_E_COMM,
              "a schedule that needs %zu bytes of window, which has %zu",
              (size_t)s->window * r->elem_bytes, c->half_bytes);
        r->turn = c->n_window++;
        r->half_at = LL_LINE_BYTES + (size_t)(r->turn % 2) * c->half_bytes;
        r->own[LL_WINDOW] = c->parts[c->t->rank] + r->half_at;
    }
    return LL_OK;
}

/* What a call leaves open, and the plan for it. */
static ll_err complete(ll_comm *c, ll_coll_call *call, const ll_shared **shared, size_t *shared_at,
                       ll_plan **plan)
{
    call->spec.size = c->t->size;
    call->spec.node = c->t->node;
    size_t bytes = (size_t)call->spec.count * ll_dtype_bytes(call->dtype);
    if (!call->spec.matrix) *shared = find_shared(c, call->data, bytes, shared_at);
    /* Ranks must agree: of no elements all are shared, wherever data points. */
    call->spec.shared = *shared || (bytes == 0 && !call->spec.matrix);
    return ll_plan_find(c, call, plan);
}

ll_err ll_comm_scratch(ll_comm *c, const ll_coll_call *call, size_t *bytes)
{
    ll_coll_call full = *call;
    const ll_shared *shared = NULL;
    size_t shared_at;
    ll_plan *plan;
    ll_engine_lock(c->engine);
    ll_err rc = complete(c, &full, &shared, &shared_at, &plan);
    if (!rc) *bytes = (size_t)plan->sched->scratch * ll_dtype_bytes(call->dtype);
    ll_engine_unlock(c->engine);
    return rc;
}

static ll_err start(ll_comm *c, const ll_coll_call *call, ll_request **out)
{
    if (c->engine->failed) TRY(ll_engine_check(c->engine));
    ll_coll_call full = *call;
    ll_plan *plan = NULL;
    const ll_shared *shared = NULL;
    size_t shared_at = 0;
    if (!call->sched) {
        TRY(complete(c, &full, &shared, &shared_at, &plan));
    } else {
        CHECK(call->sched->rank == c->t->rank && call->sched->size == c->t->size, LL_E_COMM,
              "a schedule of rank %d of %d, on rank %d of %d", call->sched->rank, call->sched->size,
              c->t->rank, c->t->size);
    }
    ll_request *r;
    TRY(prepare(c, &full, &r));
    r->sched = plan ? plan->sched : call->sched;
    r->algorithm = plan ? plan->algo->name : NULL;
    r->shared = shared;
    r->shared_at = shared_at;
    ll_err rc = give_buffers(r, call->scratch);
    if (rc) {
        ll_request_give(c->engine, r);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    if (plan) {
        r->library = (ll_library_call){.spec = &plan->spec,
                                       .data = call->data,
                                       .out = call->out,
                                       .dtype = call->dtype,
                                       .op = call->op};
        r->planned = true;
        c->plans.in_use++;
    }
    enlist(c->engine, r);
    *out = r;
    rc = ll_request_advance(r);
    return rc ? ll_frame(ll_engine_fail(c->engine, rc), __FILE__, __LINE__, __func__) : LL_OK;
}

ll_err ll_comm_start(ll_comm *c, const ll_coll_call *call, ll_request **out)
{
    double entered = ll_engine_enter(c->engine);
    ll_err rc = start(c, call, out);
    ll_engine_wake(c->engine);
    ll_engine_leave(c->engine, entered);
    return rc;
}

ll_err ll_comm_run(ll_comm *c, const ll_coll_call *call)
{
    ll_request *r;
    double entered = ll_engine_enter(c->engine);
    ll_err rc = start(c, call, &r);
    if (!rc) rc = ll_request_wait(r, NULL);
    ll_engine_leave(c->engine, entered);
    return rc;
}

/* ---- messages outside of schedules ---- */

int ll_comm_next_tag(ll_comm *c, const char *what, const char *site)
{
    ll_engine_lock(c->engine);
    c->number_now = c->n_started++;
    c->tag_now = tag_of(c, c->number_now);
    c->what_now = what;
    c->site_now = site;
    ll_engine_unlock(c->engine);
    return c->tag_now;
}

static ll_err post_exchange(ll_request *r, int to, const void *data, size_t bytes, int from,
                            void *room, size_t room_bytes)
{
    ll_comm *c = r->c;
    ll_transport *t = c->t;
    if (from >= 0) {
        ll_message *m = message_slot(r);
        CHECK(m, LL_E_MEM, "no memory for a message");
        TRY(t->ops->recv(t, room, room_bytes, from, r->tag, m));
    }
    if (to >= 0) {
        ll_message *m = message_slot(r);
        CHECK(m, LL_E_MEM, "no memory for a message");
        TRY(t->ops->send(t, data, bytes, to, r->tag, m));
        count_sent(c, bytes);
    }
    return LL_OK;
}

static ll_err exchange(ll_comm *c, int tag, int to, const void *data, size_t bytes, int from,
                       void *room, size_t room_bytes, size_t *received)
{
    static const ll_sched empty = {.size = 1};
    ll_engine *e = c->engine;
    if (e->failed) TRY(ll_engine_check(e));
    ll_request *r;
    TRY(ll_request_take(e, &r));
    ll_message *messages = r->messages;
    int capacity = r->capacity;
    bool mine = tag == c->tag_now;
    *r = (ll_request){.c = c,
                      .sched = &empty,
                      .posted = true,
                      .turn = -1,
                      .scratch = -1,
                      .messages = messages,
                      .capacity = capacity,
                      .tag = tag,
                      .number = mine ? c->number_now : tag,
                      .what = mine ? c->what_now : "exchange",
                      .site = mine ? c->site_now : NULL};
    enlist(e, r);
    ll_err rc = post_exchange(r, to, data, bytes, from, room, room_bytes);
    if (rc) return ll_frame(ll_engine_fail(e, rc), __FILE__, __LINE__, __func__);
    return ll_request_wait(r, received);
}

ll_err ll_comm_exchange(ll_comm *c, int tag, int to, const void *data, size_t bytes, int from,
                        void *room, size_t room_bytes, size_t *received)
{
    CHECK(to < c->t->size && from < c->t->size, LL_E_ARG, "peers %d and %d of %d ranks", to, from,
          c->t->size);
    size_t got = 0;
    double entered = ll_engine_enter(c->engine);
    ll_err rc = exchange(c, tag, to, data, bytes, from, room, room_bytes, &got);
    ll_engine_leave(c->engine, entered);
    if (received) *received = got;
    return rc;
}
