/* mpi: 1 3 4 6
 * Ready lists on real ranks: all-reduces for several nodes that the ranks of this one play. */
#include "collectives.h"

enum { MAX = 8, ROOM = 20000 };

static ll_comm *comm;
static float *data;
static int rank, size;

static void run(const ll_sched *list, ll_coll coll)
{
    ll_comm_count before = ll_comm_used(comm).count;
    const ll_coll_call call = {.spec = {.coll = coll},
                               .data = data,
                               .dtype = LL_F32,
                               .op = LL_REDUCE_SUM,
                               .sched = list,
                               .site = "test"};
    OK(ll_comm_run(comm, &call));
    ll_comm_count after = ll_comm_used(comm).count;
    assert_int_equal(after.messages - before.messages, list->n_message);
    assert_int_equal(after.bytes - before.bytes, 4 * list->n_sent);
}

/* All ranks must signal equally often, as those of one real node do: nodes of one size. */
static void nodes(void **state)
{
    (void)state;
    static const char *const names[] = {"hierarchical", "rails"};
    static const int64_t counts[] = {0, 1, 5, 777, 16001};
    for (int k = 0; k < 2; k++)
        for (int on = 1; on <= size; on++)
            for (int c = 0; c < 15 && size % on == 0; c++) {
                int node[MAX];
                for (int r = 0; r < size; r++) node[r] = r / on;
                ll_coll_spec s = {.coll = LL_COLL_ALLREDUCE,
                                  .size = size,
                                  .count = counts[c % 5],
                                  .segment = (const int64_t[]){0, 500, 8192}[c / 5],
                                  .node = node};
                ll_arena *arena = ll_arena_new();
                const ll_sched *list;
                OK(ll_sched_build(arena, ll_algo_find(s.coll, names[k]), &s, rank, &list));
                memset(data, 0x7f, ROOM * sizeof(float));
                fill(data, LL_F32, rank, 0, s.count);
                run(list, s.coll);
                for (int64_t i = 0; i < s.count; i++)
                    must_be(data, LL_F32, i, combined(size, i, LL_REDUCE_SUM), names[k]);
                expect_guard(data, sizeof(float), s.count, names[k]);
                ll_arena_free(arena);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nodes)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm)) {
        fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
        return 1;
    }
    rank = ll_comm_rank(comm);
    size = ll_comm_size(comm);
    data = (float *)malloc(ROOM * sizeof(float));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(data);
    ll_comm_close(comm);
    return failed;
}
