/* test_epilogue.c: which nodes a product takes in, as text; and a model trained both ways. */
#include "pass/passes.h"

#include "exec/session.h"

#include <math.h>

#define OPERANDS                                                                                   \
    "  %1: bf16[6,5] = batch \"x\"\n"                                                              \
    "  %2: bf16[8,5] = batch \"w\"\n"                                                              \
    "  %3: f32[8] = param \"b\" init=zeros\n"
#define SUM                                                                                        \
    OPERANDS "  %4: bf16[6,8] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=bf16}\n"                   \
             "  %5: f32[6,8] = broadcast(%3) {spec=\"k->nk\", shape=[6,8]}\n"                      \
             "  %6: bf16[6,8] = add(%4, %5)\n"
#define SPREAD                                                                                     \
    "  %4: f32[6,8] = broadcast(%3) {spec=\"k->nk\", shape=[6,8]}\n"                               \
    "  %5: bf16[8] = cast(%3) {dtype=bf16}\n"

static void test_bias(void **state)
{
    (void)state;
    becomes(ll_epilogues, SUM "  %7: f32[8] = sum(%6) {spec=\"nk->k\"}\n  result \"r\" = %7\n",
            OPERANDS SPREAD "  %6: bf16[6,8] = product1(%1, %2, %5) {spec=\"nc,kc->nk\", out=bf16, "
                            "bias=1, act=0, scaled=0}\n"
                            "  %7: f32[8] = sum(%6) {spec=\"nk->k\"}\n  result \"r\" = %7\n");
    static const char chain[] = SUM "  %7: bf16[6,8] = tanh(%6)\n  result \"r\" = %7\n";
    becomes(ll_epilogues, chain, chain); /* a chain takes the bias in */
    static const char shared[] = SUM "  result \"r\" = %6\n  result \"s\" = %4\n";
    becomes(ll_epilogues, shared, shared); /* somebody else reads the product */
    static const char rows[] = "  %1: f32[6,5] = batch \"x\"\n"
                               "  %2: f32[6,5] = batch \"w\"\n"
                               "  %3: f32[6] = param \"b\" init=zeros\n"
                               "  %4: f32[6,6] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
                               "  %5: f32[6,6] = broadcast(%3) {spec=\"n->nk\", shape=[6,6]}\n"
                               "  %6: f32[6,6] = add(%4, %5)\n  result \"r\" = %6\n";
    becomes(ll_epilogues, rows, rows); /* it runs along rows */
}

static void test_activations(void **state)
{
    (void)state;
    becomes(ll_epilogues, SUM "  %7: bf16[6,8] = relu(%6)\n  result \"r\" = %7\n",
            OPERANDS SPREAD "  %6: bf16[6,8] = product1(%1, %2, %5) {spec=\"nc,kc->nk\", out=bf16, "
                            "bias=1, act=1, scaled=0}\n  result \"r\" = %6\n");
    becomes(ll_epilogues, SUM "  %7: bf16[6,8] = gelu(%6)\n  result \"r\" = %7\n",
            OPERANDS SPREAD "  %6: bf16[6,8] = product1(%1, %2, %5) {spec=\"nc,kc->nk\", out=bf16, "
                            "bias=1, act=2, scaled=0}\n  result \"r\" = %6\n");
    becomes(ll_epilogues, /* the sum is wanted too */
            SUM "  %7: bf16[6,8] = gelu(%6)\n  %8: bf16[6,8] = dgelu(%6)\n"
                "  result \"r\" = %7\n  result \"s\" = %8\n",
            OPERANDS SPREAD "  %6: bf16[6,8], %7: bf16[6,8] = product2(%1, %2, %5) "
                            "{spec=\"nc,kc->nk\", out=bf16, bias=1, act=2, scaled=0}\n"
                            "  %8: bf16[6,8] = dgelu(%7)\n"
                            "  result \"r\" = %6\n  result \"s\" = %8\n");
    becomes(ll_epilogues,
            "  %1: bf16[6,5] = batch \"x\"\n"
            "  %2: bf16[5,8] = batch \"w\"\n"
            "  %3: bf16[6,8] = batch \"p\"\n"
            "  %4: bf16[6,8] = matmul(%1, %2) {spec=\"nc,ck->nk\", out=bf16}\n"
            "  %5: bf16[6,8] = dgelu(%3)\n"
            "  %6: bf16[6,8] = mul(%4, %5)\n  result \"r\" = %6\n",
            "  %1: bf16[6,5] = batch \"x\"\n"
            "  %2: bf16[5,8] = batch \"w\"\n"
            "  %3: bf16[6,8] = batch \"p\"\n"
            "  %4: bf16[6,8] = product1(%1, %2, %3) {spec=\"nc,ck->nk\", out=bf16, bias=0, "
            "act=3, scaled=0}\n  result \"r\" = %4\n");
}

/* ---- gelu's slope ---- */

#define KEPT                                                                                       \
    "  %1: bf16[6,5] = batch \"x\"\n"                                                              \
    "  %2: bf16[8,5] = batch \"w\"\n"                                                              \
    "  %3: bf16[8] = batch \"b\"\n"                                                                \
    "  %4: bf16[6,8], %5: bf16[6,8] = product2(%1, %2, %3) {spec=\"nc,kc->nk\", out=bf16, "        \
    "bias=1, act="
#define BACK                                                                                       \
    "  %6: bf16[6,5] = batch \"d\"\n"                                                              \
    "  %7: bf16[5,8] = batch \"v\"\n"

static void test_slopes(void **state)
{
    (void)state;
    becomes(ll_slopes,
            KEPT "2, scaled=0}\n" BACK
                 "  %8: bf16[6,8] = product1(%6, %7, %5) {spec=\"nc,ck->nk\", out=bf16, bias=0, "
                 "act=3, scaled=0}\n"
                 "  %9: f32[8] = sum(%8) {spec=\"nk->k\"}\n"
                 "  result \"y\" = %4\n  result \"d\" = %8\n  result \"s\" = %9\n",
            "  %1: bf16[6,5] = batch \"x\"\n"
            "  %2: bf16[8,5] = batch \"w\"\n"
            "  %3: bf16[8] = batch \"b\"\n"
            "  %4: bf16[6,5] = batch \"d\"\n"
            "  %5: bf16[5,8] = batch \"v\"\n"
            "  %6: bf16[6,8], %7: bf16[6,8] = product2(%1, %2, %3) {spec=\"nc,kc->nk\", out=bf16, "
            "bias=1, act=4, scaled=0}\n"
            "  %8: bf16[6,8], %9: f32[8] = product2(%4, %5, %7) {spec=\"nc,ck->nk\", out=bf16, "
            "bias=0, act=5, scaled=0}\n"
            "  result \"y\" = %6\n  result \"d\" = %8\n  result \"s\" = %9\n");
    static const char shown[] =
        "  %1: bf16[6,5] = batch \"x\"\n"
        "  %2: bf16[8,5] = batch \"w\"\n"
        "  %3: bf16[6,5] = batch \"d\"\n"
        "  %4: bf16[5,8] = batch \"v\"\n"
        "  %5: bf16[6,8], %6: bf16[6,8] = product2(%1, %2) {spec=\"nc,kc->nk\", out=bf16, bias=0, "
        "act=2, scaled=0}\n"
        "  %7: bf16[6,8] = product1(%3, %4, %6) {spec=\"nc,ck->nk\", out=bf16, bias=0, act=3, "
        "scaled=0}\n"
        "  %8: f32[6] = sum(%7) {spec=\"nk->n\"}\n"
        "  result \"y\" = %5\n  result \"p\" = %6\n  result \"s\" = %8\n";
    becomes(ll_slopes, shown, shown); /* somebody else reads the sum; these are no columns */
}

/* ---- a model ---- */

static ll_graph *small_gpt(void)
{
    ll_graph *g = ll_graph_new("step");
    const ll_build b = {.batch = 3,
                        .training = true,
                        .sizes = {{"layers", 2, ""},
                                  {"width", 12, ""},
                                  {"heads", 2, ""},
                                  {"seq", 5, ""},
                                  {"vocab", 19, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "sgd"});
    return g;
}

static void train(ll_graph *g, int n, double *loss)
{
    ll_session *s;
    int32_t x[15], y[15];
    for (int i = 0; i < 15; i++) x[i] = i * 7 % 19, y[i] = (i * 5 + 3) % 19;
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    must(ll_session_set(s, "x", 0, x, sizeof x), "x");
    must(ll_session_set(s, "y", 0, y, sizeof y), "y");
    for (int i = 0; i < n; i++) {
        must(ll_session_run(s, 0.2), "run");
        loss[i] = ll_session_result(s, "loss");
    }
    ll_session_close(s);
}

static void test_model(void **state)
{
    (void)state;
    enum { STEPS = 6 };
    ll_graph *g = small_gpt(), *simple, *fused;
    double want[STEPS], got[STEPS];
    must(ll_simplify(g, &simple), "simplify");
    must(ll_epilogues(simple, &fused), "epilogues");
    assert_int_equal(count_op(fused, "product2"), 2); /* of each layer: fc; three more and dgelu */
    assert_int_equal(count_op(fused, "product1"), 8);
    assert_int_equal(count_op(fused, "gelu") + count_op(fused, "dgelu"), 0);
    train(simple, STEPS, want);
    train(fused, STEPS, got);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(got[i] - want[i]) < 1e-5 * want[i]);
    assert_true(want[STEPS - 1] < 0.95 * want[0]);
    ll_graph_free(fused);
    ll_graph_free(simple);
    ll_graph_free(g);
}

static void test_model_slopes(void **state)
{
    (void)state;
    enum { STEPS = 4 };
    ll_graph *g = small_gpt(), *narrow, *fused, *sloped;
    double want[STEPS], got[STEPS];
    must(ll_narrow(g, &narrow), "narrow");
    must(ll_epilogues(narrow, &fused), "epilogues");
    must(ll_slopes(fused, &sloped), "slopes");
    assert_int_equal(count_op(sloped, "product2"), 4); /* of each layer: fc, and its gradient */
    assert_int_equal(count_op(fused, "sum") - count_op(sloped, "sum"), 2);
    train(fused, STEPS, want);
    train(sloped, STEPS, got);
    for (int i = 0; i < STEPS; i++) assert_true(fabs(got[i] - want[i]) < 2e-3 * want[i]);
    assert_true(want[STEPS - 1] < want[0]);
    ll_graph_free(sloped);
    ll_graph_free(fused);
    ll_graph_free(narrow);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bias),
                                       cmocka_unit_test(test_activations),
                                       cmocka_unit_test(test_model), cmocka_unit_test(test_slopes),
                                       cmocka_unit_test(test_model_slopes)};
    return cmocka_run_group_tests_name("epilogue", tests, NULL, NULL);
}
