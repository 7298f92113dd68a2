/* Recurrent networks: every cell in both directions against plain loops over PyTorch's formulas,
 * with and without biases and first states; layers, their parameters, and what is refused. */
#include "op/built.h"

typedef struct net {
    ll_cell cell;
    bool reverse, bias, first;
    int64_t b, t, c, h;
} net;

static int gates_of(ll_cell c)
{
    return c == LL_LSTM ? 4 : c == LL_GRU ? 3 : 1;
}

/* y of every step, then the last h and, of LSTM, c: [b, t*h + h (+ h)] */
static ll_val build(ll_graph *g, const ll_val *in, const void *arg)
{
    const net *n = arg;
    ll_recurrent r = {.cell = n->cell, .reverse = n->reverse};
    r.weight_ih = in[1], r.weight_hh = in[2];
    if (n->bias) r.bias_ih = in[3], r.bias_hh = in[4];
    if (n->first) r.h0 = in[5];
    if (n->first && n->cell == LL_LSTM) r.c0 = in[6];
    ll_val y = ll_recur(g, in[0], &r);
    if (!y.id) return y;
    ll_val all[] = {ll_reshape(g, y, LL_SHAPE(n->b, n->t * n->h)), r.h, r.c};
    return ll_concat(g, all, n->cell == LL_LSTM ? 3 : 2, 1);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Row `row` of w times x, and its bias. */
static double dot(const double *w, const double *bias, const double *x, int64_t row, int64_t n)
{
    double sum = bias ? bias[row] : 0;
    for (int64_t i = 0; i < n; i++) sum += w[row * n + i] * x[i];
    return sum;
}

static void step(const net *n, double *const *in, const double *x, double *h, double *c)
{
    double was[16];
    int64_t H = n->h;
    memcpy(was, h, (size_t)H * sizeof *was);
    for (int64_t j = 0; j < H; j++) {
        double a[4], b[4]; /* what x gives to the gates, what h gives */
        for (int k = 0; k < gates_of(n->cell); k++) {
            a[k] = dot(in[1], n->bias ? in[3] : NULL, x, k * H + j, n->c);
            b[k] = dot(in[2], n->bias ? in[4] : NULL, was, k * H + j, H);
        }
        if (n->cell == LL_LSTM) {
            c[j] = sigmoid(a[1] + b[1]) * c[j] + sigmoid(a[0] + b[0]) * tanh(a[2] + b[2]);
            h[j] = sigmoid(a[3] + b[3]) * tanh(c[j]);
        } else if (n->cell == LL_GRU) {
            double z = sigmoid(a[1] + b[1]);
            h[j] = (1 - z) * tanh(a[2] + sigmoid(a[0] + b[0]) * b[2]) + z * was[j];
        } else {
            h[j] = n->cell == LL_RNN_TANH ? tanh(a[0] + b[0]) : fmax(0, a[0] + b[0]);
        }
    }
}

static void plain(const built *b, double *const *in, const ll_shape *shape, double *y)
{
    const net *n = b->arg;
    for (int64_t r = 0; r < n->b; r++, y += shape->d[1]) {
        double h[16] = {0}, c[16] = {0};
        for (int64_t j = 0; n->first && j < n->h; j++) {
            h[j] = in[5][r * n->h + j];
            if (n->cell == LL_LSTM) c[j] = in[6][r * n->h + j];
        }
        for (int64_t i = 0; i < n->t; i++) {
            int64_t t = n->reverse ? n->t - 1 - i : i;
            step(n, in, in[0] + (r * n->t + t) * n->c, h, c);
            memcpy(y + t * n->h, h, (size_t)n->h * sizeof *h);
        }
        memcpy(y + n->t * n->h, h, (size_t)n->h * sizeof *h);
        if (n->cell == LL_LSTM) memcpy(y + (n->t + 1) * n->h, c, (size_t)n->h * sizeof *c);
    }
}

static void test_cells(void **)
{
    for (int k = 0; k < 4 * LL_N_CELL; k++) {
        net n = {k / 4, k & 1, k & 2, !(k & 1) == !(k & 2), 3, 5, 2, 3};
        if (k == 2) n.t = 19; /* more steps than a node has operands */
        if (k == 5) n.t = 1;
        int64_t g = gates_of(n.cell) * n.h;
        char what[64];
        snprintf(what, sizeof what, "cell %d, case %d", k / 4, k % 4);
        built_check(&(built){what,
                             n.cell == LL_LSTM ? 7 : 6,
                             {LL_SHAPE(n.b, n.t, n.c), LL_SHAPE(g, n.c), LL_SHAPE(g, n.h),
                              LL_SHAPE(g), LL_SHAPE(g), LL_SHAPE(n.b, n.h), LL_SHAPE(n.b, n.h)},
                             &n,
                             build,
                             plain});
    }
}

/* Layers train: the sum of a sequence's numbers is learned, on every machine alike. */
static void test_layers(void **)
{
    static ll_val (*const layers[])(ll_graph *, const char *, ll_val, int64_t,
                                    bool) = {ll_lstm_layer, ll_gru_layer, ll_rnn_layer};
    for (int k = 0; k < 3; k++) {
        float loss[2], last[2];
        for (int m = 0; m < 2; m++) {
            ll_graph *g = ll_graph_new("g");
            ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(6, 4, 2));
            ll_val y = layers[k](g, "back", layers[k](g, "net", x, 5, false), 5, true);
            assert_true(ll_find(g, "net.weight_ih").id && ll_find(g, "back.bias_hh").id);
            ll_val out = ll_linear(g, "fc", ll_slice(g, y, 1, 3, 4), 1, true);
            ll_val want = ll_reshape(g, ll_sum(g, x, "btc->b"), LL_SHAPE(6, 1, 1));
            ll_minimize(g, ll_mean(g, ll_square(g, ll_sub(g, out, want))),
                        &(ll_optim){.name = "adam"});
            ll_session *s;
            const ll_session_opts o = {.machine = m ? "cpu" : "ref", .threads = 2, .seed = 3};
            if (ll_session_open(g, &o, &s) != LL_OK) fail_msg("%s", ll_error_text());
            float data[48];
            for (int i = 0; i < 48; i++) data[i] = (float)sin(1 + i * 1.7) / 4;
            for (int i = 0; i < 12; i++) {
                assert_int_equal(ll_session_set(s, "x", 0, data, sizeof data), LL_OK);
                assert_int_equal(ll_session_run(s, 0.02), LL_OK);
                assert_int_equal(ll_session_get(s, "loss", i ? &last[m] : &loss[m], 4), LL_OK);
            }
            ll_session_close(s);
            ll_graph_free(g);
        }
        assert_true(last[0] < loss[0] / 2);
        assert_true(fabsf(last[0] - last[1]) < 1e-3f * loss[0]);
    }
}

static void test_refusals(void **)
{
    ll_graph *g = ll_graph_new("g");
    ll_lstm_layer(g, "deep", ll_batch(g, "x", LL_F32, LL_SHAPE(2, 3)), 4, false);
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    assert_non_null(strstr(ll_error_text(), "deep"));
    ll_graph_free(g);
    g = ll_graph_new("g");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(2, 3, 4));
    ll_recurrent r = {.cell = LL_GRU,
                      .weight_ih = ll_param(g, "a", LL_SHAPE(15, 4), (ll_init){0}),
                      .weight_hh = ll_param(g, "b", LL_SHAPE(15, 5), (ll_init){0}),
                      .c0 = x};
    ll_recur(g, x, &r);
    assert_int_not_equal(ll_graph_check(g), LL_OK);
    assert_non_null(strstr(ll_error_text(), "c0"));
    ll_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cells), cmocka_unit_test(test_layers),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
