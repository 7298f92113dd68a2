/* test_classify.c: a product, its loss and the gradient of that as one node, and nothing changes
 * but by rounding. */
#include "pass/trained.h"

#include <math.h>

enum { TOKENS = 3 * 23, STEPS = 3 };

/* A step up to the passes before this one; vocab 515 gets columns that count for nothing. */
static ll_graph *gpt(int64_t vocab, int64_t width)
{
    static ll_pass *const passes[] = {ll_simplify,    ll_narrow,    ll_simplify,
                                      ll_even_logits, ll_epilogues, ll_join};
    ll_graph *g = ll_graph_new("step"), *made;
    const ll_build b = {.batch = 3,
                        .training = true,
                        .sizes = {{"layers", 1, ""},
                                  {"width", width, ""},
                                  {"heads", 2, ""},
                                  {"seq", 23, ""},
                                  {"vocab", vocab, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "sgd"});
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        must(passes[i](g, &made), "passes");
        ll_graph_free(g);
        g = made;
    }
    return g;
}

static void train(ll_graph *g, int vocab, double *loss, double *norm)
{
    int32_t x[TOKENS], y[TOKENS];
    for (int i = 0; i < TOKENS; i++) x[i] = i * 71 % vocab, y[i] = vocab - 1 - i * 5 % vocab;
    train_tokens(g, x, y, sizeof x, STEPS, loss, norm);
}

static void test_gpt(void **state)
{
    (void)state;
    static const int vocabs[] = {72, 515};
    for (int k = 0; k < 2; k++) {
        double want[2][STEPS], got[2][STEPS];
        ll_graph *g = gpt(vocabs[k], 64), *one;
        must(ll_classify(g, &one), "classify");
        assert_int_equal(count_op(g, "cross_entropy_back"), 1);
        assert_int_equal(count_op(one, "classify"), 1);
        assert_int_equal(count_op(one, "cross_entropy_back"), 0);
        assert_int_equal(
            count_op(g, k ? "product1" : "matmul") - count_op(one, k ? "product1" : "matmul"), 1);
        assert_int_equal(count_op(one, "mul") - count_op(g, "mul"), 2); /* of dx, and of x */
        train(g, vocabs[k], want[0], want[1]);
        train(one, vocabs[k], got[0], got[1]);
        for (int i = 0; i < STEPS; i++) {
            assert_true(fabs(got[0][i] - want[0][i]) < 2e-3 * want[0][i]);
            assert_true(fabs(got[1][i] - want[1][i]) < 5e-3 * want[1][i]);
        }
        assert_true(want[0][STEPS - 1] < 0.99 * want[0][0]);
        ll_graph_free(one);
        ll_graph_free(g);
    }
}

static void stays(ll_graph *g)
{
    ll_graph *one;
    must(ll_classify(g, &one), "classify");
    assert_int_equal(count_op(one, "classify"), 0);
    assert_int_equal(one->n_node, g->n_node);
    ll_graph_free(one);
    ll_graph_free(g);
}

/* Small products, and logits, losses' statistics and gradients that somebody else reads, stay. */
static void test_left_alone(void **state)
{
    (void)state;
    stays(gpt(72, 48));
    stays(gpt(70, 64));
    for (int k = 0; k < 3; k++) {
        ll_graph *g = gpt(72, 64);
        for (int i = 0; i < g->n_node; i++) {
            const ll_node *n = &g->nodes[i];
            if (strcmp(n->op->name, "cross_entropy_back")) continue;
            ll_graph_result(g, "shown", k == 0 ? n->in[0] : n->out[k == 1 ? 0 : 2]);
            break;
        }
        stays(g);
    }
}

/* A gradient read in other ways than as rows times a matrix. */
static void test_readers(void **state)
{
    static const char body[] =
        "  %%1: bf16[80,64] = batch \"x\"\n"
        "  %%2: bf16[72,64] = batch \"w\"\n"
        "  %%3: i32[80] = batch \"y\"\n"
        "  %%4: f32[80] = batch \"d\"\n"
        "  %%5: bf16[80,72] = matmul(%%1, %%2) {spec=\"rk,nk->rn\", out=bf16}\n"
        "  %%6: bf16[80,72], %%7: f32[80], %%8: f32[80] = cross_entropy_back(%%5, %%3, %%4)\n"
        "  %%9: f32[%s] = matmul(%%6, %%%d) {spec=\"%s\", out=f32}\n"
        "  result \"r\" = %%9\n";
    static const struct {
        const char *shape, *spec;
        int other, taken;
    } cases[] = {{"80,64", "rn,nk->rk", 2, 1},
                 {"72,64", "rn,rk->nk", 1, 1},
                 {"64,72", "rn,rk->kn", 1, 1},
                 {"64,80", "rn,nk->kr", 2, 0},
                 {"80,72", "rn,rn->rn", 6, 0}};
    (void)state;
    for (int i = 0; i < 5; i++) {
        ll_arena *a = ll_arena_new();
        ll_graph *one,
            *g =
                parse_body(ll_arena_printf(a, body, cases[i].shape, cases[i].other, cases[i].spec));
        must(ll_classify(g, &one), cases[i].spec);
        assert_int_equal(count_op(one, "classify"), cases[i].taken);
        ll_graph_free(one);
        ll_graph_free(g);
        ll_arena_free(a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt),
                                       cmocka_unit_test(test_left_alone),
                                       cmocka_unit_test(test_readers)};
    return cmocka_run_group_tests_name("classify", tests, NULL, NULL);
}
