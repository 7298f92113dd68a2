/* test_batchnorm.c: batch norms that take in their relu and residual: which they find in a ResNet,
 * and that a training step stays the same. */
#include "pass/passes.h"

#include "exec/session.h"

#include <math.h>

enum { BATCH = 2, SIDE = 9, STEPS = 3 };

static ll_val norm(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t taps,
                   int64_t stride)
{
    ll_graph_push(g, name);
    x = ll_conv_layer(g, "conv", x, out, taps,
                      &(ll_conv){.stride = {stride, stride}, .pad = {taps / 2, taps / 2}}, false);
    x = ll_batchnorm_layer(g, "bn", x, true);
    ll_graph_pop(g);
    return x;
}

/* A stem, a block whose residual is a batch norm too, and two plain blocks; a relu's result with
 * other readers, and a batch norm without a relu. */
static ll_graph *small_resnet(void)
{
    ll_graph *g = ll_graph_new("step");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(BATCH, SIDE, SIDE, 3));
    ll_val h = ll_relu(g, norm(g, "stem", x, 5, 3, 1));
    ll_val a = norm(g, "a2", ll_relu(g, norm(g, "a1", h, 7, 3, 2)), 7, 1, 1);
    h = ll_relu(g, ll_add(g, a, norm(g, "a0", h, 7, 1, 2)));
    for (int i = 0; i < 2; i++) {
        ll_val b = norm(g, i ? "c1" : "b1", h, 7, 3, 1);
        h = ll_relu(g, i ? ll_add(g, b, h) : ll_add(g, h, b));
    }
    h = norm(g, "last", h, 4, 1, 1);
    ll_val loss = ll_mean(g, ll_square(g, ll_sub(g, ll_sigmoid(g, h), h)));
    ll_graph_result(g, "loss", loss);
    ll_minimize(g, loss, &(ll_optim){.name = "momentum", .momentum = 0.9});
    return g;
}

static void train(ll_graph *g, double *loss)
{
    ll_session *s;
    float x[BATCH * SIDE * SIDE * 3];
    for (int i = 0; i < BATCH * SIDE * SIDE * 3; i++) x[i] = sinf((float)(i * i % 91));
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    must(ll_session_set(s, "x", 0, x, sizeof x), "x");
    for (int i = 0; i < STEPS; i++) {
        must(ll_session_run(s, 0.1), "run");
        loss[i] = ll_session_result(s, "loss");
    }
    ll_session_close(s);
}

static void test_resnet(void **state)
{
    (void)state;
    ll_graph *g = small_resnet(), *simple, *joined;
    double want[STEPS], got[STEPS];
    must(ll_simplify(g, &simple), "simplify");
    must(ll_join_batchnorms(simple, &joined), "join");
    assert_int_equal(count_op(joined, "batchnorm_relu"), 2);
    assert_int_equal(count_op(joined, "batchnorm_add_relu"), 3);
    assert_int_equal(count_op(joined, "batchnorm"), 2); /* of the first block, and the last */
    assert_int_equal(count_op(joined, "batchnorm_relu_grad"), 2);
    assert_int_equal(count_op(joined, "batchnorm_sum_relu_grad"), 2);
    assert_int_equal(count_op(joined, "batchnorm_add_relu_grad"), 1); /* its y has one reader */
    assert_int_equal(count_op(joined, "batchnorm_grad"), 2);
    assert_int_equal(count_op(joined, "relu"), 0);
    assert_int_equal(count_op(joined, "select"), 0);
    train(simple, want);
    train(joined, got);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(want[i] - got[i]) < 1e-6 * fabs(want[i])))
            fail_msg("step %d: loss %.9g, joined %.9g", i, want[i], got[i]);
    assert_true(fabs(want[0] - want[STEPS - 1]) > 1e-3 * fabs(want[0]));
    ll_graph_free(joined);
    ll_graph_free(simple);
    ll_graph_free(g);
}

/* What must be left alone: a batch norm that others read too, a residual made after it, a mask of
 * something else. */
static void test_alone(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "  %4: f32[4,3], %5: f32[3], %6: f32[3] = batchnorm(%1, %2, %3) {eps=1e-05}\n"
        "  %7: f32[4,3] = relu(%4)\n"
        "  result \"a\" = %7\n  result \"b\" = %4\n",
        "  %4: f32[4,3], %5: f32[3], %6: f32[3] = batchnorm(%1, %2, %3) {eps=1e-05}\n"
        "  %7: f32[4,3] = exp(%1)\n"
        "  %8: f32[4,3] = add(%4, %7)\n"
        "  %9: f32[4,3] = relu(%8)\n"
        "  result \"a\" = %9\n",
    };
    for (int i = 0; i < 2; i++) {
        ll_arena *a = ll_arena_new();
        const char *text = ll_arena_printf(a,
                                           "  %%1: f32[4,3] = batch \"x\"\n"
                                           "  %%2: f32[3] = param \"g\" init=zeros\n"
                                           "  %%3: f32[3] = param \"b\" init=zeros\n%s",
                                           bodies[i]);
        becomes(ll_join_batchnorms, text, text);
        ll_arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resnet), cmocka_unit_test(test_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
