/* accuracy.c: how far the gradients of one training step are from those in f64: with f32 products,
 * with exact sums (parallel.exact) and with bf16 products. Parameters and batch are the same.
 *
 *     build/bench_accuracy RUN [KEY=VALUE...]      such as: gpt-kjv train.batch=2
 *     SCALED=rows DRAWS=120 build/bench_accuracy RUN [KEY=VALUE...]
 *
 * Of each gradient the 2-norm of the difference over the 2-norm of the f64 one; printed are the
 * median and the worst of all gradients, and the same of all taken as one vector.
 *
 * SCALED: parameters are scaled by 1e-6 to 1e6 at random, their rows (first dimension) or, with
 * tensors, as a whole, in so many draws (from number FIRST on). Counted are the gradients that are
 * more than 4 times as far from f64's with exact sums as with f32, by the CPU's kernels or by
 * reference ones (either alone may be near by luck), but for its last bit; and those of which it is
 * the other way round. NUDGES: each draw is made so many times more, with parameters that differ by
 * up to 2^-19: what is luck comes out otherwise each time. */
#include "base/rng.h"
#include "exec/session.h"
#include "pass/pass.h"
#include "infer/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum mode { F64, F32, EXACT, BF16, PLAIN, N_MODE } mode;
static const char *const names[] = {"f64", "f32", "exact", "bf16", "reference f32"};

enum { MOST = 1024 };

typedef enum scaled { NOT, ROWS, TENSORS } scaled;
static scaled how;
static uint64_t draw, nudge;

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

/* The factor of element k of a parameter. */
static double factor(const ll_slot *x, int64_t k)
{
    int64_t rows = x->type.shape.n > 1 ? x->type.shape.d[0] : 1;
    int64_t row = how == ROWS ? k / (ll_numel(&x->type.shape) / rows) : 0;
    uint64_t of = ll_stream(x->name, 1 + draw);
    if (how == NOT || x->kind != LL_PARAM) return 1;
    double by = (double)ll_below_at(2 + nudge, of, (uint64_t)k, 1000) / 999 - 0.5;
    return pow(10, 12 * (double)ll_below_at(1, of, (uint64_t)row, 1000) / 999 - 6) *
           (nudge ? 1 + by * 0x1p-18 : 1);
}

static int64_t classes_of(const ll_run *r)
{
    for (int i = 0; i < LL_MAX_SIZES && r->model.sizes[i].name; i++)
        if (!strcmp(r->model.sizes[i].name, "classes") || !strcmp(r->model.sizes[i].name, "vocab"))
            return r->model.sizes[i].value;
    return 2;
}

/* Every input as f32 holds it, before it is scaled and after it, whatever the session's types. */
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
                     kept ? (double)(float)(factor(x, k) * (float)ll_load(data, x->type.dtype, k))
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
    ll_session_opts o = {.machine = m == F64 || m == PLAIN ? "ref" : "cpu",
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
    if (got->n_wide) got = got->more; /* made again */
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
    for (int m = 0; m < PLAIN && rc == LL_OK; m++) {
        rc = open_as(r, m == F64 ? wide : g, (mode)m, &s[m]);
        if (rc == LL_OK && m != F64) report(g, s[F64], s[m], (mode)m);
        if (m != F64) ll_session_close(s[m]);
    }
    ll_session_close(s[F64]);
    ll_graph_free(wide);
    ll_graph_free(g);
    return rc;
}

/* Gradients of steps that were, or were not, made wide, and those that are far off. */
typedef struct counts {
    int all[2], far[2], near[2], refused, none;
    double worst;
} counts;

static void compare(const ll_graph *g, ll_session *const s[], counts *n)
{
    bool wide = s[EXACT]->n_wide > 0;
    for (int i = 0; i < g->n_result; i++) {
        const char *name = g->results[i].name;
        double none[2];
        if (strncmp(name, "grad:", 5)) continue;
        double f32 = fmax(differ(s[F64], s[F32], name, none, none + 1),
                          differ(s[F64], s[PLAIN], name, none, none + 1));
        double d = differ(s[F64], s[EXACT], name, none, none + 1);
        if (!isfinite(f32)) continue;
        n->all[wide]++;
        n->near[wide] += f32 > 4 * d + 0x1p-24;
        if (d <= 4 * f32 + 0x1p-24) continue;
        n->far[wide]++;
        n->worst = fmax(n->worst, d / f32);
        printf("draw %d, %s: %s is off by %.1e, f32's by %.1e\n", (int)draw,
               wide ? "wide" : "not wide", name, d, f32);
    }
}

static void draw_one(const ll_run *r, ll_graph *g, ll_graph *wide, counts *n)
{
    ll_session *s[N_MODE] = {NULL};
    ll_err rc[N_MODE] = {LL_OK};
    for (int m = F64; m < N_MODE; m++)
        if (m != BF16) rc[m] = open_as(r, m == F64 ? wide : g, (mode)m, &s[m]);
    bool usable = rc[F64] == LL_OK && rc[F32] == LL_OK && rc[PLAIN] == LL_OK;
    n->none += !usable;
    n->refused += usable && rc[EXACT] != LL_OK;
    if (usable && rc[EXACT] == LL_OK) compare(g, s, n);
    for (int m = F64; m < N_MODE; m++)
        if (s[m]) ll_session_close(s[m]);
}

static ll_err measure_draws(const ll_run *r, uint64_t first, int draws, uint64_t nudges)
{
    ll_graph *g, *wide;
    counts n = {0};
    TRY(ll_run_graph(r, r->train.batch, &r->train.optim, &g));
    expose_gradients(g);
    ll_err rc = ll_retype(g, LL_F64, false, &wide);
    for (draw = first; draw < first + (uint64_t)draws && rc == LL_OK; draw++)
        for (nudge = 0; nudge <= nudges; nudge++) draw_one(r, g, wide, &n);
    printf("of %d gradients of wide steps %d are more than 4 times as far off as f32's, of %d of "
           "others %d (at most %.0f times); the other way round %d and %d; %d steps refused, %d "
           "beyond f32\n",
           n.all[1], n.far[1], n.all[0], n.far[0], n.worst, n.near[1], n.near[0], n.refused,
           n.none);
    if (rc == LL_OK) ll_graph_free(wide);
    ll_graph_free(g);
    return rc;
}

int main(int argc, char **argv)
{
    ll_run *r = NULL;
    ll_err rc = argc > 1 ? ll_run_load(argv[1], &r) : LL_E_ARG;
    for (int i = 2; i < argc && rc == LL_OK; i++) rc = ll_run_set(r, argv[i]);
    if (rc == LL_OK) rc = ll_run_finish(r);
    const char *scale = getenv("SCALED"), *draws = getenv("DRAWS"), *first = getenv("FIRST");
    const char *nudges = getenv("NUDGES");
    if (scale) how = strcmp(scale, "tensors") ? ROWS : TENSORS;
    if (rc == LL_OK)
        rc = how ? measure_draws(r, first ? strtoull(first, NULL, 10) : 0, draws ? atoi(draws) : 1,
                                 nudges ? strtoull(nudges, NULL, 10) : 0)
                 : measure(r);
    if (rc != LL_OK)
        fprintf(stderr, "%s\n", argc > 1 ? ll_error_text() : "usage: RUN [KEY=VALUE...]");
    ll_run_free(r);
    return rc != LL_OK;
}
