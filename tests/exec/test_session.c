/* test_session.c: graphs compiled and run: machines agree, micro-batches average, memory is shared,
 * numbers that are not finite are traced to their op. */
#include "exec/session.h"

#include "base/rng.h"
#include "tmpdir.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#define MUST(call)                                                                                 \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());               \
    } while (0)

enum { N = 12, IN = 7, HIDDEN = 13, OUT = 5 };

static ll_graph *mlp(int batch, const ll_optim *o)
{
    ll_graph *g = ll_graph_new("mlp");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(batch, IN));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(batch));
    ll_val h = ll_gelu(g, ll_linear(g, "fc1", x, HIDDEN, true));
    ll_val loss = ll_mean(g, ll_cross_entropy(g, ll_linear(g, "fc2", h, OUT, true), y));
    ll_graph_result(g, "loss", loss);
    if (o) ll_minimize(g, loss, o);
    return g;
}

static float x_data[N * IN];
static int32_t y_data[N];

static void make_data(void)
{
    for (int i = 0; i < N * IN; i++) x_data[i] = (float)ll_normal_at(1, 2, (uint64_t)i);
    for (int i = 0; i < N; i++) y_data[i] = (int32_t)ll_below_at(1, 3, (uint64_t)i, OUT);
}

/* Data of N samples over the session's micro-batches. */
static void feed(ll_session *s, int n_micro)
{
    int b = N / n_micro;
    for (int m = 0; m < n_micro; m++) {
        MUST(ll_session_set(s, "x", m, x_data + m * b * IN, sizeof(float) * (size_t)(b * IN)));
        MUST(ll_session_set(s, "y", m, y_data + m * b, 4 * (size_t)b));
    }
}

static double train(ll_session_opts opts, const ll_optim *o, int steps, float *w)
{
    int n_micro = opts.micro_batches ? opts.micro_batches : 1;
    ll_graph *g = mlp(N / n_micro, o);
    ll_session *s;
    MUST(ll_session_open(g, &opts, &s));
    feed(s, n_micro);
    for (int i = 0; i < steps; i++) MUST(ll_session_run(s, 0.05));
    double loss = ll_session_result(s, "loss");
    MUST(ll_session_get(s, "fc1.weight", w, 4 * HIDDEN * IN));
    ll_session_close(s);
    ll_graph_free(g);
    return loss;
}

static void test_nothing_set(void **state)
{
    (void)state;
    make_data();
    ll_graph *g = mlp(N / 2, &(ll_optim){.name = "sgd"});
    ll_session *s;
    MUST(ll_session_open(g, &(ll_session_opts){.seed = 1, .micro_batches = 2}, &s));
    MUST(ll_session_set(s, "x", 0, x_data, sizeof x_data / 2));
    MUST(ll_session_set(s, "y", 0, y_data, sizeof y_data / 2));
    assert_int_equal(ll_session_run(s, 0.1), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "batch data x was never set for every micro-batch"));
    MUST(ll_session_set(s, "x", 1, x_data, sizeof x_data / 2));
    assert_int_equal(ll_session_run(s, 0.1), LL_E_ARG);
    MUST(ll_session_set(s, "y", 1, y_data, sizeof y_data / 2));
    MUST(ll_session_run(s, 0.1));
    double loss = ll_session_result(s, "loss");
    assert_int_equal(ll_session_run(s, NAN), LL_E_ARG);
    assert_int_equal(ll_session_run(s, INFINITY), LL_E_ARG);
    float one = 1;
    assert_int_equal(ll_session_set(s, "loss", 0, &one, sizeof one), LL_E_ARG);
    assert_true(ll_session_result(s, "loss") == loss);
    assert_true(isnan(ll_session_result(s, "los")));
    assert_non_null(strstr(ll_error_text(), "the graph has no result los"));
    ll_session_close(s);
    ll_graph_result(g, "first", ll_argmax(g, ll_find(g, "x"), 1));
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.micro_batches = 2}, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "result first is i32"));
    MUST(ll_session_open(g, NULL, &s));
    ll_session_close(s);
    ll_graph_free(g);
}

/* One step of plain descent from fc1.weight = 0.25, fc2.weight as ever; what moved by how much. */
static void one_step(const ll_optim *o, float *first, float *second, float *average)
{
    ll_graph *g = mlp(N, o);
    ll_session *s;
    float before[OUT * HIDDEN];
    MUST(ll_session_open(g, &(ll_session_opts){.seed = 1}, &s));
    feed(s, 1);
    MUST(ll_session_get(s, "fc2.weight", before, sizeof before));
    MUST(ll_session_run(s, 0.05));
    MUST(ll_session_get(s, "fc1.weight", first, 4 * HIDDEN * IN));
    MUST(ll_session_get(s, "fc2.weight", second, sizeof before));
    for (int i = 0; i < OUT * HIDDEN; i++) second[i] -= before[i];
    if (o->ema) {
        float w[OUT * HIDDEN], again[OUT * HIDDEN];
        MUST(ll_session_get(s, "fc2.weight", w, sizeof w));
        MUST(ll_session_run(s, 0.05));
        MUST(ll_session_get(s, "fc2.weight", again, sizeof again));
        MUST(ll_session_get(s, "fc2.weight.ema", average, sizeof w));
        for (int i = 0; i < OUT * HIDDEN; i++)
            average[i] -= (float)(o->ema * w[i] + (1 - o->ema) * again[i]);
    }
    ll_session_close(s);
    ll_graph_free(g);
}

static void test_rules_of_parameters(void **state)
{
    (void)state;
    make_data();
    enum { W1 = HIDDEN * IN, W2 = OUT * HIDDEN };
    float a[W1], b[W1], move[W2], more[W2], average[W2];
    static const ll_init quarter = {LL_CONSTANT, 0.25};
    const ll_param_rule plain[] = {{"fc1.weight", .set_init = true, .init = quarter}, {0}};
    const ll_param_rule frozen[] = {{"*", .lr = 7},
                                    {"fc1.w*", .freeze = true, .set_init = true, .init = quarter},
                                    {"fc2.*", .lr = 3, .set_decay = true, .decay = 0},
                                    {0}};
    one_step(&(ll_optim){.name = "sgd", .rules = plain}, a, move, NULL);
    one_step(&(ll_optim){.name = "sgd", .rules = frozen, .weight_decay = 0.3, .ema = 0.75}, b, more,
             average);
    int moved = 0;
    for (int i = 0; i < W1; i++) {
        moved += a[i] != 0.25f;
        assert_true(b[i] == 0.25f);
    }
    assert_true(moved > W1 / 2);
    for (int i = 0; i < W2; i++) {
        assert_float_equal(more[i], 3 * move[i], 1e-6);
        assert_float_equal(average[i], 0, 1e-6);
    }
    one_step(&(ll_optim){.name = "sgd", .rules = plain, .clip_value = 1e-3}, a, more, NULL);
    for (int i = 0; i < W2; i++)
        assert_float_equal(more[i], fmax(-5e-5, fmin(5e-5, move[i])), 1e-7);
    static const struct {
        ll_param_rule rule;
        const char *error;
    } bad[] = {{{"fc3.*", .freeze = true}, "no parameter's name matches \"fc3.*\""},
               {{"*", .freeze = true}, "that are not frozen"}};
    for (int i = 0; i < 2; i++) {
        const ll_param_rule rules[] = {bad[i].rule, {0}};
        ll_graph *g = mlp(N, &(ll_optim){.name = "sgd", .rules = rules});
        assert_int_not_equal(ll_graph_check(g), LL_OK);
        assert_non_null(strstr(ll_error_text(), bad[i].error));
        ll_graph_free(g);
    }
}

static void close_to(const float *a, const float *b, int n, double tolerance, const char *what)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(a[i] - b[i]) <= tolerance * (0.05 + fabs(b[i]))))
            fail_msg("%s: element %d is %g, want %g", what, i, a[i], b[i]);
}

static const char *const optimizers[] = {"sgd",     "momentum", "nesterov", "adagrad",
                                         "rmsprop", "adam",     "adamw",    "lars",
                                         "larc",    "lamb",     "muon",     "schedule-free-adamw"};
enum { N_OPTIMIZER = sizeof optimizers / sizeof *optimizers };

static void test_machines_agree(void **state)
{
    (void)state;
    float a[HIDDEN * IN], b[HIDDEN * IN];
    for (int i = 0; i < N_OPTIMIZER; i++) {
        ll_optim o = {.name = optimizers[i], .weight_decay = 0.01, .clip = 0.5};
        double ref = train((ll_session_opts){.machine = "ref", .seed = 4}, &o, 5, a);
        double cpu = train((ll_session_opts){.machine = "cpu", .seed = 4, .threads = 2}, &o, 5, b);
        assert_true(fabs(ref - cpu) < 1e-5);
        close_to(b, a, HIDDEN * IN, 1e-3, optimizers[i]);
    }
}

static void test_loss_falls(void **state)
{
    (void)state;
    float w[HIDDEN * IN];
    for (int i = 0; i < N_OPTIMIZER; i++) {
        ll_optim o = {.name = optimizers[i], .trust = 0.1};
        double first = train((ll_session_opts){.seed = 4}, &o, 1, w);
        double last = train((ll_session_opts){.seed = 4}, &o, 60, w);
        if (!(last < first)) fail_msg("%s: loss %g after %g", optimizers[i], last, first);
    }
}

static void test_micro_batches(void **state)
{
    (void)state;
    float a[HIDDEN * IN], b[HIDDEN * IN];
    ll_optim o = {.name = "adamw", .weight_decay = 0.1, .clip = 1};
    double one = train((ll_session_opts){.seed = 2}, &o, 4, a);
    for (int m = 2; m <= 6; m++) {
        if (N % m) continue;
        double many = train((ll_session_opts){.seed = 2, .micro_batches = m}, &o, 4, b);
        assert_true(fabs(one - many) < 1e-5);
        close_to(b, a, HIDDEN * IN, 2e-3, "micro-batches");
    }
}

static void test_deterministic(void **state)
{
    (void)state;
    float a[HIDDEN * IN], b[HIDDEN * IN];
    ll_optim o = {.name = "lamb"};
    double x = train((ll_session_opts){.seed = 2}, &o, 5, a);
    double y = train((ll_session_opts){.seed = 2}, &o, 5, b);
    assert_true(x == y);
    assert_memory_equal(a, b, sizeof a);
    train((ll_session_opts){.seed = 3}, &o, 5, b);
    assert_true(memcmp(a, b, sizeof a) != 0);
}

static void test_bf16_follows_f32(void **state)
{
    (void)state;
    float a[HIDDEN * IN], b[HIDDEN * IN];
    ll_optim o = {.name = "momentum"};
    double f32 = train((ll_session_opts){.seed = 2}, &o, 10, a);
    double bf16 = train((ll_session_opts){.seed = 2, .precision = "bf16"}, &o, 10, b);
    assert_true(fabs(f32 - bf16) < 0.02 * f32);
    assert_true(memcmp(a, b, sizeof a) != 0); /* it did round */
}

/* The same rules for one number, written out. */
static double by_hand(const char *name, int steps)
{
    double p = 1.5, m = 0, v = 0, lr = 0.1, wd = 0.01, sum = 0, z = p, x = p;
    for (int t = 1; t <= steps; t++) {
        double d = 2 * p; /* of p*p */
        double e = d + wd * p, c1 = 1 - pow(0.9, t), c2 = 1 - pow(0.999, t);
        double local = 0.001 * fabs(p) / (fabs(d) + wd * fabs(p));
        if (!strcmp(name, "sgd")) p -= lr * e;
        if (!strcmp(name, "momentum")) m = 0.9 * m + e, p -= lr * m;
        if (!strcmp(name, "nesterov")) m = 0.9 * m + e, p -= lr * (e + 0.9 * m);
        if (!strcmp(name, "adagrad")) sum += e * e, p -= lr * e / (sqrt(sum) + 1e-10);
        if (!strcmp(name, "rmsprop")) v = 0.99 * v + 0.01 * e * e, p -= lr * e / (sqrt(v) + 1e-8);
        if (!strcmp(name, "schedule-free-adamw")) {
            v = 0.999 * v + 0.001 * d * d, sum += lr * lr;
            z -= lr * (d / (sqrt(v / c2) + 1e-8) + wd * p);
            x += lr * lr / sum * (z - x);
            p = 0.1 * z + 0.9 * x;
        }
        if (!strcmp(name, "adam") || !strcmp(name, "adamw") || !strcmp(name, "lamb") ||
            !strcmp(name, "muon")) { /* of one number AdamW's */
            double u = strcmp(name, "adam") ? d : e, eps = strcmp(name, "lamb") ? 1e-8 : 1e-6;
            m = 0.9 * m + 0.1 * u, v = 0.999 * v + 0.001 * u * u;
            double step = m / c1 / (sqrt(v / c2) + eps);
            if (strcmp(name, "adam")) step += wd * p;
            if (!strcmp(name, "lamb")) step *= fabs(p) / fabs(step);
            p -= lr * step;
        }
        if (!strcmp(name, "lars")) m = 0.9 * m + lr * local * e, p -= m;
        if (!strcmp(name, "larc")) m = 0.9 * m + fmin(local, lr) / lr * e, p -= lr * m;
    }
    return p;
}

/* Muon's step of a product's weights: rows that are nearly orthogonal, along the gradient; tall and
 * wide ones alike. */
static void test_muon_is_orthogonal(void **state)
{
    (void)state;
    for (int tall = 0; tall < 2; tall++) {
        enum { FEW = 3, MANY = 5 };
        int n = tall ? MANY : FEW, k = tall ? FEW : MANY;
        float before[15], after[15], x[4 * MANY];
        ll_graph *g = ll_graph_new("muon");
        ll_val w = ll_param(g, "w", LL_SHAPE(n, k), (ll_init){LL_NORMAL, 1});
        ll_val y = ll_matmul(g, "bk,nk->bn", ll_batch(g, "x", LL_F32, LL_SHAPE(4, k)), w);
        ll_minimize(g, ll_sum_all(g, ll_square(g, y)), &(ll_optim){.name = "muon"});
        ll_session *s;
        MUST(ll_session_open(g, &(ll_session_opts){.seed = 3}, &s));
        for (int i = 0; i < 4 * k; i++) x[i] = (float)sin(i * i + 1);
        MUST(ll_session_set(s, "x", 0, x, sizeof(float) * 4 * (size_t)k));
        MUST(ll_session_get(s, "w", before, sizeof before));
        MUST(ll_session_run(s, 0.5));
        MUST(ll_session_get(s, "w", after, sizeof after));
        double u[FEW][MANY];
        for (int i = 0; i < 15; i++) {
            double v = (before[i] - after[i]) / (0.5 * 0.2 * sqrt(MANY));
            *(tall ? &u[i % FEW][i / FEW] : &u[i / MANY][i % MANY]) = v;
        }
        for (int i = 0; i < FEW; i++)
            for (int j = 0; j < FEW; j++) {
                double dot = 0;
                for (int c = 0; c < MANY; c++) dot += u[i][c] * u[j][c];
                if (!(fabs(dot - (i == j)) <= (i == j ? 0.6 : 0.4)))
                    fail_msg("rows %d and %d: %g", i, j, dot);
            }
        ll_session_close(s);
        ll_graph_free(g);
    }
}

static void test_optimizers_by_hand(void **state)
{
    (void)state;
    for (int i = 0; i < N_OPTIMIZER; i++) {
        ll_graph *g = ll_graph_new("one");
        ll_val p = ll_param(g, "p", LL_SHAPE(1, 1), (ll_init){LL_CONSTANT, 1.5});
        ll_minimize(g, ll_sum_all(g, ll_square(g, p)),
                    &(ll_optim){.name = optimizers[i], .weight_decay = 0.01});
        ll_session *s;
        MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
        for (int t = 0; t < 7; t++) MUST(ll_session_run(s, 0.1));
        float got;
        MUST(ll_session_get(s, "p", &got, 4));
        double want = by_hand(optimizers[i], 7);
        if (!(fabs(got - want) < 2e-5)) fail_msg("%s: %.8g, want %.8g", optimizers[i], got, want);
        ll_session_close(s);
        ll_graph_free(g);
    }
}

static void test_clipping(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("clip");
    ll_val p = ll_param(g, "p", LL_SHAPE(2), (ll_init){LL_CONSTANT, 3});
    ll_minimize(g, ll_sum_all(g, ll_square(g, p)), &(ll_optim){.name = "sgd", .clip = 1});
    ll_session *s;
    MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
    MUST(ll_session_run(s, 1));
    float q[2];
    MUST(ll_session_get(s, "p", q, 8));
    assert_true(fabs(ll_session_result(s, "grad_norm") - 6 * sqrt(2)) < 1e-4);
    assert_true(fabs(q[0] - (3 - sqrt(0.5))) < 1e-5);
    ll_session_close(s);
    ll_graph_free(g);
}

static void test_shared_parameters(void **state)
{
    (void)state;
    ll_graph *g = mlp(N, &(ll_optim){.name = "sgd"}), *h = mlp(N, NULL);
    ll_session *s, *e;
    MUST(ll_session_open(g, &(ll_session_opts){.seed = 9}, &s));
    MUST(ll_session_open(h, &(ll_session_opts){.seed = 1, .share = s}, &e));
    feed(s, 1);
    feed(e, 1);
    for (int i = 0; i < 3; i++) {
        MUST(ll_session_run(e, 0));
        double before = ll_session_result(e, "loss");
        MUST(ll_session_run(s, 0.1));
        assert_true(fabs(before - ll_session_result(s, "loss")) < 1e-6);
    }
    ll_session_close(e);
    ll_session_close(s);
    ll_graph_free(g);
    ll_graph_free(h);
}

/* A session in the memory of another: no bytes of its own, the same numbers, and the other trains
 * on as if it had not been there. */
static void test_reused_memory(void **state)
{
    (void)state;
    ll_graph *g = mlp(N, &(ll_optim){.name = "adam"}), *h = mlp(N, NULL);
    double loss[2][4];
    for (int reuse = 0; reuse < 2; reuse++) {
        ll_session *s, *e;
        MUST(ll_session_open(g, &(ll_session_opts){.seed = 9}, &s));
        MUST(ll_session_open(h, &(ll_session_opts){.share = s, .reuse = reuse}, &e));
        assert_true((ll_exec_bytes(e->e) == 0) == reuse);
        feed(s, 1); /* once: what a step reads must not be where e works */
        for (int i = 0; i < 4; i++) {
            MUST(ll_session_run(s, 0.1));
            loss[reuse][i] = ll_session_result(s, "loss");
            feed(e, 1);
            MUST(ll_session_run(e, 0));
            loss[reuse][i] += 1000 * ll_session_result(e, "loss");
        }
        ll_session_close(e);
        ll_session_close(s);
    }
    for (int i = 0; i < 4; i++) assert_true(loss[0][i] == loss[1][i]);
    ll_graph_free(g);
    ll_graph_free(h);
}

static void test_nan_names_op(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("bad");
    ll_val p = ll_param(g, "p", LL_SHAPE(3), (ll_init){LL_CONSTANT, 0.5});
    ll_graph_push(g, "trouble");
    ll_val l = ll_log(g, ll_scale(g, p, 2));
    ll_graph_pop(g);
    ll_minimize(g, ll_neg(g, ll_sum_all(g, ll_square(g, l))), &(ll_optim){.name = "sgd"});
    ll_session *s;
    MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
    float start[3] = {0.5f, -1, 0.5f}, after[3];
    MUST(ll_session_set(s, "p", 0, start, sizeof start));
    assert_int_equal(ll_session_run(s, 0.1), LL_E_NUMERIC);
    assert_non_null(strstr(ll_error_text(), "step 1"));
    assert_non_null(strstr(ll_error_text(), "trouble.log"));
    assert_non_null(strstr(ll_error_text(), "element 1"));
    MUST(ll_session_get(s, "p", after, sizeof after)); /* parameters are as they were */
    assert_memory_equal(start, after, sizeof start);
    ll_session_close(s);
    ll_graph_free(g);
}

/* Where there is no more memory to look for the op with, that is said; where the session's own is
 * enough, it is found. */
static void test_nan_without_memory(void **state)
{
    (void)state;
#ifndef __SANITIZE_ADDRESS__ /* which maps terabytes */
    enum { SIDE = 1024 };
    for (int chain = 0; chain < 2; chain++) {
        ll_graph *g = ll_graph_new("bad");
        ll_val x = ll_param(g, "x", LL_SHAPE(SIDE, SIDE), (ll_init){LL_CONSTANT, -1});
        ll_val h = chain ? ll_square(g, ll_exp(g, x)) : ll_matmul(g, "ab,bc->ac", x, x);
        ll_val l = chain ? ll_mean(g, ll_log(g, ll_neg(g, h)))
                         : ll_log(g, ll_mean(g, ll_matmul(g, "ab,bc->ac", h, x)));
        if (chain)
            ll_minimize(g, l, &(ll_optim){.name = "sgd"});
        else
            ll_graph_result(g, "loss", l);
        ll_session *s;
        MUST(ll_session_open(g, &(ll_session_opts){.threads = 1}, &s));
        struct rlimit was, now;
        long pages = 0;
        FILE *f = fopen("/proc/self/statm", "r");
        assert_int_equal(fscanf(f, "%ld", &pages), 1);
        fclose(f);
        getrlimit(RLIMIT_AS, &was);
        now = was;
        now.rlim_cur = (rlim_t)(pages * sysconf(_SC_PAGESIZE)) + (2 << 20);
        setrlimit(RLIMIT_AS, &now);
        ll_err rc = ll_session_run(s, 0.1);
        setrlimit(RLIMIT_AS, &was);
        assert_int_equal(rc, LL_E_NUMERIC);
        if (!strstr(ll_error_text(), chain ? "could not be determined: " : "(log) gives"))
            fail_msg("%s", ll_error_text());
        if (chain) assert_non_null(strstr(ll_error_text(), "cannot be had"));
        ll_session_close(s);
        ll_graph_free(g);
    }
#endif
}

static void test_bad_calls(void **state)
{
    (void)state;
    ll_graph *g = mlp(N, NULL);
    ll_session *s;
    assert_int_equal(ll_session_open(NULL, NULL, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "argument g is NULL"));
    assert_int_equal(ll_session_open(g, NULL, NULL), LL_E_ARG);
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.machine = "gpu"}, &s), LL_E_ARG);
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.precision = "f8"}, &s), LL_E_ARG);
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.precision = "tf32"}, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "no precision tf32"));
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.any_order = true}, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "any order"));
    ll_session_opts both = {.any_order = true, .exact = true};
    assert_int_equal(ll_session_open(g, &both, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "exact sums"));
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.micro_batches = 2}, &s), LL_E_ARG);
    MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
    assert_int_equal(ll_session_set(s, "z", 0, x_data, 4), LL_E_ARG);
    assert_int_equal(ll_session_set(s, "x", 0, x_data, 4), LL_E_ARG);
    assert_int_equal(ll_session_set(s, "y", 1, y_data, sizeof y_data), LL_E_ARG);
    assert_int_equal(ll_session_get(s, "z", x_data, 4), LL_E_ARG);
    assert_int_equal(ll_session_get(s, "x", x_data, 4), LL_E_ARG);
    ll_session_close(s);
    ll_graph_free(g);
    g = mlp(N, &(ll_optim){.name = "sdg"});
    assert_int_equal(ll_session_open(g, &(ll_session_opts){0}, &s), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "sdg"));
    ll_graph_free(g);
}

/* What loopline.h says that opening fails with, besides LL_E_ARG. */
static void test_cannot_open(void **state)
{
    (void)state;
    static const ll_layout_rule unread[] = {{"fc1.weight", "[dta,-]", NULL}, {0}},
                                nobodys[] = {{"fc3.weight", "[-,-]", NULL}, {0}};
    ll_graph *g = mlp(N, NULL), *other = ll_graph_new("other");
    ll_session *s, *e;
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.layouts = unread}, &s), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_text(), "did you mean data?"));
    assert_null(s);
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.layouts = nobodys}, &s), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_text(), "no value of this name"));
    assert_null(s);
    assert_int_equal(ll_session_open(g, &(ll_session_opts){.mesh = "data=2"}, &s), LL_E_SHARD);
    assert_null(s);
    ll_val w = ll_param(other, "fc1.weight", LL_SHAPE(2), (ll_init){.kind = LL_ZEROS});
    ll_graph_result(other, "w", ll_sum_all(other, w));
    MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
    assert_int_equal(ll_session_open(other, &(ll_session_opts){.share = s}, &e), LL_E_SHAPE);
    assert_null(e);
    ll_session_close(s);
    ll_graph_free(other);
    ll_graph_free(g);
}

/* And saving and loading. */
static void test_bad_files(void **state)
{
    ll_graph *g = mlp(N, NULL), *other = ll_graph_new("other");
    ll_session *s, *e;
    const char *path = tmpdir_path(state, "x.safetensors");
    ll_val w = ll_param(other, "fc1.weight", LL_SHAPE(2), (ll_init){.kind = LL_ZEROS});
    ll_graph_result(other, "w", ll_sum_all(other, w));
    MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
    MUST(ll_session_open(other, &(ll_session_opts){0}, &e));
    assert_int_equal(ll_session_save(s, tmpdir_path(state, "none/x.safetensors")), LL_E_IO);
    assert_int_equal(ll_session_load(s, path), LL_E_IO);
    MUST(ll_session_save(s, path));
    MUST(ll_session_load(s, path));
    assert_int_equal(ll_session_load(e, path), LL_E_SHAPE);
    assert_int_equal(truncate(path, 64), 0);
    assert_int_equal(ll_session_load(s, path), LL_E_IO);
    ll_session_close(e);
    ll_session_close(s);
    ll_graph_free(other);
    ll_graph_free(g);
}

/* On how many of a team's threads half of the least normal number is 0. */
static int threads_that_flush(void)
{
    int n = 0;
#pragma omp parallel num_threads(3) reduction(+ : n)
    {
        volatile float least = FLT_MIN, half = least / 2;
        n += !(half > 0);
    }
    return n;
}

/* A moment of parameters without a gradient, which only falls: subnormal, it becomes 0, but not in
 * exact mode, where it is as IEEE 754 has it. Nobody else's numbers are touched. */
static void test_subnormal_moments(void **state)
{
    (void)state;
    enum { MANY = 50000 }; /* so many that threads share them */
    float *x = calloc(MANY, sizeof *x), *mean = malloc(MANY * sizeof *mean);
    assert_int_equal(threads_that_flush(), 0);
    for (int exact = 0; exact < 2; exact++) {
        ll_graph *g = ll_graph_new("still");
        ll_val w = ll_param(g, "w", LL_SHAPE(MANY), (ll_init){LL_CONSTANT, 1});
        ll_val loss = ll_mean(g, ll_mul(g, w, ll_batch(g, "x", LL_F32, LL_SHAPE(MANY))));
        ll_graph_result(g, "loss", loss);
        ll_minimize(g, loss, &(ll_optim){.name = "adam"});
        ll_session *s;
        MUST(ll_session_open(g, &(ll_session_opts){.threads = 3, .exact = exact}, &s));
        for (int i = 0; i < MANY; i++) mean[i] = i % 2 ? 1e-39f : 1e-37f;
        MUST(ll_session_set(s, "x", 0, x, MANY * sizeof *x));
        MUST(ll_session_set(s, "w.mean", 0, mean, MANY * sizeof *mean));
        MUST(ll_session_run(s, 0.1));
        assert_int_equal(threads_that_flush(), 0);
        MUST(ll_session_get(s, "w.mean", mean, MANY * sizeof *mean));
        float by = 0.9f, small = by * 1e-39f, left = exact ? small : 0;
        for (int i = 0; i < MANY; i++)
            if (mean[i] != (i % 2 ? left : by * 1e-37f)) fail_msg("element %d: %g", i, mean[i]);
        ll_session_close(s);
        ll_graph_free(g);
    }
    free(x);
    free(mean);
}

static void test_memory_is_as_planned(void **state)
{
    (void)state;
    ll_graph *g = mlp(N, &(ll_optim){.name = "adam"});
    ll_session *s;
    MUST(ll_session_open(g, &(ll_session_opts){0}, &s));
    const ll_program *p = s->p;
    assert_int_equal(ll_session_bytes(s), ll_exec_bytes(s->e));
    assert_int_equal(p->bytes, p->persistent_bytes + p->work_bytes + p->scratch_bytes);
    assert_true(p->work_bytes >= p->ideal_work_bytes);
    assert_true(p->work_bytes <= 2 * p->ideal_work_bytes);
    ll_session_close(s);
    ll_graph_free(g);
}

/* Gradients a step late: w(t+1) = w(t) - lr grad(w(t-1)), held against steps taken from w(t-1). */
static void test_delay(void **state)
{
    (void)state;
    enum { NUMEL = HIDDEN * IN, STEPS = 5, WEIGHTS = 4 };
    static const char *const names[WEIGHTS] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
    static const int sizes[WEIGHTS] = {NUMEL, HIDDEN, OUT * HIDDEN, OUT};
    float w[3][WEIGHTS][NUMEL], got[NUMEL]; /* w[0]: of a step before; w[1]: newest */
    ll_graph *g = mlp(N / 2, &(ll_optim){.name = "sgd"});
    ll_session *late, *plain;
    make_data();
    MUST(ll_session_open(g, &(ll_session_opts){.seed = 3, .micro_batches = 2, .delay = true},
                         &late));
    MUST(ll_session_open(g, &(ll_session_opts){.seed = 3, .micro_batches = 2}, &plain));
    feed(late, 2);
    feed(plain, 2);
    for (int i = 0; i < WEIGHTS; i++) {
        MUST(ll_session_get(plain, names[i], w[0][i], 4 * (size_t)sizes[i]));
        memcpy(w[1][i], w[0][i], sizeof w[0][i]);
    }
    for (int t = 0; t < STEPS; t++) {
        for (int i = 0; i < WEIGHTS; i++)
            MUST(ll_session_set(plain, names[i], 0, w[0][i], 4 * (size_t)sizes[i]));
        MUST(ll_session_run(plain, 0.5));
        MUST(ll_session_run(late, 0.5));
        assert_true(fabs(ll_session_result(plain, "loss") - ll_session_result(late, "loss")) <
                    1e-6);
        for (int i = 0; i < WEIGHTS; i++) {
            char next[32];
            snprintf(next, sizeof next, "%s.next", names[i]);
            MUST(ll_session_get(plain, names[i], w[2][i], 4 * (size_t)sizes[i]));
            MUST(ll_session_get(late, next, got, 4 * (size_t)sizes[i]));
            for (int k = 0; k < sizes[i]; k++) {
                float want = w[1][i][k] - (w[0][i][k] - w[2][i][k]);
                assert_true(fabsf(got[k] - want) < 2e-6f);
                w[2][i][k] = got[k];
            }
            MUST(ll_session_get(late, names[i], got, 4 * (size_t)sizes[i]));
            assert_memory_equal(got, w[1][i], 4 * (size_t)sizes[i]);
            memcpy(w[0][i], w[1][i], sizeof w[0][i]);
            memcpy(w[1][i], w[2][i], sizeof w[0][i]);
        }
    }
    ll_session_close(plain);
    ll_session_close(late);
    ll_graph_free(g);
}

int main(void)
{
    make_data();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_delay),
        cmocka_unit_test(test_machines_agree),
        cmocka_unit_test(test_loss_falls),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_deterministic),
        cmocka_unit_test(test_bf16_follows_f32),
        cmocka_unit_test(test_optimizers_by_hand),
        cmocka_unit_test(test_muon_is_orthogonal),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_shared_parameters),
        cmocka_unit_test(test_reused_memory),
        cmocka_unit_test(test_nan_names_op),
        cmocka_unit_test(test_nan_without_memory),
        cmocka_unit_test(test_bad_calls),
        cmocka_unit_test(test_cannot_open),
        cmocka_unit_test_setup_teardown(test_bad_files, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(test_rules_of_parameters),
        cmocka_unit_test(test_nothing_set),
        cmocka_unit_test(test_memory_is_as_planned),
        cmocka_unit_test(test_subnormal_moments),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
