/* Models as others have them, and back: the same sizes, the same bits, the same tokens. */
#include "base/file.h"
#include "base/text.h"
#include "exec/session.h"
#include "tmpdir.h"
#include "token/gguf_made.h"
#include "token/tokenizer.h"
#include "weights/export.h"
#include "weights/import.h"
#include "run/setup.h"
#include "weights/weights_load.h"
#include "no_error.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef struct opened {
    ll_run *r;
    ll_graph *g;
    ll_session *s;
} opened;

static opened open_text(const char *text, int seed)
{
    opened o;
    no_error(ll_run_parse(text, strlen(text), "test", &o.r));
    no_error(ll_run_finish(o.r));
    no_error(ll_run_graph(o.r, 1, NULL, &o.g));
    no_error(ll_session_open(o.g, &(ll_session_opts){.threads = 1, .seed = (uint64_t)seed}, &o.s));
    return o;
}

static void close_it(opened *o)
{
    ll_session_close(o->s);
    ll_graph_free(o->g);
    ll_run_free(o->r);
}

/* Norms begin as ones, biases as zeros: numbers that would show where they went. */
static void fill(opened *o)
{
    for (int i = 1; i < o->g->n_value; i++) {
        const ll_value *v = &o->g->values[i];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        int64_t n = ll_numel(&v->type.shape);
        float *x = (float *)malloc(sizeof *x * (size_t)n);
        for (int64_t k = 0; k < n; k++) x[k] = sinf((float)(i * 131 + k)) + 0.1F;
        no_error(ll_session_set(o->s, v->name, 0, x, sizeof *x * (size_t)n));
        free(x);
    }
}

static double apart(const opened *a, const opened *b)
{
    double most = 0;
    for (int i = 1; i < a->g->n_value; i++) {
        const ll_value *v = &a->g->values[i];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        size_t n = (size_t)ll_numel(&v->type.shape);
        float *x = (float *)malloc(2 * n * sizeof *x);
        no_error(ll_session_get(a->s, v->name, x, n * sizeof *x));
        no_error(ll_session_get(b->s, v->name, x + n, n * sizeof *x));
        for (size_t k = 0; k < n; k++) {
            double d = fabs((double)x[k] - (double)x[n + k]);
            if (!(d <= most)) most = d;
        }
        free(x);
    }
    return most;
}

/* Imported from there, it is the model that was written, but for so much. */
static void back(const opened *o, const char *path, double allowed)
{
    ll_arena *a = ll_arena_new();
    ll_imported m;
    ll_buf b = {.arena = a};
    const char *note;
    no_error(ll_import_look(path, a, &m));
    ll_buf_printf(&b, "model:\n  name: %s\n", m.model->name);
    for (const ll_size *x = m.sizes; x->name; x++) {
        bool places = !strcmp(x->name, "places");
        int64_t was = places ? ll_run_places(o->r) : ll_run_size(o->r, x->name, -1);
        assert_int_equal(x->value, was);
        ll_buf_printf(&b, "  %s: %lld\n", x->name, (long long)x->value);
    }
    opened again = open_text(b.text, 7);
    no_error(ll_weights_load(again.s, &(ll_weights_from){path, m.map, NULL}, a, &note));
    double off = apart(o, &again);
    printf("%s: %s, off by %.2g\n", path, m.form, off);
    assert_true(off <= allowed);
    close_it(&again);
    ll_arena_free(a);
}

static void round_trip(void **state, const char *name, const char *model, bool gguf)
{
    ll_arena *a = ll_arena_new();
    ll_exported x;
    opened o = open_text(model, 3);
    const char *path = tmpdir_path(state, name);
    const struct {
        const char *type;
        double off;
    } types[] = {{"f32", 0}, {"bf16", 0.005}, {"f16", 0.0005}, {"q8_0", 0.006}, {"q4_1", 0.08}};
    fill(&o);
    for (int i = 0; i < 3; i++) {
        no_error(ll_export_hf(o.r, o.s, path, types[i].type, NULL, a, &x));
        back(&o, path, types[i].off);
    }
    for (int i = 0; i < 5 && gguf; i++) {
        const char *file = ll_arena_printf(a, "%s-%s.gguf", path, types[i].type);
        no_error(ll_export_gguf(o.r, o.s, file, types[i].type, a, &x));
        back(&o, file, types[i].off);
    }
    close_it(&o);
    ll_arena_free(a);
}

static void models(void **state)
{
    round_trip(state, "tied",
               "model: {name: llama, layers: 2, width: 64, heads: 4, kv_heads: 2, hidden: 96, "
               "seq: 24, vocab: 128}\n",
               true);
    round_trip(state, "untied",
               "model: {name: llama, layers: 1, width: 32, heads: 3, kv_heads: 1, head: 6, hidden: "
               "33, seq: 17, vocab: 256, tied: 0, window: 5, rope_base: 12345, norm_eps: 1000}\n",
               true);
    round_trip(state, "gpt",
               "model: {name: gpt, layers: 2, width: 32, heads: 2, seq: 9, vocab: 200}\n", true);
    round_trip(state, "bert",
               "model: {name: bert, layers: 2, width: 32, heads: 2, hidden: 40, seq: 9, vocab: "
               "31}\n",
               false);
}

/* A configuration of theirs that says so little, or more than its form reads. */
static void keys_of_theirs(void **state)
{
    static const struct {
        const char *type, *window; /* "": the key is not there */
        int64_t want;
    } all[] = {{"mistral", "7", 7},
               {"mistral", "", 4096},
               {"mistral", "null", 0},
               {"llama", "7", 0},
               {"llama", "", 0}};
    ll_arena *a = ll_arena_new();
    ll_exported x;
    const char *folder = tmpdir_path(state, "hf");
    opened o =
        open_text("model: {name: llama, layers: 1, width: 32, heads: 8, kv_heads: 8, hidden: 24, "
                  "seq: 8, vocab: 128, window: 5}\n",
                  3);
    no_error(ll_export_hf(o.r, o.s, folder, "f32", NULL, a, &x));
    const char *path = ll_arena_printf(a, "%s/config.json", folder);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        json_t *j = json_load_file(path, 0, NULL);
        ll_imported m;
        json_object_set_new(j, "model_type", json_string(all[i].type));
        json_object_del(j, "sliding_window");
        if (*all[i].window)
            json_object_set_new(j, "sliding_window",
                                json_loads(all[i].window, JSON_DECODE_ANY, NULL));
        assert_int_equal(json_dump_file(j, path, 0), 0);
        json_decref(j);
        no_error(ll_import_look(folder, a, &m));
        for (const ll_size *s = m.sizes; s->name; s++)
            if (!strcmp(s->name, "window")) assert_int_equal(s->value, all[i].want);
    }
    close_it(&o);
    ll_arena_free(a);
}

/* What a text begins and ends with is said, also where it is nothing: 50256 would be GPT-2's. */
static void token_is(const char *folder, const char *key, int want)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *j = json_load_file(path, 0, NULL), *v = json_object_get(j, key);
    assert_true(want < 0 ? json_is_null(v) : json_is_integer(v) && json_integer_value(v) == want);
    json_decref(j);
}

/* What their configuration asks for beyond its tensors, and no model of ours does, is named. */
static void asked_of_theirs(void **state)
{
    static const struct {
        const char *model, *key, *value, *told; /* told: NULL: it is taken */
    } all[] = {
        {"gpt", "scale_attn_by_inverse_layer_idx", "true", "scale_attn_by_inverse_layer_idx is"},
        {"gpt", "scale_attn_by_inverse_layer_idx", "false", NULL},
        {"gpt", "reorder_and_upcast_attn", "true", NULL}, /* the same numbers, rounded less */
        {"gpt", "scale_attn_weights", "false", "scale_attn_weights is"},
        {"gpt", "activation_function", "\"relu\"", "activation_function is relu"},
        {"gpt", "layer_norm_epsilon", "0.001", "layer_norm_epsilon is"},
        {"llama", "rope_parameters", "{\"type\": \"linear\", \"factor\": 2}", "type is linear"},
        {"llama", "rope_parameters", "{\"rope_type\": \"yarn\"}", "rope_type is yarn"},
        {"llama", "rope_parameters", "{\"rope_type\": \"default\"}", NULL},
        {"llama", "attention_bias", "true", "attention_bias is"},
        {"llama", "mlp_bias", "true", "mlp_bias is"},
        {"bert", "is_decoder", "true", "is_decoder is"},
        {"bert", "position_embedding_type", "\"relative_key\"", "position_embedding_type is"}};
    ll_arena *a = ll_arena_new();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ll_exported x;
        ll_imported m;
        const char *model = all[i].model, *folder = tmpdir_path(state, model);
        const char *path = ll_arena_printf(a, "%s/config.json", folder);
        opened o = open_text(ll_arena_printf(a,
                                             "model: {name: %s, layers: 1, width: 24, heads: 3, "
                                             "seq: 8, vocab: 128}\n",
                                             model),
                             3);
        no_error(ll_export_hf(o.r, o.s, folder, "f32", NULL, a, &x));
        token_is(folder, "bos_token_id", -1);
        token_is(folder, "eos_token_id", -1);
        close_it(&o);
        json_t *j = json_load_file(path, 0, NULL);
        json_object_set_new(j, all[i].key, json_loads(all[i].value, JSON_DECODE_ANY, NULL));
        assert_int_equal(json_dump_file(j, path, 0), 0);
        json_decref(j);
        ll_err rc = ll_import_look(folder, a, &m);
        if (!all[i].told) no_error(rc);
        if (all[i].told && (rc == LL_OK || !strstr(ll_error_text(), all[i].told)))
            fail_msg("%s: %s", all[i].key, rc ? ll_error_text() : "taken");
    }
    ll_arena_free(a);
}

/* A tokenizer through both forms. */
static void tokens(void **state)
{
    static const char text[] = "the cat sat on the mat, the cat's hat; 1234 \xc3\xa9t\xc3\xa9\n\n"
                               "  that <|endoftext|> cat";
    ll_arena *a = ll_arena_new();
    ll_exported x;
    ll_buf b = {.arena = a};
    const char *words[] = {text}, *json = ll_arena_strdup(a, tmpdir_path(state, "tokenizer.json"));
    const char *ways[3];
    size_t size = sizeof text - 1;
    int made;
    ll_tokenizer *t;
    no_error(ll_bpe_train(&(ll_bpe_opts){.vocab = 280, .threads = 1, .split = "smollm"}, words,
                          &size, 1, json, &made));
    ll_buf_printf(&b,
                  "model: {name: llama, layers: 1, width: 32, heads: 2, kv_heads: 1, hidden: 32, "
                  "seq: 24, vocab: 300}\ndata: {tokenizer: %s}\n",
                  json);
    opened o = open_text(b.text, 3);
    ways[0] = json;
    ways[1] = ll_arena_strdup(a, tmpdir_path(state, "words"));
    ways[2] = ll_arena_strdup(a, tmpdir_path(state, "words.gguf"));
    no_error(ll_export_hf(o.r, o.s, ways[1], "f32", NULL, a, &x));
    assert_true(x.tokenizer);
    token_is(ways[1], "bos_token_id", -1);
    token_is(ways[1], "eos_token_id", 0);
    no_error(ll_export_gguf(o.r, o.s, ways[2], "q8_0", a, &x));
    int32_t *first = NULL, *v;
    int64_t count = 0, n;
    for (int i = 0; i < 3; i++) {
        no_error(ll_tokenizer_open(ways[i], &t));
        assert_int_equal(t->eos, 0);
        no_error(ll_tokenizer_encode(t, text, size, true, &v, &n));
        if (!i) first = v, count = n;
        assert_int_equal(n, count);
        assert_memory_equal(v, first, sizeof *v * (size_t)n);
        assert_true(n < (int64_t)size);
        if (i) free(v);
        ll_tokenizer_close(t);
    }
    free(first);
    close_it(&o);
    ll_arena_free(a);
}

/* A vocabulary with scores, in a GGUF file of nothing else. */
static const char *put_pieces(void **state, ll_arena *a)
{
    static const char *const text[] = {"<unk>", "<s>", "</s>", "\xe2\x96\x81", "a", "b", "ab"};
    static const int kind[] = {2, 3, 3, 1, 1, 1, 1};
    enum { N = sizeof kind / sizeof *kind };
    const char *path = ll_arena_strdup(a, tmpdir_path(state, "pieces.gguf"));
    ll_buf b = {.arena = a};
    gguf_begin(&b, 0, 6);
    gguf_pair_text(&b, "tokenizer.ggml.model", "llama");
    gguf_pair_texts(&b, "tokenizer.ggml.tokens", text, N);
    gguf_text(&b, "tokenizer.ggml.scores");
    gguf_int(&b, 9, 4), gguf_int(&b, 6, 4), gguf_int(&b, N, 8);
    for (int i = 0; i < N; i++) ll_buf_add(&b, &(float){(float)-i}, 4);
    gguf_text(&b, "tokenizer.ggml.token_type");
    gguf_int(&b, 9, 4), gguf_int(&b, 5, 4), gguf_int(&b, N, 8);
    for (int i = 0; i < N; i++) gguf_int(&b, (uint64_t)kind[i], 4);
    gguf_pair_int(&b, "tokenizer.ggml.bos_token_id", 1);
    gguf_pair_int(&b, "tokenizer.ggml.eos_token_id", 2);
    no_error(ll_file_write(path, b.text, b.len));
    return path;
}

static void refused(void **state)
{
    ll_arena *a = ll_arena_new();
    ll_exported x;
    const char *path = tmpdir_path(state, "no");
    opened o = open_text("model: {name: llama, layers: 1, width: 32, heads: 2, kv_heads: 1, "
                         "hidden: 32, seq: 8, vocab: 300}\n",
                         1);
    assert_int_equal(ll_export_gguf(o.r, o.s, path, "f32", a, &x), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "data.tokenizer"));
    assert_int_equal(ll_export_gguf(o.r, o.s, path, "q5", a, &x), LL_E_ARG);
    assert_int_equal(ll_export_hf(o.r, o.s, path, "q8_0", NULL, a, &x), LL_E_ARG);
    close_it(&o);
    static const char *const linear[] = {
        "model: {name: llama, layers: 1, width: 32, heads: 2, kv_heads: 1, hidden: 32, seq: 8, "
        "vocab: 256, linear: 1}\n",
        "model: {name: gpt, layers: 1, width: 32, heads: 2, seq: 8, vocab: 256, linear: 1}\n"};
    for (int i = 0; i < 2; i++) {
        o = open_text(linear[i], 1);
        assert_int_equal(ll_export_hf(o.r, o.s, path, "f32", NULL, a, &x), LL_E_ARG);
        assert_non_null(strstr(ll_error_text(), "model.linear is 1"));
        assert_int_equal(ll_export_gguf(o.r, o.s, path, "f32", a, &x), LL_E_ARG);
        assert_non_null(strstr(ll_error_text(), "model.linear is 1"));
        close_it(&o);
    }
    o = open_text("model: {name: lenet5}\n", 1);
    assert_int_equal(ll_export_hf(o.r, o.s, path, "f32", NULL, a, &x), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "these can: bert, gpt, llama"));
    close_it(&o);
    const char *pieces = put_pieces(state, a);
    o = open_text(ll_arena_printf(a,
                                  "model: {name: llama, layers: 1, width: 32, heads: 2, kv_heads: "
                                  "1, hidden: 32, seq: 8, vocab: 8}\ndata: {tokenizer: %s}\n",
                                  pieces),
                  1);
    assert_int_equal(ll_export_hf(o.r, o.s, path, "f32", NULL, a, &x), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "read, not written"));
    close_it(&o);
    assert_false(ll_file_exists(path)); /* what is refused leaves nothing */
    ll_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(keys_of_theirs, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(asked_of_theirs, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(tokens, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(refused, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
