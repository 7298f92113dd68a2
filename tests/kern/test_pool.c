/* Pooling on the CPU against the reference kernels: random odd windows, strides and paddings (also
 * below zero), 0 to 3 images, 1 to 17 channels, one to three threads, ties, NaN and -inf. */
#include "kern/attr.h"
#include "kern/kern.h"
#include "base/rng.h"
#include "solve.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

ll_kernel max_pool_ref, max_pool_grad_ref, max_pool_pick_ref, avg_pool_ref, avg_pool_grad_ref;
ll_kernel max_pool_cpu, max_pool_pick_cpu, avg_pool_cpu;
extern const ll_solver pool_grad_cpu[];

static ll_err pool_grad(const ll_kcall *c)
{
    return ll_solve(pool_grad_cpu, c);
}

enum { SEED = 12 };

static ll_tensor make(ll_dtype type, ll_shape shape, uint64_t stream)
{
    int64_t n = ll_numel(&shape);
    ll_tensor t = {malloc((size_t)n * 4 + (n == 0)), type, shape};
    for (int64_t i = 0; i < n; i++)
        ll_store(t.data, type, i, ll_normal_at(SEED, stream, (uint64_t)i));
    return t;
}

static int64_t draw(uint64_t *at, int64_t from, int64_t to)
{
    return from + (int64_t)ll_below_at(SEED, 77, (*at)++, (uint64_t)(to - from + 1));
}

/* Both kernels on the same operands; results must agree to a few units in the last place. */
static void run(ll_kernel *ref, ll_kernel *cpu, const ll_pool_attr *a, const ll_tensor *in,
                int n_in, const ll_tensor *like, int n_out)
{
    for (int threads = 1; threads <= 3; threads++) {
        ll_tensor want[2], got[2];
        for (int i = 0; i < n_out; i++) {
            want[i] = make(like[i].dtype, like[i].shape, 8);
            got[i] = make(like[i].dtype, like[i].shape, 9);
            size_t bytes = 4 * (size_t)ll_numel(&like[i].shape);
            memset(want[i].data, 0x7f, bytes);
            memset(got[i].data, 0xff, bytes);
        }
        ll_kcall c = {
            .attr = a, .n_in = n_in, .n_out = n_out, .in = in, .out = want, .threads = threads};
        assert_int_equal(ref(&c), LL_OK);
        c.out = got;
        assert_int_equal(cpu(&c), LL_OK);
        for (int i = 0; i < n_out; i++) {
            for (int64_t e = 0; e < ll_numel(&like[i].shape); e++) {
                double x = ll_load(got[i].data, got[i].dtype, e);
                double y = ll_load(want[i].data, want[i].dtype, e);
                bool same = x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= 1e-6 * (1 + fabs(y));
                if (!same) fail_msg("result %d element %d: %g, want %g", i, (int)e, x, y);
            }
            free(want[i].data);
            free(got[i].data);
        }
    }
}

static void check(const ll_pool_attr *a, ll_tensor x)
{
    int64_t o[2];
    for (int k = 0; k < 2; k++) {
        int64_t room = x.shape.d[1 + k] + a->pad[2 * k] + a->pad[2 * k + 1] - a->size[k];
        o[k] = room < 0 ? 0 : room / a->stride[k] + 1;
    }
    ll_tensor y[2] = {make(LL_F32, LL_SHAPE(x.shape.d[0], o[0], o[1], x.shape.d[3]), 2),
                      make(LL_I32, LL_SHAPE(x.shape.d[0], o[0], o[1], x.shape.d[3]), 3)};
    run(max_pool_ref, max_pool_cpu, a, &x, 1, y, 2);
    run(avg_pool_ref, avg_pool_cpu, a, &x, 1, y, 1);
    run(avg_pool_grad_ref, pool_grad, a, y, 1, &x, 1);
    for (int64_t i = 0; i < ll_numel(&y[1].shape); i++) /* any place, also none */
        ((int32_t *)y[1].data)[i] =
            (int32_t)ll_below_at(SEED, 5, (uint64_t)i, (uint64_t)(a->size[0] * a->size[1] + 1)) - 1;
    ll_tensor picked[2] = {x, y[1]};
    run(max_pool_pick_ref, max_pool_pick_cpu, a, picked, 2, y, 1);
    run(max_pool_grad_ref, pool_grad, a, y, 2, &x, 1);
    free(y[0].data);
    free(y[1].data);
}

static void test_random(void **state)
{
    (void)state;
    uint64_t at = 0;
    printf("seed %d\n", SEED);
    for (int k = 0; k < 120; k++) {
        ll_shape s = LL_SHAPE(k % 6 ? draw(&at, 1, 3) : 0, draw(&at, 1, 9), draw(&at, 1, 9),
                              draw(&at, 1, 17));
        ll_pool_attr a = {.image = {s.d[1], s.d[2]}};
        for (int i = 0; i < 2; i++) {
            a.size[i] = draw(&at, 1, 4);
            a.stride[i] = draw(&at, 1, 4);
            for (int j = 0; j < 2; j++) a.pad[2 * i + j] = draw(&at, -1, 3);
        }
        ll_tensor x = make(LL_F32, s, 1);
        check(&a, x);
        free(x.data);
    }
}

/* Equal elements: the first counts. NaN wins over everything, -inf loses but counts as an element.
 */
static void test_special(void **state)
{
    (void)state;
    ll_pool_attr a = {{3, 3}, {2, 2}, {1, 1, 1, 1}, {9, 7}};
    ll_tensor x = make(LL_F32, LL_SHAPE(2, 9, 7, 5), 1);
    float *e = (float *)x.data;
    for (int64_t i = 0; i < ll_numel(&x.shape); i++) {
        e[i] = floorf(e[i]);
        if (i % 31 == 0) e[i] = NAN;
        if (i < 150) e[i] = -INFINITY;
    }
    check(&a, x);
    free(x.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_special)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
