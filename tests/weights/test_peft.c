/* What train.lora and train.prompt make of a model of transformers, exported alone, loads in
 * Hugging Face's PEFT and gives the same logits there; a prompt that PEFT saved gives its logits
 * here. Skipped where it is not installed
 * (LOOPLINE_PYTHON names another python3). */
#include "base/text.h"
#include "weights/beside_python.h"
#include "weights/import.h"
#include "run/run.h"
#include "run/setup.h"
#include "weights/weights_load.h"

enum { B = 2, T = 16, V = 101 };

/* base with these settings of train. */
static ll_run *run_of(void **state, ll_arena *a, const char *train)
{
    ll_imported m;
    ll_run *r;
    ll_buf b = {.arena = a};
    no_error(ll_import_look(tmpdir_path(state, "base"), a, &m));
    ll_buf_printf(&b, "model:\n  name: %s\n", m.model->name);
    for (const ll_size *x = m.sizes; x->name; x++)
        ll_buf_printf(&b, "  %s: %lld\n", x->name,
                      strcmp(x->name, "seq") ? (long long)x->value : (long long)T);
    ll_buf_printf(&b, "train: {threads: 1, batch: 2, lr: 0.1, %s}\n", train);
    no_error(ll_run_parse(b.text, b.len, "test", &r));
    no_error(ll_run_finish(r));
    return r;
}

static void write_logits(void **state, ll_session *s, const char *file)
{
    float y[B * T * V];
    FILE *f = fopen(tmpdir_path(state, file), "wb");
    no_error(ll_session_run(s, 0));
    no_error(ll_session_get(s, "logits", y, sizeof y));
    assert_non_null(f);
    assert_int_equal(fwrite(y, sizeof y, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* A few steps; name gets the adapter, name.y the logits with it. */
static void one(void **state, const char *name, const char *train, int tensors)
{
    ll_arena *a = ll_arena_new();
    ll_run *r = run_of(state, a, train);
    ll_graph *g[2];
    ll_session *s[2];
    const char *note;
    int n;
    void *x = read_bytes(state, "x", B * T * sizeof(int32_t));
    for (int k = 0; k < 2; k++) {
        no_error(ll_run_graph(r, B, k ? NULL : &r->train.optim, &g[k]));
        ll_session_opts how = {.threads = 1, .seed = 5, .share = k ? s[0] : NULL};
        no_error(ll_session_open(g[k], &how, &s[k]));
        no_error(ll_session_set(s[k], "x", 0, x, B * T * sizeof(int32_t)));
        no_error(ll_session_set(s[k], "y", 0, x, B * T * sizeof(int32_t)));
    }
    ll_weights_from base = {ll_arena_strdup(a, tmpdir_path(state, "base")), "hf-llama", NULL};
    no_error(ll_weights_load(s[0], &base, a, &note));
    for (int i = 0; i < 5; i++) no_error(ll_session_run(s[0], 0.1));
    write_logits(state, s[1], ll_arena_printf(a, "%s.y", name));
    no_error(ll_adapters_save(s[0], tmpdir_path(state, name), "hf-llama", NULL, &n));
    assert_int_equal(n, tensors);
    for (int k = 1; k >= 0; k--) {
        ll_session_close(s[k]);
        ll_graph_free(g[k]);
    }
    free(x);
    ll_run_free(r);
    ll_arena_free(a);
}

static void adapters(void **state)
{
    one(state, "lora", "lora: 3", 28);
    one(state, "prompt", "prompt: 5", 1);
}

static void theirs(void **state)
{
    ll_arena *a = ll_arena_new();
    ll_run *r = run_of(state, a, "prompt: 5");
    ll_graph *g;
    ll_session *s;
    const char *note;
    void *x = read_bytes(state, "x", B * T * sizeof(int32_t));
    no_error(ll_run_graph(r, B, NULL, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1}, &s));
    ll_weights_from both = {ll_arena_strdup(a, tmpdir_path(state, "theirs")), "hf-llama", NULL};
    no_error(ll_weights_load(s, &both, a, &note));
    no_error(ll_session_set(s, "x", 0, x, B * T * sizeof(int32_t)));
    no_error(ll_session_set(s, "y", 0, x, B * T * sizeof(int32_t)));
    no_error(ll_session_run(s, 0));
    same_result(state, s, g, "logits", "theirs.y");
    ll_session_close(s);
    ll_graph_free(g);
    free(x);
    ll_run_free(r);
    ll_arena_free(a);
}

int main(void)
{
    void *folder = NULL;
    if (tmpdir_setup(&folder)) return 1;
    int rc = python("peft_models.py", (const char *)folder, "");
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(adapters, folder),
                                       cmocka_unit_test_prestate(theirs, folder)};
    if (rc == 0) rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (rc == 0) rc = python("peft_models.py", (const char *)folder, "check");
    tmpdir_teardown(&folder);
    return rc;
}
