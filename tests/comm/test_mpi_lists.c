/* mpi: 1 3 4 6
 * Ready lists on real ranks: all-reduces over subsets, and all-reduces for several nodes that the
 * ranks of this one play. */
#include "collectives.h"
#include "base/rng.h"
#include "comm/subsets.h"

enum { MAX = 8, ROOM = 20000 };
static const uint64_t seed = 20263;

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

/* The same numbers on every rank. */
static int64_t below(uint64_t trial, uint64_t i, int64_t n)
{
    return (int64_t)ll_below_at(seed, trial, i, (uint64_t)n);
}

/* ---- subsets ---- */

/* A mesh of two axes: one tensor is cut by the second and summed over the first, one the other way,
 * one summed over all; parts are uneven. */
static void pieces(void **state)
{
    (void)state;
    int rows = size % 2 ? 1 : 2, columns = size / rows, color[3][MAX];
    for (int64_t n = 1; n < 5000; n = 7 * n + 3) {
        int64_t count[3][MAX];
        ll_subset_piece p[3];
        ll_subsets *s;
        ll_request *r;
        for (int k = 0; k < 3; k++) {
            for (int q = 0; q < size; q++) {
                color[k][q] = k == 0 ? q % columns : k == 1 ? q / columns : 0;
                count[k][q] = n + 3 * color[k][q];
            }
            p[k] = (ll_subset_piece){color[k], count[k]};
        }
        OK(ll_subsets_open(comm, p, 3, &s));
        int64_t end = s->count;
        assert_int_equal(end, 3 * n + 3 * (columns - 1) + 3 * (rows - 1));
        memset(data, 0x7f, ROOM * sizeof(float));
        fill(data, LL_F32, rank, 0, end);
        for (int times = 0; times < 2; times++) { /* the list is used again */
            for (int k = 0; k < 3; k++)
                for (int64_t i = 0; i < count[k][rank]; i++)
                    data[s->at[k] + i] = (float)value(rank, s->at[k] + i);
            const ll_coll_call call = {
                .data = data, .dtype = LL_F32, .op = LL_REDUCE_SUM, .site = "test"};
            OK(ll_subsets_start(s, &call, &r));
            OK(ll_request_wait(r));
            for (int k = 0; k < 3; k++)
                for (int64_t i = s->at[k]; i < s->at[k] + count[k][rank]; i++) {
                    double want = 0;
                    for (int q = 0; q < size; q++)
                        if (color[k][q] == color[k][rank]) want += value(q, i);
                    must_be(data, LL_F32, i, want, "pieces");
                }
        }
        expect_guard(data, sizeof(float), end, "pieces");
        ll_subsets_close(s);
        if (size == 1) continue;
        count[2][size - 1]++; /* of one color, but longer */
        assert_int_equal(ll_subsets_open(comm, p, 3, &s), LL_E_ARG);
        assert_null(s);
    }
}

static void subsets(void **state)
{
    (void)state;
    enum { N = 6 };
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        if ((*a)->coll != LL_COLL_ALLREDUCE || (*a)->window || (*a)->library) continue;
        if (!strcmp((*a)->name, "hierarchical") || !strcmp((*a)->name, "rails")) continue;
        for (uint64_t trial = 0; trial < 8; trial++) {
            int ranks[N][MAX];
            ll_subset sets[N];
            int64_t end = 0;
            for (int k = 0; k < N; k++) {
                int64_t n = below(trial, (uint64_t)k, trial % 2 ? 3000 : 12);
                sets[k] = (ll_subset){.ranks = ranks[k], .at = end, .count = n};
                for (int r = 0; r < size; r++)
                    if (r == k % size || below(trial, (uint64_t)(100 + k * MAX + r), 2))
                        ranks[k][sets[k].n_rank++] = r;
                end += n;
            }
            ll_arena *arena = ll_arena_new();
            const ll_sched *list;
            OK(ll_sched_subsets(arena, *a, sets, N, size, 0, rank, &list));
            memset(data, 0x7f, ROOM * sizeof(float));
            fill(data, LL_F32, rank, 0, end);
            run(list, LL_COLL_ALLREDUCE);
            for (int k = 0; k < N; k++) {
                bool in = false;
                for (int i = 0; i < sets[k].n_rank; i++) in |= ranks[k][i] == rank;
                for (int64_t i = sets[k].at; i < sets[k].at + sets[k].count; i++) {
                    double want = in ? 0 : value(rank, i);
                    for (int j = 0; in && j < sets[k].n_rank; j++) want += value(ranks[k][j], i);
                    must_be(data, LL_F32, i, want, (*a)->name);
                }
            }
            expect_guard(data, sizeof(float), end, (*a)->name);
            ll_arena_free(arena);
        }
    }
}

/* ---- several nodes ---- */
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(subsets), cmocka_unit_test(pieces),
                                       cmocka_unit_test(nodes)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm)) {
        fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
        return 1;
    }
    rank = ll_comm_rank(comm);
    size = ll_comm_size(comm);
    data = (float *)malloc(ROOM * sizeof(float));
    if (!rank) printf("seed %llu\n", (unsigned long long)seed);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(data);
    ll_comm_close(comm);
    return failed;
}
