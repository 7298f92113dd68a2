/* ONNX files: what is read is right, nothing bad is accepted, and ONNX's own tests pass. */
#include "onnx/scope.h"
#include "base/file.h"
#include "onnx/made.h"
#include "tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <cmocka.h>

static const float weight[2 * 3] = {1, 2, 3, 4, 5, 6};
static const float x_data[2 * 2] = {1, -1, 0.5f, 2};

/* y = relu(x w), y's shape by way of Shape and Reshape. */
static Onnx__Model *plain(ll_arena *a)
{
    Onnx__Model *m = made_model(a, 13);
    Onnx__Graph *g = m->graph;
    MADE_ADD(a, g->initializer, g->n_initializer, Onnx__Tensor,
             made_tensor(a, "w", ONNX_FLOAT, 2, (int64_t[]){2, 3, 0}, weight, sizeof weight));
    MADE_ADD(a, g->input, g->n_input, Onnx__ValueInfo,
             made_info(a, "x", ONNX_FLOAT, 2, (int64_t[]){-1, 2}));
    MADE_ADD(a, g->output, g->n_output, Onnx__ValueInfo,
             made_info(a, "y", ONNX_FLOAT, 2, (int64_t[]){-1, 3}));
    made_node(a, g, "MatMul", "x w", "h");
    made_node(a, g, "Relu", "h", "r");
    made_node(a, g, "Shape", "r", "s");
    made_node(a, g, "Reshape", "r s", "y");
    return m;
}

static ll_err parse(ll_arena *a, const Onnx__Model *made, const char *folder, ll_onnx **out)
{
    size_t size;
    uint8_t *data = made_bytes(a, made, &size);
    return ll_onnx_parse(data, size, "made", folder, out);
}

/* Walks a model whose inputs are zeros of their declared shapes. */
static ll_err walk_it(ll_arena *a, const Onnx__Model *made, const char *folder)
{
    LL_OWN(ll_onnx) m = NULL;
    TRY(parse(a, made, folder, &m));
    walk w = {.arena = a, .m = m, .g = ll_graph_new("made")};
    value x = {.name = "x", .type = ONNX_FLOAT, .shape = LL_SHAPE(2, 2)};
    x.host = ll_onnx_host(a, ONNX_FLOAT, &x.shape);
    value *in = &x, *out[8];
    ll_err rc = ll_onnx_walk(&w, &in, out);
    ll_graph_free(w.g);
    return rc;
}

#define MUST_FAIL(made, folder, words)                                                             \
    do {                                                                                           \
        assert_int_not_equal(walk_it(a, made, folder), LL_OK);                                     \
        if (!strstr(ll_error_text(), words)) fail_msg("'%s' lacks '%s'", ll_error_text(), words);  \
    } while (0)

static void bad_files(void **)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    size_t size;
    uint8_t *data = made_bytes(a, plain(a), &size);
    assert_int_equal(walk_it(a, plain(a), NULL), LL_OK);
    for (size_t n = 0; n < size; n++) { /* a file that ends early; never is it a whole model */
        ll_onnx *m;
        ll_err rc = ll_onnx_parse(data, n, "short", NULL, &m);
        assert_true(rc != LL_OK || m->model->graph->n_node < 4 || !m->model->n_opset_import ||
                    m->model->graph->n_output == 0);
        if (rc == LL_OK) ll_onnx_close(m);
        assert_true(rc == LL_OK || ll_error_text()[0]);
    }
    Onnx__Model *m = plain(a);
    m->n_opset_import = 0;
    MUST_FAIL(m, NULL, "opset");
    m = plain(a);
    m->graph = NULL;
    MUST_FAIL(m, NULL, "no graph");
    m = plain(a);
    m->opset_import[0]->version = 1000;
    MUST_FAIL(m, NULL, "opset 1000");
    m = plain(a);
    m->graph->node[1]->op_type = TEXT("Relish");
    MUST_FAIL(m, NULL, "Relish");
}

static void bad_graphs(void **)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    Onnx__Model *m = plain(a);
    m->graph->node[0]->input[0] = TEXT("y"); /* a circle */
    MUST_FAIL(m, NULL, "'y' is read, but nothing before produces it");
    m = plain(a);
    m->graph->n_initializer = 0;
    MUST_FAIL(m, NULL, "'w' is read");
    m = plain(a);
    m->graph->node[1]->output[0] = TEXT("h");
    MUST_FAIL(m, NULL, "two values are named 'h'");
    m = plain(a);
    m->graph->output[0]->name = TEXT("z");
    MUST_FAIL(m, NULL, "'z' is read");
    m = plain(a);
    m->graph->node[3]->input[1] = TEXT("x"); /* a shape of broken numbers */
    MUST_FAIL(m, NULL, "not a list of integers");
}

static void bad_tensors(void **)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    Onnx__Model *m = plain(a);
    m->graph->initializer[0]->dims[0] = -2;
    MUST_FAIL(m, NULL, "dimension 0 is -2");
    m = plain(a);
    m->graph->initializer[0]->dims[0] = INT64_MAX / 2;
    MUST_FAIL(m, NULL, "dimension");
    m = plain(a);
    m->graph->initializer[0]->dims[0] = 1 << 30;
    MUST_FAIL(m, NULL, "24 bytes, but its dimensions say");
    m = plain(a);
    m->graph->initializer[0]->raw_data.len = 23;
    MUST_FAIL(m, NULL, "23 bytes");
    m = plain(a);
    m->graph->initializer[0]->data_type = ONNX_STRING;
    MUST_FAIL(m, NULL, "string");
    m = plain(a);
    m->graph->initializer[0]->data_type = -7;
    MUST_FAIL(m, NULL, "not known");
}

static Onnx__Model *outside(ll_arena *a, const char *location, const char *offset)
{
    Onnx__Model *m = plain(a);
    Onnx__Tensor *t = m->graph->initializer[0];
    t->data_location = 1;
    t->raw_data.len = 0;
    const char *pairs[][2] = {{"location", location}, {"offset", offset}};
    for (int i = 0; i < 2; i++) {
        Onnx__Entry *e = LL_NEW(a, Onnx__Entry);
        onnx__entry__init(e);
        e->key = TEXT(pairs[i][0]), e->value = TEXT(pairs[i][1]);
        MADE_ADD(a, t->external_data, t->n_external_data, Onnx__Entry, e);
    }
    return m;
}

static void other_files(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    const char *folder = *state;
    char content[32] = {0};
    memcpy(content + 8, weight, sizeof weight);
    assert_int_equal(ll_file_write(tmpdir_path(state, "w.bin"), content, sizeof content), LL_OK);
    assert_int_equal(walk_it(a, outside(a, "w.bin", "8"), folder), LL_OK);
    ll_onnx_summary s; /* which files they are, for import --out */
    Onnx__Model *m = outside(a, "w.bin", "8");
    size_t size = onnx__model__get_packed_size(m);
    uint8_t *bytes = LL_NEW_ARRAY(a, uint8_t, size);
    onnx__model__pack(m, bytes);
    assert_int_equal(ll_file_write(tmpdir_path(state, "m.onnx"), bytes, size), LL_OK);
    assert_int_equal(ll_onnx_look(a, tmpdir_path(state, "m.onnx"), &s), LL_OK);
    assert_int_equal(s.n_outside, 1);
    assert_string_equal(s.outside[0], "w.bin");
    m->opset_import[0]->version = 0;
    MUST_FAIL(m, folder, "opset 0, expected 1 to");
    MUST_FAIL(outside(a, "w.bin", "12"), folder, "ends before");
    MUST_FAIL(outside(a, "w.bin", "-8"), folder, "offset");
    MUST_FAIL(outside(a, "w.bin", "eight"), folder, "offset");
    MUST_FAIL(outside(a, "../w.bin", "8"), folder, "not a file inside");
    MUST_FAIL(outside(a, "/etc/passwd", "8"), folder, "not a file inside");
    MUST_FAIL(outside(a, "none.bin", "8"), folder, "cannot be opened");
    MUST_FAIL(outside(a, "w.bin", "8"), NULL, "may not be read here");
}

/* Graphs in attributes of nodes of graphs, 100 deep. */
static void deep(void **)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    Onnx__Model *m = plain(a);
    for (int i = 0; i < 100; i++) {
        Onnx__Model *outer = plain(a);
        made_attribute(a, outer->graph->node[0], "g")->g = m->graph;
        m = outer;
    }
    MUST_FAIL(m, NULL, "deeper");
}

/* ---- the runner ---- */

static void put(void **state, ll_arena *a, const char *name, const void *message)
{
    size_t size;
    uint8_t *data = made_bytes(a, message, &size);
    assert_int_equal(ll_file_write(tmpdir_path(state, name), data, size), LL_OK);
}

static ll_onnx_test run_one(void **state, ll_arena *a)
{
    ll_onnx_report r = {0};
    assert_int_equal(ll_onnx_check(tmpdir_path(state, "t"), "cpu", a, &r), LL_OK);
    assert_int_equal(r.n, 1);
    return r.tests[0];
}

static void checks(void **state)
{
    LL_OWN(ll_arena) a = ll_arena_new();
    float y[2 * 3] = {0, 0, 0, 8.5f, 11, 13.5f};
    assert_int_equal(ll_mkdirs(tmpdir_path(state, "t/test_data_set_0")), LL_OK);
    put(state, a, "t/model.onnx", plain(a));
    put(state, a, "t/test_data_set_0/input_0.pb",
        made_tensor(a, "x", ONNX_FLOAT, 2, (int64_t[]){2, 2, 0}, x_data, sizeof x_data));
    const char *out = "t/test_data_set_0/output_0.pb";
    put(state, a, out, made_tensor(a, "y", ONNX_FLOAT, 2, (int64_t[]){2, 3, 0}, y, sizeof y));
    ll_onnx_test t = run_one(state, a);
    assert_string_equal(t.reason, "");
    assert_int_equal(t.status, LL_ONNX_PASSED);
    y[4] = 11.5f;
    put(state, a, out, made_tensor(a, "y", ONNX_FLOAT, 2, (int64_t[]){2, 3, 0}, y, sizeof y));
    t = run_one(state, a);
    assert_int_equal(t.status, LL_ONNX_FAILED);
    assert_true(t.max_error == 0.5 && strstr(t.reason, "y[4] is 11, expected 11.5"));
    put(state, a, out, made_tensor(a, "y", ONNX_FLOAT, 2, (int64_t[]){3, 2, 0}, y, sizeof y));
    assert_int_equal(run_one(state, a).status, LL_ONNX_FAILED);
    Onnx__Model *m = plain(a);
    m->graph->node[1]->op_type = TEXT("Relish");
    put(state, a, "t/model.onnx", m);
    t = run_one(state, a);
    assert_int_equal(t.status, LL_ONNX_NOT_SUPPORTED);
    assert_true(strstr(t.reason, "op Relish"));
    ll_file_write(tmpdir_path(state, "t/model.onnx"), "nonsense", 8) == LL_OK ? (void)0 : fail();
    assert_int_equal(run_one(state, a).status, LL_ONNX_FAILED);
}

/* Debian's libonnx-testdata: none may fail; how many pass may only grow. */
static void of_onnx(void **)
{
    static const struct {
        const char *folder;
        int least;
    } suites[] = {{"node", 779}};
    if (access("/usr/share/libonnx-testdata/data/node", F_OK)) skip();
    LL_OWN(ll_arena) a = ll_arena_new();
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++) {
        ll_onnx_report r = {0};
        const char *folder =
            ll_arena_printf(a, "/usr/share/libonnx-testdata/data/%s", suites[i].folder);
        assert_int_equal(ll_onnx_check(folder, "cpu", a, &r), LL_OK);
        for (int k = 0; k < r.n; k++)
            if (r.tests[k].status == LL_ONNX_FAILED)
                print_message("%s: %s\n", r.tests[k].name, r.tests[k].reason);
        assert_int_equal(r.count[LL_ONNX_FAILED], 0);
        assert_true(r.count[LL_ONNX_PASSED] >= suites[i].least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_files),
        cmocka_unit_test(bad_graphs),
        cmocka_unit_test(bad_tensors),
        cmocka_unit_test_setup_teardown(other_files, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(deep),
        cmocka_unit_test_setup_teardown(checks, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(of_onnx),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
