/* emit.c: the list of steps grows here, and becomes a schedule with its counters. */
#include "sched/emit.h"

static ll_step *add(ll_steps *e, ll_step_kind kind)
{
    ll_step s = {.kind = kind, .round = e->round};
    LL_PUSH(e->arena, e->steps, e->n_step, e->capacity, s);
    return &e->steps[e->n_step - 1];
}

/* A place given relative to the group, in this rank's terms. */
static ll_ref place(const ll_steps *e, int index, ll_buf_id buf, int64_t at)
{
    if (buf == LL_DATA) at += e->in.at;
    if (buf == LL_SCRATCH) at += e->in.scratch;
    return (ll_ref){ll_group_rank(&e->in, index), buf, at};
}

static ll_ref own(const ll_steps *e, ll_buf_id buf, int64_t at)
{
    ll_ref r = place(e, 0, buf, at);
    r.rank = e->rank;
    return r;
}

static void used(ll_steps *e, ll_ref r, int64_t n)
{
    if (r.rank != e->rank) return;
    if (r.buf == LL_SCRATCH && r.at + n > e->scratch) e->scratch = r.at + n;
    if (r.buf == LL_WINDOW && r.at + n > e->window) e->window = r.at + n;
}

void ll_emit_within(ll_steps *e, const ll_group *g, ll_emitter *f, const ll_coll_spec *s)
{
    if (g->me < 0) return;
    ll_group outer = e->in;
    int before = e->signal_before;
    int *ranks = LL_NEW_ARRAY(e->arena, int, g->size);
    for (int i = 0; i < g->size; i++) ranks[i] = ll_group_rank(&outer, ll_group_rank(g, i));
    e->in = (ll_group){.ranks = ranks,
                       .size = g->size,
                       .me = g->me,
                       .at = outer.at + g->at,
                       .scratch = outer.scratch + g->scratch};
    e->signal_before = e->n_signal;
    ll_emit_next(e);
    f(e, s, g->me);
    ll_emit_next(e);
    e->in = outer;
    e->signal_before = before;
}

void ll_emit_next(ll_steps *e)
{
    if (e->n_step && e->steps[e->n_step - 1].round == e->round) e->round++;
}

void ll_emit_send(ll_steps *e, int peer, ll_buf_id buf, int64_t at, int64_t n)
{
    if (n <= 0) return;
    ll_ref from = own(e, buf, at);
    ll_step *s = add(e, LL_STEP_SEND);
    s->peer = ll_group_rank(&e->in, peer);
    s->n = n;
    s->from = (const ll_ref *)ll_arena_copy(e->arena, &from, sizeof from);
    s->n_from = 1;
    used(e, from, n);
}

void ll_emit_recv(ll_steps *e, int peer, ll_buf_id buf, int64_t at, int64_t n)
{
    if (n <= 0) return;
    ll_step *s = add(e, LL_STEP_RECV);
    s->peer = ll_group_rank(&e->in, peer);
    s->n = n;
    s->dst = own(e, buf, at);
    used(e, s->dst, n);
}

/* from: in this rank's terms. */
static void fold(ll_steps *e, ll_ref dst, ll_ref *from, int n_from, int64_t n)
{
    ll_step *s = add(e, LL_STEP_FOLD);
    s->n = n;
    s->dst = dst;
    s->from = from;
    s->n_from = n_from;
    used(e, dst, n);
    for (int i = 0; i < n_from; i++) used(e, from[i], n);
}

void ll_emit_fold_all(ll_steps *e, ll_buf_id dst, int64_t at, const ll_ref *from, int n_from,
                      int64_t n)
{
    if (n <= 0) return;
    ll_ref *placed = LL_NEW_ARRAY(e->arena, ll_ref, n_from);
    for (int i = 0; i < n_from; i++) placed[i] = place(e, from[i].rank, from[i].buf, from[i].at);
    fold(e, own(e, dst, at), placed, n_from, n);
}

void ll_emit_fold(ll_steps *e, ll_buf_id dst, int64_t at, ll_buf_id a, int64_t a_at, ll_buf_id b,
                  int64_t b_at, int64_t n)
{
    if (n <= 0) return;
    ll_ref *from = LL_NEW_ARRAY(e->arena, ll_ref, 2);
    from[0] = own(e, a, a_at);
    from[1] = own(e, b, b_at);
    fold(e, own(e, dst, at), from, 2, n);
}

void ll_emit_copy(ll_steps *e, ll_buf_id dst, int64_t at, ll_ref from, int64_t n)
{
    ll_emit_fold_all(e, dst, at, &from, 1, n);
}

void ll_emit_signal(ll_steps *e)
{
    add(e, LL_STEP_SIGNAL);
    e->n_signal++;
}

void ll_emit_await(ll_steps *e, int peer, int value)
{
    ll_step *s = add(e, LL_STEP_AWAIT);
    s->peer = ll_group_rank(&e->in, peer);
    s->value = e->signal_before + value;
}

void ll_emit_library(ll_steps *e)
{
    add(e, LL_STEP_LIBRARY);
}

const ll_sched *ll_emit_finish(ll_steps *e)
{
    ll_sched *s = LL_NEW(e->arena, ll_sched);
    *s = (ll_sched){.rank = e->rank,
                    .size = e->size,
                    .steps = e->steps,
                    .n_step = e->n_step,
                    .n_round = e->n_step ? e->steps[e->n_step - 1].round + 1 : 0,
                    .scratch = e->scratch,
                    .window = e->window,
                    .n_signal = e->n_signal};
    for (int i = 0; i < e->n_step; i++)
        if (e->steps[i].kind == LL_STEP_SEND) s->n_message++, s->n_sent += e->steps[i].n;
    for (int i = 0; i < e->n_step; i++)
        if (e->steps[i].kind == LL_STEP_RECV) s->n_received += e->steps[i].n;
    return s;
}
