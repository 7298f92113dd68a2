/* bench.c: timing training steps. The batch is random and fixed, as in the usual comparison of
 * frameworks: what is timed is forward, backward and update, not reading data. */
#include "train/bench.h"

#include "base/rng.h"
#include "kern/cpu/gemm.h"
#include "train/evaluate.h"
#include "train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

ll_err ll_gemm_peak(int threads, int64_t n, double *gflops)
{
    enum { TIMES = 12, LEAST = 3 };
    const double patience_s = 0.3; /* on a machine so slow or busy, fewer times must do */
    ll_gemm_call g = {.m = n,
                      .n = n,
                      .k = n,
                      .a_rs = n,
                      .a_cs = 1,
                      .b_rs = n,
                      .b_cs = 1,
                      .c_rs = n,
                      .threads = threads};
    size_t matrix = sizeof(float) * (size_t)(n * n), scratch = ll_gemm_scratch(&g);
    char *memory = (char *)aligned_alloc(64, (3 * matrix + scratch + 63) / 64 * 64);
    CHECK(memory, LL_E_MEM, "no memory to time a matrix product");
    for (int64_t i = 0; i < 2 * n * n; i++) ((float *)(void *)memory)[i] = (float)(i % 7) - 3;
    g.a = memory, g.b = memory + matrix, g.c = memory + 2 * matrix, g.scratch = memory + 3 * matrix;
    double best = 1e30, began = now();
    for (int i = 0; i < TIMES && (i < LEAST || now() - began < patience_s); i++) {
        double start = now();
        ll_gemm(&g);
        double took = now() - start;
        if (took < best) best = took;
    }
    free(memory);
    *gflops = 2e-9 * (double)(n * n * n) / best;
    return LL_OK;
}

static bool is_product(const char *op)
{
    return !strncmp(op, "matmul", 6) || !strncmp(op, "conv2d", 6) || !strncmp(op, "attention", 9);
}

/* Random images or tokens; labels below the model's number of classes. */
static ll_err fill_batch(ll_session *s, const ll_run *r)
{
    const ll_program *p = ll_session_program(s);
    int64_t classes = 2;
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        if (!strcmp(r->model.sizes[i].name, "classes") || !strcmp(r->model.sizes[i].name, "vocab"))
            classes = r->model.sizes[i].value;
    for (int i = 0; i < p->n_input; i++) {
        const ll_slot *x = &p->slots[p->inputs[i].slot];
        if (x->kind != LL_BATCH) continue;
        int64_t n = ll_numel(&x->type.shape) * p->n_micro;
        void *data = ll_exec_data(ll_session_exec(s), p->inputs[i].slot, 0);
        uint64_t stream = ll_stream(x->name, 0);
        for (int64_t k = 0; k < n; k++)
            ll_store(data, x->type.dtype, k,
                     ll_dtype_is_float(x->type.dtype)
                         ? ll_normal_at(1, stream, (uint64_t)k)
                         : (double)ll_below_at(1, stream, (uint64_t)k, (uint64_t)classes));
        TRY(ll_exec_changed(ll_session_exec(s), p->inputs[i].slot));
    }
    return LL_OK;
}

static void add_line(ll_bench_report *out, const ll_instr *x, double seconds, int times)
{
    int k = 0;
    while (k < out->n_line && strcmp(out->lines[k].op, x->op)) k++;
    if (k == LL_BENCH_LINES) return;
    if (k == out->n_line) out->lines[out->n_line++] = (ll_bench_line){.op = x->op};
    ll_bench_line *l = &out->lines[k];
    l->count += times;
    l->seconds += seconds;
    l->flops += x->flops * times;
    l->bytes += x->bytes * times;
}

/* Keeps the longest instructions, in order. */
static void add_top(ll_bench_report *out, const ll_program *p, const ll_instr *x, double seconds)
{
    int k = out->n_top < LL_BENCH_TOPS ? out->n_top++ : LL_BENCH_TOPS - 1;
    if (k == LL_BENCH_TOPS - 1 && out->tops[k].seconds >= seconds) return;
    for (; k > 0 && out->tops[k - 1].seconds < seconds; k--) out->tops[k] = out->tops[k - 1];
    ll_bench_top *t = &out->tops[k];
    *t = (ll_bench_top){.seconds = seconds, .flops = x->flops, .bytes = x->bytes};
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

static void gather(ll_session *s, int steps, ll_bench_report *out)
{
    const ll_program *p = ll_session_program(s);
    const double *seconds = ll_exec_seconds(ll_session_exec(s));
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        int times = i < p->end[LL_MICRO] ? p->n_micro : 1;
        if (is_product(x->op)) out->flops += x->flops * times;
        add_line(out, x, seconds ? seconds[i] / steps : 0, times);
        if (seconds) add_top(out, p, x, seconds[i] / steps);
    }
    qsort(out->lines, (size_t)out->n_line, sizeof *out->lines, longest_first);
    if (!seconds) out->n_line = 0;
}

static ll_err time_steps(ll_session *s, double lr, double seconds, bool profile,
                         ll_bench_report *out)
{
    enum { WARM_UP = 3, LEAST = 5, MOST = 5000 };
    static double times[MOST];
    int n = 0;
    for (int i = 0; i < WARM_UP; i++) {
        TRY(ll_session_run(s, lr));
        if (i == 0) out->first_loss = ll_session_result(s, "loss");
    }
    if (profile) ll_exec_profile(ll_session_exec(s), true);
    double start = now();
    while (n < LEAST || (now() - start < seconds && n < MOST)) {
        double t = now();
        TRY(ll_session_run(s, lr));
        times[n++] = now() - t;
    }
    gather(s, n, out);
    qsort(times, (size_t)n, sizeof *times, by_value);
    out->step_s = times[n / 2];
    out->best_s = times[0];
    out->n_steps = n;
    out->last_loss = ll_session_result(s, "loss");
    return LL_OK;
}

static ll_err bench(const ll_run *r, ll_session *s, double seconds, bool profile,
                    ll_bench_report *out)
{
    const ll_program *p = ll_session_program(s);
    TRY(fill_batch(s, r));
    int x = ll_program_input(p, "x");
    bool tokens = !strcmp(r->model.def->input, "tokens");
    *out = (ll_bench_report){.batch = r->train.batch,
                             .threads = p->threads,
                             .parameters = ll_session_parameters(s),
                             .bytes = ll_session_bytes(s)};
    if (tokens && x >= 0) out->seq = p->slots[x].type.shape.d[1];
    TRY(ll_gemm_peak(p->threads, LL_LARGE_GEMM, &out->gemm_gflops));
    return time_steps(s, r->train.schedule.lr, seconds, profile, out);
}

ll_err ll_bench_step(const ll_run *r, double seconds, bool profile, ll_bench_report *out)
{
    ll_graph *g = NULL;
    ll_session *s = NULL;
    int64_t n_micro = ll_run_micro_batches(r);
    TRY(ll_run_graph(r, r->train.batch / n_micro, &r->train.optim, &g));
    ll_session_opts o = {.threads = (int)r->train.threads,
                         .micro_batches = (int)n_micro,
                         .machine = r->train.machine,
                         .precision = r->train.precision,
                         .seed = (uint64_t)r->train.seed,
                         .exact = r->parallel.exact};
    ll_err rc = ll_session_open(g, &o, &s);
    if (rc == LL_OK) {
        rc = bench(r, s, seconds, profile, out);
        ll_session_close(s);
    }
    ll_graph_free(g);
    return rc;
}
