/* mpi: 2 3 4
 * Compressed gradients in training: a model learns as with dense ones; residuals are saved and
 * restored, on the same ranks to the bit, on others with the same sum; ranks that hold the same
 * parameter keep the same bits; what cannot be is refused. And canonical sums: no bit depends on
 * the algorithm. The seed is printed. */
#include "base/crc32c.h"
#include "base/rng.h"
#include "tmpdir.h"
#include "train/foresee.h"
#include "weights/residual.h"
#include "weights/state.h"
#include "no_error.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static ll_comm *comm;
static uint64_t seed = 1;

/* ---- a task that can be learnt: which of 7 means a noisy point is around ---- */

enum { BATCH = 24, IN = 20, CLASSES = 7, HIDDEN = 33 };

static ll_graph *mlp(void)
{
    ll_graph *g = ll_graph_new("mlp");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(BATCH, IN));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(BATCH));
    ll_val h = ll_relu(g, ll_linear(g, "fc1", x, HIDDEN, true));
    ll_val gain = ll_param(g, "gain", LL_SHAPE(HIDDEN), (ll_init){LL_CONSTANT, 1});
    ll_val shift = ll_param(g, "shift", LL_SHAPE(HIDDEN), (ll_init){LL_ZEROS, 0});
    ll_val logits = ll_linear(g, "fc2", ll_layernorm(g, h, gain, shift, 1e-5), CLASSES, true);
    ll_minimize(g, ll_mean(g, ll_cross_entropy(g, logits, y)), &(ll_optim){.name = "momentum"});
    no_error(ll_graph_check(g));
    return g;
}

static void feed(ll_session *s, int step)
{
    float x[BATCH * IN];
    int32_t y[BATCH];
    for (int i = 0; i < BATCH; i++) {
        y[i] = (int32_t)ll_below_at(seed, ll_stream("label", (uint64_t)step), (uint64_t)i, CLASSES);
        for (int k = 0; k < IN; k++) {
            uint64_t mean = (uint64_t)(y[i] * IN + k), at = (uint64_t)(i * IN + k);
            x[i * IN + k] = (float)(ll_normal_at(seed, ll_stream("mean", 0), mean) +
                                    1.5 * ll_normal_at(seed, ll_stream("x", (uint64_t)step), at));
        }
    }
    no_error(ll_session_set(s, "x", 0, x, sizeof x));
    no_error(ll_session_set(s, "y", 0, y, sizeof y));
}

static ll_err open_on(ll_graph *g, ll_comm *c, const char *mesh, const char *codec, ll_session **s)
{
    ll_session_opts o = {.threads = 1, .seed = 5, .comm = c, .mesh = mesh, .compress = codec};
    return ll_session_open(g, &o, s);
}

static const char *data_mesh(int n)
{
    static char mesh[32];
    snprintf(mesh, sizeof mesh, "data=%d", n);
    return mesh;
}

/* Steps first to last - 1; the mean loss of the last five. */
static double train(ll_session *s, int first, int last)
{
    double sum = 0;
    for (int i = first; i < last; i++) {
        feed(s, i);
        no_error(ll_session_run(s, 0.05));
        if (i >= last - 5) sum += ll_session_result(s, "loss") / 5;
    }
    return sum;
}

static void test_learns(void **state)
{
    (void)state;
    static const char *const codecs[] = {"none",     "bf16",       "f16",   "qsgd:4",
                                         "topk:0.1", "topk:0.1:4", "onebit"};
    double dense = 0;
    for (size_t k = 0; k < sizeof codecs / sizeof *codecs; k++) {
        ll_graph *g = mlp();
        ll_session *s;
        int64_t sent, f32;
        double all[2]; /* slices are of whole blocks: ranks send unequal shares */
        no_error(open_on(g, comm, data_mesh(ll_comm_size(comm)), codecs[k], &s));
        double first = train(s, 0, 5), last = train(s, 5, 60);
        if (!k) dense = first - last;
        ll_exec_compressed(s->e, &sent, &f32);
        if (ll_comm_rank(comm) == 0)
            print_message("%-12s loss %.4f to %.4f, %lld bytes of %lld\n", codecs[k], first, last,
                          (long long)sent, (long long)f32);
        if (!(first - last >= 0.85 * dense)) /* the band: 85 % of the dense fall, or more */
            fail_msg("%s: the loss falls by %g, by %g with dense gradients", codecs[k],
                     first - last, dense);
        all[0] = (double)sent;
        all[1] = (double)f32;
        no_error(ll_comm_allreduce(comm, all, 2, LL_F64, LL_REDUCE_SUM, NULL));
        assert_true(k ? all[0] < 0.6 * all[1] : sent == 0 && f32 == 0);
        ll_session_close(s);
        ll_graph_free(g);
    }
}

static uint32_t bits_of(const ll_session *s)
{
    uint32_t crc = 0;
    ll_arena *a = ll_arena_new();
    ll_st_list l = ll_session_all_tensors(s, a);
    for (int i = 0; i < l.n; i++)
        crc = ll_crc32c(crc, l.tensors[i].data, (size_t)ll_numel(&l.parts[i].shape) * 4);
    ll_arena_free(a);
    return crc;
}

/* Factors: the gradients are the same but for rounding, and ranks have the same bits. */
static void test_factors(void **state)
{
    (void)state;
    double loss[3];
    static const char *const how[] = {"none", "factors"};
    int n = ll_comm_size(comm);
    for (int k = 0; k < 3; k++) {
        ll_graph *g = mlp();
        ll_session *s;
        no_error(open_on(g, k < 2 ? comm : NULL, k < 2 ? data_mesh(n) : NULL, k < 2 ? how[k] : NULL,
                         &s));
        loss[k] = train(s, 0, 20);
        if (k == 1) {
            double bits[2] = {(double)bits_of(s), -(double)bits_of(s)};
            no_error(ll_comm_allreduce(comm, bits, 2, LL_F64, LL_REDUCE_MAX, NULL));
            assert_true(bits[0] == -bits[1]);
        }
        ll_session_close(s);
        ll_graph_free(g);
    }
    assert_true(fabs(loss[1] - loss[2]) < 1e-4 * loss[2] &&
                fabs(loss[0] - loss[2]) < 1e-4 * loss[2]);
    /* With what it does not go. */
    static const struct {
        int zero;
        bool exact;
        const char *says;
    } bad[] = {{1, false, "use zero 0"}, {0, true, "use one of them"}};
    for (int k = 0; k < 2; k++) {
        ll_graph *g = mlp();
        ll_session *s;
        ll_session_opts o = {.comm = comm,
                             .mesh = data_mesh(n),
                             .compress = "factors",
                             .zero = bad[k].zero,
                             .exact = bad[k].exact};
        assert_int_not_equal(ll_session_open(g, &o, &s), LL_OK);
        assert_non_null(strstr(ll_error_text(), bad[k].says));
        ll_graph_free(g);
    }
}

/* ---- residuals in files ---- */

/* The sum of all ranks' residuals, each element times a weight of its own. */
static double residual_sum(const ll_session *s, ll_comm *c)
{
    double sum = 0;
    ll_arena *a = ll_arena_new();
    ll_st_list l = ll_residual_tensors(s, a);
    assert_true(l.n > 0);
    for (int i = 0; i < l.n; i++)
        for (int64_t k = 0; k < ll_numel(&l.parts[i].shape); k++)
            sum += (double)((const float *)l.tensors[i].data)[k] * sin((double)(k + 1));
    no_error(ll_comm_allreduce(c, &sum, 1, LL_F64, LL_REDUCE_SUM, NULL));
    ll_arena_free(a);
    return sum;
}

static void shared_path(void *const *state, char path[512])
{
    snprintf(path, 512, "%s", tmpdir_path(state, "saved.safetensors"));
    no_error(ll_comm_broadcast(comm, path, 512, LL_U8, 0, NULL));
}

static void test_resume(void **state)
{
    static const char *const codecs[] = {"topk:0.05", "topk:0.05:3", "onebit", "qsgd:3"};
    char path[512];
    shared_path(state, path);
    const char *mesh = ll_comm_size(comm) == 4 ? "data=2,tensor=2" : data_mesh(ll_comm_size(comm));
    for (int k = 0; k < 4; k++) {
        ll_graph *g = mlp(), *h = mlp();
        ll_session *never, *again;
        no_error(open_on(g, comm, mesh, codecs[k], &never));
        train(never, 0, 6);
        no_error(ll_session_save(never, path));
        train(never, 6, 12);
        no_error(open_on(h, comm, mesh, codecs[k], &again));
        no_error(ll_session_load(again, path));
        train(again, 6, 12);
        if (bits_of(never) != bits_of(again))
            fail_msg("%s: rank %d has other bits after resuming", codecs[k], ll_comm_rank(comm));
        ll_session_close(never);
        ll_session_close(again);
        ll_graph_free(g);
        ll_graph_free(h);
    }
}

/* A step is foreseen by going through the codec itself, what it has not sent with it: it leaves no
 * bit behind, neither before the first step nor between others. */
static void test_foreseen(void **state)
{
    (void)state;
    static const char *const codecs[] = {"topk:0.05",    "topk:0.05:3", "onebit", "int8",
                                         "int4:huffman", "lossless",    "bf16"};
    for (size_t k = 0; k < sizeof codecs / sizeof *codecs; k++) {
        uint32_t bits[2];
        for (int foresees = 0; foresees < 2; foresees++) {
            ll_graph *g = mlp();
            ll_session *s;
            no_error(open_on(g, comm, data_mesh(ll_comm_size(comm)), codecs[k], &s));
            for (int step = 0; step < 6; step += 3) {
                ll_ahead ahead;
                const char *without;
                if (foresees) {
                    no_error(ll_foresee_step(s, comm, 3, NULL, &ahead, &without));
                    assert_true(ahead.seconds > 0 && !without);
                }
                train(s, step, step + 3);
            }
            bits[foresees] = bits_of(s);
            ll_session_close(s);
            ll_graph_free(g);
        }
        if (bits[0] != bits[1])
            fail_msg("%s: rank %d has other bits after foreseeing", codecs[k], ll_comm_rank(comm));
    }
}

/* What ranks have not sent yet is all there, whoever has it. */
static void test_other_ranks(void **state)
{
    char path[512];
    shared_path(state, path);
    int n = ll_comm_size(comm);
    if (n == 3) return;
    ll_graph *g = mlp(), *h = mlp();
    ll_session *s, *fewer;
    ll_comm *half;
    const char *note = NULL;
    no_error(open_on(g, comm, data_mesh(n), "topk:0.05", &s));
    train(s, 0, 6);
    no_error(ll_session_save(s, path));
    double before = residual_sum(s, comm);
    no_error(ll_comm_split(comm, ll_comm_rank(comm) / 2, ll_comm_rank(comm), &half));
    no_error(open_on(h, half, "data=2", "onebit", &fewer)); /* another codec may take over */
    ll_st_file *f;
    ll_arena *a = ll_arena_new();
    no_error(ll_st_open(path, &f));
    no_error(ll_residual_load(fewer, f, a, &note));
    double after = residual_sum(fewer, half);
    if (!(fabs(before - after) < 1e-6 * fabs(before)))
        fail_msg("residuals add up to %.9g, %.9g before", after, before);
    assert_true(before != 0 && !note == (n == 2));
    if (note)
        assert_string_equal(note, "residuals of 4 ranks: their sum is divided among the 2 "
                                  "ranks of this run");
    ll_st_close(f);
    ll_arena_free(a);
    no_error(ll_comm_agree(comm, LL_OK)); /* before the file goes */
    ll_session_close(fewer);
    ll_comm_close(half);
    ll_session_close(s);
    ll_graph_free(g);
    ll_graph_free(h);
}

/* Parameters that are whole on every rank, on a mesh where others are not: a codec sees buckets,
 * and what is in them may differ from rank to rank. */
static void test_copies_agree(void **state)
{
    (void)state;
    if (ll_comm_size(comm) != 4) return;
    ll_graph *g = mlp();
    ll_session *s;
    int whole = 0;
    no_error(open_on(g, comm, "data=2,tensor=2", "topk:0.05", &s));
    train(s, 0, 10);
    const ll_program *p = s->p;
    for (int i = 0; i < s->n_kept; i++) {
        int slot = s->kept[i];
        const ll_slot *x = &p->slots[slot];
        if (x->piece) continue;
        double crc[2] = {ll_crc32c(0, ll_exec_data(s->e, slot, 0), x->bytes)};
        crc[1] = -crc[0];
        no_error(ll_comm_allreduce(comm, crc, 2, LL_F64, LL_REDUCE_MAX, NULL));
        if (crc[0] != -crc[1]) fail_msg("%s differs between ranks", x->name);
        whole++;
    }
    assert_true(whole >= 4 && whole < s->n_kept);
    ll_session_close(s);
    ll_graph_free(g);
}

static void test_refused(void **state)
{
    (void)state;
    int n = ll_comm_size(comm);
    ll_graph *g = mlp();
    ll_session *s;
    char tensor[32];
    snprintf(tensor, sizeof tensor, "tensor=%d", n);
    assert_int_equal(open_on(g, comm, tensor, "bf16", &s), LL_E_SHARD);
    assert_non_null(strstr(ll_error_message(), "summed over axis data, which mesh"));
    assert_int_equal(open_on(g, NULL, "", "bf16", &s), LL_E_SHARD);
    assert_int_equal(open_on(g, comm, data_mesh(n), "topk:2", &s), LL_E_ARG);
    ll_session_opts o = {.comm = comm, .mesh = data_mesh(n), .zero = 2, .compress = "onebit"};
    assert_int_equal(ll_session_open(g, &o, &s), LL_E_SHARD);
    assert_non_null(strstr(ll_error_message(), "use zero 0"));
    ll_graph_free(g);
}

/* With a window for everything at once, and with one that takes many rounds. (Every algorithm is
 * held against the others in test_mpi_collectives.) */
static void test_canonical(void **state)
{
    (void)state;
    uint32_t bits[2];
    for (int k = 0; k < 2; k++) {
        ll_comm_opts o = {
            .timeout_s = 60, .canonical = true, .table = "", .window_bytes = k * 2048};
        ll_comm *c;
        ll_session *s;
        ll_graph *g = mlp();
        no_error(ll_comm_open(&o, &c));
        no_error(open_on(g, c, data_mesh(ll_comm_size(c)), "none", &s));
        train(s, 0, 8);
        bits[k] = bits_of(s);
        ll_session_close(s);
        ll_comm_close(c);
        ll_graph_free(g);
    }
    assert_int_equal(bits[0], bits[1]);
}

int main(void)
{
    if (getenv("SEED")) seed = strtoull(getenv("SEED"), NULL, 10);
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    if (ll_comm_rank(comm) == 0) print_message("SEED=%llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_learns),
        cmocka_unit_test_setup_teardown(test_resume, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(test_foreseen),
        cmocka_unit_test_setup_teardown(test_other_ranks, tmpdir_setup, tmpdir_teardown),
        cmocka_unit_test(test_copies_agree),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_canonical)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
