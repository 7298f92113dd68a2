/* mpi: 2 3 4
 * Programs whose collectives start early and are awaited late leave the same bits as those that
 * await each where it starts: results, parameters, state. Sums are canonical here, so that a bundle
 * sums as its members would. Work memory is poisoned before every step. The seed is printed. */
#include "exec/parts.h"
#include "no_error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static ll_comm *comm;
static uint64_t seed = 1;

static const ll_size small[] = {
    {"layers", 3, ""}, {"width", 24, ""}, {"heads", 6, ""}, {"seq", 12, ""}, {"vocab", 29, ""}};

static int count(const ll_program *p, int *bundles)
{
    int between = 0;
    *bundles = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->kernel.run || x->wait) continue;
        for (int k = i + 1; k < x->pair; k++) between += p->instrs[k].kernel.run != NULL;
        *bundles += x->n_in > 1;
    }
    return between;
}

/* Bundles of sums over different ranks. */
static int mixed(const ll_program *p)
{
    int n = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        int first = -1, other = 0;
        for (int k = 0; x->collective == LL_ALL_REDUCE && k < x->n_in; k++) {
            int axes = ll_collective_axes(x->collective, x->attrs[k]);
            if (first < 0) first = axes;
            other += axes != first;
        }
        n += other > 0;
    }
    return n;
}

static void same_bits(const part *a, const part *b, const char *what)
{
    for (int i = 0; i < a->p->n_input + a->p->n_result; i++) {
        bool input = i < a->p->n_input;
        ll_binding x = input ? a->p->inputs[i] : a->p->results[i - a->p->n_input];
        int other = input ? ll_program_input(b->p, x.name) : ll_program_result(b->p, x.name);
        assert_true(other >= 0);
        if (memcmp(ll_exec_data(a->e, x.slot, 0), ll_exec_data(b->e, other, 0),
                   a->p->slots[x.slot].bytes))
            fail_msg("%s, step %d: %s has other bits", what, (int)a->step, x.name);
    }
}

static bool subsets;       /* sums over other ranks may be one */
static ll_overlap overlap; /* LL_OVERLAP_ALL: nodes in pieces, and rings of rotations */

static void hold(const char *name, const char *mesh, int zero, int n_micro, double clip)
{
    char what[96];
    int bundles, none;
    snprintf(what, sizeof what, "%s on %s, zero %d, %d micro-batches, rank %d", name, mesh, zero,
             n_micro, ll_comm_rank(comm));
    ll_graph *g = part_model(name, 12, zero ? "adamw" : "momentum", clip, small, 5);
    part now, wait;
    part_opts o = {.mesh = mesh, .zero = zero, .n_micro = n_micro, .threads = 1, .poison = true};
    o.overlap = overlap;
    o.subsets = subsets;
    o.bucket_bytes = 1 << 13; /* several, so that kernels run beside the first */
    no_error(part_open(comm, g, &o, &now));
    o.blocking = true;
    no_error(part_open(comm, g, &o, &wait));
    for (int step = 0; step < 3; step++) {
        part_feed(&now, seed, strcmp(name, "gpt") ? 10 : 29);
        part_feed(&wait, seed, strcmp(name, "gpt") ? 10 : 29);
        no_error(part_step(&now));
        no_error(part_step(&wait));
        same_bits(&now, &wait, what);
    }
    assert_int_equal(count(wait.p, &none), 0);
    assert_int_equal(none, 0);
    int beside = count(now.p, &bundles);
    assert_true(!subsets || mixed(now.p) > 0);
    assert_true(beside > 0);
    assert_true(bundles > 0 || !zero);
    if (ll_comm_rank(comm) == 0)
        print_message("%s: %d kernels run beside collectives, %zu bytes against %zu\n", what,
                      beside, now.p->bytes, wait.p->bytes);
    part_close(&wait);
    part_close(&now);
    ll_graph_free(g);
}

static void test_bits(void **state)
{
    (void)state;
    char data[32], tensor[32], height[32];
    int n = ll_comm_size(comm);
    snprintf(data, sizeof data, "data=%d", n);
    snprintf(tensor, sizeof tensor, "tensor=%d", n);
    snprintf(height, sizeof height, "height=%d", n);
    hold("gpt", data, 0, 1, 0);
    hold("lenet5", data, 0, 2, 1);
    for (int zero = 1; zero <= 3; zero++) {
        hold("gpt", data, zero, 1 + zero % 2, zero == 2);
        hold("lenet5", data, zero, 2 - zero % 2, zero != 2);
    }
    hold("gpt", tensor, 0, 1, 1);
    hold("lenet5", tensor, 0, 2, 0);
    hold("lenet5", height, 0, 1, 0);
    if (n == 4) hold("gpt", "data=2,tensor=2", 1, 2, 0);
    if (n == 4) hold("lenet5", "data=2,height=2", 3, 1, 1);
    if (n == 4) hold("gpt", "tensor=2,sequence=2", 0, 1, 0);
}

static void test_bits_of_pieces(void **state)
{
    (void)state;
    char data[32], height[32];
    int n = ll_comm_size(comm);
    snprintf(data, sizeof data, "data=%d", n);
    snprintf(height, sizeof height, "height=%d", n);
    overlap = LL_OVERLAP_ALL;
    hold("gpt", data, 3, 1, 1);
    hold("lenet5", height, 0, 2, 0);
    if (n == 4) hold("mlp", "rows=2,cols=2", 0, 1, 0);
    overlap = LL_OVERLAP_AUTO;
}

static void test_bits_of_subsets(void **state)
{
    (void)state;
    if (ll_comm_size(comm) < 4) skip();
    subsets = true;
    hold("gpt", "data=2,tensor=2", 0, 1, 0);
    hold("lenet5", "data=2,tensor=2", 0, 2, 1);
    subsets = false;
}

/* A step that stops before its update leaves sums under way: the next one, and closing, come to
 * terms with them. */
static void test_stops(void **state)
{
    (void)state;
    char data[32];
    snprintf(data, sizeof data, "data=%d", ll_comm_size(comm));
    ll_graph *g = part_model("gpt", 12, "momentum", 0, small, 5);
    part x, y;
    part_opts o = {.mesh = data, .n_micro = 2, .threads = 1, .poison = true};
    no_error(part_open(comm, g, &o, &x));
    no_error(part_open(comm, g, &o, &y));
    for (int step = 0; step < 2; step++) {
        part_feed(&x, seed, 29);
        part_feed(&y, seed, 29);
        no_error(ll_exec_run(x.e, LL_MICRO, x.step));
        no_error(ll_exec_run(x.e, LL_REPORT, x.step));
        no_error(part_step(&x));
        no_error(part_step(&y));
        same_bits(&x, &y, "after a step that stopped");
    }
    no_error(ll_exec_run(x.e, LL_MICRO, x.step));
    part_close(&x);
    part_close(&y);
    ll_graph_free(g);
}

int main(void)
{
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10);
    ll_comm_opts o = {.timeout_s = 60, .table = "", .canonical = true};
    if (ll_comm_open(&o, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    if (ll_comm_rank(comm) == 0) printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits), cmocka_unit_test(test_bits_of_pieces),
        cmocka_unit_test(test_bits_of_subsets), cmocka_unit_test(test_stops)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
