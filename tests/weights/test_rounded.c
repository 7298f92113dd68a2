/* Weights that are trained for blocks: a step is that of the model with rounded weights, to the
 * bit, and goes to the weights as they are; what is not finite is not hidden. */
#include "kern/blocks.h"
#include "infer/small_lm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { B = 2, T = 8, V = 37, MOST = 1 << 13 };

static ll_session *open_lm(const char *quantize, ll_graph **g)
{
    char text[512];
    snprintf(
        text, sizeof text,
        "model: {name: llama, layers: 1, width: 32, heads: 2, kv_heads: 1, head: 32, hidden: 64, "
        "seq: "
        "8, vocab: 37}\ntrain: {batch: 2, optimizer: sgd, threads: 2, quantize: %s}\n",
        quantize);
    ll_run *r = lm_run(text);
    ll_session *s;
    no_error(ll_run_graph(r, B, &r->train.optim, g));
    no_error(
        ll_session_open(*g, &(ll_session_opts){.threads = 2, .seed = 3, .machine = "cpu"}, &s));
    ll_run_free(r);
    return s;
}

static bool is_product(const char *name)
{
    return strstr(name, ".attn.") || strstr(name, ".mlp.");
}

/* The loss, and what a step changes, with weights rounded before and by the graph. The table is
 * the last product's too: rounded there, and as it is where tokens are looked up. */
static void as_rounded(void **)
{
    for (int bits = 4; bits <= 8; bits += 4) {
        ll_graph *g[2];
        ll_session *s[2] = {open_lm(bits == 4 ? "int4" : "int8", &g[0]), open_lm("none", &g[1])};
        static float w[MOST], is[MOST], by[2][MOST];
        float loss[2];
        for (int i = 1; i < g[1]->n_value; i++) {
            const ll_value *v = &g[1]->values[i];
            int64_t n = ll_numel(&v->type.shape);
            if (v->node >= 0 || v->kind != LL_PARAM) continue;
            no_error(ll_session_get(s[0], v->name, w, sizeof *w * (size_t)n));
            for (int64_t b = 0; b < n && is_product(v->name); b += LL_PACK)
                ll_block_round(w + b, bits, is + b);
            if (is_product(v->name)) {
                assert_memory_not_equal(w, is, sizeof *w * (size_t)n);
                no_error(ll_session_set(s[1], v->name, 0, is, sizeof *is * (size_t)n));
            }
            if (strcmp(v->name, "embed.weight")) continue;
            for (int64_t b = 0; b < n; b += LL_PACK) ll_block_round(w + b, bits, is + b);
            for (int k = 0; k < 2; k++) /* a table that rounding does not change */
                no_error(ll_session_set(s[k], v->name, 0, is, sizeof *is * (size_t)n));
        }
        for (int k = 0; k < 2; k++) {
            lm_set(s[k], B * T, V);
            no_error(ll_session_run(s[k], 10));
            no_error(ll_session_get(s[k], "loss", &loss[k], sizeof *loss));
        }
        assert_memory_equal(&loss[0], &loss[1], sizeof *loss);
        int compared = 0;
        for (int i = 1; i < g[1]->n_value; i++) {
            const ll_value *v = &g[1]->values[i];
            size_t bytes = sizeof *w * (size_t)ll_numel(&v->type.shape);
            if (v->node >= 0 || v->kind != LL_PARAM) continue;
            for (int k = 0; k < 2; k++) no_error(ll_session_get(s[k], v->name, by[k], bytes));
            if (!is_product(v->name)) assert_memory_equal(by[0], by[1], bytes);
            compared += !is_product(v->name);
        }
        assert_true(compared >= 4);
        for (int k = 0; k < 2; k++) {
            ll_session_close(s[k]);
            ll_graph_free(g[k]);
        }
    }
}

/* By plain gradient descent, weights change by the rounded model's gradient. */
static void straight(void **)
{
    ll_graph *g[2];
    ll_session *s[2] = {open_lm("int4", &g[0]), open_lm("none", &g[1])};
    static float w[MOST], is[MOST], to[2][MOST];
    const char *name = "h0.mlp.down.weight";
    int64_t n = ll_numel(&ll_value_of(g[0], ll_find(g[0], name))->type.shape);
    size_t bytes = sizeof *w * (size_t)n;
    for (int i = 1; i < g[1]->n_value; i++) {
        const ll_value *v = &g[1]->values[i];
        int64_t m = ll_numel(&v->type.shape);
        if (v->node >= 0 || v->kind != LL_PARAM || v->type.shape.n < 2) continue;
        no_error(ll_session_get(s[0], v->name, w, sizeof *w * (size_t)m));
        for (int64_t b = 0; b < m; b += LL_PACK) ll_block_round(w + b, 4, is + b);
        no_error(ll_session_set(s[1], v->name, 0, is, sizeof *is * (size_t)m));
        if (!is_product(v->name))
            no_error(ll_session_set(s[0], v->name, 0, is, sizeof *is * (size_t)m));
    }
    no_error(ll_session_get(s[0], name, w, bytes));
    no_error(ll_session_get(s[1], name, is, bytes));
    double off = 0, all = 0;
    for (int k = 0; k < 2; k++) {
        lm_set(s[k], B * T, V);
        no_error(ll_session_run(s[k], 10));
        no_error(ll_session_get(s[k], name, to[k], bytes));
    }
    for (int64_t i = 0; i < n; i++) {
        double a = (double)to[0][i] - (double)w[i], b = (double)to[1][i] - (double)is[i];
        off += (a - b) * (a - b), all += b * b;
    }
    assert_true(all > 0 && off < 1e-8 * all);
    for (int k = 0; k < 2; k++) {
        ll_session_close(s[k]);
        ll_graph_free(g[k]);
    }
}

static void not_finite(void **)
{
    float x[LL_PACK], y[LL_PACK];
    for (int bits = 4; bits <= 8; bits += 4)
        for (int i = 0; i < LL_PACK; i++) {
            for (int k = 0; k < LL_PACK; k++) x[k] = (float)k / 7;
            x[i] = i % 2 ? NAN : INFINITY;
            ll_block_round(x, bits, y);
            assert_memory_equal(x, y, sizeof x);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_rounded), cmocka_unit_test(straight),
                                       cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
