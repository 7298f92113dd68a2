/* Graphs as ONNX files: read again, they give what a session gives, for another number of samples
 * than they were written from. Where onnxruntime is installed (LOOPLINE_PYTHON names another
 * python3), it gives the same. */
#include "onnx/write.h"
#include "base/file.h"
#include "base/rng.h"
#include "tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <cmocka.h>

enum { SAMPLES = 5 };

typedef struct what {
    const char *name, *sizes, *result;
    ll_graph *(*declare)(const struct what *k, int64_t batch);
    ll_session *s; /* of SAMPLES */
} what;

static ll_graph *model(const what *k, int64_t batch)
{
    const ll_model *m = ll_model_find(k->name);
    ll_build b = {.batch = batch, .model = m};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    int used;
    for (const char *at = k->sizes; *at; at += used) {
        char key[32];
        long long value;
        assert_int_equal(sscanf(at, " %31[a-z]=%lld%n", key, &value, &used), 2);
        for (ll_size *s = b.sizes; s->name; s++)
            if (!strcmp(s->name, key)) s->value = value;
    }
    ll_graph *g = ll_graph_new(k->name);
    (void)m->declare(g, &b);
    return g;
}

static ll_val named(const ll_graph *g, const char *name)
{
    for (int i = g->n_value - 1; i > 0; i--)
        if (g->values[i].name && !strcmp(g->values[i].name, name)) return (ll_val){i};
    return ll_find_result(g, name);
}

static ll_err make(void *user, int64_t batch, ll_graph **out)
{
    const what *k = (const what *)user;
    LL_OWN(ll_graph) whole = k->declare(k, batch);
    TRY(ll_graph_check(whole));
    return ll_only(whole, named(whole, k->result), k->result, out);
}

static ll_err read_input(void *user, const char *name, void *data, size_t bytes)
{
    return ll_session_get(((const what *)user)->s, name, data, bytes);
}

/* Numbers such as trained models have, none of them 0 or 1; batches in files too. */
static void fill(const ll_graph *g, ll_session *s, void **state)
{
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        int64_t n = ll_numel(&v->type.shape);
        if (v->node >= 0 || v->kind == LL_CONST) continue;
        float *data = (float *)calloc((size_t)n, 4);
        if (v->kind != LL_BATCH)
            assert_int_equal(ll_session_get(s, v->name, data, (size_t)n * 4), LL_OK);
        for (int64_t j = 0; j < n; j++) {
            uint64_t at = (uint64_t)j, stream = ll_stream(v->name, 0);
            double some = fabs(ll_normal_at(1, stream, at));
            if (v->type.dtype == LL_I32)
                ((int32_t *)data)[j] = (int32_t)ll_below_at(1, stream, at, 7);
            else
                data[j] += (v->kind == LL_BATCH ? 1 : 0.05f) * (float)some;
        }
        assert_int_equal(ll_session_set(s, v->name, 0, data, (size_t)n * 4), LL_OK);
        char file[64];
        snprintf(file, sizeof file, "%.58s.bin", v->name);
        if (v->kind == LL_BATCH)
            assert_int_equal(ll_file_write(tmpdir_path(state, file), data, (size_t)n * 4), LL_OK);
        free(data);
    }
}

/* The file as a model of its own, with its weights and the same batches. */
static void again(const ll_graph *g, const what *k, void **state, const float *want, int64_t n)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const ll_model *m;
    ll_onnx_weight *weights = NULL;
    int n_weight = 0;
    ll_session *s;
    if (ll_onnx_model(a, tmpdir_path(state, "model.onnx"), "", &m) != LL_OK ||
        ll_onnx_weights(a, m, &weights, &n_weight) != LL_OK)
        fail_msg("%s: %s", k->name, ll_error_text());
    ll_build b = {.batch = SAMPLES, .model = m};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    ll_graph *read = ll_graph_new(k->name);
    (void)m->declare(read, &b);
    if (ll_session_open(read, &(ll_session_opts){.threads = 1}, &s) != LL_OK)
        fail_msg("%s: %s", k->name, ll_error_text());
    for (int i = 0; i < n_weight; i++) {
        assert_true(ll_find(g, weights[i].name).id > 0); /* they have their names */
        assert_int_equal(ll_session_set(s, weights[i].name, 0, weights[i].data,
                                        (size_t)ll_numel(&weights[i].shape) * 4),
                         LL_OK);
    }
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        size_t bytes = (size_t)ll_numel(&v->type.shape) * 4;
        if (!ll_is_batch(v)) continue;
        void *data = malloc(bytes);
        assert_int_equal(ll_session_get(k->s, v->name, data, bytes), LL_OK);
        assert_int_equal(ll_session_set(s, v->name, 0, data, bytes), LL_OK);
        free(data);
    }
    float *have = (float *)calloc((size_t)n, 4);
    double most = 1, off = 0;
    if (ll_session_run(s, 0) != LL_OK || ll_session_get(s, k->result, have, (size_t)n * 4) != LL_OK)
        fail_msg("%s: %s", k->name, ll_error_text());
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)want[i]));
        off = fmax(off, fabs((double)have[i] - (double)want[i]));
        assert_false(isnan(have[i]));
    }
    if (!(off <= 1e-5 * most)) fail_msg("%s: off by %g of %g", k->name, off, most);
    free(have);
    ll_session_close(s);
    ll_graph_free(read);
}

static void onnxruntime(const what *k, void **state)
{
    char line[600];
    const char *other = getenv("LOOPLINE_PYTHON");
    snprintf(line, sizeof line, "%s tests/onnx/run_onnx.py %s", other ? other : "python3",
             (const char *)*state);
    int rc = system(line);
    if (WIFEXITED(rc) && WEXITSTATUS(rc) == 77)
        print_message("skipped: no onnxruntime\n");
    else if (rc)
        fail_msg("%s: onnxruntime gives something else", k->name);
}

static void check(what k, void **state)
{
    ll_graph *g;
    if (make(&k, SAMPLES, &g) != LL_OK ||
        ll_session_open(g, &(ll_session_opts){.seed = 3, .threads = 1}, &k.s) != LL_OK)
        fail_msg("%s: %s", k.name, ll_error_text());
    fill(g, k.s, state);
    if (ll_session_run(k.s, 0) != LL_OK ||
        ll_onnx_write(make, read_input, &k, tmpdir_path(state, "model.onnx")) != LL_OK)
        fail_msg("%s: %s", k.name, ll_error_text());
    int64_t n = ll_numel(&ll_value_of(g, g->results[0].value)->type.shape);
    float *want = (float *)calloc((size_t)n, 4);
    assert_int_equal(ll_session_get(k.s, k.result, want, (size_t)n * 4), LL_OK);
    assert_int_equal(ll_file_write(tmpdir_path(state, "want.bin"), want, (size_t)n * 4), LL_OK);
    for (int64_t i = 0; i < n; i++) assert_false(isnan(want[i]));
    again(g, &k, state, want, n);
    onnxruntime(&k, state);
    free(want);
    ll_session_close(k.s);
    ll_graph_free(g);
}

static void models(void **state)
{
    static const char *const all[][2] = {
        {"lenet5", ""},
        {"resnet18", "image=32 channels=3 classes=10 width=4"},
        {"gpt", "layers=2 width=16 heads=2 seq=9 vocab=11"},
        {"bert", "layers=1 width=16 heads=2 hidden=24 seq=9 vocab=11 mask=3"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check((what){all[i][0], all[i][1], "logits", model, NULL}, state);
}

/* Ops that these models do not have, each of which the result depends on. */
static ll_graph *others(const what *, int64_t n)
{
    ll_graph *g = ll_graph_new("others");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(n, 6, 7, 4));
    ll_val w = ll_param(g, "w", LL_SHAPE(8, 3, 2, 2), (ll_init){LL_NORMAL, 0.3});
    ll_conv c = {.stride = {2, 1}, .pad = {1, 1}, .dilation = {1, 2}, .groups = 2};
    ll_val h = ll_conv2d(g, x, w, &c); /* [3,7,8] */
    h = ll_avg_pool(g, h, &(ll_window){.size = {2, 2}, .stride = {1, 2}, .pad = {1, 1}});
    h = ll_max_pool(g, h, &(ll_window){.size = {3, 2}, .stride = {1, 1}, .pad = {1, 0}});
    ll_val back = ll_param(g, "back", LL_SHAPE(8, 3, 2, 4), (ll_init){LL_NORMAL, 0.3});
    c.pad[1] = 0;
    h = ll_conv_transpose(g, h, back, &c, NULL);
    ll_shape seven = ll_graph_shape(g, h); /* [7,5,8] */
    ll_val planes = ll_param(g, "planes", LL_SHAPE(7, 8), (ll_init){LL_NORMAL, 1});
    h = ll_mul(g, h, ll_broadcast(g, planes, "hc->nhwc", seven));
    ll_val gate = ll_sigmoid(g, ll_sum(g, h, "nhwc->nc"));
    h = ll_mul(g, h, ll_broadcast(g, gate, "nc->nhwc", seven));
    ll_val rows = ll_sigmoid(g, ll_sum(g, h, "nhwc->nhw"));
    h = ll_add(g, h, ll_broadcast(g, rows, "nhw->nhwc", seven));
    ll_val spread = ll_broadcast(g, ll_exp(g, planes), "hc->nhc", LL_SHAPE(2 * n, 7, 8));
    spread = ll_cumsum(g, spread, 0, false, false); /* over all samples */
    spread = ll_sum(g, ll_reshape(g, spread, LL_SHAPE(n, 2, 7, 8)), "nabc->n");
    h = ll_resize_image(g, h, &(ll_resize){.mode = LL_LINEAR, .size = {5, 5}});
    h = ll_resize_image(g, ll_flip(g, h, 2), &(ll_resize){.mode = LL_CUBIC, .size = {5, 7}});
    h = ll_slice(g, h, 2, 1, 6);
    h = ll_pad(g, ll_slice(g, h, 1, 1, 5), 2, 2, 1); /* [4,8,8] */
    h = ll_concat(g, (ll_val[]){h, ll_transpose(g, ll_tanh(g, h), "nhwc->nhcw")}, 2, 1);
    ll_val row = ll_reshape(g, h, LL_SHAPE(8 * n, 8, 8)); /* of which none are equal: */
    ll_val index = ll_argmax(g, ll_add(g, row, ll_arange(g, LL_F32, 8, 0, 0.37)), 2);
    ll_val hot = ll_mul(g, ll_one_hot(g, index, 8, LL_F32), ll_softmax(g, row));
    ll_val all =
        ll_add(g, hot, ll_gather_elements(g, row, ll_reshape(g, index, LL_SHAPE(8 * n, 8, 1)), 2));
    const int32_t take[8] = {3, 1, 4, 1, 5, 7, 2, 6};
    all = ll_gather(g, all, ll_constant(g, LL_I32, LL_SHAPE(8), take), 1);
    all = ll_cumsum(g, all, 1, true, true);
    all = ll_rope(g, ll_reshape(g, all, LL_SHAPE(n, 8, 8, 8)), 1e4, false);
    all = ll_rope(g, all, 1e2, true);
    ll_val top = ll_amax(g, all, "nabc->nac"); /* [n,8,8] */
    top = ll_matmul(g, "nab,nbc->nca", top,
                    ll_layernorm(g, top, ll_fill(g, LL_F32, LL_SHAPE(8), 2),
                                 ll_fill(g, LL_F32, LL_SHAPE(8), 1), 1e-5));
    const float fixed[8] = {1, -2, 3, -4, 5, -6, 7, -8};
    top = ll_div(g, top, ll_shift(g, ll_square(g, ll_constant(g, LL_F32, LL_SHAPE(8), fixed)), 1));
    ll_val scale = ll_scale(g, ll_broadcast(g, spread, "n->nab", LL_SHAPE(n, 8, 8)), 0.01);
    ll_graph_result(g, "out", ll_add(g, top, scale));
    return g;
}

static void other_ops(void **state)
{
    check((what){"others", "", "out", others, NULL}, state);
}

/* Layers that are other ops by the time they are written. */
static ll_graph *layers(const what *, int64_t n)
{
    ll_graph *g = ll_graph_new("layers");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(n, 6, 8));
    ll_val gain = ll_param(g, "gain", LL_SHAPE(8), (ll_init){LL_CONSTANT, 0.9});
    ll_val h = ll_lstm_layer(g, "lstm", ll_rmsnorm(g, x, gain, 1e-5), 8, true);
    ll_val q = ll_reshape(g, h, LL_SHAPE(n, 6, 4, 2)), kv = ll_slice(g, q, 2, 0, 2);
    h = ll_attend(g, ll_rope(g, q, 1e4, false), kv, kv, &(ll_attend_opts){.causal = true});
    ll_val cube = ll_reshape(g, h, LL_SHAPE(n, 6, 2, 2, 2));
    ll_val w = ll_param(g, "w", LL_SHAPE(3, 2, 2, 1, 2), (ll_init){LL_NORMAL, 0.3});
    h = ll_conv3d(g, cube, w, &(ll_conv){.pad = {1, 0, 0}});
    ll_graph_result(g, "out", h);
    return g;
}

static void layers_expanded(void **state)
{
    check((what){"layers", "", "out", layers, NULL}, state);
}

/* Every elementwise op that has a row, of images (small and made by a convolution) and of rows. */
static ll_graph *elementwise(const what *, int64_t n)
{
    ll_graph *g = ll_graph_new("elementwise");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(n, 3, 2, 4));
    ll_val y = ll_batch(g, "y", LL_F32, LL_SHAPE(n, 3, 2, 4));
    ll_val w = ll_param(g, "w", LL_SHAPE(4, 1, 1, 4), (ll_init){LL_CONSTANT, 0.1});
    ll_val c = ll_shift(g, ll_conv2d(g, x, w, &(ll_conv){0}), 0.3), out = {0};
    for (int e = 0; e < LL_N_EW; e++) {
        const ll_op *op = ll_ew_op((ll_ew)e);
        const wrow *r = ll_onnx_wrows;
        while (r->op && strcmp(r->op, op->name)) r++;
        if (!r->op) continue;
        ll_number_attr number = {0.7};
        ll_cast_attr cast = {LL_F32};
        const void *attr = e == LL_EW_cast ? (const void *)&cast : &number;
        const ll_val in[2][3] = {{x, y, x}, {ll_less(g, c, y), c, y}};
        for (int k = 0; k < 2; k++) {
            const ll_val *from = in[k] + (k && e != LL_EW_select); /* its truth is select's */
            ll_val v = ll_emit(g, op, attr, from, op->n_in);
            v = ll_sum(g, v, "nhwc->nc");
            v = ll_reshape(g, v, LL_SHAPE(n, 4, 1));
            out = out.id ? ll_concat(g, (ll_val[]){out, v}, 2, 2) : v;
        }
    }
    ll_graph_result(g, "out", out);
    return g;
}

static void elementwise_ops(void **state)
{
    check((what){"elementwise", "", "out", elementwise, NULL}, state);
}

static ll_graph *sorts(const what *, int64_t n)
{
    ll_graph *g = ll_graph_new("sorts");
    ll_graph_push(g, "head");
    ll_graph_result(g, "out", ll_sort(g, ll_batch(g, "x", LL_F32, LL_SHAPE(n, 5)), false, NULL));
    ll_graph_pop(g);
    return g;
}

/* A sample's number is added to it. */
static ll_graph *counts(const what *, int64_t n)
{
    ll_graph *g = ll_graph_new("counts");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(n, 5));
    ll_graph_result(g, "out",
                    ll_add(g, x, ll_reshape(g, ll_arange(g, LL_F32, n, 0, 1), LL_SHAPE(n, 1))));
    return g;
}

static void refused(void **state)
{
    static const struct {
        ll_graph *(*declare)(const what *k, int64_t n);
        const char *words;
    } all[] = {{sorts, "sort: op sort has no ONNX form"},
               {counts, "arange depends on the number of samples"}};
    for (int i = 0; i < 2; i++) {
        what k = {"refused", "", "out", all[i].declare, NULL};
        assert_int_equal(ll_onnx_write(make, read_input, &k, tmpdir_path(state, "model.onnx")),
                         LL_E_ARG);
        if (!strstr(ll_error_text(), all[i].words)) fail_msg("%s", ll_error_text());
        assert_int_equal(tmpdir_count((const char *)*state), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(other_ops, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(layers_expanded, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(elementwise_ops, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(refused, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
