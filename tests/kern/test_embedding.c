/* Embedding and its transpose: fast kernels against reference kernels, parts, bad indices. */
#include "kcheck.h"
#include "kern/attr.h"

ll_kernel embedding_ref, embedding_cpu, embedding_grad_ref, embedding_grad_cpu;

/* rows of the table, width, indices */
static const int64_t sizes[][3] = {{1, 1, 1},     {7, 3, 5},      {5, 16, 0},
                                   {257, 33, 91}, {11, 1000, 67}, {3, 64, 500}};
enum { N_SIZE = sizeof sizes / sizeof *sizes };

/* The same operands in f64, as whole numbers: sums are exact. */
static void widen(kcheck *k)
{
    ll_tensor wide = {NULL, LL_F64, k->in[0].shape};
    wide.data = malloc(kc_bytes(&wide) + 1);
    for (int64_t i = 0; i < ll_numel(&wide.shape); i++)
        ((double *)wide.data)[i] = rint(1e6 * (double)((float *)k->in[0].data)[i]);
    free(k->in[0].data);
    k->in[0] = wide;
    k->out[0].dtype = LL_F64;
    k->tolerance = 0;
}

static void check(const int64_t *s, ll_embedding_attr attr, int below, bool f64)
{
    kcheck k = {"embedding", embedding_ref, embedding_cpu, .attr = &attr, .tolerance = 0};
    kc_in(&k, kc_normal(LL_SHAPE(s[0], s[1]), 1, 0));
    kc_in(&k, kc_below(LL_SHAPE(s[2]), below));
    kc_out(&k, LL_SHAPE(s[2], s[1]));
    if (f64) widen(&k);
    kc_check(&k);
    attr.v = s[0];
    kcheck g = {"embedding_grad", embedding_grad_ref, embedding_grad_cpu, .attr = &attr,
                .tolerance = 1e-5};
    kc_in(&g, kc_normal(LL_SHAPE(s[2], s[1]), 1, 0));
    kc_in(&g, kc_below(LL_SHAPE(s[2]), below));
    kc_out(&g, LL_SHAPE(s[0], s[1]));
    if (f64) widen(&g);
    kc_check(&g);
}

static void whole(void **)
{
    for (int i = 0; i < 2 * N_SIZE; i++)
        check(sizes[i / 2], (ll_embedding_attr){0}, (int)sizes[i / 2][0], i % 2);
}

static void part(void **)
{
    for (int i = 0; i < 2 * N_SIZE; i++)
        check(sizes[i / 2], (ll_embedding_attr){.from = 2, .part = sizes[i / 2][0] + 5},
              (int)sizes[i / 2][0] + 5, i % 2);
}

/* Of a whole table of 4 rows, and of 4 of 7. */
static void bad_index(void **)
{
    float table[12] = {0}, y[9];
    ll_kernel *const f[] = {embedding_ref, embedding_cpu, embedding_grad_ref, embedding_grad_cpu};
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 2; k++) {
            int all = i < 4 ? 4 : 7, bad = k ? all : -1;
            int32_t index[3] = {3, bad, 0};
            bool grad = i % 4 >= 2;
            ll_embedding_attr attr = {.v = grad ? 4 : 0, .part = i < 4 ? 0 : 7};
            ll_tensor big = {table, LL_F32, LL_SHAPE(4, 3)}, rows = {y, LL_F32, LL_SHAPE(3, 3)};
            ll_tensor in[2] = {grad ? rows : big, {index, LL_I32, LL_SHAPE(3)}};
            ll_tensor out = grad ? big : rows;
            ll_kcall c = {&attr, .n_in = 2, .n_out = 1, .in = in, .out = &out, .threads = 2};
            assert_int_equal(f[i % 4](&c), LL_E_ARG);
            char want[80];
            snprintf(want, sizeof want, "bad argument: index 1 is %d, expected 0 to %d", bad,
                     all - 1);
            assert_string_equal(ll_error_text(), want);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole), cmocka_unit_test(part),
                                       cmocka_unit_test(bad_index)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
