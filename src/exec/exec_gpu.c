/* exec_gpu.c: programs on a GPU. The slab lies there; this process sees slots through views, copies
 * in pinned memory. Instructions that are the same work on other tensors are one launch (merge.h).
 * Launches between two collectives are captured into a graph the second time they run, and replayed
 * from then on: a step costs a few launches of this process. What changes from step to step is
 * the clock, a number in device memory that random ops read. Collectives work on views: operands
 * are copied out, results back. */
#include "exec/gpu_int.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

ll_err ll_onboard_open(ll_exec *e, const ll_exec_opts *opts)
{
    const ll_exec *share = opts->share;
    const ll_program *p = e->p;
    ll_onboard *o = e->gpu = LL_NEW(e->arena, ll_onboard);
    o->views = LL_NEW_ARRAY(e->arena, ll_seen, p->n_slot + 1);
    o->packing = LL_NEW_ARRAY(e->arena, void *, p->n_instr + 1);
    o->stretches = LL_NEW_ARRAY(e->arena, ll_stretch, (size_t)p->n_micro * (size_t)p->n_instr + 1);
    if (share) {
        CHECK(share->gpu, LL_E_ARG, "a program on a GPU shares memory with one that is not");
        o->gpu = share->gpu->gpu;
    } else {
        TRY(ll_gpu_open(opts->device, &o->gpu));
        o->own = true;
    }
    size_t trouble = LL_TROUBLE * sizeof(int64_t);
    TRY(ll_gpu_alloc(o->gpu, sizeof(uint64_t), &o->clock));
    TRY(ll_gpu_alloc(o->gpu, trouble, &o->trouble));
    TRY(ll_gpu_fill(o->gpu, o->trouble, 0, trouble));
    if (opts->nccl)
        TRY(ll_talkers_open(e, share ? share->gpu->talkers : NULL, e->arena, &o->talkers));
    return ll_onboard_open_data(e);
}

void ll_onboard_close(ll_exec *e)
{
    ll_onboard *o = e->gpu;
    const ll_program *p = e->p;
    if (!o->gpu) return;
    ll_err rc = ll_gpu_wait(o->gpu); /* a failure was told where it was met */
    (void)rc;
    for (int i = 0; i < p->n_micro * p->n_instr; i++) {
        ll_gpu_drop(o->stretches[i].graph);
        ll_gpu_drop(o->stretches[i].marked);
    }
    ll_onboard_close_data(e);
    ll_talkers_close(o->talkers);
    for (int i = 0; i < p->n_instr; i++) ll_gpu_unpin(o->packing[i]);
    ll_gpu_free(o->gpu, o->clock);
    ll_gpu_free(o->gpu, o->trouble);
    ll_gpu_free(o->gpu, o->tables);
    if (e->slab && !e->borrowed) ll_gpu_free(o->gpu, e->slab);
    if (o->own) ll_gpu_close(o->gpu);
}

ll_err ll_onboard_slab(ll_exec *e, size_t bytes, char **out)
{
    ll_gpu_facts f;
    char need[LL_NUMBER_TEXT], have[LL_NUMBER_TEXT];
    TRY(ll_gpu_ask(e->gpu->gpu, &f));
    CHECK(bytes <= f.free_bytes, LL_E_MEM,
          "the program needs %s, %s has %s free: use a smaller model or train.micro_batch",
          ll_text_bytes((double)bytes, need), f.name, ll_text_bytes((double)f.free_bytes, have));
    void *p;
    TRY(ll_gpu_alloc(e->gpu->gpu, bytes, &p));
    *out = (char *)p;
    return LL_OK;
}

/* ---- launches ---- */

static size_t table_bytes(const ll_exec *e, const ll_launch *l)
{
    if (l->n == 1) return 0;
    return (e->instrs[l->instr[0]].instr->kernel.many->table(l->calls, l->n, NULL) + 255) / 256 *
           256;
}

/* The tables of launches of several instructions, in one piece of the GPU's memory. */
static ll_err open_tables(ll_exec *e)
{
    ll_onboard *o = e->gpu;
    int n = o->end[LL_UPDATE];
    size_t bytes = 0, at = 0;
    for (int i = 0; i < n; i++) bytes += table_bytes(e, &o->launches[i]);
    if (!bytes) return LL_OK;
    TRY(ll_gpu_alloc(o->gpu, bytes, &o->tables));
    o->extra_bytes += bytes;
    char *image = (char *)calloc(1, bytes);
    CHECK(image, LL_E_MEM, "no memory for the tables of %zu bytes of a GPU's program", bytes);
    for (int i = 0; i < n; i++) {
        ll_launch *l = &o->launches[i];
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

static ll_err plan_launches(ll_exec *e)
{
    ll_onboard *o = e->gpu;
    o->launches = LL_NEW_ARRAY(e->arena, ll_launch, e->p->n_instr + 1);
    for (int s = 0, n = 0; s < LL_N_SECTION; s++) {
        int from = s ? e->p->end[s - 1] : 0;
        n += ll_merge(e->instrs, from, e->p->end[s], e->arena, o->launches + n);
        o->end[s] = n;
    }
    return open_tables(e);
}

ll_err ll_onboard_bind(ll_exec *e)
{
    ll_onboard *o = e->gpu;
    for (int i = 0; i < e->p->n_instr; i++) {
        bound *b = &e->instrs[i];
        b->call.stream = ll_gpu_stream(o->gpu);
        b->call.clock = (const uint64_t *)o->clock;
        b->call.trouble = (int64_t *)o->trouble;
        if (b->instr->kernel.run || o->talkers) continue;
        ll_tensor *in = (ll_tensor *)(uintptr_t)b->call.in,
                  *out = (ll_tensor *)(uintptr_t)b->call.out;
        for (int k = 0; k < b->call.n_in; k++) TRY(ll_onboard_pin(e, b->instr->in[k], &in[k].data));
        for (int k = 0; k < b->call.n_out; k++)
            TRY(ll_onboard_pin(e, b->instr->out[k], &out[k].data));
        if (b->instr->packing) TRY(ll_gpu_pinned(b->instr->packing, &o->packing[i]));
        b->call.scratch = o->packing[i];
    }
    return plan_launches(e);
}

ll_err ll_onboard_poison(ll_exec *e)
{
    return ll_gpu_fill(e->gpu->gpu, e->slab + e->input_bytes, 0xff,
                       e->p->work_bytes + e->p->scratch_bytes);
}

bool ll_onboard_runs(const ll_exec *e, const ll_launch *l, const ll_span *s)
{
    return !(e->instrs[l->instr[0]].instr->last && !s->once && s->micro < e->p->n_micro - 1);
}

static ll_err queue_one(ll_exec *e, const ll_launch *l, const ll_span *s)
{
    bound *b = &e->instrs[l->instr[0]];
    b->call.micro = s->micro;
    b->call.step = s->step;
    return l->n == 1 ? b->instr->kernel.run(&b->call)
                     : b->instr->kernel.many->run(l->calls, l->n, l->table);
}

/* marks: number i before the i-th of them, and one behind the last. */
ll_err ll_onboard_queue(ll_exec *e, const ll_span *s, bool marks)
{
    for (int i = s->from; i < s->to; i++) {
        const ll_launch *l = &e->gpu->launches[i];
        if (marks) TRY(ll_gpu_mark(e->gpu->gpu, i - s->from));
        if (ll_onboard_runs(e, l, s)) TRY(queue_one(e, l, s));
    }
    return marks ? ll_gpu_mark(e->gpu->gpu, s->to - s->from) : LL_OK;
}

ll_stretch *ll_onboard_stretch(ll_exec *e, const ll_span *s)
{
    return &e->gpu->stretches[(size_t)s->micro * (size_t)e->p->n_instr + (size_t)s->from];
}

static ll_err run_stretch(ll_exec *e, const ll_span *s)
{
    ll_onboard *o = e->gpu;
    ll_stretch *x = ll_onboard_stretch(e, s);
    if (e->profiling || e->trace) return ll_onboard_measure(e, s);
    if (x->runs++ == 0) return ll_onboard_queue(e, s, false);
    if (!x->graph) {
        TRY(ll_gpu_capture(o->gpu));
        ll_err rc = ll_onboard_queue(e, s, false);
        ll_err end = ll_gpu_captured(o->gpu, &x->graph);
        TRY(rc);
        TRY(end);
    }
    return ll_gpu_replay(o->gpu, x->graph);
}

static ll_err talk(ll_exec *e, bound *b)
{
    ll_onboard *o = e->gpu;
    int i = (int)(b - e->instrs);
    if (o->talkers)
        return b->instr->wait ? ll_onboard_await(e, b->instr->pair) : ll_onboard_start(e, i);
    if (!b->instr->wait) {
        for (int k = 0; k < b->instr->n_in; k++) {
            int slot = b->instr->in[k];
            char *view = (char *)b->call.in[k].data; /* of batch data: of this micro-batch */
            size_t at = (size_t)(view - (char *)o->views[slot].data);
            TRY(ll_gpu_read(o->gpu, view, (char *)e->address[slot] + at, e->p->slots[slot].bytes));
        }
        TRY(ll_gpu_wait(o->gpu));
        return ll_exec_start_talk(e, b);
    }
    bound *start = &e->instrs[b->instr->pair];
    bool was = start->flying;
    TRY(ll_exec_wait_talk(e, start));
    for (int k = 0; was && k < start->instr->n_out; k++) {
        int slot = start->instr->out[k];
        TRY(ll_gpu_write(o->gpu, e->address[slot], o->views[slot].data, e->p->slots[slot].bytes));
    }
    return LL_OK;
}

static bool is_kernel(const ll_exec *e, int launch)
{
    return e->instrs[e->gpu->launches[launch].instr[0]].instr->kernel.run;
}

/* What is measured starts when what was queued before is over. */
static ll_err timed_talk(ll_exec *e, int i)
{
    if (!e->profiling) return talk(e, &e->instrs[i]);
    TRY(ll_gpu_wait(e->gpu->gpu));
    double start = ll_now();
    TRY(talk(e, &e->instrs[i]));
    TRY(ll_gpu_wait(e->gpu->gpu));
    e->seconds[i] += ll_now() - start;
    return LL_OK;
}

ll_err ll_onboard_run(ll_exec *e, int section, int micro, uint64_t step)
{
    ll_onboard *o = e->gpu;
    int to = o->end[section];
    ll_span s = {.micro = micro, .step = step, .once = section != LL_MICRO};
    for (int i = section ? o->end[section - 1] : 0; i < to;) {
        s.from = i;
        if (!is_kernel(e, i)) {
            const ll_launch *l = &o->launches[i++];
            if (ll_onboard_runs(e, l, &s)) TRY(timed_talk(e, l->instr[0]));
            continue;
        }
        while (i < to && is_kernel(e, i)) i++;
        s.to = i;
        TRY(run_stretch(e, &s));
    }
    return LL_OK;
}

int ll_exec_launches(const ll_exec *e)
{
    return e->gpu ? e->gpu->end[LL_UPDATE] : e->p->n_instr;
}

ll_err ll_onboard_one(ll_exec *e, int i, bool checked)
{
    bound *b = &e->instrs[i];
    if (!b->instr->kernel.run) return talk(e, b);
    TRY(b->instr->kernel.run(&b->call));
    TRY(ll_gpu_wait(e->gpu->gpu));
    if (!checked) return LL_OK;
    ll_tensor out[LL_MAX_OUT];
    for (int o = 0; o < b->call.n_out; o++) {
        out[o] = b->call.out[o];
        out[o].data = ll_onboard_view(e, b->instr->out[o], true);
    }
    return ll_exec_check_finite(b, out);
}

size_t ll_exec_extra_bytes(const ll_exec *e)
{
    return e->gpu ? e->gpu->extra_bytes : 0;
}

bool ll_onboard_talks(const ll_exec *e)
{
    return e->gpu && e->gpu->talkers;
}

ll_err ll_onboard_meet(ll_exec *e, const ll_instr *x)
{
    return ll_talkers_meet(e->gpu->talkers, x);
}

bool ll_exec_on_gpu(const ll_exec *e)
{
    return e->gpu;
}
