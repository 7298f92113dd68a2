/* mpi: 2 3
 * A rank of another version is named, on all ranks, before anything else is said. This program has
 * an ll_version of its own. */
#include "comm/job.h"
#include "loopline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool differs;

const char *ll_version(void)
{
    return differs && ll_job_rank() == ll_job_size() - 1 ? "9.8.7" : "1.2.3";
}

static void other_version_is_refused(void **state)
{
    (void)state;
    char wanted[200];
    ll_comm *c;
    differs = true;
    assert_true(ll_comm_open(&(ll_comm_opts){.table = ""}, &c) != LL_OK);
    assert_null(c);
    snprintf(
        wanted, sizeof wanted,
        "rank 0 is Loopline 1.2.3, but rank %d is 9.8.7: start every rank with the same program",
        ll_job_size() - 1);
    if (!strstr(ll_error_text(), wanted)) fail_msg("'%s'", ll_error_text());
}

static void the_same_is_not(void **state)
{
    (void)state;
    ll_comm *c;
    differs = false;
    assert_int_equal(ll_comm_open(&(ll_comm_opts){.table = ""}, &c), LL_OK);
    assert_int_equal(ll_comm_size(c), ll_job_size());
    ll_comm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_version_is_refused),
                                       cmocka_unit_test(the_same_is_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
