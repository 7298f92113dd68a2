/* emit.c: the list of steps grows here, and becomes a schedule with its counters. */
#include "sched/emit.h"

#include <string.h>

static ll_step *add(ll_emit *e, ll_step_kind kind)
{
    e->steps =
        (ll_step *)ll_arena_grow(e->arena, e->steps, sizeof(ll_step), e->n_step, &e->capacity);
    ll_step *s = &e->steps[e->n_step++];
    *s = (ll_step){.kind = kind, .round = e->round};
    return s;
}

static void used(ll_emit *e, ll_buf_id buf, int64_t end)
{
    if (buf == LL_SCRATCH && end > e->scratch) e->scratch = end;
    if (buf == LL_WINDOW && end > e->window) e->window = end;
}

static const ll_ref *refs(ll_emit *e, const ll_ref *from, int n)
{
    return (const ll_ref *)ll_arena_copy(e->arena, from, sizeof(ll_ref) * (size_t)n);
}

void ll_emit_next(ll_emit *e)
{
    if (e->n_step && e->steps[e->n_step - 1].round == e->round) e->round++;
}

void ll_emit_send(ll_emit *e, int peer, ll_buf_id buf, int64_t at, int64_t n)
{
    if (n <= 0) return;
    ll_step *s = add(e, LL_STEP_SEND);
    s->peer = peer;
    s->n = n;
    s->from = refs(e, &(ll_ref){e->rank, buf, at}, 1);
    s->n_from = 1;
    used(e, buf, at + n);
}

void ll_emit_recv(ll_emit *e, int peer, ll_buf_id buf, int64_t at, int64_t n)
{
    if (n <= 0) return;
    ll_step *s = add(e, LL_STEP_RECV);
    s->peer = peer;
    s->n = n;
    s->dst = (ll_ref){e->rank, buf, at};
    used(e, buf, at + n);
}

void ll_emit_fold_all(ll_emit *e, ll_buf_id dst, int64_t at, const ll_ref *from, int n_from,
                      int64_t n)
{
    if (n <= 0) return;
    ll_step *s = add(e, LL_STEP_FOLD);
    s->n = n;
    s->dst = (ll_ref){e->rank, dst, at};
    s->from = refs(e, from, n_from);
    s->n_from = n_from;
    used(e, dst, at + n);
    for (int i = 0; i < n_from; i++)
        if (from[i].rank == e->rank) used(e, from[i].buf, from[i].at + n);
}

void ll_emit_fold(ll_emit *e, ll_buf_id dst, int64_t at, ll_buf_id a, int64_t a_at, ll_buf_id b,
                  int64_t b_at, int64_t n)
{
    const ll_ref from[] = {{e->rank, a, a_at}, {e->rank, b, b_at}};
    ll_emit_fold_all(e, dst, at, from, 2, n);
}

void ll_emit_copy(ll_emit *e, ll_buf_id dst, int64_t at, ll_ref from, int64_t n)
{
    ll_emit_fold_all(e, dst, at, &from, 1, n);
}

void ll_emit_rows(ll_emit *e, ll_buf_id dst, int64_t at, ll_ref from, int64_t n,
                  const ll_rows *rows)
{
    int64_t outer = rows->rows[1] - 1, inner = rows->rows[0] - 1;
    if (n <= 0 || outer < 0 || inner < 0) return;
    ll_emit_copy(e, dst, at, from, n);
    e->steps[e->n_step - 1].rows = (const ll_rows *)ll_arena_copy(e->arena, rows, sizeof *rows);
    used(e, dst, at + outer * rows->dst_stride[1] + inner * rows->dst_stride[0] + n);
    used(e, from.buf, from.at + outer * rows->src_stride[1] + inner * rows->src_stride[0] + n);
}

void ll_emit_signal(ll_emit *e)
{
    add(e, LL_STEP_SIGNAL);
    e->n_signal++;
}

void ll_emit_await(ll_emit *e, int peer, int value)
{
    ll_step *s = add(e, LL_STEP_AWAIT);
    s->peer = peer;
    s->value = value;
}

void ll_emit_library(ll_emit *e)
{
    add(e, LL_STEP_LIBRARY);
}

const ll_sched *ll_emit_finish(ll_emit *e)
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
    return s;
}
