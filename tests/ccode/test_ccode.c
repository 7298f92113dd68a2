/* Models as C programs: compiled and run, they give what a session gives. */
#include "base/rng.h"
#include "ccode/ccode.h"
#include "tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static ll_graph *model(const char *name, const char *sizes)
{
    const ll_model *m = ll_model_find(name);
    ll_build b = {.batch = 1, .model = m};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int used; *sizes; sizes += used) {
        char key[32];
        long long value;
        assert_int_equal(sscanf(sizes, " %31[a-z]=%lld%n", key, &value, &used), 2);
        for (ll_size *s = b.sizes; s->name; s++)
            if (!strcmp(s->name, key)) s->value = value;
    }
    ll_graph *g = ll_graph_new(name);
    (void)m->declare(g, &b);
    return g;
}

static ll_val named(const ll_graph *g, const char *name)
{
    for (int i = g->n_value - 1; i > 0; i--)
        if (g->values[i].name && !strcmp(g->values[i].name, name)) return (ll_val){i};
    return ll_find_result(g, name);
}

static ll_err read_input(void *user, const char *name, void *data, size_t bytes)
{
    return ll_session_get((ll_session *)user, name, data, bytes);
}

/* Inputs of numbers such as trained models have, none of them 0 or 1. */
static void fill(const ll_graph *g, ll_session *s, const char *folder)
{
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        int64_t n = ll_numel(&v->type.shape);
        if (v->node >= 0 || v->kind == LL_CONST) continue;
        float *data = (float *)calloc((size_t)n, 4);
        if (v->kind != LL_BATCH) (void)!ll_session_get(s, v->name, data, (size_t)n * 4);
        for (int64_t k = 0; k < n; k++) {
            uint64_t at = (uint64_t)k, stream = ll_stream(v->name, 0);
            if (v->type.dtype == LL_I32)
                ((int32_t *)data)[k] = (int32_t)ll_below_at(1, stream, at, 7);
            else
                data[k] +=
                    (v->kind == LL_BATCH ? 1 : 0.05f) * (float)fabs(ll_normal_at(1, stream, at));
        }
        assert_int_equal(ll_session_set(s, v->name, 0, data, (size_t)n * 4), LL_OK);
        if (v->kind == LL_BATCH) {
            char path[600];
            snprintf(path, sizeof path, "%s/x.bin", folder);
            FILE *f = fopen(path, "wb");
            assert_int_equal(fwrite(data, 4, (size_t)n, f), n);
            fclose(f);
        }
        free(data);
    }
}

/* The numbers that the program prints against the session's. */
static void compare(const char *folder, ll_session *s, const ll_graph *g)
{
    char command[2048];
    int64_t n = ll_numel(&ll_value_of(g, g->results[0].value)->type.shape);
    float *want = (float *)calloc((size_t)n, 4);
    double most = 0, off = 0, got;
    snprintf(command, sizeof command,
             "cd %s && cc -std=c99 -Wall -Wextra -Werror -O1 -o model model.c main.c -lm && "
             "./model weights.bin x.bin",
             folder);
    assert_int_equal(ll_session_get(s, g->results[0].name, want, (size_t)n * 4), LL_OK);
    FILE *f = popen(command, "r");
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(fscanf(f, "%lf", &got), 1);
        most = fmax(most, fabs((double)want[i]));
        off = fmax(off, fabs(got - (double)want[i]));
    }
    assert_int_equal(fscanf(f, "%lf", &got), EOF);
    assert_int_equal(pclose(f), 0);
    if (!(most > 0 && off <= 1e-5 * fmax(most, 1)))
        fail_msg("%s: off by %g of %g", g->name, off, most);
    free(want);
}

static void check(ll_graph *full, const char *result, const char *folder)
{
    ll_graph *g;
    ll_session *s = NULL;
    if (ll_only(full, named(full, result), result, &g) != LL_OK ||
        ll_session_open(g, &(ll_session_opts){.seed = 3, .threads = 1}, &s) != LL_OK)
        fail_msg("%s: %s", full->name, ll_error_text());
    assert_int_equal(ll_find(g, "y").id, 0);
    fill(g, s, folder);
    if (ll_session_run(s, 0) != LL_OK || ll_ccode_write(g, folder, read_input, s) != LL_OK)
        fail_msg("%s: %s", full->name, ll_error_text());
    compare(folder, s, g);
    ll_session_close(s);
    ll_graph_free(g);
    ll_graph_free(full);
}

static void models(void **state)
{
    static const char *const all[][2] = {
        {"lenet5", ""},
        {"mlp", "image=8 width=20 depth=3"},
        {"resnet18", "image=32 channels=3 classes=10 width=4"},
        {"gpt", "layers=2 width=16 heads=2 seq=9 vocab=11"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(model(all[i][0], all[i][1]), "logits", *state);
}

/* Ops that these models do not have, each of which the result depends on. */
static ll_graph *others(void)
{
    ll_graph *g = ll_graph_new("others");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(1, 6, 7, 4));
    ll_val w = ll_param(g, "w", LL_SHAPE(8, 3, 2, 2), (ll_init){LL_NORMAL, 0.3});
    ll_val h = ll_conv2d(
        g, x, w,
        &(ll_conv){.stride = {2, 1}, .pad = {1, 1}, .dilation = {1, 2}, .groups = 2}); /* [3,7,8] */
    h = ll_avg_pool(g, h, &(ll_window){.size = {2, 2}, .stride = {1, 2}, .pad = {1, 1}});
    h = ll_max_pool(g, h, &(ll_window){.size = {3, 2}, .stride = {1, 1}, .pad = {1, 0}});
    ll_val back = ll_param(g, "back", LL_SHAPE(8, 3, 2, 4), (ll_init){LL_NORMAL, 0.3});
    h = ll_conv_transpose(
        g, h, back, &(ll_conv){.stride = {2, 1}, .pad = {1, 0}, .dilation = {1, 2}, .groups = 2},
        NULL);
    h = ll_resize_image(g, h, &(ll_resize){.mode = LL_LINEAR, .size = {5, 5}});
    h = ll_pad(g, ll_slice(g, h, 1, 1, 5), 2, 2, 1); /* [1,4,8,8] */
    h = ll_concat(g, (ll_val[]){h, ll_transpose(g, ll_tanh(g, h), "nhwc->nhcw")}, 2, 1);
    ll_val row = ll_reshape(g, h, LL_SHAPE(8, 8, 8)); /* of which none are equal: */
    ll_val index = ll_argmax(g, ll_add(g, row, ll_arange(g, LL_F32, 8, 0, 0.37)), 2);
    ll_val hot = ll_mul(g, ll_one_hot(g, index, 8, LL_F32), ll_softmax(g, row));
    index = ll_reshape(g, index, LL_SHAPE(8, 8, 1));
    ll_val all = ll_add(g, hot, ll_gather_elements(g, row, index, 2));
    all = ll_rope(g, ll_reshape(g, all, LL_SHAPE(1, 8, 8, 8)), 1e4, false);
    ll_val top = ll_amax(g, all, "nabc->nac");
    top = ll_add(g, top, ll_gelu(g, ll_sub(g, top, ll_arange(g, LL_F32, 8, -1, 0.25))));
    const float fixed[8] = {1, -2, 3, -4, 5, -6, 7, -8};
    top = ll_div(g, top, ll_shift(g, ll_square(g, ll_constant(g, LL_F32, LL_SHAPE(8), fixed)), 1));
    ll_graph_result(g, "out", top);
    return g;
}

static void other_ops(void **state)
{
    check(others(), "out", *state);
}

static void refused(void **state)
{
    ll_graph *g = ll_graph_new("sorts");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(1, 5));
    ll_graph_push(g, "head");
    ll_graph_result(g, "out", ll_sort(g, x, false, NULL));
    ll_graph_pop(g);
    assert_int_equal(ll_ccode_write(g, *state, read_input, NULL), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "head.sort: op sort has no C form"));
    assert_int_equal(tmpdir_count(*state), 0);
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(other_ops, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(refused, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
