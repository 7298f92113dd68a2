/* built.h: what a builder makes, which may be many nodes, on machine ref in f64: its values against
 * plain C, and its gradients against differences along a random direction of each operand. */
#pragma once
#include "base/rng.h"
#include "exec/exec.h"
#include "op/op_int.h"
#include "pass/target.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BUILT_MAX = 8 };
typedef struct built {
    const char *what;
    int n_in;
    ll_shape in[BUILT_MAX];
    const void *arg;
    ll_val (*build)(ll_graph *g, const ll_val *in, const void *arg);
    /* y [shape] of the operands; NULL: values are not looked at */
    void (*plain)(const struct built *b, double *const *in, const ll_shape *shape, double *y);
} built;

static inline void built_must(ll_err rc, const built *b)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", b->what, ll_error_text(), ll_error_frames());
}

static inline double *built_slot(ll_exec *e, int slot)
{
    return (double *)ll_exec_data(e, slot, 0);
}

static inline double built_loss(ll_exec *e, const ll_program *p, const built *b)
{
    built_must(ll_exec_run(e, LL_MICRO, 1), b);
    built_must(ll_exec_run(e, LL_REPORT, 1), b);
    return *built_slot(e, ll_program_result(p, "loss"));
}

static inline void built_draw(double *x, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) x[i] = ll_normal_at(1, stream, (uint64_t)i);
}

/* d loss along a direction, by the gradient and by a difference. */
static inline void built_slope(ll_exec *e, const ll_program *p, const built *b, int k)
{
    char name[16];
    snprintf(name, sizeof name, "in%d", k);
    double *x = built_slot(e, ll_program_input(p, name)), want = 0, step = 1e-5;
    int64_t n = ll_numel(&b->in[k]);
    double *v = malloc((size_t)(n + 1) * sizeof *v);
    built_draw(v, n, ll_stream("direction", (uint64_t)k));
    built_loss(e, p, b);
    snprintf(name, sizeof name, "d%d", k);
    const double *d = built_slot(e, ll_program_result(p, name));
    for (int64_t i = 0; i < n; i++) want += d[i] * v[i];
    for (int64_t i = 0; i < n; i++) x[i] += step * v[i];
    double up = built_loss(e, p, b);
    for (int64_t i = 0; i < n; i++) x[i] -= 2 * step * v[i];
    double got = (up - built_loss(e, p, b)) / (2 * step);
    for (int64_t i = 0; i < n; i++) x[i] += step * v[i];
    if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
        fail_msg("%s: the gradient of operand %d gives %.9g along a direction, differences %.9g",
                 b->what, k, want, got);
    free(v);
}

static inline void built_values(ll_exec *e, const ll_program *p, const built *b,
                                const ll_shape *shape)
{
    double *in[BUILT_MAX];
    char name[16];
    int64_t n = ll_numel(shape);
    double *want = malloc((size_t)(n + 1) * sizeof *want);
    for (int i = 0; i < b->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        in[i] = built_slot(e, ll_program_input(p, name));
    }
    b->plain(b, in, shape, want);
    const double *y = built_slot(e, ll_program_result(p, "y"));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(y[i] - want[i]) <= 1e-9 * (1 + fabs(want[i]))))
            fail_msg("%s: element %lld is %.12g, want %.12g", b->what, (long long)i, y[i], want[i]);
    free(want);
}

static inline void built_check(const built *b)
{
    ll_graph *g = ll_graph_new("built");
    ll_val in[BUILT_MAX], d[BUILT_MAX];
    ll_program *p;
    ll_exec *e;
    char name[16];
    for (int i = 0; i < b->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        in[i] = ll_input(g, name, LL_STATE, (ll_type){LL_F64, b->in[i]}, (ll_init){0});
    }
    ll_val y = b->build(g, in, b->arg);
    built_must(ll_graph_check(g), b);
    ll_shape shape = ll_graph_shape(g, y);
    ll_val r = ll_input(g, "r", LL_STATE, (ll_type){LL_F64, shape}, (ll_init){0});
    ll_val loss = ll_sum_all(g, ll_mul(g, y, r));
    ll_grad(g, loss, in, b->n_in, d);
    ll_graph_result(g, "y", y);
    ll_graph_result(g, "loss", loss);
    for (int i = 0; i < b->n_in; i++) {
        snprintf(name, sizeof name, "d%d", i);
        ll_graph_result(g, name, d[i]);
    }
    built_must(ll_lower(g, &(ll_lower_opts){.target = &ll_target_ref}, &p), b);
    built_must(ll_exec_open(p, &(ll_exec_opts){.seed = 5, .poison = true}, &e), b);
    for (int i = 0; i < b->n_in; i++) {
        snprintf(name, sizeof name, "in%d", i);
        built_draw(built_slot(e, ll_program_input(p, name)), ll_numel(&b->in[i]),
                   ll_stream(b->what, (uint64_t)i));
    }
    built_draw(built_slot(e, ll_program_input(p, "r")), ll_numel(&shape), ll_stream("r", 0));
    built_loss(e, p, b);
    if (b->plain) built_values(e, p, b, &shape);
    for (int i = 0; i < b->n_in; i++) built_slope(e, p, b, i);
    ll_exec_close(e);
    ll_program_free(p);
    ll_graph_free(g);
}
