/* Layers and builders of normalisation, dropout, attention and losses: names, running statistics,
 * random streams, and what they refuse. */
#include "ir/op.h"
#include "kern/attr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void must(ll_err e)
{
    if (e != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
}

/* x [4,3] of micro-batch m */
static void fill_x(float x[12], int m)
{
    for (int i = 0; i < 12; i++) x[i] = (float)(sin(1.0 + i * 0.7 + m * 3.1) * (1 + i % 3) + i % 3);
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-5 * (1 + fabs(b)))) fail_msg("%.9g, want %.9g", a, b);
}

/* Biased mean and variance of channel j of micro-batch m. */
static void moments(int m, int j, double *mean, double *var)
{
    float x[12];
    fill_x(x, m);
    *mean = *var = 0;
    for (int i = 0; i < 4; i++) *mean += x[i * 3 + j] / 4.0;
    for (int i = 0; i < 4; i++) *var += pow(x[i * 3 + j] - *mean, 2) / 4.0;
}

/* After a step the running statistics have moved by a tenth towards the average over micro-batches,
 * once, with the unbiased variance. */
static void running_statistics(void **)
{
    static const char *const machines[] = {"ref", "cpu"};
    for (int n_micro = 1; n_micro <= 2; n_micro++)
        for (int k = 0; k < 2; k++) {
            ll_graph *g = ll_graph_new("bn");
            ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(4, 3));
            ll_val y = ll_batchnorm_layer(g, "bn", x, true);
            ll_minimize(g, ll_mean(g, ll_square(g, y)), &(ll_optim){.name = "sgd"});
            ll_session *s;
            must(ll_session_open(
                g, &(ll_session_opts){.machine = machines[k], .micro_batches = n_micro}, &s));
            for (int m = 0; m < n_micro; m++) {
                float data[12];
                fill_x(data, m);
                must(ll_session_set(s, "x", m, data, sizeof data));
            }
            must(ll_session_run(s, 0));
            float mean[3], var[3];
            must(ll_session_get(s, "bn.mean", mean, sizeof mean));
            must(ll_session_get(s, "bn.var", var, sizeof var));
            for (int j = 0; j < 3; j++) {
                double a = 0, v = 0;
                for (int m = 0; m < n_micro; m++) {
                    double one, two;
                    moments(m, j, &one, &two);
                    a += one / n_micro;
                    v += two * 4 / 3 / n_micro;
                }
                near(mean[j], 0.1 * a);
                near(var[j], 0.9 + 0.1 * v);
            }
            ll_session_close(s);
            ll_graph_free(g);
        }
}

static void inference(void **)
{
    ll_graph *g = ll_graph_new("bn");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(4, 3));
    ll_val y = ll_batchnorm_layer(g, "bn", x, false);
    ll_state(g, "out", LL_SHAPE(4, 3), (ll_init){LL_ZEROS, 0});
    ll_graph_update(g, ll_find(g, "out"), y);
    ll_session *s;
    must(ll_session_open(g, &(ll_session_opts){.machine = "cpu"}, &s));
    float data[12], weight[3] = {1, -2, 3}, bias[3] = {0, 1, 2}, mean[3] = {0.5f, 1, -1};
    float var[3] = {1, 0.25f, 4}, out[12];
    fill_x(data, 0);
    must(ll_session_set(s, "x", 0, data, sizeof data));
    must(ll_session_set(s, "bn.weight", 0, weight, sizeof weight));
    must(ll_session_set(s, "bn.bias", 0, bias, sizeof bias));
    must(ll_session_set(s, "bn.mean", 0, mean, sizeof mean));
    must(ll_session_set(s, "bn.var", 0, var, sizeof var));
    must(ll_session_run(s, 0));
    must(ll_session_get(s, "out", out, sizeof out));
    for (int i = 0; i < 12; i++) {
        int j = i % 3;
        near(out[i], (data[i] - mean[j]) / sqrt(var[j] + 1e-5) * weight[j] + bias[j]);
    }
    must(ll_session_get(s, "bn.mean", out, sizeof mean)); /* does not move */
    for (int j = 0; j < 3; j++) assert_true(out[j] == mean[j]);
    ll_session_close(s);
    ll_graph_free(g);
}

static void layernorm_names(void **)
{
    ll_graph *g = ll_graph_new("ln");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 5));
    ll_graph_push(g, "block");
    ll_layernorm_layer(g, "ln", x);
    ll_graph_pop(g);
    must(ll_graph_check(g));
    ll_val w = ll_find(g, "block.ln.weight"), b = ll_find(g, "block.ln.bias");
    assert_true(w.id && b.id);
    assert_true(ll_value_of(g, w)->init.kind == LL_CONSTANT && ll_value_of(g, w)->init.a == 1);
    assert_true(ll_value_of(g, b)->init.kind == LL_ZEROS);
    assert_true(ll_graph_shape(g, w).n == 1 && ll_graph_shape(g, w).d[0] == 5);
    ll_graph_free(g);
}

static int64_t stream_of(const ll_graph *g, ll_val v)
{
    return ((const ll_dropout_attr *)g->nodes[ll_value_of(g, v)->node].attr)->stream;
}

/* Places differ, also twice in one scope; the same declaration gives the same streams. */
static void dropout_streams(void **)
{
    int64_t stream[2][3];
    for (int k = 0; k < 2; k++) {
        ll_graph *g = ll_graph_new("drop");
        ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 5));
        assert_int_equal(ll_dropout(g, x, 0).id, x.id);
        stream[k][0] = stream_of(g, ll_dropout(g, x, 0.5));
        stream[k][1] = stream_of(g, ll_dropout(g, x, 0.5));
        ll_graph_push(g, "block");
        stream[k][2] = stream_of(g, ll_dropout(g, x, 0.5));
        ll_graph_pop(g);
        must(ll_graph_check(g));
        ll_graph_free(g);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(stream[0][i] == stream[1][i]);
        assert_true(stream[0][i] != stream[0][(i + 1) % 3]);
    }
}

static void refuses(int which, const char *want)
{
    ll_graph *g = ll_graph_new("bad");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(4, 3));
    ll_val label = ll_batch(g, "label", LL_I32, LL_SHAPE(4));
    ll_val wrong = ll_batch(g, "wrong", LL_F32, LL_SHAPE(4));
    ll_val gain = ll_batch(g, "gain", LL_F32, LL_SHAPE(2));
    ll_val one = ll_batch(g, "one", LL_F32, LL_SHAPE(1, 3));
    switch (which) {
    case 0: ll_dropout(g, x, 1); break;
    case 1: ll_dropout(g, x, -0.1); break;
    case 2: ll_cross_entropy(g, x, wrong); break;
    case 3: ll_cross_entropy(g, label, label); break;
    case 4: ll_attention(g, x); break;
    case 5: ll_rmsnorm(g, x, gain, 1e-5); break;
    case 6: ll_embedding(g, x, wrong); break;
    case 7: ll_batchnorm_layer(g, "bn", one, true); break;
    case 8: ll_softmax(g, label); break;
    }
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    if (!strstr(ll_error_text(), want)) fail_msg("\"%s\" has no \"%s\"", ll_error_text(), want);
    ll_graph_free(g);
}

static void refusals(void **)
{
    static const char *const want[] = {"p = 1, expected 0 <= p < 1",
                                       "p = -0.1, expected 0 <= p < 1",
                                       "operand 1 holds indices and must be i32",
                                       "logits are i32, expected a float type",
                                       "qkv is [4,3], expected [batch,time,3,heads,width]",
                                       "loop c runs over 3 and over 2",
                                       "operand 1 holds indices and must be i32",
                                       "training needs more than one value per channel",
                                       "operand 0 is i32"};
    for (int i = 0; i < 9; i++) refuses(i, want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_statistics), cmocka_unit_test(inference),
        cmocka_unit_test(layernorm_names), cmocka_unit_test(dropout_streams),
        cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
