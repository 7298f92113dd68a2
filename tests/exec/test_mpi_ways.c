/* mpi: 1 2 3
 * How convolutions are made: the choice by a table of measurements, under limits of workspace, is a
 * function of the table; tables print and read back; what is no table is refused. Sessions measure
 * once, keep it in a file, and have one table on all ranks; under every setting they train as with
 * plain sums, and stay within the limit. No time is asserted. */
#include "exec/session.h"
#include "tmpdir.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static ll_comm *comm;
#ifdef __SANITIZE_ADDRESS__
enum { STEPS = 2, N_LIMIT = 2 };
#else
enum { STEPS = 3, N_LIMIT = 4 };
#endif

/* Convolutions of 3 x 3, 5 x 5 and 3 x 3, on images of 12 x 13. */
static ll_graph *convs(void)
{
    ll_graph *g = ll_graph_new("convs");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 12, 13, 8));
    const ll_init small = {.kind = LL_NORMAL, .a = 0.1};
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        int pad = i == 1 ? 2 : 1, taps = 2 * pad + 1;
        ll_val w = ll_param(g, name, LL_SHAPE(i == 2 ? 40 : 8, taps, taps, 8), small);
        x = ll_relu(g, ll_conv2d(g, x, w, &(ll_conv){.pad = {pad, pad}}));
    }
    ll_val loss = ll_mean(g, ll_mul(g, x, x));
    ll_graph_result(g, "loss", loss);
    ll_minimize(g, loss, &(ll_optim){.name = "sgd"});
    return g;
}

/* ---- the choice ---- */

static size_t room(const ll_solver *s, const ll_kcall *c)
{
    return s->scratch ? s->scratch(c) : 0;
}

static void test_pick(void **state)
{
    (void)state;
    LL_OWN(ll_arena) arena = ll_arena_new();
    const ll_op *op = ll_op_find("conv2d");
    const ll_solver *list = ll_way_list(&ll_target_cpu, op);
    ll_conv_attr a = {{1, 1}, {1, 1, 1, 1}, {1, 1}, 1, {0}, 0, {0}};
    ll_tensor in[2] = {{NULL, LL_F32, LL_SHAPE(32, 8, 8, 64)},
                       {NULL, LL_F32, LL_SHAPE(40, 3, 3, 64)}};
    ll_tensor out = {NULL, LL_F32, LL_SHAPE(32, 8, 8, 40)};
    const ll_kcall call = {.attr = &a, .n_in = 2, .n_out = 1, .in = in, .out = &out, .threads = 2};
    const char *key = ll_way_key(op, &call, arena);
    const ll_way rows[] = {{key, "gather", 0, 9, 0},    {key, "winograd4", 0, 3, 0},
                           {key, "winograd4", 4, 4, 0}, {key, "winograd2", 0, 5, 0},
                           {key, "gone", 0, 1, 0},      {"another kind", "gather", 0, 1, 0}};
    ll_ways w = {.arena = arena}, again = {.arena = arena};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) ll_ways_add(&w, &rows[i]);
    ll_kcall c = call;
    assert_string_equal(ll_way_pick(list, &w, key, SIZE_MAX, &c)->name, "winograd4");
    assert_int_equal(c.at_once, 0);
    /* of any limit the quickest that fits it; of none at all the plain one; never more than it */
    double before = 0;
    for (size_t limit = 0; limit < (8u << 20); limit = limit * 5 / 4 + 1000) {
        c = call;
        const ll_solver *s = ll_way_pick(list, &w, key, limit, &c);
        assert_true(room(s, &c) <= limit);
        double t = ll_ways_seconds(&w, key, s->name, c.at_once);
        if (!limit) assert_string_equal(s->name, "plain");
        if (before) assert_true(t && t <= before);
        before = t;
    }
    /* not measured: the first that fits, in pieces where that is too much */
    c = call;
    assert_string_equal(ll_way_pick(list, NULL, "", SIZE_MAX, &c)->name, "gather");
    c.solver = "winograd2";
    assert_string_equal(ll_way_pick(list, NULL, "", SIZE_MAX, &c)->name, "winograd2");
    no_error(ll_ways_parse(ll_ways_print(&w, arena), &again));
    assert_int_equal(again.n, w.n);
    assert_string_equal(ll_ways_print(&again, arena), ll_ways_print(&w, arena));
    const char *wrong[] = {"x\n", "1 2 3 gather", "nan 1 1 gather key\n", "1 2 -3 gather key\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(ll_ways_parse(wrong[i], &again), LL_E_IO);
}

static void test_settings(void **state)
{
    (void)state;
    ll_conv_how how;
    no_error(ll_conv_read(&ll_target_cpu, "winograd4", "1.5KiB", &how));
    assert_true(how.limited && how.workspace == 1536 && !how.fast);
    no_error(ll_conv_read(&ll_target_cpu, "fast", "auto", &how));
    assert_true(how.fast && !how.limited && !how.solver);
    assert_int_equal(ll_conv_read(&ll_target_cpu, "fats", NULL, &how), LL_E_ARG);
    assert_int_equal(ll_conv_read(&ll_target_cpu, NULL, "64", &how), LL_E_ARG);
    assert_int_equal(ll_conv_read(&ll_target_ref, "fast", NULL, &how), LL_E_ARG);
}

/* ---- sessions ---- */

static double train(ll_graph *g, const char *mesh, const char *conv, const char *workspace,
                    size_t *bytes)
{
    ll_session *s;
    ll_session_opts o = {.threads = 2, .seed = 3, .comm = comm, .mesh = mesh, .conv = conv};
    static float x[6 * 12 * 13 * 8];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = (float)((int)(i * 37 % 101) - 50) / 50;
    o.workspace = workspace;
    no_error(ll_session_open(g, &o, &s));
    double loss = 0;
    for (int i = 0; i < STEPS; i++) {
        no_error(ll_session_set(s, "x", 0, x, sizeof x));
        no_error(ll_session_run(s, 0.1));
        loss = ll_session_result(s, "loss");
    }
    *bytes = s->p->work_bytes + s->p->scratch_bytes;
    if (s->ways.n) { /* one table on all ranks */
        double sum[2] = {0};
        for (int i = 0; i < s->ways.n; i++) sum[0] += s->ways.v[i].seconds;
        sum[1] = sum[0];
        no_error(ll_comm_broadcast(comm, &sum[1], 1, LL_F64, 0, NULL));
        assert_true(sum[0] == sum[1]);
    }
    ll_session_close(s);
    return loss;
}

static void test_sessions(void **state)
{
    (void)state;
    ll_graph *g = convs();
    char mesh[2][32] = {"", ""};
    int n = ll_comm_size(comm);
    if (n > 1) snprintf(mesh[0], sizeof mesh[0], "data=%d", n);
    if (n > 1) snprintf(mesh[1], sizeof mesh[1], "height=%d", n);
    size_t least, bytes;
    for (int k = 0; k < (n > 1 ? 2 : 1); k++) {
        double want = train(g, mesh[k], NULL, NULL, &bytes);
        double none = train(g, mesh[k], NULL, "0B", &least);
        assert_true(fabs(none - want) < 1e-5 * want);
        const char *convs[] = {"fast",  "winograd4", "winograd2", "im2col",
                               "fft16", "plain",     "fast"};
        const char *limits[] = {"auto", "40KiB", "300KiB", "4KiB"};
        for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
            for (int j = 0; j < N_LIMIT; j++) {
                if (((int)i + j + k + n / 2) % 2) continue; /* the others: on the other mesh */
                double got = train(g, mesh[k], convs[i], limits[j], &bytes), limit;
                if (!(fabs(got - want) < 1e-4 * want))
                    fail_msg("%s, conv %s, workspace %s: loss %g, not %g", mesh[k], convs[i],
                             limits[j], got, want);
                if (!ll_text_to_bytes(limits[j], &limit)) continue;
                if ((double)bytes > (double)least + limit + 4096)
                    fail_msg("%s, conv %s, workspace %s: %zu bytes, %zu without", mesh[k], convs[i],
                             limits[j], bytes, least);
            }
    }
    ll_graph_free(g);
}

int main(void)
{
    void *folder = NULL;
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm));
    if (tmpdir_setup(&folder)) return 1;
    setenv("XDG_CACHE_HOME", (const char *)folder, 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pick), cmocka_unit_test(test_settings),
                                       cmocka_unit_test(test_sessions)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    failed += tmpdir_teardown(&folder);
    ll_comm_close(comm);
    return failed;
}
