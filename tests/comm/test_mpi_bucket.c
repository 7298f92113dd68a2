/* mpi: 1 2 3 4
 * Buckets: sums, order, packing, mistakes. */
#include "base/rng.h"
#include "comm/bucket.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ll_comm *comm;
static int rank, size;

static const uint64_t seed = 20240611;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("%s\n%s", ll_error_text(), ll_error_frames());               \
    } while (0)

enum { MOST = 24 };

typedef struct list {
    ll_bucket_tensor t[MOST];
    float *memory;
    int n;
} list;

/* Tensors of the sizes, apart by `gap` elements of poison. */
static list make(const int64_t *sizes, int n, int64_t gap)
{
    list l = {.n = n};
    int64_t total = 1;
    for (int i = 0; i < n; i++) total += sizes[i] + gap;
    l.memory = malloc(sizeof(float) * (size_t)total);
    memset(l.memory, 0x7f, sizeof(float) * (size_t)total);
    float *at = l.memory;
    for (int i = 0; i < n; i++) {
        l.t[i] = (ll_bucket_tensor){.data = at, .n = sizes[i], .name = "t"};
        at += sizes[i] + gap;
    }
    return l;
}

static float value(int step, int tensor, int64_t i, int r)
{
    return (float)((step * 7 + tensor * 3 + i) % 31 + r);
}

static void fill(list *l, int step)
{
    for (int k = 0; k < l->n; k++)
        for (int64_t i = 0; i < l->t[k].n; i++)
            ((float *)l->t[k].data)[i] = value(step, k, i, rank);
}

static void check(const list *l, int step, int64_t gap)
{
    for (int k = 0; k < l->n; k++) {
        const float *x = l->t[k].data;
        for (int64_t i = 0; i < l->t[k].n; i++) {
            float want = value(step, k, i, 0) * (float)size + (float)(size * (size - 1) / 2);
            if (x[i] != want)
                fail_msg("step %d, tensor %d, element %lld: %g, want %g", step, k, (long long)i,
                         (double)x[i], (double)want);
        }
        for (int64_t i = 0; i < gap; i++) {
            uint32_t word;
            memcpy(&word, &x[l->t[k].n + i], 4);
            assert_int_equal(word, 0x7f7f7f7f);
        }
    }
}

/* In an order of its own on every rank. */
static void run_step(ll_buckets *b, list *l, int step, int64_t gap)
{
    fill(l, step);
    uint64_t stream = ll_stream("order", (uint64_t)(step * 16 + rank));
    for (int i = 0; i < l->n; i++)
        OK(ll_buckets_ready(b, (int)ll_permute(seed, stream, (uint64_t)i, (uint64_t)l->n)));
    OK(ll_buckets_wait(b));
    check(l, step, gap);
}

static const int64_t sizes[] = {5, 0, 1, 1009, 3, 4096, 17, 70001, 2, 2, 640, 0};
enum { N = sizeof sizes / sizeof *sizes };

static void sums_in_any_order_of_readiness(void **state)
{
    (void)state;
    static const size_t bytes[] = {4, 64, 4096, 1 << 20, 0};
    for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++)
        for (int64_t gap = 0; gap < 3; gap += 2) {
            list l = make(sizes, N, gap);
            ll_buckets *b;
            ll_buckets_opts o = {.dtype = LL_F32, .bucket_bytes = bytes[k]};
            OK(ll_buckets_open(comm, l.t, l.n, &o, &b));
            for (int step = 0; step < 3; step++) run_step(b, &l, step, gap);
            ll_buckets_close(b);
            free(l.memory);
        }
}

/* Of 6 elements: [5 0 1] [1009] [3] [4096] [17] ...: until full, and larger ones alone. */
static void neighbours_share(void **state)
{
    (void)state;
    list l = make(sizes, N, 1);
    static const struct {
        size_t bytes;
        int want;
    } cases[] = {{4, 10}, {4 * 6, 8}, {4 * 5000, 4}, {4 * 100000, 1}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ll_buckets *b;
        ll_buckets_opts o = {.dtype = LL_F32, .bucket_bytes = cases[k].bytes};
        OK(ll_buckets_open(comm, l.t, l.n, &o, &b));
        if (ll_buckets_count(b) != cases[k].want)
            fail_msg("%d buckets of %zu bytes, want %d", ll_buckets_count(b), cases[k].bytes,
                     cases[k].want);
        assert_null(ll_buckets_codec(b, 0));
        ll_buckets_close(b);
    }
    free(l.memory);
}

/* In one piece on some ranks only. */
static void layouts_may_differ(void **state)
{
    (void)state;
    int64_t gap = rank % 2;
    list l = make(sizes, N, gap);
    ll_buckets *b;
    OK(ll_buckets_open(comm, l.t, l.n, &(ll_buckets_opts){.dtype = LL_F32, .bucket_bytes = 8192},
                       &b));
    for (int step = 0; step < 2; step++) run_step(b, &l, step, gap);
    ll_buckets_close(b);
    free(l.memory);
}

static void mistakes_are_named(void **state)
{
    (void)state;
    list l = make(sizes, N, 0);
    ll_buckets *b;
    ll_buckets_opts o = {.dtype = LL_F32, .bucket_bytes = 4096};
    OK(ll_buckets_open(comm, l.t, l.n, &o, &b));
    OK(ll_buckets_ready(b, 3));
    assert_int_equal(ll_buckets_ready(b, 3), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "was ready before"));
    assert_int_equal(ll_buckets_ready(b, N), LL_E_ARG);
    assert_int_equal(ll_buckets_wait(b), LL_E_ARG);
    assert_non_null(strstr(ll_error_text(), "tensor 0 (t) is not ready"));
    fill(&l, 0);
    for (int i = 0; i < N; i++)
        if (i != 3) OK(ll_buckets_ready(b, i));
    OK(ll_buckets_wait(b));
    check(&l, 0, 0);
    ll_buckets_close(b);
    if (size > 1) {
        l.t[7].n -= rank == size - 1;
        assert_int_equal(ll_buckets_open(comm, l.t, l.n, &o, &b), LL_E_COMM);
        assert_null(b);
        assert_non_null(strstr(ll_error_text(), "different tensors"));
    }
    free(l.memory);
}

static void no_tensors(void **state)
{
    (void)state;
    ll_buckets *b;
    OK(ll_buckets_open(comm, NULL, 0, &(ll_buckets_opts){.dtype = LL_F32}, &b));
    OK(ll_buckets_wait(b));
    assert_int_equal(ll_buckets_count(b), 0);
    ll_buckets_close(b);
}

static void codecs_by_bucket(void **state)
{
    (void)state;
    list l = make(sizes, N, 1);
    ll_buckets *b;
    ll_buckets_opts o = {
        .dtype = LL_F32, .bucket_bytes = 16384, .codec = "bf16", .seed = seed}; /* exact here */
    OK(ll_buckets_open(comm, l.t, l.n, &o, &b));
    assert_non_null(ll_buckets_codec(b, 0));
    for (int step = 0; step < 2; step++) run_step(b, &l, step, 1);
    ll_buckets_close(b);
    o.codec = "no-such";
    assert_int_not_equal(ll_buckets_open(comm, l.t, l.n, &o, &b), LL_OK);
    o.codec = "bf16";
    o.dtype = LL_I32;
    assert_int_equal(ll_buckets_open(comm, l.t, l.n, &o, &b), LL_E_ARG);
    free(l.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_in_any_order_of_readiness),
        cmocka_unit_test(neighbours_share),
        cmocka_unit_test(layouts_may_differ),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(no_tensors),
        cmocka_unit_test(codecs_by_bucket),
    };
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 20, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    rank = ll_comm_rank(comm);
    size = ll_comm_size(comm);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
