/* A program's bytes by kind, and what ZeRO leaves of them on each of 4 ranks: of parameters,
 * gradients and moments P + 2 P + P bytes in all (Adam), 1 keeps moments and gradients' mean cut, 2
 * the same in every micro-batch, 3 everything: a quarter, and at most 30 % where sizes do not
 * divide. */
#include "pass/strategies.h"
#include "program/program.h"

static ll_graph *adam_mlp(void)
{
    const ll_model *m = ll_model_find("mlp");
    ll_build b = {.batch = BATCH, .training = true};
    memcpy(b.sizes, m->sizes, sizeof b.sizes);
    ll_graph *g = ll_graph_new("mlp");
    ll_minimize(g, m->declare(g, &b), &(ll_optim){.name = "adam"});
    no_error(ll_graph_check(g));
    return g;
}

static ll_memory_kinds kinds(const ll_graph *g, int n_micro)
{
    ll_program *p;
    ll_lower_opts o = {
        .target = &ll_target_cpu, .precision = LL_PRECISION_f32, .threads = 1, .n_micro = n_micro};
    no_error(ll_lower(g, &o, &p));
    ll_memory_kinds m = ll_program_kinds(p);
    assert_int_equal(m.parameters + m.state + m.batch, p->persistent_bytes);
    assert_int_equal(m.gradients + m.other, p->work_bytes);
    assert_int_equal(m.scratch, p->scratch_bytes);
    ll_program_free(p);
    return m;
}

static size_t held(const ll_memory_kinds *m)
{
    return m->parameters + m->state + m->gradients;
}

/* Every gradient is one of a parameter; alignment and scalars (norms, losses) are beside them. */
static void near(size_t bytes, double want)
{
    if ((double)bytes < want || (double)bytes > 1.06 * want + 512)
        fail_msg("%zu bytes, want %.0f", bytes, want);
}

static void check_ranks(const ll_graph *g, int zero, int n_micro)
{
    enum { RANKS = 4 };
    ll_mesh mesh;
    ll_placement *place;
    ll_memory_kinds serial = kinds(g, n_micro);
    double each = gradient_bytes(g), part = each / RANKS;
    near(serial.parameters, each);
    near(serial.state, 2 * each);
    near(serial.gradients, each);
    no_error(ll_mesh_parse("data=4", &mesh));
    no_error(ll_place(g, &(ll_place_opts){.mesh = &mesh, .zero = zero}, &place));
    for (int r = 0; r < RANKS; r++) {
        ll_graph *mine;
        no_error(ll_partition(place, r, &mine));
        ll_memory_kinds m = kinds(mine, n_micro);
        print_message("%s zero %d micro %d rank %d: %5.1f %% of %zu bytes\n", g->name, zero,
                      n_micro, r, 100 * (double)held(&m) / (double)held(&serial), held(&serial));
        near(m.parameters, zero >= 3 ? 0.98 * part : each);
        near(m.state, zero >= 1 ? 0.98 * 2 * part : 2 * each);
        if (zero == 0) near(m.gradients, each);
        if (zero >= 2) near(m.gradients, 0.98 * part);
        if (zero == 3) assert_true((double)held(&m) <= 0.30 * (double)held(&serial));
        ll_graph_free(mine);
    }
    ll_placement_free(place);
}

static void test_zero(void **state)
{
    (void)state;
    ll_graph *graphs[] = {gpt(), adam_mlp()};
    for (int k = 0; k < 2; k++) {
        for (int zero = 0; zero <= 3; zero++)
            for (int n_micro = 1; n_micro <= 2; n_micro++) check_ranks(graphs[k], zero, n_micro);
        ll_graph_free(graphs[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_zero)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
