/* Learning-rate schedules: shapes, warm-up, scaling for the batch. */
#include "run/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static ll_schedule plain(ll_lr_shape shape)
{
    return (ll_schedule){.lr = 0.5,
                         .shape = shape,
                         .step_gamma = 0.1,
                         .scale_rule = LL_SCALE_none,
                         .base_batch = 256};
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want) + 1e-15)) fail_msg("%.17g, want %.17g", got, want);
}

static void constant(void **state)
{
    (void)state;
    ll_schedule s = plain(LL_LR_constant);
    for (int t = 0; t < 7; t++) near(ll_lr_at(&s, 64, 7, t), 0.5);
}

static void steps(void **state)
{
    (void)state;
    ll_schedule s = plain(LL_LR_step);
    s.step_size = 10;
    near(ll_lr_at(&s, 64, 40, 0), 0.5);
    near(ll_lr_at(&s, 64, 40, 9), 0.5);
    near(ll_lr_at(&s, 64, 40, 10), 0.05);
    near(ll_lr_at(&s, 64, 40, 39), 0.0005);
    s.step_size = 0;
    s.milestones = (ll_numbers){2, {0.5, 30}}; /* half of 40 steps, and step 30 */
    near(ll_lr_at(&s, 64, 40, 19), 0.5);
    near(ll_lr_at(&s, 64, 40, 20), 0.05);
    near(ll_lr_at(&s, 64, 40, 29), 0.05);
    near(ll_lr_at(&s, 64, 40, 30), 0.005);
}

static void cosine_and_linear(void **state)
{
    (void)state;
    ll_schedule s = plain(LL_LR_cosine);
    s.min_lr = 0.1;
    near(ll_lr_at(&s, 64, 100, 0), 0.5);
    near(ll_lr_at(&s, 64, 100, 50), 0.3);
    near(ll_lr_at(&s, 64, 100, 25), 0.1 + 0.4 * (1 + sqrt(0.5)) / 2);
    near(ll_lr_at(&s, 64, 100, 100), 0.1); /* past the end it stays */
    near(ll_lr_at(&s, 64, 100, 1000), 0.1);
    s.shape = LL_LR_linear;
    near(ll_lr_at(&s, 64, 100, 0), 0.5);
    near(ll_lr_at(&s, 64, 100, 25), 0.4);
    near(ll_lr_at(&s, 64, 100, 99), 0.104);
    s.min_lr = 0;
    assert_true(ll_lr_at(&s, 64, 100, 99) > 0); /* the last step still learns */
}

static void warmup(void **state)
{
    (void)state;
    ll_schedule s = plain(LL_LR_linear);
    s.warmup = 4;
    for (int t = 0; t < 4; t++) near(ll_lr_at(&s, 64, 14, t), 0.5 * (t + 1) / 4);
    near(ll_lr_at(&s, 64, 14, 4), 0.5);
    near(ll_lr_at(&s, 64, 14, 9), 0.25);
    s.warmup = 0.2; /* of 20 steps */
    near(ll_lr_at(&s, 64, 20, 0), 0.125);
    near(ll_lr_at(&s, 64, 20, 3), 0.5);
    near(ll_lr_at(&s, 64, 20, 12), 0.25);
    s.warmup = 100; /* longer than the run */
    near(ll_lr_at(&s, 64, 20, 19), 0.1);
    s.warmup = 0.5;
    near(ll_lr_at(&s, 64, 1, 0), 0.5); /* of a single step: none */
    s.warmup = 2, s.min_lr = 0.1;      /* which the rate comes to after the last step */
    static const double few[] = {0.25, 0.5, 0.5, 0.1};
    for (int t = 0; t < 4; t++) near(ll_lr_at(&s, 64, 3, t), few[t]);
}

static void scaling(void **state)
{
    (void)state;
    ll_schedule s = plain(LL_LR_cosine);
    s.min_lr = 0.1;
    s.scale_rule = LL_SCALE_linear;
    near(ll_lr_at(&s, 1024, 100, 0), 2.0);
    near(ll_lr_at(&s, 1024, 100, 100), 0.4);
    near(ll_lr_at(&s, 64, 100, 0), 0.125);
    s.scale_rule = LL_SCALE_sqrt;
    near(ll_lr_at(&s, 1024, 100, 0), 1.0);
    near(ll_lr_at(&s, 64, 100, 0), 0.25);
    s.warmup = 10;
    near(ll_lr_at(&s, 64, 100, 4), 0.125);
}

/* All are finite, positive and at most the peak. */
static void every_shape(void **state)
{
    (void)state;
    static const ll_lr_shape all[] = {LL_SCHEDULES(LL_LR_OF)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ll_schedule s = plain(all[i]);
        s.warmup = 3;
        s.step_size = 7;
        for (int t = 0; t < 50; t++) {
            double lr = ll_lr_at(&s, 64, 50, t);
            assert_true(lr > 0 && lr <= 0.5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant), cmocka_unit_test(steps),   cmocka_unit_test(cosine_and_linear),
        cmocka_unit_test(warmup),   cmocka_unit_test(scaling), cmocka_unit_test(every_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
