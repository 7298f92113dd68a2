/* Step lines and the progress line, under a clock that the test turns. */
#include "train/progress.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static double now;
static double test_clock(void)
{
    return now;
}

static const ll_step_stats example = {.step = 120,
                                      .loss = 0.53121,
                                      .norm = 1.2044,
                                      .lr = 1e-3,
                                      .step_s = 3.41e-3,
                                      .rate = 18800,
                                      .peak = 0.412,
                                      .bytes = (size_t)212 << 20};

static void plain_line(void **state)
{
    (void)state;
    char line[LL_STEP_LINE];
    const char *want = "step 120/938 | loss 0.5312 | norm 1.204 | lr 1.0e-03 | 3.41 ms | "
                       "18.8k img/s | 41% peak | 212 MiB";
    assert_int_equal(ll_step_line(&example, 938, "img", 200, line), strlen(want));
    assert_string_equal(line, want);
    for (int columns = 0; columns < 120; columns++) {
        memset(line, 0x7f, sizeof line);
        int n = ll_step_line(&example, 938, "img", columns, line);
        assert_true(n <= columns && (size_t)n == strlen(line));
        assert_memory_equal(line, want, (size_t)n); /* a beginning of it, cut between fields */
        assert_true(n == 0 || want[n] == '\0' || !strncmp(want + n, " | ", 3));
    }
    ll_step_stats few = {.step = 1, .loss = NAN, .norm = NAN, .step_s = 1.5};
    ll_step_line(&few, 2, "img", 200, line);
    assert_string_equal(line, "step 1/2 | loss nan | lr 0.0e+00 | 1.50 s");
    few = (ll_step_stats){.step = 1, .loss = 1, .norm = 1, .step_s = 1.5, .apart = true};
    ll_step_line(&few, 2, "img", 200, line);
    assert_string_equal(line, "step 1/2 | loss 1.0000 (of a replica) | lr 0.0e+00 | 1.50 s");
    few.loss = NAN; /* it has made no step yet */
    ll_step_line(&few, 2, "img", 200, line);
    assert_string_equal(line, "step 1/2 | lr 0.0e+00 | 1.50 s");
    few = (ll_step_stats){
        .word = "sample", .step = 8, .loss = 2, .norm = NAN, .lr = NAN, .step_s = 1.5};
    ll_step_line(&few, 9, "tok", 200, line);
    assert_string_equal(line, "sample 8/9 | loss 2.0000 | 1.50 s");
    few.loss = NAN; /* of what is counted there may be none */
    ll_step_line(&few, 9, "tok", 200, line);
    assert_string_equal(line, "sample 8/9 | 1.50 s");
    few = (ll_step_stats){.step = 1, .loss = 1e30, .norm = 1e-9, .step_s = 1.5, .lr = 0.1};
    ll_step_line(&few, 2, "img", 200, line);
    assert_string_equal(line, "step 1/2 | loss 1.000e+30 | norm 1.000e-09 | lr 1.0e-01 | 1.50 s");
}

/* Runs `steps` steps of 10 ms; returns what was printed, which the caller frees. */
static char *run(ll_progress_opts opts, int steps, const char *note)
{
    char *text;
    size_t size;
    now = 1000;
    opts.out = open_memstream(&text, &size);
    opts.clock = test_clock;
    opts.unit = "img";
    ll_progress *p = ll_progress_new(&opts);
    for (int i = 1; i <= steps; i++) {
        ll_step_stats s = example;
        s.step = i;
        now += 0.01;
        ll_progress_step(p, &s);
        if (note && i == steps / 2) ll_progress_note(p, "%s", note);
    }
    ll_progress_free(p);
    fclose(opts.out);
    return text;
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *c = text; (c = strstr(c, what)); c++) n++;
    return n;
}

static void plain_lines_are_few(void **state)
{
    (void)state;
    char *text = run((ll_progress_opts){.total = 938}, 938, "val: 91%");
    assert_int_equal(count(text, "\n"), 1 + 4 + 1 + 1); /* first, every 2 s of 9.38, note, last */
    assert_memory_equal(text, "step 1/938 | ", 13);
    assert_non_null(strstr(text, "MiB\nval: 91%\nstep "));
    assert_int_equal(count(text, "step 938/938"), 1);
    assert_int_equal(count(text, "\r") + count(text, "\033"), 0);
    free(text);
    text = run((ll_progress_opts){.total = 938}, 50, NULL); /* stopped early: the last is shown */
    assert_int_equal(count(text, "\n"), 2);
    assert_non_null(strstr(text, "step 50/938"));
    free(text);
    text = run((ll_progress_opts){.total = 5}, 0, NULL);
    assert_string_equal(text, "");
    free(text);
}

static void live_line(void **state)
{
    (void)state;
    for (int columns = 1; columns <= 200; columns += 13) {
        ll_progress_opts opts = {.total = 400, .live = true, .columns = columns};
        char *text = run(opts, 400, "note");
        assert_int_equal(count(text, "note\n"), 1);
        assert_int_equal(count(text, "\n"), 2);           /* the note's and the last */
        assert_true(count(text, "\r") <= 4 * 10 + 2 + 2); /* ten a second */
        assert_int_equal(text[strlen(text) - 1], '\n');
        char *c = text;
        for (char *r; (r = strchr(c + 1, '\r')); c = r) { /* no line as wide as the terminal */
            char *end = strstr(c, "\033[K");
            assert_true(end && end < r && end - c - 1 < columns);
        }
        if (columns > 150) {
            assert_non_null(strstr(text, "\r[            "));
            assert_non_null(strstr(text, "########################] 100% | 4.0s | step 400/400"));
            assert_non_null(strstr(text, "% | 2.0s left | step 2"));
        }
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_line),
                                       cmocka_unit_test(plain_lines_are_few),
                                       cmocka_unit_test(live_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
