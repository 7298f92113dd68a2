/* verify_lists.c: what can be said of a list without running it: peers and buffers exist, ranges
 * lie inside, memory of others is touched only where that is allowed, and the counters are those of
 * the steps. */
#include "sched/verify_int.h"

#include <stdarg.h>
#include <stdio.h>

ll_err ll_verify_fail(ll_verify *v, int rank, const ll_step *step, const char *format, ...)
{
    char text[512], run[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (v->times > 1) snprintf(run, sizeof run, " in run %d", v->ranks[rank].run);
    return ll_raise(LL_E_COMM, __FILE__, __LINE__, __func__, "rank %d%s%s%s: %s", rank, run,
                    step ? ", " : "", step ? ll_step_text(v->arena, step, rank) : "", text);
}

typedef struct counted { /* what the steps of a list need */
    int64_t scratch, n_message, n_sent;
    int n_signal, n_library, signal_round;
    int64_t *window; /* [size] of each rank */
} counted;

/* [at, at + n) of a buffer: may it be touched, does it exist? */
static ll_err check_ref(ll_verify *v, int rank, const ll_step *s, const ll_ref *r, counted *c)
{
    const ll_promise *p = v->promise;
    if (r->rank < 0 || r->rank >= v->size)
        return ll_verify_fail(v, rank, s, "rank %d is not one of 0..%d", r->rank, v->size - 1);
    if (r->buf < 0 || r->buf >= LL_N_BUF)
        return ll_verify_fail(v, rank, s, "there is no buffer %d", (int)r->buf);
    if (r->rank != rank) {
        if (r->buf != LL_WINDOW && !(r->buf == LL_DATA && p->shared))
            return ll_verify_fail(v, rank, s, "reads memory of rank %d that is not shared",
                                  r->rank);
        if (!ll_promise_same_node(p, rank, r->rank))
            return ll_verify_fail(v, rank, s, "reads memory of rank %d on another node", r->rank);
    }
    int64_t end = r->at + s->n;
    const ll_sched *list = v->ranks[r->rank].list;
    int64_t extent = r->buf == LL_SCRATCH  ? list->scratch
                     : r->buf == LL_WINDOW ? list->window
                                           : p->extent(p, r->rank, r->buf);
    if (r->at < 0 || end > extent)
        return ll_verify_fail(v, rank, s, "elements %lld..%lld of a buffer of %lld",
                              (long long)r->at, (long long)end, (long long)extent);
    if (r->buf == LL_SCRATCH && end > c->scratch) c->scratch = end;
    if (r->buf == LL_WINDOW && end > c->window[r->rank]) c->window[r->rank] = end;
    return LL_OK;
}

static ll_err check_peer(ll_verify *v, int rank, const ll_step *s)
{
    if (s->peer < 0 || s->peer >= v->size || s->peer == rank)
        return ll_verify_fail(v, rank, s, "%d is not another rank of 0..%d", s->peer, v->size - 1);
    return LL_OK;
}

static ll_err check_own(ll_verify *v, int rank, const ll_step *s, const ll_ref *r)
{
    if (r->rank != rank)
        return ll_verify_fail(v, rank, s, "this must be the rank's own memory, not rank %d's",
                              r->rank);
    return LL_OK;
}

static ll_err check_fold(ll_verify *v, int rank, const ll_step *s, counted *c)
{
    if (s->n_from < 1) return ll_verify_fail(v, rank, s, "%d sources", s->n_from);
    TRY(check_own(v, rank, s, &s->dst));
    TRY(check_ref(v, rank, s, &s->dst, c));
    for (int i = 0; i < s->n_from; i++) {
        const ll_ref *f = &s->from[i];
        TRY(check_ref(v, rank, s, f, c));
        if (f->rank == rank && f->buf == s->dst.buf && f->at != s->dst.at &&
            f->at < s->dst.at + s->n && s->dst.at < f->at + s->n)
            return ll_verify_fail(v, rank, s, "writes over a part of what it reads");
    }
    return LL_OK;
}

static ll_err check_await(ll_verify *v, int rank, const ll_step *s)
{
    TRY(check_peer(v, rank, s));
    if (!ll_promise_same_node(v->promise, rank, s->peer))
        return ll_verify_fail(v, rank, s, "awaits a rank of another node");
    int most = v->ranks[s->peer].list->n_signal;
    if (s->value < 1 || s->value > most)
        return ll_verify_fail(v, rank, s, "awaits signal %d of rank %d, which raises %d", s->value,
                              s->peer, most);
    return LL_OK;
}

static ll_err check_step(ll_verify *v, int rank, const ll_step *s, counted *c)
{
    switch (s->kind) {
    case LL_STEP_SEND:
        TRY(check_peer(v, rank, s));
        if (s->n_from != 1) return ll_verify_fail(v, rank, s, "%d sources", s->n_from);
        TRY(check_own(v, rank, s, s->from));
        TRY(check_ref(v, rank, s, s->from, c));
        c->n_message++;
        c->n_sent += s->n;
        break;
    case LL_STEP_RECV:
        TRY(check_peer(v, rank, s));
        TRY(check_own(v, rank, s, &s->dst));
        TRY(check_ref(v, rank, s, &s->dst, c));
        break;
    case LL_STEP_FOLD: TRY(check_fold(v, rank, s, c)); break;
    case LL_STEP_SIGNAL:
        if (c->n_signal && c->signal_round == s->round)
            return ll_verify_fail(v, rank, s, "a second signal in one round");
        c->signal_round = s->round;
        c->n_signal++;
        return LL_OK;
    case LL_STEP_AWAIT: return check_await(v, rank, s);
    case LL_STEP_LIBRARY: c->n_library++; return LL_OK;
    default: return ll_verify_fail(v, rank, s, "no such kind of step");
    }
    if (s->n < 1) return ll_verify_fail(v, rank, s, "%lld elements", (long long)s->n);
    return LL_OK;
}

static ll_err check_counter(ll_verify *v, int rank, const char *what, int64_t said, int64_t is)
{
    if (said != is)
        return ll_verify_fail(v, rank, NULL, "the list says %lld %s, its steps make %lld",
                              (long long)said, what, (long long)is);
    return LL_OK;
}

static ll_err check_list(ll_verify *v, int rank, int64_t *window)
{
    const ll_sched *list = v->ranks[rank].list;
    counted c = {.window = window};
    if (list->rank != rank || list->size != v->size)
        return ll_verify_fail(v, rank, NULL, "has the list of rank %d of %d", list->rank,
                              list->size);
    for (int i = 0, round = 0; i < list->n_step; i++) {
        const ll_step *s = &list->steps[i];
        if (s->round < round || s->round >= list->n_round)
            return ll_verify_fail(v, rank, s, "comes after round %d, in a list of %d rounds", round,
                                  list->n_round);
        round = s->round;
        TRY(check_step(v, rank, s, &c));
    }
    TRY(check_counter(v, rank, "messages", list->n_message, c.n_message));
    TRY(check_counter(v, rank, "elements sent", list->n_sent, c.n_sent));
    TRY(check_counter(v, rank, "signals", list->n_signal, c.n_signal));
    TRY(check_counter(v, rank, "elements of scratch", list->scratch, c.scratch));
    if (c.n_library > 1 || (c.n_library && list->n_step > 1))
        return ll_verify_fail(v, rank, NULL, "the library's own must be the only step, of %d",
                              list->n_step);
    return LL_OK;
}

/* Ranks that share a node signal equally often, so that all can tell where the count of the next
 * collective begins. A window is as large as what any rank uses of its own, or of another's. */
ll_err ll_verify_lists(ll_verify *v)
{
    int64_t *window = LL_NEW_ARRAY(v->arena, int64_t, v->size), most = 0;
    for (int r = 0; r < v->size; r++) TRY(check_list(v, r, window));
    for (int r = 0; r < v->size; r++)
        if (window[r] > most) most = window[r];
    for (int r = 0; r < v->size; r++) {
        const ll_sched *list = v->ranks[r].list;
        if (list->window > most)
            return ll_verify_fail(v, r, NULL, "a window of %lld elements, of which %lld are used",
                                  (long long)list->window, (long long)most);
        for (int q = 0; q < r; q++)
            if (ll_promise_same_node(v->promise, q, r) &&
                v->ranks[q].list->n_signal != list->n_signal)
                return ll_verify_fail(v, r, NULL, "raises %d signals, rank %d of its node %d",
                                      list->n_signal, q, v->ranks[q].list->n_signal);
    }
    return LL_OK;
}
