/* accuracy.c: how far the gradients of one training step are from those in f64: with f32 products,
 * with exact sums (parallel.exact) and with bf16 products. Parameters and batch are the same.
 *
 *     build/bench_accuracy RUN [KEY=VALUE...]      such as: gpt-kjv train.batch=2
 *
 * Of each gradient the 2-norm of the difference over the 2-norm of the f64 one; printed are the
 * median and the worst of all gradients, and the same of all taken as one vector. */
#include "base/rng.h"
#include "exec/session.h"
#include "pass/pass.h"
#include "train/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum mode { F64, F32, EXACT, BF16, N_MODE } mode;
static const char *const names[] = {"f64", "f32", "exact", "bf16"};

enum { MOST = 1024 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void expose_gradients(ll_graph *g)
{
    for (int i = 1, n = g->n_value; i < n; i++) {
        const char *name = g->values[i].name;
        if (g->values[i].node >= 0 && name && !strncmp(name, "grad:", 5))
            ll_graph_result(g, name, (ll_val){i});
    }
}

static int64_t classes_of(const ll_run *r)
{
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        if (!strcmp(r->model.sizes[i].name, "classes") || !strcmp(r->model.sizes[i].name, "vocab"))
            return r->model.sizes[i].value;
    return 2;
}

/* Every input as f32 holds it, whatever the session's types. */
static ll_err set_inputs(ll_session *s, const ll_run *r)
{
    const ll_program *p = s->p;
    ll_err rc = LL_OK;
    for (int i = 0; i < p->n_input && rc == LL_OK; i++) {
        const ll_slot *x = &p->slots[p->inputs[i].slot];
        bool kept = x->kind == LL_PARAM || x->kind == LL_STATE;
        if (!kept && x->kind != LL_BATCH) continue;
        uint64_t stream = ll_stream(x->name, 0);
        char *data = (char *)malloc(x->bytes + 8);
        memcpy(data, ll_exec_data(s->e, p->inputs[i].slot, 0), x->bytes);
        for (int64_t k = 0, n = ll_numel(&x->type.shape); k < n; k++)
            ll_store(data, x->type.dtype, k,
                     kept ? (double)(float)ll_load(data, x->type.dtype, k)
                     : ll_dtype_is_float(x->type.dtype)
                         ? (double)(float)ll_normal_at(1, stream, (uint64_t)k)
                         : (double)ll_below_at(1, stream, (uint64_t)k, (uint64_t)classes_of(r)));
        rc = ll_session_set(s, x->name, 0, data, x->bytes);
        free(data);
    }
    return rc;
}

static ll_err open_as(const ll_run *r, ll_graph *g, mode m, ll_session **s)
{
    ll_session_opts o = {.machine = m == F64 ? "ref" : "cpu",
                         .precision = m == BF16 ? "bf16" : "f32",
                         .threads = (int)r->train.threads,
                         .seed = (uint64_t)r->train.seed,
                         .exact = m == EXACT};
    TRY(ll_session_open(g, &o, s));
    TRY(set_inputs(*s, r));
    return ll_session_run(*s, 1e-3);
}

/* One gradient's difference; *off and *size: sums of squares. */
static double differ(ll_session *want, ll_session *got, const char *name, double *off, double *size)
{
    const ll_program *a = want->p, *b = got->p;
    int i = ll_program_result(a, name), j = ll_program_result(b, name);
    const void *x = ll_exec_data(want->e, i, 0);
    const void *y = ll_exec_data(got->e, j, 0);
    double d2 = 0, n2 = 0;
    for (int64_t k = 0, n = ll_numel(&a->slots[i].type.shape); k < n; k++) {
        double u = ll_load(x, a->slots[i].type.dtype, k), v = ll_load(y, b->slots[j].type.dtype, k);
        d2 += (u - v) * (u - v);
        n2 += u * u;
    }
    *off += d2;
    *size += n2;
    return n2 > 0 ? sqrt(d2 / n2) : 0;
}

static void report(const ll_graph *g, ll_session *want, ll_session *got, mode m)
{
    double rel[MOST], off = 0, size = 0;
    int n = 0;
    for (int i = 0; i < g->n_result && n < MOST; i++)
        if (!strncmp(g->results[i].name, "grad:", 5))
            rel[n++] = differ(want, got, g->results[i].name, &off, &size);
    qsort(rel, (size_t)n, sizeof *rel, by_value);
    printf("%-6s loss %.9g  gradients off by %.1e in all, median %.1e, worst %.1e\n", names[m],
           ll_session_result(got, "loss"), sqrt(off / size), rel[n / 2], rel[n - 1]);
}

static ll_err measure(const ll_run *r)
{
    ll_graph *g, *wide;
    ll_session *s[N_MODE] = {NULL};
    TRY(ll_run_graph(r, r->train.batch, &r->train.optim, &g));
    expose_gradients(g);
    TRY(ll_retype(g, LL_F64, false, &wide));
    ll_err rc = LL_OK;
    for (int m = 0; m < N_MODE && rc == LL_OK; m++) {
        rc = open_as(r, m == F64 ? wide : g, (mode)m, &s[m]);
        if (rc == LL_OK && m != F64) report(g, s[F64], s[m], (mode)m);
        if (m != F64) ll_session_close(s[m]);
    }
    ll_session_close(s[F64]);
    ll_graph_free(wide);
    ll_graph_free(g);
    return rc;
}

int main(int argc, char **argv)
{
    ll_run *r = NULL;
    ll_err rc = argc > 1 ? ll_run_load(argv[1], &r) : LL_E_ARG;
    for (int i = 2; i < argc && rc == LL_OK; i++) rc = ll_run_set(r, argv[i]);
    if (rc == LL_OK) rc = ll_run_finish(r);
    if (rc == LL_OK) rc = measure(r);
    if (rc != LL_OK)
        fprintf(stderr, "%s\n", argc > 1 ? ll_error_text() : "usage: RUN [KEY=VALUE...]");
    ll_run_free(r);
    return rc != LL_OK;
}
