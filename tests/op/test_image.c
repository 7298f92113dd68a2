/* Builders of convolutions and pooling: sizes, parameters and their initial values, costs, and what
 * is refused. */
#include "ir/op.h"
#include "kern/attr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static ll_val image(ll_graph *g, int64_t h, int64_t w, int64_t c)
{
    return ll_batch(g, "x", LL_F32, LL_SHAPE(2, h, w, c));
}

static void assert_shape(ll_graph *g, ll_val v, ll_shape want)
{
    char a[LL_SHAPE_TEXT], b[LL_SHAPE_TEXT];
    if (ll_graph_check(g) != LL_OK) fail_msg("%s", ll_error_text());
    ll_shape got = ll_graph_shape(g, v);
    assert_string_equal(ll_shape_print(&got, a), ll_shape_print(&want, b));
}

/* The graph refuses, and its message has all these words. */
static void assert_refused(ll_graph *g, const char *word, const char *other)
{
    ll_err code = ll_graph_check(g);
    assert_true(code == LL_E_SHAPE || code == LL_E_ARG); /* not the graph is wrong: a shape is */
    if (!strstr(ll_error_text(), word) || !strstr(ll_error_text(), other))
        fail_msg("\"%s\" does not name %s and %s", ll_error_text(), word, other);
    ll_graph_free(g);
}

/* Sizes of torch.nn.MaxPool2d(window, stride, padding, ceil_mode). */
static void test_pool_sizes(void **state)
{
    (void)state;
    static const struct {
        int64_t size, window, stride, pad, floor, ceil;
    } want[] = {{112, 3, 2, 0, 55, 56}, {56, 3, 2, 0, 27, 28}, {28, 3, 2, 0, 13, 14},
                {14, 2, 2, 0, 7, 7},    {15, 2, 2, 0, 7, 8},   {28, 3, 1, 1, 28, 28},
                {7, 3, 3, 1, 3, 3},     {6, 2, 3, 0, 2, 2},    {5, 2, 4, 1, 2, 2}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        for (int ceil = 0; ceil < 2; ceil++) {
            ll_graph *g = ll_graph_new("pool");
            ll_val x = image(g, want[i].size, want[i].size, 3);
            ll_window w = {{want[i].window, want[i].window},
                           {want[i].stride, want[i].stride},
                           {want[i].pad, want[i].pad},
                           ceil};
            int64_t n = ceil ? want[i].ceil : want[i].floor;
            assert_shape(g, ll_max_pool(g, x, &w), LL_SHAPE(2, n, n, 3));
            assert_shape(g, ll_avg_pool(g, x, &w), LL_SHAPE(2, n, n, 3));
            ll_graph_free(g);
        }
}

static void test_adaptive(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("pool");
    ll_val x = image(g, 12, 7, 5);
    assert_shape(g, ll_adaptive_avg_pool(g, x, 1, 1), LL_SHAPE(2, 1, 1, 5));
    assert_shape(g, ll_adaptive_avg_pool(g, x, 6, 7), LL_SHAPE(2, 6, 7, 5));
    assert_shape(g, ll_adaptive_avg_pool(g, x, 5, 7), LL_SHAPE(2, 5, 7, 5));
    ll_adaptive_avg_pool(g, x, 0, 7);
    assert_refused(g, "[2,12,7,5]", "0 x 7");
}

static void test_conv_layer(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("conv");
    ll_val x = image(g, 11, 10, 6);
    ll_conv o = {.stride = {2, 1}, .pad = {1, 0}, .dilation = {1, 2}, .groups = 3};
    assert_shape(g, ll_conv_layer(g, "a", x, 9, 3, &o, true), LL_SHAPE(2, 6, 6, 9));
    const ll_value *w = ll_value_of(g, ll_find(g, "a.weight"));
    const ll_value *b = ll_value_of(g, ll_find(g, "a.bias"));
    assert_shape(g, ll_find(g, "a.weight"), LL_SHAPE(9, 3, 3, 2));
    assert_shape(g, ll_find(g, "a.bias"), LL_SHAPE(9));
    assert_int_equal(w->init.kind, LL_UNIFORM);
    assert_int_equal(b->init.kind, LL_UNIFORM);
    assert_true(fabs(w->init.a - 1 / sqrt(18)) < 1e-12 && w->init.a == b->init.a);
    assert_shape(g, ll_conv_layer(g, "b", x, 8, 1, NULL, false), LL_SHAPE(2, 11, 10, 8));
    w = ll_value_of(g, ll_find(g, "b.weight"));
    assert_int_equal(ll_find(g, "b.bias").id, 0);
    assert_int_equal(w->init.kind, LL_NORMAL);
    assert_true(fabs(w->init.a - 0.5) < 1e-12);
    ll_graph_free(g);
}

static void test_refusals(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    ll_conv_layer(g, "big", image(g, 4, 4, 2), 3, 5, NULL, false);
    assert_refused(g, "5 x 5", "4 x 4");
    g = ll_graph_new("g");
    ll_conv_layer(g, "odd", image(g, 4, 4, 5), 4, 3, &(ll_conv){.groups = 2}, false);
    assert_refused(g, "odd", "2 groups");
    g = ll_graph_new("g");
    ll_val w = ll_param(g, "w", LL_SHAPE(4, 3, 3, 7), (ll_init){0});
    ll_conv2d(g, image(g, 4, 4, 5), w, NULL);
    assert_refused(g, "7 channels", "5");
    g = ll_graph_new("g");
    ll_max_pool(g, image(g, 4, 4, 5), &(ll_window){.size = {2, 2}, .pad = {2, 0}});
    assert_refused(g, "max_pool", "padding 2");
}

static double flops(ll_graph *g, ll_val v)
{
    const ll_node *n = &g->nodes[ll_value_of(g, v)->node];
    ll_loops l;
    if (ll_node_loops(g, n, &l) != LL_OK) fail_msg("%s", ll_error_text());
    if (n->op->cost) return n->op->cost(n->attr, &l);
    double points = n->op->flop;
    for (int i = 0; i < l.n; i++) points *= (double)l.extent[i];
    return points;
}

/* All three directions cost what the convolution does: strides and groups counted once. */
static void test_costs(void **state)
{
    (void)state;
    for (int groups = 1; groups <= 2; groups++) {
        ll_graph *g = ll_graph_new("g");
        ll_val x = image(g, 9, 9, 4), dx[2];
        ll_val w = ll_param(g, "w", LL_SHAPE(6, 3, 3, 4 / groups), (ll_init){0});
        ll_val y = ll_conv2d(g, x, w, &(ll_conv){.stride = {2, 2}, .groups = groups});
        ll_grad(g, y, (ll_val[]){x, w}, 2, dx);
        assert_int_equal(ll_graph_check(g), LL_OK);
        double want = 2. * 2 * 4 * 4 * 6 * 9 * 4 / groups;
        assert_true(flops(g, y) == want);
        assert_true(flops(g, dx[0]) == want);
        assert_true(flops(g, dx[1]) == want);
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_sizes), cmocka_unit_test(test_adaptive),
        cmocka_unit_test(test_conv_layer), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_costs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
