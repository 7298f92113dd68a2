/* verify.c: runs the lists of all ranks, each as far as it gets, in turns, until all are done or
 * none can go on. Posting and matching do not depend on who goes first, so one order of turns
 * stands for all; that memory does not either is what the clocks prove.
 *
 * Messages are as strict as MPI allows, on both sides: a send is over only when its receive is
 * posted (so a deadlock shows), but nothing is concluded from that about what the receiver has done
 * (it may as well have been buffered). */
#include "sched/verify_int.h"
#include "base/text.h"

#include <string.h>

static int *copy_clock(ll_verify *v, int rank)
{
    return (int *)ll_arena_copy(v->arena, v->ranks[rank].clock, sizeof(int) * (size_t)v->size);
}

static void learn(int *clock, const int *told, int size)
{
    for (int q = 0; q < size; q++)
        if (told[q] > clock[q]) clock[q] = told[q];
}

/* A rank tells at different times, so who knows the time of a telling knows all of it. */
static void learn_from(int *clock, int teller, const int *told, int size)
{
    if (told[teller] > clock[teller]) learn(clock, told, size);
}

/* The steps of one kind in a rank's round. */
#define EACH_STEP(s, r, which)                                                                     \
    for (const ll_step *s = (r)->list->steps + (r)->at; s < (r)->list->steps + (r)->end; s++)      \
        if (s->kind == (which))

static bool is_raised(const ll_verify *v, const ll_vrank *r, const ll_step *await, int *which)
{
    const ll_vrank *peer = &v->ranks[await->peer];
    *which = r->run * peer->list->n_signal + await->value;
    return peer->n_signal >= *which;
}

/* Puts a message at the end of one queue, or takes its partner off the other. */
static ll_posted *match(ll_verify *v, ll_posted **mine, ll_posted **theirs, const ll_step *s,
                        const int *clock)
{
    ll_posted *partner = *theirs;
    if (partner) {
        *theirs = partner->next;
        return partner;
    }
    while (*mine) mine = &(*mine)->next;
    *mine = LL_NEW(v->arena, ll_posted);
    **mine = (ll_posted){.step = s, .clock = clock};
    return NULL;
}

static ll_err post(ll_verify *v, int rank, const ll_step *s, const int *clock)
{
    ll_vrank *r = &v->ranks[rank];
    bool sends = s->kind == LL_STEP_SEND;
    int from = sends ? rank : s->peer, to = sends ? s->peer : rank;
    ll_posted **out = &v->sends[from * v->size + to], **in = &v->recvs[from * v->size + to];
    TRY(sends ? ll_cells_send(v, rank, s) : ll_cells_recv(v, rank, s));
    r->pending++;
    ll_posted *p = match(v, sends ? out : in, sends ? in : out, s, clock);
    if (!p) return LL_OK;
    if (p->step->n != s->n)
        return ll_verify_fail(v, rank, s, "%lld elements, but rank %d, %s: %lld elements",
                              (long long)s->n, s->peer, ll_step_text(v->arena, p->step, s->peer),
                              (long long)p->step->n);
    const ll_step *send = sends ? s : p->step, *recv = sends ? p->step : s;
    ll_cells_deliver(v, from, send, to, recv);
    learn_from(v->ranks[to].incoming, from, sends ? clock : p->clock, v->size);
    r->pending--;
    v->ranks[s->peer].pending--;
    return LL_OK;
}

/* ---- a rank's turn ---- */
static void begin_run(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    r->entry[r->run] = ++r->clock[rank];
    r->at = r->end = 0;
    ll_cells_begin(v, rank);
}

/* Who leaves a barrier knows that all have entered. So must who leaves a collective with signals,
 * of all on the node: then they have left the one before it, and what they read of the window there
 * may be written over in the one after it, whatever that is. Races, which say more, are told first.
 */
static ll_err check_met(ll_verify *v, int rank)
{
    const ll_vrank *r = &v->ranks[rank];
    for (int q = 0; q < v->size; q++) {
        int entry = v->ranks[q].entry[r->run];
        if (entry && entry <= r->clock[q]) continue;
        if (v->promise->barrier)
            return ll_verify_fail(v, rank, NULL, "leaves the barrier before rank %d has entered",
                                  q);
        if (r->list->n_signal && ll_promise_same_node(v->promise, rank, q)) {
            v->unmet[0] = rank;
            v->unmet[1] = q;
        }
    }
    return LL_OK;
}

static ll_err end_run(ll_verify *v, int rank)
{
    TRY(ll_cells_end(v, rank));
    TRY(check_met(v, rank));
    v->ranks[rank].run++;
    return LL_OK;
}

/* The next round, or the next run's first; LL_AT_END after the last. */
static ll_err next_round(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    if (r->phase == LL_AT_START) begin_run(v, rank);
    while (r->end == r->list->n_step) {
        TRY(end_run(v, rank));
        r->phase = LL_AT_END;
        if (r->run == v->times) return LL_OK;
        begin_run(v, rank);
    }
    r->at = r->end;
    while (r->end < r->list->n_step && r->list->steps[r->end].round == r->list->steps[r->at].round)
        r->end++;
    r->round_id++;
    r->phase = LL_AT_AWAIT;
    return LL_OK;
}

static ll_err act(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    const int *clock = copy_clock(v, rank);
    r->clock[rank]++; /* what follows is not told by the messages posted here */
    r->phase = LL_AT_MESSAGES;
    for (int i = r->at; i < r->end; i++) {
        const ll_step *s = &r->list->steps[i];
        if (s->kind == LL_STEP_SEND || s->kind == LL_STEP_RECV) TRY(post(v, rank, s, clock));
    }
    EACH_STEP(s, r, LL_STEP_FOLD) TRY(ll_cells_fold(v, rank, s));
    EACH_STEP(s, r, LL_STEP_SIGNAL)
    {
        r->signals[r->n_signal++] = copy_clock(v, rank);
        r->clock[rank]++;
    }
    return LL_OK;
}

/* All have come: everything they did before is known to everyone. */
static void run_library(ll_verify *v)
{
    for (int q = 1; q < v->size; q++) learn(v->ranks[0].clock, v->ranks[q].clock, v->size);
    for (int q = 0; q < v->size; q++) {
        learn(v->ranks[q].clock, v->ranks[0].clock, v->size);
        v->ranks[q].clock[q]++;
        v->ranks[q].phase = LL_AT_MESSAGES;
        ll_cells_library(v, q);
    }
    v->n_in_library = 0;
}

static ll_err try_await(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    int which;
    EACH_STEP(s, r, LL_STEP_AWAIT) if (!is_raised(v, r, s, &which)) return LL_OK;
    EACH_STEP(s, r, LL_STEP_AWAIT)
    {
        is_raised(v, r, s, &which);
        learn_from(r->clock, s->peer, v->ranks[s->peer].signals[which - 1], v->size);
    }
    if (r->list->steps[r->at].kind != LL_STEP_LIBRARY) return act(v, rank);
    r->phase = LL_AT_LIBRARY;
    if (++v->n_in_library == v->size) run_library(v);
    return LL_OK;
}

static ll_err end_round(ll_verify *v, int rank)
{
    ll_vrank *r = &v->ranks[rank];
    learn(r->clock, r->incoming, v->size);
    EACH_STEP(s, r, LL_STEP_RECV) ll_cells_received(v, rank, s);
    return next_round(v, rank);
}

/* As far as it gets; *moved: it got somewhere. */
static ll_err take_turn(ll_verify *v, int rank, bool *moved)
{
    ll_vrank *r = &v->ranks[rank];
    for (;;) {
        ll_phase phase = r->phase;
        switch (phase) {
        case LL_AT_START: TRY(next_round(v, rank)); break;
        case LL_AT_AWAIT:
            TRY(try_await(v, rank));
            if (r->phase == LL_AT_AWAIT) return LL_OK;
            break;
        case LL_AT_MESSAGES:
            if (r->pending) return LL_OK;
            TRY(end_round(v, rank));
            break;
        default: return LL_OK;
        }
        *moved = true;
    }
}

/* ---- nobody can go on ---- */
static bool is_waiting(const ll_verify *v, int rank, const ll_step *s)
{
    const ll_vrank *r = &v->ranks[rank];
    int which;
    if (r->phase == LL_AT_AWAIT) return s->kind == LL_STEP_AWAIT && !is_raised(v, r, s, &which);
    if (r->phase == LL_AT_LIBRARY) return true;
    const ll_posted *p = s->kind == LL_STEP_SEND   ? v->sends[rank * v->size + s->peer]
                         : s->kind == LL_STEP_RECV ? v->recvs[s->peer * v->size + rank]
                                                   : NULL;
    while (p && p->step != s) p = p->next;
    return p != NULL;
}

static const ll_step *waits_in(const ll_verify *v, int rank)
{
    const ll_vrank *r = &v->ranks[rank];
    for (int i = r->at; i < r->end; i++)
        if (is_waiting(v, rank, &r->list->steps[i])) return &r->list->steps[i];
    return NULL;
}

static ll_err fail_stuck(ll_verify *v)
{
    ll_buf b = {.arena = v->arena};
    int first = -1, n = 0;
    for (int rank = 0; rank < v->size; rank++) {
        const ll_vrank *r = &v->ranks[rank];
        const ll_step *s = r->phase == LL_AT_END ? NULL : waits_in(v, rank);
        if (!s) continue;
        if (s->kind != LL_STEP_LIBRARY && v->ranks[s->peer].phase == LL_AT_END)
            return ll_verify_fail(v, rank, s, "waits for ever: rank %d is done", s->peer);
        if (first < 0) first = rank;
        if (n++ < 4)
            ll_buf_printf(&b, "; rank %d waits in %s", rank, ll_step_text(v->arena, s, rank));
    }
    LL_ASSERT(first >= 0);
    return ll_verify_fail(v, first, waits_in(v, first), "deadlock of %d ranks%s%s", n,
                          b.text ? b.text : "", n > 4 ? "; ..." : "");
}

static _Thread_local bool last_canonical;

static ll_err run_all(ll_verify *v)
{
    int n_end = 0;
    for (bool moved = true; moved && n_end < v->size;) {
        moved = false;
        n_end = 0;
        for (int r = 0; r < v->size; r++) {
            TRY(take_turn(v, r, &moved));
            n_end += v->ranks[r].phase == LL_AT_END;
        }
    }
    if (n_end < v->size) return fail_stuck(v);
    if (v->unmet[0] != v->unmet[1])
        FAIL(LL_E_COMM,
             "rank %d ends without having heard from rank %d, which may be reading what was in the "
             "window before",
             v->unmet[0], v->unmet[1]);
    last_canonical = v->canonical;
    return LL_OK;
}

static ll_err verify(ll_arena *arena, const ll_promise *p, const ll_sched *const *lists, int times)
{
    int size = p->size;
    CHECK(times >= 1, LL_E_ARG, "%d runs", times);
    ll_verify v = {.arena = arena, .promise = p, .size = size, .times = times, .canonical = true};
    v.ranks = LL_NEW_ARRAY(arena, ll_vrank, size);
    v.sends = LL_NEW_ARRAY(arena, ll_posted *, size * size);
    v.recvs = LL_NEW_ARRAY(arena, ll_posted *, size * size);
    for (int r = 0; r < size; r++) {
        CHECK(lists[r], LL_E_ARG, "rank %d has no list", r);
        v.ranks[r].list = lists[r];
    }
    TRY(ll_verify_lists(&v));
    for (int r = 0; r < size; r++) {
        ll_vrank *x = &v.ranks[r];
        x->clock = LL_NEW_ARRAY(arena, int, size);
        x->incoming = LL_NEW_ARRAY(arena, int, size);
        x->entry = LL_NEW_ARRAY(arena, int, times);
        x->signals = LL_NEW_ARRAY(arena, const int *, lists[r]->n_signal *times);
        ll_cells_new(&v, r);
    }
    return run_all(&v);
}

ll_err ll_sched_verify_repeated(const ll_coll_spec *s, const ll_sched *const *ranks, int times)
{
    ll_arena *arena = ll_arena_new();
    ll_promise p;
    last_canonical = false;
    ll_err rc = ll_promise_coll(arena, s, &p);
    if (rc == LL_OK) rc = verify(arena, &p, ranks, times);
    ll_arena_free(arena);
    return rc;
}

ll_err ll_sched_verify(const ll_coll_spec *s, const ll_sched *const *ranks)
{
    return ll_sched_verify_repeated(s, ranks, 1);
}

ll_err ll_sched_verify_subsets(const ll_subset *subsets, int n_subset, int size, int64_t count,
                               const ll_sched *const *ranks)
{
    ll_arena *arena = ll_arena_new();
    ll_promise p;
    last_canonical = false;
    ll_err rc = ll_promise_subsets(arena, subsets, n_subset, size, count, &p);
    if (rc == LL_OK) rc = verify(arena, &p, ranks, 1);
    ll_arena_free(arena);
    return rc;
}

bool ll_sched_was_canonical(void)
{
    return last_canonical;
}
