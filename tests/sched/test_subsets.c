/* All-reduces over subsets of the ranks: random subsets by every algorithm of messages alone,
 * proven by the verifier; that rounds are shared, and what happens where they cannot be. */
#include "base/rng.h"
#include "sched/emit.h"
#include "sched/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX = 17, MAX_SUBSET = 7, N_RANDOM = 120 };
static const uint64_t seed = 20262;

typedef struct draw {
    uint64_t stream, i;
} draw;

static int64_t below(draw *d, int64_t n)
{
    return (int64_t)ll_below_at(seed, d->stream, d->i++, (uint64_t)n);
}

typedef struct trial {
    int size, n;
    int64_t count, segment;
    int ranks[MAX_SUBSET][MAX];
    ll_subset subsets[MAX_SUBSET];
} trial;

/* Any ranks; a piece of its own for each, or the first's where the ranks are others. */
static void fill(draw *d, trial *t)
{
    static const int64_t lengths[] = {0, 1, 2, 3, 7, 16, 17, 23};
    t->size = 1 + (int)below(d, MAX);
    t->segment = below(d, 3) * 3;
    uint64_t first = 0;
    for (int k = 0, n = (int)below(d, MAX_SUBSET + 1); k < n; k++) {
        int64_t in = 1 + below(d, 4), n_rank = 0;
        uint64_t mask = 0;
        for (int r = 0; r < t->size; r++) {
            if (below(d, 4) >= in) continue;
            t->ranks[t->n][n_rank++] = r;
            mask |= (uint64_t)1 << r;
        }
        if (!n_rank) continue;
        ll_subset *s = &t->subsets[t->n++];
        *s = (ll_subset){.ranks = t->ranks[t->n - 1],
                         .n_rank = (int)n_rank,
                         .at = t->count,
                         .count = lengths[below(d, 8)]};
        if (t->n == 1) first = mask;
        if (t->n > 1 && !(mask & first)) {
            s->at = t->subsets[0].at;
            s->count = t->subsets[0].count;
            first |= mask;
        } else {
            t->count += s->count + below(d, 3);
        }
    }
}

static const ll_sched *const *build(ll_arena *arena, const ll_algo *a, const trial *t)
{
    const ll_sched **ranks = LL_NEW_ARRAY(arena, const ll_sched *, t->size);
    for (int r = 0; r < t->size; r++)
        assert_int_equal(
            ll_sched_subsets(arena, a, t->subsets, t->n, t->size, t->segment, r, &ranks[r]), LL_OK);
    return ranks;
}

/* Messages alone: the others are refused. */
static bool able(const ll_algo *a)
{
    return a->coll == LL_COLL_ALLREDUCE && !a->window && !a->shared && !a->library &&
           strcmp(a->name, "hierarchical") && strcmp(a->name, "rails");
}

static void random_subsets(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        if (!able(*a)) continue;
        for (int i = 0; i < N_RANDOM; i++) {
            draw d = {.stream = (uint64_t)i};
            trial t = {0};
            fill(&d, &t);
            ll_arena *arena = ll_arena_new();
            if (ll_sched_verify_subsets(t.subsets, t.n, t.size, t.count, build(arena, *a, &t)))
                fail_msg("%s, trial %d, %d subsets of %d ranks: %s", (*a)->name, i, t.n, t.size,
                         ll_error_message());
            ll_arena_free(arena);
        }
    }
}

/* Ranks of a 3 x 4 grid: rows sum one piece, columns another, all the rest. */
static void grid(trial *t)
{
    *t = (trial){.size = 12, .n = 8, .count = 60};
    t->n = 0;
    for (int k = 0; k < 7; k++) {
        ll_subset *s = &t->subsets[t->n++];
        int n = k < 3 ? 4 : 3;
        for (int i = 0; i < n; i++) t->ranks[k][i] = k < 3 ? 4 * k + i : 4 * i + k - 3;
        *s = (ll_subset){.ranks = t->ranks[k], .n_rank = n, .at = k < 3 ? 0 : 24};
        s->count = k < 3 ? 24 : 36;
    }
}

static int rounds(const ll_sched *const *ranks, int size)
{
    int most = 0;
    for (int r = 0; r < size; r++)
        if (ranks[r]->n_round > most) most = ranks[r]->n_round;
    return most;
}

static void rounds_are_shared(void **state)
{
    (void)state;
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        if (!able(*a)) continue;
        trial t, rows;
        grid(&t);
        grid(&rows);
        rows.n = 3;
        ll_arena *arena = ll_arena_new();
        const ll_sched *const *both = build(arena, *a, &t);
        assert_int_equal(ll_sched_verify_subsets(t.subsets, t.n, t.size, t.count, both), LL_OK);
        int alone = rounds(build(arena, *a, &rows), rows.size);
        for (int k = 0; k < 4; k++) rows.subsets[k] = t.subsets[k + 3];
        rows.n = 4;
        int columns = rounds(build(arena, *a, &rows), rows.size);
        if (rounds(both, t.size) >= alone + columns)
            fail_msg("%s: %d rounds together, %d and %d alone", (*a)->name, rounds(both, t.size),
                     alone, columns);
        ll_arena_free(arena);
    }
}

/* Two ranks whose rounds have no common level: one sends and receives at once what the other does
 * in two rounds. */
static void staggered(ll_steps *e, const ll_coll_spec *s, int rank)
{
    if (s->size < 2) return;
    ll_emit_send(e, 1 - rank, LL_DATA, 0, s->count);
    if (rank) ll_emit_next(e);
    ll_emit_recv(e, 1 - rank, LL_SCRATCH, 0, s->count);
    ll_emit_next(e);
    ll_emit_fold(e, LL_DATA, 0, LL_DATA, 0, LL_SCRATCH, 0, s->count);
}

static void one_after_another(void **state)
{
    (void)state;
    const ll_algo a = {.name = "staggered", .coll = LL_COLL_ALLREDUCE, .emit = staggered};
    static const int pairs[][2] = {{0, 1}, {1, 2}, {0, 2}, {0, 1}};
    trial t = {.size = 3, .n = 4, .count = 20};
    for (int k = 0; k < 4; k++)
        t.subsets[k] = (ll_subset){.ranks = pairs[k], .n_rank = 2, .at = 5 * k, .count = k + 1};
    ll_arena *arena = ll_arena_new();
    const ll_sched *const *ranks = build(arena, &a, &t);
    assert_int_equal(ll_sched_verify_subsets(t.subsets, t.n, t.size, t.count, ranks), LL_OK);
    assert_int_equal(ranks[0]->n_round, 6);
    assert_int_equal(ranks[1]->n_round, 3 + 2 + 3);
    ll_arena_free(arena);
}

static ll_err refused(const ll_algo *a, const ll_subset *s, int n)
{
    const ll_sched *out;
    ll_arena *arena = ll_arena_new();
    ll_err rc = ll_sched_subsets(arena, a, s, n, 4, 0, 0, &out);
    ll_arena_free(arena);
    return rc;
}

static void refuses(void **state)
{
    (void)state;
    const ll_algo *ring = ll_algo_find(LL_COLL_ALLREDUCE, "ring");
    static const int all[] = {0, 1, 2, 3}, some[] = {2, 3}, wrong[] = {2, 1}, far[] = {3, 4};
    ll_subset s[] = {{all, 4, 0, 8}, {some, 2, 7, 3}};
    assert_int_equal(refused(ring, s, 2), LL_E_ARG);
    assert_non_null(strstr(ll_error_message(), "share rank 2 and elements at 7"));
    s[1].at = 8;
    assert_int_equal(refused(ring, s, 2), LL_OK);
    s[1].ranks = wrong;
    assert_int_equal(refused(ring, s, 2), LL_E_ARG);
    s[1].ranks = far;
    assert_int_equal(refused(ring, s, 2), LL_E_ARG);
    assert_int_equal(refused(ll_algo_find(LL_COLL_BROADCAST, "tree"), s, 1), LL_E_ARG);
    for (const ll_algo *const *a = ll_algos(); *a; a++)
        if ((*a)->coll == LL_COLL_ALLREDUCE && !able(*a))
            assert_int_not_equal(refused(*a, s, 1), LL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_subsets), cmocka_unit_test(rounds_are_shared),
        cmocka_unit_test(one_after_another), cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
