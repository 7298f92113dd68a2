/* Learning from another model's logits: the distance is what plain loops make of both models'
 * logits; the teacher does not change and is in no file; what cannot teach is refused. */
#include "train/teacher.h"

#include "small_lm.h"
#include "tmpdir.h"
#include "train/state.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { B = 2, T = 6, V = 17 };

static ll_run *run_of(const char *model, const char *train)
{
    char text[1024];
    snprintf(text, sizeof text, "model: {%s, seq: 6}\ntrain: {threads: 1, batch: 2%s}\n", model,
             train);
    return lm_run(text);
}

/* Of the model by itself, with parameters of s that are led by `lead`. */
static void logits_of(const ll_run *r, ll_session *from, const char *lead, float *out)
{
    ll_graph *g;
    ll_session *s;
    no_error(ll_run_graph(r, B, NULL, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1}, &s));
    for (int i = 1; i < g->n_value; i++) {
        const ll_value *v = &g->values[i];
        float x[4096];
        char name[128];
        if (v->node >= 0 || v->kind != LL_PARAM) continue;
        snprintf(name, sizeof name, "%s%s", lead, v->name);
        size_t bytes = sizeof *x * (size_t)ll_numel(&v->type.shape);
        assert_true(bytes <= sizeof x);
        no_error(ll_session_get(from, name, x, bytes));
        no_error(ll_session_set(s, v->name, 0, x, bytes));
    }
    lm_logits(s, B * T, V, out);
    ll_graph_free(g);
}

static double distance(const float *theirs, const float *ours, double heat)
{
    double all = 0;
    for (int i = 0; i < B * T; i++) {
        double a = 0, b = 0, sum = 0;
        for (int k = 0; k < V; k++) a += exp((double)theirs[i * V + k] / heat);
        for (int k = 0; k < V; k++) b += exp((double)ours[i * V + k] / heat);
        for (int k = 0; k < V; k++) {
            double p = (double)theirs[i * V + k] / heat - log(a);
            sum += exp(p) * (p - ((double)ours[i * V + k] / heat - log(b)));
        }
        all += sum;
    }
    return heat * heat * all / (B * T);
}

static const char large[] = "name: llama, layers: 1, width: 16, heads: 2, kv_heads: 1, hidden: 24, "
                            "vocab: 17, tied: 0";

static void teaches(void **state)
{
    char path[512], more[1024];
    snprintf(path, sizeof path, "%s", tmpdir_path(state, "t.yaml"));
    FILE *f = fopen(path, "w");
    fprintf(f, "model: {%s}\n", large);
    fclose(f);
    snprintf(more, sizeof more,
             ", lr: 0.05, teacher: \"%s\", teacher_weight: 1, temperature: 0.2, optimizer: adamw",
             path);
    ll_run *r = run_of("name: gpt, layers: 1, width: 8, heads: 2, vocab: 17", more);
    ll_run *t = run_of(large, "");
    ll_graph *g;
    ll_session *s;
    float ours[B * T * V], theirs[B * T * V], after[B * T * V];
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 3}, &s));
    logits_of(r, s, "", ours);
    logits_of(t, s, "teacher.", theirs);
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0.05));
    double first = ll_session_result(s, "distillation"), want = distance(theirs, ours, 0.2);
    for (int i = 0; i < 30; i++) no_error(ll_session_run(s, 0.05));
    double last = ll_session_result(s, "distillation");
    printf("distance %.7g, by plain loops %.7g; %.7g after 30 steps\n", first, want, last);
    assert_true(fabs(first / want - 1) < 1e-4 && want > 1e-4 && last < 0.5 * first);
    logits_of(t, s, "teacher.", after);
    assert_memory_equal(theirs, after, sizeof after);
    LL_OWN(ll_arena) a = ll_arena_new();
    ll_st_tensor *tensors;
    int n = ll_session_tensors(s, a, &tensors, NULL);
    for (int i = 0; i < n; i++) assert_false(ll_is_teacher(tensors[i].name));
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    r = run_of("name: gpt, layers: 1, width: 8, heads: 2, vocab: 19", more);
    assert_int_equal(ll_run_graph(r, B, &r->train.optim, &g), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_text(), "[2,6,17]"));
    ll_run_free(r);
    r = run_of("name: bert, layers: 1, width: 8, heads: 2, hidden: 16, vocab: 17", more);
    assert_int_not_equal(ll_run_graph(r, B, &r->train.optim, &g), LL_OK);
    ll_run_free(r);
    ll_run_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(teaches, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
