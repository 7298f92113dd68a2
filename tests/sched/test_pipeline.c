/* Pipeline schedules: all bundled ones pass the verifier, wrong ones are refused with the right
 * words; simulated bubbles are what formulas say; what is made from costs beats what is bundled. */
#include "sched/pipeline.h"

#include "base/rng.h"
#include "xml.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = true };
#else
enum { SANITIZED = false };
#endif

static void refused(ll_err e, const char *words)
{
    if (e == LL_OK || !strstr(ll_error_message(), words))
        fail_msg("want \"%s\", got %d: %s", words, e, e == LL_OK ? "fine" : ll_error_message());
}

static const ll_pipeline *make(ll_arena *a, const char *name, int p, int v, int m)
{
    const ll_pipeline *out;
    ll_err e = ll_pipeline_make(a, name, p, p * v, m, &out);
    if (e != LL_OK) fail_msg("%s p=%d v=%d m=%d: %s", name, p, v, m, ll_error_message());
    return out;
}

static int most(const ll_pipeline_report *r, int n_rank)
{
    int n = 0;
    for (int i = 0; i < n_rank; i++)
        if (r->in_flight[i] > n) n = r->in_flight[i];
    return n;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Sizes: p 1..16, m 1..32, v 1..4 (where the schedule has a choice). */
static void all_pass(void **state)
{
    (void)state;
    int n = 0, slack = 0;
    clock_t begin = clock();
    for (int i = 0; ll_pipeline_name(i); i++) {
        const char *name = ll_pipeline_name(i);
        for (int p = 1; p <= 16; p++) {
            for (int v = 1; v <= 4; v++) {
                ll_arena *a = ll_arena_new();
                const ll_pipeline *s;
                if (ll_pipeline_make(a, name, p, p * v, 1, &s) == LL_OK) {
                    for (int m = 1; m <= 32; m += SANITIZED ? 1 + m / 3 : 1, n++) {
                        ll_pipeline_report r;
                        s = make(a, name, p, v, m);
                        ll_err e = ll_pipeline_check(s, NULL, 0, &r);
                        if (e != LL_OK || !r.ascending)
                            fail_msg("%s p=%d v=%d m=%d: %s", name, p, v, m, ll_error_message());
                        if (r.slack > slack) slack = r.slack;
                        int held = most(&r, p);
                        bool few = strcmp(name, "zb-h1") == 0 || strcmp(name, "2bw") == 0;
                        if (few || strcmp(name, "1f1b") == 0) assert_int_equal(held, least(p, m));
                        if (strcmp(name, "zb-h2") == 0) assert_int_equal(held, least(2 * p - 1, m));
                        if (strcmp(name, "zb-v") == 0) assert_true(held <= 2 * p);
                        if (strcmp(name, "dualpipe-v") == 0) assert_true(held <= 2 * p + 1);
                    }
                }
                ll_arena_free(a);
            }
        }
    }
    print_message("%d schedules verified in %.2f s, slack at most %d\n", n,
                  (double)(clock() - begin) / CLOCKS_PER_SEC, slack);
}

static void what_can_be_asked(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    const ll_pipeline *s;
    refused(ll_pipeline_make(a, "1f1", 4, 4, 4, &s), "did you mean 1f1b?");
    refused(ll_pipeline_make(a, "none", 4, 4, 4, &s),
            "gpipe 1f1b interleaved breadth-first zb-h1 zb-h2 zb-v dualpipe-v 2bw");
    refused(ll_pipeline_make(a, "1f1b", 4, 8, 4, &s), "8 stages on 4 ranks; 4 would do");
    refused(ll_pipeline_make(a, "zb-v", 4, 4, 4, &s), "4 stages on 4 ranks; 8 would do");
    refused(ll_pipeline_make(a, "dualpipe-v", 4, 12, 4, &s), "8 would do");
    refused(ll_pipeline_make(a, "interleaved", 4, 6, 4, &s), "4 or 8 would do");
    refused(ll_pipeline_make(a, "breadth-first", 4, 3, 4, &s), "4 or 8 would do");
    refused(ll_pipeline_make(a, "gpipe", 4, 4, 0, &s), "0 micro-batches: 1 to");
    refused(ll_pipeline_make(a, "gpipe", 0, 4, 1, &s), "0 ranks: 1 to");
    refused(ll_pipeline_make(a, "gpipe", 1024, 1024, 65536, &s), "a product of at most");
    assert_int_equal(ll_error_code(), LL_E_ARG);
    ll_arena_free(a);
}

/* Two ranks, a stage each (or of_stage's), from lists such as "F0.0 B0.0". */
static ll_err check_two(const char *first, const char *second, const int *rank_of, int n_stage,
                        int n_micro, ll_pipeline_report *r)
{
    static ll_action actions[2][64];
    const char *texts[2] = {first, second};
    bool overlaps = false;
    int n[2];
    for (int i = 0; i < 2; i++) {
        n[i] = 0;
        for (const char *at = texts[i]; *at; at += strcspn(at, " "), at += strspn(at, " ")) {
            ll_action *a = &actions[i][n[i]++];
            a->kind = (ll_action_kind)(strchr("FBIW", *at) - "FBIW");
            sscanf(at + 1, "%d.%d", &a->micro, &a->stage);
            a->before = strcspn(at, "-") < strcspn(at, " ");
            overlaps |= a->before;
        }
    }
    const ll_action *lists[2] = {actions[0], actions[1]};
    ll_pipeline p = {"two", 2, n_stage, n_micro, rank_of, n, lists, overlaps};
    ll_pipeline_report mine;
    return ll_pipeline_check(&p, NULL, 0, r ? r : &mine);
}

static const int beyond[] = {0, 2}, two[] = {0, 1}, four[] = {0, 1, 0, 1}, vee[] = {0, 1, 1, 0};

static void wrong_ones(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second;
        const int *rank_of;
        int n_stage, n_micro;
        const char *words;
    } all[] = {
        {"B0.0", "F0.1 B0.1", two, 2, 1, "rank 0 misses F0.0"},
        {"F0.0 B0.0", "F0.1", two, 2, 1, "rank 1 misses B0.1"},
        {"F0.0 I0.0", "F0.1 B0.1", two, 2, 1, "rank 0 misses W0.0"},
        {"F0.0 W0.0", "F0.1 B0.1", two, 2, 1, "rank 0 misses I0.0"},
        {"F0.0 F0.0 B0.0", "F0.1 B0.1", two, 2, 1, "cannot do F0.0: a duplicate, F0.0"},
        {"F0.0 B0.0 W0.0", "F0.1 B0.1", two, 2, 1, "cannot do W0.0: a duplicate, B0.0"},
        {"F0.0 I0.0 B0.0", "F0.1 B0.1", two, 2, 1, "cannot do B0.0: a duplicate, I0.0"},
        {"F0.0 B0.0 F0.1", "B0.1", two, 2, 1, "rank 0 cannot do F0.1: stage 1 is on rank 1"},
        {"F0.0 B0.0", "F0.1 B0.1 F0.2", two, 2, 1, "F0.2: there are stages 0 to 1"},
        {"F0.0 B0.0 F1.0", "F0.1 B0.1", two, 2, 1, "F1.0: there are micro-batches 0 to 0"},
        {"B0.0 F0.0", "F0.1 B0.1", two, 2, 1,
         "do B0.0: it reads what F0.0 makes, which comes later"},
        {"F0.0 W0.0 I0.0", "F0.1 B0.1", two, 2, 1, "do W0.0: it reads what I0.0 makes"},
        {"F0.0 F0.3 B0.3 B0.0", "F0.2 F0.1 B0.2 B0.1", vee, 4, 1, "do F0.2: it reads what F0.1"},
        {"F0.0 F0.3 B0.3 B0.0", "F0.1 F0.2 B0.1 B0.2", vee, 4, 1, "do B0.1: it reads what B0.2"},
        {"F0.0 B0.0 F1.0 B1.0", "F0.1 F1.1 B0.1 B1.1", two, 2, 2,
         "rank 0 cannot do B0.0: it waits for ever for B0.1 of rank 1, which is at F1.1"},
        {"F0.2 F0.0 B0.2 B0.0", "F0.1 F0.3 B0.3 B0.1", four, 4, 1,
         "rank 0 cannot do F0.2: it waits for ever for F0.1 of rank 1, which is at F0.1"},
        {"F0.0 B0.0", "F0.1 B0.1", beyond, 2, 1, "stage 1 is on rank 2"},
        /* steps that overlap */
        {"F0.0- B0.0", "F0.1 B0.1", two, 2, 1, "cannot do F0.0-: forward passes are of the step's"},
        {"F0.0 B0.0-", "F0.1 B0.1 F1.1 B1.1", two, 2, 2, "rank 0 misses F1.0"},
        {"F0.0 B0.0 B0.0-", "F0.1 B0.1", two, 2, 1, "a duplicate, B0.0"},
        {"F0.0 B0.0", "F0.1 B0.1-", two, 2, 1,
         "rank 0 cannot do B0.0: it waits for ever for B0.1- of rank 1, which is at F0.1"},
        {"F0.0 B0.0- F0.2 B0.2", "F0.1 B0.1 F0.3 B0.3", four, 4, 1, "has a stage a rank: 4 stages"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        refused(check_two(all[i].first, all[i].second, all[i].rank_of, all[i].n_stage,
                          all[i].n_micro, NULL),
                all[i].words);
    ll_arena *a = ll_arena_new();
    ll_pipeline_report r;
    refused(ll_pipeline_check(make(a, "1f1b", 2, 1, 2), (ll_edge[]){{1, 0}}, 1, &r),
            "edge 0 goes from stage 1 to stage 0");
    ll_arena_free(a);
}

/* Rank 0 sends all micro-batches forward before it takes one back; rank 1 sends each back at once:
 * soon both wait for the other to receive, unless they have slack. */
static void crossing_sends(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second;
        int n_micro, slack;
    } all[] = {{"F0.0 F1.0 F2.0 B0.0 B1.0 B2.0", "F0.1 F1.1 F2.1 B0.1 B1.1 B2.1", 3, 1},
               {"F0.0 F1.0 F2.0 F3.0 B0.0 B1.0 B2.0 B3.0",
                "F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1", 4, 1},
               {"F0.0 F1.0 F2.0 F3.0 F4.0 B0.0 B1.0 B2.0 B3.0 B4.0",
                "F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.1 B4.1", 5, 2}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ll_pipeline_report r;
        ll_err e = check_two(all[i].first, all[i].second, two, 2, all[i].n_micro, &r);
        if (e != LL_OK) fail_msg("%s", ll_error_message());
        assert_int_equal(r.slack, all[i].slack);
        assert_true(r.ascending);
    }
}

/* A skip from stage 0 to stage 2 of three ranks: what is read there must be made by then; order of
 * micro-batches is told. */
static void edges_and_order(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    static const ll_edge skip[] = {{0, 1}, {1, 2}, {0, 2}};
    ll_pipeline_report r;
    assert_int_equal(ll_pipeline_check(make(a, "1f1b", 3, 1, 7), skip, 3, &r), LL_OK);
    assert_int_equal(check_two("F1.0 F0.0 B0.0 B1.0", "F1.1 F0.1 B0.1 B1.1", two, 2, 2, &r), LL_OK);
    assert_false(r.ascending);
    assert_int_equal(r.in_flight[0], 2);
    /* steps that overlap: of what is read, and in which order, as of any */
    assert_int_equal(ll_pipeline_check(make(a, "2bw", 3, 1, 7), skip, 3, &r), LL_OK);
    assert_int_equal(check_two("F0.0 B1.0- F1.0 B0.0", "F0.1 B0.1 F1.1 B1.1", two, 2, 2, &r),
                     LL_OK);
    assert_true(r.ascending);
    assert_int_equal(r.in_flight[0], 2);
    assert_int_equal(check_two("F0.0 B0.0- F1.0 B1.0", "F0.1 B0.1 F1.1 B1.1", two, 2, 2, &r),
                     LL_OK);
    assert_false(r.ascending);
    ll_arena_free(a);
}

static ll_pipeline_times simulate(ll_arena *a, const ll_pipeline *p, const ll_pipeline_costs *c)
{
    ll_pipeline_times t;
    ll_err e = ll_pipeline_simulate(a, p, c, &t);
    if (e != LL_OK) fail_msg("%s: %s", p->name, ll_error_message());
    return t;
}

static bool is(double a, double b)
{
    return fabs(a - b) < 1e-9;
}

/* Equal costs: every formula, where it holds; zb-h2 and zb-v never idle once they have begun. */
static void formulas(void **state)
{
    (void)state;
    double one[64];
    for (int i = 0; i < 64; i++) one[i] = 1;
    const ll_pipeline_costs c = {.f = one, .i = one, .w = one};
    int n_formula[9] = {0};
    for (int i = 0; ll_pipeline_name(i); i++) {
        const char *name = ll_pipeline_name(i), *text;
        bool vee = strcmp(name, "zb-v") == 0 || strcmp(name, "dualpipe-v") == 0;
        bool loop = strcmp(name, "interleaved") == 0 || strcmp(name, "breadth-first") == 0;
        for (int p = 1; p <= 9; p++) {
            for (int v = vee ? 2 : 1; v <= (loop ? 4 : 1 + vee); v++) {
                for (int m = 1; m <= 3 * p; m++) {
                    double want = ll_pipeline_formula(name, p, p * v, m, &text);
                    assert_true(isnan(want) == !text);
                    if (isnan(want)) continue;
                    ll_arena *a = ll_arena_new();
                    ll_pipeline_times t = simulate(a, make(a, name, p, v, m), &c);
                    if (!is(t.bubble, want))
                        fail_msg("%s p=%d v=%d m=%d: %g, want %g", name, p, v, m, t.bubble, want);
                    n_formula[i]++;
                    ll_arena_free(a);
                }
            }
        }
        assert_true(n_formula[i] > 30);
    }
    assert_true(is(ll_pipeline_formula("1f1b", 4, 4, 8, NULL), 3. / 11));
    assert_true(is(ll_pipeline_formula("interleaved", 4, 8, 8, NULL), 3. / 19));
    assert_true(is(ll_pipeline_formula("zb-h1", 4, 4, 8, NULL), 3. / 27));
    assert_true(is(ll_pipeline_formula("zb-v", 4, 8, 8, NULL), 3. / 51));
    assert_true(isnan(ll_pipeline_formula("auto", 4, 8, 8, NULL)));
}

/* Where ranks go on to the next step when they are done, zb-h2 and zb-v never idle; no schedule
 * takes longer than where all wait for the last. */
static void going_on(void **state)
{
    (void)state;
    double one[64];
    for (int i = 0; i < 64; i++) one[i] = 1;
    const ll_pipeline_costs waits = {.f = one, .i = one, .w = one};
    ll_pipeline_costs on = waits;
    on.goes_on = true;
    for (int i = 0; ll_pipeline_name(i); i++) {
        const char *name = ll_pipeline_name(i);
        if (strcmp(name, "2bw") == 0) continue; /* has no other way */
        bool two = strcmp(name, "zb-v") == 0 || strcmp(name, "dualpipe-v") == 0 ||
                   strcmp(name, "interleaved") == 0 || strcmp(name, "breadth-first") == 0;
        bool full = strcmp(name, "zb-h2") == 0 || strcmp(name, "zb-v") == 0;
        for (int p = 2; p <= 6; p++)
            for (int m = 1; m <= 3 * p; m++) {
                ll_arena *a = ll_arena_new();
                const ll_pipeline *x = make(a, name, p, 1 + two, m);
                ll_pipeline_times s = simulate(a, x, &waits), t = simulate(a, x, &on);
                if (getenv("TABLE") && p == 4 && m == 8)
                    print_message("%-14s %g, %g\n", name, s.makespan, t.makespan);
                assert_true(t.makespan <= s.makespan + 1e-9 && t.bubble <= s.bubble + 1e-9);
                if (full && m >= 2 * p - 1) assert_true(is(t.makespan, 3 * m * (1 + two)));
                ll_arena_free(a);
            }
    }
}

/* Two ranks, two micro-batches, timed by hand. */
static void times(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    static const double f[] = {1, 2}, i[] = {3, 4}, w[] = {5, 6}, send[] = {0.5}, bytes[] = {10, 1};
    const ll_pipeline_costs c = {.f = f, .i = i, .w = w, .bytes = bytes, .send = send};
    ll_pipeline_times t = simulate(a, make(a, "zb-h1", 2, 1, 2), &c);
    /* rank 0: F0 F1 I0 W0 I1 W1; rank 1: F0 I0 F1 I1 W0 W1 */
    static const double start[2][6] = {{0, 1, 8, 11, 16, 19}, {1.5, 3.5, 7.5, 9.5, 13.5, 19.5}};
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 6; k++) assert_true(is(t.start[r][k], start[r][k]));
    assert_true(is(t.makespan, 25.5) && is(t.bubble, 1 - 42 / 51.) && is(t.peak[0], 20));
    assert_true(is(t.peak[1], 2));
    ll_arena_free(a);
}

/* A slow link between two stages: what goes through it one way follows one another. */
static void messages_in_turn(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    static const double f[] = {1, 1}, i[] = {1, 1}, w[] = {0, 0}, send[] = {10};
    ll_pipeline_costs c = {.f = f, .i = i, .w = w, .send = send};
    const ll_pipeline *p = make(a, "gpipe", 2, 1, 4);
    /* F of rank 0 end at 1 to 4; all are there 10 later; 4 of F and B each; 10 back; B. */
    assert_true(is(simulate(a, p, &c).makespan, 11 + 8 + 10 + 1));
    c.in_turn = true;
    /* They come at 11, 21, 31 and 41; backward from 42 on, at 53 + 30, then B. */
    assert_true(is(simulate(a, p, &c).makespan, 41 + 1 + 1 + 40 + 1));
    ll_arena_free(a);
}

typedef struct set {
    int p, v, m;
    double f[16], i[16], w[16], bytes[16], send[16], limit[8];
    ll_pipeline_costs costs;
} set;

/* F, I and W of each stage take 0.2 to 1.8, activations 0.5 to 1.5, messages up to 0.2; a rank has
 * memory for 0.8 to 2 micro-batches of every stage. */
static void draw(set *x, uint64_t seed)
{
    uint64_t n = 0;
#define UNIFORM ((double)ll_uniform_at(7, seed, n++))
    x->p = 2 + (int)(7 * UNIFORM);
    x->v = 1 + (int)(seed % 2);
    x->m = 1 + (int)(3 * x->p * UNIFORM);
    for (int s = 0; s < 16; s++) {
        x->f[s] = 0.2 + 1.6 * UNIFORM;
        x->i[s] = 0.2 + 1.6 * UNIFORM;
        x->w[s] = 0.2 + 1.6 * UNIFORM;
        x->bytes[s] = 0.5 + UNIFORM;
        x->send[s] = 0.2 * UNIFORM;
    }
    double limit = (0.8 + 1.2 * UNIFORM) * x->p * x->v;
#undef UNIFORM
    for (int r = 0; r < x->p; r++) x->limit[r] = limit;
    x->costs =
        (ll_pipeline_costs){.f = x->f, .i = x->i, .w = x->w, .bytes = x->bytes, .send = x->send};
}

/* Makespan; INFINITY where it does not fit. */
static double takes(ll_arena *a, const set *x, const ll_pipeline *p)
{
    ll_pipeline_times t = simulate(a, p, &x->costs);
    for (int r = 0; r < x->p; r++)
        if (t.peak[r] > x->limit[r] + 1e-9) return INFINITY;
    return t.makespan;
}

static void automatic(void **state)
{
    (void)state;
    const int sets = SANITIZED ? 60 : 300;
    int n = 0, alone = 0;
    double gain = 0;
    clock_t begin = clock();
    for (int k = 0; k < sets; k++) {
        ll_arena *a = ll_arena_new();
        set x;
        draw(&x, (uint64_t)k);
        double best = INFINITY;
        const ll_pipeline *p;
        for (int i = 0; ll_pipeline_name(i); i++)
            if (ll_pipeline_make(a, ll_pipeline_name(i), x.p, x.p * x.v, x.m, &p) == LL_OK &&
                !p->overlaps)
                best = fmin(best, takes(a, &x, p));
        ll_err e = ll_pipeline_auto(a, &x.costs, x.limit, x.p, x.p * x.v, x.m, &p);
        ll_pipeline_report r;
        if (e != LL_OK || ll_pipeline_check(p, NULL, 0, &r) != LL_OK)
            fail_msg("set %d: %s", k, ll_error_message());
        double mine = takes(a, &x, p);
        assert_true(mine < INFINITY && mine <= best && r.ascending);
        alone += best == INFINITY;
        n += best < INFINITY;
        if (best < INFINITY) gain += 1 - mine / best;
        ll_arena_free(a);
    }
    print_message("auto: %d sets that a bundled schedule fits too, %.2f %% less time in the mean; "
                  "%d that none fits; %.1f s\n",
                  n, 100 * gain / n, alone, (double)(clock() - begin) / CLOCKS_PER_SEC);
    assert_true(SANITIZED || (n > sets / 2 && gain / n >= 0.05));
}

/* No limit; stages that ranks do not share evenly; skips; too little memory; sizes. */
static void automatic_edges(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    set x;
    draw(&x, 1);
    const ll_pipeline *p;
    ll_pipeline_report r;
    for (int n_stage = 3; n_stage <= 11; n_stage++) {
        assert_int_equal(ll_pipeline_auto(a, &x.costs, NULL, 3, n_stage, 5, &p), LL_OK);
        assert_int_equal(ll_pipeline_check(p, NULL, 0, &r), LL_OK);
    }
    static const ll_edge skips[] = {{0, 1}, {1, 2}, {2, 3}, {0, 3}, {1, 3}};
    x.costs.edges = skips;
    x.costs.n_edge = 5;
    assert_int_equal(ll_pipeline_auto(a, &x.costs, NULL, 4, 4, 5, &p), LL_OK);
    assert_int_equal(ll_pipeline_check(p, skips, 5, &r), LL_OK);
    static const double none[4] = {2, 2, 0.125, 2};
    refused(ll_pipeline_auto(a, &x.costs, none, 4, 4, 5, &p), "rank 2 has room for 0.125 bytes");
    refused(ll_pipeline_auto(a, &x.costs, NULL, 4, 3, 5, &p), "at least 4 would do");
    for (int i = 0; i < 3; i++) {
        x.i[2] = (const double[]){-1, NAN, INFINITY}[i];
        refused(ll_pipeline_auto(a, &x.costs, NULL, 4, 4, 5, &p), "stage 2 takes");
    }
    ll_arena_free(a);
}

/* Whether every action begins after what it reads has ended, by the simulator's clock. */
static bool in_time(const ll_pipeline *p, const ll_pipeline_times *t)
{
    double end[3][64] = {0}; /* of F, B or I, W; stage x micro */
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) {
            ll_action a = p->actions[r][k];
            end[a.kind == LL_ACT_F   ? 0
                : a.kind == LL_ACT_W ? 2
                                     : 1][a.stage * p->n_micro + a.micro] = t->end[r][k];
        }
    for (int r = 0; r < p->n_rank; r++)
        for (int k = 0; k < p->n_action[r]; k++) {
            ll_action a = p->actions[r][k];
            int at = a.stage * p->n_micro + a.micro;
            if (a.kind != LL_ACT_F && t->start[r][k] < end[a.kind == LL_ACT_W][at]) return false;
        }
    return true;
}

/* Two actions of a rank change places: the check says no just where the simulator comes to no end,
 * or something is read before it is made. */
static void swapped(void **state)
{
    (void)state;
    double one[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const ll_pipeline_costs c = {.f = one, .i = one, .w = one};
    int fine = 0, wrong = 0;
    for (uint64_t k = 0; k < 20000; k++) {
        ll_arena *a = ll_arena_new();
        int i = (int)(k % 8), p = 2 + (int)ll_below_at(1, k, 0, 3),
            v = i > 5 || i == 2 || i == 3 ? 2 : 1;
        const ll_pipeline *s = make(a, ll_pipeline_name(i), p, v, 1 + (int)ll_below_at(1, k, 1, 6));
        int r = (int)ll_below_at(1, k, 2, (uint64_t)p);
        ll_action *list = (ll_action *)s->actions[r];
        uint64_t n = (uint64_t)s->n_action[r], x = ll_below_at(1, k, 3, n);
        uint64_t y = k % 3 ? (x + 1) % n : ll_below_at(1, k, 4, n);
        ll_action was = list[x];
        list[x] = list[y];
        list[y] = was;
        ll_pipeline_report report;
        ll_pipeline_times t;
        bool can = ll_pipeline_simulate(a, s, &c, &t) == LL_OK && in_time(s, &t);
        if ((ll_pipeline_check(s, NULL, 0, &report) == LL_OK) != can)
            fail_msg("seed 1, %d: the check says %d, the simulator %d: %s", (int)k, !can, can,
                     ll_error_message());
        fine += can;
        wrong += !can;
        ll_arena_free(a);
    }
    print_message("swapped: %d still fine, %d refused\n", fine, wrong);
    assert_true(fine > 1000 && wrong > 1000);
}

static void same(const ll_pipeline *a, const ll_pipeline *b)
{
    assert_int_equal(a->n_rank, b->n_rank);
    assert_int_equal(a->n_stage, b->n_stage);
    assert_int_equal(a->n_micro, b->n_micro);
    assert_memory_equal(a->rank_of, b->rank_of, sizeof(int) * (size_t)a->n_stage);
    assert_memory_equal(a->n_action, b->n_action, sizeof(int) * (size_t)a->n_rank);
    for (int r = 0; r < a->n_rank; r++)
        assert_memory_equal(a->actions[r], b->actions[r],
                            sizeof(ll_action) * (size_t)a->n_action[r]);
}

static void round_trips(void **state)
{
    (void)state;
    for (int i = 0; ll_pipeline_name(i); i++) {
        for (int p = 1; p <= 5; p++) {
            ll_arena *a = ll_arena_new();
            const ll_pipeline *s, *again;
            int v = strchr(ll_pipeline_name(i), 'v') && i != 2 ? 2 : 1 + (i == 2 || i == 3);
            s = make(a, ll_pipeline_name(i), p, v, 7);
            ll_buf text = {.arena = a}, csv = {.arena = a};
            ll_pipeline_print(&text, s);
            ll_pipeline_print_csv(&csv, s);
            assert_int_equal(ll_pipeline_parse(a, text.text, text.len, "x", &again), LL_OK);
            same(s, again);
            assert_int_equal(ll_pipeline_parse(a, csv.text, csv.len, "x", &again), LL_OK);
            same(s, again);
            ll_arena_free(a);
        }
    }
}

static ll_err parse(ll_arena *a, const char *text, const ll_pipeline **out)
{
    return ll_pipeline_parse(a, text, strlen(text), "x.txt", out);
}

static void texts(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    const ll_pipeline *p, *q;
    assert_int_equal(parse(a, "# two\n\n F0  F1 B0 B1 # first\r\nF0.1\tB0 F1 B1", &p), LL_OK);
    assert_int_equal(parse(a, "0F0,0F1,,,0B0,,0B1\r\n,1F0, 1B0 ,1F1,1B1,\n\n", &q), LL_OK);
    same(p, q);
    same(p, make(a, "1f1b", 2, 1, 2));
    assert_string_equal(p->name, "x.txt");
    static const struct {
        const char *text;
        const char *words;
    } wrong[] = {
        {"", "x.txt: no rank does anything"},
        {"F0 B0\nF0 C0", "x.txt, line 2, word 2 (C0): not F, B, I or W"},
        {"F0 B", "line 1, word 2 (B): not"},
        {"F0 B0.", "line 1, word 2 (B0.): not"},
        {"F0 B0x", "(B0x): not"},
        {"F0 B0.0.1", "(B0.0.1): not"},
        {"F-1 B0", "line 1, word 1 (F-1): not"},
        {"F65536 B0", "(F65536): not"},
        {"F0.65536 B0", "(F0.65536): not"},
        {"F99999999999999999999", "word 1 (F99999999999999999999): not"},
        {"# none\nF0.0 B0.0\nF0.0", "line 3, word 1 (F0.0): the stage is another rank's"},
        {"F0.1 B0.1", "no rank has stage 0"},
        {"F0 B0--", "line 1, word 2 (B0--): not"},
        {"F0 B0-.0", "(B0-.0): not"},
        {"F9.0 B9.0", "2 actions are too few for 1 stages of 10 micro-batches"},
        {"0F0,0B0\n1F0,B10", "line 2, word 2 (B10): not stage"},
        {"0F0,0B0\n,,", "line 2: a rank that does nothing"},
        {"0F0,(0F1;1B0)OVERLAP_F_B", "line 1, word 2 ((0F1;1B0)OVERLAP_F_B): not stage"},
        {"0F0,0UNSHARD", "(0UNSHARD): not"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(parse(a, wrong[i].text, &p), wrong[i].words);
    refused(ll_pipeline_parse(a, "F0\0 B0", 6, "x", &p), "word 1");
    ll_buf many = {.arena = a};
    for (int r = 0; r <= LL_PIPELINE_RANKS; r++) ll_buf_puts(&many, "F0 B0\n");
    refused(parse(a, many.text, &p), "line 1025: more than 1024 ranks");
    ll_arena_free(a);
}

static void pictures(void **state)
{
    (void)state;
    ll_arena *a = ll_arena_new();
    static const double one[] = {1, 1, 1, 1};
    const ll_pipeline_costs c = {.f = one, .i = one, .w = one};
    const ll_pipeline *p = make(a, "1f1b", 3, 1, 4), *z = make(a, "zb-h1", 3, 1, 4);
    ll_pipeline_times t = simulate(a, p, &c), u = simulate(a, z, &c);
    ll_buf b = {.arena = a};
    ll_pipeline_draw_text(&b, p, &t, 0);
    ll_pipeline_draw_text(&b, z, &u, 0);
    assert_string_equal(b.text, "   0  012....a=3b=.c=.d=\n"
                                "   1  .01..a=2b=3c=.d=..\n"
                                "   2  ..0a=1b=2c=3d=....\n"
                                "1f1b, 3 ranks, 3 stages, 4 micro-batches: 18.0 s, 33.3 % bubble; "
                                "of equal stages (p-1)/(m+p-1) = 33.3 %\n"
                                "   0  012..aA3bBcCdD\n"
                                "   1  .01.a2bA3cBdCD\n"
                                "   2  ..0a1b2cA3dBCD\n"
                                "zb-h1, 3 ranks, 3 stages, 4 micro-batches: 14.0 s, 14.3 % bubble; "
                                "of equal stages (p-1)/(3m+p-1) = 14.3 %\n");
    const ll_pipeline *w = make(a, "2bw", 3, 1, 4);
    ll_pipeline_times v = simulate(a, w, &c);
    b.len = 0;
    ll_pipeline_draw_text(&b, w, &v, 0); /* what is past the end, the step before has there */
    ll_pipeline_print(&b, w);
    assert_string_equal(b.text, "   0  0c=1d=2a=3b=\n"
                                "   1  =0d=1a=2b=3c\n"
                                "   2  d=0a=1b=2c=3\n"
                                "2bw, 3 ranks, 3 stages, 4 micro-batches: 12.0 s, 0.0 % bubble; "
                                "of equal stages 0 = 0.0 %\n"
                                "# 3 ranks, 3 stages, 4 micro-batches\n"
                                "F0.0 B2.0- F1.0 B3.0- F2.0 B0.0 F3.0 B1.0\n"
                                "F0.1 B3.1- F1.1 B0.1 F2.1 B1.1 F3.1 B2.1\n"
                                "F0.2 B0.2 F1.2 B1.2 F2.2 B2.2 F3.2 B3.2\n");
    b.len = 0;
    ll_pipeline_draw_svg(&b, w, &v);
    assert_true(check_xml(b.text) > 24);
    const ll_interval update[] = {{18, 19}, {17, 19}, {15, 16}};
    t.update = update;
    b.len = 0;
    ll_pipeline_draw_svg(&b, p, &t);
    assert_true(check_xml(b.text) > 24 + 3);
    assert_non_null(strstr(b.text, "33.3 % bubble; of equal stages (p-1)/(m+p-1) = 33.3 %"));
    assert_non_null(strstr(b.text, ">update<"));
    assert_null(strstr(b.text, "weight gradient"));
    const char *out = getenv("SVG"); /* to look at it */
    FILE *f = out ? fopen(out, "w") : NULL;
    if (f) fputs(b.text, f);
    if (f) fclose(f);
    /* no actions that take time: nothing to see, nothing divided by it */
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 8; k++) t.start[r][k] = t.end[r][k] = 5;
    t.update = NULL;
    ll_pipeline_sum_up(p, &t);
    assert_true(t.makespan == 0 && t.bubble == 0);
    ll_pipeline_draw_text(&b, p, &t, 0);
    ll_pipeline_draw_svg(&b, p, &t);
    assert_null(strstr(b.text, "nan"));
    ll_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pass),         cmocka_unit_test(what_can_be_asked),
        cmocka_unit_test(wrong_ones),       cmocka_unit_test(crossing_sends),
        cmocka_unit_test(edges_and_order),  cmocka_unit_test(formulas),
        cmocka_unit_test(going_on),         cmocka_unit_test(times),
        cmocka_unit_test(automatic),        cmocka_unit_test(automatic_edges),
        cmocka_unit_test(swapped),          cmocka_unit_test(round_trips),
        cmocka_unit_test(messages_in_turn), cmocka_unit_test(texts),
        cmocka_unit_test(pictures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
