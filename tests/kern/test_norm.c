/* Layer, root-mean-square and batch normalisation: fast kernels against reference kernels. */
#include "kcheck.h"
#include "kern/attr.h"

ll_kernel layernorm_cpu, layernorm_dx_cpu, layernorm_dw_cpu, rmsnorm_cpu, rmsnorm_dx_cpu,
    rmsnorm_dw_cpu, batchnorm_cpu, batchnorm_grad_cpu;
ll_scratch col_sums_cpu_scratch, batchnorm_cpu_scratch;

static const int64_t sizes[][2] = {{1, 1},    {1, 5},   {7, 1},     {5, 17},
                                   {129, 63}, {67, 64}, {1000, 37}, {3, 1031}};
enum { N_SIZE = sizeof sizes / sizeof *sizes };
static const ll_norm_attr attr = {1e-5};

static void layernorm(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int far = 0; far < 2; far++) {
            int64_t r = sizes[i][0], n = sizes[i][1];
            /* A mean of 100 deviations: one-pass variance would lose its digits. A single value
             * has no deviation to scale by. */
            kcheck k = {"layernorm", NULL, layernorm_cpu, .attr = &attr};
            k.tolerance = far && n > 1 ? 5e-5 : 1e-5;
            kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, far ? 100 : 0));
            kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
            kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
            kc_out(&k, LL_SHAPE(r, n));
            kc_out(&k, LL_SHAPE(r));
            kc_out(&k, LL_SHAPE(r));
            kc_check(&k);
        }
}

static void layernorm_dx(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        int64_t r = sizes[i][0], n = sizes[i][1];
        kcheck k = {"layernorm_dx", NULL, layernorm_dx_cpu, .tolerance = 1e-5};
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r), 0.1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r), 0.1, 1));
        kc_out(&k, LL_SHAPE(r, n));
        kc_check(&k);
    }
}

static void layernorm_dw(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        int64_t r = sizes[i][0], n = sizes[i][1];
        kcheck k = {"layernorm_dw", NULL, layernorm_dw_cpu, col_sums_cpu_scratch,
                    .tolerance = 1e-5};
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r), 0.1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r), 0.1, 1));
        kc_out(&k, LL_SHAPE(n));
        kc_out(&k, LL_SHAPE(n));
        kc_check(&k);
    }
}

static void rmsnorm(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        int64_t r = sizes[i][0], n = sizes[i][1];
        kcheck k = {"rmsnorm", NULL, rmsnorm_cpu, .attr = &attr, .tolerance = 2e-6};
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0.5));
        kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
        kc_out(&k, LL_SHAPE(r, n));
        kc_out(&k, LL_SHAPE(r));
        kc_check(&k);

        kcheck x = {"rmsnorm_dx", NULL, rmsnorm_dx_cpu, .tolerance = 1e-5};
        kc_in(&x, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&x, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&x, kc_normal(LL_SHAPE(n), 1, 0));
        kc_in(&x, kc_normal(LL_SHAPE(r), 0.1, 1));
        kc_out(&x, LL_SHAPE(r, n));
        kc_check(&x);

        kcheck w = {"rmsnorm_dw", NULL, rmsnorm_dw_cpu, col_sums_cpu_scratch, .tolerance = 1e-5};
        kc_in(&w, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&w, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&w, kc_normal(LL_SHAPE(r), 0.1, 1));
        kc_out(&w, LL_SHAPE(n));
        kc_check(&w);
    }
}

static void batchnorm(void **)
{
    for (int i = 0; i < N_SIZE; i++)
        for (int far = 0; far < 2; far++) {
            int64_t r = sizes[i][0], n = sizes[i][1];
            kcheck k = {"batchnorm", NULL, batchnorm_cpu, batchnorm_cpu_scratch, .attr = &attr};
            k.tolerance = far ? 1e-4 : 2e-5;
            kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, far ? 100 : 0));
            kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
            kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
            kc_out(&k, LL_SHAPE(r, n));
            kc_out(&k, LL_SHAPE(n));
            kc_out(&k, LL_SHAPE(n));
            kc_check(&k);
        }
}

static void batchnorm_grad(void **)
{
    for (int i = 0; i < N_SIZE; i++) {
        int64_t r = sizes[i][0], n = sizes[i][1];
        kcheck k = {"batchnorm_grad", NULL, batchnorm_grad_cpu, col_sums_cpu_scratch,
                    .attr = &attr};
        k.tolerance = 1e-5;
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(r, n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(n), 1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(n), 0.1, 0));
        kc_in(&k, kc_normal(LL_SHAPE(n), 0.1, 1));
        kc_out(&k, LL_SHAPE(r, n));
        kc_out(&k, LL_SHAPE(n));
        kc_out(&k, LL_SHAPE(n));
        kc_check(&k);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layernorm),    cmocka_unit_test(layernorm_dx),
        cmocka_unit_test(layernorm_dw), cmocka_unit_test(rmsnorm),
        cmocka_unit_test(batchnorm),    cmocka_unit_test(batchnorm_grad)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
