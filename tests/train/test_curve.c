/* The learning curve's picture: well formed, finite and inside its frame whatever the points. */
#include "train/curve.h"
#include "base/file.h"
#include "tmpdir.h"
#include "xml.h"

#include <math.h>

/* All marks, and all points of lines that are not clipped, lie on the picture. */
static void check_inside(const char *svg)
{
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    for (const char *c = svg; (c = strstr(c, " d=\"M")); c++) {
        const char *element = c;
        while (*element != '<') element--;
        const char *clip = strstr(element, "clip-path");
        if (clip && clip < c) continue;
        char *p = (char *)c + 5;
        for (;;) {
            double x = strtod(p, &p), y = strtod(p, &p);
            if (*p == 'H' || *p == 'v' || *p == 'h') y = x;
            assert_true(x >= 0 && x <= 860 && y >= 0 && y <= 860);
            if (*p != 'L' && *p != 'M') break;
            p++;
        }
    }
}

static void any_points(void **state)
{
    (void)state;
    enum { N = 3000 };
    static double x[N], y[N];
    for (int kind = 0; kind < 12; kind++) {
        for (int n = 0; n <= N; n = n < 3 ? n + 1 : n * 10) {
            for (int i = 0; i < n; i++) {
                const double values[] = {1.0 / (i + 1),
                                         0,
                                         -5,
                                         NAN,
                                         i % 3 ? INFINITY : 1,
                                         i % 2 ? 1e300 : -1e300,
                                         1e15 + i,
                                         1 + i * 1e-16,
                                         pow(10, -i % 50),
                                         i % 7 ? 2 : NAN,
                                         -1e-300 * i,
                                         1e99};
                x[i] = i + 1;
                y[i] = values[kind];
            }
            const ll_points p = {x, y, n};
            for (int which = 0; which < 8; which++) {
                ll_arena *a = ll_arena_new();
                ll_curve c = {.title = "t"};
                if (which & 1) c.train_loss = p;
                if (which & 2) c.val_loss = p;
                if (which & 4) c.val_accuracy = p;
                const char *svg = ll_curve_svg(a, &c);
                assert_true(check_xml(svg) >= 5);
                check_inside(svg);
                ll_arena_free(a);
            }
        }
    }
}

static void what_it_shows(void **state)
{
    enum { N = 100000 };
    double *x = malloc(sizeof(double) * N), *y = malloc(sizeof(double) * N);
    for (int i = 0; i < N; i++) {
        x[i] = i + 1;
        y[i] = 2 * exp(-i / 20000.0) + 0.5;
    }
    y[70000] = 1.75; /* a spike, which thinning must not lose */
    double vx[3] = {30000, 60000, 100000}, loss[3] = {1.2, 0.7, 0.8}, acc[3] = {0.5, 0.9, 0.8875};
    ll_arena *a = ll_arena_new();
    const ll_curve c = {"a < b & c\x01\xff\xc3\xa9", "two", {x, y, N}, {vx, loss, 3}, {vx, acc, 3}};
    const char *svg = ll_curve_svg(a, &c);
    check_xml(svg);
    assert_true(strlen(svg) < 60000);
    assert_non_null(strstr(svg, ">a &lt; b &amp; c\xc3\xa9</text>"));
    assert_non_null(strstr(svg, ">two</text>"));
    assert_non_null(strstr(svg, "training loss 0.51"));
    assert_non_null(strstr(svg, "validation loss 0.8 (best 0.7)"));
    assert_non_null(strstr(svg, "validation accuracy 88.75% (best 90.00%)"));
    assert_non_null(strstr(svg, ">20k</text>"));
    assert_non_null(strstr(svg, ">2.5</text>"));
    assert_non_null(strstr(svg, ">80%</text>"));
    /* loss 0..2.5 on pixels 404..114: 1.75 is at 404 - 0.7 * 290 = 201 */
    assert_non_null(strstr(svg, " 201.0L"));
    assert_non_null(strstr(svg, "prefers-color-scheme:dark"));
    assert_string_equal(svg, ll_curve_svg(a, &c));
    assert_int_equal(ll_curve_of_run(tmpdir_path(state, "no"), "t", NULL), LL_E_IO);
    const char *line = "{\"step\": 1, \"loss\": 2}\n", *folder = (const char *)*state;
    uint8_t *back;
    size_t n;
    assert_int_equal(ll_file_write(tmpdir_path(state, "metrics.jsonl"), line, strlen(line)), LL_OK);
    assert_int_equal(ll_curve_of_run(folder, "t", NULL), LL_OK);
    assert_int_equal(ll_file_read(tmpdir_path(state, "curve.svg"), 1 << 20, &back, &n), LL_OK);
    assert_non_null(strstr((char *)back, "training loss 2"));
    free(back);
    ll_arena_free(a);
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_points),
        cmocka_unit_test_setup_teardown(what_it_shows, tmpdir_setup, tmpdir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
