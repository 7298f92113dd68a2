/* mpi: 1 2 3 4 6
 * verify: models on meshes, each against serial training: a quick part of what verify --matrix
 * walks. And what verify is for: a wrong sharding rule is found and named. */
#include "verify/verify.h"
#include "base/file.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static ll_comm *comm;

/* Sizes that the ranks do not divide. */
static const char mlp[] = "model: {name: mlp, image: 9, width: 37}\n"
                          "train: {batch: 13, optimizer: adamw}\n";
static const char lenet[] = "model: {name: lenet5}\ntrain: {batch: 7, optimizer: momentum}\n";
static const char resnet[] =
    "model: {name: resnet18, image: 9, channels: 2, classes: 7, width: 8}\n"
    "train: {batch: 6, optimizer: momentum, lr: 0.001}\n";
static const char gpt[] = "model: {name: gpt, layers: 2, width: 24, heads: 6, seq: 13, vocab: 53}\n"
                          "train: {batch: 7, optimizer: adamw}\n";
static const char llama[] =
    "model: {name: llama, layers: 2, width: 24, heads: 6, kv_heads: 3, hidden: 40, seq: 13,"
    " vocab: 53, window: 5}\ntrain: {batch: 7, optimizer: adamw}\n";
/* Linear attention, over several chunks; heads that forget; rows of more ranks than heads. */
static const char linear[] =
    "model: {name: gpt, layers: 2, width: 24, heads: 6, seq: 131, vocab: 53, linear: 1, decay: 2}\n"
    "train: {batch: 7, optimizer: adamw}\n";
#define FEW_LINEAR                                                                                 \
    "model: {name: llama, layers: 2, width: 24, heads: 4, kv_heads: 2, hidden: 40, seq: 103, "     \
    "vocab: 53, linear: 1}\ntrain: {batch: 7, optimizer: adamw}\n"
static const char few_linear[] = FEW_LINEAR;
static const char linear_rows[] = FEW_LINEAR "parallel: {sequence: rows, overlap: none}\n";
static const char linear_ring[] = FEW_LINEAR "parallel: {sequence: rows, overlap: all}\n";

static const char bert[] =
    "model: {name: bert, layers: 2, width: 24, heads: 6, hidden: 40, seq: 13,"
    " vocab: 53, mask: 3}\ntrain: {batch: 7, optimizer: adamw}\n";

/* 4 heads cut in 2 by 3: some ranks hold none. */
static const char nothing[] =
    "model: {name: gpt, layers: 1, width: 24, heads: 4, seq: 6, vocab: 46}\n"
    "train: {batch: 7, optimizer: muon}\n";

static const char seq2seq[] =
    "model: {name: seq2seq, layers: 1, width: 24, heads: 6, hidden: 40, seq: 13, source: 11,"
    " vocab: 53}\ntrain: {batch: 6, optimizer: adamw}\n";

/* Logits and hidden states of another model, narrower ones by a projection: its file is the
 * rank's. */
static char taught[768], teacher[64];
static const char teaches[] =
    "model: {name: llama, layers: 2, width: 18, heads: 3, kv_heads: 3, hidden: 20, vocab: 53}\n";

static ll_err put_teacher(void)
{
    snprintf(teacher, sizeof teacher, "/tmp/loopline-test-teacher-%d.yaml", (int)getpid());
    snprintf(taught, sizeof taught,
             "model: {name: gpt, layers: 2, width: 24, heads: 6, seq: 13, vocab: 53}\n"
             "train: {batch: 7, optimizer: adamw, teacher: %s, teacher_hidden: \"h0=h1,h1=h0\"}\n",
             teacher);
    return ll_file_write(teacher, teaches, sizeof teaches - 1);
}

/* Adapters beside weights in blocks, three to a row. */
static const char qlora[] = "model: {name: llama, layers: 2, width: 96, heads: 3, kv_heads: 3, "
                            "head: 32, hidden: 160, seq: 7, vocab: 53}\n"
                            "train: {batch: 5, optimizer: adamw, lora: 3, base: nf4}\n";

/* Vectors before the tokens, all else frozen. */
static const char prompted[] = "model: {name: llama, layers: 2, width: 24, heads: 6, kv_heads: 3, "
                               "hidden: 40, seq: 13, vocab: 53}\n"
                               "train: {batch: 7, optimizer: adamw, prompt: 5}\n";

/* Weights of products that become zeros, and stay so; groups of 4 and 5 that ranks' pieces cut. */
#define PRUNED(model, rule, optimizer)                                                             \
    "model: {name: " model ", layers: 2, width: 18, heads: 3, seq: 13, vocab: 53}\n"               \
    "train: {batch: 6, optimizer: " optimizer ", weight_decay: 0.1, clip: 1, prune: \"" rule       \
    "\"}\n"
static const char in_fours[] = PRUNED("gpt", "2:4", "adamw");
static const char in_fives[] = PRUNED("llama", "3:5", "muon");
static const char by_share[] = PRUNED("gpt", "0.7", "momentum");
#define GRADUAL(model, rule, optimizer)                                                            \
    "model: {name: " model ", layers: 2, width: 18, heads: 3, seq: 13, vocab: 53}\n"               \
    "train: {batch: 6, optimizer: " optimizer ", weight_decay: 0.1, prune: \"" rule                \
    "\", prune_steps: \"0:3:1\"}\n"
static const char little[] = GRADUAL("gpt", "2:4", "adamw");
static const char by_little[] = GRADUAL("llama", "0.7", "schedule-free-adamw");

/* Products that read weights as blocks of 32 would have them, of which ranks' pieces are some. */
#define ROUNDED(model, bits)                                                                       \
    "model: {name: " model ", layers: 2, width: 96, heads: 3, seq: 13, vocab: 53}\n"               \
    "train: {batch: 6, optimizer: adamw, clip: 1, quantize: " bits "}\n"
static const char to_four[] = ROUNDED("gpt", "int4");
static const char to_eight[] = ROUNDED("llama", "int8");

/* Fewer heads than ranks, or none gone by: queries stay cut, keys and values come in a ring. */
#define FEW                                                                                        \
    "model: {name: gpt, layers: 2, width: 24, heads: 2, seq: 23, vocab: 53}\n"                     \
    "train: {batch: 2, optimizer: adamw}\n"
static const char rows[] = FEW "parallel: {sequence: rows, overlap: none}\n";
static const char ring[] = FEW "parallel: {sequence: rows, overlap: all}\n";
static const char heads[] = FEW "parallel: {sequence: heads}\n";

typedef struct pair {
    int ranks;
    const char *model, *mesh;
    int zero, steps;
    const char *recompute; /* NULL: none */
} pair;

static const pair pairs[] = {
    {1, gpt, "", 0, 2},
    {2, mlp, "data=2", 0, 5},
    {2, lenet, "height=2", 0, 5},
    {2, lenet, "channel=2", 0, 5},
    {2, gpt, "data=2", 2, 5},
    {2, gpt, "sequence=2", 0, 5},
    {2, llama, "tensor=2", 0, 2},
    {2, llama, "sequence=2", 0, 2},
    {2, llama, "data=2", 3, 2},
    {2, linear, "tensor=2", 0, 2},
    {2, linear, "data=2", 3, 2},
    {2, linear, "pipe=2", 0, 2, "full"},
    {3, linear, "tensor=3", 0, 2},
    {4, few_linear, "data=2,tensor=2", 1, 2},
    {6, linear, "data=2,tensor=3", 2, 2},
    {2, linear, "sequence=2", 0, 2},
    {3, linear_rows, "sequence=3", 0, 2},
    {4, linear_ring, "sequence=4", 0, 2},
    {2, bert, "tensor=2", 0, 2},
    {2, bert, "data=2", 3, 2},
    {2, bert, "pipe=2", 0, 2},
    {2, seq2seq, "tensor=2", 0, 2},
    {2, seq2seq, "sequence=2", 0, 2},
    {2, seq2seq, "data=2", 3, 2},
    {2, qlora, "tensor=2", 0, 2},
    {2, qlora, "data=2", 3, 2},
    {3, qlora, "tensor=3", 0, 2},
    {2, prompted, "tensor=2", 0, 2},
    {2, prompted, "data=2", 3, 2},
    {2, prompted, "pipe=2", 0, 2},
    {3, prompted, "tensor=3", 0, 2},
    {2, in_fours, "tensor=2", 0, 3},
    {2, in_fours, "data=2", 3, 3},
    {2, in_fours, "pipe=2", 0, 3},
    {3, in_fours, "tensor=3", 0, 3},
    {2, in_fives, "data=2", 2, 2},
    {3, in_fives, "tensor=3", 0, 2},
    {2, by_share, "data=2", 1, 3},
    {2, by_share, "tensor=2", 0, 3},
    {4, by_share, "data=2,tensor=2", 3, 3},
    {2, little, "data=2", 3, 5},
    {2, little, "pipe=2", 0, 5},
    {3, little, "tensor=3", 0, 5},
    {2, by_little, "tensor=2", 0, 5},
    {4, by_little, "data=2,tensor=2", 3, 5},
    {2, to_four, "data=2", 3, 2},
    {2, to_four, "tensor=2", 0, 2},
    {2, to_four, "pipe=2", 0, 2},
    {3, to_four, "tensor=3", 0, 2},
    {3, to_eight, "tensor=3", 0, 2},
    {4, to_eight, "data=2,tensor=2", 1, 2},
    {2, taught, "data=2", 3, 2},
    {2, taught, "tensor=2", 0, 2},
    {2, taught, "pipe=2", 0, 2},
    {3, taught, "tensor=3", 0, 2},
    {2, rows, "sequence=2", 0, 3},
    {2, ring, "sequence=2", 0, 3},
    {2, heads, "sequence=2", 0, 3},
    {3, rows, "sequence=3", 0, 3},
    {3, ring, "sequence=3", 0, 3, "full"},
    {4, ring, "sequence=4", 0, 3},
    {4, ring, "data=2,sequence=2", 3, 3},
    {2, resnet, "data=2", 1, 1},
    {2, gpt, "data=2", 3, 2, "full"},
    {2, gpt, "tensor=2", 0, 2, "full"},
    {2, lenet, "height=2", 0, 2, "full"},
    {2, gpt, "pipe=2", 0, 2, "full"},
    {2, resnet, "data=2", 0, 1, "selective"},
    {3, gpt, "tensor=3", 0, 5},
    {3, lenet, "width=3", 0, 5},
    {3, mlp, "data=3", 3, 5},
    {3, mlp, "filter=3", 0, 5},
    {4, lenet, "height=2,width=2", 0, 3},
    {4, lenet, "channel=2,filter=2", 0, 3},
    {4, mlp, "rows=2,cols=2", 0, 5},
    {4, gpt, "tensor=2,sequence=2", 0, 3},
    {4, gpt, "data=2,tensor=2", 1, 3},
    {6, gpt, "data=2,tensor=3", 1, 2},
    {4, gpt, "data=2,sequence=2", 2, 2, "full"},
    {6, lenet, "data=3,height=2", 0, 2},
    {6, nothing, "depth=2,filter=3", 0, 2},
};

static void test_pairs(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    enum { MOST = 1, STRIDE = 2 }; /* steps: more read and write nothing else; every second pair */
#else
    enum { MOST = 100, STRIDE = 1 };
#endif
    for (size_t i = 0, k = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const pair *p = &pairs[i];
        if (p->ranks != ll_comm_size(comm) || k++ % STRIDE) continue;
        ll_run *r;
        ll_verify_report v;
        no_error(ll_run_parse(p->model, strlen(p->model), "test", &r));
        no_error(ll_run_set(r, ll_arena_printf(r->arena, "parallel.zero=%d", p->zero)));
        no_error(ll_run_set(r, ll_arena_printf(r->arena, "parallel.recompute=%s",
                                               p->recompute ? p->recompute : "none")));
        no_error(ll_run_finish(r));
        int steps = p->steps < MOST ? p->steps : MOST;
        ll_verify_opts o = {
            .session = {.comm = comm, .mesh = p->mesh}, .steps = steps, .tolerance = 1e-5};
        ll_err rc = ll_verify_run(r, &o, true, &v);
        if (rc != LL_OK)
            fail_msg("%s on %s: %s\n%s", r->model.name, p->mesh, ll_error_text(),
                     ll_error_frames());
        if (ll_comm_rank(comm) == 0)
            print_message("%-9s %-20s zero %d, recompute %s: worst %.1e (%s), rounding %.1e\n",
                          r->model.name, p->mesh, p->zero, r->parallel.recompute, v.max_rel_diff[0],
                          v.worst[0], v.rounding);
        assert_true(v.init_identical);
        if (!v.ok)
            fail_msg("%s on %s zero %d: step %lld: %s differs by %g (%s)", r->model.name, p->mesh,
                     p->zero, (long long)v.step, v.name, v.rel_diff, v.op);
        assert_int_equal(v.steps, steps);
        assert_true(v.left_out < v.elements / 50);
        ll_run_free(r);
    }
}

/* ---- a wrong rule ---- */

static ll_err feed(void *context, ll_session *s, int64_t step)
{
    (void)context;
    float x[12 * 10];
    int32_t y[12];
    for (int i = 0; i < 120; i++) x[i] = (float)sin((double)(i * i) + (double)step);
    for (int i = 0; i < 12; i++) y[i] = (int32_t)(i + step) % 6;
    TRY(ll_session_set(s, "x", 0, x, sizeof x));
    return ll_session_set(s, "y", 0, y, sizeof y);
}

static ll_verify_report with_softmax(const ll_op *softmax, const char *mesh)
{
    ll_graph *g = ll_graph_new("gate");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(12, 10));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(12));
    ll_val h = LL_EMIT(g, softmax, NULL, ll_linear(g, "fc1", x, 64, true));
    ll_val logits = ll_linear(g, "fc2", h, 6, true);
    ll_minimize(g, ll_mean(g, ll_cross_entropy(g, logits, y)), &(ll_optim){.name = "momentum"});
    ll_verify_opts o = {.session = {.comm = comm, .mesh = mesh, .threads = 1, .seed = 3},
                        .steps = 3,
                        .tolerance = 1e-5,
                        .lr = 0.1,
                        .feed = feed};
    ll_verify_report v;
    no_error(ll_verify_graph(g, &o, &v));
    ll_graph_free(g);
    return v;
}

/* Softmax sums over its rows: cut along them it is wrong, and so is all that follows. */
static void test_wrong_rule(void **state)
{
    (void)state;
    int n = ll_comm_size(comm);
    char mesh[32];
    snprintf(mesh, sizeof mesh, "tensor=%d", n);
    if (n == 1) return;
    const ll_op *right = ll_op_find("softmax");
    ll_op wrong = *right;
    wrong.whole = NULL; /* declared free */
    wrong.expand = NULL;
    ll_verify_report v = with_softmax(right, mesh);
    assert_true(v.ok && v.init_identical && !v.name[0]);
    v = with_softmax(&wrong, mesh);
    assert_false(v.ok);
    assert_true(v.init_identical);
    assert_string_equal(v.name, "loss");
    assert_int_equal(v.step, 1);
    assert_true(v.rank >= 0 && v.rank < n && v.index == 0 && v.op[0]);
    assert_true(fabs(v.serial - v.parallel) > 1e-4);
}

/* A run that is held to bits differs where sums are in another order, and says where. */
static void test_named(void **state)
{
    (void)state;
    if (ll_comm_size(comm) != 3) return;
    ll_run *r;
    ll_verify_report v;
    no_error(ll_run_parse(mlp, strlen(mlp), "test", &r));
    no_error(ll_run_finish(r));
    ll_verify_opts o = {.session = {.comm = comm, .mesh = "data=3"}, .steps = 3};
    no_error(ll_verify_run(r, &o, true, &v));
    assert_false(v.ok);
    assert_true(v.name[0] && v.op[0] && v.rel_diff > 0 && v.rel_diff < 1e-5);
    assert_true(v.serial != v.parallel);
    ll_run_free(r);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_wrong_rule),
                                       cmocka_unit_test(test_named)};
    if (put_teacher() != LL_OK) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(teacher);
    ll_comm_close(comm);
    return rc;
}
