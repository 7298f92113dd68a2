/* test_random.c: random graphs through everything the compiler does to them.
 *
 *   machines   the fast machine (simplified, fused, in place, memory shared and poisoned) and the
 *              plain one (the graph as declared, node by node) agree after two training steps
 *   bf16       so do they when products read bf16
 *   text       printed, parsed and printed again a graph is the same, and gives the same bits
 *   simplify   a second time changes nothing; results in f64 stay to 1e-10
 *   gradient   in f64, against differences of the loss along a random direction
 *
 * The seeds are printed; SEED=7 test_random starts there, COUNT=1 stops after one graph. */
#include "ir/graph_text.h"
#include "pass/pass.h"
#include "pass/random_graph.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static uint64_t first_seed = 1;
static int count = 250;
static int n_skipped;

static void must(ll_err rc, uint64_t seed, const char *what)
{
    if (rc != LL_OK)
        fail_msg("seed %llu, %s: %s\n%s", (unsigned long long)seed, what, ll_error_text(),
                 ll_error_frames());
}

static const char *const optimizers[] = {"sgd",  "momentum", "nesterov", "adagrad", "rmsprop",
                                         "adam", "adamw",    "lars",     "larc",    "lamb"};

/* A training step of a random graph. eps is large, so that the direction of a gradient of rounding
 * errors alone does not matter. */
static int make_training(rg *r, uint64_t seed)
{
    ll_val loss = rg_make(r, seed);
    ll_optim o = {.name = optimizers[rg_below(r, 10)], .eps = 0.02, .weight_decay = 0.1};
    if (rg_one_in(r, 2)) o.clip = 0.5;
    if (rg_one_in(r, 2)) o.no_decay = "none";
    ll_minimize(r->g, loss, &o);
    must(ll_graph_check(r->g), seed, o.name);
    must(ll_verify(r->g), seed, "verify");
    return 1 + (int)rg_below(r, 3);
}

static double largest(const ll_tensor *t)
{
    double all = 0;
    int64_t n = ll_numel(&t->shape);
    for (int64_t i = 0; i < n; i++) all = fmax(all, fabs(ll_load(t->data, t->dtype, i)));
    return all;
}

static ll_tensor tensor(const rg_run *run, int slot)
{
    const ll_slot *s = &run->p->slots[slot];
    return (ll_tensor){ll_exec_data(run->e, slot, 0), s->type.dtype, s->type.shape};
}

static void compare(uint64_t seed, const char *what, const char *name, const ll_tensor *want,
                    const ll_tensor *got, double tolerance)
{
    double scale = 0.1 + largest(want);
    int64_t n = ll_numel(&want->shape);
    for (int64_t i = 0; i < n; i++) {
        double a = ll_load(want->data, want->dtype, i), b = ll_load(got->data, got->dtype, i);
        if (!(fabs(a - b) <= tolerance * scale))
            fail_msg("seed %llu, %s: element %lld of %s is %.9g, want %.9g",
                     (unsigned long long)seed, what, (long long)i, name, b, a);
    }
}

/* Results, parameters and state of two programs of one graph. */
static void compare_runs(uint64_t seed, const char *what, const rg_run *want, const rg_run *got,
                         double tolerance)
{
    assert_int_equal(want->p->n_result, got->p->n_result);
    for (int i = 0; i < want->p->n_result; i++) {
        const ll_binding *b = &want->p->results[i];
        ll_tensor x = tensor(want, b->slot), y = tensor(got, ll_program_result(got->p, b->name));
        compare(seed, what, b->name, &x, &y, tolerance);
    }
    for (int i = 0; i < want->p->n_input; i++) {
        const ll_binding *b = &want->p->inputs[i];
        ll_kind k = want->p->slots[b->slot].kind;
        if (k != LL_PARAM && k != LL_STATE) continue;
        ll_tensor x = tensor(want, b->slot), y = tensor(got, ll_program_input(got->p, b->name));
        compare(seed, what, b->name, &x, &y, tolerance);
    }
}

static void train(const rg *r, uint64_t seed, const ll_graph *g, const ll_lower_opts *opts,
                  rg_run *run)
{
    must(rg_open(g, opts, run), seed, opts->target->name);
    rg_feed(r, run);
    for (uint64_t step = 0; step < 2; step++) must(rg_step(run, step), seed, "step");
}

/* Numbers so large that f32 says little. */
static bool wild(const rg_run *run)
{
    double loss = rg_scalar(run, "loss"), norm = rg_scalar(run, "grad_norm");
    return !(fabs(loss) < 1e3 && norm < 1e3);
}

static void check_text(const rg *r, uint64_t seed, const ll_lower_opts *opts, const rg_run *want)
{
    ll_graph *again;
    ll_arena *a = ll_arena_new();
    const char *text = ll_print(r->g, a);
    must(ll_parse(text, &again), seed, "parse");
    assert_string_equal(ll_print(again, a), text);
    rg_run run;
    train(r, seed, again, opts, &run);
    compare_runs(seed, "parsed", want, &run, 0);
    rg_close(&run);
    ll_graph_free(again);
    ll_arena_free(a);
}

/* What is fused depends on how a graph is cut: it may change no bit. */
static void check_unfused(const rg *r, uint64_t seed, const ll_lower_opts *opts, const rg_run *want)
{
    ll_lower_opts apart = *opts;
    rg_run run;
    apart.no_fuse = true;
    train(r, seed, r->g, &apart, &run);
    compare_runs(seed, "unfused", want, &run, 0);
    rg_close(&run);
}

static void check_simplify(const rg *r, uint64_t seed, int n_micro)
{
    ll_graph *wide, *once, *twice;
    ll_arena *a = ll_arena_new();
    must(ll_retype(r->g, LL_F64, false, &wide), seed, "retype");
    must(ll_simplify(wide, &once), seed, "simplify");
    must(ll_simplify(once, &twice), seed, "simplify again");
    assert_string_equal(ll_print(twice, a), ll_print(once, a));
    rg_run plain, simple;
    ll_lower_opts opts = {.target = &ll_target_ref, .n_micro = n_micro, .as_is = true};
    train(r, seed, wide, &opts, &plain);
    train(r, seed, once, &opts, &simple);
    compare_runs(seed, "simplified", &plain, &simple, 1e-10);
    rg_close(&plain);
    rg_close(&simple);
    ll_graph_free(wide);
    ll_graph_free(once);
    ll_graph_free(twice);
    ll_arena_free(a);
}

/* Products of bf16 operands on both machines; a value next to the border of two may be rounded
 * either way. */
static void check_bf16(const rg *r, uint64_t seed, int n_micro)
{
    rg_run plain, fast;
    ll_lower_opts ref = {
        .target = &ll_target_ref, .precision = LL_PRECISION_bf16, .n_micro = n_micro};
    ll_lower_opts cpu = {
        .target = &ll_target_cpu, .precision = LL_PRECISION_bf16, .n_micro = n_micro, .threads = 1};
    train(r, seed, r->g, &ref, &plain);
    train(r, seed, r->g, &cpu, &fast);
    compare_runs(seed, "machines, bf16", &plain, &fast, 2e-2);
    rg_close(&plain);
    rg_close(&fast);
}

static void check_training(uint64_t seed)
{
    rg r;
    rg_run plain, fast;
    int n_micro = make_training(&r, seed);
    ll_lower_opts ref = {.target = &ll_target_ref, .n_micro = n_micro, .as_is = true};
    ll_lower_opts cpu = {
        .target = &ll_target_cpu, .n_micro = n_micro, .threads = 1 + (int)(seed % 2)};
    train(&r, seed, r.g, &ref, &plain);
    if (wild(&plain)) {
        n_skipped++;
    } else {
        train(&r, seed, r.g, &cpu, &fast);
        compare_runs(seed, "machines", &plain, &fast, 2e-4);
        check_text(&r, seed, &cpu, &fast);
        check_unfused(&r, seed, &cpu, &fast);
        rg_close(&fast);
        check_simplify(&r, seed, n_micro);
        if (seed % 3 == 0) check_bf16(&r, seed, n_micro);
    }
    rg_close(&plain);
    ll_graph_free(r.g);
}

/* ---- gradients ---- */

typedef struct line { /* parameters along a direction */
    rg_run run;
    int slot[RG_NAMES], n;
    double *at[RG_NAMES], *along[RG_NAMES];
} line;

static void run_results(const rg_run *run, uint64_t seed)
{
    must(ll_exec_run(run->e, LL_MICRO, 5), seed, "run");
    must(ll_exec_run(run->e, LL_REPORT, 5), seed, "run");
}

static double loss_at(const line *l, uint64_t seed, double h)
{
    for (int i = 0; i < l->n; i++) {
        const ll_slot *s = &l->run.p->slots[l->slot[i]];
        double *x = (double *)ll_exec_data(l->run.e, l->slot[i], 0);
        int64_t n = ll_numel(&s->type.shape);
        for (int64_t k = 0; k < n; k++) x[k] = l->at[i][k] + h * l->along[i][k];
    }
    run_results(&l->run, seed);
    return rg_scalar(&l->run, "loss");
}

/* Appends the gradient of the loss by every parameter as a result "d.<parameter>". */
static void add_gradients(ll_graph *g, ll_val loss)
{
    ll_val x[RG_NAMES], d[RG_NAMES];
    int n = 0;
    for (int i = 1; i < g->n_value && n < RG_NAMES; i++)
        if (g->values[i].node < 0 && g->values[i].kind == LL_PARAM) x[n++] = (ll_val){i};
    ll_grad(g, loss, x, n, d);
    ll_graph_result(g, "loss", loss);
    for (int i = 0; i < n; i++)
        ll_graph_result(g, ll_arena_printf(g->arena, "d.%s", ll_value_of(g, x[i])->name), d[i]);
}

/* The slope that the gradients say; fills in the line. */
static double find_slope(line *l, uint64_t seed, ll_arena *a, double *scale)
{
    const ll_program *p = l->run.p;
    double slope = 0;
    for (int i = 0; i < p->n_input && l->n < RG_NAMES; i++) {
        int s = p->inputs[i].slot;
        if (p->slots[s].kind != LL_PARAM) continue;
        int d = ll_program_result(p, ll_arena_printf(a, "d.%s", p->slots[s].name));
        int64_t n = ll_numel(&p->slots[s].type.shape);
        l->at[l->n] = (double *)ll_arena_copy(a, ll_exec_data(l->run.e, s, 0), 8 * (size_t)n);
        l->along[l->n] = LL_NEW_ARRAY(a, double, n + 1);
        const double *gradient = (const double *)ll_exec_data(l->run.e, d, 0);
        for (int64_t k = 0; k < n; k++) {
            double along = ll_normal_at(seed, ll_stream(p->slots[s].name, 9), (uint64_t)k);
            l->along[l->n][k] = along;
            slope += gradient[k] * along;
            *scale += fabs(gradient[k] * along);
        }
        l->slot[l->n++] = s;
    }
    return slope;
}

static void check_gradient(uint64_t seed)
{
    rg r;
    line l = {0};
    ll_graph *wide;
    ll_arena *a = ll_arena_new();
    ll_val loss = rg_make(&r, seed);
    add_gradients(r.g, loss);
    must(ll_graph_check(r.g), seed, "gradient");
    must(ll_retype(r.g, LL_F64, false, &wide), seed, "retype");
    must(rg_open(wide, &(ll_lower_opts){.target = &ll_target_ref, .as_is = true}, &l.run), seed,
         "open");
    rg_feed(&r, &l.run);
    run_results(&l.run, seed);
    double scale = 1e-3 + 1e-3 * fabs(rg_scalar(&l.run, "loss"));
    double slope = find_slope(&l, seed, a, &scale), got = 0;
    assert_true(isfinite(slope));
    bool right = scale > 1e4;                            /* wild */
    for (double h = 1e-5; !right && h > 1e-8; h /= 10) { /* a smaller step misses a kink */
        got = (loss_at(&l, seed, h) - loss_at(&l, seed, -h)) / (2 * h);
        right = fabs(got - slope) < 1e-5 * scale;
    }
    if (!right)
        fail_msg("seed %llu: slope %.9g, by differences %.9g", (unsigned long long)seed, slope,
                 got);
    rg_close(&l.run);
    ll_graph_free(wide);
    ll_graph_free(r.g);
    ll_arena_free(a);
}

static void test_training(void **state)
{
    (void)state;
    for (int i = 0; i < count; i++) check_training(first_seed + (uint64_t)i);
    assert_true(n_skipped <= count / 5);
}

static void test_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < count; i++) check_gradient(first_seed + (uint64_t)i);
}

int main(void)
{
    const char *s = getenv("SEED"), *n = getenv("COUNT");
    if (s) first_seed = strtoull(s, NULL, 10);
    if (n) count = atoi(n);
    printf("seeds %llu to %llu\n", (unsigned long long)first_seed,
           (unsigned long long)first_seed + (unsigned long long)count - 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_gradients),
    };
    return cmocka_run_group_tests_name("random", tests, NULL, NULL);
}
