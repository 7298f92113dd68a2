/* mpi: 1 2 3 4
 * What exec/ does with GPUs, on fake ones (fake_gpu.h): batches staged, results collected, work
 * captured, values laid aside, and collectives between GPUs beside it, leave what the same program
 * leaves on the CPU. On one rank to the bit; on several up to the order of sums. */
#include "exec/fake_gpu.h"
#include "machine/cuda.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static ll_comm *comm;

static const ll_size small[] = {
    {"layers", 2, ""}, {"width", 24, ""}, {"heads", 6, ""}, {"seq", 12, ""}, {"vocab", 29, ""}};

/* The other's batch and numbers, as a session gives them. */
static void feed_like(part *x, const part *like)
{
    for (int i = 0; i < x->p->n_input; i++) {
        int slot = x->p->inputs[i].slot, other = ll_program_input(like->p, x->p->inputs[i].name);
        const ll_slot *s = &x->p->slots[slot];
        if (s->kind != LL_BATCH && s->kind != LL_STEP) continue;
        for (int m = 0; m < (s->kind == LL_BATCH ? x->p->n_micro : 1); m++)
            no_error(ll_exec_put(x->e, slot, m, ll_exec_data(like->e, other, m)));
    }
}

static double distance(const ll_slot *s, const void *a, const void *b)
{
    double most = 0, scale = 1e-6;
    for (int64_t i = 0; i < ll_numel(&s->type.shape); i++) {
        double x = ll_load(a, s->type.dtype, i), y = ll_load(b, s->type.dtype, i);
        if (!isfinite(x) || !isfinite(y)) return INFINITY;
        if (fabs(x) > scale) scale = fabs(x);
        if (fabs(x - y) > most) most = fabs(x - y);
    }
    return most / scale;
}

static void check_like(part *fake, const part *cpu, const char *what)
{
    double limit = ll_comm_size(comm) == 1 ? 0 : 1e-4;
    for (int i = 0; i < cpu->p->n_input + cpu->p->n_result; i++) {
        bool input = i < cpu->p->n_input;
        ll_binding x = input ? cpu->p->inputs[i] : cpu->p->results[i - cpu->p->n_input];
        int other = input ? ll_program_input(fake->p, x.name) : ll_program_result(fake->p, x.name);
        const ll_slot *s = &cpu->p->slots[x.slot];
        if (input && (s->kind == LL_BATCH || s->kind == LL_STEP)) continue;
        double d = distance(s, ll_exec_data(cpu->e, x.slot, 0), ll_exec_data(fake->e, other, 0));
        if (d > limit) fail_msg("%s, step %d: %s differs by %g", what, (int)cpu->step, x.name, d);
        if (!input && s->type.shape.n == 0)
            assert_true(ll_exec_scalar(fake->e, other) ==
                        ll_load(ll_exec_data(fake->e, other, 0), s->type.dtype, 0));
    }
}

/* A step as training makes it, and one that is run an instruction at a time. */
static void step_on(part *fake, bool checked)
{
    ll_err (*run)(ll_exec *, int, uint64_t) = checked ? ll_exec_run_checked : ll_exec_run;
    no_error(run(fake->e, LL_MICRO, fake->step));
    no_error(run(fake->e, LL_REPORT, fake->step));
}

/* share: of the memory that it takes otherwise, in percent; 100: nothing is laid aside. */
static void hold_by(const char *schedule, const char *name, const char *mesh, int zero, int n_micro,
                    ll_link_kind link, int share)
{
    static const char *const ways[] = {"host", "mpi", "nccl"};
    char what[128];
    snprintf(what, sizeof what, "%s on %s, zero %d, %d micro-batches, %s, %d %%, rank %d", name,
             mesh, zero, n_micro, ways[link], share, ll_comm_rank(comm));
    int limit = strcmp(name, "gpt") ? 10 : 29;
    ll_graph *g = part_model(name, 12, "momentum", 1, small, 5), *apart = NULL;
    if (schedule) no_error(ll_means_apart(g, &apart));
    part cpu, fake;
    part_opts o = {.mesh = mesh, .zero = zero, .n_micro = n_micro, .threads = 1, .poison = true};
    o.overlap = zero == 3 ? LL_OVERLAP_ALL : LL_OVERLAP_AUTO;
    o.schedule = schedule;
    no_error(part_open(comm, apart ? apart : g, &o, &cpu));
    if (share < 100) o.memory = cpu.p->bytes / 100 * (size_t)share;
    no_error(fake_open(comm, apart ? apart : g, &o, link, &fake));
    if (o.memory) assert_true(fake.p->bytes <= o.memory && fake.p->aside_bytes > 0);
    fake_launched = fake_replayed = fake_grouped = fake_copied = fake_folded = 0;
    part_feed(&cpu, 1, limit);
    feed_like(&fake, &cpu);
    for (int step = 0; step < 4; step++) {
        no_error(part_step(&cpu));
        bool checked = step == 3 && !schedule; /* messages move where somebody waits for a GPU */
        step_on(&fake, checked);
        part now = cpu; /* what the next step gets is set while this one is under way */
        part_feed(&cpu, 1, limit);
        feed_like(&fake, &now);
        fake.e->saturated = 0; /* as of a program with 8-bit floats */
        ((int64_t *)ll_cuda_of(fake.e)->trouble)[LL_TROUBLE_SATURATED] += 5 + step;
        no_error(ll_exec_wait(fake.e));
        assert_int_equal(fake.e->saturated, 5 + step);
        if (checked)
            no_error(ll_exec_run_checked(fake.e, LL_UPDATE, fake.step++));
        else
            no_error(ll_exec_run(fake.e, LL_UPDATE, fake.step++));
        check_like(&fake, &cpu, what);
    }
    assert_true(fake_launched > 0 && fake_replayed > 0);
    assert_true(!o.memory == !fake_copied);
    bool alone = ll_comm_size(comm) == 1;
    assert_true(alone || (fake_grouped > 0) == (link == LL_BY_NCCL));
    assert_true(alone || schedule || (fake_folded > 0) == (link == LL_BY_MPI));
    if (ll_comm_rank(comm) == 0) print_message("%s %s\n", what, schedule ? schedule : "");
    fake_close(&fake);
    part_close(&cpu);
    ll_graph_free(g);
    ll_graph_free(apart);
}

static void hold(const char *name, const char *mesh, int zero, int n_micro, ll_link_kind link,
                 int share)
{
    hold_by(NULL, name, mesh, zero, n_micro, link, share);
}

static void test_alone(void **state)
{
    (void)state;
    if (ll_comm_size(comm) > 1) skip();
    hold("gpt", "data=1", 0, 1, LL_BY_HOST, 100);
    hold("lenet5", "data=1", 0, 2, LL_BY_NCCL, 100);
    for (int share = 90; share >= 60; share -= 15) {
        hold("gpt", "data=1", 0, 1, LL_BY_HOST, share);
        hold("gpt", "data=1", 0, 3, LL_BY_HOST, share);
    }
    hold("lenet5", "data=1", 0, 2, LL_BY_NCCL, 92);
}

static void test_ranks(void **state)
{
    (void)state;
    char data[32], tensor[32], height[32];
    int n = ll_comm_size(comm);
    if (n == 1) skip();
    snprintf(data, sizeof data, "data=%d", n);
    snprintf(tensor, sizeof tensor, "tensor=%d", n);
    snprintf(height, sizeof height, "height=%d", n);
    for (ll_link_kind link = LL_BY_HOST; link <= LL_BY_NCCL; link++) {
        hold("lenet5", data, 0, 2, link, 100);
        hold("gpt", tensor, 0, 1, link, 100);
        hold("lenet5", height, 0, 2, link, 100);
    }
    hold("gpt", data, 1, 2, LL_BY_NCCL, 100);
    hold("gpt", data, 1, 2, LL_BY_MPI, 100);
    hold("gpt", data, 3, 1, LL_BY_NCCL, 100);
    for (ll_link_kind link = LL_BY_HOST; link <= LL_BY_NCCL; link += LL_BY_NCCL) {
        hold("gpt", data, 0, 2, link, 75);
        hold("gpt", data, 2, 1, link, 90);
        hold("gpt", tensor, 0, 1, link, 75);
    }
    hold("gpt",
         n == 4   ? "data=2,sequence=2"
         : n == 2 ? "sequence=2"
                  : "sequence=3",
         0, 1, LL_BY_NCCL, 100);
}

/* What stages send each other, of gpt with a table that two of them read. */
static void test_stages(void **state)
{
    (void)state;
    static const char *const schedules[] = {"1f1b",  "gpipe", "interleaved",
                                            "zb-h2", "zb-v",  "dualpipe-v"};
    char pipe[32];
    int n = ll_comm_size(comm);
    if (n == 1) skip();
    snprintf(pipe, sizeof pipe, "pipe=%d", n);
    for (int i = 0; i < 6; i++) hold_by(schedules[i], "gpt", pipe, 0, 2 + i, LL_BY_NCCL, 100);
    hold_by("1f1b", "lenet5", pipe, 0, 3, LL_BY_HOST, 100);
    hold_by("zb-v", "gpt", pipe, 0, 4, LL_BY_MPI, 100);
    if (n < 4) return;
    hold_by("zb-h1", "gpt", "pipe=2,data=2", 0, 3, LL_BY_NCCL, 100);
    hold_by("zb-v", "gpt", "data=2,pipe=2", 3, 3, LL_BY_NCCL, 100);
    hold_by("dualpipe-v", "gpt", "pipe=2,tensor=2", 0, 4, LL_BY_NCCL, 100);
}

/* Wherever rank 1's GPU has no room, all ranks fail in its words, and the communicator lives. */
static void test_no_room(void **state)
{
    (void)state;
    int fails = 0, n = ll_comm_size(comm);
    if (n != 2) skip();
    ll_graph *g = part_model("gpt", 12, "momentum", 1, small, 5);
    part_opts o = {.mesh = "tensor=2", .n_micro = 1, .threads = 1, .poison = true};
    for (ll_err rc = LL_E_MEM; rc != LL_OK; fails++) {
        part fake;
        fake_allocs = ll_comm_rank(comm) == 1 ? fails : 1 << 30;
        rc = fake_open(comm, g, &o, LL_BY_MPI, &fake);
        fake_allocs = 1 << 30;
        if (rc == LL_OK) {
            fake_close(&fake);
            break;
        }
        assert_int_equal(rc, LL_E_MEM);
        no_error(ll_comm_barrier(comm));
        ll_program_free(fake.p);
        ll_team_close(fake.team);
    }
    assert_true(fails > 5);
    ll_graph_free(g);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .table = ""}, &comm) != LL_OK) {
        printf("%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_stages),
        cmocka_unit_test(test_no_room),
    };
    int rc = cmocka_run_group_tests_name("programs on fake GPUs", tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
