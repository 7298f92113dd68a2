/* Every algorithm of the registry, proved right: for all numbers of ranks from 1 to 17, element
 * counts that divide and that do not, segments, uneven blocks, roots, ways to place ranks on nodes;
 * that it is canonical exactly where it says so; and that it costs what its formula says. Then that
 * the verifier does find mistakes, by making some. What fails is printed with all it takes to run
 * it again. */
#include "sched/emit.h"
#include "sched/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SIZE_MAX_TESTED = 17, SHOWN = 3 };

/* ---- what is asked ---- */
enum { MAP_ONE, MAP_TWOS, MAP_THREES, MAP_ROUND_ROBIN, N_MAP };
static const char *const map_names[] = {"one node", "nodes of 2", "nodes of 3", "round robin"};

static void fill_nodes(int map, int size, int *node)
{
    for (int r = 0; r < size; r++)
        node[r] = map == MAP_ONE ? 0 : map == MAP_TWOS ? r / 2 : map == MAP_THREES ? r / 3 : r % 3;
}

static bool has_root(ll_coll c)
{
    return c == LL_COLL_BROADCAST;
}

static bool has_blocks(ll_coll c)
{
    return c == LL_COLL_REDUCE_SCATTER || c == LL_COLL_ALLGATHER || c == LL_COLL_ALLTOALL;
}

static bool has_sums(ll_coll c)
{
    return c == LL_COLL_ALLREDUCE || c == LL_COLL_REDUCE_SCATTER;
}

typedef struct ask { /* a spec, and memory for what it points to */
    ll_coll_spec spec;
    int map;
    int node[SIZE_MAX_TESTED];
    int64_t starts[SIZE_MAX_TESTED + 1];
    int64_t matrix[SIZE_MAX_TESTED * SIZE_MAX_TESTED];
    uint64_t tried; /* hash of the lists of the last map that needed no node */
} ask;

/* Blocks of 0, 2, 5, 1, 0 ... elements. */
static void make_uneven(ask *q)
{
    static const int64_t widths[] = {0, 2, 5, 1, 0, 3};
    ll_coll_spec *s = &q->spec;
    for (int b = 0; b < s->size; b++) {
        q->starts[b + 1] = q->starts[b] + widths[b % 6];
        for (int to = 0; to < s->size; to++) q->matrix[b * s->size + to] = widths[(b + 2 * to) % 6];
    }
    s->starts = q->starts;
    s->count = q->starts[s->size];
}

/* ---- failures ---- */
static int n_failed, n_shown, n_tried;

static void print_ask(const ll_algo *a, const ask *q)
{
    const ll_coll_spec *s = &q->spec;
    print_error("%s by %s, %d ranks, %lld elements%s, segment %lld, root %d, %s%s: ",
                ll_coll_name(a->coll), a->name, s->size, (long long)s->count,
                s->matrix   ? " (matrix)"
                : s->starts ? " (uneven)"
                            : "",
                (long long)s->segment, s->root, map_names[q->map], s->shared ? ", shared" : "");
}

static bool fails(const ll_algo *a, const ask *q)
{
    n_failed++;
    if (n_shown++ >= SHOWN) return false;
    print_ask(a, q);
    return true;
}

/* ---- building ---- */
static const ll_sched *const *build(ll_arena *arena, const ll_algo *a, const ask *q)
{
    const ll_sched **lists = LL_NEW_ARRAY(arena, const ll_sched *, q->spec.size);
    for (int r = 0; r < q->spec.size; r++)
        if (ll_sched_build(arena, a, &q->spec, r, &lists[r]) != LL_OK) {
            if (fails(a, q)) print_error("%s\n", ll_error_text());
            return NULL;
        }
    return lists;
}

/* Do ranks look into each other's memory? Then it matters which are on a node. */
static bool uses_nodes(const ll_sched *const *lists, int size)
{
    for (int r = 0; r < size; r++) {
        if (lists[r]->n_signal || lists[r]->window) return true;
        for (int i = 0; i < lists[r]->n_step; i++)
            for (int f = 0; f < lists[r]->steps[i].n_from; f++)
                if (lists[r]->steps[i].from[f].rank != r) return true;
    }
    return false;
}

static uint64_t hash_of(const ll_sched *const *lists, int size)
{
    uint64_t h = 1;
#define ADD(x) h = (h ^ (uint64_t)(x)) * 0x100000001b3u, h ^= h >> 29
    for (int r = 0; r < size; r++) {
        ADD(lists[r]->n_step);
        for (int i = 0; i < lists[r]->n_step; i++) {
            const ll_step *s = &lists[r]->steps[i];
            ADD(s->kind + 8 * s->round);
            ADD(s->peer);
            ADD(s->n);
            ADD(s->dst.at * 4 + s->dst.buf);
            for (int f = 0; f < s->n_from; f++) ADD(s->from[f].at * 4 + s->from[f].buf);
        }
    }
#undef ADD
    return h;
}

/* ---- everything is right ---- */
typedef struct claims { /* of one algorithm, size, segment, root and place, over all counts */
    int n_unclaimed, n_not_canonical;
} claims;
typedef claims all_claims[SIZE_MAX_TESTED][N_MAP][2];

static void check_canonical(const ll_algo *a, const ask *q, all_claims *all)
{
    bool claimed = a->canonical && a->canonical(&q->spec), was = ll_sched_was_canonical();
    if (claimed && !was && fails(a, q)) print_error("says it is canonical, and is not\n");
    if (q->spec.count < q->spec.size) return;
    claims *c = &(*all)[q->spec.root][q->map][q->spec.shared];
    c->n_unclaimed += !claimed;
    c->n_not_canonical += !claimed && !was;
}

static void check_one(const ll_algo *a, ask *q, all_claims *all)
{
    const char *why;
    if (!ll_algo_can(a, &q->spec, &why)) return;
    ll_arena *arena = ll_arena_new();
    const ll_sched *const *lists = build(arena, a, q);
    bool nodes = lists && uses_nodes(lists, q->spec.size);
    uint64_t hash = lists ? hash_of(lists, q->spec.size) : 0;
    if (lists && (nodes || hash != q->tried)) {
        n_tried++;
        int times = q->spec.count != 23 && q->spec.count != q->spec.size + 1 ? 1 : nodes ? 4 : 2;
        if (ll_sched_verify_repeated(&q->spec, lists, times) == LL_OK) {
            if (has_sums(a->coll)) check_canonical(a, q, all);
        } else if (fails(a, q)) {
            print_error("%s\n", ll_error_text());
        }
        if (!nodes) q->tried = hash;
    }
    ll_arena_free(arena);
}

static void check_places(const ll_algo *a, ask *q, all_claims *all)
{
    q->tried = 0;
    for (q->map = 0; q->map < N_MAP; q->map++)
        for (int shared = 0; shared < 2; shared++) {
            /* A few counts do for the less usual places. */
            int64_t n = q->spec.count;
            if (q->map && n != 1 && n != q->spec.size + 1 && n != 23) continue;
            fill_nodes(q->map, q->spec.size, q->node);
            q->spec.node = q->map ? q->node : NULL;
            q->spec.shared = shared;
            check_one(a, q, all);
        }
}

static void check_roots(const ll_algo *a, ask *q, all_claims *all)
{
    int size = q->spec.size;
    for (int root = 0; root < (has_root(a->coll) ? size : 1); root++) {
        if (size > 5 && root != 0 && root != 1 && root != size / 2 && root != size - 1) continue;
        q->spec.root = root;
        check_places(a, q, all);
    }
}

/* What is in canonical order for every count must say so. */
static void check_unclaimed(const ll_algo *a, ask *q, all_claims *all)
{
    for (int root = 0; root < q->spec.size; root++)
        for (int map = 0; map < N_MAP; map++)
            for (int shared = 0; shared < 2; shared++) {
                const claims *c = &(*all)[root][map][shared];
                q->spec.root = root, q->spec.shared = shared, q->map = map;
                if (c->n_unclaimed && !c->n_not_canonical && fails(a, q))
                    print_error("is canonical for all counts, and does not say so\n");
            }
}

static void check_size(const ll_algo *a, int size)
{
    static const int64_t segments[] = {0, 1, 3, 7};
    const int64_t counts[] = {0, 1, 2, size - 1, size, size + 1, 2 * size + 1, 23, 64};
    int n_count = (int)(sizeof counts / sizeof *counts);
    for (int g = 0; g < (a->segmented ? 4 : 1); g++) {
        all_claims all = {0};
        for (int k = 0; k < n_count + 2; k++) {
            ask q = {.spec = {.coll = a->coll, .size = size, .segment = segments[g]}};
            q.spec.count = k < n_count ? counts[k] : 0;
            if (k >= n_count) {
                if (!has_blocks(a->coll)) continue;
                make_uneven(&q);
            }
            if (k == n_count + 1) {
                if (a->coll != LL_COLL_ALLTOALL) continue;
                q.spec.starts = NULL;
                q.spec.matrix = q.matrix;
            }
            check_roots(a, &q, &all);
        }
        ask q = {.spec = {.coll = a->coll, .size = size, .segment = segments[g]}};
        if (size > 2) check_unclaimed(a, &q, &all);
    }
}

static void every_algorithm(void **state)
{
    (void)state;
    const char *only = getenv("ONLY"); /* an algorithm's name */
    n_failed = n_tried = 0;
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        if (only && strcmp((*a)->name, only)) continue;
        n_shown = 0;
        int before = n_failed;
        for (int size = 1; size <= SIZE_MAX_TESTED; size++) check_size(*a, size);
        if (n_failed > before)
            print_error("%s by %s: %d failures\n", ll_coll_name((*a)->coll), (*a)->name,
                        n_failed - before);
    }
    print_message("%d schedules verified\n", n_tried);
    assert_true(n_tried > 0);
    assert_int_equal(n_failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_algorithm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
