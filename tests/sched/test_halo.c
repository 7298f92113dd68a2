/* Halo exchange: random grids, uneven parts, margins that reach past a neighbour, proven by the
 * verifier; which messages there are, and that contiguous margins are not packed. */
#include "base/rng.h"
#include "sched/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX = 17, N_GRID = 1500 };
static const uint64_t seed = 20261;

/* Draws numbers one after another. */
typedef struct draw {
    uint64_t stream, i;
} draw;

static int64_t below(draw *d, int64_t n)
{
    return (int64_t)ll_below_at(seed, d->stream, d->i++, (uint64_t)n);
}

typedef struct axis {
    int64_t starts[MAX + 1], before[MAX], after[MAX];
} axis;

/* Parts of 0 to 4 rows, and margins of up to `reach` that stay in the whole. */
static void fill(draw *d, axis *a, int n, int64_t reach)
{
    a->starts[0] = 0;
    for (int i = 0; i < n; i++) a->starts[i + 1] = a->starts[i] + below(d, 5);
    for (int i = 0; i < n; i++) {
        int64_t room = a->starts[i], rest = a->starts[n] - a->starts[i + 1];
        a->before[i] = below(d, (room < reach ? room : reach) + 1);
        a->after[i] = below(d, (rest < reach ? rest : reach) + 1);
    }
}

static ll_halo_spec spec_of(const axis *y, int ny, const axis *x, int nx)
{
    return (ll_halo_spec){.ny = ny,
                          .nx = nx,
                          .y_starts = y->starts,
                          .x_starts = x->starts,
                          .up = y->before,
                          .down = y->after,
                          .left = x->before,
                          .right = x->after,
                          .outer = 1,
                          .inner = 1};
}

static const ll_sched *const *build(ll_arena *arena, const ll_halo_spec *s)
{
    const ll_sched **ranks = LL_NEW_ARRAY(arena, const ll_sched *, s->ny * s->nx);
    for (int r = 0; r < s->ny * s->nx; r++)
        assert_int_equal(ll_sched_halo(arena, s, r, &ranks[r]), LL_OK);
    return ranks;
}

static void random_grids(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < N_GRID; i++) {
        draw d = {.stream = (uint64_t)i};
        int ny = 1 + (int)below(&d, MAX), nx = 1 + (int)below(&d, MAX / ny);
        axis y, x;
        int64_t reach = 1 + below(&d, 6);
        fill(&d, &y, ny, reach);
        fill(&d, &x, nx, reach);
        ll_halo_spec s = spec_of(&y, ny, &x, nx);
        s.outer = 1 + below(&d, 3);
        s.inner = 1 + below(&d, 3);
        ll_arena *arena = ll_arena_new();
        if (ll_sched_verify_halo(&s, build(arena, &s)) != LL_OK)
            fail_msg("grid %d, %d x %d: %s", i, ny, nx, ll_error_message());
        ll_arena_free(arena);
    }
}

static int count(const ll_sched *s, ll_step_kind kind)
{
    int n = 0;
    for (int i = 0; i < s->n_step; i++) n += s->steps[i].kind == kind;
    return n;
}

/* 3 x 3 ranks of 4 x 4, margins of 1: the middle one talks to all eight others. */
static void corners(void **state)
{
    (void)state;
    axis a = {.starts = {0, 4, 8, 12}, .before = {0, 1, 1}, .after = {1, 1, 0}};
    ll_halo_spec s = spec_of(&a, 3, &a, 3);
    ll_arena *arena = ll_arena_new();
    const ll_sched *const *ranks = build(arena, &s);
    assert_int_equal(ll_sched_verify_halo(&s, ranks), LL_OK);
    assert_int_equal(ranks[4]->n_message, 8);
    assert_int_equal(ranks[4]->n_sent, 4 * 4 + 4 * 1);
    assert_int_equal(ranks[0]->n_message, 3);
    assert_int_equal(ranks[0]->n_sent, 4 + 4 + 1);
    assert_int_equal(ranks[4]->n_round, 3);
    int round = -1; /* all messages in one */
    for (int i = 0; i < ranks[4]->n_step; i++) {
        const ll_step *t = &ranks[4]->steps[i];
        if (t->kind == LL_STEP_FOLD) continue;
        if (round < 0) round = t->round;
        assert_int_equal(t->round, round);
    }
    ll_arena_free(arena);
}

/* Parts of rows without an outer dimension lie as they are sent. */
static void rows_are_not_packed(void **state)
{
    (void)state;
    axis y = {.starts = {0, 3, 4, 9}, .before = {0, 2, 2}, .after = {2, 2, 0}};
    axis x = {.starts = {0, 7}};
    ll_halo_spec s = spec_of(&y, 3, &x, 1);
    ll_arena *arena = ll_arena_new();
    s.inner = 5;
    const ll_sched *const *ranks = build(arena, &s);
    assert_int_equal(ll_sched_verify_halo(&s, ranks), LL_OK);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(count(ranks[r], LL_STEP_FOLD), 0);
        assert_int_equal(ranks[r]->scratch, 0);
        assert_int_equal(ranks[r]->n_message, 2); /* margins of 2, a middle part of 1 */
    }
    assert_int_equal(ranks[1]->n_sent, 2 * 35);
    s.outer = 2;
    ranks = build(arena, &s);
    assert_int_equal(ll_sched_verify_halo(&s, ranks), LL_OK);
    assert_int_equal(count(ranks[1], LL_STEP_FOLD), 4);
    ll_arena_free(arena);
}

static void refuses(void **state)
{
    (void)state;
    axis y = {.starts = {0, 3, 6}, .before = {1, 1}, .after = {1, 0}};
    axis x = {.starts = {0, 3, 2}};
    ll_halo_spec s = spec_of(&y, 2, &x, 1);
    const ll_sched *out;
    ll_arena *arena = ll_arena_new();
    assert_int_equal(ll_sched_halo(arena, &s, 0, &out), LL_E_ARG);
    assert_non_null(strstr(ll_error_message(), "part 0 in y wants -1 to 4"));
    y.before[0] = 0;
    s.nx = 2;
    assert_int_equal(ll_sched_halo(arena, &s, 0, &out), LL_E_ARG);
    assert_non_null(strstr(ll_error_message(), "part 1 in x is 3 to 2"));
    x.starts[2] = 3;
    x.after[1] = -1;
    assert_int_equal(ll_sched_halo(arena, &s, 0, &out), LL_E_ARG);
    assert_non_null(strstr(ll_error_message(), "0 and -1"));
    x.after[1] = 0;
    assert_int_equal(ll_sched_halo(arena, &s, 4, &out), LL_E_ARG);
    assert_int_equal(ll_sched_halo(arena, &s, 3, &out), LL_OK);
    ll_arena_free(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_grids),
        cmocka_unit_test(corners),
        cmocka_unit_test(rows_are_not_packed),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
