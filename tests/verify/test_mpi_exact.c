/* mpi: 1 2 3 4
 * Exact mode: on every mesh the bits of one process. verify compares everything after each step;
 * and whole runs (loss, gradient norm, validation, checkpoints) leave the same bytes in their
 * files. Sizes are such that ranks do not divide them; dropout, clipping, micro-batches and
 * optimizers that divide by norms are among the settings. And what verify is for: it counts bits
 * that differ. */
#include "infer/evaluate.h"
#include "train/trainer.h"
#include "verify/verify.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static ll_comm *comm;
#ifdef __SANITIZE_ADDRESS__
enum { MOST_STEPS = 1, STRIDE = 2 }; /* of pairs every second: compiling takes most of it */
#else
enum { MOST_STEPS = 3, STRIDE = 1 };
#endif

#define EXACT "parallel: {exact: true}\n"
static const char mlp[] = EXACT "model: {name: mlp, image: 9, width: 37}\n"
                                "train: {batch: 14, micro_batch: 7, optimizer: lamb}\n";
static const char lenet[] = EXACT "model: {name: lenet5}\n"
                                  "train: {batch: 7, optimizer: lars, clip: 0.1}\n";
static const char gpt[] = EXACT "model: {name: gpt, layers: 2, width: 24, heads: 6, seq: 13,"
                                " vocab: 53, dropout: 100}\n"
                                "train: {batch: 7, optimizer: adamw, clip: 0.5}\n";

/* Queries stay cut, keys and values are gathered: few heads, groups of queries, no causal mask, and
 * fewer queries than keys. */
#define ROWS "parallel: {exact: true, sequence: rows}\n"
static const char few[] =
    ROWS "model: {name: gpt, layers: 2, width: 24, heads: 2, seq: 23, vocab: 53}\n"
         "train: {batch: 2, optimizer: adamw}\n";
static const char llama[] = ROWS "model: {name: llama, layers: 2, width: 24, heads: 6, kv_heads: 2,"
                                 " head: 4, hidden: 40, seq: 13, vocab: 53}\n"
                                 "train: {batch: 3, optimizer: adamw}\n";
static const char bert[] =
    ROWS "model: {name: bert, layers: 1, width: 24, heads: 2, hidden: 40, seq: 13,"
         " vocab: 53, mask: 3}\ntrain: {batch: 3, optimizer: adamw}\n";
static const char seq2seq[] =
    ROWS "model: {name: seq2seq, layers: 1, width: 24, heads: 6, hidden: 40, seq: 7,"
         " source: 19, vocab: 53}\ntrain: {batch: 3, optimizer: adamw}\n";

typedef struct pair {
    int ranks;
    const char *model, *mesh;
    int zero, steps;
} pair;

static const pair pairs[] = {
    {1, gpt, "", 0, 1},
    {2, mlp, "data=2", 2, 3},
    {2, lenet, "data=2", 0, 3},
    {2, lenet, "height=2", 0, 3},
    {2, lenet, "channel=2", 0, 3},
    {2, gpt, "tensor=2", 0, 3},
    {2, gpt, "sequence=2", 0, 3},
    {2, few, "sequence=2", 0, 2},
    {2, llama, "sequence=2", 0, 2},
    {2, bert, "sequence=2", 0, 2},
    {2, seq2seq, "sequence=2", 0, 2},
    {3, gpt, "data=3", 1, 3},
    {3, few, "sequence=3", 0, 2},
    {3, llama, "sequence=3", 0, 2},
    {3, bert, "sequence=3", 0, 2},
    {3, gpt, "tensor=3", 0, 3},
    {3, lenet, "width=3", 0, 3},
    {3, lenet, "filter=3", 0, 3},
    {3, mlp, "data=3", 3, 3},
    {3, mlp, "depth=3", 0, 3},
    {4, lenet, "height=2,width=2", 0, 2},
    {4, few, "sequence=4", 0, 2},
    {4, llama, "data=2,sequence=2", 3, 2},
    {4, bert, "sequence=4", 0, 2},
    {4, seq2seq, "sequence=4", 0, 2},
    {4, lenet, "channel=2,filter=2", 0, 2},
    {4, mlp, "rows=2,cols=2", 0, 3},
    {4, gpt, "tensor=2,sequence=2", 0, 2},
    {4, gpt, "data=2,tensor=2", 1, 2},
};

static ll_run *parse(const char *text)
{
    ll_run *r;
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    no_error(ll_run_finish(r));
    return r;
}

static void test_pairs(void **state)
{
    (void)state;
    for (size_t i = 0, k = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const pair *p = &pairs[i];
        if (p->ranks != ll_comm_size(comm) || k++ % STRIDE) continue;
        ll_run *r = parse(p->model);
        ll_verify_report v;
        int steps = p->steps < MOST_STEPS ? p->steps : MOST_STEPS;
        ll_verify_opts o = {.session = {.comm = comm, .mesh = p->mesh, .zero = p->zero},
                            .steps = steps};
        ll_err rc = ll_verify_run(r, &o, true, &v);
        if (rc != LL_OK)
            fail_msg("%s on %s: %s\n%s", r->model.name, p->mesh, ll_error_text(),
                     ll_error_frames());
        if (!v.ok || v.differing)
            fail_msg("%s on %s zero %d: step %lld: %lld elements differ, first of %s (%s): element "
                     "%lld is %.9g, not %.9g",
                     r->model.name, p->mesh, p->zero, (long long)v.step, (long long)v.differing,
                     v.name, v.op, (long long)v.index, v.parallel, v.serial);
        assert_int_equal(v.steps, steps);
        assert_int_equal(v.left_out, 0);
        ll_run_free(r);
    }
}

/* ---- a small residual network ---- */

static ll_err feed_images(void *context, ll_session *s, int64_t step)
{
    (void)context;
    float x[5 * 11 * 9 * 3];
    int32_t y[5];
    for (int i = 0; i < 5 * 11 * 9 * 3; i++) x[i] = (float)sin((double)(i * i) + (double)step);
    for (int i = 0; i < 5; i++) y[i] = (int32_t)(i + step) % 6;
    TRY(ll_session_set(s, "x", 0, x, sizeof x));
    return ll_session_set(s, "y", 0, y, sizeof y);
}

/* Batch norm, strides, groups, windows of pooling that overlap, a sum of two ways. */
static ll_graph *residual(void)
{
    ll_graph *g = ll_graph_new("residual");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(5, 11, 9, 3));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(5));
    ll_val h = ll_conv_layer(g, "conv1", x, 8, 3, &(ll_conv){.pad = {1, 1}}, false);
    h = ll_relu(g, ll_batchnorm_layer(g, "bn1", h, true));
    h = ll_max_pool(g, h, &(ll_window){.size = {3, 3}, .stride = {2, 2}, .pad = {1, 1}});
    ll_val way = ll_conv_layer(g, "conv2", h, 8, 3, &(ll_conv){.pad = {1, 1}, .groups = 2}, false);
    way = ll_batchnorm_layer(g, "bn2", way, true);
    h = ll_relu(g, ll_add(g, h, way));
    h = ll_avg_pool(g, h, &(ll_window){.size = {2, 2}, .stride = {1, 1}});
    h = ll_conv_layer(g, "conv3", h, 10, 3, &(ll_conv){.stride = {2, 2}, .pad = {1, 1}}, true);
    h = ll_adaptive_avg_pool(g, h, 1, 1);
    ll_val logits = ll_linear(g, "fc", ll_reshape(g, h, LL_SHAPE(5, 10)), 6, true);
    ll_minimize(g, ll_mean(g, ll_cross_entropy(g, logits, y)), &(ll_optim){.name = "momentum"});
    return g;
}

static void test_residual(void **state)
{
    (void)state;
    static const char *const on[5][4] = {[1] = {""},
                                         [2] = {"data=2", "height=2", "filter=2"},
                                         [3] = {"data=3", "width=3", "channel=3"},
                                         [4] = {"height=2,width=2", "data=2,height=2"}};
    const char *const *mesh = on[ll_comm_size(comm)];
    for (int i = STRIDE - 1; i < 4 && mesh[i]; i += STRIDE) { /* under sanitizers: halos */
        ll_graph *g = residual();
        ll_verify_opts o = {
            .session = {.comm = comm, .mesh = mesh[i], .threads = 1, .exact = true, .seed = 3},
            .steps = 2,
            .lr = 0.1,
            .feed = feed_images};
        ll_verify_report v;
        if (i) o.session.overlap = "all"; /* borders by themselves: their whole sums are added */
        no_error(ll_verify_graph(g, &o, &v));
        if (!v.ok || v.differing)
            fail_msg("%s: %lld elements differ, first of %s (%s)", mesh[i], (long long)v.differing,
                     v.name, v.op);
        ll_graph_free(g);
    }
}

/* ---- whole runs ---- */

static const char *const runs[] = {
    EXACT "model: {name: lenet5}\n"
          "data: {name: synthetic, samples: 60}\n"
          "train: {batch: 13, steps: 3, eval_every: 2, log_every: 1, optimizer: adam}\n",
    EXACT "model: {name: gpt, layers: 1, width: 24, heads: 6, seq: 13, vocab: 53, dropout: 100}\n"
          "data: {name: synthetic, samples: 60}\n"
          "train: {batch: 10, micro_batch: 5, steps: 3, log_every: 1, optimizer: adamw}\n",
};
static const char *const meshes[5][2] = {[1] = {"", ""},
                                         [2] = {"data=2", "tensor=2"},
                                         [3] = {"width=3", "data=3"},
                                         [4] = {"data=2,height=2", "data=2,tensor=2"}};

static void train(const char *text, const char *mesh, const char *out, ll_comm *c)
{
    ll_run *r;
    ll_train_report report;
    char mesh_set[64], out_set[128];
    snprintf(mesh_set, sizeof mesh_set, "parallel.mesh=%s", mesh);
    snprintf(out_set, sizeof out_set, "out=%s", out);
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    no_error(ll_run_set(r, mesh_set));
    no_error(ll_run_set(r, out_set));
    no_error(ll_run_set(r, c ? "train.threads=1" : "train.threads=2"));
    no_error(ll_run_finish(r));
    no_error(ll_train(r, &(ll_train_opts){.comm = c}, &report));
    ll_run_free(r);
}

static char *slurp(const char *folder, const char *name, size_t *n)
{
    static char bytes[2][8 << 20];
    static int turn;
    char path[256], *to = bytes[turn++ % 2];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is not there", path);
    *n = fread(to, 1, sizeof bytes[0], f);
    fclose(f);
    assert_true(*n > 0 && *n < sizeof bytes[0]);
    return to;
}

static void same_file(const char *a, const char *b, const char *name)
{
    size_t n, m;
    char *x = slurp(a, name, &n), *y = slurp(b, name, &m);
    size_t at = 0;
    while (at < n && at < m && x[at] == y[at]) at++;
    if (n != m || at < n)
        fail_msg("%s of %d ranks differs from one rank's at byte %zu of %zu (%zu)", name,
                 ll_comm_size(comm), at, m, n);
}

static void test_files(void **state)
{
    (void)state;
    char folder[] = "/tmp/loopline-exact-XXXXXX", many[64], one[64], command[96];
    if (ll_comm_rank(comm) == 0) assert_non_null(mkdtemp(folder));
    no_error(ll_comm_broadcast(comm, folder, sizeof folder, LL_U8, 0, NULL));
    for (size_t i = STRIDE - 1; i < sizeof runs / sizeof *runs; i++) {
        snprintf(many, sizeof many, "%s/many%zu", folder, i);
        snprintf(one, sizeof one, "%s/one%zu", folder, i);
        train(runs[i], meshes[ll_comm_size(comm)][i], many, comm);
        if (ll_comm_rank(comm) == 0) {
            train(runs[i], "", one, NULL);
            same_file(one, many, "checkpoints/step-00000003.safetensors");
            same_file(one, many, "metrics.jsonl");
        }
        no_error(ll_comm_barrier(comm));
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (ll_comm_rank(comm) == 0) assert_int_equal(system(command), 0);
}

/* ---- what is refused, what is found ---- */

static void test_refused(void **state)
{
    (void)state;
    ll_run *r;
    const char *text = EXACT "model: {name: mlp}\ntrain: {precision: bf16}\n";
    no_error(ll_run_parse(text, strlen(text), "test", &r));
    assert_int_equal(ll_run_finish(r), LL_E_CONFIG);
    assert_non_null(strstr(ll_error_message(), "exact"));
    ll_run_free(r);
}

/* One process, twice: with a parameter's last bit changed all but nothing agrees. */
static ll_err feed(void *context, ll_session *s, int64_t step)
{
    (void)step;
    const float x[4] = {1, 2, -3, 4};
    int *calls = (int *)context;
    TRY(ll_session_set(s, "x", 0, x, sizeof x));
    float w[3];
    if ((*calls)++ % 2 == 0) return LL_OK; /* the serial session is fed first */
    TRY(ll_session_get(s, "fc.weight", w, sizeof w));
    w[1] = nextafterf(w[1], 9);
    return ll_session_set(s, "fc.weight", 0, w, sizeof w);
}

static void test_found(void **state)
{
    (void)state;
    if (ll_comm_size(comm) > 1) return;
    int calls = 0;
    ll_graph *g = ll_graph_new("found");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(4, 1));
    ll_minimize(g, ll_mean(g, ll_square(g, ll_linear(g, "fc", x, 3, false))),
                &(ll_optim){.name = "sgd"});
    ll_verify_opts o = {.session = {.comm = comm, .mesh = "", .exact = true, .seed = 3},
                        .steps = 1,
                        .lr = 0.1,
                        .feed = feed,
                        .context = &calls};
    ll_verify_report v;
    no_error(ll_verify_graph(g, &o, &v));
    assert_true(v.init_identical);
    assert_false(v.ok);
    assert_true(v.differing >= 1);
    ll_graph_free(g);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs), cmocka_unit_test(test_residual), cmocka_unit_test(test_files),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_found)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
