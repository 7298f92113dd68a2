/* mpi: 4
 * Weights of others on meshes: whatever a rank holds of a tensor, cut in whatever way, it reads of
 * the file through a map, and all of it is the file's. */
#include "weights/weight_files.h"

#include "tmpdir.h"
#include "run/ranks.h"

#include <stdlib.h>

static ll_comm *comm;
static char path[128];

/* As PyTorch has the small model's, the filter and linear weights in f64. */
static const named theirs[] = {
    {"conv.weight", LL_F64, {4, {8, 3, 3, 3}}},
    {"conv.bias", LL_F32, {1, {8}}},
    {"bn.weight", LL_F32, {1, {8}}},
    {"bn.bias", LL_F32, {1, {8}}},
    {"bn.running_mean", LL_F32, {1, {8}}},
    {"bn.running_var", LL_F32, {1, {8}}},
    {"fc.weight", LL_BF16, {2, {10, 128}}},
    {"fc.bias", LL_F32, {1, {10}}},
};

static void assert_permuted(ll_session *s)
{
    int64_t n;
    float *v = values_of(s, "conv.weight", &n);
    for (int i = 0; i < n; i++) {
        int c = i % 3, q = i / 3 % 3, r = i / 9 % 3, f = i / 27;
        assert_true((double)v[i] == element("conv.weight", ((f * 3 + c) * 3 + r) * 3 + q));
    }
    free(v);
}

static void one(const char *mesh, int zero)
{
    ll_graph *g = small_model(true, 10);
    ll_session *s;
    ll_arena *a = ll_arena_new();
    const char *note = NULL;
    int piped = strstr(mesh, "pipe") != NULL;
    ll_session_opts o = {.threads = 1, .seed = 1, .comm = comm, .mesh = mesh, .zero = zero};
    if (piped) o.micro_batches = 2;
    no_error(ll_session_open(g, &o, &s));
    no_error(ll_weights_load(s, &(ll_weights_from){.path = path}, a, &note));
    assert_non_null(strstr(note, "by map pytorch"));
    assert_permuted(s);
    assert_holds(s, "fc.weight", "fc.weight");
    assert_holds(s, "bn.var", "bn.running_var");
    /* All ranks refuse together, for one reason. */
    ll_weights_from wrong = {.path = path, .map = LL_MAP_AS_IS};
    assert_int_equal(ll_weights_load(s, &wrong, a, &note), LL_E_SHAPE);
    assert_non_null(strstr(ll_error_text(), "2 missing: bn.mean"));
    ll_session_close(s);
    ll_graph_free(g);
    ll_arena_free(a);
}

static void meshes(void **state)
{
    (void)state;
    one("data=4", 0);
    one("data=4", 3);
    one("data=2,tensor=2", 1);
    one("tensor=4", 0);
    one("filter=2,channel=2", 0);
    one("pipe=2,data=2", 0);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm) != LL_OK) return 1;
    int64_t id = getpid();
    ll_err rc = ll_ranks_share(comm, &id, sizeof id);
    snprintf(path, sizeof path, "/tmp/loopline-test-weights-%lld", (long long)id);
    if (ll_comm_rank(comm) == 0) write_tensors(path, theirs, sizeof theirs / sizeof *theirs);
    if (rc == LL_OK) rc = ll_comm_barrier(comm);
    const struct CMUnitTest tests[] = {cmocka_unit_test(meshes)};
    int failed = rc != LL_OK || cmocka_run_group_tests(tests, NULL, NULL);
    if (ll_comm_barrier(comm) == LL_OK && ll_comm_rank(comm) == 0) unlink(path);
    ll_comm_close(comm);
    return failed;
}
