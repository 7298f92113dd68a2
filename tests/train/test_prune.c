/* Pruning: which numbers go, and that what is zero stays so while all else is trained. */
#include "infer/small_lm.h"
#include "fuse/fuse.h"
#include "kern/attr.h"
#include "train/prune.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { B = 2, T = 8, V = 19, MOST = 4096 };

static void pruned(const char *rule, int64_t rows, int64_t cols, const float *w, const float *want)
{
    float f[32];
    double d[32];
    ll_prune p;
    no_error(ll_prune_parse(rule, &p));
    for (int i = 0; i < rows * cols; i++) d[i] = f[i] = w[i];
    ll_prune_numbers(&p, LL_F32, f, rows, cols);
    ll_prune_numbers(&p, LL_F64, d, rows, cols);
    for (int i = 0; i < rows * cols; i++)
        if (f[i] != want[i] || d[i] != (double)want[i])
            fail_msg("%s: [%d] is %g and %g, want %g", rule, i, (double)f[i], d[i],
                     (double)want[i]);
}

static void rules(void **state)
{
    (void)state;
    pruned("2:4", 1, 8, (float[]){1, -3, 2, 0.5f, 4, 4, -4, 4}, (float[]){0, -3, 2, 0, 4, 4, 0, 0});
    /* zeros that are there count; more of them than must go stay */
    pruned("2:4", 1, 8, (float[]){0, 5, 0, 1, 0, 0, -0.f, 7}, (float[]){0, 5, 0, 1, 0, 0, 0, 7});
    /* 6 in fours, twice: groups end with the row, and the last one keeps 2 of 2 */
    pruned("2:4", 2, 6, (float[]){1, 2, 3, 4, 5, 6, 9, 8, 7, 6, 1, 2},
           (float[]){0, 0, 3, 4, 5, 6, 9, 8, 0, 0, 1, 2});
    pruned("1:3", 1, 5, (float[]){1, -2, 1, 3, 4}, (float[]){0, -2, 0, 0, 4});
    /* over all rows; of equals the last go */
    pruned("0.5", 2, 3, (float[]){1, 9, -2, 8, -0.1f, 7}, (float[]){0, 9, 0, 8, 0, 7});
    pruned("0.5", 1, 6, (float[]){-3, 3, 3, -3, 3, 1}, (float[]){-3, 3, 3, 0, 0, 0});
    pruned("0.5", 1, 4, (float[]){0, 0, 0, 1e-30f}, (float[]){0, 0, 0, 1e-30f});
    pruned("0.1", 1, 4, (float[]){1, 2, 3, 4}, (float[]){1, 2, 3, 4});
    pruned("0.3", 1, 10, (float[]){1e-20f, 1, 300, 2, 3, -1e9f, 4, 5, 0.001f, 7},
           (float[]){0, 0, 300, 2, 3, -1e9f, 4, 5, 0, 7});
    static const char *const bad[] = {"",    "4:2", "2:2", "0:4",   "2:65", "2:",   ":4",   "2:4x",
                                      "1.0", "0",   "nan", "2:4:8", "-0.5", "half", "-1:4", "0.5 "};
    ll_prune p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (ll_prune_parse(bad[i], &p) != LL_E_ARG) fail_msg("'%s' is taken", bad[i]);
        assert_non_null(strstr(ll_error_message(), "such as 2:4"));
    }
    no_error(ll_prune_parse("none", &p));
    assert_false(ll_prunes(&p));
}

/* Cubic, all of it at the last; a group loses whole numbers. */
static void steps(void **state)
{
    (void)state;
    ll_prune_steps s;
    ll_prune half, group, now;
    no_error(ll_prune_parse("0.5", &half));
    no_error(ll_prune_parse("2:4", &group));
    no_error(ll_prune_steps_parse("10:30:8", &s));
    assert_true(s.from == 10 && s.to == 30 && s.every == 8);
    for (int64_t i = 0; i < 40; i++) {
        bool due = i == 18 || i == 26 || i == 30;
        double left = (30. - (double)i) / 20, part = 1 - left * left * left;
        assert_true(ll_prune_at(&half, &s, i, &now) == due);
        if (due) assert_true(!now.of && fabs(now.share - 0.5 * part) < 1e-12);
        assert_true(ll_prune_at(&group, &s, i, &now) == due);
        if (due) assert_true(now.of == 4 && now.keep == 2);
    }
    no_error(ll_prune_steps_parse("0:9:1", &s));
    assert_true(ll_prune_at(&group, &s, 1, &now) && now.keep == 3); /* 0.30 of two */
    assert_false(ll_prune_at(&group, &s, 0, &now));
    no_error(ll_prune_steps_parse("0:100", &s));
    assert_true(s.every == 10);
    no_error(ll_prune_steps_parse("3:5", &s));
    assert_true(s.every == 1);
    no_error(ll_prune_steps_parse("", &s));
    assert_true(!s.to);
    static const char *const bad[] = {"5",     "5:5",   "6:5",  ":5",
                                      "5:",    "1:5:0", "1:5:", "1:5:2:3",
                                      "a:b",   "-1:5",  "1:5 ", "1:99999999999999999999",
                                      "1:5:1x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (ll_prune_steps_parse(bad[i], &s) != LL_E_ARG) fail_msg("'%s' is taken", bad[i]);
        assert_non_null(strstr(ll_error_message(), "such as 100:500:20"));
    }
}

/* Is this a parameter that products alone read? */
static bool is_product(const char *name)
{
    return strstr(name, ".attn.") || strstr(name, ".mlp.") ? strstr(name, "weight") != NULL : false;
}

static int64_t get(ll_session *s, const char *name, float *out)
{
    int64_t n = ll_numel(&ll_value_of(s->g, ll_find(s->g, name))->type.shape);
    assert_true(n <= MOST);
    no_error(ll_session_get(s, name, out, sizeof *out * (size_t)n));
    return n;
}

/* One parameter before and behind steps. */
static void compare(ll_session *s, const ll_value *v, const float *was, const char *how)
{
    float is[MOST];
    int64_t n = get(s, v->name, is), zeros = 0, filled = 0, moved = 0;
    for (int64_t i = 0; i < n; i++) {
        zeros += was[i] == 0;
        filled += was[i] == 0 && is[i] != 0;
        moved += was[i] != is[i];
    }
    if (is_product(v->name)) {
        assert_int_equal(zeros, n / 2);
        if (filled || moved < n / 2 - n / 50)
            fail_msg("%s, %s: of %d zeros %d are none, %d of %d moved", how, v->name, (int)zeros,
                     (int)filled, (int)moved, (int)n);
    } else if (!moved) /* biases begin with zeros */
        fail_msg("%s, %s did not move", how, v->name);
}

static void train(const char *how)
{
    char text[512];
    snprintf(text, sizeof text,
             "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 8, vocab: 19}\n"
             "train: {threads: 1, batch: 2, prune: \"2:4\", %s}\n",
             how);
    static float was[64][MOST];
    float average[MOST];
    ll_run *r = lm_run(text);
    ll_graph *g;
    ll_session *s;
    ll_pruned is;
    int products = 0, n_param = 0;
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    ll_session_opts o = ll_run_session(r, NULL, NULL);
    no_error(ll_session_open(g, &o, &s));
    assert_true((s->late != NULL) == r->train.delay);
    no_error(ll_prune_session("2:4", s, &is));
    assert_true(is.tensors == 4 && is.numbers == 16 * 16 * 12 && is.zeros == is.numbers / 2);
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].node < 0 && g->values[i].kind == LL_PARAM)
            get(s, g->values[i].name, was[n_param++ % 64]);
    assert_true(n_param < 64);
    lm_set(s, B * T, V);
    for (int i = 0; i < 5; i++) no_error(ll_session_run(s, 0.01));
    for (int i = 1, at = 0; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        const float *old = was[at++];
        compare(s, v, old, how);
        products += is_product(v->name);
        const char *mean = ll_arena_printf(g->arena, "%s.ema", v->name);
        if (!ll_find(g, mean).id || !is_product(v->name)) continue;
        int64_t n = get(s, mean, average); /* which is what is evaluated */
        for (int64_t k = 0; k < n; k++) assert_true(old[k] != 0 || average[k] == 0);
    }
    assert_int_equal(products, 4);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
}

static void zeros_stay(void **state)
{
    (void)state;
    train("optimizer: sgd");
    train("optimizer: momentum, weight_decay: 0.1, clip: 1");
    train("optimizer: nesterov, clip_value: 0.5");
    train("optimizer: adagrad");
    train("optimizer: rmsprop, weight_decay: 0.1");
    train("optimizer: lars, weight_decay: 0.1");
    train("optimizer: larc");
    train("optimizer: adam, weight_decay: 0.1");
    train("optimizer: adamw, weight_decay: 0.1, clip: 1, ema: 0.9");
    train("optimizer: lamb, weight_decay: 0.1");
    train("optimizer: muon, weight_decay: 0.1");
    train("optimizer: muon, delay: true");
    train("optimizer: schedule-free-adamw, weight_decay: 0.1");
}

/* Products that GPUs' sparse tensor cores may make, of a GPT in bf16: qkv and both projections; the
 * MLP's first has a kernel of its own, with gelu. */
static void promised(const char *rule, int want)
{
    char text[256];
    ll_graph *g, *simple, *narrow;
    snprintf(text, sizeof text,
             "model: {name: gpt, layers: 1, width: 64, heads: 2, seq: 40, vocab: 19}\n"
             "train: {threads: 1, batch: 2, precision: bf16, %s}\n",
             rule);
    ll_run *r = lm_run(text);
    int found = 0;
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    no_error(ll_simplify(g, &simple));
    no_error(ll_narrow(simple, &narrow));
    no_error(ll_fuse(&narrow, &ll_target_cuda, LL_PRECISION_bf16, 90, false, NULL));
    for (int i = 0; i < narrow->n_node; i++)
        if (!strncmp(narrow->nodes[i].op->name, "product", 7))
            found += ((const ll_product_attr *)narrow->nodes[i].attr)->sparse == 1;
    if (found != want) fail_msg("%s: %d sparse products, want %d", rule, found, want);
    ll_graph_free(narrow);
    ll_graph_free(simple);
    ll_graph_free(g);
    ll_run_free(r);
}

static void sparse_products(void **state)
{
    (void)state;
    promised("prune: '2:4'", 3);
    promised("prune: '1:4'", 3);
    promised("prune: '1:2'", 3);
    promised("prune: '3:4'", 0);
    promised("prune: '4:8'", 0); /* all four may be beside each other */
    promised("prune: '0.5'", 0);
    promised("prune: '2:4', prune_steps: '2:9'", 0); /* not from the first step on */
    promised("optimizer: adamw", 0);
}

/* Without the mask they do not: the test above could fail. */
static void else_filled(void **state)
{
    (void)state;
    ll_run *r = lm_run("model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 8, vocab: 19}\n"
                       "train: {threads: 1, batch: 2, optimizer: adamw}\n");
    ll_graph *g;
    ll_session *s;
    ll_pruned is;
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 5}, &s));
    no_error(ll_prune_session("0.5", s, &is));
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0.01));
    no_error(ll_prune_session("none", s, &is));
    assert_true(is.zeros < is.numbers / 20);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
}

/* No products; and weights that are zeros already, of which nothing could be trained. */
static void refused(void **state)
{
    (void)state;
    ll_pruned is;
    for (int products = 0; products < 2; products++) {
        ll_graph *g = ll_graph_new("small");
        ll_session *s;
        ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 4));
        ll_val w =
            ll_param(g, "w", products ? LL_SHAPE(3, 4) : LL_SHAPE(4), (ll_init){LL_ZEROS, 0});
        ll_val y = products ? ll_matmul(g, "bi,oi->bo", x, w) : ll_mul(g, x, w);
        ll_minimize(g, ll_sum(g, y, products ? "bo->" : "bi->"), &(ll_optim){.name = "sgd"});
        no_error(ll_session_open(g, &(ll_session_opts){.threads = 1}, &s));
        assert_int_equal(ll_prune_session("2:4", s, &is), LL_E_ARG);
        assert_non_null(
            strstr(ll_error_message(), products ? "w is all zeros" : "there is nothing to prune"));
        ll_session_close(s);
        ll_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules),      cmocka_unit_test(steps),
        cmocka_unit_test(zeros_stay), cmocka_unit_test(else_filled),
        cmocka_unit_test(refused),    cmocka_unit_test(sparse_products)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
