/* matmul's builder: specs that make no sense are refused by name, gradients have the operands'
 * shapes whatever the order of letters, and ll_linear declares its parameters. */
#include "ir/ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static void test_bad_specs(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *says;
    } bad[] = {
        {"", "expected one like"},
        {"mk,kn", "expected one like"},
        {"mk->km", "expected one like"},
        {"mk->kn,mn", "expected one like"},
        {"mk,kn->mq", "alone"},
        {"mk,kn->m", "n is in \"kn\" alone"},
        {"mm,mn->mn", "m is twice in \"mm\""},
        {"mk,kn->mnn", "n is twice"},
        {"mk,kn,mn->mn", "not a letter"},
        {"mk,kn->m->n", "not a letter"},
        {"m k,kn->mn", "not a letter"},
        {"MK,KN->MN", "not a letter"},
        {"*k,kn->*n", "not a letter"},
        {"abcdefg,g->abcdef", "more than 6 letters"},
        {"abc,cd->abd", "dimensions"},
        {"mk,nk->mn", "loop k runs over"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "longer than"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ll_graph *g = ll_graph_new("bad");
        ll_val a = ll_batch(g, "a", LL_F32, LL_SHAPE(3, 4));
        ll_val b = ll_batch(g, "b", LL_F32, LL_SHAPE(4, 5));
        assert_int_equal(ll_matmul(g, bad[i].spec, a, b).id, 0);
        assert_int_not_equal(ll_graph_check(g), LL_OK);
        if (!strstr(ll_error_text(), bad[i].says))
            fail_msg("\"%s\": %s, want %s", bad[i].spec, ll_error_text(), bad[i].says);
        ll_graph_free(g);
    }
}

static void test_bad_types(void **state)
{
    (void)state;
    static const ll_dtype types[][2] = {{LL_F32, LL_BF16}, {LL_I32, LL_I32}, {LL_F64, LL_F32}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        ll_graph *g = ll_graph_new("bad");
        ll_val a = ll_batch(g, "a", types[i][0], LL_SHAPE(3, 4));
        ll_val b = ll_batch(g, "b", types[i][1], LL_SHAPE(4, 5));
        ll_matmul(g, "mk,kn->mn", a, b);
        assert_int_not_equal(ll_graph_check(g), LL_OK);
        assert_non_null(strstr(ll_error_text(), "operands are"));
        ll_graph_free(g);
    }
}

static void test_gradient_shapes(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("grad");
    ll_val a = ll_batch(g, "a", LL_F32, LL_SHAPE(2, 3, 5, 7));  /* b t h d */
    ll_val b = ll_batch(g, "b", LL_F32, LL_SHAPE(5, 11, 7, 2)); /* h s d b */
    ll_val y = ll_matmul(g, "bthd,hsdb->shbt", a, b), d[2];
    ll_shape want = LL_SHAPE(11, 5, 2, 3), got = ll_graph_shape(g, y);
    assert_true(ll_shape_equal(&want, &got));
    ll_grad(g, ll_sum_all(g, y), (ll_val[]){a, b}, 2, d);
    assert_int_equal(ll_graph_check(g), LL_OK);
    for (int i = 0; i < 2; i++) {
        want = ll_graph_shape(g, i ? b : a), got = ll_graph_shape(g, d[i]);
        assert_true(ll_shape_equal(&want, &got));
    }
    ll_graph_free(g);
}

static void test_linear(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("linear");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 3, 16));
    ll_shape got = ll_graph_shape(g, ll_linear(g, "fc", x, 5, true)), want = LL_SHAPE(2, 3, 5);
    assert_int_equal(ll_graph_check(g), LL_OK);
    assert_true(ll_shape_equal(&want, &got));
    const ll_value *w = ll_value_of(g, ll_find(g, "fc.weight"));
    want = LL_SHAPE(5, 16);
    assert_true(ll_shape_equal(&want, &w->type.shape));
    assert_true(w->init.kind == LL_UNIFORM && w->init.a == 0.25);
    assert_true(ll_value_of(g, ll_find(g, "fc.bias"))->init.a == 0.25);
    ll_linear(g, "plain", x, 4, false);
    assert_int_equal(ll_find(g, "plain.bias").id, 0);
    ll_linear(g, "none", x, 0, true);
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    assert_non_null(strstr(ll_error_text(), "linear none: operand [2,3,16], 0 outputs"));
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_bad_types),
        cmocka_unit_test(test_gradient_shapes),
        cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
