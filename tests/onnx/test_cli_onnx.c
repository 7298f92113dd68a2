/* ONNX networks as models: their parameters, inputs and losses; they train, and what is not right
 * is told. */
#include "onnx/onnx.h"
#include "base/file.h"
#include "onnx/made.h"
#include "cli/program.h"

#include <math.h>

enum { N = 4, SIDE = 6, CHANNELS = 2, FILTERS = 3, CLASSES = 10 };

static Onnx__Tensor *tensor(ll_arena *a, const char *name, int n, const int64_t *d, double start)
{
    int64_t count = 1;
    for (int i = 0; i < n; i++) count *= d[i];
    float *v = LL_NEW_ARRAY(a, float, count);
    for (int64_t i = 0; i < count; i++) v[i] = (float)(start + 0.1 * sin(3.7 * (double)i));
    return made_tensor(a, name, ONNX_FLOAT, n, d, v, sizeof *v * (size_t)count);
}

/* softmax(fc(mean over pixels of relu(batchnorm(conv(x))))) */
static const char *net(void **state, ll_arena *a)
{
    static const struct {
        const char *name;
        int n;
        int64_t d[5];
        double start;
    } weights[] = {{"c.w", 4, {FILTERS, CHANNELS, 3, 3, 0}, 0},
                   {"g", 1, {FILTERS, 0}, 1},
                   {"b", 1, {FILTERS, 0}, 0},
                   {"m", 1, {FILTERS, 0}, 0},
                   {"v", 1, {FILTERS, 0}, 1},
                   {"fc.w", 2, {CLASSES, FILTERS, 0}, 0},
                   {"fc.b", 1, {CLASSES, 0}, 0}};
    Onnx__Model *m = made_model(a, 13);
    Onnx__Graph *g = m->graph;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        MADE_ADD(a, g->initializer, g->n_initializer, Onnx__Tensor,
                 tensor(a, weights[i].name, weights[i].n, weights[i].d, weights[i].start));
    MADE_ADD(a, g->input, g->n_input, Onnx__ValueInfo,
             made_info(a, "picture", ONNX_FLOAT, 4, (int64_t[]){-1, CHANNELS, SIDE, SIDE}));
    MADE_ADD(a, g->output, g->n_output, Onnx__ValueInfo,
             made_info(a, "p", ONNX_FLOAT, 2, (int64_t[]){-1, CLASSES}));
    made_ints(a, made_node(a, g, "Conv", "picture c.w", "t1"), "pads", 4, (int64_t[]){1, 1, 1, 1});
    made_node(a, g, "BatchNormalization", "t1 g b m v", "t2");
    made_node(a, g, "Relu", "t2", "t3");
    made_node(a, g, "GlobalAveragePool", "t3", "t4");
    made_node(a, g, "Flatten", "t4", "t5");
    Onnx__Attribute *t = made_attribute(a, made_node(a, g, "Gemm", "t5 fc.w fc.b", "t6"), "transB");
    t->type = 2, t->i = 1;
    made_node(a, g, "Softmax", "t6", "p");
    size_t size;
    uint8_t *data = made_bytes(a, m, &size);
    const char *path = tmpdir_path(state, "net.onnx");
    assert_int_equal(ll_file_write(path, data, size), LL_OK);
    return path;
}

static ll_build build_of(const ll_model *m, int64_t batch, bool training)
{
    ll_build b = {.batch = batch, .training = training, .model = m};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    return b;
}

static void set_size(ll_build *b, const char *name, int64_t v)
{
    for (int i = 0; b->sizes[i].name; i++)
        if (!strcmp(b->sizes[i].name, name)) b->sizes[i].value = v;
}

static void weights(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_model *m;
    ll_onnx_weight *w;
    int n;
    assert_int_equal(ll_onnx_model(a, net(state, a), "", &m), LL_OK);
    assert_string_equal(m->name, "net");
    assert_string_equal(m->input, "image");
    assert_int_equal(ll_onnx_weights(a, m, &w, &n), LL_OK);
    assert_int_equal(n, 7);
    for (int i = 0; i < n; i++) { /* filters lie with their channels last */
        if (strcmp(w[i].name, "c.w")) continue;
        assert_true(ll_shape_equal(&w[i].shape, &LL_SHAPE(FILTERS, 3, 3, CHANNELS)));
        const float *v = w[i].data;
        for (int f = 0; f < FILTERS; f++)
            for (int p = 0; p < 9; p++)
                for (int c = 0; c < CHANNELS; c++)
                    assert_true(v[(f * 9 + p) * CHANNELS + c] ==
                                (float)(0.1 * sin(3.7 * ((f * CHANNELS + c) * 9 + p))));
    }
    ll_onnx_summary s;
    assert_int_equal(ll_onnx_look(a, tmpdir_path(state, "net.onnx"), &s), LL_OK);
    assert_true(s.n_input == 1 && s.n_output == 1 && s.nodes == 7 && !s.n_missing && !s.n_outside);
    assert_string_equal(s.inputs[0].shape, "[N,2,6,6]");
}

/* Trains to tell two kinds of pictures apart; the running statistics move. */
static void trains(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_model *m;
    float x[N * SIDE * SIDE * CHANNELS], mean[FILTERS], var[FILTERS];
    int32_t y[N] = {0, 4, 0, 4};
    for (int i = 0; i < N * SIDE * SIDE * CHANNELS; i++)
        x[i] = (float)sin(i) + (i / (SIDE * SIDE * CHANNELS) % 2 ? 1 : -1);
    assert_int_equal(ll_onnx_model(a, net(state, a), "cross_entropy", &m), LL_OK);
    ll_build b = build_of(m, N, true);
    ll_graph *g = ll_graph_new("net");
    ll_minimize(g, m->declare(g, &b), &(ll_optim){.name = "adam"});
    ll_session *s;
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 3}, &s), LL_OK);
    double first = 0, last = 0;
    for (int step = 0; step < 60; step++) {
        assert_int_equal(ll_session_set(s, "x", 0, x, sizeof x), LL_OK);
        assert_int_equal(ll_session_set(s, "y", 0, y, sizeof y), LL_OK);
        assert_int_equal(ll_session_run(s, 0.02), LL_OK);
        last = ll_session_result(s, "loss");
        if (!step) first = last;
    }
    assert_true(first > 1 && last < first / 4);
    assert_int_equal(ll_session_get(s, "m", mean, sizeof mean), LL_OK);
    assert_int_equal(ll_session_get(s, "v", var, sizeof var), LL_OK);
    assert_true(mean[0] != 0 && var[0] > 0);
    ll_session_close(s);
    ll_graph_free(g);
}

static void heads_and_losses(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_model *m;
    assert_int_equal(ll_onnx_model(a, net(state, a), "cross_entropy", &m), LL_OK);
    ll_build b = build_of(m, N, false);
    set_size(&b, "head", 3);
    ll_graph *g = ll_graph_new("net");
    m->declare(g, &b);
    assert_int_equal(ll_graph_check(g), LL_OK);
    ll_session *s;
    float w[3 * FILTERS], bias[3], p[N * 3];
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.threads = 1}, &s), LL_OK);
    assert_int_equal(ll_session_get(s, "fc.w", w, sizeof w), LL_OK);
    assert_int_equal(ll_session_get(s, "fc.b", bias, sizeof bias), LL_OK);
    assert_true(w[0] != 0 && bias[0] == 0);
    static const float x[N * SIDE * SIDE * CHANNELS];
    static const int32_t y[N];
    assert_int_equal(ll_session_set(s, "x", 0, x, sizeof x), LL_OK);
    assert_int_equal(ll_session_set(s, "y", 0, y, sizeof y), LL_OK);
    assert_int_equal(ll_session_run(s, 0), LL_OK);
    assert_int_equal(ll_session_get(s, "p", p, sizeof p), LL_OK);
    assert_true(fabs(p[0] + p[1] + p[2] - 1) < 1e-6);
    ll_session_close(s);
    ll_graph_free(g);
    assert_int_equal(ll_onnx_model(a, tmpdir_path(state, "net.onnx"), "", &m), LL_OK);
    b = build_of(m, N, true);
    g = ll_graph_new("net");
    m->declare(g, &b);
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    assert_non_null(strstr(ll_error_text(), "model.loss"));
    ll_graph_free(g);
}

/* loopline import makes a folder that train, verify and eval take. */
static void imports(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *f = *state;
    net(state, a);
    must(f, "import net.onnx --out run");
    refuses(f, 1, "import net.onnx --out run", "run already holds a run"); /* not over it */
#define ON_DATA " run -s data.name=synthetic -s data.samples=64 -s train.batch=16"
    must(f, "eval" ON_DATA); /* the file's weights */
    must(f, "train" ON_DATA " -s train.steps=3");
    must(f, "eval" ON_DATA);
    refuses(f, 1, "train" ON_DATA " -s train.steps=3", "--resume");
    must(f, "export run --onnx out.onnx");
    ll_onnx_summary s;
    assert_int_equal(ll_onnx_look(a, tmpdir_path(state, "out.onnx"), &s), LL_OK);
    assert_string_equal(s.inputs[0].shape, "[N,6,6,2]");
    assert_string_equal(s.outputs[0].name, "p");
    assert_int_equal(s.n_missing, 0);
}

/* What does not fit: the setting that would, and the node with what it was given. */
/* What nobody named is not its data, and bytes are not its tokens. */
static void of_tokens(void **state)
{
    const char *f = *state;
    put_text(tmpdir_path(state, "t.txt"));
    write_text(tmpdir_path(state, "g.yaml"),
               "model: {name: gpt, layers: 1, width: 16, heads: 2, seq: 12, vocab: 300}\n"
               "data: {name: synthetic}\ntrain: {batch: 4, steps: 1, threads: 1}\n");
    must(f, "train g.yaml --out g");
    must(f, "export g --onnx g.onnx");
    must(f, "import g.onnx --out i");
    refuses(f, 1, "eval i", "has no data of its own: set data.name, or data.path and data.format");
    refuses(f, 1, "eval i -s data.format=text -s data.path=t.txt",
            "data text holds bytes, but model.vocab is model's 300: set data.tokenizer");
}

static void misfits(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *f = *state;
    net(state, a);
    must(f, "import net.onnx --out run");
    refuses(f, 1, "eval" ON_DATA " -s model.loss=mse", "set model.loss=cross_entropy");
    refuses(f, 1, "eval" ON_DATA " -s model.loss=", "--set model.loss=: model.loss is empty",
            "cross_entropy");
    Onnx__Model *m = made_model(a, 13);
    Onnx__Graph *g = m->graph;
    MADE_ADD(a, g->initializer, g->n_initializer, Onnx__Tensor,
             tensor(a, "w", 2, (int64_t[]){3, 5}, 0));
    MADE_ADD(a, g->input, g->n_input, Onnx__ValueInfo,
             made_info(a, "in", ONNX_FLOAT, 2, (int64_t[]){-1, 4}));
    MADE_ADD(a, g->output, g->n_output, Onnx__ValueInfo,
             made_info(a, "out", ONNX_FLOAT, 2, (int64_t[]){-1, 5}));
    made_node(a, g, "Relu", "in", "t");
    made_node(a, g, "MatMul", "t w", "out");
    size_t size;
    uint8_t *data = made_bytes(a, m, &size);
    assert_int_equal(ll_file_write(tmpdir_path(state, "bad.onnx"), data, size), LL_OK);
    refuses(f, 1, "import bad.onnx", "MatMul node", "makes out of t float[1,4], w float[3,5])");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(weights, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(trains, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(heads_and_losses, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(imports, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(of_tokens, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(misfits, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
