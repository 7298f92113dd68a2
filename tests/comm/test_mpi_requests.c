/* mpi: 1 2 3 4 6 7
 * Many collectives at once: awaited in other orders on other ranks, on communicators split into
 * rows and columns, in memory of their own and shared, with the thread and without; messages
 * outside of schedules; and calls that must fail. */
#include "collectives.h"
#include "comm/comm_int.h"

#include <mpi.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { MANY = 12, MOST = 5000 };

static ll_comm *comm;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- at once ---- */

/* Starts MANY all-reduces by all kinds of algorithms, and waits in an order of this rank's own. */
static void many_on(ll_comm *c, ll_comm *also, bool shared)
{
    int rank = ll_comm_rank(c), size = ll_comm_size(c), n_algo = 0;
    const ll_algo *algos[96];
    ll_coll_spec s = {.coll = LL_COLL_ALLREDUCE,
                      .size = size,
                      .count = MOST,
                      .node = ll_comm_nodes(c),
                      .shared = shared};
    const char *why;
    for (const ll_algo *const *a = ll_algos(); *a; a++)
        if ((*a)->coll == s.coll && ll_algo_can(*a, &s, &why)) algos[n_algo++] = *a;
    ll_request *r[MANY];
    int32_t *data[MANY];
    int64_t n[MANY];
    void *room;
    if (shared)
        OK(ll_comm_alloc(c, MANY * (MOST + GUARD) * sizeof(int32_t), &room));
    else
        room = malloc(MANY * (MOST + GUARD) * sizeof(int32_t));
    for (int k = 0; k < MANY; k++) {
        n[k] = (int64_t)(k * 997) % MOST;
        data[k] = (int32_t *)room + k * (MOST + GUARD);
        s.count = n[k];
        prepare(&s, rank, LL_I32, data[k], (int32_t[GUARD]){0});
        OK(ll_comm_allreduce_start(c, data[k], n[k], LL_I32, LL_REDUCE_SUM,
                                   &(ll_coll_opts){.algorithm = algos[k % n_algo]->name}, &r[k]));
        if (k == MANY / 2 && also) OK(ll_comm_barrier(also));
    }
    for (int k = 0; k < MANY; k++) {
        int i = (k * 5 + rank * 7) % MANY;
        OK(ll_request_wait(r[i]));
        s.count = n[i];
        char out[GUARD * 4];
        memset(out, 0x7f, sizeof out);
        expect(&s, rank, LL_I32, LL_REDUCE_SUM, data[i], out, algos[i % n_algo]->name);
    }
    if (!shared) free(room);
}

static void other_orders(void **state)
{
    (void)state;
    many_on(comm, NULL, false);
    many_on(comm, NULL, true);
}

/* ---- parts of a grid ---- */

static void sum_parts(ll_comm *const *parts, int n_part)
{
    enum { N = 3001 };
    static float data[2][4][N];
    ll_request *r[2][4];
    for (int k = 0; k < 4; k++)
        for (int p = 0; p < n_part; p++) {
            fill(data[p][k], LL_F32, ll_comm_rank(parts[p]), 0, N);
            OK(ll_comm_allreduce_start(parts[p], data[p][k], N, LL_F32, LL_REDUCE_SUM, NULL,
                                       &r[p][k]));
        }
    bool backwards = ll_comm_rank(comm) % 2;
    for (int k = 0; k < 4; k++)
        for (int q = 0; q < n_part; q++) {
            int p = backwards ? n_part - 1 - q : q, i = backwards ? 3 - k : k;
            OK(ll_request_wait(r[p][i]));
            for (int64_t x = 0; x < N; x++)
                must_be(data[p][i], LL_F32, x, combined(ll_comm_size(parts[p]), x, LL_REDUCE_SUM),
                        "grid");
        }
}

static void rows_and_columns(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm), wide = size % 3 ? 2 : 3;
    ll_comm *parts[2], *none;
    OK(ll_comm_split(comm, rank / wide, rank, &parts[0]));
    OK(ll_comm_split(comm, rank % wide, -rank, &parts[1])); /* in reverse order */
    OK(ll_comm_split(comm, rank == 0 ? 3 : -1, 0, &none));
    assert_int_equal(ll_comm_rank(parts[0]), rank % wide);
    int below = (size - 1 - rank) / wide; /* ranks of my column after me */
    assert_int_equal(ll_comm_rank(parts[1]), below);
    assert_int_equal(none != NULL, rank == 0);
    for (int i = 0; i < ll_comm_size(parts[0]); i++)
        assert_int_equal(parts[0]->t->world[i], rank / wide * wide + i);
    sum_parts(parts, 2);
    sum_parts(parts, 2);
    many_on(parts[1], comm, false);
    ll_comm_close(none);
    ll_comm_close(parts[1]);
    ll_comm_close(parts[0]);
}

/* Memory of the whole is shared within a part of it too: reads go to the right ranks. */
static void shared_within_parts(void **state)
{
    (void)state;
    enum { N = 1000, AT = 24 };
    int rank = ll_comm_rank(comm);
    void *room;
    ll_comm *part;
    OK(ll_comm_alloc(comm, (N + AT) * sizeof(double), &room));
    OK(ll_comm_split(comm, rank % 2, -rank, &part));
    double *data = (double *)room + AT;
    for (const ll_algo *const *a = ll_algos(); *a; a++) {
        if (!(*a)->shared || (*a)->coll != LL_COLL_ALLREDUCE) continue;
        const ll_coll_opts by = {.algorithm = (*a)->name}; /* one more than was allocated: */
        assert_int_equal(ll_comm_allreduce(part, data, N + 1, LL_F64, LL_REDUCE_MAX, &by),
                         LL_E_COMM);
        for (int k = 0; k < 5; k++) {
            fill(data, LL_F64, ll_comm_rank(part), 0, N);
            OK(ll_comm_allreduce(part, data, N, LL_F64, LL_REDUCE_MAX,
                                 &(ll_coll_opts){.algorithm = (*a)->name}));
            for (int64_t i = 0; i < N; i++)
                must_be(data, LL_F64, i, combined(ll_comm_size(part), i, LL_REDUCE_MAX),
                        (*a)->name);
        }
    }
    ll_comm_close(part);
}

static void with_a_thread(void **state)
{
    (void)state;
    ll_comm *c;
    OK(ll_comm_open(&(ll_comm_opts){.timeout_s = 120, .thread = true}, &c));
    for (int k = 0; k < 5; k++) many_on(c, NULL, false);
    /* Nobody polls: the thread must get it done. */
    int64_t n = 100000;
    float *data = (float *)malloc(sizeof(float) * (size_t)n);
    fill(data, LL_F32, ll_comm_rank(c), 0, n);
    ll_request *r;
    OK(ll_comm_allreduce_start(c, data, n, LL_F32, LL_REDUCE_SUM,
                               &(ll_coll_opts){.algorithm = "ring", .segment = 5000}, &r));
    double last = combined(ll_comm_size(c), n - 1, LL_REDUCE_SUM), until = now() + 100;
    while (*(volatile float *)&data[n - 1] != (float)last && now() < until) usleep(1000);
    must_be(data, LL_F32, n - 1, last, "nobody polled");
    OK(ll_request_wait(r));
    free(data);
    ll_comm_close(c);
}

/* Who leaves a barrier sees what each rank had done before it came to it. */
static void barrier_waits(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    atomic_int *mine;
    MPI_Win win;
    MPI_Win_allocate_shared(sizeof *mine, sizeof *mine, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &win);
    atomic_store(mine, 0);
    OK(ll_comm_barrier(comm));
    for (int k = 1; k <= 12; k++) {
        if (rank == k % size) usleep(5000);
        atomic_store(mine, k);
        OK(ll_comm_barrier(comm));
        for (int r = 0; r < size; r++) {
            MPI_Aint bytes;
            int unit;
            atomic_int *theirs;
            MPI_Win_shared_query(win, r, &bytes, &unit, &theirs);
            assert_true(atomic_load(theirs) >= k);
        }
    }
    MPI_Win_free(&win);
}

/* ---- messages outside of schedules ---- */

static void exchanges(void **state)
{
    (void)state;
    int rank = ll_comm_rank(comm), size = ll_comm_size(comm);
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    unsigned char out[300], in[400];
    ll_comm_count before = ll_comm_used(comm).count;
    int64_t sent = 0;
    for (int k = 0; k < 20; k++) {
        int64_t number = ll_comm_next_number(comm, "exchange", "test");
        size_t n = (size_t)((rank * 31 + k * 17) % 300),
               want = (size_t)((left * 31 + k * 17) % 300);
        size_t got = 999;
        memset(out, rank + k, sizeof out);
        memset(in, 0xee, sizeof in);
        const ll_exchange x = {number, right, left, out, n, in, sizeof in};
        OK(ll_comm_exchange(comm, &x, &got));
        assert_int_equal(got, want);
        for (size_t i = 0; i < sizeof in; i++)
            assert_int_equal(in[i], i < want ? (unsigned char)(left + k) : 0xee);
        sent += (int64_t)n;
    }
    assert_int_equal(ll_comm_used(comm).count.messages - before.messages, 20);
    assert_int_equal(ll_comm_used(comm).count.bytes - before.bytes, sent);
    /* One way only, and not at all. */
    ll_exchange x = {ll_comm_next_number(comm, "exchange", NULL), -1, -1, out, 7, in, sizeof in};
    size_t got = 999;
    if (size > 1 && rank < 2) *(rank ? &x.from : &x.to) = !rank;
    OK(ll_comm_exchange(comm, &x, &got));
    assert_int_equal(got, size > 1 && rank == 1 ? 7 : 0);
}

/* ---- mistakes ---- */

static void fails_with(ll_err rc, const char *part)
{
    if (rc == LL_OK) fail_msg("no error, wanted one with \"%s\"", part);
    if (!strstr(ll_error_text(), part)) fail_msg("%s: does not say %s", ll_error_text(), part);
}

static void mistakes(void **state)
{
    (void)state;
    float x[8] = {0};
    fails_with(
        ll_comm_allreduce(comm, x, 8, LL_F32, LL_REDUCE_SUM, &(ll_coll_opts){.algorithm = "rong"}),
        "ring");
    fails_with(ll_comm_allreduce(comm, x, -1, LL_F32, LL_REDUCE_SUM, NULL), "-1 elements");
    fails_with(ll_comm_allreduce(comm, NULL, 8, LL_F32, LL_REDUCE_SUM, NULL), "data is NULL");
    fails_with(ll_comm_broadcast(comm, x, 8, LL_F32, ll_comm_size(comm), NULL), "root");
    ll_comm *c;
    fails_with(ll_comm_open(&(ll_comm_opts){.timeout_s = -1}, &c), "timeout");
    fails_with(ll_comm_open(&(ll_comm_opts){.window_bytes = 1}, &c), "window has 1 bytes");
    assert_null(c);
    /* And the communicator is as good as before. */
    OK(ll_comm_allreduce(comm, x, 8, LL_F32, LL_REDUCE_SUM, NULL));
}

/* A window too small for one meeting of all the data. */
static void small_window(void **state)
{
    (void)state;
    enum { N = 4000 };
    static float x[N];
    ll_comm *c;
    OK(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .window_bytes = 8192}, &c));
    ll_coll_opts one = {.algorithm = "window1"}, cut = {.algorithm = "window", .segment = 300};
    if (ll_comm_size(c) > 1)
        fails_with(ll_comm_allreduce(c, x, N, LL_F32, LL_REDUCE_SUM, &one), "bytes of window");
    fill(x, LL_F32, ll_comm_rank(c), 0, N);
    OK(ll_comm_allreduce(c, x, N, LL_F32, LL_REDUCE_SUM, &cut));
    for (int64_t i = 0; i < N; i++)
        must_be(x, LL_F32, i, combined(ll_comm_size(c), i, LL_REDUCE_SUM), "cut");
    ll_comm_close(c);
}

static void canonical(void **state)
{
    (void)state;
    float x[8] = {0};
    int32_t y[8] = {0};
    ll_comm *c;
    OK(ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .canonical = true}, &c));
    ll_coll_opts ring = {.algorithm = "ring"};
    if (ll_comm_size(c) > 3) /* sums around a ring begin at another rank for every block */
        fails_with(ll_comm_allreduce(c, x, 8, LL_F32, LL_REDUCE_SUM, &ring), "canonical");
    OK(ll_comm_allreduce(c, x, 8, LL_F32, LL_REDUCE_MAX, &ring));
    OK(ll_comm_allreduce(c, y, 8, LL_I32, LL_REDUCE_SUM, &ring));
    OK(ll_comm_allreduce(c, x, 8, LL_F32, LL_REDUCE_SUM, NULL));
    ll_comm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_orders),
                                       cmocka_unit_test(rows_and_columns),
                                       cmocka_unit_test(shared_within_parts),
                                       cmocka_unit_test(with_a_thread),
                                       cmocka_unit_test(barrier_waits),
                                       cmocka_unit_test(exchanges),
                                       cmocka_unit_test(mistakes),
                                       cmocka_unit_test(small_window),
                                       cmocka_unit_test(canonical)};
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60}, &comm)) {
        fprintf(stderr, "%s\n%s", ll_error_text(), ll_error_frames());
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
