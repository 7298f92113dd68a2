/* cuda_run.c: a program's launches. Instructions that are the same work on other tensors are one
 * (merge.h); those between two collectives are captured into a graph the second time they run, with
 * the copies among them (cuda_aside.c), and replayed from then on: a step costs a few launches of
 * this process. What changes from step to step is the clock, a number in device memory that random
 * ops read.
 *
 * How long each launch takes is measured by timing events (marks) in its stream, which are captured
 * with the kernels: what lies between two of them is the GPU's time, not that of this process,
 * which is longer for small kernels. The first run of a segment is not captured, and so not exact.
 */
#include "base/now.h"
#include "base/num.h"
#include "machine/cuda.h"

#include <stdlib.h>

/* ---- launches ---- */

static size_t table_bytes(const ll_exec *e, const ll_launch *l)
{
    if (l->n == 1) return 0;
    const ll_many *many = e->instrs[l->instr[0]].instr->kernel.many;
    return (size_t)ll_round_up((int64_t)many->table(l->calls, l->n, NULL), 256);
}

/* The tables of launches of several instructions, in one piece of the GPU's memory. */
static ll_err open_tables(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    int n = o->end[LL_UPDATE];
    size_t bytes = 0, at = 0;
    for (int i = 0; i < n; i++) bytes += table_bytes(e, &o->launches[i]);
    if (!bytes) return LL_OK;
    TRY(ll_gpu_alloc(o->gpu, bytes, &o->tables));
    e->extra_bytes += bytes;
    char *image = (char *)calloc(1, bytes);
    CHECK(image, LL_E_MEM, "not enough memory for the tables of %zu bytes of a GPU's program",
          bytes);
    LL_EACH (ll_launch, l, o->launches, n) {
        if (l->n == 1) continue;
        e->instrs[l->instr[0]].instr->kernel.many->table(l->calls, l->n, image + at);
        l->table = (char *)o->tables + at;
        at += table_bytes(e, l);
    }
    ll_err rc = ll_gpu_write(o->gpu, o->tables, image, bytes);
    if (rc == LL_OK) rc = ll_gpu_wait(o->gpu);
    free(image);
    return rc;
}

/* Chains begin to be compiled. */
static void prepare(const ll_exec *e)
{
    LL_EACH (const ll_launch, l, ll_cuda_of(e)->launches, e->n_launch) {
        const ll_solver *k = &e->instrs[l->instr[0]].instr->kernel;
        void (*begin)(const ll_kcall *) = l->n == 1 ? k->prepare : k->many->prepare;
        if (begin) begin(l->calls[0]);
    }
}

/* A kernel or a copy, not a collective. */
static bool is_queued(const ll_exec *e, int launch)
{
    const ll_instr *x = e->instrs[ll_cuda_of(e)->launches[launch].instr[0]].instr;
    return x->kernel.run || ll_program_copies(e->p, x);
}

/* Launches whose work is less than what it takes to launch them. */
static bool is_light(const ll_exec *e, int from, int to)
{
    enum { MOST = 512 }; /* all are held against each other */
    const double FLOPS = 5e13, BYTES = 4e12, SECONDS = 3e-6;
    double all = 0;
    for (int i = from; i < to; i++) {
        const ll_launch *l = &ll_cuda_of(e)->launches[i];
        for (int k = 0; k < l->n; k++) {
            const ll_instr *x = e->instrs[l->instr[k]].instr;
            if (!x->kernel.run) return false; /* copies have events of their own */
            all += x->flops / FLOPS + x->bytes / BYTES;
        }
    }
    return to - from <= MOST && all < SECONDS * (to - from);
}

/* Of what lies between two collectives. */
static void give_branches(ll_exec *e, int section)
{
    ll_cuda *o = ll_cuda_of(e);
    int to = o->end[section];
    for (int i = section ? o->end[section - 1] : 0, from = i; i <= to; i++) {
        if (i < to && is_queued(e, i)) continue;
        if (is_light(e, from, i)) ll_branches(e->instrs, o->launches, from, i);
        from = i + 1;
    }
}

ll_err ll_cuda_plan(ll_exec *e)
{
    ll_cuda *o = ll_cuda_of(e);
    o->launches = LL_NEW_ARRAY(e->arena, ll_launch, e->p->n_instr + 1);
    for (int s = 0, n = 0; s < LL_N_SECTION; s++) {
        int from = s ? e->p->end[s - 1] : 0;
        n += ll_merge(e->instrs, from, e->p->end[s], e->arena, o->launches + n);
        e->n_launch = o->end[s] = n;
        give_branches(e, s);
    }
    TRY(open_tables(e));
    prepare(e);
    return LL_OK;
}

/* ---- running ---- */

static bool runs(const ll_exec *e, const ll_launch *l, const ll_span *s)
{
    bool last = e->instrs[l->instr[0]].instr->last && !e->p->unrolled;
    return !(last && !s->once && s->micro < e->p->n_micro - 1);
}

static ll_stream_id stream_of(const ll_launch *l)
{
    return (ll_stream_id)(LL_STREAM_COMPUTE + l->branch);
}

static ll_err queue_one(ll_exec *e, const ll_launch *l, const ll_span *s)
{
    ll_bound *b = &e->instrs[l->instr[0]];
    if (b->instr->aside) return ll_cuda_copy(e, b);
    if (b->instr->wait) return ll_cuda_copy_wait(e, &e->instrs[b->instr->pair]);
    if (!e->p->unrolled) b->call.micro = s->micro;
    b->call.step = s->step;
    return l->n == 1 ? b->instr->kernel.run(&b->call)
                     : b->instr->kernel.many->run(l->calls, l->n, l->table);
}

/* Copies are awaited where they are read, and at the end. */
static ll_err join(ll_exec *e, const ll_span *s)
{
    for (int i = s->from; i < s->to; i++)
        TRY(ll_cuda_copy_wait(e, &e->instrs[ll_cuda_of(e)->launches[i].instr[0]]));
    return LL_OK;
}

/* Is it queued? may NULL: if it runs in this micro-batch; else if all of it may. */
static bool may_launch(const ll_exec *e, const ll_launch *l, const ll_span *s, ll_may_run *may)
{
    if (!may) return runs(e, l, s);
    for (int k = 0; k < l->n; k++) {
        const ll_instr *x = &e->p->instrs[l->instr[k]];
        if (!x->kernel.run || !may(e->p, x)) return false;
    }
    return true;
}

/* ---- branches (merge.h): captured, they run beside each other ---- */

/* All others begin where the one that computes is, and it goes on when they are over. */
static ll_err part_branches(ll_exec *e, bool back)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    for (int t = 1; t < LL_BRANCHES; t++) {
        ll_stream_id beside = (ll_stream_id)(LL_STREAM_COMPUTE + t);
        TRY(back ? ll_gpu_after(g, LL_STREAM_COMPUTE, beside)
                 : ll_gpu_after(g, beside, LL_STREAM_COMPUTE));
    }
    return LL_OK;
}

static bool has_branches(const ll_exec *e, const ll_span *s)
{
    for (int i = s->from; i < s->to; i++)
        if (ll_cuda_of(e)->launches[i].branch) return true;
    return false;
}

/* Events that collectives and copies have the like of, of launches. */
static int over(const ll_exec *e, int launch)
{
    return 2 * e->p->n_instr + launch;
}

static ll_err queue_in_branch(ll_exec *e, int i, const ll_span *s, bool run)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    const ll_launch *l = &ll_cuda_of(e)->launches[i];
    ll_kcall *c = &e->instrs[l->instr[0]].call;
    for (int t = 0; t < LL_BRANCHES; t++)
        if (l->after[t]) TRY(ll_gpu_await(g, stream_of(l), over(e, l->after[t] - 1)));
    c->stream = ll_gpu_stream(g, stream_of(l));
    ll_err rc = run ? queue_one(e, l, s) : LL_OK;
    c->stream = ll_gpu_stream(g, LL_STREAM_COMPUTE);
    TRY(rc);
    return l->awaited ? ll_gpu_record(g, stream_of(l), over(e, i)) : LL_OK;
}

static ll_err queue_in_branches(ll_exec *e, const ll_span *s, ll_may_run *may)
{
    TRY(part_branches(e, false));
    for (int i = s->from; i < s->to; i++) {
        const ll_launch *l = &ll_cuda_of(e)->launches[i];
        TRY(queue_in_branch(e, i, s, may_launch(e, l, s, may)));
    }
    return part_branches(e, true);
}

/* marks: number i before the i-th of them, and one behind the last. */
static ll_err queue(ll_exec *e, const ll_span *s, ll_may_run *may, bool marks)
{
    for (int i = s->from; i < s->to; i++) {
        const ll_launch *l = &ll_cuda_of(e)->launches[i];
        if (marks) TRY(ll_gpu_mark(ll_cuda_of(e)->gpu, i - s->from));
        if (may_launch(e, l, s, may)) TRY(queue_one(e, l, s));
    }
    TRY(join(e, s));
    return marks ? ll_gpu_mark(ll_cuda_of(e)->gpu, s->to - s->from) : LL_OK;
}

static ll_cuda_segment *segment_of(ll_exec *e, const ll_span *s)
{
    return &ll_cuda_of(e)->segments[(size_t)s->micro * (size_t)e->p->n_instr + (size_t)s->from];
}

/* Are messages between stages under way beside what is queued here? */
static bool has_messages(const ll_exec *e)
{
    return ll_cuda_of(e)->nccl && e->opts.team->pipe;
}

static ll_err capture(ll_exec *e, const ll_span *s, ll_may_run *may, bool marks,
                      ll_gpu_graph **graph)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    TRY(ll_gpu_capture(g));
    ll_err rc =
        has_branches(e, s) && !marks ? queue_in_branches(e, s, may) : queue(e, s, may, marks);
    ll_err end = ll_gpu_captured(g, graph);
    TRY(rc);
    return end;
}

/* The first run of a segment is not captured; from the second on it is replayed. Beside messages
 * nothing may be captured (see below): there graphs are made before, of what is not measured. */
static ll_err replay(ll_exec *e, const ll_span *s, bool marks)
{
    ll_cuda_segment *x = segment_of(e, s);
    ll_gpu_graph **graph = marks ? &x->marked : &x->graph;
    if (!*graph && (x->runs++ == 0 || (marks && has_messages(e)))) return queue(e, s, NULL, marks);
    if (!*graph) TRY(capture(e, s, NULL, marks, graph));
    return ll_gpu_replay(ll_cuda_of(e)->gpu, *graph);
}

/* ---- measuring ---- */

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
    ll_trace_event t = {.row = LL_TRACE_DEVICE, .name = x->name, .kind = x->op, .number = -1};
    for (int k = 0; k < l->n; k++) t.bytes += (int64_t)e->p->instrs[l->instr[k]].bytes;
    t.from = from;
    t.to = to;
    ll_trace_add(e->trace, &t);
}

static ll_err measure(ll_exec *e, const ll_span *s)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    int n = s->to - s->from;
    TRY(replay(e, s, true));
    TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
    double end = ll_now(); /* of the last mark, by this process's clock */
    for (int i = 0; i < n; i++) {
        const ll_launch *l = &ll_cuda_of(e)->launches[s->from + i];
        double took, left;
        if (!runs(e, l, s)) continue;
        TRY(ll_gpu_seconds(g, i, i + 1, &took));
        TRY(ll_gpu_seconds(g, i, n, &left));
        if (e->profiling) add_seconds(e, l, took);
        if (e->trace) add_event(e, l, end - left, end - left + took);
    }
    return LL_OK;
}

/* ---- the first step ---- */

/* The end of those from i on that lie between two collectives. */
static int span_end(const ll_exec *e, int i, int to)
{
    while (i < to && is_queued(e, i)) i++;
    return i;
}

static ll_err record_section(ll_exec *e, int section, uint64_t step)
{
    const ll_cuda *o = ll_cuda_of(e);
    ll_span s = {.step = step, .once = section != LL_MICRO};
    for (int i = section ? o->end[section - 1] : 0; i < o->end[section]; i = s.to + (s.to == i)) {
        s.from = i;
        s.to = span_end(e, i, o->end[section]);
        if (s.to > i) TRY(capture(e, &s, NULL, false, &segment_of(e, &s)->graph));
    }
    return LL_OK;
}

/* A kernel's code is loaded when it is first launched, graphs and events are given memory when they
 * are made, for which CUDA may wait for all streams: for a message, too, from a rank that waits for
 * what comes after that here. So all are launched once, and graphs and events made, before messages
 * are under way. What kernels write is written again, what is wrong with data is found again. */
static ll_err rehearse(ll_exec *e, uint64_t step)
{
    ll_cuda *o = ll_cuda_of(e);
    const ll_span s = {.step = step};
    LL_EACH (const ll_launch, l, o->launches, o->end[LL_REPORT])
        if (e->instrs[l->instr[0]].instr->kernel.run) TRY(queue_one(e, l, &s));
    o->rehearsed = true;
    TRY(ll_gpu_record(o->gpu, LL_STREAM_COMPUTE, over(e, o->end[LL_UPDATE]))); /* the last */
    TRY(ll_gpu_fill(o->gpu, o->trouble, 0, LL_TROUBLE_WORDS * sizeof(int64_t)));
    for (int section = LL_MICRO; section <= LL_REPORT; section++)
        TRY(record_section(e, section, step));
    return ll_gpu_wait(o->gpu);
}

/* ---- a section ---- */

static ll_err collective(ll_exec *e, int i)
{
    ll_bound *b = &e->instrs[i];
    return b->instr->wait ? e->link->wait(e, &e->instrs[b->instr->pair]) : e->link->start(e, b);
}

/* What is measured starts when what was queued before is over. */
static ll_err timed_collective(ll_exec *e, int i)
{
    if (!e->profiling) return collective(e, i);
    TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
    double start = ll_now();
    TRY(collective(e, i));
    TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
    e->seconds[i] += ll_now() - start;
    return LL_OK;
}

ll_err ll_cuda_run(ll_exec *e, int section, int micro, uint64_t step)
{
    ll_cuda *o = ll_cuda_of(e);
    int to = o->end[section];
    ll_span s = {.micro = micro, .step = step, .once = section != LL_MICRO};
    if (has_messages(e) && !o->rehearsed && section == LL_MICRO) TRY(rehearse(e, step));
    for (int i = section ? o->end[section - 1] : 0; i < to;) {
        s.from = i;
        if (!is_queued(e, i)) {
            const ll_launch *l = &o->launches[i++];
            if (runs(e, l, &s)) TRY(timed_collective(e, l->instr[0]));
            continue;
        }
        s.to = i = span_end(e, i, to);
        TRY(e->profiling || e->trace ? measure(e, &s) : replay(e, &s, false));
    }
    return LL_OK;
}

/* ---- a section that leaves nothing behind ---- */

static ll_err replay_often(ll_exec *e, ll_gpu_graph *graph, int times, double *seconds)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    TRY(ll_gpu_replay(g, graph));
    TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
    double start = ll_now();
    for (int t = 0; t < times; t++) TRY(ll_gpu_replay(g, graph));
    TRY(ll_cuda_await(e, LL_STREAM_COMPUTE));
    *seconds = (ll_now() - start) / times;
    return LL_OK;
}

ll_err ll_cuda_rehearse(ll_exec *e, int section, ll_may_run *may, int times, double *seconds)
{
    ll_cuda *o = ll_cuda_of(e);
    ll_gpu_graph *graph = NULL;
    ll_span s = {.from = section ? o->end[section - 1] : 0, .to = o->end[section], .once = true};
    bool any = false;
    *seconds = 0;
    for (int i = s.from; i < s.to && !any; i++) any = may_launch(e, &o->launches[i], &s, may);
    if (!any) return LL_OK;
    TRY(queue(e, &s, may, false)); /* plans and tables are made, which no graph may hold */
    ll_err rc = capture(e, &s, may, false, &graph);
    if (rc == LL_OK) rc = replay_often(e, graph, times, seconds);
    if (graph) ll_gpu_drop(graph);
    return rc;
}
