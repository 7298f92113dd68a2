/* mpi: 2 3
 * What befalls one rank of a session alone: data that are missing, which all hear of and may mend;
 * a label that is none, which ends the work of all. Nobody waits for anybody, and no step is taken
 * for another. */
#include "loopline_mpi.h"
#include "no_error.h"

#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 6, CLASSES = 4, WIDTH = 3 };

static void test_one_rank_alone(void **state)
{
    (void)state;
    ll_comm *c;
    no_error(ll_comm_from_mpi(MPI_COMM_WORLD, &(ll_comm_opts){.timeout_s = 60, .table = ""}, &c));
    const int n = ll_comm_size(c), last = ll_comm_rank(c) == n - 1;
    char mesh[32];
    snprintf(mesh, sizeof mesh, "data=%d", n);
    ll_graph *g = ll_graph_new("alone");
    ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(ROWS, WIDTH));
    ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(ROWS));
    ll_val logits = ll_linear(g, "fc", x, CLASSES, true);
    ll_minimize(g, ll_mean(g, ll_cross_entropy(g, logits, y)), &(ll_optim){.name = "sgd"});
    ll_session *s;
    no_error(ll_session_open(g, &(ll_session_opts){.comm = c, .mesh = mesh}, &s));
    float rows[ROWS * WIDTH] = {1, 2, 3};
    int32_t labels[ROWS] = {0};
    no_error(ll_session_set(s, "y", 0, labels, sizeof labels / (size_t)n));
    if (!last) no_error(ll_session_set(s, "x", 0, rows, sizeof rows / (size_t)n));
    assert_int_equal(ll_session_run(s, 0.1), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "batch data x was never set"));
    if (last) no_error(ll_session_set(s, "x", 0, rows, sizeof rows / (size_t)n));
    no_error(ll_session_run(s, 0.1));
    if (last) labels[0] = CLASSES;
    no_error(ll_session_set(s, "y", 0, labels, sizeof labels / (size_t)n));
    assert_int_equal(ll_session_run(s, 0.1), last ? LL_E_ARG : LL_E_COMM);
    assert_non_null(strstr(ll_error_text(), "label of row 0 is 4, expected 0 to 3"));
    labels[0] = 0;
    if (last) no_error(ll_session_set(s, "y", 0, labels, sizeof labels / (size_t)n));
    assert_int_not_equal(ll_session_run(s, 0.1), LL_OK);
    ll_session_close(s);
    ll_graph_free(g);
    ll_comm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_rank_alone)};
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return failed;
}
