/* acting.c: actions, as intervals of a trace: one for each, in the schedule's order, also of those
 * that have no kernel, and one for each time in between that is not too short to be seen. */
#include "exec/acting.h"

static const double SHORT = 1e-6; /* s */

static void add(ll_exec *e, const char *name, int64_t number, double from, double to)
{
    ll_trace_event x = {.row = LL_TRACE_PIPE, .name = name, .bytes = -1, .number = number};
    x.from = from;
    x.to = to;
    x.waited = number >= 0 ? e->acting.waited : 0;
    ll_trace_add(e->trace, &x);
}

/* The action under way, what was idle before it, and those up to `next` that have no kernel. */
static void add_done(ll_exec *e, int next)
{
    ll_acting *a = &e->acting;
    if (a->now) {
        if (a->from - a->free > SHORT) add(e, "idle", -1, a->free, a->from);
        add(e, NULL, a->now - 1, a->from, a->to);
    }
    a->waited = 0;
    for (int k = a->now + 1; k < next; k++) add(e, NULL, k - 1, a->to, a->to);
}

void ll_acting_begin(ll_exec *e)
{
    double now = ll_now();
    e->acting = (ll_acting){.free = now, .to = now};
}

void ll_acting_end(ll_exec *e)
{
    add_done(e, e->p->pipe->n_action + 1);
    double now = ll_now();
    if (now - e->acting.to > SHORT) add(e, "idle", -1, e->acting.to, now);
}

void ll_acting_note(ll_exec *e, const ll_instr *x, double from)
{
    ll_acting *a = &e->acting;
    double now = ll_now();
    if (x->wait) a->wait += now - from; /* the action's, if it goes on afterwards */
    if (x->wait || !x->action) return;
    if (x->action != a->now) {
        if (!x->kernel.run) return; /* a receive that is posted is no beginning */
        add_done(e, x->action);
        *a = (ll_acting){.now = x->action, .free = a->to, .from = from};
    } else if (a->wait > a->to - a->from - a->waited) { /* what came before it is not worth a bar */
        a->from = from;
        a->waited = a->wait = 0;
    }
    a->to = now;
    a->waited += a->wait;
    a->wait = 0;
}
