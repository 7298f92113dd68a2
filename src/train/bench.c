/* bench.c: timing training steps. The batch is random and fixed, as in the usual comparison of
 * frameworks: what is timed is forward, backward and update, not reading data. */
#include "train/bench.h"

#include "base/process.h"
#include "base/rng.h"
#include "base/stats.h"
#include "base/waits.h"
#include "kern/cpu/gemm.h"
#include "train/prune.h"
#include "run/setup.h"
#include "weights/state.h"

ll_err ll_gemm_peak(int threads, int64_t n, bool bf16, double *gflops, bool *beside)
{
    enum { TIMES = 12, LEAST = 3, MOST = 64 };
    const double patience_s = 0.3; /* on a machine so slow or busy, fewer times must do */
    ll_gemm_call g = {.m = n,
                      .n = n,
                      .k = n,
                      .a_rs = n,
                      .a_cs = 1,
                      .b_rs = n,
                      .b_cs = 1,
                      .c_rs = n,
                      .bf16 = bf16,
                      .threads = threads};
    size_t matrix = sizeof(float) * (size_t)(n * n), scratch = ll_gemm_scratch(&g);
    LL_OWN_MEMORY char *memory = (char *)aligned_alloc(64, ll_align64(3 * matrix + scratch));
    CHECK(memory, LL_E_MEM, "not enough memory to time a matrix product");
    for (int64_t i = 0; i < 2 * n * n; i++) {
        float x = (float)(i % 7) - 3;
        uint16_t half = ll_f32_to_bf16(x);
        int64_t at = i % (n * n);
        char *to = memory + (i < n * n ? 0 : matrix);
        memcpy(to + at * (bf16 ? 2 : 4), bf16 ? (void *)&half : (void *)&x, bf16 ? 2 : 4);
    }
    g.a = memory, g.b = memory + matrix, g.c = memory + 2 * matrix, g.scratch = memory + 3 * matrix;
    LL_OWN(ll_waits) waits = ll_waits_open(threads);
    double alone = INFINITY, held[MOST], began = ll_now();
    int i = 0;
    for (int own = 0; own < TIMES && (i < LEAST || ll_now() - began < patience_s); i++) {
        ll_waits_since(waits);
        double start = ll_now();
        ll_gemm(&g);
        double took = ll_now() - start, left = ll_waits_left(waits, took);
        held[i % MOST] = left > 0 ? left : took;
        if (ll_is_held(took, took - left)) continue;
        alone = fmin(alone, took);
        own++;
    }
    *beside = isinf(alone);
    if (i > MOST) i = MOST;
    ll_stats_sort(held, i);
    double best = *beside ? ll_quantile(held, i, 0.25) : alone; /* as kernels' (rehearse.c) */
    *gflops = 2e-9 * (double)(n * n * n) / best;
    return LL_OK;
}

/* Random images or tokens; labels below the model's number of classes. */
static ll_err fill_batch(ll_session *s, const ll_run *r)
{
    const ll_program *p = s->p;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *x = &p->slots[p->inputs[i].slot];
        if (x->kind != LL_BATCH) continue;
        ll_run_random(r, 1, ll_stream(x->name, 0), x->type.dtype,
                      ll_numel(&x->type.shape) * p->n_micro,
                      ll_exec_data(s->e, p->inputs[i].slot, 0));
        TRY(ll_exec_changed(s->e, p->inputs[i].slot));
    }
    s->checked = true;
    return LL_OK;
}

static void add_line(ll_bench_line *lines, int *n, int most, const char *op, const ll_instr *x,
                     double seconds, int times)
{
    int k = 0;
    while (k < *n && strcmp(lines[k].what, op)) k++;
    if (k == most) return;
    ll_bench_line *l = &lines[k];
    if (k == *n) snprintf(lines[(*n)++].what, sizeof l->what, "%s", op);
    l->count += times;
    l->seconds += seconds;
    l->flops += x->done * times;
    l->bytes += x->bytes * times;
}

/* Keeps the longest instructions, in order. */
static void add_top(ll_bench_report *out, const ll_program *p, const ll_instr *x, double seconds)
{
    int k = out->n_top < LL_BENCH_TOPS ? out->n_top++ : LL_BENCH_TOPS - 1;
    if (k == LL_BENCH_TOPS - 1 && out->tops[k].seconds >= seconds) return;
    for (; k > 0 && out->tops[k - 1].seconds < seconds; k--) out->tops[k] = out->tops[k - 1];
    ll_bench_line *t = &out->tops[k];
    *t = (ll_bench_line){.count = 1, .seconds = seconds, .flops = x->done, .bytes = x->bytes};
    int at = snprintf(t->what, sizeof t->what, "%s", x->name);
    for (int i = 0; i < x->n_in && i < 3 && at < (int)sizeof t->what; i++) {
        char shape[LL_SHAPE_TEXT];
        at += snprintf(t->what + at, sizeof t->what - (size_t)at, " %s",
                       ll_shape_print(&p->slots[x->in[i]].type.shape, shape));
    }
}

static int longest_first(const void *a, const void *b)
{
    const ll_bench_line *x = (const ll_bench_line *)a, *y = (const ll_bench_line *)b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

void ll_bench_gather(const ll_session *s, int steps, ll_bench_report *out)
{
    const ll_program *p = s->p;
    const double *seconds = ll_exec_seconds(s->e);
    out->model = ll_model_flops(s->g, p->n_micro);
    out->work = ll_program_flops(p);
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        int times = ll_program_times(p, i);
        const ll_op *op = ll_op_find(x->op); /* NULL: a wait */
        ll_work work = op ? op->work : LL_WORK_COLLECTIVE;
        if (!seconds) break;
        double took = seconds[i] / steps;
        add_line(out->lines, &out->n_line, LL_BENCH_LINES, x->op, x, took, times);
        add_line(out->classes, &out->n_class, LL_BENCH_CLASSES, ll_work_name(work), x, took, times);
        add_top(out, p, x, took);
    }
    qsort(out->lines, (size_t)out->n_line, sizeof *out->lines, longest_first);
    qsort(out->classes, (size_t)out->n_class, sizeof *out->classes, longest_first);
}

/* Steps with each kernel between two marks, which makes them longer: beside those timed. */
static ll_err profile_device(ll_session *s, double lr, ll_bench_report *out)
{
    enum { STEPS = 3 };
    for (int i = 0; i <= STEPS; i++) {
        if (i < 2) ll_exec_profile(s->e, true); /* the first captures */
        TRY(ll_session_run(s, lr));
    }
    ll_bench_gather(s, STEPS, out);
    ll_exec_profile(s->e, false);
    return LL_OK;
}

enum { LEAST_STEPS = 5, MOST_STEPS = 5000 };

/* This thread's, which other programs do not take from. */
static double own_time(void)
{
    return ll_clock(CLOCK_THREAD_CPUTIME_ID);
}

/* Steps until so many seconds have passed; their times, sorted, and the least of this thread's. */
static ll_err run_for(ll_session *s, double lr, double seconds, double times[MOST_STEPS], int *n,
                      double *own)
{
    double start = ll_now(), was = start, own_was = own_time();
    *own = INFINITY;
    *n = 0;
    while (*n < LEAST_STEPS || (was - start < seconds && *n < MOST_STEPS)) {
        TRY(ll_session_run(s, lr));
        double is = ll_now();
        times[(*n)++] = is - was;
        was = is;
        *own = fmin(*own, own_time() - own_was);
        own_was = own_time();
    }
    ll_stats_sort(times, *n);
    return LL_OK;
}

static ll_err time_steps(ll_session *s, double lr, const ll_bench_opts *o, ll_bench_report *out)
{
    enum { WARM_UP = 3 };
    double times[MOST_STEPS];
    int n = 0;
    bool device = s->machine->device;
    for (int i = 0; i < WARM_UP; i++) {
        TRY(ll_session_run(s, lr));
        if (i == 0) out->first_loss = ll_session_result(s, "loss");
        if (i == 0) out->start_s = ll_process_age();
    }
    if (device) { /* it slows down as it warms, within seconds: what counts is what lasts */
        TRY(run_for(s, lr, o->seconds, times, &n, &out->cpu_s));
        out->cool_s = ll_quantile(times, n, 0.5);
    }
    if (o->profile && !device) ll_exec_profile(s->e, true);
    TRY(run_for(s, lr, o->seconds, times, &n, &out->cpu_s));
    if (device || s->p->threads > 1) out->cpu_s = 0;
    out->last_loss = ll_session_result(s, "loss");
    if (device)
        TRY(profile_device(s, lr, out));
    else
        ll_bench_gather(s, n, out);
    out->step_s = ll_quantile(times, n, 0.5);
    out->best_s = times[0];
    out->q1_s = ll_quantile(times, n, 0.25);
    out->q3_s = ll_quantile(times, n, 0.75);
    out->n_steps = n;
    return LL_OK;
}

static ll_err bench(const ll_run *r, ll_session *s, const ll_bench_opts *o, ll_bench_report *out)
{
    const ll_program *p = s->p;
    TRY(fill_batch(s, r));
    int x = ll_program_input(p, "x");
    bool tokens = ll_run_takes_tokens(r);
    out->batch = r->train.batch;
    out->threads = p->threads;
    out->parameters = ll_session_parameters(s);
    out->bytes = ll_session_bytes(s);
    out->aside = p->aside_bytes;
    out->n_launch = s->e->n_launch;
    if (tokens && x >= 0) out->seq = p->slots[x].type.shape.d[1];
    bool bf16 = r->train.precision == LL_PRECISION_bf16;
    if (!*out->device) out->tiles = ll_gemm_tiles(bf16);
    if (!*out->device)
        TRY(ll_gemm_peak(p->threads, LL_LARGE_GEMM, bf16, &out->gemm_gflops, &out->beside));
    return time_steps(s, r->train.schedule.lr, o, out);
}

ll_err ll_bench_step(const ll_run *r, const ll_bench_opts *o, ll_bench_report *out)
{
    LL_OWN(ll_graph) g = NULL;
    LL_OWN(ll_session) s = NULL;
    const ll_machine *m;
    ll_device_facts before = {0}, after = {0};
    ll_pruned pruned;
    ll_session_opts how = ll_run_session(r, NULL, NULL);
    how.compress = NULL;
    *out = (ll_bench_report){0};
    TRY(ll_machine_find(r->train.machine, &m));
    CHECK(m->device || !o->peak, LL_E_ARG, "a peak needs a device, which machine %s does not have",
          m->target->name);
    TRY(ll_run_graph(r, r->train.batch / ll_run_micro_batches(r), &r->train.optim, &g));
    if (m->device) TRY(m->ask(0, r->train.precision, &before));
    snprintf(out->device, sizeof out->device, "%s", before.name);
    out->peak = o->peak > 0 ? o->peak : before.peak;
    TRY(ll_session_open(g, &how, &s));
    if (r->train.optim.masked)
        TRY(ll_prune_begin(r->train.prune, r->train.prune_steps, s, &pruned));
    TRY(bench(r, s, o, out));
    if (m->device) TRY(m->ask(0, r->train.precision, &after));
    out->used_bytes = before.free_bytes - after.free_bytes;
    return LL_OK;
}
