/* What measurements say, one of which was held up; who has the cores. */
#include "base/now.h"
#include "base/process.h"
#include "base/stats.h"
#include "base/waits.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { MOST = 33, WIDTH = 3 };

static double took(int i) /* 1 and a little */
{
    return 1 + 0.01 * (i * 7 % 10);
}

static void one_stall(void **state)
{
    (void)state;
    for (int n = 2; n <= MOST; n++)
        for (int held_up = 0; held_up < n; held_up++) {
            double v[MOST];
            for (int i = 0; i < n; i++) v[i] = i == held_up ? 1000 : took(i);
            double t = ll_typical(v, n);
            if (t < 1 || t > 1.1) fail_msg("%d, of which %d is held up: %g", n, held_up, t);
        }
}

/* A pass is held up in one kernel: none of the numbers of that pass counts. */
static void one_stall_of_rows(void **state)
{
    (void)state;
    for (int n = 3; n <= MOST; n++)
        for (int held_up = 0; held_up < n; held_up++) {
            double room[MOST][WIDTH + 1], *rows[MOST], mean[WIDTH];
            for (int i = 0; i < n; i++) {
                rows[i] = room[i];
                for (int k = 1; k <= WIDTH; k++) rows[i][k] = took(i + k);
                if (i == held_up) rows[i][1 + i % WIDTH] = 1000;
                rows[i][0] = 0;
                for (int k = 1; k <= WIDTH; k++) rows[i][0] += rows[i][k];
            }
            ll_typical_row(rows, n, WIDTH, mean);
            for (int k = 0; k < WIDTH; k++)
                if (mean[k] < 1 || mean[k] > 1.1)
                    fail_msg("%d rows, of which %d is held up: %g", n, held_up, mean[k]);
        }
}

static void alone(void **state)
{
    (void)state;
    double v[] = {3}, row[] = {9, 2, 7}, *rows[] = {row}, mean[2];
    assert_true(ll_typical(v, 1) == 3);
    ll_typical_row(rows, 1, 2, mean);
    assert_true(mean[0] == 2 && mean[1] == 7);
}

/* Times that others held up do not count, if there are enough that they did not. */
static void held_up(void **state)
{
    (void)state;
    int64_t own;
    double a[] = {5, 2, 9, 2.5, 3}, b[] = {3, 0, 7, 0.1, 0}, few[] = {5, 2, 9}, h[] = {3, 0, 8};
    assert_true(ll_unheld(a, b, 5, &own) == 2.5 && own == 3);
    assert_true(isnan(ll_unheld(few, h, 3, &own)) && own == 1);
    double two[] = {4, 2}, none[] = {0, 0};
    assert_true(ll_unheld(two, none, 2, &own) == 3 && own == 2);
    assert_true(isnan(ll_unheld(two, none, 0, &own)) && own == 0);
}

/* Beside as many others as there are cores and one more a thread waits for its turns. */
static void waits(void **state)
{
    (void)state;
    int n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    LL_OWN(ll_waits) w = ll_waits_open(1);
    if (!w) skip();
    assert_true(ll_waits_since(NULL) == 0 && ll_waits_left(NULL, 3) == 3);
    assert_true(ll_waits_left(w, 1e3) > 900 && ll_waits_left(w, 1e3) <= 1e3);
    double waited = 0;
    for (int round = 0; waited == 0 && round < 20; round++) {
        pid_t children[n + 1];
        for (int i = 0; i <= n; i++)
            if ((children[i] = fork()) == 0)
                for (;;) continue;
        for (double end = ll_now() + 0.2; ll_now() < end;) continue;
        waited = ll_waits_since(w);
        for (int i = 0; i <= n; i++) kill(children[i], SIGKILL), waitpid(children[i], NULL, 0);
    }
    assert_true(waited > 0 && waited < 60);
}

/* What this process works is in both accounts; that of all is by ticks. */
static void cores(void **state)
{
    (void)state;
    ll_core_time from = ll_core_time_now(), now = from;
    if (isnan(from.all)) skip();
    while (now.own - from.own < 0.2) now = ll_core_time_now();
    assert_true(now.when > from.when && now.all - from.all > 0.1);
}

static void shares(void **state)
{
    (void)state;
    double n = (double)sysconf(_SC_NPROCESSORS_ONLN);
    assert_true(ll_others_share(0, 1) == 0 && ll_others_share(0, 2 * n) == 0);
    assert_true(ll_others_share(n - 1, 1) == 0); /* on cores that were free */
    assert_true(fabs(ll_others_share(n - 0.25, 1) - 0.75) < 1e-9);
    assert_true(fabs(ll_others_share(n / 2, n) - 0.5) < 1e-9);
    assert_true(ll_others_share(n + 1, 1) == 1 && isnan(ll_others_share(NAN, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stall), cmocka_unit_test(one_stall_of_rows),
        cmocka_unit_test(alone),     cmocka_unit_test(held_up),
        cmocka_unit_test(waits),     cmocka_unit_test(cores),
        cmocka_unit_test(shares)};
    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
