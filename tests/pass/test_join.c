/* test_join.c: what ll_join makes one node of, and that results stay the same. */
#include "pass/passes.h"

#include "exec/session.h"

#include <math.h>

enum { STEPS = 5, BATCH = 3, TIME = 7, WIDTH = 11, VOCAB = 13 };

/* Residual blocks without biases, so that nothing but the residual is added; tied tables. */
static ll_val network(ll_graph *g, bool square)
{
    const ll_init init = {LL_NORMAL, 0.3};
    ll_val x = ll_batch(g, "x", LL_I32, LL_SHAPE(BATCH, TIME));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(BATCH, TIME));
    ll_val table = ll_param(g, "wte", LL_SHAPE(VOCAB, WIDTH), init);
    ll_val h = ll_embedding(g, table, x);
    for (int i = 0; i < 2; i++) {
        char name[8];
        snprintf(name, sizeof name, "h%d", i);
        ll_graph_push(g, name);
        ll_val w = ll_param(g, "weight", LL_SHAPE(WIDTH, WIDTH), init);
        h = ll_add(g, h, ll_matmul(g, "btc,fc->btf", ll_layernorm_layer(g, "ln", h), w));
        ll_graph_pop(g);
    }
    h = ll_matmul(g, "btc,vc->btv", ll_layernorm_layer(g, "ln", h), table);
    ll_val loss = ll_cross_entropy(g, h, y);
    loss = ll_mean(g, square ? ll_square(g, loss) : loss);
    ll_graph_result(g, "loss", loss);
    return loss;
}

static ll_graph *step(bool square)
{
    ll_graph *g = ll_graph_new("step"), *simple;
    ll_minimize(g, network(g, square), &(ll_optim){.name = "adamw"});
    must(ll_simplify(g, &simple), "simplify");
    ll_graph_free(g);
    return simple;
}

/* Losses of some steps on machine ref. */
static void train(ll_graph *g, double *loss)
{
    ll_session *s;
    int32_t x[BATCH * TIME], y[BATCH * TIME];
    for (int i = 0; i < BATCH * TIME; i++) x[i] = i * 7 % VOCAB, y[i] = (i * 5 + 3) % VOCAB;
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    must(ll_session_set(s, "x", 0, x, sizeof x), "x");
    must(ll_session_set(s, "y", 0, y, sizeof y), "y");
    for (int i = 0; i < STEPS; i++) {
        must(ll_session_run(s, 0.05), "run");
        loss[i] = ll_session_result(s, "loss");
    }
    ll_session_close(s);
}

/* The joined graph trains as g does. */
static ll_graph *joined_trains(ll_graph *g, double tolerance)
{
    double want[STEPS], got[STEPS];
    ll_graph *made;
    must(ll_join(g, &made), "join");
    train(g, want);
    train(made, got);
    assert_true(want[STEPS - 1] < 0.9 * want[0]);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * want[i]))
            fail_msg("step %d: %.9g, joined %.9g", i, want[i], got[i]);
    return made;
}

static void counts(const ll_graph *g, int norms, int grads, int losses, int tables)
{
    assert_int_equal(count_op(g, "add_layernorm"), norms);
    assert_int_equal(count_op(g, "layernorm_back"), grads);
    assert_int_equal(count_op(g, "cross_entropy_back"), losses);
    assert_int_equal(count_op(g, "embedding_grad_onto"), tables);
}

static void test_all(void **state)
{
    (void)state;
    ll_graph *g = step(false), *made = joined_trains(g, 1e-6);
    counts(made, 2, 3, 1, 1);
    assert_int_equal(count_op(made, "layernorm"), 1);
    assert_int_equal(count_op(made, "layernorm_dx") + count_op(made, "layernorm_dw"), 0);
    assert_int_equal(count_op(made, "cross_entropy") + count_op(made, "cross_entropy_grad"), 0);
    assert_int_equal(count_op(made, "embedding_grad"), 0);
    int with_residual = 0;
    for (int i = 0; i < made->n_node; i++)
        with_residual +=
            !strcmp(made->nodes[i].op->name, "layernorm_back") && made->nodes[i].n_in == 6;
    assert_int_equal(with_residual, 2); /* past the last norm there is none */
    ll_graph_free(made);
    ll_graph_free(g);
}

static void test_bf16(void **state)
{
    (void)state;
    ll_graph *g = step(false), *narrow;
    must(ll_narrow(g, &narrow), "narrow");
    ll_graph *made = joined_trains(narrow, 0.02);
    counts(made, 2, 3, 1, 1);
    ll_graph_free(made);
    ll_graph_free(narrow);
    ll_graph_free(g);
}

static ll_graph *small_gpt(void)
{
    ll_graph *g = ll_graph_new("step"), *simple;
    const ll_build b = {.batch = BATCH,
                        .training = true,
                        .sizes = {{"layers", 2, ""},
                                  {"width", 10, ""},
                                  {"heads", 2, ""},
                                  {"seq", TIME, ""},
                                  {"vocab", VOCAB, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "adamw", .clip = 1});
    must(ll_simplify(g, &simple), "simplify");
    ll_graph_free(g);
    return simple;
}

/* Gradients of biases before residuals are sums of columns of what the norms' gradients make. */
static void test_gpt(void **state)
{
    (void)state;
    ll_graph *simple = small_gpt(), *made = joined_trains(simple, 1e-6);
    counts(made, 0, 1, 1, 1); /* chains take residuals in with their biases */
    assert_int_equal(count_op(made, "layernorm_back_sum"), 4);
    assert_int_equal(count_op(simple, "sum") - count_op(made, "sum"), 4);
    ll_graph_free(made);
    ll_graph_free(simple);
}

/* After products have taken biases in, norms take those of residuals over. */
static void after_epilogues(ll_graph *g, double tolerance)
{
    ll_graph *products;
    must(ll_epilogues(g, &products), "epilogues");
    ll_graph *made = joined_trains(products, tolerance);
    counts(made, 4, 1, 1, 1);
    for (int i = 0; i < made->n_node; i++)
        if (!strcmp(made->nodes[i].op->name, "add_layernorm"))
            assert_int_equal(made->nodes[i].n_in, 5);
    assert_int_equal(count_op(products, "product1") - count_op(made, "product1"), 4);
    assert_int_equal(count_op(made, "matmul") - count_op(products, "matmul"), 4);
    ll_graph_free(made);
    ll_graph_free(products);
}

static void test_products(void **state)
{
    (void)state;
    ll_graph *simple = small_gpt(), *narrow;
    must(ll_narrow(simple, &narrow), "narrow");
    after_epilogues(simple, 1e-6);
    after_epilogues(narrow, 0.02);
    ll_graph_free(narrow);
    ll_graph_free(simple);
}

/* The gradient of the loss that depends on the loss is not known where the loss is made. */
static void test_loss_first(void **state)
{
    (void)state;
    ll_graph *g = step(true), *made = joined_trains(g, 1e-6);
    counts(made, 2, 3, 0, 1);
    assert_int_equal(count_op(made, "cross_entropy_grad"), 1);
    ll_graph_free(made);
    ll_graph_free(g);
}

#define INPUTS                                                                                     \
    "  %1: f32[4,3] = batch \"x\"\n"                                                               \
    "  %2: f32[3] = param \"w\" init=zeros\n"

static void test_left_alone(void **state)
{
    (void)state;
    /* a bias that a chain takes in with the sum; a sum of two types */
    static const char bias[] =
        INPUTS "  %3: bf16[4,3] = batch \"z\"\n"
               "  %4: f32[4,3] = broadcast(%2) {spec=\"c->nc\", shape=[4,3]}\n"
               "  %5: f32[4,3] = add(%1, %4)\n"
               "  %6: f32[4,3], %7: f32[4], %8: f32[4] = layernorm(%5, %2, %2) {eps=1e-05}\n"
               "  %9: f32[4,3] = cast(%3) {dtype=f32}\n"
               "  %10: f32[4,3] = add(%6, %9)\n"
               "  %11: f32[4,3], %12: f32[4], %13: f32[4] = layernorm(%10, %2, %2) {eps=1e-05}\n"
               "  result \"r\" = %11\n";
    becomes(ll_join, bias, bias);
    becomes(ll_join, /* two tables' gradients in one sum: the second is added to the first */
            INPUTS "  %3: i32[4] = batch \"i\"\n"
                   "  %4: f32[5,3] = embedding_grad(%1, %3) {v=5, from=0, part=0}\n"
                   "  %5: f32[4,3] = exp(%1)\n"
                   "  %6: f32[5,3] = embedding_grad(%5, %3) {v=5, from=0, part=0}\n"
                   "  %7: f32[5,3] = add(%4, %6)\n"
                   "  result \"r\" = %7\n",
            INPUTS "  %3: i32[4] = batch \"i\"\n"
                   "  %4: f32[4,3] = exp(%1)\n"
                   "  %5: f32[5,3] = embedding_grad(%4, %3) {v=5, from=0, part=0}\n"
                   "  %6: f32[5,3] = embedding_grad_onto(%1, %3, %5) {v=5, from=0, part=0}\n"
                   "  result \"r\" = %6\n");
}

/* A sum of a norm's gradient and a product, which another norm reads, is the first norm's: the
 * product keeps its bias. */
static void test_whose_sum(void **state)
{
    (void)state;
    ll_graph *g = parse_body(
        INPUTS "  %3: f32[4] = batch \"mean\"\n"
               "  %4: f32[4] = batch \"rstd\"\n"
               "  %5: f32[3,3] = param \"m\" init=zeros\n"
               "  %6: f32[4,3] = product1(%1, %5, %2) {spec=\"nc,kc->nk\", out=f32, bias=1, act=0, "
               "scaled=0}\n"
               "  %7: f32[3], %8: f32[3] = layernorm_dw(%1, %1, %3, %4)\n"
               "  %9: f32[4,3] = layernorm_dx(%1, %1, %2, %3, %4)\n"
               "  %10: f32[4,3] = add(%9, %6)\n"
               "  %11: f32[4,3], %12: f32[4], %13: f32[4] = layernorm(%10, %2, %2) {eps=1e-05}\n"
               "  result \"r\" = %11\n  result \"s\" = %7\n");
    ll_graph *made;
    must(ll_join(g, &made), "join");
    counts(made, 0, 1, 0, 0);
    assert_int_equal(count_op(made, "product1"), 1);
    assert_int_equal(count_op(made, "add"), 0);
    ll_graph_free(made);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_gpt),        cmocka_unit_test(test_products),
        cmocka_unit_test(test_loss_first), cmocka_unit_test(test_left_alone),
        cmocka_unit_test(test_whose_sum),
    };
    return cmocka_run_group_tests_name("join", tests, NULL, NULL);
}
