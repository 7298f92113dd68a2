/* Work in parts, by regions and by crews: every item is made once, by as many threads as asked for,
 * however many parts come one behind another. */
#include "kern/cpu/crew.h"
#include "kern/cpu/row.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ITEMS = 97, ROUNDS = 2000 };

typedef struct made {
    int count[ITEMS], by[ITEMS];
} made;

static void make(const void *job, int64_t from, int64_t to)
{
    made *m = (made *)(uintptr_t)job;
    for (int64_t i = from; i < to; i++) m->count[i]++, m->by[i] = omp_get_thread_num();
}

/* Even parts, the first by the first thread and so on. */
static void check(int threads, int64_t n)
{
    made m;
    memset(&m, 0, sizeof m);
    ll_in_parts(threads, n, make, &m);
    int64_t parts = threads < n ? threads : n;
    for (int64_t i = 0; i < ITEMS; i++) assert_int_equal(m.count[i], i < n);
    for (int64_t t = 0; t < parts; t++)
        for (int64_t i = n * t / parts; i < n * (t + 1) / parts; i++) assert_int_equal(m.by[i], t);
}

static void make_numbered(const void *job, int number, int64_t from, int64_t to)
{
    made *m = (made *)(uintptr_t)job;
    for (int64_t i = from; i < to; i++) m->count[i]++, m->by[i] = number;
}

/* The same parts, by the same threads, whose numbers they have. */
static void check_numbered(int threads, int64_t n)
{
    made plain, numbered;
    memset(&plain, 0, sizeof plain);
    memset(&numbered, 0, sizeof numbered);
    ll_in_parts(threads, n, make, &plain);
    ll_in_numbered_parts(threads, n, make_numbered, &numbered);
    assert_memory_equal(&plain, &numbered, sizeof plain);
}

typedef struct asked {
    int threads, led;
} asked;

static void many(void *given)
{
    asked *a = (asked *)given;
    a->led++;
    assert_int_equal(omp_get_thread_num(), 0);
    for (int i = 0; i < ROUNDS; i++) check(a->threads, i % (ITEMS + 1));
    for (int i = 0; i <= ITEMS; i++) check_numbered(a->threads, i);
}

static void parts(void **)
{
    for (int threads = 1; threads <= 4; threads++) {
        asked a = {threads};
        many(&a);
        ll_crew(threads, many, &a);
        ll_crew(threads, many, &a); /* another, of the same threads */
        assert_int_equal(a.led, 3);
    }
}

static void inner(void *given)
{
    asked one = {1};
    many(&one);
    ++*(int *)given;
}

static void outer(void *given)
{
    check(3, ITEMS);
    ll_crew(3, inner, given);
    check(3, ITEMS);
}

static void parts_within(const void *job, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        made m;
        memset(&m, 0, sizeof m);
        ll_in_parts(2, ITEMS, make, &m);
        for (int k = 0; k < ITEMS; k++) ((int *)(uintptr_t)job)[i] += m.count[k];
    }
}

static void outer_parts(void *given)
{
    ll_in_parts(2, 2, parts_within, given);
}

/* Crews and parts within others are made by the one that asks. */
static void within(void **)
{
    int n = 0, sums[2] = {0};
    ll_crew(3, outer, &n);
    assert_int_equal(n, 1);
    ll_crew(2, outer_parts, sums);
    assert_int_equal(sums[0], ITEMS);
    assert_int_equal(sums[1], ITEMS);
}

int main(void)
{
    unsetenv("OMP_WAIT_POLICY"); /* passive: there are no crews */
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts), cmocka_unit_test(within)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
