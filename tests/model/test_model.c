/* Models: published parameter counts, sound graphs for training and evaluation, results. */
#include "ir/graph_text.h"
#include "base/rng.h"
#include "ir/op.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* The model's graph with some sizes changed: "layers=2 width=32". */
static ll_graph *declare(const char *name, const char *sizes, int64_t batch, bool training)
{
    const ll_model *m = ll_model_find(name);
    if (!m) fail_msg("no model %s", name);
    ll_build b = {.batch = batch, .training = training};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int used; *sizes; sizes += used) {
        char key[32];
        long long value;
        int i = 0;
        assert_int_equal(sscanf(sizes, " %31[a-z_]=%lld%n", key, &value, &used), 2);
        while (b.sizes[i].name && strcmp(b.sizes[i].name, key)) i++;
        assert_non_null(b.sizes[i].name);
        b.sizes[i].value = value;
        sizes += sizes[used] == ' ';
    }
    ll_graph *g = ll_graph_new(name);
    ll_val loss = m->declare(g, &b);
    assert_int_equal(loss.id, ll_find_result(g, "loss").id);
    return g;
}

static int64_t parameters(const ll_graph *g)
{
    int64_t n = 0;
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].kind == LL_PARAM) n += ll_numel(&g->values[i].type.shape);
    return n;
}

static bool scalar(const ll_graph *g, const char *result)
{
    ll_val v = ll_find_result(g, result);
    return v.id && ll_graph_shape(g, v).n == 0 && ll_graph_dtype(g, v) == LL_F32;
}

static void check(const char *name, const char *sizes, int64_t count, bool training)
{
    ll_graph *g = declare(name, sizes, 2, training), *again;
    if (ll_verify(g) != LL_OK) fail_msg("%s %s: %s", name, sizes, ll_error_text());
    assert_int_equal(parameters(g), count);
    assert_true(scalar(g, "loss"));
    bool tokens = !strcmp(ll_model_find(name)->input, "tokens");
    assert_int_equal(scalar(g, "correct"), !tokens);
    assert_int_equal(ll_find_result(g, "logits").id > 0, tokens && !training);
    ll_shape x = ll_graph_shape(g, ll_find(g, "x")), y = {0};
    if (ll_find(g, "y").id) y = ll_graph_shape(g, ll_find(g, "y"));
    assert_int_equal(x.n, tokens ? 2 : 4);
    bool masked = !strcmp(name, "bert"); /* its labels are the tokens themselves */
    assert_int_equal(y.n, masked ? 0 : tokens ? 2 : 1);
    assert_int_equal(x.d[0], 2);
    assert_true(masked || y.d[0] == 2);
    assert_true(g->of.block >= 1);
    assert_int_equal(g->nodes[g->n_node - 1].of.block, g->of.block);
    assert_string_equal(g->scope, "");
    if (training) { /* with gradients and updates it is sound and survives its text, too */
        ll_minimize(g, ll_find_result(g, "loss"), &(ll_optim){.name = "adamw", .clip = 1});
        if (ll_verify(g) != LL_OK) fail_msg("%s %s: %s", name, sizes, ll_error_text());
    }
    ll_arena *a = ll_arena_new();
    char *text = ll_print(g, a);
    if (ll_parse(text, &again) != LL_OK) fail_msg("%s %s: %s", name, sizes, ll_error_text());
    assert_string_equal(ll_print(again, a), text);
    ll_arena_free(a);
    ll_graph_free(again);
    ll_graph_free(g);
}

static void counts(void **state)
{
    (void)state;
    static const struct {
        const char *name, *sizes;
        int64_t count;
    } cases[] = {
        {"mlp", "", 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10},
        {"mlp", "image=8 channels=3 depth=0 classes=7", 192 * 7 + 7},
        {"lenet5", "", 61706},
        {"alexnet", "", 61100840},
        {"alexnet", "image=254", 61100840},
        {"googlenet", "", 6624904},
        {"googlenet", "image=96", 6624904},
        {"alexnet", "image=100", 61100840}, /* cells of pooling that do not divide */
        {"mobilenetv2", "", 3504872},
        {"vgg16", "", 138357544},
        {"vgg16", "image=64", 138357544},
        {"squeezenet", "", 1235496},
        {"resnet18", "", 11689512},
        {"resnet34", "", 21797672},
        {"resnet50", "", 25557032},
        {"resnet18", "image=32 classes=10", 11173962},
        {"resnet18", "image=28 channels=1 classes=10", 11173962 - 2 * 9 * 64},
        {"gpt", "", 124439808},
        {"gpt", "layers=24 width=1024 heads=16", 354823168},
        {"gpt", "layers=36 width=1280 heads=20", 774030080},
        {"gpt", "layers=48 width=1600 heads=25", 1557611200},
        {"gpt", "layers=4 width=256 heads=4 seq=256 vocab=256 dropout=100", 3290624},
        {"gpt", "layers=1 width=8 heads=1 seq=8 vocab=11", 1040},
        {"llama", "", 134515008},
        {"llama", "layers=32 width=960 heads=15 kv_heads=5 hidden=2560", 361821120},
        {"llama", "layers=32 width=4096 heads=32 kv_heads=32 hidden=11008 vocab=32000 tied=0 seq=8",
         6738415616},
        {"llama",
         "layers=32 width=4096 heads=32 kv_heads=8 hidden=14336 vocab=32000 tied=0 window=4096",
         7241732096},
        {"llama", "layers=32 width=4096 heads=32 kv_heads=8 hidden=14336 vocab=128256 tied=0 seq=8",
         8030261248},
        {"seq2seq", "", 44140544 + 37000 * 512},
        {"seq2seq", "width=1024 heads=16 hidden=4096", 176361472 + 37000 * 1024},
        {"bert", "", 109514298},
        {"bert", "layers=24 width=1024 heads=16 hidden=4096", 335174458},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int training = 0; training < 2; training++)
            check(cases[i].name, cases[i].sizes, cases[i].count, training);
}

/* Every model is listed once, is found by its name, and explains itself and its sizes. */
static void listed(void **state)
{
    (void)state;
    int n = 0;
    for (const ll_model *const *m = ll_model_all(); *m; m++, n++) {
        assert_ptr_equal(ll_model_find((*m)->name), *m);
        assert_true(*(*m)->help);
        assert_true(!strcmp((*m)->input, "image") || !strcmp((*m)->input, "tokens"));
        for (int i = 0; (*m)->sizes[i].name; i++) {
            assert_true(i + 1 < LL_MAX_SIZES);
            assert_true(*(*m)->sizes[i].help);
        }
    }
    assert_true(n >= 8);
    assert_null(ll_model_find("resnet"));
    assert_null(ll_model_find(""));
}

static int nodes_of(const ll_graph *g, const char *op)
{
    int n = 0;
    for (int i = 0; i < g->n_node; i++) n += !strcmp(g->nodes[i].op->name, op);
    return n;
}

static void training_only(void **state)
{
    (void)state;
    const char *small = "layers=2 width=8 heads=2 seq=8 vocab=11 dropout=100";
    ll_graph *train = declare("gpt", small, 2, true), *eval = declare("gpt", small, 2, false);
    assert_int_equal(nodes_of(train, "dropout"), 5);
    assert_int_equal(nodes_of(eval, "dropout"), 0);
    ll_graph_free(train);
    ll_graph_free(eval);
    train = declare("alexnet", "", 2, true), eval = declare("alexnet", "", 2, false);
    assert_int_equal(nodes_of(train, "dropout"), 2);
    assert_int_equal(nodes_of(eval, "dropout"), 0);
    ll_graph_free(train);
    ll_graph_free(eval);
    train = declare("resnet18", "image=32", 2, true);
    eval = declare("resnet18", "image=32", 2, false);
    assert_int_equal(train->n_update, 2 * 20); /* running mean and variance of 20 batch norms */
    assert_int_equal(eval->n_update, 0);
    ll_graph_free(train);
    ll_graph_free(eval);
}

/* GPT-2's start: normal(0.02), residual projections smaller, the token table used twice. */
static void gpt_init(void **state)
{
    (void)state;
    ll_graph *g = declare("gpt", "layers=8 width=16 heads=2 seq=8 vocab=11", 2, true);
    static const struct {
        const char *name;
        ll_init init;
    } want[] = {{"wte", {LL_NORMAL, 0.02}},
                {"wpe", {LL_NORMAL, 0.02}},
                {"h3.attn.qkv.weight", {LL_NORMAL, 0.02}},
                {"h3.mlp.fc.weight", {LL_NORMAL, 0.02}},
                {"h3.attn.proj.weight", {LL_NORMAL, 0.005}},
                {"h3.mlp.proj.weight", {LL_NORMAL, 0.005}},
                {"h3.attn.qkv.bias", {LL_ZEROS, 0}},
                {"h3.ln1.bias", {LL_ZEROS, 0}},
                {"h3.ln1.weight", {LL_CONSTANT, 1}},
                {"ln_f.weight", {LL_CONSTANT, 1}}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ll_val v = ll_find(g, want[i].name);
        if (!v.id) fail_msg("no parameter %s", want[i].name);
        assert_int_equal(g->values[v.id].init.kind, want[i].init.kind);
        assert_true(g->values[v.id].init.a == want[i].init.a);
    }
    int uses = 0, table = ll_find(g, "wte").id;
    for (int i = 0; i < g->n_node; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) uses += g->nodes[i].in[k].id == table;
    assert_int_equal(uses, 2);
    ll_graph_free(g);
}

static void bad_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name, *sizes, *says;
    } cases[] = {{"gpt", "width=100 heads=12", "width 100 is not a multiple of heads 12"},
                 {"gpt", "heads=0", "multiple of heads 0"},
                 {"gpt", "vocab=-5", "-5"},
                 {"gpt", "linear=2", "linear is 2, expected 0 or 1"},
                 {"gpt", "decay=3", "decay is 3, which needs linear attention"},
                 {"gpt", "linear=1 decay=-1", "expected 1 or more"},
                 {"llama", "linear=1 window=4", "window is 4, which needs softmax"},
                 {"mlp", "classes=0", "0 outputs"},
                 {"seq2seq", "vocab=50 pad=50", "pad 50 is not a token of the vocabulary of 50"},
                 {"bert", "vocab=50 mask=60", "mask 60 must be tokens"},
                 {"lenet5", "image=4", "conv2"},
                 {"alexnet", "image=20", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_graph *g = declare(cases[i].name, cases[i].sizes, 2, true);
        if (ll_graph_check(g) == LL_OK) fail_msg("%s %s is taken", cases[i].name, cases[i].sizes);
        if (!strstr(ll_error_text(), cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", ll_error_text(), cases[i].says);
        print_message("%s %s: %s\n", cases[i].name, cases[i].sizes, ll_error_text());
        ll_graph_free(g);
    }
}

/* A few steps on one batch: the loss starts where chance is and at least halves. */
static void learns(const char *name, const char *sizes, double lr, int steps, double chance)
{
    enum { BATCH = 4 };
    ll_graph *g = declare(name, sizes, BATCH, true);
    ll_minimize(g, ll_find_result(g, "loss"), &(ll_optim){.name = "adamw"});
    ll_session *s;
    if (ll_session_open(g, &(ll_session_opts){.seed = 3, .threads = 2}, &s) != LL_OK)
        fail_msg("%s: %s", name, ll_error_text());
    bool tokens = ll_graph_dtype(g, ll_find(g, "x")) == LL_I32;
    int64_t n[2];
    void *data[2];
    for (int k = 0; k < 2; k++) {
        ll_val v = ll_find(g, k ? "y" : "x");
        ll_shape shape = ll_graph_shape(g, v);
        n[k] = ll_numel(&shape);
        data[k] = malloc((size_t)n[k] * 4);
        for (int64_t i = 0; i < n[k]; i++)
            if (k || tokens)
                ((int32_t *)data[k])[i] = (int32_t)(ll_below_at(1, 0, (uint64_t)(i + k), 10));
            else
                ((float *)data[k])[i] = ll_uniform_at(1, 1, (uint64_t)i) - 0.5f;
        assert_int_equal(ll_session_set(s, k ? "y" : "x", 0, data[k], (size_t)n[k] * 4), LL_OK);
    }
    double first = NAN, last = NAN;
    for (int i = 0; i < steps; i++) {
        if (ll_session_run(s, lr) != LL_OK) fail_msg("%s: %s", name, ll_error_text());
        last = ll_session_result(s, "loss");
        if (i == 0) first = last;
    }
    print_message("%s %s: loss %.4f -> %.4f in %d steps\n", name, sizes, first, last, steps);
    assert_true(fabs(first - log(chance)) < 0.7);
    assert_true(last < first / 2);
    free(data[0]);
    free(data[1]);
    ll_session_close(s);
    ll_graph_free(g);
}

static void all_learn(void **state)
{
    (void)state;
    learns("mlp", "image=8 width=32", 0.01, 30, 10);
    learns("gpt", "layers=2 width=16 heads=2 seq=9 vocab=11", 0.02, 40, 11);
    learns("lenet5", "", 0.003, 30, 10);
    learns("resnet18", "image=8 classes=10", 0.001, 4, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_learn), cmocka_unit_test(counts),
                                       cmocka_unit_test(listed),    cmocka_unit_test(training_only),
                                       cmocka_unit_test(gpt_init),  cmocka_unit_test(bad_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
