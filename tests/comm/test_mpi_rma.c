/* mpi: 2 3 4
 * Memory that ranks have in common: nothing is lost of what they do to it at once, on the first
 * rank or cut over all, of a communicator and of rows of one. */
#include "collectives.h"
#include "comm/rma.h"

enum { MOST = 1000 };
#ifdef __SANITIZE_ADDRESS__ /* with MPICH, of which ranks spin */
enum { TIMES = 6 };
#else
enum { TIMES = 20 };
#endif

static ll_comm *comm;

/* Everyone adds to a counter and to all of a vector, whose elements must always be equal. */
static void add_to(ll_comm *c, int64_t n, bool sharded)
{
    ll_rma *s;
    int32_t v[MOST];
    int64_t count = 0, size = ll_comm_size(c);
    OK(ll_rma_open(c, sizeof count, (size_t)n * sizeof *v, sharded, &s));
    for (int k = 0; k < TIMES; k++) {
        OK(ll_rma_enter(s));
        OK(ll_rma_head(s, &count));
        OK(ll_rma_get(s, 0, v, (size_t)n * sizeof *v));
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(v[i], count);
            v[i]++;
        }
        count++;
        OK(ll_rma_put(s, 0, v, (size_t)n * sizeof *v));
        OK(ll_rma_set_head(s, &count));
        OK(ll_rma_leave(s));
    }
    OK(ll_comm_barrier(c));
    OK(ll_rma_head(s, &count));
    assert_int_equal(count, TIMES * size);
    if (n > 1) { /* the last alone, which another rank may have */
        OK(ll_rma_enter(s));
        OK(ll_rma_get(s, (size_t)(n - 1) * sizeof *v, v, sizeof *v));
        assert_int_equal(v[0], count);
        OK(ll_rma_leave(s));
    }
    OK(ll_comm_barrier(c));
    ll_rma_close(s);
}

static void nothing_is_lost(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 17, 64, 997};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        add_to(comm, sizes[i], false);
        add_to(comm, sizes[i], true);
    }
}

static void rows_have_their_own(void **state)
{
    (void)state;
    ll_comm *row;
    OK(ll_comm_split(comm, ll_comm_rank(comm) % 2, 0, &row));
    for (int k = 0; k < 3; k++) add_to(row, 97, k > 0);
    ll_comm_close(row);
}

int main(void)
{
    OK(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = "", .thread = true}, &comm));
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_lost),
                                       cmocka_unit_test(rows_have_their_own)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
