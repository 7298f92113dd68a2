/* Adapters: only they are trained; merged weights give the same logits; adapters alone, as PEFT
 * names them; what they may stand beside. */
#include "pass/lora.h"
#include "small_lm.h"
#include "tmpdir.h"
#include "train/safetensors.h"
#include "train/weights_load.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { B = 2, T = 8, V = 19 };
static const char model[] = "model: {name: llama, layers: 1, width: 8, heads: 4, kv_heads: 2, "
                            "hidden: 12, seq: 8, vocab: 19, tied: 0}\n";

static ll_run *run_of(const char *more)
{
    char text[512];
    snprintf(text, sizeof text, "%strain: {threads: 1, batch: 2%s}\n", model, more);
    return lm_run(text);
}

static void logits_of(const ll_run *r, ll_session *share, const char *weights, float *out)
{
    ll_graph *g;
    ll_session *s;
    ll_arena *a = ll_arena_new();
    const char *note;
    no_error(ll_run_graph(r, B, NULL, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .share = share}, &s));
    if (weights)
        no_error(ll_weights_load(s, &(ll_weights_from){weights, "hf-llama", NULL}, a, &note));
    lm_logits(s, B * T, V, out);
    ll_graph_free(g);
    ll_arena_free(a);
}

static void adapters(void **state)
{
    ll_run *r = run_of(", lora: 2, lr: 0.1"), *plain = run_of("");
    ll_graph *g;
    ll_session *s;
    ll_st_file *f;
    int n;
    float before[96], after[96], one[B * T * V], two[B * T * V], first[B * T * V];
    char merged[512], folder[512];
    snprintf(merged, sizeof merged, "%s", tmpdir_path(state, "merged.safetensors"));
    snprintf(folder, sizeof folder, "%s", tmpdir_path(state, "peft"));
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 5}, &s));
    assert_true(ll_find(g, "h0.attn.q.weight.lora_a.mean").id > 0);
    assert_int_equal(ll_find(g, "h0.attn.q.weight.mean").id, 0); /* no moments of what is frozen */
    no_error(ll_session_get(s, "h0.mlp.up.weight", before, sizeof before));
    logits_of(r, s, NULL, first);
    lm_set(s, B * T, V);
    for (int i = 0; i < 5; i++) no_error(ll_session_run(s, 0.1));
    no_error(ll_session_get(s, "h0.mlp.up.weight", after, sizeof after));
    assert_memory_equal(before, after, sizeof before);
    logits_of(r, s, NULL, one);
    no_error(ll_weights_save(s, merged, "hf-llama", LL_F32, &n));
    assert_int_equal(n, 12);
    logits_of(plain, NULL, merged, two);
    double most = 0, moved = 0;
    for (int i = 0; i < B * T * V; i++) {
        double d = fabs((double)(one[i] - two[i])), m = fabs((double)(one[i] - first[i]));
        if (!(d <= most)) most = d;
        if (m > moved) moved = m;
    }
    printf("logits moved by %g; merged ones are off by %g\n", moved, most);
    assert_true(moved > 0.1 && most < 1e-5);
    no_error(ll_adapters_save(s, folder, "hf-llama", &n));
    assert_int_equal(n, 14);
    strcat(folder, "/adapter_model.safetensors");
    no_error(ll_st_open(folder, &f));
    const ll_st_entry *e =
        ll_st_find(f, "base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight");
    assert_true(e && e->n_dims == 2 && e->dims[0] == 8 && e->dims[1] == 2);
    ll_st_close(f);
    assert_int_equal(ll_adapters_save(s, folder, "hf-gpt2", &n), LL_E_CONFIG);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    ll_run_free(plain);
}

/* ---- frozen weights in blocks ---- */

static ll_run *run_of_base(const char *base)
{
    char text[512];
    snprintf(text, sizeof text,
             "model: {name: llama, layers: 1, width: 64, heads: 2, kv_heads: 1, head: 32, hidden: "
             "96, seq: 8, vocab: 19, tied: 1}\n"
             "train: {threads: 2, batch: 2, lora: 2, lora_on: \"*.attn.q.*,*.mlp.down.*\", base: "
             "%s, lr: 0.1}\n",
             base);
    return lm_run(text);
}

/* Three steps; adapters of them, and what the session takes. */
static void train_base(const char *base, const char *from, const char *save, float out[2][256],
                       float *loss, size_t *bytes)
{
    ll_run *r = run_of_base(base);
    ll_graph *g;
    ll_session *s;
    ll_arena *a = ll_arena_new();
    const char *note;
    int n;
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 2, .seed = 5}, &s));
    if (from) no_error(ll_weights_load(s, &(ll_weights_from){from, NULL, NULL}, a, &note));
    if (save) no_error(ll_weights_save(s, save, NULL, LL_F32, &n));
    lm_set(s, B * T, V);
    for (int i = 0; i < 3; i++) {
        no_error(ll_session_run(s, 0.1));
        no_error(ll_session_get(s, "loss", &loss[i], sizeof *loss));
    }
    no_error(ll_session_get(s, "h0.attn.q.weight.lora_a", out[0], sizeof(float) * 128));
    no_error(ll_session_get(s, "h0.mlp.down.weight.lora_b", out[1], sizeof(float) * 128));
    *bytes = ll_session_bytes(s);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    ll_arena_free(a);
}

/* Training beside them is, to the bit, training beside the numbers that they stand for. */
static void in_blocks(void **state)
{
    static const char *const kinds[] = {"int8", "int4", "nf4"};
    float a[2][256] = {0}, b[2][256] = {0}, c[2][256] = {0}, la[3], lb[3], lc[3];
    size_t bytes, whole;
    for (int k = 0; k < 3; k++) {
        const char *file = tmpdir_path(state, "unblocked.safetensors");
        train_base(kinds[k], NULL, file, a, la, &bytes);
        train_base("f32", file, NULL, b, lb, &whole);
        train_base(kinds[k], file, NULL, c, lc, &bytes); /* blocks are found again */
        printf("%s: losses %.7g %.7g %.7g; %zu bytes, %zu in f32\n", kinds[k], la[0], la[1], la[2],
               bytes, whole);
        assert_memory_equal(la, lb, sizeof la);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(la, lc, sizeof la);
        assert_memory_equal(a, c, sizeof a);
        assert_true(la[0] != la[2] && bytes < whole);
    }
}

static void refused(void **)
{
    ll_run *r = run_of(", lora: 2, lora_on: \"embed.*\"");
    ll_graph *g;
    assert_int_equal(ll_run_graph(r, B, NULL, &g), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "embed.*"));
    ll_run_free(r);
    static const char text[] = "model: {name: gpt, seq: 8, vocab: 19}\ntrain: {base: nf4}\n";
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    assert_int_equal(ll_run_finish(r), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_text(), "goes with train.lora"));
    ll_run_free(r);
    r = run_of(", lora: 2, base: nf4"); /* of width 8 */
    assert_int_equal(ll_run_graph(r, B, NULL, &g), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "blocks of 32"));
    ll_run_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(adapters, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(in_blocks, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
