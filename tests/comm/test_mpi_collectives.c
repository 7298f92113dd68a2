/* mpi: 1 2 3 4 5 6 7 8
 * Every algorithm on real ranks against a serial computation. */
#include "base/types.h"
#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ll_comm *comm;

static void ring_sums(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    static const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1000, 65539};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        int64_t n = counts[k];
        float *x = malloc(sizeof(float) * (size_t)(n + 1));
        for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 13 + rank);
        ll_err rc = ll_comm_allreduce(comm, x, n, LL_F32, LL_REDUCE_SUM,
                                      &(ll_coll_opts){.algorithm = "ring"});
        if (rc) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());
        for (int64_t i = 0; i < n; i++)
            assert_true(x[i] == (float)(i % 13 * size + size * (size - 1) / 2));
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ring_sums)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 20}, &comm)) {
        fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
