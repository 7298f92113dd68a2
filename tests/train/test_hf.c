/* Folders of Hugging Face's transformers: what they are, by config.json, and their logits against
 * transformers' own; what is exported again gives them too, with no key missing. Skipped where it
 * is not installed (LOOPLINE_PYTHON names another python3). */
#include "train/export.h"
#include "train/import.h"
#include "train/run.h"
#include "train/setup.h"
#include "train/weights_load.h"
#include "base/text.h"
#include "tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/wait.h>

#include <cmocka.h>

static void no_error(ll_err rc)
{
    if (rc != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

static void read_bytes(void **state, const char *name, void *out, size_t bytes)
{
    FILE *f = fopen(tmpdir_path(state, name), "rb");
    assert_non_null(f);
    assert_int_equal(fread(out, 1, bytes, f), bytes);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

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
    int32_t x[64];
    read_bytes(state, "x", x, sizeof x);
    no_error(ll_session_set(s, "x", 0, x, sizeof x));
    if (ll_find(g, "y").id) no_error(ll_session_set(s, "y", 0, x, sizeof x));
    no_error(ll_session_run(s, 0));
    ll_shape shape = ll_graph_shape(g, ll_find_result(g, result));
    int64_t n = ll_numel(&shape);
    float *want = LL_NEW_ARRAY(a, float, n), *have = LL_NEW_ARRAY(a, float, n);
    read_bytes(state, ll_arena_printf(a, "%s.y", name), want, sizeof *want * (size_t)n);
    no_error(ll_session_get(s, result, have, sizeof *have * (size_t)n));
    double most = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs((double)want[i]), apart = fabs((double)have[i] - (double)want[i]);
        if (size > most) most = size;
        if (!(apart <= off)) off = apart; /* NaN stays */
    }
    printf("%s: up to %.3g, off by %.2g\n", name, most, off);
    assert_true(most > 0.1 && off <= 1e-4);
    ll_exported out;
    no_error(
        ll_export_hf(r, s, tmpdir_path(state, ll_arena_printf(a, "%s.out", name)), "f32", a, &out));
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

static int python(const char *folder, const char *what)
{
    char line[4096];
    const char *other = getenv("LOOPLINE_PYTHON");
    snprintf(line, sizeof line, "%s '" LL_TESTS "/train/hf_models.py' %s %s",
             other ? other : "python3", folder, what);
    int rc = system(line);
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : 1;
}

int main(void)
{
    void *folder = NULL;
    if (tmpdir_setup(&folder)) return 1;
    int rc = python((const char *)folder, "");
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(against_transformers, folder)};
    if (rc == 0) rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (rc == 0) rc = python((const char *)folder, "check");
    tmpdir_teardown(&folder);
    return rc;
}
