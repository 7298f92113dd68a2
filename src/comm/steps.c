/* steps.c: runs the steps of schedules. A request is a schedule, the round it is in, and the
 * messages of that round that are under way; ll_request_advance takes it as far as it goes without
 * waiting, and is called for every request of the family again and again (engine.c).
 *
 * Invariants
 *   1. A request is in the engine's list from its start until it is done, oldest first.
 *   2. Of the window collectives of a communicator only the one whose turn it is leaves round 0's
 *      awaits; turns are given in the order of starts, which is the same on every rank.
 *   3. A rank's counter in the window is c->signals + what it signalled in the collective whose
 *      turn it is; c->signals is the same on all ranks of a node when their turns are. */
#include "comm/comm_int.h"

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

static ll_err send_or_receive(ll_request *r, const ll_step *s)
{
    ll_transport *t = r->c->t;
    ll_comm_count *count = &r->c->engine->used.count;
    ll_message *m = message_slot(r);
    CHECK(m, LL_E_MEM, "not enough memory for %d messages", r->n_message + 1);
    size_t bytes = (size_t)s->n * r->elem_bytes;
    bool sends = s->kind == LL_STEP_SEND;
    count->messages += sends;
    count->bytes += sends ? (int64_t)bytes : 0;
    return t->ops->post(t, sends, own(r, sends ? s->from : &s->dst), bytes, s->peer, r->tag, m);
}

static ll_err fold(ll_request *r, const ll_step *s)
{
    ll_engine *e = r->c->engine;
    for (int i = 0; i < s->n_from; i++) /* what it reads of other ranks' memory */
        if (s->from[i].rank != r->c->t->rank) e->used.count.read += s->n * (int64_t)r->elem_bytes;
    if (s->n_from == 1 && !r->memory) {
        memcpy(own(r, &s->dst), source(r, s->from), (size_t)s->n * r->elem_bytes);
        return LL_OK;
    }
    if (s->n_from > e->n_source) {
        const void **more = (const void **)realloc(e->sources, sizeof *more * (size_t)s->n_from);
        CHECK(more, LL_E_MEM, "not enough memory for a list of %d operands", s->n_from);
        e->sources = more;
        e->n_source = s->n_from;
    }
    for (int i = 0; i < s->n_from; i++) e->sources[i] = source(r, &s->from[i]);
    const ll_memory *m = r->memory;
    char *to = own(r, &s->dst);
    if (m) return m->fold(m->of, to, e->sources, s->n_from, s->n, r->dtype, r->op);
    ll_fold(to, e->sources, s->n_from, s->n, r->dtype, r->op);
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
            CHECK(m, LL_E_MEM, "not enough memory for a message");
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
          "%s %ld%s%s: %zu bytes arrived, expected %zu: all ranks must call the same collectives "
          "on as many elements, in the same order",
          r->what, r->number, r->site ? " of " : "", r->site ? r->site : "", r->received, expected);
    finish(r);
    return LL_OK;
}
