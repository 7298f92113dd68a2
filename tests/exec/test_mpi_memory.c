/* mpi: 1 2 3 4
 * Memory of a rank: what is mapped and allocated for tensors and for communication after some steps
 * is what was planned when the session was opened, to the byte: through shared memory, and around
 * rings, whose collectives need scratch while they are under way. */
#include "exec/ring.h"
#include "base/room.h"
#include "exec/session.h"

static ll_comm *shared, *ring;

static void hold(ll_graph *g, ll_comm *c, const char *mesh, int zero, int n_micro)
{
    ll_session *s;
    ll_session_opts o = {.threads = 1, .micro_batches = n_micro};
    o.comm = c;
    o.mesh = mesh;
    o.zero = zero;
    size_t before = ll_comm_used(c).held;
    no_error(ll_session_open(g, &o, &s));
    s->checked = true; /* zeros do */
    const ll_exec *e = s->e;
    bool many = ll_comm_size(c) > 1;
    size_t planned = ll_exec_comm_bytes(e) - (many ? ll_comm_own_bytes(c) : 0);
    for (int step = 0; step < 3; step++) no_error(ll_session_run(s, 0.001));
    size_t held = ll_comm_used(c).held - before;
    if (ll_comm_rank(c) == 0)
        print_message("%-6s %-16s zero %d micro %d %s: tensors %8zu of %8zu, communication %8zu of "
                      "%8zu\n",
                      g->name, mesh, zero, n_micro, c == ring ? "ring  " : "shared",
                      ll_exec_bytes(e), ll_session_bytes(s), held, planned);
    assert_int_equal(ll_exec_bytes(e), ll_session_bytes(s));
    assert_int_equal(held, planned);
    if (many && c == ring) assert_true(planned > 0);
    ll_session_close(s);
}

static void test_sessions(void **state)
{
    (void)state;
    int p = ll_comm_size(shared);
    static const struct {
        const char *axes;
        int zero, n_micro;
    } ways[] = {{"data", 0, 1},     {"data", 0, 3}, {"data", 1, 2},
                {"data", 2, 1},     {"data", 3, 2}, {"tensor", 0, 1},
                {"sequence", 0, 1}, {"pipe", 0, 1}, {"pipe", 0, 4}};
    char mesh[32] = "";
    ll_graph *g = gpt(), *h = convs();
    for (int k = 0; k < 2; k++) {
        ll_comm *c = k ? ring : shared;
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            if (p > 1) snprintf(mesh, sizeof mesh, "%s=%d", ways[i].axes, p);
            hold(g, c, mesh, p > 1 ? ways[i].zero : 0, ways[i].n_micro);
        }
        if (p > 1) snprintf(mesh, sizeof mesh, "height=%d", p);
        hold(h, c, mesh, 0, 1);
        if (p == 4) hold(g, c, "data=2,tensor=2", 1, 2);
        if (p == 4) hold(g, c, "pipe=2,data=2", 2, 3);
        if (p == 4) hold(g, c, "tensor=2,pipe=2", 0, 3);
    }
    ll_graph_free(g);
    ll_graph_free(h);
}

/* What an open communicator holds, before anything is done on it. */
static void test_own(void **state)
{
    (void)state;
    ll_comm *c;
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .table = ""}, &c));
    assert_int_equal(ll_comm_used(c).held, ll_comm_own_bytes(c));
    no_error(ll_comm_barrier(c));
    assert_int_equal(ll_comm_used(c).held, ll_comm_own_bytes(c));
    ll_comm_close(c);
}

/* No two at one moment overlap, and nothing is wasted where none meet. */
static void test_room(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    ll_want apart[] = {{100, 0, 3, 9}, {1000, 4, 5, 9}, {64, 6, 6, 9}};
    assert_int_equal(ll_room_plan(apart, 3, a), 1024);
    for (int i = 0; i < 3; i++) assert_int_equal(apart[i].at, 0);
    ll_want w[60];
    unsigned seed = 7;
    for (int i = 0; i < 60; i++) {
        int from = (int)((seed = seed * 1103515245u + 12345u) >> 16) % 40;
        int more = (int)((seed = seed * 1103515245u + 12345u) >> 16) % 9;
        size_t bytes = ((seed = seed * 1103515245u + 12345u) >> 16) % 500;
        w[i] = (ll_want){bytes, from, from + more, 0};
    }
    size_t all = ll_room_plan(w, 60, a);
    for (int i = 0; i < 60; i++) {
        assert_true(w[i].at % 64 == 0 && w[i].at + w[i].bytes <= all);
        for (int k = 0; k < i; k++) {
            bool meet = w[i].from <= w[k].to && w[k].from <= w[i].to && w[i].bytes && w[k].bytes;
            bool over = w[i].at < w[k].at + w[k].bytes && w[k].at < w[i].at + w[i].bytes;
            assert_false(meet && over);
        }
    }
    assert_int_equal(ll_room_plan(w, 0, a), 0);
    ll_arena_free(a);
}

int main(void)
{
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .table = ""}, &shared));
    ring = open_ring();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own), cmocka_unit_test(test_room),
                                       cmocka_unit_test(test_sessions)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(ring);
    ll_comm_close(shared);
    return failed;
}
