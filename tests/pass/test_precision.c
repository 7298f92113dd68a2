/* test_precision.c: element types of whole graphs. */
#include "fuse/fuse.h"
#include "pass/passes.h"

#include "exec/session.h"

#include <math.h>

static void test_products(void **state)
{
    (void)state;
    becomes(ll_lower_precision, /* x and w are narrowed once each, whoever reads them */
            "  %1: f32[4,5] = batch \"x\"\n"
            "  %2: f32[3,5] = param \"w\" init=zeros\n"
            "  %3 \"h\": f32[4,3] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32} # a.matmul\n"
            "  %4: f32[3,5] = matmul(%3, %1) {spec=\"nk,nc->kc\", out=f32}\n"
            "  %5: f32[4,5] = matmul(%3, %2) {spec=\"nk,kc->nc\", out=f32}\n"
            "  %6: f32[4,5] = tanh(%5)\n"
            "  result \"r\" = %4\n  result \"s\" = %6\n",
            "  %1: f32[4,5] = batch \"x\"\n"
            "  %2: f32[3,5] = param \"w\" init=zeros\n"
            "  %3: bf16[4,5] = cast(%1) {dtype=bf16} # a.cast\n"
            "  %4: bf16[3,5] = cast(%2) {dtype=bf16} # a.cast\n"
            "  %5: bf16[4,3] = matmul(%3, %4) {spec=\"nc,kc->nk\", out=bf16} # a.matmul\n"
            "  %6 \"h\": f32[4,3] = cast(%5) {dtype=f32} # a.cast\n"
            "  %7: f32[3,5] = matmul(%5, %3) {spec=\"nk,nc->kc\", out=f32}\n"
            "  %8: f32[4,5] = matmul(%5, %4) {spec=\"nk,kc->nc\", out=f32}\n"
            "  %9: f32[4,5] = tanh(%8)\n"
            "  result \"r\" = %7\n  result \"s\" = %9\n");
    becomes(ll_lower_precision, /* rounded where it is made, and summed as rounded */
            "  %1: f32[4,5] = batch \"x\"\n"
            "  %2: f32[3,5] = param \"w\" init=zeros\n"
            "  %3: f32[4,5] = tanh(%1)\n"
            "  %4: f32[5] = sum(%3) {spec=\"nc->c\"}\n"
            "  %5: f32[4,3] = matmul(%3, %2) {spec=\"nc,kc->nk\", out=f32}\n"
            "  result \"r\" = %4\n  result \"s\" = %5\n",
            "  %1: f32[4,5] = batch \"x\"\n"
            "  %2: f32[3,5] = param \"w\" init=zeros\n"
            "  %3: f32[4,5] = tanh(%1)\n"
            "  %4: bf16[4,5] = cast(%3) {dtype=bf16}\n"
            "  %5: f32[5] = sum(%4) {spec=\"nc->c\"}\n"
            "  %6: bf16[3,5] = cast(%2) {dtype=bf16}\n"
            "  %7: f32[4,3] = matmul(%4, %6) {spec=\"nc,kc->nk\", out=f32}\n"
            "  result \"r\" = %5\n  result \"s\" = %7\n");
    becomes(
        ll_lower_precision, /* ranks round what they have put together, as one would */
        "  %1: f32[4,5] = batch \"x\"\n"
        "  %2: f32[3,5] = param \"w\" init=zeros\n"
        "  %3: f32[4,3] = matmul(%1, %2) {spec=\"nc,kc->nk\", out=f32}\n"
        "  %4: f32[4,3] = all_reduce(%3) {axes=1}\n"
        "  %5: f32[4,3] = tanh(%4)\n"
        "  %6: f32[3,5] = matmul(%5, %1) {spec=\"nk,nc->kc\", out=f32}\n"
        "  result \"r\" = %6\n",
        "  %1: f32[4,5] = batch \"x\"\n"
        "  %2: f32[3,5] = param \"w\" init=zeros\n"
        "  %3: bf16[4,5] = cast(%1) {dtype=bf16}\n"
        "  %4: bf16[3,5] = cast(%2) {dtype=bf16}\n"
        "  %5: f32[4,3] = matmul(%3, %4) {spec=\"nc,kc->nk\", out=f32}\n"
        "  %6: f32[4,3] = all_reduce(%5) {axes=1, max=0, dim=0, to_dim=0, extent=0, from=0, to=0, "
        "step=0, serial=0, most=0, cut=0}\n"
        "  %7: bf16[4,3] = cast(%6) {dtype=bf16}\n"
        "  %8: f32[4,3] = cast(%7) {dtype=f32}\n"
        "  %9: f32[4,3] = tanh(%8)\n"
        "  %10: bf16[4,3] = cast(%9) {dtype=bf16}\n"
        "  %11: f32[3,5] = matmul(%10, %3) {spec=\"nk,nc->kc\", out=f32}\n"
        "  result \"r\" = %11\n");
}

/* Parameters, moments, results and everything but products' operands, and results of those that
 * chains and sums alone read, stay f32; no cast is made twice. */
static void test_training_step(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("step"), *narrow;
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 6, 6, 3));
    ll_val h = ll_relu(g, ll_conv_layer(g, "c", x, 4, 3, &(ll_conv){.pad = {1, 1}}, true));
    h = ll_linear(g, "f", ll_reshape(g, h, LL_SHAPE(2, -1)), 5, true);
    ll_minimize(g, ll_mean(g, ll_square(g, h)), &(ll_optim){.name = "adam"});
    must(ll_lower_precision(g, &narrow), "narrow");
    must(ll_verify(narrow), "verify");
    bool *cast = LL_NEW_ARRAY(narrow->arena, bool, narrow->n_value);
    for (int i = 0; i < narrow->n_node; i++) {
        const ll_node *n = &narrow->nodes[i];
        bool product = !strcmp(n->op->name, "matmul") || !strncmp(n->op->name, "conv2d", 6);
        bool is_cast = !strcmp(n->op->name, "cast");
        bool any = is_cast || !strcmp(n->op->name, "sum");
        for (int k = 0; k < n->n_in && !any; k++)
            assert_int_equal(ll_graph_dtype(narrow, n->in[k]), product ? LL_BF16 : LL_F32);
        if (!is_cast && strcmp(n->op->name, "matmul") != 0)
            assert_int_equal(ll_graph_dtype(narrow, n->out[0]), LL_F32);
        if (is_cast) assert_false(cast[n->in[0].id]);
        if (is_cast) cast[n->in[0].id] = true;
    }
    assert_true(count_op(narrow, "matmul") >= 3 && count_op(narrow, "conv2d_dw") == 1);
    for (int i = 0; i < narrow->n_result; i++)
        assert_int_equal(ll_graph_dtype(narrow, narrow->results[i].value), LL_F32);
    for (int i = 0; i < narrow->n_update; i++)
        assert_int_equal(ll_graph_dtype(narrow, narrow->updates[i].next), LL_F32);
    ll_graph_free(narrow);
    ll_graph_free(g);
}

static ll_graph *small_gpt(void)
{
    ll_graph *g = ll_graph_new("step");
    const ll_build b = {.batch = 3,
                        .training = true,
                        .sizes = {{"layers", 2, ""},
                                  {"width", 16, ""},
                                  {"heads", 2, ""},
                                  {"seq", 8, ""},
                                  {"vocab", 19, ""},
                                  {"dropout", 0, ""}}};
    ll_minimize(g, ll_model_find("gpt")->declare(g, &b), &(ll_optim){.name = "adamw", .clip = 1});
    return g;
}
/* Losses of some steps on machine ref, all on one batch. */
static void train(ll_graph *g, int n, double *loss)
{
    ll_session *s;
    int32_t x[24], y[24];
    for (int i = 0; i < 24; i++) x[i] = i * 7 % 19, y[i] = (i * 5 + 3) % 19;
    must(ll_session_open(g, &(ll_session_opts){.machine = "ref", .seed = 3}, &s), "open");
    must(ll_session_set(s, "x", 0, x, sizeof x), "x");
    must(ll_session_set(s, "y", 0, y, sizeof y), "y");
    for (int i = 0; i < n; i++) {
        must(ll_session_run(s, 0.01), "run");
        loss[i] = ll_session_result(s, "loss");
    }
    ll_session_close(s);
}

/* All that varies with the batch is bf16; what is summed over it, kept or handed out is f32. */
static void check_types(const ll_graph *g)
{
    const bool *varies = ll_varying(g, g->arena);
    int narrow = 0;
    for (int i = 0; i < g->n_node; i++) {
        const ll_node *n = &g->nodes[i];
        for (int o = 0; o < n->n_out; o++) {
            const ll_type *t = &ll_value_of(g, n->out[o])->type;
            bool weight = !strcmp(n->op->name, "matmul") && t->shape.d[0] != 3;
            bool wide = n->op->wide_out >> o & 1 || weight || t->shape.n == 0;
            bool cast = !strcmp(n->op->name, "cast");
            bool sum = !strcmp(n->op->name, "add") && t->shape.d[0] == 19; /* of gradients of wte */
            bool want = cast || (varies[n->out[o].id] && !wide && !sum);
            if (!strcmp(n->op->name, "matmul") && t->shape.d[0] == 3 && t->shape.n == 4) continue;
            if ((t->dtype == LL_BF16) != want)
                fail_msg("%s is %s", n->name, ll_dtype_name(t->dtype));
            narrow += want;
        }
    }
    assert_true(narrow > 60);
}

static void test_narrow(void **state)
{
    (void)state;
    enum { STEPS = 8 };
    ll_graph *g = small_gpt(), *simple, *narrow, *fused;
    double want[STEPS], got[STEPS], joined[STEPS];
    must(ll_simplify(g, &simple), "simplify");
    must(ll_narrow(simple, &narrow), "narrow");
    must(ll_simplify(narrow, &fused), "simplify");
    must(ll_fuse(&fused, &ll_target_cpu, LL_PRECISION_f32, 0, false, NULL), "fuse");
    check_types(narrow);
    train(simple, STEPS, want);
    train(narrow, STEPS, got);
    train(fused, STEPS, joined);
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(got[i] - want[i]) < 0.01 * want[i]);
        assert_true(fabs(joined[i] - want[i]) < 0.01 * want[i]);
    }
    assert_true(want[STEPS - 1] < 0.9 * want[0]);
    assert_true(got[0] != want[0]);
    ll_graph_free(fused);
    ll_graph_free(narrow);
    ll_graph_free(simple);
    ll_graph_free(g);
}

/* Products of other types are left alone, and a second time changes nothing. */
static void test_others(void **state)
{
    (void)state;
    static const char wide[] = "  %1: f64[4,5] = batch \"x\"\n"
                               "  %2: bf16[4,5] = batch \"y\"\n"
                               "  %3: f64[4,4] = matmul(%1, %1) {spec=\"nc,kc->nk\", out=f64}\n"
                               "  %4: f32[4,4] = matmul(%2, %2) {spec=\"nc,kc->nk\", out=f32}\n"
                               "  result \"r\" = %3\n  result \"s\" = %4\n";
    becomes(ll_lower_precision, wide, wide);
}

static ll_err to_f64(const ll_graph *g, ll_graph **out)
{
    return ll_retype(g, LL_F64, false, out);
}

static void test_retype(void **state)
{
    (void)state;
    becomes(to_f64, /* attributes that name f32 follow; other types stay */
            "  %1: f32[4] = batch \"x\"\n"
            "  %2: i32[4] = batch \"i\"\n"
            "  %3: f32[4] = cast(%2) {dtype=f32}\n"
            "  %4: f32[] = fill() {dtype=f32, shape=[], value=2}\n"
            "  %5: f32[4] = broadcast(%4) {spec=\"->a\", shape=[4]}\n"
            "  %6: f32[4] = mul(%3, %5)\n"
            "  %7: f32[] = matmul(%6, %1) {spec=\"a,a->\", out=f32}\n"
            "  %8: f32[4] = fused1(%6, %7) {chain=(shape=[4], in=[4, 1], r2=mul(r0,r1), "
            "out=[r2:f32])}\n"
            "  result \"r\" = %8\n",
            "  %1: f64[4] = batch \"x\"\n"
            "  %2: i32[4] = batch \"i\"\n"
            "  %3: f64[4] = cast(%2) {dtype=f64}\n"
            "  %4: f64[] = fill() {dtype=f64, shape=[], value=2}\n"
            "  %5: f64[4] = broadcast(%4) {spec=\"->a\", shape=[4]}\n"
            "  %6: f64[4] = mul(%3, %5)\n"
            "  %7: f64[] = matmul(%6, %1) {spec=\"a,a->\", out=f64}\n"
            "  %8: f64[4] = fused1(%6, %7) {chain=(shape=[4], in=[4, 1], r2=mul(r0,r1), "
            "out=[r2:f64])}\n"
            "  result \"r\" = %8\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_training_step),
        cmocka_unit_test(test_narrow),   cmocka_unit_test(test_others),
        cmocka_unit_test(test_retype),
    };
    return cmocka_run_group_tests_name("precision", tests, NULL, NULL);
}
