/* Layouts that are asked for: what is asked is done, the result stays the serial one (all ranks
 * side by side in f64), and what cannot be is said. Among them the ways to cut a convolution by
 * channels and filters of N. Dryden et al. (SC 2019), which send what their formulas say:
 *
 *     X, Y  bytes of a layer's input and output;  p ranks; x and y lie cut along channels
 *     stationary-x  w cut along c: y is reduce-scattered, dy gathered          2 (p - 1) Y
 *     stationary-y  w cut along f: x is gathered, dx reduce-scattered          2 (p - 1) X
 *     stationary-w  w cut along c by pc and f by pf: x gathered over pf,
 *                   y reduce-scattered over pc, and back         2 (pf - 1) X + 2 (pc - 1) Y
 *
 * all ranks together; the first layer makes no dx. */
#include "pass/lockstep.h"

static uint64_t seed = 1;

enum { N = 6, H = 5, W = 7, C0 = 9, C1 = 7, C2 = 8 };

static ll_graph *convs(void)
{
    ll_graph *g = ll_graph_new("convs"), *out;
    const ll_conv same = {.pad = {1, 1}};
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(N, H, W, C0));
    ll_val h = ll_relu(g, ll_conv_layer(g, "conv1", x, C1, 3, &same, false));
    h = ll_conv_layer(g, "conv2", h, C2, 3, &same, false);
    ll_minimize(g, ll_mean(g, ll_mul(g, h, h)), &(ll_optim){.name = "momentum"});
    no_error(ll_graph_check(g));
    no_error(ll_retype(g, LL_F64, false, &out));
    ll_graph_free(g);
    return out;
}

/* ---- beside the serial graph ---- */

static void run_all(lockstep *s, const ll_placement *p)
{
    s->m = &p->mesh;
    s->n_rank = p->mesh.n_rank;
    s->g = LL_NEW_ARRAY(s->arena, ll_graph *, s->n_rank);
    for (int r = 0; r < s->n_rank; r++) {
        ll_graph *all;
        no_error(ll_partition(p, r, &all));
        no_error(ll_sweep(all, &s->g[r])); /* as programs are made of it */
        ll_graph_free(all);
    }
    lockstep_run(s, seed, 10);
}

/* Bytes that all ranks send together, in collectives of more than one element. */
static double hold(const ll_graph *g, const char *mesh, const ll_layout_rule *rules, int zero)
{
    ll_arena *arena = ll_arena_new();
    ll_mesh m, one;
    ll_placement *p, *alone;
    no_error(ll_mesh_parse(mesh, &m));
    no_error(ll_mesh_parse("", &one));
    no_error(ll_place(g, &(ll_place_opts){.mesh = &m, .layouts = rules, .zero = zero}, &p));
    no_error(ll_place(g, &(ll_place_opts){.mesh = &one}, &alone));
    lockstep parts = {.arena = arena}, serial = {.arena = arena};
    run_all(&parts, p);
    run_all(&serial, alone);
    for (int r = 0; r < m.n_rank; r++) {
        const ll_graph *x = parts.g[r], *s = serial.g[0];
        for (int i = 0; i < x->n_update; i++) {
            const ll_value *in = ll_value_of(x, x->updates[i].input);
            double d = difference(at(&parts, r, x->updates[i].next),
                                  at(&serial, 0, s->updates[i].next), in->piece);
            if (!(d < 1e-9))
                fail_msg("%s: rank %d: update of %s differs by %g", mesh, r, in->name, d);
        }
        for (int i = 0; i < x->n_result; i++)
            assert_true(difference(at(&parts, r, x->results[i].value),
                                   at(&serial, 0, s->results[i].value), NULL) < 1e-9);
    }
    double sent = 0;
    for (int r = 0; r < m.n_rank; r++)
        for (int i = 0; i < parts.g[r]->n_node; i++) {
            const ll_node *n = &parts.g[r]->nodes[i];
            if (!n->op->collective) continue;
            const ll_type *t = &ll_value_of(parts.g[r], n->in[0])->type;
            if (ll_numel(&t->shape) > 1)
                sent += ll_collective_sent(&m, n->op->collective, n->attr, t);
        }
    for (int r = 0; r < m.n_rank; r++) ll_graph_free(parts.g[r]);
    ll_graph_free(serial.g[0]);
    ll_placement_free(p);
    ll_placement_free(alone);
    ll_arena_free(arena);
    return sent;
}

static const double image = 8.0 * N * H * W; /* bytes of one channel, in f64 */

static void expect(const char *what, const char *mesh, double sent, double want)
{
    print_message("%-14s %-20s %8.0f bytes, formula %8.0f\n", what, mesh, sent, want);
    if (!(fabs(sent - want) <= 1e-6 * want)) fail_msg("%s on %s: %.0f bytes", what, mesh, sent);
}

static void test_stationary(void **state)
{
    (void)state;
    static const ll_layout_rule x_stays[] = {{"x", "[-,-,-,channel]", NULL},
                                             {"conv?.conv2d", "[-,-,-,channel]", NULL},
                                             {"*.weight", "[-,-,-,channel]", NULL},
                                             {0}};
    static const ll_layout_rule y_stays[] = {{"x", "[-,-,-,channel]", NULL},
                                             {"conv?.conv2d", "[-,-,-,channel]", NULL},
                                             {"*.weight", "[channel,-,-,-]", NULL},
                                             {0}};
    ll_graph *g = convs();
    for (int p = 2; p <= 4; p++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "channel=%d", p);
        expect("stationary-x", mesh, hold(g, mesh, x_stays, 0), 2 * (p - 1) * image * (C1 + C2));
        expect("stationary-y", mesh, hold(g, mesh, y_stays, 0), (p - 1) * image * (C0 + 2 * C1));
    }
    /* The second layer takes the axes the other way round, so that what is left cut by filters is
     * what it wants cut as channels. Reduce-scatters are along samples. */
    static const ll_layout_rule w_stays[] = {{"x", "[-,-,-,channel*filter]", NULL},
                                             {"conv1.weight", "[filter,-,-,channel]", NULL},
                                             {"conv1.conv2d", "[channel,-,-,filter]", NULL},
                                             {"conv2.weight", "[channel,-,-,filter]", NULL},
                                             {"conv2.conv2d", "[filter,-,-,channel]", NULL},
                                             {0}};
    for (int pc = 2; pc <= 3; pc++)
        for (int pf = 2; pf <= 3; pf++) {
            char mesh[40];
            snprintf(mesh, sizeof mesh, "channel=%d,filter=%d", pc, pf);
            double first = (pf - 1) * C0 + 2 * (pc - 1) * C1;
            double second = 2 * (pc - 1) * C1 + 2 * (pf - 1) * C2;
            expect("stationary-w", mesh, hold(g, mesh, w_stays, 0), image * (first + second));
        }
    ll_graph_free(g);
}

/* ---- other layouts, hybrids, ZeRO ---- */

static void test_others(void **state)
{
    (void)state;
    static const struct {
        const char *mesh;
        int zero;
        ll_layout_rule rules[5];
    } cases[] = {
        {"data=2,channel=2", 0, {{"*.weight", "[channel,-,-,-]", NULL}}},
        {"data=2,channel=2", 3, {{"*.weight", "[-,-,-,channel]", NULL}}},
        {"data=2,height=2", 1, {{"conv1.conv2d", "[.,-,height,-]", NULL}}},
        {"data=3,height=2", 0, {{"conv2.conv2d", "[.,-,-,height]", NULL}}},
        {"data=2,tensor=3", 2, {{"*", "[.,-,-,tensor]", NULL}, {"conv2*", "[tensor,-,-,.]", NULL}}},
        {"height=2,width=2",
         0,
         {{"conv1.*", "[-,-,-,height*width]", NULL}, {"x", "[-,height,-,-]", NULL}}},
        {"tensor=4", 0, {{"relu", "[-,tensor,-,-]", NULL}}},
        {"data=2",
         0,
         {{"x", "[-,data,-,-]", NULL},
          {"d.select", "[-,-,data,-]", NULL},
          {"*.velocity", "[-,-,-,data]", NULL}}},
    };
    ll_graph *g = convs();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_layout_rule rules[6] = {{0}};
        int n = 0;
        for (int k = 0; k < 5 && cases[i].rules[k].pattern; k++) rules[n++] = cases[i].rules[k];
        double sent = hold(g, cases[i].mesh, rules, cases[i].zero);
        print_message("%-20s zero %d %-14s %s  %.0f bytes\n", cases[i].mesh, cases[i].zero,
                      rules[0].pattern, rules[0].layout, sent);
    }
    ll_graph_free(g);
}

/* What is asked is what comes, the last rule that matches, and the printout marks it. */
static void test_marked(void **state)
{
    (void)state;
    static const ll_layout_rule rules[] = {{"conv*", "[-,-,-,tensor]", "run.yaml:7"},
                                           {"conv1.weight", "[-,tensor,-,-]", "run.yaml:8"},
                                           {"conv1.weight", "[tensor, -, -, -]", "run.yaml:9"},
                                           {0}};
    ll_graph *g = convs();
    ll_mesh m;
    ll_placement *p;
    no_error(ll_mesh_parse("tensor=2", &m));
    no_error(ll_place(g, &(ll_place_opts){.mesh = &m, .layouts = rules}, &p));
    assert_int_equal(p->made[ll_find(p->g, "conv1.weight").id].split[0], 1);
    assert_int_equal(p->made[ll_find(p->g, "conv1.weight").id].split[1], 0);
    assert_int_equal(p->made[ll_find(p->g, "conv2.weight").id].split[3], 1);
    const char *text = ll_placement_print(p, p->arena);
    assert_non_null(strstr(text, "(layout \"conv1.weight\")"));
    assert_non_null(strstr(text, "(layout \"conv*\")"));
    ll_placement_free(p);
    ll_graph_free(g);
}

/* ---- what cannot be ---- */

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *mesh, *pattern, *layout, *message;
    } cases[] = {
        {"data=2", "conv1.weihgt", "[-,-,-,-]",
         "a:1: layout \"conv1.weihgt\": [-,-,-,-]: convs has no value of this name; did you mean "
         "conv1.weight?"},
        {"data=2", "conv9*", "[-,-,-,-]", "convs has no value of this name"},
        {"data=2", "conv1.weight", "[-,-]", "it has 2 dimensions, but conv1.weight has [7,3,3,9]"},
        {"data=2", "conv1.weight", "[dta,-,-,-]", "unknown axis 'dta'; did you mean data?"},
        {"data=2", "conv1.weight", "[data,data,-,-]", "axis data is given twice"},
        {"data=2", "conv1.weight", "[]", "expected an entry for each dimension"},
        {"tensor=5", "conv1.weight", "[-,tensor,-,-]",
         "dimension 1 of conv1.weight [7,3,3,9] is too short for 5 ranks"},
        {"tensor=3", "conv1.weight", "[-,tensor,-,-]",
         "dimension 1 of conv1.weight cannot be cut: conv1.conv2d (conv2d) needs it whole"},
    };
    ll_graph *g = convs();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ll_layout_rule rules[] = {{cases[i].pattern, cases[i].layout, "a:1"}, {0}};
        ll_mesh m;
        ll_placement *p;
        no_error(ll_mesh_parse(cases[i].mesh, &m));
        ll_err rc = ll_place(g, &(ll_place_opts){.mesh = &m, .layouts = rules}, &p);
        if (rc != LL_E_CONFIG || !strstr(ll_error_message(), cases[i].message))
            fail_msg("%s: %s\nwant %s", cases[i].layout, ll_error_message(), cases[i].message);
    }
    ll_graph_free(g);
}

int main(void)
{
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10);
    print_message("SEED=%llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stationary),
                                       cmocka_unit_test(test_others), cmocka_unit_test(test_marked),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
