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

static void *suspend(void *arg)
{
    kill((pid_t)other, SIGTSTP);
    pause_ms(500);
    kill((pid_t)other, SIGCONT);
    return arg;
}

static void on_step(void *context, const ll_train_step *s)
{
    if (s->step == 5)
        assert_int_equal(pthread_create((pthread_t *)context, NULL, suspend, NULL), 0);
}

static void one_is_suspended(void **state)
{
    static const char text[] = "model: {name: mlp, image: 8, width: 16}\n"
                               "data: {name: synthetic, samples: 64}\n"
                               "train: {batch: 4, steps: 3000, epochs: 0, threads: 1}\n"
                               "parallel: {mesh: data=2}\n";
    (void)state;
    char out[] = "/tmp/goodput-XXXXXX", word[64];
    pthread_t thread;
    ll_run *r;
    ll_train_report report;
    bool lead = ll_comm_rank(comm) == 0;
    if (lead) assert_non_null(mkdtemp(out));
    no_error(ll_ranks_share(comm, out, sizeof out));
    other = lead ? 0 : (double)getpid();
    no_error(ll_comm_allreduce(comm, &other, 1, LL_F64, LL_REDUCE_MAX, NULL));
    no_error(ll_run_parse(text, strlen(text), "goodput", &r));
    snprintf(word, sizeof word, "out=%s/run", out);
    no_error(ll_run_set(r, word));
    no_error(ll_run_finish(r));
    ll_train_opts o = {.comm = comm, .watch = {.context = &thread, .step = on_step}};
    no_error(ll_train(r, &o, &report));
    if (lead) {
        const ll_goodput *g = &report.goodput;
        pthread_join(thread, NULL);
        print_message("%.3f s: useful %.3f, suspended %.3f\n", g->wall, g->useful,
                      g->lost[LL_LOSS_SUSPENDED]);
        assert_true(g->lost[LL_LOSS_SUSPENDED] >= 0.45);
        assert_true(g->useful + g->lost[LL_LOSS_SUSPENDED] <= g->wall);
        snprintf(word, sizeof word, "rm -rf %s", out);
        assert_int_equal(system(word), 0);
    }
    ll_run_free(r);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_is_suspended)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
