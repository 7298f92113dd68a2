/* Dropout: the fast kernel draws the reference's numbers, for wholes and parts; rates; streams of
 * different places, steps and micro-batches differ. */
#include "kcheck.h"
#include "kern/attr.h"

ll_kernel dropout_ref, dropout_cpu;

static void same_numbers(void **)
{
    const struct {
        ll_shape part, whole;
        int64_t at[LL_MAX_DIMS];
    } cases[] = {{LL_SHAPE(1), LL_SHAPE(1), {0}},
                 {LL_SHAPE(5), LL_SHAPE(9), {3}},
                 {LL_SHAPE(3, 7), LL_SHAPE(3, 7), {0}},
                 {LL_SHAPE(129, 67), LL_SHAPE(129, 67), {0}},
                 {LL_SHAPE(9, 67, 31), LL_SHAPE(20, 67, 31), {7}},
                 {LL_SHAPE(4, 3, 131), LL_SHAPE(9, 8, 140), {5, 2, 9}},
                 {LL_SHAPE(0, 3), LL_SHAPE(5, 3), {5, 0}},
                 {LL_SCALAR, LL_SCALAR, {0}}};
    const double p[] = {0, 0.1, 0.5, 0.999, 1e-9};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; j < 5; j++)
            for (int micro = 0; micro < 3; micro += 2) {
                ll_dropout_attr a = {.p = p[j], .stream = -12345, .whole = cases[i].whole};
                memcpy(a.at, cases[i].at, sizeof a.at);
                kcheck k = {"dropout", dropout_ref, dropout_cpu, .attr = &a, .tolerance = 1e-6};
                k.micro = micro;
                kc_in(&k, kc_normal(cases[i].part, 1, 0));
                kc_out(&k, cases[i].part);
                kc_check(&k);
            }
}

enum { N = 100003 };

static void draw(float *y, int64_t stream, uint64_t step, int micro, double p)
{
    static float x[N];
    for (int i = 0; i < N; i++) x[i] = 1;
    ll_dropout_attr a = {.p = p, .stream = stream, .whole = LL_SHAPE(N)};
    ll_tensor in = {x, LL_F32, LL_SHAPE(N)}, out = {y, LL_F32, LL_SHAPE(N)};
    ll_kcall c = {&a, .n_in = 1, .n_out = 1, .in = &in, .out = &out, .threads = 2};
    c.micro = micro;
    c.seed = 3;
    c.step = step;
    assert_int_equal(dropout_cpu(&c), LL_OK);
}

/* About p of the elements are zero, the rest 1/(1-p). */
static void rate(void **)
{
    static float y[N];
    for (int k = 1; k < 10; k += 4) {
        double p = 0.1 * k;
        int zeros = 0;
        draw(y, 4, 1, 0, p);
        for (int i = 0; i < N; i++) {
            zeros += y[i] == 0;
            assert_true(y[i] == 0 || fabs((double)y[i] - 1 / (1 - p)) < 1e-5);
        }
        assert_true(fabs(zeros / (double)N - p) < 0.006);
    }
}

/* Two independent draws at p = 1/2 agree on about half of the elements. */
static void differ(void **)
{
    static float a[N], b[N];
    draw(a, 4, 1, 0, 0.5);
    for (int i = 0; i < 3; i++) {
        int equal = 0;
        draw(b, i == 0 ? 5 : 4, i == 1 ? 2 : 1, i == 2 ? 1 : 0, 0.5);
        for (int e = 0; e < N; e++) equal += a[e] == b[e];
        assert_true(fabs(equal / (double)N - 0.5) < 0.006);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_numbers), cmocka_unit_test(rate),
                                       cmocka_unit_test(differ)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
