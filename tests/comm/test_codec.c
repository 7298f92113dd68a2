/* Codecs on one rank: what comes back, and what is left in the residual; random rounding is right
 * on average and a function of what it says; texts that are wrong. */
#include "base/rng.h"
#include "base/types.h"
#include "comm/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCK = 512 };
static const char *const texts[] = {"bf16",   "f16",    "qsgd:1", "qsgd:2", "qsgd:3", "qsgd:4",
                                    "qsgd:5", "qsgd:6", "qsgd:7", "qsgd:8", "onebit"};
enum { TEXTS = sizeof texts / sizeof *texts };
static ll_comm *comm;

static int start(void **state)
{
    (void)state;
    return ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .table = ""}, &comm) != LL_OK;
}

static int end(void **state)
{
    (void)state;
    ll_comm_close(comm);
    return 0;
}

static ll_codec *codec(const char *text, const char *name, int64_t n, uint64_t seed)
{
    ll_codec *k = NULL;
    ll_err e = ll_codec_open(text, name, n, seed, &k);
    if (e != LL_OK) fail_msg("%s", ll_error_text());
    return k;
}

static void run(ll_codec *k, float *data, int64_t step)
{
    if (ll_codec_allreduce(k, comm, data, step, "test") != LL_OK) fail_msg("%s", ll_error_text());
}

static void fill(float *x, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)ll_normal_at(5, stream, (uint64_t)i) * (i / BLOCK % 3 ? 1.0f : 1e-3f);
}

/* How far element i of x may be from what it was, by the code's definition. */
static double bound(const char *text, const float *x, int64_t n, int64_t i)
{
    if (!strcmp(text, "bf16")) return fabs(x[i]) / 256;
    if (!strcmp(text, "f16")) return fabs(x[i]) / 2048 + 0x1p-25;
    int bits = 0;
    if (sscanf(text, "qsgd:%d", &bits) != 1) return INFINITY;
    double scale = 0;
    for (int64_t j = i / BLOCK * BLOCK; j < n && j < i / BLOCK * BLOCK + BLOCK; j++)
        scale = fmax(scale, fabs(x[j]));
    return 2 * scale / (bits == 1 ? 1 : (1 << bits) - 2) * (1 + 1e-6);
}

static void check_error(const ll_codec *k, const float *x, const float *y, int64_t n)
{
    double lost = 0, whole = 0;
    for (int64_t i = 0; i < n; i++) {
        lost += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        whole += (double)x[i] * x[i];
    }
    double want = whole > 0 ? sqrt(lost / whole) : 0, got = ll_codec_last(k).error;
    if (fabs(got - want) > 1e-3 * want + 1e-12) fail_msg("error %g, is %g", got, want);
}

static void comes_back(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__ /* blocks are alike */
    enum { LONGEST = 5003 };
#else
    enum { LONGEST = 100003 };
#endif
    static const int64_t sizes[] = {0, 1, 511, 512, 513, LONGEST};
    for (int t = 0; t < TEXTS; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            int64_t n = sizes[s];
            float *x = (float *)malloc(4 * (size_t)(n + 8)),
                  *y = (float *)malloc(4 * (size_t)(n + 8));
            fill(x, n, (uint64_t)s);
            memcpy(y, x, 4 * (size_t)n);
            memset(y + n, 0x7f, 32);
            ll_codec *k = codec(texts[t], "w", n, 1);
            run(k, y, 0);
            for (int64_t i = 0; i < n; i++)
                if (!(fabs((double)x[i] - y[i]) <= bound(texts[t], x, n, i)))
                    fail_msg("%s, n %lld, element %lld: %g became %g", texts[t], (long long)n,
                             (long long)i, x[i], y[i]);
            for (int i = 0; i < 32; i++) assert_int_equal(((char *)(y + n))[i], 0x7f);
            const float *residual = ll_codec_residual(k);
            assert_true(!residual == (n == 0 || strcmp(texts[t], "onebit") != 0));
            for (int64_t i = 0; residual && i < n; i++)
                assert_true(fabsf(y[i] + residual[i] - x[i]) <= 1e-6f * (1 + fabsf(y[i])));
            check_error(k, x, y, n);
            assert_int_equal(ll_codec_last(k).bytes, 0);
            ll_codec_close(k);
            free(x), free(y);
        }
}

/* The mean of each element over many seeds is the element, and errors of neighbours, and of the
 * two that share a random word, do not go together. */
static void right_on_average(void **state)
{
    (void)state;
    enum { N = 600, SEEDS = 4000 };
    static const int bits[] = {1, 2, 4, 8};
    static float x[N], y[N];
    static double sum[N], near[N], far[N], step[N], e[2 * N];
    fill(x, N, 77);
    for (int b = 0; b < 4; b++) {
        char text[16];
        snprintf(text, sizeof text, "qsgd:%d", bits[b]);
        memset(sum, 0, sizeof sum), memset(near, 0, sizeof near), memset(far, 0, sizeof far);
        for (int i = 0; i < N; i++) step[i] = bound(text, x, N, i);
        double square = 0;
        for (int s = 0; s < SEEDS; s++) {
            ll_codec *k = codec(text, "g", N, (uint64_t)s);
            memcpy(y, x, sizeof y);
            run(k, y, 3);
            for (int i = 0; i < N; i++) e[i] = ((double)y[i] - x[i]) / step[i];
            for (int i = 0; i < N; i++) {
                sum[i] += e[i], square += e[i] * e[i];
                near[i] += e[i] * e[i + 1], far[i] += e[i] * e[i + 256];
            }
            ll_codec_close(k);
        }
        double total = 0, beside = 0, apart = 0;
        for (int i = 0; i < N;
             i++) { /* an error's variance is at most a quarter of a step's square */
            if (fabs(sum[i]) / SEEDS > 5.5 * 0.5 / sqrt(SEEDS))
                fail_msg("qsgd:%d element %d: off by %g steps", bits[b], i, sum[i] / SEEDS);
            total += sum[i], beside += near[i], apart += far[i];
        }
        double variance = square / SEEDS / N, many = sqrt((double)SEEDS * N);
        assert_true(fabs(total) < 5 * sqrt(variance) * many);
        assert_true(fabs(beside) < 5 * variance * many * 1.5);
        assert_true(fabs(apart) < 5 * variance * many * 1.5);
    }
}

static uint64_t hash(const float *x, int64_t n)
{
    uint64_t h = 1;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        h = (h ^ u) * 1099511628211u;
    }
    return h;
}

static uint64_t outcome(const char *name, uint64_t seed, int64_t step)
{
    enum { N = 2000 };
    static float y[N];
    fill(y, N, 1);
    ll_codec *k = codec("qsgd:4", name, N, seed);
    run(k, y, step);
    ll_codec_close(k);
    return hash(y, N);
}

static void function_of(void **state)
{
    (void)state;
    uint64_t one = outcome("a", 1, 1);
    assert_true(outcome("a", 1, 1) == one);
    assert_true(outcome("b", 1, 1) != one);
    assert_true(outcome("a", 2, 1) != one);
    assert_true(outcome("a", 1, 2) != one);
}

/* Zeros stay zeros, exactly, wherever zero is a point; blocks of them always. */
static void zeros(void **state)
{
    (void)state;
    enum { N = 1500 };
    for (int t = 0; t < TEXTS; t++) {
        float y[N] = {0};
        bool ends_only = !strcmp(texts[t], "qsgd:1") || !strcmp(texts[t], "onebit");
        if (!ends_only) y[700] = 3;
        y[1400] = strcmp(texts[t], "f16") ? 1e-35f : 0;
        ll_codec *k = codec(texts[t], "z", N, 1);
        run(k, y, 0);
        for (int i = 0; i < 1024; i++) assert_true(y[i] == 0 || i == 700);
        if (!ends_only) assert_true(y[700] == 3);
        ll_codec_close(k);
    }
}

/* What is not finite is seen in the result, spoils its own block at most, and no residual. */
static void not_finite(void **state)
{
    (void)state;
    enum { N = 1500 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int t = 0; t < TEXTS; t++)
        for (int b = 0; b < 3; b++) {
            float x[N], y[N], before[N];
            fill(x, N, 3);
            ll_codec *k = codec(texts[t], "n", N, 1);
            memcpy(y, x, sizeof x);
            run(k, y, 0);
            const float *residual = ll_codec_residual(k);
            if (residual) memcpy(before, residual, sizeof before);
            memcpy(y, x, sizeof x);
            y[600] = bad[b];
            run(k, y, 1);
            assert_false(isfinite(y[600]));
            for (int i = 0; i < N; i++) assert_true(isfinite(y[i]) || i / BLOCK == 1);
            for (int i = BLOCK; residual && i < 2 * BLOCK; i++)
                assert_true(residual[i] == before[i]);
            memcpy(y, x, sizeof x);
            run(k, y, 2);
            for (int i = 0; i < N; i++) assert_true(isfinite(y[i]));
            ll_codec_close(k);
        }
}

/* Residuals are all the state: saved and restored, the steps go on with the same bits. */
static void goes_on(void **state)
{
    (void)state;
    enum { N = 1300 };
    float saved[N], y[N];
    uint64_t want[5];
    ll_codec *k = codec("onebit", "r", N, 9);
    for (int step = 0; step < 10; step++) {
        if (step == 5) memcpy(saved, ll_codec_residual(k), sizeof saved);
        fill(y, N, (uint64_t)step);
        run(k, y, step);
        if (step >= 5) want[step - 5] = hash(y, N);
    }
    ll_codec_close(k);
    k = codec("onebit", "r", N, 9);
    memcpy(ll_codec_residual(k), saved, sizeof saved);
    for (int step = 5; step < 10; step++) {
        fill(y, N, (uint64_t)step);
        run(k, y, step);
        assert_true(hash(y, N) == want[step - 5]);
    }
    ll_codec_close(k);
}

static void bad_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {{"", "unknown codec \"\" (codecs: bf16, "},
                 {"qsdg:4", "did you mean qsgd?"},
                 {"qsgd", "a number is missing; expected qsgd:BITS: 1 to 8 bits"},
                 {"qsgd:", "a number is missing"},
                 {"qsgd:0", "0 is not a whole number from 1 to 8"},
                 {"qsgd:9", "9 is not a whole number from 1 to 8"},
                 {"qsgd:4x", "4x is not"},
                 {"qsgd:99999999999999999999", "is not a whole number"},
                 {"bf16:8", "it has no settings; expected bf16"},
                 {"onebit:1", "it has no settings"},
                 {"int8:zip", "its one setting is huffman; expected int8 or int8:huffman"},
                 {"bf61", "did you mean bf16?"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ll_codec *k = (ll_codec *)&k;
        assert_int_equal(ll_codec_open(cases[i].text, "x", 10, 1, &k), LL_E_ARG);
        assert_null(k);
        if (!strstr(ll_error_text(), cases[i].says) || strchr(ll_error_text(), '\n'))
            fail_msg("\"%s\" gives: %s", cases[i].text, ll_error_text());
    }
    ll_codec *k = NULL;
    assert_int_equal(ll_codec_open("bf16", "x", -1, 1, &k), LL_E_ARG);
    ll_codec_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),  cmocka_unit_test(right_on_average),
        cmocka_unit_test(function_of), cmocka_unit_test(zeros),
        cmocka_unit_test(not_finite),  cmocka_unit_test(goes_on),
        cmocka_unit_test(bad_texts)};
    return cmocka_run_group_tests(tests, start, end);
}
