/* test_even.c: logits of an uneven number of columns get some more, and nothing changes. */
#include "pass/trained.h"

#include <math.h>

enum { VOCAB = 515, WIDE = 576, TOKENS = 2 * 4, STEPS = 3 };

static ll_graph *gpt(int64_t vocab)
{
    ll_graph *g = ll_graph_new("step"), *simple, *narrow;
    const ll_build b = {.batch = 2,
                        .training = true,
                        .sizes = {{"layers", 1, ""},
                                  {"width", 8, ""},
                                  {"heads", 2, ""},
                                  {"seq", 4, ""},
                                  {"vocab", vocab, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "sgd"});
    must(ll_simplify(g, &simple), "simplify");
    must(ll_narrow(simple, &narrow), "narrow");
    ll_graph_free(simple);
    ll_graph_free(g);
    return narrow;
}

static void train(ll_graph *g, double *loss, double *norm)
{
    int32_t x[TOKENS], y[TOKENS];
    for (int i = 0; i < TOKENS; i++) x[i] = i * 71 % VOCAB, y[i] = VOCAB - 1 - i * 64;
    train_tokens(g, x, y, sizeof x, STEPS, loss, norm);
}

static void test_gpt(void **state)
{
    (void)state;
    double want[2][STEPS], got[2][STEPS];
    ll_graph *g = gpt(VOCAB), *even;
    must(ll_even_logits(g, &even), "even");
    int wide = 0, uneven = 0;
    for (int i = 0; i < even->n_node; i++) {
        const ll_node *n = &even->nodes[i];
        if (strcmp(n->op->name, "matmul")) continue;
        for (int k = 0; k < 3; k++) {
            ll_shape s = ll_graph_shape(even, k < 2 ? n->in[k] : n->out[0]);
            for (int d = 0; d < s.n; d++) wide += s.d[d] == WIDE, uneven += s.d[d] == VOCAB;
        }
    }
    assert_int_equal(uneven, 0);
    assert_int_equal(wide, 6); /* twice in each of the three products of the output layer */
    assert_int_equal(count_op(even, "pad"), 2);
    train(g, want[0], want[1]);
    train(even, got[0], got[1]);
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(got[0][i] - want[0][i]) < 1e-5 * want[0][i]);
        assert_true(fabs(got[1][i] - want[1][i]) < 1e-4 * want[1][i]);
    }
    assert_true(want[0][STEPS - 1] < want[0][0]);
    ll_graph_free(even);
    ll_graph_free(g);
}

/* An even number, and logits that somebody else reads, stay. */
static void test_left_alone(void **state)
{
    (void)state;
    ll_graph *g = gpt(WIDE), *even;
    must(ll_even_logits(g, &even), "even");
    assert_int_equal(count_op(even, "pad"), 0);
    ll_graph_free(even);
    ll_graph_free(g);
    g = gpt(VOCAB);
    for (int i = 0; i < g->n_node; i++)
        if (!strcmp(g->nodes[i].op->name, "cross_entropy"))
            ll_graph_result(g, "logits", g->nodes[i].in[0]);
    must(ll_even_logits(g, &even), "even");
    assert_int_equal(count_op(even, "pad"), 0);
    ll_graph_free(even);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt),
        cmocka_unit_test(test_left_alone),
    };
    return cmocka_run_group_tests_name("even", tests, NULL, NULL);
}
