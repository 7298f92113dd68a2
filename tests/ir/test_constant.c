/* Constants: one for equal contents, their text, and what sessions make of them. */
#include "ir/graph_text.h"
#include "ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void must(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

static const float table[6] = {0.5f, -1e-7f, 3, 1.0f / 3, -0.0f, 7};
static const int32_t places[3] = {2, 0, 2};

static void test_equal_ones(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("c");
    float copy[6];
    memcpy(copy, table, sizeof copy);
    ll_val a = ll_constant(g, LL_F32, LL_SHAPE(2, 3), table);
    assert_int_equal(ll_constant(g, LL_F32, LL_SHAPE(2, 3), copy).id, a.id);
    assert_int_not_equal(ll_constant(g, LL_F32, LL_SHAPE(3, 2), copy).id, a.id);
    assert_int_not_equal(ll_constant(g, LL_I32, LL_SHAPE(2, 3), copy).id, a.id);
    copy[5] = 8;
    assert_int_not_equal(ll_constant(g, LL_F32, LL_SHAPE(2, 3), copy).id, a.id);
    must(ll_verify(g));
    ll_graph_update(g, a, a);
    assert_int_equal(ll_graph_check(g), LL_E_GRAPH);
    assert_int_equal(ll_constant(g, LL_F32, LL_SHAPE(2), NULL).id, 0);
    ll_graph_free(g);
}

/* Rows of the table by places, with a name, a scalar and an empty one beside. */
static ll_graph *declare(void)
{
    ll_graph *g = ll_graph_new("c");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(3, 3));
    ll_val rows = ll_reshape(g, ll_constant(g, LL_F32, LL_SHAPE(2, 3), table), LL_SHAPE(3, 2));
    ll_val at = ll_constant(g, LL_I32, LL_SHAPE(3), places);
    ll_val y = ll_matmul(g, "ab,cb->ac", ll_gather(g, rows, at, 0), ll_slice(g, x, 1, 0, 2));
    ll_constant(g, LL_F32, LL_SHAPE(0), table);
    ll_graph_result(g, "y", ll_mul(g, y, ll_constant(g, LL_F32, LL_SCALAR, &table[2])));
    must(ll_graph_check(g));
    return g;
}

static void test_text(void **state)
{
    (void)state;
    ll_graph *g = declare(), *again;
    ll_arena *a = ll_arena_new();
    char *text = ll_print(g, a);
    assert_non_null(strstr(text, "init=data(2,0,2)"));
    must(ll_parse(text, &again));
    assert_string_equal(text, ll_print(again, a));
    ll_graph_free(again);
    ll_graph_free(g);
    static const char *const bad[] = {"constant \"c\" init=data(1)",
                                      "constant \"c\" init=zeros",
                                      "constant \"c\"",
                                      "param \"c\" init=data(1,2)",
                                      "constant \"c\" init=data(1,2,3)",
                                      "constant \"c\" init=data(1,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, 200, "graph \"g\" {\n  %%1: f32[2] = %s\n}\n", bad[i]);
        if (ll_parse(text, &again) == LL_OK) fail_msg("read: %s", text);
    }
    ll_arena_free(a);
}

static void test_session(void **state)
{
    (void)state;
    static const char *const machines[] = {"ref", "cpu"};
    float x[9] = {1, 2, 0, 3, 4, 0, 5, 6, 0}, y[9];
    for (int k = 0; k < 2; k++) {
        ll_graph *g = declare();
        ll_session *s;
        must(ll_session_open(g, &(ll_session_opts){.machine = machines[k]}, &s));
        must(ll_session_set(s, "x", 0, x, sizeof x));
        for (int step = 0; step < 2; step++) must(ll_session_run(s, 0));
        must(ll_session_get(s, "y", y, sizeof y));
        for (int i = 0; i < 9; i++) {
            const float *row = table + 2 * places[i / 3], *other = x + 3 * (i % 3);
            float want = 3 * (row[0] * other[0] + row[1] * other[1]);
            if (!(y[i] >= want - 1e-5f && y[i] <= want + 1e-5f))
                fail_msg("%s: element %d is %g, want %g", machines[k], i, y[i], want);
        }
        ll_session_close(s);
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equal_ones),
                                       cmocka_unit_test(test_text), cmocka_unit_test(test_session)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
