/* test_grad.c: gradients of any order. Everything runs in f64 on the plain machine; what has a
 * closed form is held against it, the rest against differences. */
#include "base/rng.h"
#include "exec/exec.h"
#include "op/op_int.h"
#include "pass/pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void must(ll_err rc, const char *what)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
}

static const double SOME[] = {-1.7, -0.6, 0.3, 0.9, 2.1};
enum { N = sizeof SOME / sizeof *SOME };

static ll_val input(ll_graph *g, const char *name, ll_shape s)
{
    return ll_input(g, name, LL_STATE, (ll_type){LL_F64, s}, (ll_init){LL_NORMAL, 1});
}

static ll_val by(ll_graph *g, ll_val y, ll_val x)
{
    ll_val d;
    ll_grad(g, y, &x, 1, &d);
    return d;
}

typedef struct machine {
    ll_program *p;
    ll_exec *e;
} machine;

static machine open(ll_graph *g)
{
    machine m;
    must(ll_graph_check(g), "graph");
    must(ll_verify(g), "verify");
    must(ll_lower(g, &(ll_lower_opts){.target = &ll_target_ref}, &m.p), "lower");
    must(ll_exec_open(m.p, &(ll_exec_opts){.seed = 3, .poison = true}, &m.e), "open");
    return m;
}

static void run(machine m)
{
    must(ll_exec_run(m.e, LL_MICRO, 0), "run");
}

static double *data(machine m, const char *name)
{
    int s = ll_program_result(m.p, name);
    return (double *)ll_exec_data(m.e, s >= 0 ? s : ll_program_input(m.p, name), 0);
}

static void close(machine m, ll_graph *g)
{
    ll_exec_close(m.e);
    ll_program_free(m.p);
    ll_graph_free(g);
}

static void same(const char *what, const double *got, const double *want, int n, double tolerance)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * (1 + fabs(want[i]))))
            fail_msg("%s: element %d is %.12g, want %.12g", what, i, got[i], want[i]);
}

/* ---- closed forms ---- */

static ll_val cube(ll_graph *g, ll_val x)
{
    return ll_mul(g, x, ll_mul(g, x, x));
}

static ll_val x_exp_x(ll_graph *g, ll_val x)
{
    return ll_mul(g, x, ll_exp(g, x));
}

static ll_val inverse(ll_graph *g, ll_val x)
{
    return ll_div(g, ll_fill(g, LL_F64, LL_SCALAR, 1), ll_shift(g, x, 5));
}

static ll_val log_of(ll_graph *g, ll_val x)
{
    return ll_log(g, ll_shift(g, x, 5));
}

static double second(int which, double x)
{
    double t = tanh(x), s = 1 / (1 + exp(-x));
    switch (which) {
    case 0: return -sin(x);
    case 1: return -2 * t * (1 - t * t);
    case 2: return 6 * x;
    case 3: return (x + 2) * exp(x);
    case 4: return 2 / pow(x + 5, 3);
    case 5: return -1 / ((x + 5) * (x + 5));
    case 6: return s * (1 - s) * (1 - 2 * s);
    default: return 2;
    }
}

static void test_second_derivatives(void **state)
{
    (void)state;
    ll_val (*const f[])(ll_graph *, ll_val) = {ll_sin,  ll_tanh, cube,       x_exp_x,
                                               inverse, log_of,  ll_sigmoid, ll_square};
    for (int k = 0; k < 8; k++) {
        ll_graph *g = ll_graph_new("second");
        ll_val x = input(g, "x", LL_SHAPE(N)), d = by(g, f[k](g, x), x);
        ll_graph_result(g, "dd", by(g, d, x));
        machine m = open(g);
        memcpy(data(m, "x"), SOME, sizeof SOME);
        run(m);
        char what[32];
        double want[N];
        snprintf(what, sizeof what, "function %d", k);
        for (int i = 0; i < N; i++) want[i] = second(k, SOME[i]);
        same(what, data(m, "dd"), want, N, 1e-12);
        close(m, g);
    }
}

static void test_fifth_derivative(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("fifth");
    ll_val x = input(g, "x", LL_SHAPE(N)), y = ll_sin(g, ll_scale(g, x, 2));
    for (int i = 0; i < 5; i++) y = by(g, y, x);
    ll_graph_result(g, "y", y);
    machine m = open(g);
    memcpy(data(m, "x"), SOME, sizeof SOME);
    run(m);
    double want[N];
    for (int i = 0; i < N; i++) want[i] = 32 * cos(2 * SOME[i]);
    same("fifth derivative of sin 2x", data(m, "y"), want, N, 1e-12);
    close(m, g);
}

/* ---- what is differentiated, and by what ---- */

static void test_intermediate_values(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("middle");
    ll_val x = input(g, "x", LL_SHAPE(N)), h = ll_exp(g, x), y = ll_square(g, h), d[3];
    ll_val made = ll_fill(g, LL_F64, LL_SHAPE(N), 2), z = ll_mul(g, y, made);
    ll_grad(g, z, (ll_val[]){x, h, made}, 3, d);
    ll_graph_result(g, "dx", d[0]);
    ll_graph_result(g, "dh", d[1]);
    ll_graph_result(g, "dmade", d[2]);
    ll_graph_result(g, "dy", by(g, y, y));
    machine m = open(g);
    memcpy(data(m, "x"), SOME, sizeof SOME);
    run(m);
    double dx[N], dh[N], dmade[N], dy[N];
    for (int i = 0; i < N; i++) {
        double e = exp(SOME[i]);
        dx[i] = 4 * e * e, dh[i] = 4 * e, dmade[i] = e * e, dy[i] = 1;
    }
    same("by x", data(m, "dx"), dx, N, 1e-12);
    same("by a value in between", data(m, "dh"), dh, N, 1e-12);
    same("by a constant", data(m, "dmade"), dmade, N, 1e-12);
    same("by itself", data(m, "dy"), dy, N, 0);
    close(m, g);
}

static void test_many_uses_and_none(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("uses");
    ll_val x = input(g, "x", LL_SHAPE(N)), u = input(g, "u", LL_SHAPE(2, 3)), d[2];
    ll_val y = ll_add(g, ll_mul(g, x, x), ll_add(g, x, ll_neg(g, ll_sin(g, x))));
    ll_grad(g, ll_add(g, y, y), (ll_val[]){x, u}, 2, d); /* y twice, of x four times */
    ll_graph_result(g, "dx", d[0]);
    ll_graph_result(g, "du", d[1]);
    ll_val counted = ll_less(g, x, ll_scale(g, x, 2)); /* 0 or 1: no gradient passes */
    ll_graph_result(g, "dless", by(g, counted, x));
    ll_graph_result(g, "dpart", by(g, ll_mul(g, counted, x), x));
    machine m = open(g);
    memcpy(data(m, "x"), SOME, sizeof SOME);
    run(m);
    double dx[N], zero[6] = {0}, part[N];
    for (int i = 0; i < N; i++) {
        dx[i] = 2 * (2 * SOME[i] + 1 - cos(SOME[i]));
        part[i] = SOME[i] < 2 * SOME[i];
    }
    same("x used several times", data(m, "dx"), dx, N, 1e-12);
    same("u not used", data(m, "du"), zero, 6, 0);
    same("of a comparison", data(m, "dless"), zero, N, 0);
    same("past a comparison", data(m, "dpart"), part, N, 0);
    close(m, g);
}

/* The gradient of a tensor is that of the sum of its elements. */
static void test_tensors(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("sum");
    ll_val x = input(g, "x", LL_SHAPE(3, 4)), w = input(g, "w", LL_SHAPE(4, 5));
    ll_val y = ll_tanh(g, ll_matmul(g, "ab,bc->ac", x, w));
    ll_graph_result(g, "a", by(g, y, x));
    ll_graph_result(g, "b", by(g, ll_sum_all(g, y), x));
    machine m = open(g);
    run(m);
    same("tensor and its sum", data(m, "a"), data(m, "b"), 12, 1e-14);
    close(m, g);
}

/* Where operands are equal, someone has to take the gradient, and take it once. */
static void test_ties(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("ties");
    ll_val a = input(g, "a", LL_SHAPE(3)), b = input(g, "b", LL_SHAPE(3)), d[2];
    ll_grad(g, ll_max(g, a, b), (ll_val[]){a, b}, 2, d);
    ll_graph_result(g, "max", ll_add(g, d[0], d[1]));
    ll_graph_result(g, "max_a", d[0]);
    ll_grad(g, ll_min(g, a, b), (ll_val[]){a, b}, 2, d);
    ll_graph_result(g, "min", ll_add(g, d[0], d[1]));
    ll_grad(g, ll_select(g, ll_less(g, a, b), a, b), (ll_val[]){a, b}, 2, d);
    ll_graph_result(g, "select_a", d[0]);
    ll_graph_result(g, "select_b", d[1]);
    ll_graph_result(g, "abs", by(g, ll_abs(g, ll_sub(g, a, b)), a));
    ll_graph_result(g, "relu", by(g, ll_relu(g, ll_sub(g, a, b)), a));
    ll_val both = ll_concat(g, (ll_val[]){a, b}, 2, 0);
    ll_graph_result(g, "amax", by(g, ll_amax(g, both, "a->"), both));
    machine m = open(g);
    memcpy(data(m, "a"), (double[]){1, 2, 7}, 24);
    memcpy(data(m, "b"), (double[]){2, 2, 7}, 24);
    run(m);
    same("max", data(m, "max"), (double[]){1, 1, 1}, 3, 0);
    same("max by a", data(m, "max_a"), (double[]){0, 0, 0}, 3, 0);
    same("min", data(m, "min"), (double[]){1, 1, 1}, 3, 0);
    same("select by a", data(m, "select_a"), (double[]){1, 0, 0}, 3, 0);
    same("select by b", data(m, "select_b"), (double[]){0, 1, 1}, 3, 0);
    same("abs", data(m, "abs"), (double[]){-1, 0, 0}, 3, 0);
    same("relu", data(m, "relu"), (double[]){0, 0, 0}, 3, 0);
    same("amax", data(m, "amax"), (double[]){0, 0, 0.5, 0, 0, 0.5}, 6, 0);
    close(m, g);
}

static void test_mistakes(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("none");
    ll_val x = input(g, "x", LL_SHAPE(N)), none = {0}, d[2];
    ll_grad(g, ll_sin(g, x), (ll_val[]){x, none}, 2, d);
    assert_int_equal(d[0].id, 0);
    assert_int_equal(ll_graph_check(g), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "value 1 of 2, which is none"));
    ll_graph_free(g);
}

static void is_refused(ll_graph *g, const char *says)
{
    if (ll_graph_check(g) == LL_OK) fail_msg("taken, expected \"%s\"", says);
    if (!strstr(ll_error_text(), says)) fail_msg("want \"%s\" in: %s", says, ll_error_text());
    ll_graph_free(g);
}

/* A loss that a parameter w has. */
static ll_val loss_of(ll_graph *g)
{
    ll_val w = ll_param(g, "w", LL_SHAPE(3), (ll_init){0});
    return ll_mean(g, ll_square(g, w));
}

static void test_losses_that_train_nothing(void **state)
{
    (void)state;
    const struct {
        int32_t id;
        const char *says;
    } ids[] = {{0, "is none"}, {9999, "is no value of this graph"}, {-3, "is no value"}};
    for (int i = 0; i < 3; i++) {
        ll_graph *g = ll_graph_new("minimize");
        loss_of(g);
        ll_minimize(g, (ll_val){ids[i].id}, &(ll_optim){.name = "sgd"});
        is_refused(g, ids[i].says);
        g = ll_graph_new("gradient");
        ll_val w = loss_of(g), d;
        ll_grad(g, (ll_val){ids[i].id}, &w, 1, &d);
        is_refused(g, ids[i].says);
        g = ll_graph_new("by");
        ll_grad(g, loss_of(g), &(ll_val){ids[i].id}, 1, &d);
        is_refused(g, ids[i].says);
    }
    ll_graph *g = ll_graph_new("other");
    loss_of(g);
    ll_minimize(g, ll_mean(g, ll_batch(g, "x", LL_F32, LL_SHAPE(2))), NULL);
    is_refused(g, "the loss depends on none of the graph's parameters");
    g = ll_graph_new("first");
    ll_graph_reject(g, "an earlier mistake");
    ll_minimize(g, (ll_val){0}, NULL);
    is_refused(g, "an earlier mistake");
    g = ll_graph_new("updated");
    ll_val loss = loss_of(g), w = ll_find(g, "w");
    ll_graph_update(g, w, ll_scale(g, w, 2));
    ll_minimize(g, loss, NULL);
    is_refused(g, "w is updated twice");
    g = ll_graph_new("plain"); /* NULL is plain descent */
    ll_minimize(g, loss_of(g), NULL);
    must(ll_graph_check(g), "minimize by NULL");
    assert_int_equal(g->n_update, 1);
    ll_graph_free(g);
}

static void test_numbers_of_optimizers(void **state)
{
    (void)state;
    static const ll_param_rule back[] = {{"w", .lr = -1}, {0}},
                               endless[] = {{"*", .lr = INFINITY}, {0}},
                               grow[] = {{"w", .set_decay = true, .decay = -0.1}, {0}},
                               fine[] = {{"w", .lr = 3, .set_decay = true}, {0}};
    const struct {
        ll_optim o;
        const char *says; /* NULL: it is taken */
    } cases[] = {{{.clip = -1}, "clip of the optimizer is -1"},
                 {{.clip = NAN}, "clip of the optimizer is nan"},
                 {{.clip_value = -1}, "clip_value of"},
                 {{.beta1 = 1}, "beta1 of the optimizer is 1, expected 0 or more and less than 1"},
                 {{.beta1 = -0.1}, "beta1 of"},
                 {{.beta2 = 1.5}, "beta2 of"},
                 {{.eps = -1e-8}, "eps of the optimizer is -1e-08, expected a number from 0 on"},
                 {{.weight_decay = -1}, "weight_decay of"},
                 {{.weight_decay = NAN}, "weight_decay of"},
                 {{.weight_decay = INFINITY}, "weight_decay of the optimizer is inf"},
                 {{.ema = 1}, "ema of"},
                 {{.ema = -0.5}, "ema of"},
                 {{.momentum = 1}, "momentum of"},
                 {{.momentum = NAN}, "momentum of"},
                 {{.trust = -1}, "trust of"},
                 {{.rules = back}, "lr of the rule \"w\" is -1"},
                 {{.rules = endless}, "lr of the rule \"*\" is inf"},
                 {{.rules = grow}, "decay of the rule \"w\" is -0.1"},
                 {{.rules = fine}, NULL},
                 {{.name = "momentum", .momentum = 0.99999, .clip = 1e15, .ema = 0.9999999}, NULL},
                 {{.name = "adam", .beta1 = 0.9999999, .eps = 1, .weight_decay = 1e3}, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_graph *g = ll_graph_new("optimizer");
        ll_minimize(g, loss_of(g), &cases[i].o);
        if (cases[i].says) {
            is_refused(g, cases[i].says);
            continue;
        }
        must(ll_graph_check(g), "numbers that run files allow");
        ll_graph_free(g);
    }
}

/* ---- against differences ---- */

/* Central difference of fourth order of element i of result y by *x. */
static double difference(machine m, const char *y, int i, double *x, double h)
{
    static const double steps[4] = {-2, -1, 1, 2};
    double at = *x, f[4];
    for (int k = 0; k < 4; k++) {
        *x = at + steps[k] * h;
        run(m);
        f[k] = data(m, y)[i];
    }
    *x = at;
    run(m);
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h);
}

static void test_hessian_vector(void **state)
{
    (void)state;
    enum { IN = 4, HIDDEN = 5, ROWS = 3 };
    ll_graph *g = ll_graph_new("hvp");
    ll_val x = input(g, "x", LL_SHAPE(ROWS, IN)), u = input(g, "u", LL_SHAPE(HIDDEN, IN));
    ll_val v = input(g, "v", LL_SHAPE(ROWS, IN)), gain = input(g, "gain", LL_SHAPE(HIDDEN));
    ll_val h = ll_gelu(g, ll_matmul(g, "ab,cb->ac", x, u));
    h = ll_softmax(g, ll_layernorm(g, h, gain, gain, 0.1));
    ll_val y = ll_mean(g, ll_square(g, ll_mul(g, h, gain)));
    ll_val d = by(g, y, x);
    ll_graph_result(g, "d", d);
    ll_graph_result(g, "hv", by(g, ll_sum_all(g, ll_mul(g, d, v)), x)); /* H v, H not made */
    machine m = open(g);
    run(m);
    double hv[ROWS * IN], *at = data(m, "x"), along[ROWS * IN];
    memcpy(hv, data(m, "hv"), sizeof hv);
    memcpy(along, data(m, "v"), sizeof along);
    for (int i = 0; i < ROWS * IN; i++) { /* row i of H by differences, times v */
        double want = 0;
        for (int k = 0; k < ROWS * IN; k++) want += along[k] * difference(m, "d", i, &at[k], 1e-3);
        same("Hessian times vector", &hv[i], &want, 1, 1e-8);
    }
    close(m, g);
}

/* u(x,t), a network of its inputs; residual u_t - u_xx, and its mean square by a weight. */
static void test_physics_informed(void **state)
{
    (void)state;
    enum { ROWS = 4, WIDTH = 6 };
    ll_graph *g = ll_graph_new("pinn");
    ll_val x = input(g, "x", LL_SHAPE(ROWS, 1)), t = input(g, "t", LL_SHAPE(ROWS, 1));
    ll_val w0 = input(g, "w0", LL_SHAPE(WIDTH, 2)), w1 = input(g, "w1", LL_SHAPE(WIDTH, WIDTH));
    ll_val w2 = input(g, "w2", LL_SHAPE(1, WIDTH)), d[2];
    ll_val h = ll_concat(g, (ll_val[]){x, t}, 2, 1);
    h = ll_tanh(g, ll_matmul(g, "nk,ok->no", h, w0));
    h = ll_tanh(g, ll_matmul(g, "nk,ok->no", h, w1));
    ll_val u = ll_matmul(g, "nk,ok->no", h, w2);
    ll_grad(g, u, (ll_val[]){x, t}, 2, d);
    ll_val uxx = by(g, d[0], x), residual = ll_sub(g, d[1], uxx);
    ll_val loss = ll_mean(g, ll_square(g, residual));
    ll_graph_result(g, "u", u);
    ll_graph_result(g, "ux", d[0]);
    ll_graph_result(g, "ut", d[1]);
    ll_graph_result(g, "uxx", uxx);
    ll_graph_result(g, "loss", loss);
    ll_graph_result(g, "dw1", by(g, loss, w1));
    machine m = open(g);
    run(m);
    double ux[ROWS], ut[ROWS], u2[ROWS], dw[WIDTH * WIDTH];
    memcpy(ux, data(m, "ux"), sizeof ux);
    memcpy(ut, data(m, "ut"), sizeof ut);
    memcpy(u2, data(m, "uxx"), sizeof u2);
    memcpy(dw, data(m, "dw1"), sizeof dw);
    for (int i = 0; i < ROWS; i++) {
        double *at = &data(m, "x")[i], h2 = 1e-3;
        double a = difference(m, "u", i, at, h2), b = difference(m, "u", i, &data(m, "t")[i], h2);
        double c = difference(m, "ux", i, at, h2);
        same("u_x", &ux[i], &a, 1, 1e-9);
        same("u_t", &ut[i], &b, 1, 1e-9);
        same("u_xx", &u2[i], &c, 1, 1e-9);
    }
    for (int i = 0; i < WIDTH * WIDTH; i += 5) {
        double want = difference(m, "loss", 0, &data(m, "w1")[i], 1e-3);
        same("loss by a weight", &dw[i], &want, 1, 1e-8);
    }
    close(m, g);
}

/* Forces of a Lennard-Jones energy: minus its gradient by the positions. */
static void test_lennard_jones(void **state)
{
    (void)state;
    enum { ATOMS = 5 };
    ll_graph *g = ll_graph_new("lj");
    ll_val x = input(g, "x", LL_SHAPE(ATOMS, 3)), pairs = input(g, "pairs", LL_SHAPE(ATOMS, ATOMS));
    ll_val xi = ll_broadcast(g, x, "ic->ijc", LL_SHAPE(ATOMS, ATOMS, 3));
    ll_val xj = ll_broadcast(g, x, "jc->ijc", LL_SHAPE(ATOMS, ATOMS, 3));
    ll_val r2 = ll_sum(g, ll_square(g, ll_sub(g, xi, xj)), "ijc->ij");
    ll_val one = ll_fill(g, LL_F64, LL_SCALAR, 1);
    ll_val inv2 = ll_div(g, one, ll_add(g, r2, ll_sub(g, one, pairs)));
    ll_val inv6 = ll_mul(g, inv2, ll_mul(g, inv2, inv2));
    ll_val pair = ll_mul(g, pairs, ll_sub(g, ll_square(g, inv6), inv6));
    ll_val energy = ll_scale(g, ll_sum_all(g, pair), 2);
    ll_graph_result(g, "energy", energy);
    ll_graph_result(g, "force", ll_neg(g, by(g, energy, x)));
    machine m = open(g);
    for (int i = 0; i < ATOMS * ATOMS; i++) data(m, "pairs")[i] = i / ATOMS != i % ATOMS;
    for (int i = 0; i < ATOMS * 3; i++)
        data(m, "x")[i] = 1.3 * ((i / 3 >> i % 3) & 1) + 0.1 * ll_normal_at(1, 1, (uint64_t)i);
    run(m);
    double force[ATOMS * 3], total[3] = {0}, want = 0;
    memcpy(force, data(m, "force"), sizeof force);
    for (int i = 0; i < ATOMS * 3; i++) {
        want = -difference(m, "energy", 0, &data(m, "x")[i], 1e-4);
        same("force", &force[i], &want, 1, 1e-7);
        total[i % 3] += force[i];
    }
    same("sum of forces", total, (double[]){0, 0, 0}, 3, 1e-9);
    close(m, g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_derivatives),
        cmocka_unit_test(test_fifth_derivative),
        cmocka_unit_test(test_intermediate_values),
        cmocka_unit_test(test_many_uses_and_none),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_losses_that_train_nothing),
        cmocka_unit_test(test_numbers_of_optimizers),
        cmocka_unit_test(test_hessian_vector),
        cmocka_unit_test(test_physics_informed),
        cmocka_unit_test(test_lennard_jones),
    };
    return cmocka_run_group_tests_name("grad", tests, NULL, NULL);
}
