/* Folders of Hugging Face's transformers: what they are, by config.json, and their logits against
 * transformers' own; what is exported again gives them too, with no key missing. Skipped where it
 * is not installed (LOOPLINE_PYTHON names another python3). */
#include "base/text.h"
#include "weights/beside_python.h"
#include "weights/export.h"
#include "weights/import.h"
#include "run/run.h"
#include "run/setup.h"
#include "weights/weights_load.h"

static void one(void **state, const char *name, const char *model, const char *result)
{
    ll_arena *a = ll_arena_new();
    ll_imported m;
    ll_run *r;
    ll_graph *g;
    ll_session *s;
    ll_buf b = {.arena = a};
    const char *note, *folder = ll_arena_strdup(a, tmpdir_path(state, name));
    no_error(ll_import_look(folder, a, &m));
    assert_string_equal(m.model->name, model);
    ll_buf_printf(&b, "model:\n  name: %s\n", model);
    for (const ll_size *x = m.sizes; x->name; x++)
        ll_buf_printf(&b, "  %s: %lld\n", x->name,
                      strcmp(x->name, "masked") ? (long long)x->value : 0LL);
    no_error(ll_run_parse(b.text, b.len, "test", &r));
    no_error(ll_run_finish(r));
    no_error(ll_run_graph(r, 2, NULL, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1}, &s));
    no_error(ll_weights_load(s, &(ll_weights_from){folder, m.map, NULL}, a, &note));
    void *x = read_bytes(state, "x", 64 * sizeof(int32_t));
    no_error(ll_session_set(s, "x", 0, x, 64 * sizeof(int32_t)));
    if (ll_find(g, "y").id) no_error(ll_session_set(s, "y", 0, x, 64 * sizeof(int32_t)));
    free(x);
    no_error(ll_session_run(s, 0));
    same_result(state, s, g, result, ll_arena_printf(a, "%s.y", name));
    ll_exported out;
    no_error(ll_export_hf(r, s, tmpdir_path(state, ll_arena_printf(a, "%s.out", name)), "f32", NULL,
                          a, &out));
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    ll_arena_free(a);
}

static void against_transformers(void **state)
{
    one(state, "llama", "llama", "logits");
    one(state, "tied", "llama", "logits");
    one(state, "mistral", "llama", "logits");
    one(state, "bert", "bert", "logits");
    one(state, "encoder", "bert", "hidden");
    one(state, "gpt2", "gpt", "logits");
}

int main(void)
{
    void *folder = NULL;
    if (tmpdir_setup(&folder)) return 1;
    int rc = python("hf_models.py", (const char *)folder, "");
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(against_transformers, folder)};
    if (rc == 0) rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (rc == 0) rc = python("hf_models.py", (const char *)folder, "check");
    tmpdir_teardown(&folder);
    return rc;
}
