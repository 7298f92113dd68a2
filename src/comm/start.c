/* start.c: collectives begin here: what a call leaves open is found, its schedule (plan.c) and its
 * buffers, and the request that runs it joins those under way. Nothing is allocated once every kind
 * of call has been made: requests, their lists of messages and scratch memory are kept. */
#include "comm/comm_int.h"

#include "base/text.h"
#include "base/types.h"

static void enlist(ll_engine *e, ll_request *r)
{
    r->prev = e->last;
    r->next = NULL;
    *(e->last ? &e->last->next : &e->first) = r;
    e->last = r;
}

/* Where data lies in memory of ll_comm_alloc; NULL: not there. All ranks must pass memory at the
 * same place of the same allocation. */
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

/* "0 2 4": by their numbers in the first communicator. */
static const char *peers_of(ll_comm *c)
{
    ll_buf b = {.arena = c->arena};
    for (int i = 0; i < c->t->size; i++) ll_buf_printf(&b, "%s%d", i ? " " : "", c->t->world[i]);
    return b.text;
}

/* Everything but what depends on the schedule. */
static ll_err prepare(ll_comm *c, const ll_coll_call *call, int64_t number, const char *what,
                      ll_request **out)
{
    ll_request *r;
    TRY(ll_request_take(c->engine, &r));
    ll_message *messages = r->messages;
    int capacity = r->capacity;
    *r = (ll_request){.c = c,
                      .turn = -1,
                      .scratch = -1,
                      .elem_bytes = ll_dtype_bytes(call->dtype),
                      .memory = call->memory,
                      .dtype = call->dtype,
                      .op = call->op,
                      .messages = messages,
                      .capacity = capacity,
                      .tag = (int)(number % ((int64_t)c->t->max_tag + 1)),
                      .number = number,
                      .what = what,
                      .site = call->site};
    r->own[LL_DATA] = (char *)call->data;
    r->own[LL_OUT] = (char *)call->out;
    *out = r;
    return LL_OK;
}

/* Joins those under way, and goes as far as it can. */
static ll_err begin(ll_request *r)
{
    enlist(r->c->engine, r);
    ll_err rc = ll_request_advance(r);
    return rc ? ll_frame(ll_engine_fail(r->c->engine, rc), __FILE__, __LINE__, __func__) : LL_OK;
}

static ll_err give_buffers(ll_request *r, void *scratch)
{
    ll_comm *c = r->c;
    const ll_sched *s = r->sched;
    r->own[LL_SCRATCH] = (char *)scratch;
    LL_ASSERT(!s->scratch || scratch || !r->memory);
    if (s->scratch && !scratch) {
        TRY(ll_scratch_take(c->engine, c->patient ? c : NULL, (size_t)s->scratch * r->elem_bytes,
                            &r->scratch));
        r->own[LL_SCRATCH] = (char *)c->engine->scratch[r->scratch].data;
    }
    if (s->window > 0 || s->n_signal > 0) {
        CHECK(c->parts, LL_E_COMM, "a schedule with signals, but no window for them");
        CHECK((size_t)s->window * r->elem_bytes <= c->half_bytes, LL_E_COMM,
              "a schedule needs %zu bytes of window, but it has %zu",
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
    call->spec.far = call->memory != NULL;
    if (!call->spec.matrix && !call->memory) *shared = find_shared(c, call->data, bytes, shared_at);
    /* Ranks must agree: of no elements all are shared, wherever data points. */
    call->spec.shared = *shared || (bytes == 0 && !call->spec.matrix && !call->memory);
    return ll_plan_find(c, call, plan);
}

ll_err ll_comm_scratch(ll_comm *c, const ll_coll_call *call, size_t *bytes)
{
    ll_coll_call full = *call;
    const ll_shared *shared = NULL;
    size_t shared_at;
    ll_plan *plan;
    LL_LOCKED(c->engine);
    TRY(complete(c, &full, &shared, &shared_at, &plan));
    *bytes = (size_t)plan->sched->scratch * ll_dtype_bytes(call->dtype);
    return LL_OK;
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
    TRY(prepare(c, &full, call->number ? call->number - 1 : c->n_started++,
                call->what ? call->what : ll_coll_name(call->spec.coll), &r));
    c->engine->used.count.collectives++;
    if (c->engine->trace) {
        r->began = ll_now();
        r->bytes = (size_t)call->spec.count * r->elem_bytes;
        if (!c->peers) c->peers = peers_of(c);
    }
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
    *out = r;
    return begin(r);
}

ll_err ll_comm_start(ll_comm *c, const ll_coll_call *call, ll_request **out)
{
    LL_TIMED(c->engine);
    ll_err rc = start(c, call, out);
    ll_engine_wake(c->engine);
    return rc;
}

ll_err ll_comm_run(ll_comm *c, const ll_coll_call *call)
{
    ll_request *r;
    LL_TIMED(c->engine);
    TRY(start(c, call, &r));
    return ll_request_finish(r, NULL);
}

/* ---- messages outside of schedules ---- */

int64_t ll_comm_next_number(ll_comm *c, const char *what, const char *site)
{
    LL_LOCKED(c->engine);
    c->what_now = what;
    c->site_now = site;
    return c->number_now = c->n_started++;
}

/* A round of a receive, of as much as comes, and a send, either of which may be left out. */
static ll_err exchange(ll_comm *c, const ll_exchange *x, size_t *received)
{
    if (c->engine->failed) TRY(ll_engine_check(c->engine));
    bool now = x->number == c->number_now;
    const ll_coll_call call = {
        .data = (void *)x->data, .out = x->room, .dtype = LL_U8, .site = now ? c->site_now : NULL};
    ll_request *r;
    TRY(prepare(c, &call, x->number, now ? c->what_now : "exchange", &r));
    ll_sched *list = &r->exchange.list;
    r->exchange.from = (ll_ref){.rank = c->t->rank, .buf = LL_DATA};
    *list = (ll_sched){.rank = c->t->rank, .size = c->t->size, .steps = r->exchange.steps};
    if (x->from >= 0)
        r->exchange.steps[list->n_step++] = (ll_step){.kind = LL_STEP_RECV,
                                                      .peer = x->from,
                                                      .n = (int64_t)x->room_bytes,
                                                      .dst = {.rank = c->t->rank, .buf = LL_OUT}};
    if (x->to >= 0)
        r->exchange.steps[list->n_step++] = (ll_step){.kind = LL_STEP_SEND,
                                                      .peer = x->to,
                                                      .n = (int64_t)x->bytes,
                                                      .from = &r->exchange.from,
                                                      .n_from = 1};
    r->sched = list;
    TRY(begin(r));
    return ll_request_finish(r, received);
}

ll_err ll_comm_exchange(ll_comm *c, const ll_exchange *x, size_t *received)
{
    CHECK(x->to < c->t->size && x->from < c->t->size, LL_E_ARG, "peers %d and %d of %d ranks",
          x->to, x->from, c->t->size);
    if (received) *received = 0;
    LL_TIMED(c->engine);
    return exchange(c, x, received);
}
