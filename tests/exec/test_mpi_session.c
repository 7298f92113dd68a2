/* mpi: 1 2 3 4 6
 * Sessions on a mesh: some steps of training, cut over ranks, against the same steps in this
 * process alone: losses, and every parameter and state afterwards. The seed is printed. */
#include "base/rng.h"
#include "exec/session.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static ll_comm *comm;
static uint64_t seed = 1;

typedef struct model {
    const char *name, *optimizer;
    int64_t batch, limit;
    ll_size sizes[6];
} model;

static const model models[] = {
    {"mlp", "adamw", 12, 10, {{0}}},
    {"lenet5", "momentum", 12, 10, {{0}}},
    {"gpt",
     "momentum", /* keys' biases have no gradient but rounding, which Adam makes a step of */
     12,
     29,
     {{"layers", 2, ""}, {"width", 24, ""}, {"heads", 6, ""}, {"seq", 12, ""}, {"vocab", 29, ""}}},
};

static ll_graph *declare(const model *m)
{
    const ll_model *x = ll_model_find(m->name);
    ll_build b = {.batch = m->batch, .training = true};
    memcpy(b.sizes, x->sizes, sizeof b.sizes);
    for (int i = 0; i < 6 && m->sizes[i].name; i++)
        for (int k = 0; k < LL_MAX_SIZES && b.sizes[k].name; k++)
            if (!strcmp(b.sizes[k].name, m->sizes[i].name)) b.sizes[k].value = m->sizes[i].value;
    ll_graph *g = ll_graph_new(m->name);
    ll_minimize(g, x->declare(g, &b), &(ll_optim){.name = m->optimizer, .clip = 1});
    no_error(ll_graph_check(g));
    return g;
}

static void feed(ll_session *s, const ll_graph *g, int64_t limit, int n_micro, int step)
{
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->kind != LL_BATCH || v->node >= 0) continue;
        int64_t n = ll_numel(&v->type.shape);
        size_t bytes = (size_t)n * ll_dtype_bytes(v->type.dtype);
        void *data = malloc(bytes);
        for (int m = 0; m < n_micro; m++) {
            uint64_t stream = ll_stream(v->name, (uint64_t)(step * 16 + m));
            for (int64_t k = 0; k < n; k++)
                ll_store(data, v->type.dtype, k,
                         v->type.dtype == LL_I32
                             ? (double)ll_below_at(seed, stream, (uint64_t)k, (uint64_t)limit)
                             : ll_normal_at(seed, stream, (uint64_t)k));
            no_error(ll_session_set(s, v->name, m, data, bytes));
        }
        free(data);
    }
}

static double compare(ll_session *a, ll_session *b, const ll_graph *g, const char **name)
{
    double worst = 0;
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if ((v->kind != LL_PARAM && v->kind != LL_STATE) || v->node >= 0) continue;
        int64_t n = ll_numel(&v->type.shape);
        float *x = (float *)malloc((size_t)n * 4), *y = (float *)malloc((size_t)n * 4);
        no_error(ll_session_get(a, v->name, x, (size_t)n * 4));
        no_error(ll_session_get(b, v->name, y, (size_t)n * 4));
        /* By norms: Adam turns the rounding of a gradient near zero into a whole step of it. */
        double size = 1e-20, off = 0;
        for (int64_t k = 0; k < n; k++) {
            size += (double)x[k] * (double)x[k];
            off += ((double)x[k] - (double)y[k]) * ((double)x[k] - (double)y[k]);
        }
        double d = isnan(off) ? INFINITY : sqrt(off / size);
        if (!(d <= worst)) worst = d, *name = v->name;
        free(x);
        free(y);
    }
    return worst;
}

static void hold(const model *m, const char *mesh, int zero, int n_micro, const char *overlap)
{
    ll_graph *g = declare(m), *h = declare(m);
    ll_session *alone, *cut;
    no_error(ll_session_open(
        g, &(ll_session_opts){.threads = 1, .seed = 5, .micro_batches = n_micro}, &alone));
    ll_session_opts o = {.threads = 1, .seed = 5, .micro_batches = n_micro};
    o.comm = comm;
    o.mesh = mesh;
    o.zero = zero;
    o.overlap = overlap;
    ll_err rc = ll_session_open(h, &o, &cut);
    if (rc != LL_OK)
        fail_msg("%s on %s: %s\n%s", m->name, mesh, ll_error_text(), ll_error_frames());
    const char *name = "none";
    double first = compare(alone, cut, g, &name);
    if (first != 0) fail_msg("%s on %s: %s starts different", m->name, mesh, name);
    for (int step = 0; step < 3; step++) {
        feed(alone, g, m->limit, n_micro, step);
        feed(cut, h, m->limit, n_micro, step);
        no_error(ll_session_run(alone, 0.001));
        no_error(ll_session_run(cut, 0.001));
        double a = ll_session_result(alone, "loss"), b = ll_session_result(cut, "loss");
        if (!(fabs(a - b) < 1e-5 * fabs(a)))
            fail_msg("%s on %s zero %d: step %d: loss %.9g, alone %.9g", m->name, mesh, zero, step,
                     b, a);
    }
    double d = compare(alone, cut, g, &name);
    if (ll_comm_rank(comm) == 0)
        print_message("%-7s %-26s zero %d  micro %d  overlap %-4s  worst %.1e  %zu of %zu bytes\n",
                      m->name, mesh, zero, n_micro, overlap, d, ll_session_bytes(cut),
                      ll_session_bytes(alone));
    if (!(d < 1e-4)) fail_msg("%s on %s zero %d: %s differs by %g", m->name, mesh, zero, name, d);
    ll_session_close(cut);
    ll_session_close(alone);
    ll_graph_free(g);
    ll_graph_free(h);
}

typedef struct layout {
    int ranks;
    const char *mesh;
    int zero, n_micro;
    const char *only; /* model; NULL: all */
} layout;

static const layout layouts[] = {
    {1, "", 0, 1, NULL},
    {2, "data=2", 0, 1, NULL},
    {2, "data=2", 0, 3, NULL},
    {2, "data=2", 1, 2, NULL},
    {2, "data=2", 2, 3, NULL},
    {2, "data=2", 3, 2, NULL},
    {2, "tensor=2", 0, 1, NULL},
    {2, "height=2", 0, 2, "lenet5"},
    {2, "sequence=2", 0, 1, "gpt"},
    {3, "data=3", 2, 1, NULL},
    {3, "tensor=3", 0, 1, NULL},
    {3, "width=3", 0, 1, "lenet5"},
    {4, "data=2,tensor=2", 1, 2, NULL},
    {4, "height=2,width=2", 0, 1, "lenet5"},
    {4, "channel=2,filter=2", 0, 1, "lenet5"},
    {4, "rows=2,cols=2", 0, 1, "mlp"},
    {6, "data=2,tensor=3", 1, 1, NULL},
    {6, "data=6", 3, 2, NULL},
    {6, "tensor=2,sequence=3", 0, 1, "gpt"},
};

static void walk(const layout *x, const char *overlap)
{
    for (size_t k = 0; k < sizeof models / sizeof *models; k++)
        if (x->ranks == ll_comm_size(comm) && (!x->only || !strcmp(x->only, models[k].name)))
            hold(&models[k], x->mesh, x->zero, x->n_micro, overlap);
}

static void test_layouts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) walk(&layouts[i], "auto");
}

/* The same in pieces, where there are windows or gathers. */
static void test_pieces(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        if (layouts[i].only || layouts[i].zero == 3 || !strncmp(layouts[i].mesh, "tensor", 6))
            walk(&layouts[i], "all");
}

static void test_refused(void **state)
{
    (void)state;
    if (ll_comm_size(comm) == 1) return;
    ll_graph *g = declare(&models[0]);
    ll_session *s;
    ll_session_opts o = {.comm = comm, .mesh = "data=5"};
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_SHARD);
    o.mesh = "dta=2";
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "did you mean data?"));
    char mesh[32];
    snprintf(mesh, sizeof mesh, "tensor=%d", ll_comm_size(comm));
    o = (ll_session_opts){.comm = comm, .mesh = mesh, .any_order = true};
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_SHARD);
    assert_non_null(strstr(ll_error_text(), "use only axis data"));
    snprintf(mesh, sizeof mesh, "data=%d", ll_comm_size(comm));
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "one order of sums"));
    o = (ll_session_opts){.comm = comm};
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_SHARD);
    assert_non_null(strstr(ll_error_text(), "the mesh is of one rank, but there are"));
    ll_graph_free(g);
}

int main(void)
{
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10);
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    if (ll_comm_rank(comm) == 0) printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_layouts),
                                       cmocka_unit_test(test_pieces),
                                       cmocka_unit_test(test_refused)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
