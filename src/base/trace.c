/* trace.c: a list of intervals that grows. */
#include "base/trace.h"

#include <pthread.h>
#include <stdlib.h>

struct ll_trace {
    pthread_mutex_t lock; /* instructions and the thread that moves messages both add */
    ll_trace_event *events;
    int64_t n, room, dropped;
};

ll_err ll_trace_open(ll_trace **out)
{
    enum { FIRST = 4096 };
    *out = NULL;
    ll_trace *t = (ll_trace *)calloc(1, sizeof *t);
    CHECK(t, LL_E_MEM, "not enough memory for a trace");
    t->events = (ll_trace_event *)malloc(sizeof *t->events * FIRST);
    t->room = t->events ? FIRST : 0;
    pthread_mutex_init(&t->lock, NULL);
    *out = t;
    return LL_OK;
}

void ll_trace_close(ll_trace *t)
{
    if (!t) return;
    pthread_mutex_destroy(&t->lock);
    free(t->events);
    free(t);
}

void ll_trace_add(ll_trace *t, const ll_trace_event *e)
{
    pthread_mutex_lock(&t->lock);
    if (t->n == t->room) {
        size_t more = sizeof *e * (size_t)(t->room ? 2 * t->room : 1);
        ll_trace_event *events = (ll_trace_event *)realloc(t->events, more);
        if (events) {
            t->events = events;
            t->room = (int64_t)(more / sizeof *e);
        }
    }
    if (t->n < t->room)
        t->events[t->n++] = *e;
    else
        t->dropped++;
    pthread_mutex_unlock(&t->lock);
}

const ll_trace_event *ll_trace_events(const ll_trace *t, int64_t *n, int64_t *dropped)
{
    *n = t->n;
    *dropped = t->dropped;
    return t->events;
}
