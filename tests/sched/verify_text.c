/* verify_text.c: schedules as people read them, one line a step:
 *     round 0: send to 1, data[0..5)
 *     round 0: receive from 2, scratch[0..5)
 *     round 1: fold data[5..10) = data[5..10) + scratch[0..5)
 *     round 2: await signal 1 of rank 2
 *     round 2: copy data[0..5) = rank 2's window[0..5) */
#include "base/text.h"
#include "sched/verify.h"

static void print_ref(ll_buf *b, const ll_ref *r, int64_t n, int rank)
{
    static const char *const names[LL_N_BUF] = {"data", "out", "scratch", "window"};
    if (r->rank != rank) ll_buf_printf(b, "rank %d's ", r->rank);
    if (r->buf < LL_N_BUF)
        ll_buf_puts(b, names[r->buf]);
    else
        ll_buf_printf(b, "buffer %d", (int)r->buf);
    ll_buf_printf(b, "[%lld..%lld)", (long long)r->at, (long long)(r->at + n));
}

static void print_fold(ll_buf *b, const ll_step *s, int rank)
{
    ll_buf_puts(b, s->n_from == 1 ? "copy " : "fold ");
    print_ref(b, &s->dst, s->n, rank);
    for (int i = 0; i < s->n_from; i++) {
        ll_buf_puts(b, i ? " + " : " = ");
        print_ref(b, &s->from[i], s->n, rank);
    }
}

static void print_step(ll_buf *b, const ll_step *s, int rank)
{
    ll_buf_printf(b, "round %d: ", s->round);
    switch (s->kind) {
    case LL_STEP_SEND:
        ll_buf_printf(b, "send to %d, ", s->peer);
        print_ref(b, s->from, s->n, rank);
        break;
    case LL_STEP_RECV:
        ll_buf_printf(b, "receive from %d, ", s->peer);
        print_ref(b, &s->dst, s->n, rank);
        break;
    case LL_STEP_FOLD: print_fold(b, s, rank); break;
    case LL_STEP_SIGNAL: ll_buf_puts(b, "signal"); break;
    case LL_STEP_AWAIT: ll_buf_printf(b, "await signal %d of rank %d", s->value, s->peer); break;
    case LL_STEP_LIBRARY: ll_buf_puts(b, "the MPI library's own"); break;
    default: ll_buf_printf(b, "step of unknown kind %d", (int)s->kind);
    }
}

const char *ll_step_text(ll_arena *arena, const ll_step *s, int rank)
{
    ll_buf b = {.arena = arena};
    print_step(&b, s, rank);
    return b.text;
}

const char *ll_sched_text(ll_arena *arena, const ll_sched *s)
{
    ll_buf b = {.arena = arena};
    for (int i = 0; i < s->n_step; i++) {
        print_step(&b, &s->steps[i], s->rank);
        ll_buf_puts(&b, "\n");
    }
    return b.text ? b.text : "";
}
