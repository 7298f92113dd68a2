/* mpi: 1 2 3 4
 * A failure on any rank is the same failure on every rank. */
#include "comm/comm.h"
#include "comm/job.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static ll_comm *comm;

static ll_err fail_at(const char *text)
{
    FAIL(LL_E_IO, "%s", text);
}

static void no_failure(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) assert_int_equal(ll_comm_agree(comm, LL_OK), LL_OK);
}

/* The ranks of a set fail, each with its own message; the lowest one's is everyone's. */
static void each_set_of_ranks(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    for (int set = 1; set < 1 << size; set++) {
        char mine[64], wanted[64];
        int who = __builtin_ctz((unsigned)set);
        snprintf(mine, sizeof mine, "shard-%d.bin: magic is 0, want 20240520", rank);
        int at = rank == who ? 0 : snprintf(wanted, sizeof wanted, "rank %d: ", who);
        snprintf(wanted + at, sizeof wanted - (size_t)at, "shard-%d.bin: magic is 0, want 20240520",
                 who);
        ll_err rc = ll_comm_agree(comm, set >> rank & 1 ? fail_at(mine) : LL_OK);
        assert_int_equal(rc, LL_E_IO);
        assert_string_equal(ll_error_message(), wanted);
        if (size > 1)
            assert_int_equal(ll_job_failure(), rank == who ? LL_FAILURE_TELL : LL_FAILURE_HEARD);
        assert_int_equal(ll_comm_agree(comm, LL_OK), LL_OK);
        rc = fail_at("another"); /* a later failure is this rank's alone */
        assert_int_equal(rc, LL_E_IO);
        assert_int_equal(ll_job_failure(), LL_FAILURE_ALONE);
    }
}

/* In a part of the ranks, the number is that of all. */
static void in_a_part(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    ll_comm *part;
    assert_int_equal(ll_comm_split(comm, rank % 2, -rank, &part), LL_OK);
    int last = ll_comm_size(part) - 1, lowest = rank % 2, highest = lowest + 2 * last;
    ll_err rc = ll_comm_agree(part, rank == lowest ? fail_at("here") : LL_OK);
    assert_int_equal(rc, LL_E_IO);
    if (rank != lowest) {
        char wanted[32];
        snprintf(wanted, sizeof wanted, "rank %d: here", lowest);
        assert_string_equal(ll_error_message(), wanted);
    }
    assert_true(highest < size);
    ll_comm_close(part);
}

/* A message as long as can be is cut, not lost. */
static void a_long_message(void **state)
{
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    ll_err rc = ll_comm_agree(comm, rank == size - 1 ? fail_at(text) : LL_OK);
    assert_int_equal(rc, LL_E_IO);
    assert_true(strlen(ll_error_message()) > 1000);
    if (size > 1)
        assert_int_equal(ll_job_failure(), rank == size - 1 ? LL_FAILURE_TELL : LL_FAILURE_HEARD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_failure), cmocka_unit_test(each_set_of_ranks),
        cmocka_unit_test(in_a_part), cmocka_unit_test(a_long_message)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm)) {
        fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
