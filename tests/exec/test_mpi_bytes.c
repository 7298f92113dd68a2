/* mpi: 2 3 4
 * Bytes on the wire, counted by the communicators while sessions run a step: what all ranks send
 * together is what the collectives of their programs say, to the byte, and each strategy's formula.
 * Collectives go around rings, which send least; and, once more, through shared memory, where what
 * ranks read of each other is counted. */
#include "exec/ring.h"
#include "exec/session.h"
#include "pass/strategies.h"

#include <math.h>
#include <stdlib.h>

static ll_comm *ring, *shared;

/* What this rank's program says that it sends in a step. */
static double stated(ll_session *s)
{
    const ll_program *p = s->p;
    double sum = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const ll_instr *x = &p->instrs[i];
        if (x->kernel.run || x->wait) continue;
        int times = i < p->end[LL_MICRO] && !x->last ? p->n_micro : 1;
        for (int o = 0; o < x->n_in; o++)
            sum += times * ll_collective_sent(&s->team->m, x->collective, x->attrs[o],
                                              &p->slots[x->in[o]].type);
    }
    return sum;
}

typedef struct counts {
    double sent, read, stated; /* of all ranks */
} counts;

static counts count(ll_graph *g, ll_comm *c, const char *mesh, int zero, int n_micro)
{
    ll_session *s;
    ll_session_opts o = {.threads = 1, .micro_batches = n_micro};
    o.comm = c;
    o.mesh = mesh;
    o.zero = zero;
    no_error(ll_session_open(g, &o, &s));
    s->checked = true; /* zeros do */
    no_error(ll_session_run(s, 0.001));
    ll_comm_count before = ll_comm_used(c).count;
    no_error(ll_session_run(s, 0.001));
    ll_comm_count after = ll_comm_used(c).count;
    assert_int_equal(after.library, before.library);
    counts n = {(double)(after.bytes - before.bytes), (double)(after.read - before.read),
                stated(s)};
    no_error(ll_comm_allreduce(c, &n, 3, LL_F64, LL_REDUCE_SUM, NULL));
    ll_session_close(s);
    return n;
}

/* Sends at least what the formula says and at most a share of it more. */
static void hold(ll_graph *g, const char *axis, int zero, int n_micro, double formula, double more)
{
    char mesh[32];
    snprintf(mesh, sizeof mesh, "%s=%d", axis, ll_comm_size(ring));
    counts n = count(g, ring, mesh, zero, n_micro);
    if (ll_comm_rank(ring) == 0)
        print_message("%-6s %-10s zero %d micro %d: sent %9.0f, stated %9.0f, formula %9.0f (%.4f)"
                      "\n",
                      g->name, mesh, zero, n_micro, n.sent, n.stated, formula, n.sent / formula);
    assert_true(n.read == 0);
    if (fabs(n.sent - n.stated) > 0.5)
        fail_msg("%s on %s: %.0f bytes were sent, the program says %.0f", g->name, mesh, n.sent,
                 n.stated);
    if (!(n.sent >= formula && n.sent <= formula * (1 + more)))
        fail_msg("%s on %s: %.0f bytes were sent, want %.0f and at most %g %% more", g->name, mesh,
                 n.sent, formula, 100 * more);
}

/* Every number but the gradients (losses, norms) is a scalar. */
static const double scalars = 1e-2;

static void test_data(void **state)
{
    (void)state;
    int p = ll_comm_size(ring);
    ll_graph *graphs[] = {mlp(), gpt()};
    for (int k = 0; k < 2; k++) {
        double formula = 2.0 * (p - 1) * gradient_bytes(graphs[k]);
        for (int zero = 0; zero <= 2; zero++) hold(graphs[k], "data", zero, 1, formula, scalars);
        hold(graphs[k], "data", 0, 3, formula, scalars); /* summed here first */
        hold(graphs[k], "data", 1, 3, formula, scalars);
    }
    ll_graph_free(graphs[0]);
    ll_graph_free(graphs[1]);
}

/* Parameters are gathered for the forward pass and for the backward pass, gradients scattered. */
static void test_zero3(void **state)
{
    (void)state;
    int p = ll_comm_size(ring);
    ll_graph *g = gpt(), *h = mlp();
    hold(g, "data", 3, 1, (p - 1) * zero3_bytes(g), scalars);
    hold(h, "data", 3, 1, (p - 1) * zero3_bytes(h), scalars);
    ll_graph_free(g);
    ll_graph_free(h);
}

/* Two sums of activations in each block's forward pass and two in its backward pass, one for the
 * embedding in each: reduce-scatters and, before the next product, all-gathers. Beside them maxima
 * and sums of the softmax over the vocabulary; gradients of norms, biases and positions. */
static void test_tensor(void **state)
{
    (void)state;
    int p = ll_comm_size(ring);
    ll_graph *g = gpt();
    hold(g, "tensor", 0, 1, 2.0 * (p - 1) * 4 * BATCH * SEQ * WIDTH * (4 * LAYERS + 2), 0.05);
    ll_graph_free(g);
}

/* Attention by heads, and with few heads and samples by gathering keys and values. */
static void test_sequence(void **state)
{
    (void)state;
    int p = ll_comm_size(ring);
    ll_graph *g = gpt(), *few = gpt_of(2, 2);
    hold(g, "sequence", 0, 1, sequence_bytes(g, BATCH, 12, p), scalars);
    if (p > 2) hold(few, "sequence", 0, 1, sequence_bytes(few, 2, 2, p), scalars);
    ll_graph_free(few);
    ll_graph_free(g);
}

/* A window of 3x3 reads a row of each neighbour: of both images, and of the gradient of the second
 * result. The filters' gradients find the rows of the forward pass. */
static void test_halo(void **state)
{
    (void)state;
    int p = ll_comm_size(ring);
    ll_graph *g = convs();
    double rows = 2.0 * (p - 1) * IMAGES * ROW * 4;
    hold(g, "height", 0, 1, rows * (C1 + C2 + C3) + 2.0 * (p - 1) * gradient_bytes(g), scalars);
    ll_graph_free(g);
}

/* Through shared memory nothing is sent; ranks read as many bytes of each other as the ring sends.
 * (Scalars are read whole from everyone.) */
static void test_shared(void **state)
{
    (void)state;
    int p = ll_comm_size(shared);
    char mesh[32];
    snprintf(mesh, sizeof mesh, "data=%d", p);
    ll_graph *g = gpt();
    counts n = count(g, shared, mesh, 0, 1);
    double formula = 2.0 * (p - 1) * gradient_bytes(g);
    if (ll_comm_rank(shared) == 0)
        print_message("gpt %s in shared memory: sent %.0f, read %.0f, formula %.0f (%.4f)\n", mesh,
                      n.sent, n.read, formula, n.read / formula);
    assert_true(n.sent == 0);
    assert_true(n.read >= formula && n.read <= formula * (1 + scalars));
    ll_graph_free(g);
}

int main(void)
{
    ring = open_ring();
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .table = ""}, &shared));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data),   cmocka_unit_test(test_zero3),
        cmocka_unit_test(test_tensor), cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_halo),   cmocka_unit_test(test_shared)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(shared);
    ll_comm_close(ring);
    return failed;
}
