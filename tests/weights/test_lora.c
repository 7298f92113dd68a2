/* Adapters: only they are trained; merged weights give the same logits; adapters alone, as PEFT
 * names them; what they may stand beside. */
#include "pass/lora.h"
#include "infer/small_lm.h"
#include "tmpdir.h"
#include "weights/safetensors.h"
#include "weights/weights_load.h"

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
    no_error(ll_adapters_save(s, folder, "hf-llama", NULL, &n));
    assert_int_equal(n, 14);
    strcat(folder, "/adapter_model.safetensors");
    no_error(ll_st_open(folder, &f));
    const ll_st_entry *e =
        ll_st_find(f, "base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight");
    assert_true(e && e->n_dims == 2 && e->dims[0] == 8 && e->dims[1] == 2);
    ll_st_close(f);
    assert_int_equal(ll_adapters_save(s, folder, "hf-gpt2", NULL, &n), LL_E_CONFIG);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    ll_run_free(plain);
}

/* ---- prompts ---- */

enum { P = 3 };

static ll_run *run_long(const char *more, int seq)
{
    char text[512];
    snprintf(
        text, sizeof text,
        "model: {name: llama, layers: 2, width: 8, heads: 4, kv_heads: 2, hidden: 12, seq: %d, "
        "vocab: 19}\ntrain: {threads: 1, batch: 2, optimizer: sgd%s}\n",
        seq, more);
    return lm_run(text);
}

static void open_run(const ll_run *r, bool train, ll_graph **g, ll_session **s)
{
    no_error(ll_run_graph(r, B, train ? &r->train.optim : NULL, g));
    for (int i = 1; i < (*g)->n_value; i++) /* so that logits differ */
        if ((*g)->values[i].init.kind == LL_NORMAL) (*g)->values[i].init.a = 0.5;
    no_error(ll_session_open(*g, &(ll_session_opts){.threads = 1, .seed = 5}, s));
}

static void copy(ll_session *from, ll_session *to)
{
    for (int i = 1; i < to->g->n_value; i++) {
        const ll_value *v = &to->g->values[i];
        float x[4096];
        if (v->kind != LL_PARAM || v->node >= 0 || ll_is_prompt(v->name)) continue;
        size_t bytes = (size_t)ll_numel(&v->type.shape) * sizeof *x;
        no_error(ll_session_get(from, v->name, x, bytes));
        no_error(ll_session_set(to, v->name, 0, x, bytes));
    }
}

static double loss_with(ll_session *s, float prompt[P * 8], int i, float more)
{
    float loss, was = prompt[i];
    prompt[i] += more;
    no_error(ll_session_set(s, "prompt_embeddings", 0, prompt, sizeof(float) * P * 8));
    prompt[i] = was;
    no_error(ll_session_run(s, 0));
    no_error(ll_session_get(s, "loss", &loss, sizeof loss));
    return (double)loss;
}

/* Vectors that are those of tokens are as these tokens before the others; they alone are trained,
 * by the slope of the loss; they are written alone, and nothing else is. */
static void prompts(void **state)
{
    static const int32_t tokens[P] = {7, 2, 11};
    ll_run *soft = run_long(", prompt: 3", T), *plain = run_long("", T + P);
    ll_graph *gs, *gp, *gt;
    ll_session *s, *p, *t;
    float table[V * 8], prompt[P * 8], one[B * T * V], two[B * (T + P) * V], after[P * 8];
    int32_t x[B * (T + P)];
    open_run(soft, false, &gs, &s);
    open_run(plain, false, &gp, &p);
    copy(s, p);
    no_error(ll_session_get(s, "embed.weight", table, sizeof table));
    for (int i = 0; i < P * 8; i++) prompt[i] = table[tokens[i / 8] * 8 + i % 8];
    no_error(ll_session_set(s, "prompt_embeddings", 0, prompt, sizeof prompt));
    for (int i = 0; i < B * (T + P); i++) {
        int place = i % (T + P), k = i / (T + P) * T + place - P;
        x[i] = place < P ? tokens[place] : k * k % V;
    }
    no_error(ll_session_set(p, "x", 0, x, sizeof x));
    no_error(ll_session_set(p, "y", 0, x, sizeof x));
    no_error(ll_session_run(p, 0));
    no_error(ll_session_get(p, "logits", two, sizeof two));
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0));
    no_error(ll_session_get(s, "logits", one, sizeof one));
    double most = 0, size = 0;
    for (int i = 0; i < B * T * V; i++) {
        double b = (double)two[i + (i / (T * V) + 1) * P * V];
        most = fmax(most, fabs((double)one[i] - b)), size = fmax(size, fabs(b));
    }
    printf("logits of %g with a prompt are off by %g\n", size, most);
    assert_true(size > 0.1 && most < 1e-5 * size);
    open_run(soft, true, &gt, &t);
    copy(s, t);
    assert_int_equal(ll_find(gt, "d.embed.weight").id, 0);
    no_error(ll_session_set(t, "prompt_embeddings", 0, prompt, sizeof prompt));
    lm_set(t, B * T, V);
    no_error(ll_session_run(t, 1));
    no_error(ll_session_get(t, "prompt_embeddings", after, sizeof after));
    for (int i = 0; i < P * 8; i++) {
        double slope = (loss_with(s, prompt, i, 1e-2f) - loss_with(s, prompt, i, -1e-2f)) / 2e-2;
        double took = (double)prompt[i] - (double)after[i];
        if (fabs(slope - took) > 2e-3 * (1 + fabs(slope)))
            fail_msg("prompt %d: moved by %g, want %g", i, took, slope);
    }
    no_error(ll_session_get(t, "embed.weight", two, sizeof table));
    assert_memory_equal(two, table, sizeof table);
    int n;
    char folder[512];
    ll_st_file *f;
    assert_int_equal(ll_weights_save(t, tmpdir_path(state, "w.safetensors"), NULL, LL_F32, &n),
                     LL_E_ARG);
    snprintf(folder, sizeof folder, "%s", tmpdir_path(state, "prompt"));
    no_error(ll_adapters_save(t, folder, NULL, NULL, &n));
    assert_int_equal(n, 1);
    strcat(folder, "/adapter_model.safetensors");
    no_error(ll_st_open(folder, &f));
    const ll_st_entry *e = ll_st_find(f, "prompt_embeddings");
    assert_true(e && e->n_dims == 2 && e->dims[0] == P && e->dims[1] == 8);
    ll_st_close(f);
    ll_session_close(s), ll_session_close(p), ll_session_close(t);
    ll_graph_free(gs), ll_graph_free(gp), ll_graph_free(gt);
    ll_run_free(soft), ll_run_free(plain);
}

/* A model that has no place for one says so. */
static void no_prompt(void **)
{
    ll_run *r = lm_run("model: {name: gpt, layers: 1, width: 8, heads: 2, seq: 8, vocab: 19}\n"
                       "train: {prompt: 3}\n");
    ll_graph *g;
    assert_int_not_equal(ll_run_graph(r, B, NULL, &g), LL_OK);
    assert_non_null(strstr(ll_error_text(), "such as llama"));
    ll_run_free(r);
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
    assert_non_null(strstr(ll_error_text(), "needs train.lora"));
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
        cmocka_unit_test_setup_teardown(prompts, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(no_prompt),
        cmocka_unit_test_setup_teardown(in_blocks, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
