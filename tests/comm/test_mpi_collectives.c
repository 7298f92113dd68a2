/* mpi: 1 2 3 4 5 6 7 8
 * Every algorithm on real ranks, against a serial computation: sizes, types, reductions, segments,
 * roots; and what the communicator counted against what the schedule says. */
#include "collectives.h"

enum { MOST = 262147 }; /* elements */

static ll_comm *comm;
static struct {
    char *own, *shared, *out;
} mem;

typedef struct setting {
    ll_dtype dtype;
    ll_reduce op;
} setting;

static void run(const ll_algo *a, int64_t n, int64_t segment, int root, setting with)
{
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    char where[160], *data = a->shared ? mem.shared : mem.own;
    size_t e = ll_dtype_bytes(with.dtype);
    ll_coll_call call = {.spec = {.coll = a->coll,
                                  .size = size,
                                  .count = n,
                                  .segment = segment,
                                  .root = root,
                                  .node = ll_comm_nodes(comm),
                                  .shared = a->shared},
                         .data = data,
                         .out = mem.out,
                         .dtype = with.dtype,
                         .op = with.op,
                         .algo = a,
                         .site = "test"};
    const char *why;
    if (!ll_algo_can(a, &call.spec, &why)) return;
    snprintf(where, sizeof where,
             "%s by %s, rank %d of %d, %lld of %s, segment %lld, root %d, op %d",
             ll_coll_name(a->coll), a->name, rank, size, (long long)n, ll_dtype_name(with.dtype),
             (long long)segment, root, with.op);
    prepare(&call.spec, rank, with.dtype, data, mem.out);
    ll_comm_count before = ll_comm_used(comm).count;
    if (ll_comm_run(comm, &call) != LL_OK)
        fail_msg("%s: %s\n%s", where, ll_error_text(), ll_error_frames());
    ll_comm_count after = ll_comm_used(comm).count;
    expect(&call.spec, rank, with.dtype, with.op, data, mem.out, where);

    ll_arena *arena = ll_arena_new();
    const ll_sched *s;
    OK(ll_sched_build(arena, a, &call.spec, rank, &s));
    if (after.messages - before.messages != s->n_message ||
        after.bytes - before.bytes != s->n_sent * (int64_t)e ||
        after.collectives - before.collectives != 1)
        fail_msg("%s: %lld messages, %lld bytes counted; the schedule says %lld, %lld", where,
                 (long long)(after.messages - before.messages),
                 (long long)(after.bytes - before.bytes), (long long)s->n_message,
                 (long long)(s->n_sent * (int64_t)e));
    ll_arena_free(arena);
}

static void sizes(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1000, 1024, 4097, 9999, 65539, MOST};
    for (const ll_algo *const *a = ll_algos(); *a; a++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
            setting f32 = {LL_F32, LL_REDUCE_SUM};
            run(*a, counts[k], 0, 0, f32);
            if ((*a)->segmented && counts[k] < MOST) run(*a, counts[k], 1 + counts[k] / 9, 0, f32);
            if ((*a)->coll == LL_COLL_BROADCAST && counts[k] < 9999)
                run(*a, counts[k], 0, ll_comm_size(comm) - 1, f32);
        }
}

static void types(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 17, 1000};
    static const ll_dtype dtypes[] = {LL_F32, LL_BF16, LL_F16, LL_F64, LL_I32};
    for (const ll_algo *const *a = ll_algos(); *a; a++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
                run(*a, counts[k], 0, 0, (setting){dtypes[t], LL_REDUCE_SUM});
            for (int op = LL_REDUCE_MAX; op <= LL_REDUCE_MIN && ll_coll_sums((*a)->coll); op++)
                run(*a, 101, 0, 0, (setting){dtypes[t], (ll_reduce)op});
        }
}

static int setup(void **state)
{
    (void)state;
    size_t bytes = (MOST + GUARD) * sizeof(float), e = ll_comm_size(comm);
    mem.own = (char *)malloc(bytes);
    mem.out = (char *)malloc(bytes + e * sizeof(float)); /* blocks are rounded up */
    void *shared;
    if (ll_comm_alloc(comm, bytes, &shared) != LL_OK) return 1;
    mem.shared = (char *)shared;
    return !mem.own || !mem.out;
}

static int teardown(void **state)
{
    (void)state;
    free(mem.own);
    free(mem.out);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes), cmocka_unit_test(types)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm)) {
        fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, setup, teardown);
    ll_comm_close(comm);
    return failed;
}
