/* metrics.jsonl: lines as promised, and a resumed file equal to an uninterrupted one. */
#include "train/metrics.h"
#include "base/file.h"
#include "tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <cmocka.h>

static char *content(const char *path)
{
    uint8_t *text;
    size_t n;
    assert_int_equal(ll_file_read(path, 1 << 20, &text, &n), LL_OK);
    return (char *)text;
}

static void lines(void **state)
{
    const char *path = tmpdir_path(state, "m.jsonl");
    ll_metrics *m;
    assert_int_equal(ll_metrics_open(path, -1, &m), LL_OK);
    ll_metrics_begin(m, 120);
    ll_metrics_num(m, "loss", (double)0.1f);
    ll_metrics_num(m, "lr", 1e-3);
    ll_metrics_num(m, "third", 1.0 / 3);
    ll_metrics_num(m, "bad", NAN);
    ll_metrics_num(m, "worse", -INFINITY);
    ll_metrics_int(m, "seen", (int64_t)1 << 60);
    ll_metrics_int(m, "say \"x\"", -1);
    assert_int_equal(ll_metrics_end(m), LL_OK);
    ll_metrics_begin(m, 121);
    assert_int_equal(ll_metrics_end(m), LL_OK);
    char *text = content(path); /* whole before it is closed */
    ll_metrics_close(m);
    ll_metrics_close(NULL);
    assert_string_equal(text,
                        "{\"step\":120,\"loss\":0.1,\"lr\":0.001,\"third\":0.3333333333333333,"
                        "\"bad\":null,\"worse\":null,\"seen\":1152921504606846976,"
                        "\"say \\\"x\\\"\":-1}\n{\"step\":121}\n");
    free(text);
    assert_int_equal(ll_metrics_open(path, -1, &m), LL_OK); /* a new run starts afresh */
    ll_metrics_close(m);
    text = content(path);
    assert_string_equal(text, "");
    free(text);
}

/* Steps from..to, a validation line at every fifth. */
static void train(const char *path, int64_t keep_to, int64_t from, int64_t to)
{
    ll_metrics *m;
    assert_int_equal(ll_metrics_open(path, keep_to, &m), LL_OK);
    for (int64_t step = from; step <= to; step++) {
        ll_metrics_begin(m, step);
        ll_metrics_num(m, "loss", 1.0 / (double)step);
        assert_int_equal(ll_metrics_end(m), LL_OK);
        if (step % 5) continue;
        ll_metrics_begin(m, step);
        ll_metrics_num(m, "val_loss", 2.0 / (double)step);
        assert_int_equal(ll_metrics_end(m), LL_OK);
    }
    ll_metrics_close(m);
}

static void resumed_equals_uninterrupted(void **state)
{
    const char *whole = tmpdir_path(state, "whole"), *parts = tmpdir_path(state, "parts");
    train(whole, -1, 1, 30);
    char *want = content(whole);
    for (int64_t saved = 0; saved <= 20; saved += 5) {
        for (int64_t killed = saved; killed <= 30; killed += 3) {
            train(parts, -1, 1, killed);
            if (killed % 2) { /* killed in the middle of a line */
                FILE *f = fopen(parts, "a");
                fputs("{\"step\":", f);
                fclose(f);
            }
            train(parts, saved, saved + 1, 30);
            char *have = content(parts);
            assert_string_equal(have, want);
            free(have);
        }
    }
    free(want);
    train(tmpdir_path(state, "new"), 7, 8, 9); /* the file need not exist */
}

static void bad_files(void **state)
{
    const char *path = tmpdir_path(state, "m.jsonl");
    ll_metrics *m;
    static const char *const lines[] = {"garbage\n", "[1]\n", "{\"loss\":1}\n", "{\"step\":1.5}\n",
                                        "\n"};
    for (int i = 0; i < 5; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"step\":1}\n%s", lines[i]);
        assert_int_equal(ll_file_write(path, text, strlen(text)), LL_OK);
        assert_int_equal(ll_metrics_open(path, 5, &m), LL_E_IO);
        assert_non_null(strstr(ll_error_text(), "m.jsonl: line 2 is not"));
        char *left = content(path);
        assert_string_equal(left, text);
        free(left);
    }
    assert_int_equal(ll_metrics_open(tmpdir_path(state, "no/m"), -1, &m), LL_E_IO);
    assert_null(m);
}

static void removed(void **state)
{
    const char *path = tmpdir_path(state, "gone.jsonl");
    ll_metrics *m;
    assert_int_equal(ll_metrics_open(path, -1, &m), LL_OK);
    ll_metrics_begin(m, 1);
    assert_int_equal(ll_metrics_end(m), LL_OK);
    assert_int_equal(unlink(path), 0);
    ll_metrics_begin(m, 2);
    assert_int_equal(ll_metrics_end(m), LL_E_IO);
    assert_non_null(strstr(ll_error_text(), "gone.jsonl was removed while the run wrote it"));
    ll_metrics_close(m);
}

static void full_disk(void **state)
{
    ll_metrics *m;
    assert_int_equal(ll_metrics_open(tmpdir_path(state, "m.jsonl"), -1, &m), LL_OK);
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    small.rlim_cur = 40;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    ll_err rc = LL_OK;
    int step = 0;
    for (; step < 9 && rc == LL_OK; step++) {
        ll_metrics_begin(m, step);
        rc = ll_metrics_end(m);
    }
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, LL_E_IO);
    assert_int_equal(step, 4); /* 11 bytes a line */
    assert_non_null(strstr(ll_error_text(), "m.jsonl: writing"));
    ll_metrics_close(m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, tmpdir_setup, tmpdir_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {IN_FOLDER(lines), IN_FOLDER(resumed_equals_uninterrupted),
                                       IN_FOLDER(bad_files), IN_FOLDER(removed),
                                       IN_FOLDER(full_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
