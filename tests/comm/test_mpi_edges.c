/* mpi: 2 3
 * The edges of communicators: two of them waited for in different orders, one opened beside the
 * other's thread, and what a failure leaves behind: no request, no receive that still writes. */
#include "comm/comm_int.h"
#include "no_error.h"

#include <dirent.h>
#include <mpi.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

/* ---- one thread at a time ---- */

/* Calls of the library come here first. Those that may meet are slow, so that they would. */
static _Atomic int inside, met;

static void enter(void)
{
    met += inside++ > 0;
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

int MPI_Test(MPI_Request *r, int *flag, MPI_Status *status)
{
    enter();
    int rc = PMPI_Test(r, flag, status);
    inside--;
    return rc;
}

int MPI_Comm_dup(MPI_Comm c, MPI_Comm *out)
{
    enter();
    int rc = PMPI_Comm_dup(c, out);
    inside--;
    return rc;
}

/* Threads of this process that take SIGUSR1. */
static int takers(void)
{
    int n = 0;
    char path[300], line[100];
    unsigned long long mask;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", d->d_name);
        FILE *f = atoi(d->d_name) ? fopen(path, "r") : NULL;
        while (f && fgets(line, sizeof line, f))
            if (sscanf(line, "SigBlk: %llx", &mask) == 1) n += !(mask >> (SIGUSR1 - 1) & 1);
        if (f) fclose(f);
    }
    if (tasks) closedir(tasks);
    return n;
}

static void a_second_beside_a_thread(void **state)
{
    (void)state;
    int before = takers();
    static float data[1 << 18];
    ll_comm *a, *b;
    ll_request *r;
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .thread = true}, &a));
    assert_int_equal(takers(), before);
    met = 0;
    no_error(ll_comm_allreduce_start(a, data, 1 << 18, LL_F32, LL_REDUCE_SUM,
                                     &(ll_coll_opts){.algorithm = "ring", .segment = 1 << 12}, &r));
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &b));
    no_error(ll_request_wait(r));
    ll_comm_close(b);
    ll_comm_close(a);
    assert_int_equal(met, 0);
}

/* ---- mistakes of callers ---- */

static void fails_by(ll_err rc, const char *says)
{
    assert_int_equal(rc, LL_E_ARG);
    if (!strstr(ll_error_text(), says)) fail_msg("no '%s' in: %s", says, ll_error_text());
}

static void null_is_named(void **state)
{
    (void)state;
    ll_comm *c;
    float x = 1;
    void *memory;
    no_error(ll_comm_open(NULL, &c));
    fails_by(ll_comm_open(NULL, NULL), "argument out is NULL");
    fails_by(ll_comm_split(NULL, 0, 0, &c), "argument c is NULL");
    fails_by(ll_comm_split(c, 0, 0, NULL), "argument out is NULL");
    fails_by(ll_comm_alloc(NULL, 1, &memory), "argument c is NULL");
    fails_by(ll_comm_alloc(c, 1, NULL), "argument out is NULL");
    fails_by(ll_comm_poll(NULL), "argument c is NULL");
    fails_by(ll_request_wait(NULL), "argument r is NULL");
    fails_by(ll_comm_barrier(NULL), "argument c is NULL");
    fails_by(ll_comm_broadcast(c, NULL, 1, LL_F32, 0, NULL), "argument data is NULL");
    fails_by(ll_comm_alltoall(c, &x, NULL, 1, LL_F32, NULL), "argument out is NULL");
    fails_by(ll_comm_allreduce_start(c, &x, 1, LL_F32, LL_REDUCE_SUM, NULL, NULL), "out is NULL");
    ll_comm_doing(NULL, "x"), ll_comm_doing(c, NULL), ll_comm_close(NULL);
    assert_true(ll_comm_rank(NULL) == 0 && ll_comm_size(NULL) == 1);
    ll_comm_close(c);
}

/* Both calls are named, everywhere, and ranks go on. */
static void calls_are_compared(void **state)
{
    (void)state;
    ll_comm *c;
    ll_request *r;
    float x[8] = {1};
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .check = true}, &c));
    int me = ll_comm_rank(c), size = ll_comm_size(c);
    fails_by(me ? ll_comm_broadcast(c, x, 4, LL_I32, 1, NULL)
                : ll_comm_allreduce(c, x, 5, LL_F32, LL_REDUCE_MAX, NULL),
             "rank 0 calls all-reduce of 5 f32 (maximum), rank 1 broadcast of 4 i32 from 1");
    fails_by(me == size - 1 ? ll_comm_barrier(c) : ll_comm_allgather(c, x, 8, LL_F32, NULL),
             "rank 0 calls all-gather of 8 f32, rank ");
    fails_by(ll_comm_allreduce_start(c, x, 1 + me, LL_F32, LL_REDUCE_SUM, NULL, &r),
             "rank 0 calls all-reduce of 1 f32 (sum), rank 1 all-reduce of 2 f32 (sum)");
    no_error(ll_comm_allreduce(c, x, 1, LL_F32, LL_REDUCE_SUM, NULL));
    assert_true(x[0] == (float)size);
    ll_comm_close(c);
}

/* ---- two communicators ---- */

static void waits_in_any_order(void **state)
{
    (void)state;
    enum { N = 30000 };
    static float data[2][N];
    ll_comm *c[2];
    ll_request *r[2];
    for (int i = 0; i < 2; i++) no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &c[i]));
    int rank = ll_comm_rank(c[0]), size = ll_comm_size(c[0]);
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < N; k++) data[i][k] = (float)(rank + k % 3 + i);
        no_error(ll_comm_allreduce_start(c[i], data[i], N, LL_F32, LL_REDUCE_SUM,
                                         &(ll_coll_opts){.algorithm = "ring"}, &r[i]));
    }
    for (int i = 0; i < 2; i++) no_error(ll_request_wait(r[i ^ (rank % 2)]));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < N; k++)
            assert_true(data[i][k] == (float)(size * (size - 1) / 2 + size * (k % 3 + i)));
    ll_comm_close(c[1]);
    ll_comm_close(c[0]);
}

/* ---- after a failure ---- */

/* Rank 0 waits for a broadcast of rank 1's, which fails instead; what comes later must not be
 * written. Then the communicators are closed, the one that the request is of first. */
static void a_failure_leaves_nothing_behind(void **state)
{
    (void)state;
    enum { N = 1000 };
    ll_comm *c, *child;
    ll_request *r;
    no_error(ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &c));
    no_error(ll_comm_split(c, 0, ll_comm_rank(c), &child));
    int rank = ll_comm_rank(child);
    unsigned char *data = (unsigned char *)malloc(N);
    memset(data, 7, N);
    const ll_coll_call call = {.spec = {.coll = LL_COLL_BROADCAST, .count = N, .root = 1},
                               .algo = ll_algo_find(LL_COLL_BROADCAST, "flat"),
                               .data = data,
                               .dtype = LL_U8};
    int tag = (int)child->n_started;
    if (rank != 1) {
        no_error(ll_comm_start(child, &call, &r));
        assert_int_equal(ll_request_wait(r), LL_E_COMM);
        assert_non_null(strstr(ll_error_text(), "the disk is gone"));
    } else {
        ll_err rc = ll_raise(LL_E_IO, __FILE__, __LINE__, __func__, "the disk is gone");
        assert_int_equal(rc, LL_E_IO);
        ll_comm_give_up(c);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    ll_message m = {0};
    static unsigned char late[N];
    if (rank == 1)
        assert_int_equal(child->t->ops->post(child->t, true, late, N, 0, tag, &m), LL_OK);
    for (int i = 0; i < 20; i++) MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < N; i++) assert_int_equal(data[i], 7);
    assert_true(rank == 1 || ll_comm_settled(c));
    ll_comm_close(child);
    assert_null(c->engine->first);
    ll_comm_close(c);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_is_named),
        cmocka_unit_test(calls_are_compared),
        cmocka_unit_test(a_second_beside_a_thread),
        cmocka_unit_test(waits_in_any_order),
        cmocka_unit_test(a_failure_leaves_nothing_behind),
    };
    int provided;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return failed;
}
