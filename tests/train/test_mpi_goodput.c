/* mpi: 2
 * A rank that is suspended while the other waits: that time is of no use. */
#include "train/trainer.h"
#include "no_error.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static ll_comm *comm;
static double other; /* the process of rank 1 */

static void pause_ms(int n)
{
    nanosleep(&(struct timespec){n / 1000, n % 1000 * 1000000L}, NULL);
}

static bool stopped(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    FILE *f = fopen(path, "r");
    assert_true(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    fclose(f);
    return state == 'T';
}

static void *suspend(void *arg)
{
    kill((pid_t)other, SIGTSTP);
    while (!stopped((pid_t)other)) pause_ms(1);
    pause_ms(500);
    kill((pid_t)other, SIGCONT);
    return arg;
}

static void on_step(void *context, const ll_train_step *s)
{
    if (s->step == 5)
        assert_int_equal(pthread_create((pthread_t *)context, NULL, suspend, NULL), 0);
}

static ll_goodput train(int steps, const char *parallel, ll_train_opts o)
{
    static const char net[] = "model: {name: mlp, image: 8, width: 16}\n"
                              "data: {name: synthetic, samples: 64}\n"
                              "train: {batch: 4, steps: %d, epochs: 0, threads: 1}\n";
    char out[] = "/tmp/goodput-XXXXXX", text[512];
    ll_run *r;
    ll_train_report report;
    bool lead = ll_comm_rank(comm) == 0;
    if (lead) assert_non_null(mkdtemp(out));
    no_error(ll_ranks_share(comm, out, sizeof out));
    int n = snprintf(text, sizeof text, net, steps);
    snprintf(text + n, sizeof text - (size_t)n, "parallel: {%s}\nout: %s/run\n", parallel, out);
    no_error(ll_run_parse(text, strlen(text), "goodput", &r));
    no_error(ll_run_finish(r));
    o.comm = comm;
    no_error(ll_train(r, &o, &report));
    snprintf(text, sizeof text, "rm -rf %s", out);
    if (lead) assert_int_equal(system(text), 0);
    ll_run_free(r);
    return report.goodput;
}

static void one_is_suspended(void **state)
{
    (void)state;
    pthread_t thread;
    bool lead = ll_comm_rank(comm) == 0;
    other = lead ? 0 : (double)getpid();
    no_error(ll_comm_allreduce(comm, &other, 1, LL_F64, LL_REDUCE_MAX, NULL));
    ll_goodput g = train(3000, "mesh: data=2",
                         (ll_train_opts){.watch = {.context = &thread, .step = on_step}});
    if (!lead) return;
    pthread_join(thread, NULL);
    print_message("%.3f s: useful %.3f, suspended %.3f\n", g.wall, g.useful,
                  g.lost[LL_LOSS_SUSPENDED]);
    assert_true(g.lost[LL_LOSS_SUSPENDED] >= 0.45);
    assert_true(g.useful + g.lost[LL_LOSS_SUSPENDED] <= g.wall);
}

/* A replica that takes several shares of one step does something useful in each. */
static void shares_are_useful(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__ /* with MPICH, whose calls take as long as 2000 do without */
    enum { STEPS = 400 };
#else
    enum { STEPS = 2000 };
#endif
    ll_goodput g =
        train(STEPS, "replicas: 2, consistency: async", (ll_train_opts){.slow_rank = 1, .slow = 8});
    double told = g.useful;
    for (int i = 0; i < LL_N_LOSS; i++) told += g.lost[i];
    print_message("%.3f s: useful %.3f, with what is lost %.3f\n", g.wall, g.useful, told);
    /* of one share in several, most would be missing; ends take a moment that nobody counts */
    assert_true(told <= g.wall && g.wall - told < 0.5 * g.useful);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_is_suspended),
                                       cmocka_unit_test(shares_are_useful)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
