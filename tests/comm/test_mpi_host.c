/* mpi: 1 2 3
 * A program that uses MPI itself: its communicators, by C and Fortran handle, its own messages at
 * the same time, and MPI goes on after ours is closed. */
#include "collectives.h"
#include "loopline_mpi.h"

enum { N = 2000 };

static void sum_on(ll_comm *c)
{
    float x[N];
    for (int k = 0; k < 3; k++) {
        fill(x, LL_F32, ll_comm_rank(c), 0, N);
        OK(ll_comm_allreduce(c, x, N, LL_F32, LL_REDUCE_SUM, NULL));
        for (int64_t i = 0; i < N; i++)
            must_be(x, LL_F32, i, combined(ll_comm_size(c), i, LL_REDUCE_SUM), "host");
    }
}

static void c_handle(void **state)
{
    (void)state;
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm reversed;
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
    ll_comm *c;
    OK(ll_comm_from_mpi(reversed, &(ll_comm_opts){.timeout_s = 60}, &c));
    assert_int_equal(ll_comm_rank(c), size - 1 - rank);
    assert_int_equal(ll_comm_size(c), size);
    MPI_Comm_free(&reversed); /* ours is a duplicate */
    /* A message of the program with the tag of our first collective, under way meanwhile. */
    int from = -1, right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Request pair[2];
    MPI_Irecv(&from, 1, MPI_INT, left, 0, MPI_COMM_WORLD, &pair[0]);
    sum_on(c);
    MPI_Isend(&rank, 1, MPI_INT, right, 0, MPI_COMM_WORLD, &pair[1]);
    sum_on(c);
    MPI_Status statuses[2];
    MPI_Waitall(2, pair, statuses);
    assert_int_equal(from, left);
    ll_comm_close(c);
}

static void fortran_handle(void **state)
{
    (void)state;
    ll_comm *c, *with_thread;
    OK(ll_comm_from_fortran(MPI_Comm_c2f(MPI_COMM_WORLD), &(ll_comm_opts){.timeout_s = 60}, &c));
    sum_on(c);
    OK(ll_comm_from_fortran(MPI_Comm_c2f(MPI_COMM_SELF), NULL, &with_thread));
    assert_int_equal(ll_comm_size(with_thread), 1);
    sum_on(with_thread);
    ll_comm_close(with_thread);
    ll_comm_close(c);
}

/* This program asked for less than a thread of ours needs. */
static void thread_refused(void **state)
{
    (void)state;
    int size, level;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Query_thread(&level);
    if (size == 1 || level >= MPI_THREAD_SERIALIZED) skip();
    ll_comm *c;
    assert_int_equal(ll_comm_from_mpi(MPI_COMM_WORLD, &(ll_comm_opts){.thread = true}, &c),
                     LL_E_COMM);
    assert_non_null(strstr(ll_error_text(), "MPI_THREAD_SERIALIZED"));
    assert_null(c);
}

static void none_and_two_groups(void **state)
{
    (void)state;
    ll_comm *c;
    int rank, size;
    assert_int_equal(ll_comm_from_mpi(MPI_COMM_NULL, NULL, &c), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "MPI_COMM_NULL"));
    assert_null(c);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size == 1) return;
    MPI_Comm half, both;
    MPI_Comm_split(MPI_COMM_WORLD, rank > 0, 0, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank == 0, 7, &both);
    assert_int_equal(ll_comm_from_mpi(both, NULL, &c), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "MPI_Intercomm_merge"));
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(c_handle), cmocka_unit_test(fortran_handle),
                                       cmocka_unit_test(thread_refused),
                                       cmocka_unit_test(none_and_two_groups)};
    MPI_Init(&argc, &argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL), any = 1, done = 1;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (MPI_Finalized(&done) != MPI_SUCCESS || done) any = 1; /* not ours to end */
    MPI_Finalize();
    return any != 0;
}
