/* The simulator on lists small enough to time by hand; then every algorithm of the registry: what
 * its formula says is what its lists take, and no list takes less than any can. */
#include "sched/emit.h"
#include "sched/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <cmocka.h>

static ll_steps steps(ll_arena *arena, int rank, int size)
{
    return (ll_steps){.arena = arena, .rank = rank, .size = size, .in = {.size = size, .me = rank}};
}

static void check_time(const ll_sched *const *lists, double want)
{
    static const ll_link_model model = {
        .alpha = {10, 10}, .beta = {1, 1}, .gamma = 0.5, .kappa = 0.25, .sigma = 3};
    assert_true(fabs(ll_sched_time(NULL, lists, 2, &model) - want) < 1e-12);
}

/* Rank 0 sends 4 elements to 1, and 4 to 2: one after another; 1 passes its on to 2 when it has
 * them, at 18; 2 has those at 36, having received rank 0's second at the same time: no, one at a
 * time in. At 18 both 0 -> 2 and 1 -> 2 are ready: the lower sender goes first. */
static void one_at_a_time(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    const ll_sched *lists[3];
    for (int r = 0; r < 3; r++) {
        ll_steps e = steps(arena, r, 3);
        if (r == 0) ll_emit_send(&e, 1, LL_DATA, 0, 4);
        if (r == 0) ll_emit_send(&e, 2, LL_DATA, 4, 4);
        if (r == 1) ll_emit_recv(&e, 0, LL_DATA, 0, 4);
        ll_emit_next(&e);
        if (r == 1) ll_emit_send(&e, 2, LL_DATA, 0, 4);
        if (r == 2) ll_emit_recv(&e, 1, LL_DATA, 0, 4);
        if (r == 2) ll_emit_recv(&e, 0, LL_DATA, 4, 4);
        lists[r] = ll_emit_finish(&e);
    }
    check_time(lists, 18 * 3);
    ll_arena_free(arena);
}

/* In and out at once; folds of a round beside its messages, and before those of the next. */
static void folds_overlap(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    for (int64_t n = 4; n <= 40; n += 36) { /* the fold is shorter, then longer */
        const ll_sched *lists[2];
        for (int r = 0; r < 2; r++) {
            ll_steps e = steps(arena, r, 2);
            ll_emit_send(&e, 1 - r, LL_DATA, 0, 4);
            ll_emit_recv(&e, 1 - r, LL_SCRATCH, 0, 4);
            ll_emit_fold(&e, LL_DATA, 10, LL_DATA, 10, LL_DATA, 60, n);
            ll_emit_next(&e);
            ll_emit_copy(&e, LL_DATA, 0, (ll_ref){r, LL_SCRATCH, 0}, 4);
            lists[r] = ll_emit_finish(&e);
        }
        check_time(lists, (n == 4 ? 18 : 40) + 2);
    }
    ll_arena_free(arena);
}

/* A signal is raised after the folds of its round; each await costs sigma. */
static void awaits(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    const ll_sched *lists[3];
    for (int r = 0; r < 3; r++) {
        ll_steps e = steps(arena, r, 3);
        ll_emit_copy(&e, LL_WINDOW, 0, (ll_ref){r, LL_DATA, 0}, 8 * r + 8); /* 4, 8, 12 */
        ll_emit_signal(&e);
        ll_emit_next(&e);
        ll_emit_await(&e, (r + 1) % 3, 1);
        ll_emit_await(&e, (r + 2) % 3, 1);
        lists[r] = ll_emit_finish(&e);
    }
    check_time(lists, 12 + 3 + 3); /* of rank 2; rank 1 awaits 2's, at 12, first as well */
    ll_arena_free(arena);
}

/* Links of two kinds; local work slowed where ranks share a core; elements have bytes. */
static void links(void **state)
{
    (void)state;
    static const int node[] = {0, 0, 1};
    ll_link_model m = {.alpha = {1, 100}, .beta = {2, 50}, .gamma = 1, .share = 3};
    ll_coll_spec spec = {.size = 3, .node = node};
    ll_arena *arena = ll_arena_new();
    const ll_sched *lists[3];
    for (int r = 0; r < 3; r++) {
        ll_steps e = steps(arena, r, 3);
        if (r < 2) ll_emit_send(&e, r + 1, LL_DATA, 0, 5);
        if (r > 0) ll_emit_recv(&e, r - 1, LL_SCRATCH, 0, 5);
        ll_emit_next(&e);
        if (r > 0) ll_emit_fold(&e, LL_DATA, 0, LL_DATA, 0, LL_SCRATCH, 0, 5);
        lists[r] = ll_emit_finish(&e);
    }
    assert_true(ll_sched_time(&spec, lists, 4, &m) == 100 + 20 * 50 + 20 * 3);
    assert_true(ll_sched_time(NULL, lists, 4, &m) == 1 + 20 * 2 + 20 * 3);
    const ll_cost c = {.messages = 1, .sent = 5, .folded = 5, .copied = 7, .awaits = 9};
    assert_true(ll_cost_time(&c, 4, &m, true) == 100 + 20 * 50 + 20 * 3);
    m.kappa = 1, m.sigma = 2, m.share = 0;
    assert_true(ll_cost_time(&c, 4, &m, false) == 1 + 20 * 2 + 20 + 28 + 18);
    ll_arena_free(arena);
}

static void no_time(void **state)
{
    (void)state;
    ll_arena *arena = ll_arena_new();
    const ll_link_model m = {.alpha = {1, 1}};
    const ll_sched *lists[2];
    for (int r = 0; r < 2; r++) {
        ll_steps e = steps(arena, r, 2);
        ll_emit_library(&e);
        lists[r] = ll_emit_finish(&e);
    }
    assert_true(isnan(ll_sched_time(NULL, lists, 4, &m)));
    for (int r = 0; r < 2; r++) { /* a deadlock */
        ll_steps e = steps(arena, r, 2);
        ll_emit_recv(&e, 1 - r, LL_DATA, 0, 1);
        lists[r] = ll_emit_finish(&e);
    }
    assert_true(isnan(ll_sched_time(NULL, lists, 4, &m)));
    ll_arena_free(arena);
}

/* 64 ranks, 10 000 steps each. */
static void fast(void **state)
{
    (void)state;
    const ll_algo *ring = ll_algo_find(LL_COLL_ALLREDUCE, "ring");
    const ll_coll_spec s = {
        .coll = LL_COLL_ALLREDUCE, .size = 64, .count = 64 * 1000, .segment = 1000 / 32};
    ll_arena *arena = ll_arena_new();
    const ll_sched *lists[64];
    for (int r = 0; r < 64; r++)
        assert_int_equal(ll_sched_build(arena, ring, &s, r, &lists[r]), LL_OK);
    const ll_link_model m = {.alpha = {1e-6, 1e-6}, .beta = {1e-9, 1e-9}, .gamma = 1e-10};
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    double t = ll_sched_time(&s, lists, 4, &m);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6;
    print_message("%d steps a rank: %.3g s predicted in %.1f ms\n", lists[0]->n_step, t, ms);
    assert_true(lists[0]->n_step >= 10000 && t > 0);
    ll_arena_free(arena);
}

/* ---- formulas ---- */
/* Messages and elements sent by themselves. Local work as what it adds where messages take long:
 * what is hidden behind them costs nothing. */
enum { LONG = 1 << 20 };
static const struct part {
    const char *name;
    ll_link_model without, with;
    size_t at;
} parts[] = {
    {"messages", {}, {.alpha = {1, 1}}, offsetof(ll_cost, messages)},
    {"elements sent", {}, {.beta = {1, 1}}, offsetof(ll_cost, sent)},
    {"elements folded",
     {.alpha = {LONG, LONG}, .beta = {LONG, LONG}},
     {.alpha = {LONG, LONG}, .beta = {LONG, LONG}, .gamma = 1},
     offsetof(ll_cost, folded)},
    {"elements copied",
     {.alpha = {LONG, LONG}, .beta = {LONG, LONG}},
     {.alpha = {LONG, LONG}, .beta = {LONG, LONG}, .kappa = 1},
     offsetof(ll_cost, copied)},
    {"awaits",
     {.alpha = {LONG, LONG}, .beta = {LONG, LONG}},
     {.alpha = {LONG, LONG}, .beta = {LONG, LONG}, .sigma = 1},
     offsetof(ll_cost, awaits)},
};

/* Of those with a bound, the time when nothing else takes any. */
static const ll_link_model alone[3] = {{.alpha = {1, 1}}, {.beta = {1, 1}}, {.gamma = 1}};

static double of(const ll_cost *c, const struct part *p)
{
    return *(const double *)((const char *)c + p->at);
}

static int n_failed, n_shown;

static void wrong(const ll_algo *a, const ll_coll_spec *s, const char *what, double time,
                  const char *than, double want)
{
    n_failed++;
    if (n_shown++ < 3)
        print_error("%s by %s, %d ranks, %lld elements, segment %lld, root %d%s%s: %s %g, %s %g\n",
                    ll_coll_name(a->coll), a->name, s->size, (long long)s->count,
                    (long long)s->segment, s->root, s->node ? ", nodes of 3" : "",
                    s->shared ? ", shared" : "", what, time, than, want);
}

static void check_cost(const ll_algo *a, const ll_coll_spec *s)
{
    const char *why;
    if (!ll_algo_can(a, s, &why) || a->library) return;
    ll_arena *arena = ll_arena_new();
    const ll_sched **lists = LL_NEW_ARRAY(arena, const ll_sched *, s->size);
    bool windows = false;
    for (int r = 0; r < s->size; r++) {
        assert_int_equal(ll_sched_build(arena, a, s, r, &lists[r]), LL_OK);
        windows |= lists[r]->n_signal > 0;
    }
    const ll_cost cost = a->cost ? a->cost(s) : (ll_cost){0}, bound = ll_coll_bound(s);
    for (size_t k = 0; a->cost && k < sizeof parts / sizeof *parts; k++) {
        double t = ll_sched_time(s, lists, 1, &parts[k].with) -
                   ll_sched_time(s, lists, 1, &parts[k].without);
        if (!(fabs(t - of(&cost, &parts[k])) <= 1e-9 * (1 + t)))
            wrong(a, s, parts[k].name, t, "the formula says", of(&cost, &parts[k]));
    }
    /* Those of messages are not for ranks that read each other's memory. */
    for (size_t k = windows ? 2 : 0; k < 3; k++) {
        double t = ll_sched_time(s, lists, 1, &alone[k]), least = of(&bound, &parts[k]);
        if (!(t >= least - 1e-9 * (1 + least)))
            wrong(a, s, parts[k].name, t, "less than the bound of", least);
    }
    ll_arena_free(arena);
}

/* Counts that divide by the ranks, by powers of two, and by the segments. */
static void every_formula(void **state)
{
    (void)state;
    n_failed = 0;
    int node[17];
    for (int r = 0; r < 17; r++) node[r] = r / 3;
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        n_shown = 0;
        for (int size = 1; size <= 17; size++)
            for (int k = 0; k < ((*a)->segmented ? 12 : 4); k++) {
                ll_coll_spec s = {.coll = (*a)->coll,
                                  .size = size,
                                  .count = 64 * size,
                                  .segment = (const int64_t[]){0, 16, 64}[k / 4],
                                  .root = k % 2 ? size / 2 : 0,
                                  .node = k % 2 ? node : NULL,
                                  .shared = k / 2 % 2};
                check_cost(*a, &s);
            }
    }
    assert_int_equal(n_failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_at_a_time), cmocka_unit_test(folds_overlap), cmocka_unit_test(awaits),
        cmocka_unit_test(links),         cmocka_unit_test(no_time),       cmocka_unit_test(fast),
        cmocka_unit_test(every_formula)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
