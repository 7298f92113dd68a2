/* gpu_profile.c: how long each launch takes, by marks in the GPU's queue. Marks are captured with
 * the kernels: what lies between two of them is the GPU's time, not that of this process, which is
 * longer for small kernels. The first run of a stretch is not captured, and so not exact. */
#include "exec/gpu_int.h"

static ll_err replay_marked(ll_exec *e, const ll_span *s)
{
    ll_onboard *o = e->gpu;
    ll_stretch *x = ll_onboard_stretch(e, s);
    if (x->runs++ == 0) return ll_onboard_queue(e, s, true);
    if (!x->marked) {
        TRY(ll_gpu_capture(o->gpu));
        ll_err rc = ll_onboard_queue(e, s, true);
        ll_err end = ll_gpu_captured(o->gpu, &x->marked);
        TRY(rc);
        TRY(end);
    }
    return ll_gpu_replay(o->gpu, x->marked);
}

static void add_seconds(ll_exec *e, const ll_launch *l, double took)
{
    double all = 0;
    for (int k = 0; k < l->n; k++) all += e->p->instrs[l->instr[k]].bytes;
    for (int k = 0; k < l->n; k++) /* of several, by what each moves */
        e->seconds[l->instr[k]] +=
            all > 0 ? took * e->p->instrs[l->instr[k]].bytes / all : took / l->n;
}

static void add_event(ll_exec *e, const ll_launch *l, double from, double to)
{
    const ll_instr *x = &e->p->instrs[l->instr[0]];
    ll_trace_event t = {.row = LL_TRACE_GPU, .name = x->name, .kind = x->op, .number = -1};
    for (int k = 0; k < l->n; k++) t.bytes += (int64_t)e->p->instrs[l->instr[k]].bytes;
    t.from = from;
    t.to = to;
    ll_trace_add(e->trace, &t);
}

ll_err ll_onboard_measure(ll_exec *e, const ll_span *s)
{
    ll_gpu *g = e->gpu->gpu;
    int n = s->to - s->from;
    TRY(replay_marked(e, s));
    TRY(ll_gpu_wait(g));
    double end = ll_now(); /* of the last mark, by this process's clock */
    for (int i = 0; i < n; i++) {
        const ll_launch *l = &e->gpu->launches[s->from + i];
        double took, left;
        if (!ll_onboard_runs(e, l, s)) continue;
        TRY(ll_gpu_seconds(g, i, i + 1, &took));
        TRY(ll_gpu_seconds(g, i, n, &left));
        if (e->profiling) add_seconds(e, l, took);
        if (e->trace) add_event(e, l, end - left, end - left + took);
    }
    return LL_OK;
}
