/* Edit distances and suggestions for mistyped words. */
#include "base/near.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void distances(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {{"", "", 0},           {"", "abc", 3},         {"abc", "", 3},
                 {"conv", "conv", 0},   {"covn", "conv", 1},    {"kitten", "sitting", 3},
                 {"batch", "bacth", 1}, {"relu", "gelu", 1},    {"lr", "width", 5},
                 {"ab", "ba", 1},       {"abcdef", "badcfe", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ll_edit_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(ll_edit_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
    char a[1000], b[1000]; /* far past the longest word that is compared whole */
    for (int i = 0; i < 999; i++) a[i] = 'a', b[i] = 'b';
    a[999] = b[999] = '\0';
    assert_int_equal(ll_edit_distance(a, a), 0);
    assert_true(ll_edit_distance(a, b) > 60);
}

static const char *suggest(const char *word)
{
    static const char *const known[] = {"batch", "micro_batch", "steps", "optimizer", "lr", "seed"};
    ll_near near = {.word = word};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) ll_near_try(&near, known[i]);
    return near.best;
}

static void suggestions(void **state)
{
    (void)state;
    assert_string_equal(suggest("bacth"), "batch");
    assert_string_equal(suggest("optimiser"), "optimizer");
    assert_string_equal(suggest("microbatch"), "micro_batch");
    assert_string_equal(suggest("step"), "steps");
    assert_null(suggest("zebra"));
    assert_null(suggest(""));
    ll_near near = {.word = "bacth"};
    assert_string_equal(ll_near_hint(&near), "");
    ll_near_try(&near, "batch");
    assert_string_equal(ll_near_hint(&near), "; did you mean batch?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(distances), cmocka_unit_test(suggestions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
