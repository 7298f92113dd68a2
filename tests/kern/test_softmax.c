/* Softmax and cross-entropy: fast kernels against reference kernels, extreme logits, bad labels. */
#include "kcheck.h"

ll_kernel softmax_cpu, cross_entropy_cpu, cross_entropy_grad_cpu, correct_ref, correct_cpu;

static const int64_t sizes[][2] = {{1, 1},   {3, 1},    {1, 7},    {5, 17},
                                   {67, 10}, {2, 1031}, {301, 64}, {0, 5}};
enum { N_SIZE = sizeof sizes / sizeof *sizes };
static const double scales[] = {1, 30, 1e4};

static void softmax(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int s = 0; s < 3; s++) {
            kcheck k = {"softmax", NULL, softmax_cpu, .tolerance = 1e-6};
            ll_shape x = LL_SHAPE(sizes[i][0], sizes[i][1]);
            kc_in(&k, kc_normal(x, scales[s], scales[s]));
            kc_out(&k, x);
            kc_check(&k);
        }
}

static void cross_entropy(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int s = 0; s < 3; s++) {
            kcheck k = {"cross_entropy", NULL, cross_entropy_cpu, .tolerance = 1e-6};
            kc_in(&k, kc_normal(LL_SHAPE(sizes[i][0], sizes[i][1]), scales[s], -scales[s]));
            kc_in(&k, kc_below(LL_SHAPE(sizes[i][0]), (int)sizes[i][1]));
            kc_out(&k, LL_SHAPE(sizes[i][0]));
            kc_out(&k, LL_SHAPE(sizes[i][0]));
            kc_check(&k);
        }
}

/* lse is that of the logits, as the forward kernel gives it. */
static void cross_entropy_grad(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int s = 0; s < 3; s++) {
            int64_t rows = sizes[i][0], v = sizes[i][1];
            kcheck k = {"cross_entropy_grad", NULL, cross_entropy_grad_cpu, .tolerance = 2e-5};
            kc_in(&k, kc_normal(LL_SHAPE(rows), 1, 0));
            kc_in(&k, kc_normal(LL_SHAPE(rows, v), scales[s], 0));
            kc_in(&k, kc_below(LL_SHAPE(rows), (int)v));
            kc_in(&k, kc_normal(LL_SHAPE(rows), 1, 0));
            ll_tensor loss = kc_normal(LL_SHAPE(rows), 1, 0), out[2] = {loss, k.in[3]};
            ll_kcall c = {.n_in = 2, .n_out = 2, .in = &k.in[1], .out = out};
            assert_int_equal(cross_entropy_cpu(&c), LL_OK);
            free(loss.data);
            kc_out(&k, LL_SHAPE(rows, v));
            kc_check(&k);
        }
}

static void correct(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        kcheck k = {"correct", correct_ref, correct_cpu, .tolerance = 0};
        ll_tensor x = kc_normal(LL_SHAPE(sizes[i][0], sizes[i][1]), 1, 0);
        int64_t n = ll_numel(&x.shape);
        for (int64_t e = 0; e < n; e++) { /* many ties, some NaN */
            ((float *)x.data)[e] = roundf(((float *)x.data)[e]);
            if (e % 13 == 5) ((float *)x.data)[e] = NAN;
        }
        kc_in(&k, x);
        kc_in(&k, kc_below(LL_SHAPE(sizes[i][0]), (int)sizes[i][1]));
        kc_out(&k, LL_SHAPE(sizes[i][0]));
        kc_check(&k);
    }
}

/* Ties: the first largest wins. */
static void correct_ties(void **)
{
    float x[] = {1, 2, 2, 0, 0, 0}, y[2] = {NAN, NAN};
    int32_t right[] = {1, 0}, wrong[] = {2, 1};
    ll_tensor out = {y, LL_F32, LL_SHAPE(2)};
    ll_tensor in[2] = {{x, LL_F32, LL_SHAPE(2, 3)}, {right, LL_I32, LL_SHAPE(2)}};
    ll_kcall c = {.n_in = 2, .n_out = 1, .in = in, .out = &out, .threads = 1};
    assert_int_equal(correct_cpu(&c), LL_OK);
    assert_true(y[0] == 1 && y[1] == 1);
    in[1].data = wrong;
    assert_int_equal(correct_cpu(&c), LL_OK);
    assert_true(y[0] == 0 && y[1] == 0);
}

static void bad_labels(void **)
{
    float x[12] = {0}, a[12], b[3];
    ll_kernel *const f[] = {cross_entropy_cpu, correct_ref, correct_cpu};
    for (int i = 0; i < 3; i++)
        for (int bad = -1; bad <= 4; bad += 5) {
            int32_t label[3] = {0, 3, bad};
            ll_tensor in[2] = {{x, LL_F32, LL_SHAPE(3, 4)}, {label, LL_I32, LL_SHAPE(3)}};
            ll_tensor out[2] = {{a, LL_F32, LL_SHAPE(3)}, {b, LL_F32, LL_SHAPE(3)}};
            ll_kcall c = {.n_in = 2, .n_out = 2, .in = in, .out = out, .threads = 2};
            assert_int_equal(f[i](&c), LL_E_ARG);
            char want[80];
            snprintf(want, sizeof want, "bad argument: label of row 2 is %d, expected 0 to 3", bad);
            assert_string_equal(ll_error_text(), want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(softmax),
                                       cmocka_unit_test(cross_entropy),
                                       cmocka_unit_test(cross_entropy_grad),
                                       cmocka_unit_test(correct),
                                       cmocka_unit_test(correct_ties),
                                       cmocka_unit_test(bad_labels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
