/* Learning from another model's logits and hidden states: distances are what plain loops make of
 * both models', gradients those of finite differences; the teacher does not change and is in no
 * file; what cannot teach is refused. */
#include "run/teacher.h"

#include "infer/small_lm.h"
#include "tmpdir.h"
#include "weights/state.h"

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

/* The last value of a scope. */
static ll_val last_of(const ll_graph *g, const char *scope)
{
    ll_val v = {0};
    for (int i = 0; i < g->n_node; i++)
        if (!strncmp(g->nodes[i].name, scope, strlen(scope))) v = g->nodes[i].out[0];
    assert_true(v.id > 0);
    return v;
}

/* Of the model by itself, with parameters of s that are led by `lead`: logits, or a scope's last
 * value. */
static void value_of(const ll_run *r, ll_session *from, const char *lead, const char *scope,
                     int width, float *out)
{
    ll_graph *g;
    ll_session *s;
    no_error(ll_run_graph(r, B, NULL, &g));
    if (scope) ll_graph_result(g, "state", last_of(g, scope));
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
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0));
    no_error(
        ll_session_get(s, scope ? "state" : "logits", out, sizeof *out * (size_t)(B * T * width)));
    ll_session_close(s);
    ll_graph_free(g);
}

static void logits_of(const ll_run *r, ll_session *from, const char *lead, float *out)
{
    value_of(r, from, lead, NULL, V, out);
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
    ll_st_list l = ll_session_tensors(s, a);
    for (int i = 0; i < l.n; i++) assert_false(ll_is_teacher(l.tensors[i].name));
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    r = run_of("name: gpt, layers: 1, width: 8, heads: 2, vocab: 19", more);
    assert_int_equal(ll_run_graph(r, B, &r->train.optim, &g), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_text(), "its vocabulary is 17, this run's is 19"));
    ll_run_free(r);
    r = run_of("name: bert, layers: 1, width: 8, heads: 2, hidden: 16, vocab: 17", more);
    assert_int_not_equal(ll_run_graph(r, B, &r->train.optim, &g), LL_OK);
    ll_run_free(r);
    ll_run_free(t);
}

/* ---- hidden states ---- */

static const char two[] = "name: llama, layers: 2, width: 12, heads: 2, kv_heads: 1, hidden: 20, "
                          "vocab: 17, tied: 0";

/* A run of gpt that learns from `two` in a file. */
static ll_run *learner(void **state, int width, const char *hidden, const char *more)
{
    char path[512], all[1024], model[128];
    snprintf(path, sizeof path, "%s", tmpdir_path(state, "two.yaml"));
    FILE *f = fopen(path, "w");
    fprintf(f, "model: {%s}\n", two);
    fclose(f);
    snprintf(all, sizeof all, ", lr: 0.05, teacher: \"%s\", teacher_hidden: \"%s\"%s", path, hidden,
             more);
    snprintf(model, sizeof model, "name: gpt, layers: 2, width: %d, heads: 2, vocab: 17", width);
    return run_of(model, all);
}

/* mean((ours P' - theirs)^2); p NULL: they are as wide. */
static double state_distance(ll_session *s, const ll_run *r, const ll_run *t, const char *ours,
                             const char *theirs, const float *p, int width)
{
    float a[B * T * 16], b[B * T * 12];
    double sum = 0;
    value_of(r, s, "", ours, width, a);
    value_of(t, s, "teacher.", theirs, 12, b);
    for (int i = 0; i < B * T; i++)
        for (int k = 0; k < 12; k++) {
            double x = p ? 0 : (double)a[i * width + k];
            for (int c = 0; p && c < width; c++)
                x += (double)a[i * width + c] * (double)p[k * width + c];
            x -= (double)b[i * 12 + k];
            sum += x * x / (B * T * 12);
        }
    return sum;
}

static double minimised(ll_session *s, double weight)
{
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0));
    return ll_session_result(s, "distillation") + weight * ll_session_result(s, "hidden");
}

/* A step of sgd is lr times the gradient: that of differences, for some elements. */
static void assert_gradient(ll_session *s, const char *name, size_t n, double weight)
{
    float before[512], after[512];
    double want[512], most = 0, size = 0;
    assert_true(n <= 512);
    no_error(ll_session_get(s, name, before, n * sizeof(float)));
    for (size_t i = 0; i < n; i += 7) {
        double loss[2];
        for (int k = 0; k < 2; k++) {
            memcpy(after, before, sizeof after);
            after[i] += k ? 0.02F : -0.02F;
            no_error(ll_session_set(s, name, 0, after, n * sizeof *after));
            loss[k] = minimised(s, weight);
        }
        want[i] = (loss[1] - loss[0]) / 0.04;
    }
    no_error(ll_session_set(s, name, 0, before, n * sizeof *before));
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0.5));
    no_error(ll_session_get(s, name, after, n * sizeof(float)));
    for (size_t i = 0; i < n; i += 7) {
        double is = ((double)before[i] - (double)after[i]) / 0.5;
        most = fmax(most, fabs(want[i] - is));
        size = fmax(size, fabs(is));
    }
    printf("%s: gradients of %.3g, off by %.2g\n", name, size, most);
    assert_true(size > 1e-3 && most < 0.01 * size);
}

static void teaches_states(void **state)
{
    ll_run *t = run_of(two, "");
    ll_graph *g;
    ll_session *s;
    float p[12 * 8];
    ll_run *r = learner(state, 8, "h0=h1, h1=h0",
                        ", teacher_weight: 1, temperature: 1, hidden_weight: 3, optimizer: sgd");
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    for (int i = 1; i < g->n_value; i++)
        if (g->values[i].init.kind == LL_NORMAL) g->values[i].init.a = 0.3;
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 3}, &s));
    no_error(ll_session_get(s, "match.h0.h1.weight", p, sizeof p));
    double want = state_distance(s, r, t, "h0.", "h1.", p, 8);
    no_error(ll_session_get(s, "match.h1.h0.weight", p, sizeof p));
    want = (want + state_distance(s, r, t, "h1.", "h0.", p, 8)) / 2;
    minimised(s, 0);
    double is = ll_session_result(s, "hidden");
    printf("states: distance %.7g, by plain loops %.7g\n", is, want);
    assert_true(want > 0.1 && fabs(is / want - 1) < 1e-4);
    ll_session_close(s);
    static const struct {
        const char *name;
        size_t n;
    } of[] = {{"match.h0.h1.weight", 96}, {"h0.mlp.fc.weight", 256}, {"h1.attn.proj.weight", 64}};
    for (size_t i = 0; i < 3; i++) { /* each from the same point */
        no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 3}, &s));
        assert_gradient(s, of[i].name, of[i].n, 3);
        ll_session_close(s);
    }
    ll_graph_free(g);
    ll_run_free(r);
    ll_run_free(t);
}

/* As wide: no projection. Other logits do not matter where they are not compared. */
static void teaches_states_alone(void **state)
{
    ll_run *t = run_of(two, "");
    ll_graph *g;
    ll_session *s;
    ll_run *r =
        learner(state, 12, "h1=h1", ", teacher_weight: 0, hidden_weight: 10000, optimizer: adamw");
    no_error(ll_run_graph(r, B, &r->train.optim, &g));
    no_error(ll_session_open(g, &(ll_session_opts){.threads = 1, .seed = 3}, &s));
    assert_int_equal(ll_find_result(g, "distillation").id, 0);
    for (int i = 1; i < g->n_value; i++)
        assert_false(g->values[i].name && ll_is_match(g->values[i].name));
    double want = state_distance(s, r, t, "h1.", "h1.", NULL, 12);
    lm_set(s, B * T, V);
    no_error(ll_session_run(s, 0.02));
    double first = ll_session_result(s, "hidden");
    for (int i = 0; i < 40; i++) no_error(ll_session_run(s, 0.02));
    double last = ll_session_result(s, "hidden");
    printf("states: distance %.7g, by plain loops %.7g; %.7g after 40 steps\n", first, want, last);
    assert_true(fabs(first / want - 1) < 1e-4 && last < 0.5 * first);
    ll_session_close(s);
    ll_graph_free(g);
    ll_run_free(r);
    ll_run_free(t);
    static const char *const wrong[][2] = {
        {"h0", "expected OURS=THEIRS"},           {"h0=", "expected OURS=THEIRS"},
        {"h0=h1,h0=h1", "given twice"},           {"h2=h1", "no part h2; did you mean h"},
        {"h0=g1", "no part g1; did you mean h1"}, {"h0.attn.qkv=h1", "the last dimension"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        r = learner(state, 12, wrong[i][0], "");
        assert_int_equal(ll_run_graph(r, B, &r->train.optim, &g), LL_E_CONFIG);
        if (!strstr(ll_error_text(), wrong[i][1])) fail_msg("%s: %s", wrong[i][0], ll_error_text());
        ll_run_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(teaches, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(teaches_states, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test_setup_teardown(teaches_states_alone, tmpdir_setup, tmpdir_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
