/* mpi: 1 2 3 4
 * Ranks of a node take cores of their own where there are enough, leave alone what a launcher has
 * bound already, and all have the same number of threads. What is expected follows from the cores
 * of the machine that the test runs on. */
#define _GNU_SOURCE /* sets of CPUs */
#include "machine/bind.h"
#include "no_error.h"

#include <omp.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ll_comm *comm;
static cpu_set_t first; /* what all ranks were started on */

static int restart(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    return sched_setaffinity(0, sizeof first, &first);
}

/* Every rank's set. */
static void gather(cpu_set_t *sets)
{
    memset(sets, 0, sizeof *sets * (size_t)ll_comm_size(comm));
    cpu_set_t *mine = &sets[ll_comm_rank(comm)];
    assert_int_equal(sched_getaffinity(0, sizeof *mine, mine), 0);
    no_error(
        ll_comm_allgather(comm, sets, ll_comm_size(comm) * (int64_t)sizeof *sets, LL_U8, NULL));
}

static void cores_are_divided(void **state)
{
    (void)state;
    int size = ll_comm_size(comm), cpus = CPU_COUNT(&first), threads = 0;
    no_error(ll_bind_rank(comm, &threads));
    if (size == 1) {
        assert_int_equal(threads, 0);
        return;
    }
    cpu_set_t *sets = calloc((size_t)size, sizeof *sets), all, both;
    gather(sets);
    CPU_ZERO(&all);
    assert_int_equal(ll_bind_owns_cores(), !CPU_EQUAL(&sets[0], &first));
    assert_in_range(threads, 1, cpus / size > 1 ? cpus / size : 1);
    for (int r = 0; r < size && ll_bind_owns_cores(); r++) {
        CPU_AND(&both, &all, &sets[r]);
        assert_int_equal(CPU_COUNT(&both), 0);
        assert_true(CPU_COUNT(&sets[r]) >= threads);
        CPU_OR(&all, &all, &sets[r]);
    }
    if (size > cpus) assert_false(ll_bind_owns_cores());
    free(sets);
}

static void more_threads_than_cores_are_not_bound(void **state)
{
    (void)state;
    int size = ll_comm_size(comm), threads = CPU_COUNT(&first) + 1;
    cpu_set_t *sets = calloc((size_t)size, sizeof *sets);
    no_error(ll_bind_rank(comm, &threads));
    assert_int_equal(threads, CPU_COUNT(&first) + 1);
    ll_bind_threads(threads);
    gather(sets);
    for (int r = 0; r < size; r++) assert_true(CPU_EQUAL(&sets[r], &first));
    free(sets);
}

/* Two ranks with two threads each on two cores: the second threads of both would be bound to the
 * second core. */
static void threads_of_shared_cores_are_free(void **state)
{
    (void)state;
    int threads = CPU_COUNT(&first), bound = 0;
    if (ll_comm_size(comm) == 1 || threads < 2) return;
    no_error(ll_bind_rank(comm, &threads));
    ll_bind_threads(threads);
#pragma omp parallel num_threads(threads) reduction(+ : bound)
    {
        cpu_set_t mine;
        if (sched_getaffinity(0, sizeof mine, &mine) == 0) bound += !CPU_EQUAL(&mine, &first);
    }
    assert_int_equal(bound, 0);
}

static void what_is_bound_stays(void **state)
{
    (void)state;
    int size = ll_comm_size(comm), rank = ll_comm_rank(comm), threads = 0, k = 0;
    if (size == 1 || size > CPU_COUNT(&first)) return;
    cpu_set_t mine, *sets = calloc((size_t)size, sizeof *sets);
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &first) && k++ == rank) CPU_SET(cpu, &mine);
    assert_int_equal(sched_setaffinity(0, sizeof mine, &mine), 0);
    no_error(ll_bind_rank(comm, &threads));
    gather(sets);
    assert_true(CPU_EQUAL(&sets[rank], &mine));
    free(sets);
}

static void all_have_the_fewest(void **state)
{
    (void)state;
    if (ll_comm_size(comm) == 1) return;
    int threads = 2 + (ll_comm_size(comm) - ll_comm_rank(comm)), before = omp_get_max_threads();
    no_error(ll_bind_rank(comm, &threads));
    assert_int_equal(threads, 3);
    setenv("OMP_NUM_THREADS", "3", 1); /* as omp_set_num_threads says, which cannot read it now */
    omp_set_num_threads(7 + ll_comm_rank(comm));
    threads = 0;
    no_error(ll_bind_rank(comm, &threads));
    omp_set_num_threads(before);
    assert_int_equal(threads, 7);
}

/* A launcher that bound the ranks (mpirun -n 2 does) left them the others' cores to go back to. */
static void find_first(void)
{
    cpu_set_t *sets = calloc((size_t)ll_comm_size(comm), sizeof *sets);
    gather(sets);
    for (int r = 0; r < ll_comm_size(comm); r++) CPU_OR(&first, &first, &sets[r]);
    free(sets);
}

int main(void)
{
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    find_first();
#define TEST(f) cmocka_unit_test_setup_teardown(f, restart, restart)
    const struct CMUnitTest tests[] = {TEST(cores_are_divided),
                                       TEST(more_threads_than_cores_are_not_bound),
                                       TEST(threads_of_shared_cores_are_free),
                                       TEST(what_is_bound_stays), TEST(all_have_the_fewest)};
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return rc;
}
