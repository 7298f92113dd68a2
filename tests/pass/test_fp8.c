/* test_fp8.c: products of 8-bit floats: which are taken, how operands lie, and what they give. */
#include "pass/passes.h"

#include "exec/session.h"

#include <math.h>

/* A small net, large enough for 8 bits; its last layer makes logits. */
static ll_graph *net(void)
{
    ll_graph *g = ll_graph_new("step");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 64, 144));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(2, 64));
    ll_val h = ll_gelu(g, ll_linear(g, "a", ll_linear(g, "z", x, 144, true), 160, true));
    h = ll_linear(g, "b", h, 128, true);
    h = ll_linear(g, "c", h, 144, true);
    ll_val loss = ll_mean(g, ll_cross_entropy(g, h, y));
    ll_minimize(g, loss, &(ll_optim){.name = "sgd"});
    return g;
}

/* Residuals and their norms: the first is read by products of 8-bit floats alone. */
static ll_graph *residual_net(void)
{
    ll_graph *g = ll_graph_new("step");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 64, 144));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(2, 64));
    ll_val r = ll_add(g, ll_linear(g, "z", x, 144, true), ll_linear(g, "w", x, 144, false));
    ll_val h = ll_linear(g, "a", ll_layernorm_layer(g, "n", r), 160, true);
    r = ll_add(g, r, ll_linear(g, "b", ll_gelu(g, h), 144, true));
    h = ll_linear(g, "c", ll_layernorm_layer(g, "m", r), 144, true);
    ll_val loss = ll_mean(g, ll_cross_entropy(g, h, y));
    ll_minimize(g, loss, &(ll_optim){.name = "sgd"});
    return g;
}

static void train(ll_graph *g, int n, double *loss)
{
    enum { X = 2 * 64 * 144, Y = 2 * 64 };
    static float x[X];
    static int32_t y[Y];
    ll_session *s;
    for (int i = 0; i < X; i++) x[i] = (float)sin(0.37 * i) * (float)(i % 144) / 144;
    for (int i = 0; i < Y; i++) y[i] = i * 7 % 144;
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    must(ll_session_set(s, "x", 0, x, sizeof x), "x");
    must(ll_session_set(s, "y", 0, y, sizeof y), "y");
    for (int i = 0; i < n; i++) {
        must(ll_session_run(s, 0.5), "run");
        loss[i] = ll_session_result(s, "loss");
    }
    ll_session_close(s);
}

static int count_scaled(const ll_graph *g, ll_dtype a, ll_dtype b)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *p = &g->nodes[i];
        if (strncmp(p->op->name, "product", 7)) continue;
        ll_dtype s = ll_graph_dtype(g, p->in[0]), t = ll_graph_dtype(g, p->in[1]);
        n += (s == a && t == b) || (s == b && t == a);
    }
    return n;
}

enum { STEPS = 3 };

/* Losses follow those of bf16. */
static void follows(ll_graph *narrow, ll_graph *eight)
{
    double want[STEPS], got[STEPS];
    train(narrow, STEPS, want);
    train(eight, STEPS, got);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(got[i] - want[i]) < 0.01 * want[i]);
    assert_true(want[STEPS - 1] < want[0] && got[0] != want[0]);
}

static void test_step(void **state)
{
    (void)state;
    ll_graph *g = net(), *simple, *narrow, *joined, *eight;
    must(ll_simplify(g, &simple), "simplify");
    must(ll_narrow(simple, &narrow), "narrow");
    must(ll_epilogues(narrow, &joined), "epilogues");
    must(ll_fp8(joined, &eight), "fp8");
    /* z, a and b: forward; dx of a and b; dw of all; c makes logits, and has a bias */
    assert_int_equal(count_scaled(eight, LL_F8_E4M3, LL_F8_E4M3), 3);
    assert_int_equal(count_scaled(eight, LL_F8_E4M3, LL_F8_E5M2), 5);
    assert_int_equal(count_op(eight, "matmul"), 2);
    /* both ways: operands of all, weights of a and b; with sums: gradients of their results */
    assert_int_equal(count_op(eight, "quantize_both"), 5);
    assert_int_equal(count_op(eight, "quantize_sum"), 2);
    assert_int_equal(count_op(eight, "dgelu"), 0);
    /* gelu is taken on the way too, from its operand, which is kept for the gradient */
    assert_int_equal(count_op(joined, "product2"), 1);
    assert_int_equal(count_op(eight, "product2") + count_op(eight, "gelu"), 0);
    follows(narrow, eight);
    ll_graph_free(eight);
    ll_graph_free(joined);
    ll_graph_free(narrow);
    ll_graph_free(simple);
    ll_graph_free(g);
}

static void test_residual(void **state)
{
    (void)state;
    ll_graph *g = residual_net(), *simple, *narrow, *fused, *joined, *eight;
    must(ll_simplify(g, &simple), "simplify");
    must(ll_narrow(simple, &narrow), "narrow");
    must(ll_epilogues(narrow, &fused), "epilogues");
    must(ll_join(fused, &joined), "join");
    must(ll_fp8(joined, &eight), "fp8");
    assert_int_equal(count_op(joined, "add_layernorm"), 2);
    assert_int_equal(count_op(eight, "add_layernorm"), 1); /* before the logits */
    assert_int_equal(count_op(eight, "layernorm_both"), 1);
    follows(narrow, eight);
    ll_graph_free(eight);
    ll_graph_free(joined);
    ll_graph_free(fused);
    ll_graph_free(narrow);
    ll_graph_free(simple);
    ll_graph_free(g);
}

static void test_none(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("small"), *narrow, *eight;
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(8, 16));
    ll_graph_result(g, "y", ll_linear(g, "a", x, 16, false));
    must(ll_narrow(g, &narrow), "narrow");
    assert_int_equal(ll_fp8(narrow, &eight), LL_E_GRAPH);
    assert_non_null(strstr(ll_error_text(), "use bf16"));
    ll_graph_free(narrow);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step),
        cmocka_unit_test(test_residual),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests_name("fp8", tests, NULL, NULL);
}
