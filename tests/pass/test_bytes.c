/* Bytes on the wire: what all ranks together send in a step, counted over the collectives of their
 * graphs, against each strategy's formula. G: bytes of all gradients, p: ranks. */
#include "pass/strategies.h"

#include <math.h>

typedef struct counted {
    double sent;    /* by all ranks */
    double halo;    /* of it, in halo exchanges */
    double rotated; /* and in panels */
    int sums;       /* of rank 0, of so many elements (see count): reduce-scatters */
    int gathers;    /* and all-gathers of so many */
    double scalars; /* sent in collectives of one element */
    double busiest; /* of attention's flops, forward: of the rank that has most, over the average */
} counted;

static ll_overlap overlap = LL_OVERLAP_NONE;
static ll_factors factors = LL_FACTORS_NONE;
static ll_turn sequence = LL_TURN_AUTO;
static bool exact;

static counted count(const ll_graph *g, const char *mesh, int zero, int64_t elements)
{
    ll_mesh m;
    ll_placement *p;
    counted c = {0};
    double all_flops = 0, most = 0;
    no_error(ll_mesh_parse(mesh, &m));
    ll_place_opts how = {.mesh = &m,
                         .zero = zero,
                         .factors = factors,
                         .overlap = overlap,
                         .sequence = sequence,
                         .exact = exact};
    no_error(ll_place(g, &how, &p));
    for (int r = 0; r < m.n_rank; r++) {
        ll_graph *all, *part;
        no_error(ll_partition(p, r, &all));
        no_error(ll_sweep(all, &part)); /* as programs are made of it */
        ll_graph_free(all);
        double flops = 0;
        for (int i = 0; i < part->n_node; i++) {
            const ll_node *n = &part->nodes[i];
            if (n->op->work == LL_WORK_ATTENTION && n->op->model) flops += ll_node_flops(part, n);
            if (!n->op->collective) continue;
            const ll_type *t = &ll_value_of(part, n->in[0])->type;
            double bytes = ll_collective_sent(&m, n->op->collective, n->attr, t);
            c.sent += bytes;
            if (!strcmp(n->op->name, "halo")) c.halo += bytes;
            if (!strcmp(n->op->name, "rotate")) c.rotated += bytes;
            if (ll_numel(&t->shape) <= 1) c.scalars += bytes;
            int64_t made = ll_numel(&ll_value_of(part, n->out[0])->type.shape);
            c.sums +=
                r == 0 && !strcmp(n->op->name, "reduce_scatter") && ll_numel(&t->shape) == elements;
            c.gathers += r == 0 && !strcmp(n->op->name, "all_gather") && made == elements;
        }
        all_flops += flops;
        most = fmax(most, flops);
        ll_graph_free(part);
    }
    c.busiest = most * m.n_rank / fmax(all_flops, 1);
    ll_placement_free(p);
    return c;
}

static void expect(const char *what, double sent, double want, double scalars)
{
    print_message("%-24s %10.0f bytes, formula %10.0f (%.4f)\n", what, sent, want, sent / want);
    if (!(sent >= want * (1 - 1e-9) && sent <= (want + scalars) * (1 + 1e-9)))
        fail_msg("%s: %.0f bytes are sent, want %.0f and at most %.0f more", what, sent, want,
                 scalars);
}

/* Gradients of fully connected layers from factors: of a weight [n,k] and b samples, b (n + k)
 * numbers are gathered, in place of 2 n k that are summed. */
static void test_factors(void **state)
{
    (void)state;
    ll_graph *g = mlp();
    double dense = 0, rows = 0;
    for (int i = 1; i < g->n_value; i++) {
        const ll_shape *s = &g->values[i].type.shape;
        if (g->values[i].node >= 0 || g->values[i].kind != LL_PARAM) continue;
        if (s->n == 2) rows += 4.0 * (double)(s->d[0] + s->d[1]);
        if (s->n != 2) dense += 4.0 * (double)ll_numel(s);
    }
    for (int p = 2; p <= 4; p++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "data=%d", p);
        factors = LL_FACTORS_ALL;
        counted c = count(g, mesh, 0, 0);
        expect("factors", c.sent, (p - 1) * (2 * dense + samples_of(g) * rows), c.scalars);
        factors = LL_FACTORS_AUTO; /* small ones are summed */
        c = count(g, mesh, 0, 0);
        expect("summed", c.sent, 2.0 * (p - 1) * gradient_bytes(g), c.scalars);
    }
    ll_graph_free(g);
    factors = LL_FACTORS_NONE;
}

/* By itself where that sends clearly less, and is worth its arithmetic: with few samples. */
static void test_factors_chosen(void **state)
{
    (void)state;
    static const int64_t batches[] = {16, 256, 2048};
    enum { N = 1024 };
    for (int k = 0; k < 3; k++) {
        int64_t b = batches[k];
        ll_graph *g = ll_graph_new("wide");
        ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(b, N));
        ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(b));
        ll_val logits = ll_linear(g, "fc", x, N, false);
        ll_minimize(g, ll_mean(g, ll_cross_entropy(g, logits, y)), &(ll_optim){.name = "sgd"});
        factors = LL_FACTORS_AUTO;
        double sum = 2.0 * 3 * 4 * N * N, gathered = 3.0 * 4 * (double)b * 2 * N;
        counted c = count(g, "data=4", 0, 0), cut = count(g, "data=4", 2, 0);
        expect(g->name, c.sent, k == 0 ? gathered : sum, c.scalars);
        expect("wide, zero 2", cut.sent, sum, cut.scalars);
        ll_graph_free(g);
    }
    factors = LL_FACTORS_NONE;
}

/* Data parallel, and ZeRO: gradients are summed once, whoever keeps them. */
static void test_data(void **state)
{
    (void)state;
    ll_graph *graphs[] = {mlp(), gpt()};
    for (int k = 0; k < 2; k++)
        for (int p = 2; p <= 4; p++)
            for (int zero = 0; zero <= 2; zero++) {
                char mesh[32], what[64];
                snprintf(mesh, sizeof mesh, "data=%d", p);
                snprintf(what, sizeof what, "%s %s zero %d", graphs[k]->name, mesh, zero);
                counted c = count(graphs[k], mesh, zero, 0);
                expect(what, c.sent, 2.0 * (p - 1) * gradient_bytes(graphs[k]), c.scalars);
                assert_true(c.scalars < 100 * p);
            }
    ll_graph_free(graphs[0]);
    ll_graph_free(graphs[1]);
}

static void test_zero3(void **state)
{
    (void)state;
    ll_graph *g = gpt(), *h = mlp();
    for (int p = 2; p <= 4; p++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "data=%d", p);
        counted c = count(g, mesh, 3, 0), d = count(h, mesh, 3, 0);
        expect("gpt zero 3", c.sent, (p - 1) * zero3_bytes(g), c.scalars);
        expect("mlp zero 3", d.sent, (p - 1) * zero3_bytes(h), d.scalars);
    }
    ll_graph_free(g);
    ll_graph_free(h);
}

/* Megatron: two sums of activations in each block's forward pass and two in its backward pass; one
 * more after the embedding and one before it. Each is a reduce-scatter, and an all-gather where the
 * next product begins: what an all-reduce sends. */
static void test_tensor(void **state)
{
    (void)state;
    ll_graph *g = gpt();
    for (int p = 2; p <= 4; p++) {
        char mesh[32];
        const int64_t elements = (int64_t)BATCH * SEQ * WIDTH;
        snprintf(mesh, sizeof mesh, "tensor=%d", p);
        counted c = count(g, mesh, 0, elements);
        assert_int_equal(c.sums, 4 * LAYERS + 2);
        assert_int_equal(c.gathers, 4 * LAYERS + 2);
        /* beside them: maxima and sums of softmax over the vocabulary, gradients of norms, biases
         * and positions */
        expect("gpt tensor", c.sent, 2.0 * (p - 1) * 4 * elements * (4 * LAYERS + 2),
               0.05 * c.sent);
    }
    ll_graph_free(g);
}

/* A cut sequence: by heads, or keys and values gathered. */
static void test_sequence(void **state)
{
    (void)state;
    for (int p = 2; p <= 4; p++)
        for (int few = 0; few <= (p > 2); few++) {
            char mesh[32];
            const int64_t batch = few ? 2 : BATCH, heads = few ? 2 : 12;
            ll_graph *g = gpt_of(batch, heads);
            snprintf(mesh, sizeof mesh, "sequence=%d", p);
            counted c = count(g, mesh, 0, 0);
            expect(few ? "gpt sequence, gathered" : "gpt sequence, heads", c.sent,
                   sequence_bytes(g, batch, heads, p), c.scalars);
            assert_true(few ? c.busiest > 1.5 : c.busiest == 1);
            ll_graph_free(g);
        }
}

/* The ring sends what gathers send, and halves of queries, o and its sums there and back, and of
 * keys, values and their gradients; the middle one of an odd number of ranks keeps its half. Then
 * every rank has the same to do. */
static void test_ring(void **state)
{
    (void)state;
    for (int p = 3; p <= 4; p++) {
        char mesh[32];
        ll_graph *g = gpt_of(2, 2);
        double e = 4.0 * 2 * SEQ * WIDTH,
               swapped = e / 2 * (6 + 2.0 / WIDTH) * (p == 3 ? 2. / 3 : 1);
        snprintf(mesh, sizeof mesh, "sequence=%d", p);
        overlap = LL_OVERLAP_ALL;
        counted c = count(g, mesh, 0, 0);
        overlap = LL_OVERLAP_NONE;
        if (p == 4) /* others do not divide */
            expect("gpt sequence, ring", c.sent, sequence_bytes(g, 2, 2, p) + LAYERS * swapped,
                   c.scalars);
        print_message("busiest rank: %.3f of the average\n", c.busiest);
        assert_true(c.rotated > 0 && c.busiest < (p == 4 ? 1.001 : 1.2));
        ll_graph_free(g);
    }
}

/* With exact sums, by rows: keys and values are gathered, their gradients scattered. */
static void test_exact_rows(void **state)
{
    (void)state;
    exact = true;
    sequence = LL_TURN_ROWS;
    for (int p = 2; p <= 4; p++) {
        char mesh[32];
        ll_graph *g = gpt_of(2, 2);
        snprintf(mesh, sizeof mesh, "sequence=%d", p);
        counted c = count(g, mesh, 0, (int64_t)2 * SEQ * WIDTH);
        assert_int_equal(c.gathers, 2 * LAYERS);
        assert_int_equal(c.sums, 2 * LAYERS);
        ll_graph_free(g);
    }
    exact = false;
    sequence = LL_TURN_AUTO;
}

/* Of few queries and many keys the queries are gathered, being fewer bytes, but not by rows. */
static void test_exact_cross(void **state)
{
    (void)state;
    enum { QUERIES = 6, KEYS = 24, HEADS = 2, HEAD = 4 };
    ll_graph *g = ll_graph_new("cross");
    ll_val q = ll_batch(g, "q", LL_F32, LL_SHAPE(3, QUERIES, HEADS * HEAD));
    ll_val k = ll_batch(g, "k", LL_F32, LL_SHAPE(3, KEYS, HEADS * HEAD));
    q = ll_reshape(g, q, LL_SHAPE(3, QUERIES, HEADS, HEAD));
    k = ll_reshape(g, k, LL_SHAPE(3, KEYS, HEADS, HEAD));
    ll_graph_result(g, "o", ll_attend(g, q, k, ll_exp(g, k), NULL));
    exact = true;
    for (int rows = 0; rows < 2; rows++) {
        sequence = rows ? LL_TURN_ROWS : LL_TURN_AUTO;
        counted keys = count(g, "sequence=2", 0, (int64_t)3 * KEYS * HEADS * HEAD);
        assert_int_equal(keys.gathers, 2 * rows);
    }
    exact = false;
    sequence = LL_TURN_AUTO;
    ll_graph_free(g);
}

/* Spatial: a 3x3 window reads a row of each neighbour: of the image in the forward pass, which the
 * filter's gradient reads again, and of the result's gradient for the image's. The same whether or
 * not the interior is made apart. */
static void test_halo(void **state)
{
    (void)state;
    ll_graph *g = convs();
    for (int p = 2; p <= 4; p++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "height=%d", p);
        double rows =
            2.0 * (p - 1) * IMAGES * ROW * 4; /* over every border, both ways, a channel */
        for (int all = 0; all < 2; all++) {
            overlap = all ? LL_OVERLAP_ALL : LL_OVERLAP_NONE;
            counted c = count(g, mesh, 0, 0);
            expect("halo rows", c.halo, rows * (C1 + C2 + C3), 0);
            expect("height", c.sent, c.halo + 2.0 * (p - 1) * gradient_bytes(g), c.scalars);
        }
        overlap = LL_OVERLAP_NONE;
    }
    ll_graph_free(g);
}

/* Gathers in panels send what gathers send: SUMMA's on rows and cols, ZeRO 3's of parameters,
 * those before column parallel products. */
static void test_panels(void **state)
{
    (void)state;
    static const char *const meshes[] = {"rows=2,cols=2", "rows=2,cols=3", "depth=3", "filter=4",
                                         "channel=2,filter=2"};
    ll_graph *g = mlp(), *h = gpt();
    for (int k = 0; k < 7; k++) {
        const char *mesh = k < 5 ? meshes[k] : k == 5 ? "data=3" : "tensor=4";
        const ll_graph *x = k < 5 ? g : h;
        overlap = LL_OVERLAP_NONE;
        counted plain = count(x, mesh, k == 5 ? 3 : 0, 0);
        overlap = LL_OVERLAP_ALL;
        counted c = count(x, mesh, k == 5 ? 3 : 0, 0);
        expect(mesh, c.sent, plain.sent, 0);
        assert_true(plain.rotated == 0 && c.rotated > 0);
    }
    overlap = LL_OVERLAP_NONE;
    ll_graph_free(g);
    ll_graph_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors),    cmocka_unit_test(test_factors_chosen),
        cmocka_unit_test(test_data),       cmocka_unit_test(test_zero3),
        cmocka_unit_test(test_tensor),     cmocka_unit_test(test_sequence),
        cmocka_unit_test(test_exact_rows), cmocka_unit_test(test_exact_cross),
        cmocka_unit_test(test_ring),       cmocka_unit_test(test_halo),
        cmocka_unit_test(test_panels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
