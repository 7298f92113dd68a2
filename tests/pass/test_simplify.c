/* test_simplify.c: what simplification makes of small graphs, as text. */
#include "pass/passes.h"

#define X "  %1: f32[2,3] = batch \"x\"\n"
#define Y "  %2: f32[2,3] = batch \"y\"\n"

static void test_dead(void **state)
{
    (void)state;
    becomes(ll_simplify,
            X "  %2: f32[2,3] = exp(%1)\n"
              "  %3: f32[2,3] = sin(%2)\n"
              "  %4: f32[2,3] = cos(%1)\n"
              "  result \"r\" = %4\n",
            X "  %2: f32[2,3] = cos(%1)\n"
              "  result \"r\" = %2\n");
    /* inputs stay: they are the graph's interface */
    becomes(ll_simplify, X Y "  result \"r\" = %1\n", X Y "  result \"r\" = %1\n");
    becomes(ll_simplify, "", "");
    /* what a rewrite leaves behind goes too */
    becomes(ll_simplify,
            X "  %2: f32[] = fill() {dtype=f32, shape=[], value=2}\n"
              "  %3: f32[2,3] = broadcast(%2) {spec=\"->ab\", shape=[2,3]}\n"
              "  %4: f32[2,3] = mul(%1, %3)\n"
              "  result \"r\" = %4\n",
            X "  %2: f32[2,3] = scale(%1) {value=2}\n"
              "  result \"r\" = %2\n");
}

static void test_equal(void **state)
{
    (void)state;
    becomes(ll_simplify,
            X Y "  %3: f32[2,3] = add(%1, %2)\n"
                "  %4: f32[2,3] = add(%1, %2)\n"
                "  %5: f32[2,3] = tanh(%3)\n"
                "  %6: f32[2,3] = tanh(%4)\n"
                "  %7: f32[2,3] = mul(%5, %6)\n"
                "  result \"r\" = %7\n",
            X Y "  %3: f32[2,3] = add(%1, %2)\n"
                "  %4: f32[2,3] = tanh(%3)\n"
                "  %5: f32[2,3] = mul(%4, %4)\n"
                "  result \"r\" = %5\n");
    /* other attributes or another order of operands: another node */
    static const char apart[] =
        X Y "  %3: f32[2,3] = sub(%1, %2)\n"
            "  %4: f32[2,3] = sub(%2, %1)\n"
            "  %5: f32[2] = sum(%3) {spec=\"ab->a\"}\n"
            "  %6: f32[3] = sum(%3) {spec=\"ab->b\"}\n"
            "  result \"r\" = %4\n  result \"s\" = %5\n  result \"t\" = %6\n";
    becomes(ll_simplify, apart, apart);
    /* nodes of several results, and random ones, whose stream tells them apart */
    becomes(ll_simplify,
            "  %1: f32[2,3] = batch \"x\"\n  %2: i32[2] = batch \"y\"\n"
            "  %3: f32[2], %4: f32[2] = cross_entropy(%1, %2)\n"
            "  %5: f32[2], %6: f32[2] = cross_entropy(%1, %2)\n"
            "  %7: f32[2] = dropout(%3) {p=0.5, stream=7, whole=[2], at=[0,0,0,0,0,0]}\n"
            "  %8: f32[2] = dropout(%5) {p=0.5, stream=7, whole=[2], at=[0,0,0,0,0,0]}\n"
            "  %9: f32[2] = dropout(%5) {p=0.5, stream=8, whole=[2], at=[0,0,0,0,0,0]}\n"
            "  result \"a\" = %7\n  result \"b\" = %8\n  result \"c\" = %9\n  result \"d\" = %6\n",
            "  %1: f32[2,3] = batch \"x\"\n  %2: i32[2] = batch \"y\"\n"
            "  %3: f32[2], %4: f32[2] = cross_entropy(%1, %2)\n"
            "  %5: f32[2] = dropout(%3) {p=0.5, stream=7, whole=[2], at=[0,0,0,0,0,0]}\n"
            "  %6: f32[2] = dropout(%3) {p=0.5, stream=8, whole=[2], at=[0,0,0,0,0,0]}\n"
            "  result \"a\" = %5\n  result \"b\" = %5\n  result \"c\" = %6\n  result \"d\" = %4\n");
}

static void test_constants(void **state)
{
    (void)state;
    becomes(ll_simplify, /* sqrt(3 + 3 * 2) summed over 2 of 4 x 2, moved about */
            "  %1: f32[4,2] = fill() {dtype=f32, shape=[4,2], value=3}\n"
            "  %2: f32[4,2] = scale(%1) {value=2}\n"
            "  %3: f32[4,2] = add(%1, %2)\n"
            "  %4: f32[4,2] = sqrt(%3)\n"
            "  %5: f32[4] = sum(%4) {spec=\"ab->a\"}\n"
            "  %6: f32[2,2] = reshape(%5) {shape=[2,2]}\n"
            "  %7: f32[2,2] = transpose(%6) {spec=\"ab->ba\"}\n"
            "  %8: f32[1,2] = slice(%7) {dim=0, from=1, to=2}\n"
            "  %9: f32[3,1,2] = broadcast(%8) {spec=\"ab->xab\", shape=[3,1,2]}\n"
            "  %10: f32[3,1,2] = accum(%9)\n"
            "  result \"r\" = %10\n",
            "  %1: f32[3,1,2] = fill() {dtype=f32, shape=[3,1,2], value=6}\n"
            "  result \"r\" = %1\n");
    /* as their element types hold them: 1.00390625 is halfway between two of bf16 */
    becomes(ll_simplify,
            "  %1: bf16[] = fill() {dtype=bf16, shape=[], value=1.00390625}\n"
            "  %2: f32[] = cast(%1) {dtype=f32}\n"
            "  %3: i32[] = fill() {dtype=i32, shape=[], value=2.75}\n"
            "  %4: f32[] = cast(%3) {dtype=f32}\n"
            "  result \"r\" = %2\n  result \"s\" = %4\n",
            "  %1: f32[] = fill() {dtype=f32, shape=[], value=1}\n"
            "  %2: f32[] = fill() {dtype=f32, shape=[], value=3}\n"
            "  result \"r\" = %1\n  result \"s\" = %2\n");
    becomes(ll_simplify, /* a sum over nothing */
            "  %1: f32[0,2] = fill() {dtype=f32, shape=[0,2], value=3}\n"
            "  %2: f32[2] = sum(%1) {spec=\"ab->b\"}\n"
            "  result \"r\" = %2\n",
            "  %1: f32[2] = fill() {dtype=f32, shape=[2], value=0}\n"
            "  result \"r\" = %1\n");
}

static void number(const char *op, bool left, const char *value, const char *out)
{
    char in[512], want[512];
    snprintf(in, sizeof in,
             "%s  %%2: f32[2,3] = fill() {dtype=f32, shape=[2,3], value=%s}\n"
             "  %%3: f32[2,3] = %s(%s)\n  result \"r\" = %%3\n",
             X, value, op, left ? "%2, %1" : "%1, %2");
    snprintf(want, sizeof want, "%s", in);
    if (out) snprintf(want, sizeof want, "%s  %%2: f32[2,3] = %s\n  result \"r\" = %%2\n", X, out);
    becomes(ll_simplify, in, want);
}

static void test_numbers(void **state)
{
    (void)state;
    number("mul", false, "2.5", "scale(%1) {value=2.5}");
    number("mul", true, "2.5", "scale(%1) {value=2.5}");
    number("add", true, "-1", "shift(%1) {value=-1}");
    number("sub", false, "3", "shift(%1) {value=-3}");
    number("div", false, "4", "scale(%1) {value=0.25}");
    number("sub", true, "3", NULL);
    number("div", true, "4", NULL);
    number("div", false, "0", NULL);
    number("max", false, "4", NULL);
}

static void identity(const char *op)
{
    char in[256];
    snprintf(in, sizeof in, "%s  %%2: f32[2,3] = %s\n  result \"r\" = %%2\n", X, op);
    becomes(ll_simplify, in, X "  result \"r\" = %1\n");
}

static void test_identities(void **state)
{
    (void)state;
    identity("scale(%1) {value=1}");
    identity("shift(%1) {value=0}");
    identity("cast(%1) {dtype=f32}");
    identity("reshape(%1) {shape=[2,3]}");
    identity("transpose(%1) {spec=\"ab->ab\"}");
    identity("broadcast(%1) {spec=\"ab->ab\", shape=[2,3]}");
    identity("sum(%1) {spec=\"ab->ab\"}");
    static const char kept[] = X "  %2: f32[2,3] = scale(%1) {value=-1}\n"
                                 "  %3: f32[3,2] = transpose(%2) {spec=\"ab->ba\"}\n"
                                 "  %4: bf16[3,2] = cast(%3) {dtype=bf16}\n"
                                 "  result \"r\" = %4\n";
    becomes(ll_simplify, kept, kept);
    /* the name a value had is kept where there is none */
    becomes(ll_simplify,
            X "  %2: f32[2,3] = exp(%1)\n  %3 \"h\": f32[2,3] = shift(%2) {value=0}\n"
              "  result \"r\" = %3\n",
            X "  %2 \"h\": f32[2,3] = exp(%1)\n  result \"r\" = %2\n");
}

static void test_reshapes(void **state)
{
    (void)state;
    becomes(ll_simplify, /* moves of dimensions of 1 are reshapes; of several, one is left */
            "  %1: f32[2,1,3] = batch \"x\"\n"
            "  %2: f32[2,3] = sum(%1) {spec=\"abc->ac\"}\n"
            "  %3: f32[2,3,1] = broadcast(%2) {spec=\"ac->acd\", shape=[2,3,1]}\n"
            "  %4: f32[6] = reshape(%3) {shape=[6]}\n"
            "  %5: f32[6] = exp(%4)\n"
            "  %6: f32[2,3] = amax(%1) {spec=\"abc->ac\"}\n"
            "  result \"r\" = %5\n  result \"s\" = %6\n",
            "  %1: f32[2,1,3] = batch \"x\"\n"
            "  %2: f32[2,3] = reshape(%1) {shape=[2,3]}\n"
            "  %3: f32[6] = reshape(%1) {shape=[6]}\n"
            "  %4: f32[6] = exp(%3)\n"
            "  result \"r\" = %4\n  result \"s\" = %2\n");
    becomes(ll_simplify,
            X "  %2: f32[6] = reshape(%1) {shape=[6]}\n"
              "  %3: f32[2,3] = reshape(%2) {shape=[2,3]}\n"
              "  result \"r\" = %3\n",
            X "  result \"r\" = %1\n");
}

static void test_transposes(void **state)
{
    (void)state;
    static const char inputs[] = "  %1: f32[5,2,3] = batch \"x\"\n"
                                 "  %2: f32[3,7] = batch \"w\"\n";
    char in[1024], out[1024];
    snprintf(in, sizeof in,
             "%s  %%3: f32[2,3,5] = transpose(%%1) {spec=\"abc->bca\"}\n"
             "  %%4: f32[7,3] = transpose(%%2) {spec=\"ab->ba\"}\n"
             "  %%5: f32[2,5,7] = matmul(%%3, %%4) {spec=\"tcb,nc->tbn\", out=f32}\n"
             "  %%6: f32[7,2,5] = transpose(%%5) {spec=\"tbn->ntb\"}\n"
             "  result \"r\" = %%6\n",
             inputs);
    snprintf(out, sizeof out,
             "%s  %%3: f32[7,2,5] = matmul(%%1, %%2) {spec=\"btc,cn->ntb\", out=f32}\n"
             "  result \"r\" = %%3\n",
             inputs);
    becomes(ll_simplify, in, out);
    /* a product that others read too is made once, and transposed */
    snprintf(in, sizeof in,
             "%s  %%3: f32[5,2,7] = matmul(%%1, %%2) {spec=\"abc,cn->abn\", out=f32}\n"
             "  %%4: f32[7,2,5] = transpose(%%3) {spec=\"abn->nba\"}\n"
             "  result \"r\" = %%3\n  result \"s\" = %%4\n",
             inputs);
    becomes(ll_simplify, in, in);
    /* readers that turn out to be one, or not needed, count as one */
    snprintf(in, sizeof in,
             "%s  %%3: f32[5,2,7] = matmul(%%1, %%2) {spec=\"abc,cn->abn\", out=f32}\n"
             "  %%4: f32[7,2,5] = transpose(%%3) {spec=\"abn->nba\"}\n"
             "  %%5: f32[7,2,5] = transpose(%%3) {spec=\"abn->nba\"}\n"
             "  %%6: f32[5,2,7] = exp(%%3)\n"
             "  %%7: f32[7,2,5] = add(%%4, %%5)\n"
             "  result \"r\" = %%7\n",
             inputs);
    snprintf(out, sizeof out,
             "%s  %%3: f32[7,2,5] = matmul(%%1, %%2) {spec=\"abc,cn->nba\", out=f32}\n"
             "  %%4: f32[7,2,5] = add(%%3, %%3)\n"
             "  result \"r\" = %%4\n",
             inputs);
    becomes(ll_simplify, in, out);
    /* of two transposes, one; of there and back, none */
    snprintf(in, sizeof in,
             "%s  %%3: f32[2,3,5] = transpose(%%1) {spec=\"abc->bca\"}\n"
             "  %%4: f32[5,3,2] = transpose(%%3) {spec=\"xyz->zyx\"}\n"
             "  %%5: f32[5,2,3] = transpose(%%3) {spec=\"xyz->zxy\"}\n"
             "  result \"r\" = %%4\n  result \"s\" = %%5\n",
             inputs);
    snprintf(out, sizeof out,
             "%s  %%3: f32[5,3,2] = transpose(%%1) {spec=\"abc->acb\"}\n"
             "  result \"r\" = %%3\n  result \"s\" = %%1\n",
             inputs);
    becomes(ll_simplify, in, out);
}

static void test_mistakes(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("bad"), *out;
    ll_graph_reject(g, "a mistake of %d", 3);
    assert_int_equal(ll_simplify(g, &out), LL_E_GRAPH);
    assert_int_equal(ll_lower_precision(g, &out), LL_E_GRAPH);
    assert_int_equal(ll_retype(g, LL_F64, false, &out), LL_E_GRAPH);
    assert_int_equal(ll_sweep(g, &out), LL_E_GRAPH);
    assert_non_null(strstr(ll_error_text(), "a mistake of 3"));
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dead),       cmocka_unit_test(test_equal),
        cmocka_unit_test(test_constants),  cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_identities), cmocka_unit_test(test_reshapes),
        cmocka_unit_test(test_transposes), cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests_name("simplify", tests, NULL, NULL);
}
