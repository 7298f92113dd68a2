/* test_lower.c: what a step leaves behind, in the corners: results and updates that are inputs, old
 * values that are wanted after new ones are made, what may run in a micro-batch and what may not.
 * Each graph is given as text and runs on the plain machine as it stands, on the plain machine
 * simplified, and on the fast one. */
#include "ir/graph_text.h"
#include "exec/session.h"
#include "pass/pass.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

static void must(ll_err rc, const char *what)
{
    if (rc != LL_OK) fail_msg("%s: %s\n%s", what, ll_error_text(), ll_error_frames());
}

static ll_graph *parse(const char *body)
{
    ll_graph *g;
    ll_arena *a = ll_arena_new();
    must(ll_parse(ll_arena_printf(a, "graph \"g\" {\n%s}\n", body), &g), body);
    ll_arena_free(a);
    return g;
}

typedef struct expected { /* of an input or result, all of whose elements are one number */
    const char *name;
    double value;
} expected;

enum { MAX_EXPECTED = 8, MAX_MICRO = 3 };

typedef struct corner {
    const char *body;
    int n_micro, steps;
    double x[MAX_MICRO]; /* of batch input "x", in each micro-batch */
    expected want[MAX_EXPECTED];
} corner;

static void check_values(const corner *c, const ll_program *p, const ll_exec *e, const char *how)
{
    for (int i = 0; i < MAX_EXPECTED && c->want[i].name; i++) {
        const char *name = c->want[i].name;
        int slot = ll_program_result(p, name);
        if (slot < 0) slot = ll_program_input(p, name);
        assert_true(slot >= 0);
        const ll_slot *s = &p->slots[slot];
        int64_t n = ll_numel(&s->type.shape);
        for (int64_t k = 0; k < n; k++) {
            double v = ll_load(ll_exec_data(e, slot, 0), s->type.dtype, k);
            if (!(fabs(v - c->want[i].value) < 1e-6))
                fail_msg("%s: element %lld of %s is %g, want %g\n%s", how, (long long)k, name, v,
                         c->want[i].value, c->body);
        }
    }
}

static void run_corner(const corner *c, const ll_lower_opts *opts, const char *how)
{
    ll_graph *g = parse(c->body);
    ll_program *p;
    ll_exec *e;
    must(ll_lower(g, opts, &p), c->body);
    ll_graph_free(g);
    must(ll_exec_open(p, &(ll_exec_opts){.seed = 1, .poison = true}, &e), c->body);
    int x = ll_program_input(p, "x");
    for (int m = 0; x >= 0 && m < p->n_micro; m++)
        for (int64_t k = 0; k < ll_numel(&p->slots[x].type.shape); k++)
            ll_store(ll_exec_data(e, x, m), p->slots[x].type.dtype, k, c->x[m]);
    for (int t = 0; t < c->steps; t++)
        for (int s = 0; s < LL_N_SECTION; s++) must(ll_exec_run(e, s, (uint64_t)t), c->body);
    check_values(c, p, e, how);
    ll_exec_close(e);
    ll_program_free(p);
}

static void check(const corner *c)
{
    corner k = *c;
    if (!k.n_micro) k.n_micro = 1;
    if (!k.steps) k.steps = 1;
    run_corner(&k, &(ll_lower_opts){.target = &ll_target_ref, .n_micro = k.n_micro, .as_is = true},
               "as is");
    run_corner(&k, &(ll_lower_opts){.target = &ll_target_ref, .n_micro = k.n_micro}, "simplified");
    run_corner(&k,
               &(ll_lower_opts){.target = &ll_target_cpu, .n_micro = k.n_micro, .no_fuse = true},
               "cpu, not fused");
    run_corner(&k, &(ll_lower_opts){.target = &ll_target_cpu, .n_micro = k.n_micro, .threads = 2},
               "cpu");
}

static void test_results_that_are_inputs(void **state)
{
    (void)state;
    check(&(corner){.body = ""});
    check(
        &(corner){.body = "  %1: f32[] = step \"lr\"\n  result \"r\" = %1\n", .want = {{"r", 0}}});
    check(&(corner){
        .body = "  %1: f32[3] = batch \"x\"\n  result \"r\" = %1\n", .x = {4}, .want = {{"r", 4}}});
    /* a parameter, also by another shape, shows what it was before the update */
    check(&(corner){.body = "  %1: f32[5] = param \"p\" init=constant(2)\n"
                            "  %2: f32[5,1] = reshape(%1) {shape=[5,1]}\n"
                            "  %3: f32[5] = scale(%1) {value=3}\n"
                            "  result \"old\" = %1\n  result \"view\" = %2\n  result \"new\" = %3\n"
                            "  update \"p\" = %3\n",
                    .steps = 2,
                    .want = {{"old", 6}, {"view", 6}, {"new", 18}, {"p", 18}}});
    check(&(corner){.body = "  %1: f32[5] = param \"p\" init=constant(2)\n"
                            "  result \"r\" = %1\n  result \"again\" = %1\n",
                    .want = {{"r", 2}, {"again", 2}, {"p", 2}}});
}

static void test_updates_that_are_inputs(void **state)
{
    (void)state;
    static const char two[] = "  %1: f32[5] = param \"a\" init=constant(1)\n"
                              "  %2: f32[5] = state \"b\" init=constant(2)\n";
    char body[1024];
    /* another input */
    snprintf(body, sizeof body, "%s  update \"a\" = %%2\n", two);
    check(&(corner){.body = body, .want = {{"a", 2}, {"b", 2}}});
    /* itself */
    snprintf(body, sizeof body, "%s  update \"a\" = %%1\n  update \"b\" = %%1\n", two);
    check(&(corner){.body = body, .want = {{"a", 1}, {"b", 1}}});
    /* each other */
    snprintf(body, sizeof body, "%s  update \"a\" = %%2\n  update \"b\" = %%1\n", two);
    check(&(corner){.body = body, .want = {{"a", 2}, {"b", 1}}});
    check(&(corner){.body = body, .steps = 2, .want = {{"a", 1}, {"b", 2}}});
    /* the old value of one that changes too */
    snprintf(body, sizeof body,
             "%s  %%3: f32[5] = scale(%%2) {value=10}\n"
             "  update \"a\" = %%2\n  update \"b\" = %%3\n",
             two);
    check(&(corner){.body = body, .steps = 2, .want = {{"a", 20}, {"b", 200}}});
    /* two from one value */
    snprintf(body, sizeof body,
             "%s  %%3: f32[5] = add(%%1, %%2)\n  update \"a\" = %%3\n  update \"b\" = %%3\n", two);
    check(&(corner){.body = body, .steps = 2, .want = {{"a", 6}, {"b", 6}}});
    /* a batch, and a view of a value */
    check(&(corner){.body = "  %1: f32[3] = batch \"x\"\n"
                            "  %2: f32[3] = state \"s\" init=zeros\n"
                            "  %3: f32[3,1] = state \"t\" init=zeros\n"
                            "  %4: f32[3] = neg(%1)\n"
                            "  %5: f32[3,1] = reshape(%4) {shape=[3,1]}\n"
                            "  update \"s\" = %1\n  update \"t\" = %5\n",
                    .x = {4},
                    .want = {{"s", 4}, {"t", -4}}});
}

/* What is read after the new value is made must still be there. */
static void test_old_values(void **state)
{
    (void)state;
    check(&(corner){.body = "  %1: f32[5] = param \"p\" init=constant(1)\n"
                            "  %2: f32[5] = state \"m\" init=constant(2)\n"
                            "  %3: f32[5] = scale(%2) {value=10}\n"
                            "  %4: f32[5,1] = reshape(%2) {shape=[5,1]}\n"
                            "  %5: f32[5,1] = tanh(%4)\n"
                            "  %6: f32[] = sum(%5) {spec=\"ab->\"}\n"
                            "  %7: f32[5] = broadcast(%6) {spec=\"->a\", shape=[5]}\n"
                            "  %8: f32[5] = add(%1, %7)\n"
                            "  update \"m\" = %3\n  update \"p\" = %8\n",
                    .want = {{"m", 20}, {"p", 1 + 5 * 0.9640275800758169}}});
    /* a product reads all of its operand for each element */
    check(&(corner){.body = "  %1: f32[3,3] = param \"p\" init=constant(1)\n"
                            "  %2: f32[3,3] = matmul(%1, %1) {spec=\"ab,bc->ac\", out=f32}\n"
                            "  update \"p\" = %2\n",
                    .steps = 2,
                    .want = {{"p", 27}}});
    check(&(corner){.body = "  %1: f32[4] = param \"p\" init=constant(1)\n"
                            "  %2: f32[4,4] = broadcast(%1) {spec=\"a->ab\", shape=[4,4]}\n"
                            "  %3: f32[4,4] = param \"q\" init=constant(2)\n"
                            "  %4: f32[4,4] = mul(%2, %3)\n"
                            "  %5: f32[4] = sum(%4) {spec=\"ab->b\"}\n"
                            "  update \"q\" = %4\n  update \"p\" = %5\n",
                    .steps = 2,
                    .want = {{"q", 16}, {"p", 64}}});
    /* a result of a chain that nobody reads takes no other one's place */
    check(&(corner){.body = "  %1: f32[5] = batch \"x\"\n"
                            "  %2: f32[5] = exp(%1)\n"
                            "  %3: f32[5], %4: f32[5] = fused2(%2) {chain=(shape=[5], in=[5], "
                            "r1=shift(r0,1), r2=shift(r0,5), out=[r1:f32, r2:f32])}\n"
                            "  result \"r\" = %4\n",
                    .want = {{"r", 6}}});
}

static void test_micro_batches(void **state)
{
    (void)state;
    static const char inputs[] = "  %1: f32[3] = batch \"x\"\n"
                                 "  %2: f32[3] = state \"s\" init=constant(1)\n"
                                 "  %3: f32[3] = square(%2)\n"
                                 "  %4: f32[3] = mul(%1, %3)\n";
    char body[1024];
    /* what is the same in all of them may be read once a step, and is made once */
    snprintf(body, sizeof body,
             "%s  %%5: f32[3] = accum(%%4)\n  %%6: f32[3] = shift(%%3) {value=1}\n"
             "  result \"mean\" = %%5\n  update \"s\" = %%6\n",
             inputs);
    check(&(corner){body, 3, 2, {1, 2, 6}, {{"mean", 12}, {"s", 5}}});
    /* an update that a micro-batch makes is not made in each of them */
    snprintf(body, sizeof body,
             "%s  %%5: f32[3] = accum(%%4)\n  result \"mean\" = %%5\n  update \"s\" = %%3\n",
             inputs);
    check(&(corner){body, 2, 1, {3, 5}, {{"mean", 4}, {"s", 1}}});
    /* the mean itself as a next value, while every micro-batch reads the old one */
    snprintf(body, sizeof body, "%s  %%5: f32[3] = accum(%%4)\n  update \"s\" = %%5\n", inputs);
    check(&(corner){body, 2, 2, {2, 4}, {{"s", 27}}});
    check(&(corner){body, 1, 2, {3}, {{"s", 27}}});
    /* batch data by itself, and of another shape */
    check(&(corner){"  %1: f32[3] = batch \"x\"\n"
                    "  %2: f32[3,1] = reshape(%1) {shape=[3,1]}\n"
                    "  %3: f32[3] = accum(%1)\n  %4: f32[3,1] = accum(%2)\n"
                    "  result \"a\" = %3\n  result \"b\" = %4\n",
                    3,
                    1,
                    {1, 2, 6},
                    {{"a", 3}, {"b", 3}}});
}

static void refuse(const char *body, int n_micro, const char *say)
{
    ll_graph *g = parse(body);
    ll_program *p;
    assert_int_equal(
        ll_lower(g, &(ll_lower_opts){.target = &ll_target_cpu, .n_micro = n_micro}, &p),
        n_micro > 1 && strstr(say, "no ll_minimize") ? LL_E_ARG : LL_E_GRAPH);
    if (!strstr(ll_error_text(), say)) fail_msg("\"%s\", want \"%s\"", ll_error_text(), say);
    ll_graph_free(g);
}

static void test_refused(void **state)
{
    (void)state;
    static const char x[] = "  %1: f32[3] = batch \"x\"\n  %2: f32[3] = exp(%1)\n"
                            "  %3: f32[3] = accum(%2)\n  result \"m\" = %3\n";
    char body[1024];
    refuse("  %1: f32[3] = batch \"x\"\n  result \"r\" = %1\n", 2, "no ll_minimize");
    snprintf(body, sizeof body, "%s  result \"r\" = %%2\n", x);
    refuse(body, 2, "result r is another one in each micro-batch");
    snprintf(body, sizeof body, "%s  %%4: f32[3] = sin(%%2)\n  result \"r\" = %%4\n", x);
    refuse(body, 2, "sin runs once a step but reads exp of one micro-batch");
    snprintf(body, sizeof body, "%s  %%4: f32[3] = sin(%%1)\n  result \"r\" = %%4\n", x);
    refuse(body, 2, "sin runs once a step but reads x of one micro-batch");
    snprintf(body, sizeof body, "%s  %%4: f32[3] = state \"s\" init=zeros\n  update \"s\" = %%1\n",
             x);
    refuse(body, 2, "the update of s is another one in each micro-batch");
    snprintf(body, sizeof body,
             "%s  %%4: f32[3] = mul(%%3, %%1)\n  %%5: f32[3] = accum(%%4)\n  result \"r\" = %%5\n",
             x);
    refuse(body, 2, "mul runs in each micro-batch but reads a mean over all of them");
}

static void test_minimize_refuses(void **state)
{
    (void)state;
    ll_graph *g = ll_graph_new("g");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(3));
    ll_minimize(g, ll_mean(g, x), &(ll_optim){.name = "sgd"});
    assert_int_equal(ll_graph_check(g), LL_E_GRAPH);
    assert_non_null(strstr(ll_error_text(), "no parameters"));
    ll_graph_free(g);
    g = ll_graph_new("g");
    ll_val p = ll_param(g, "p", LL_SHAPE(2, 3), (ll_init){0});
    ll_minimize(g, ll_square(g, p), &(ll_optim){.name = "sgd"});
    assert_int_equal(ll_graph_check(g), LL_E_SHAPE);
    assert_non_null(strstr(ll_error_text(), "[2,3]; expected a scalar"));
    ll_graph_free(g);
}

/* An exec that shares another's parameters reads and updates them there, by any shape. */
static void test_shared(void **state)
{
    (void)state;
    static const char *const body[2] = {
        "  %1: f32[2,3] = param \"p\" init=constant(1)\n"
        "  %2: f32[2,3] = scale(%1) {value=10}\n"
        "  result \"r\" = %1\n  update \"p\" = %2\n",
        "  %1: f32[3] = batch \"x\"\n"
        "  %2: f32[2,3] = param \"p\" init=constant(7)\n"
        "  %3: f32[4] = state \"own\" init=constant(5)\n"
        "  %4: f32[6] = reshape(%2) {shape=[6]}\n"
        "  %5: f32[] = sum(%4) {spec=\"a->\"}\n"
        "  %6: f32[] = sum(%3) {spec=\"a->\"}\n"
        "  %7: f32[2,3] = shift(%2) {value=2}\n"
        "  result \"p_sum\" = %5\n  result \"own_sum\" = %6\n  update \"p\" = %7\n"};
    ll_program *p[2];
    ll_exec *e[2];
    for (int i = 0; i < 2; i++) {
        ll_graph *g = parse(body[i]);
        must(ll_lower(g, &(ll_lower_opts){.target = &ll_target_cpu}, &p[i]), "lower");
        ll_graph_free(g);
        must(ll_exec_open(p[i], &(ll_exec_opts){.share = i ? e[0] : NULL, .poison = true}, &e[i]),
             "open");
    }
    assert_true(ll_exec_bytes(e[1]) < p[1]->bytes);
    double want = 1;
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < 2; i++) {
            for (int s = 0; s < LL_N_SECTION; s++) must(ll_exec_run(e[i], s, 0), "run");
            if (i == 1) {
                corner seen = {.body = body[1], .want = {{"p_sum", 6 * want}, {"own_sum", 20}}};
                check_values(&seen, p[1], e[1], "shared");
            }
            want = i ? want + 2 : want * 10;
            corner here = {.body = body[i], .want = {{"p", want}}};
            check_values(&here, p[0], e[0], "the owner");
            check_values(&here, p[1], e[1], "the other");
        }
    for (int i = 1; i >= 0; i--) {
        ll_exec_close(e[i]);
        ll_program_free(p[i]);
    }
    ll_graph *g = parse("  %1: f32[3,2] = param \"p\" init=zeros\n  result \"r\" = %1\n");
    ll_graph *h = parse(body[0]);
    must(ll_lower(h, &(ll_lower_opts){.target = &ll_target_cpu}, &p[0]), "lower");
    must(ll_lower(g, &(ll_lower_opts){.target = &ll_target_cpu}, &p[1]), "lower");
    must(ll_exec_open(p[0], &(ll_exec_opts){0}, &e[0]), "open");
    assert_int_equal(ll_exec_open(p[1], &(ll_exec_opts){.share = e[0]}, &e[1]), LL_E_SHAPE);
    ll_exec_close(e[0]);
    ll_program_free(p[0]);
    ll_program_free(p[1]);
    ll_graph_free(g);
    ll_graph_free(h);
}

/* Processor seconds to compile a training step of GPT-2 of some size; nothing is allocated. */
static double compile_gpt(int64_t layers, int64_t width, int64_t heads)
{
    const ll_model *m = ll_model_find("gpt");
    ll_build b = {.batch = 4, .training = true};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    for (int i = 0; i < LL_MAX_SIZES && b.sizes[i].name; i++) {
        if (!strcmp(b.sizes[i].name, "layers")) b.sizes[i].value = layers;
        if (!strcmp(b.sizes[i].name, "width")) b.sizes[i].value = width;
        if (!strcmp(b.sizes[i].name, "heads")) b.sizes[i].value = heads;
    }
    clock_t start = clock();
    ll_graph *g = ll_graph_new("gpt");
    ll_program *p;
    ll_minimize(g, m->declare(g, &b), &(ll_optim){.name = "adamw", .weight_decay = 0.1, .clip = 1});
    must(ll_lower(g, &(ll_lower_opts){.target = &ll_target_cpu, .threads = 2, .n_micro = 2}, &p),
         "gpt");
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    assert_true(p->work_bytes <= 1.02 * (double)p->ideal_work_bytes);
    ll_program_free(p);
    ll_graph_free(g);
    return seconds;
}

/* Compiling grows with the model, four times as deep, and not with its square: by the least of
 * several, which others hold up least. */
static void test_large_models(void **state)
{
    (void)state;
    double small = INFINITY, large = INFINITY;
    for (int i = 0; i < 3 || (i < 20 && large > 20 * small); i++) {
        small = fmin(small, compile_gpt(12, 768, 12));
        large = fmin(large, compile_gpt(48, 1600, 25));
    }
    print_message("GPT-2 124M compiled in %.3f s, 1558M in %.3f s\n", small, large);
    assert_true(large <= 20 * small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_that_are_inputs),
        cmocka_unit_test(test_updates_that_are_inputs),
        cmocka_unit_test(test_old_values),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_minimize_refuses),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_large_models),
    };
    return cmocka_run_group_tests_name("lower", tests, NULL, NULL);
}
