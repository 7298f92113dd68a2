/* mpi: 1 2 3 4 7. Codecs among ranks: all get the same bits, near the true sum; what error feedback
 * keeps back is not lost; bytes are as the formula says. */
#include "base/crc32c.h"
#include "base/rng.h"
#include "comm/codec_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { BLOCK = 512, MAX_RANKS = 8 };
static ll_comm *comm;
static int me, size;

static int start(void **state)
{
    (void)state;
    if (ll_comm_open(&(ll_comm_opts){.timeout_s = 60, .table = ""}, &comm) != LL_OK) {
        fprintf(stderr, "%s\n", ll_error_text());
        return 1;
    }
    me = ll_comm_rank(comm);
    size = ll_comm_size(comm);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ll_comm_close(comm);
    return 0;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != LL_OK) fail_msg("rank %d: %s", me, ll_error_text());                         \
    } while (0)

/* Element i of a rank's input: known to all, so that each knows the true sum. */
static float input(int rank, int64_t i)
{
    uint64_t u = (uint64_t)(i * MAX_RANKS + rank) * 0x9e3779b97f4a7c15u;
    u = (u ^ u >> 29) * 0xbf58476d1ce4e5b9u;
    float v = (float)(int32_t)(u >> 32) * 0x1p-31f;
    return i / BLOCK % 3 == 1 ? v * 1e-3f : v;
}

static void fill(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = input(me, i);
}

static int64_t total(int64_t mine)
{
    double v = (double)mine;
    OK(ll_comm_allreduce(comm, &v, 1, LL_F64, LL_REDUCE_SUM, NULL));
    return (int64_t)v;
}

static void same_bits(const float *x, int64_t n, const char *text)
{
    int32_t range[2] = {(int32_t)ll_crc32c(0, x, 4 * (size_t)n)};
    range[1] = range[0];
    OK(ll_comm_allreduce(comm, range, 1, LL_I32, LL_REDUCE_MAX, NULL));
    OK(ll_comm_allreduce(comm, range + 1, 1, LL_I32, LL_REDUCE_MIN, NULL));
    if (range[0] != range[1]) fail_msg("%s, n %lld: ranks differ", text, (long long)n);
}

static int bits_of(const char *text)
{
    int bits = 0;
    return sscanf(text, "qsgd:%d", &bits) == 1 ? bits : 0;
}

/* Encoded bytes of n elements. */
static int64_t coded(const char *text, int64_t n)
{
    int64_t blocks = (n + BLOCK - 1) / BLOCK;
    if (bits_of(text)) return blocks * (4 + 64 * bits_of(text));
    return strcmp(text, "onebit") ? 2 * n : blocks * 72;
}

/* How far the sum of a block's elements may be off: a step for each input and one for the sum. */
static double bound(const char *text, int64_t n, int64_t i, double magnitude)
{
    if (!strcmp(text, "bf16")) return magnitude / 128;
    if (!strcmp(text, "f16")) return magnitude / 1024 + 1e-7;
    double scales = 0;
    for (int r = 0; r < size; r++) {
        double scale = 0;
        for (int64_t j = i / BLOCK * BLOCK; j < n && j < i / BLOCK * BLOCK + BLOCK; j++)
            scale = fmax(scale, fabs(input(r, j)));
        scales += scale;
    }
    int last = bits_of(text) == 1 ? 1 : (1 << bits_of(text)) - 2;
    return (size > 1 ? 6 : 2) * scales / last * (1 + 1e-5); /* the sum's own scale: up to twice */
}

/* Of a long vector a few elements are looked at. */
static int64_t stride(int64_t n)
{
    return n > 100000 ? 997 : 1;
}

static void check_sum(const char *text, const float *y, int64_t n)
{
    double allowed = 0;
    int64_t seen = -1; /* the block that allowed is for */
    for (int64_t i = 0; i < n; i += stride(n)) {
        double sum = 0, magnitude = 0;
        for (int r = 0; r < size; r++) sum += input(r, i), magnitude += fabs(input(r, i));
        if (i / BLOCK != seen || !bits_of(text)) allowed = bound(text, n, i, magnitude);
        seen = i / BLOCK;
        if (!(fabs(y[i] - sum) <= allowed))
            fail_msg("%s, n %lld, element %lld: %g, the sum is %g", text, (long long)n,
                     (long long)i, y[i], sum);
    }
}

/* Results and residuals of all ranks together are the inputs. */
static void check_kept(const char *text, const float *y, const float *residual, int64_t n)
{
    float *left = (float *)malloc(4 * (size_t)n);
    memcpy(left, residual, 4 * (size_t)n);
    OK(ll_comm_allreduce(comm, left, n, LL_F32, LL_REDUCE_SUM, NULL));
    for (int64_t i = 0; i < n; i += stride(n)) {
        double sum = 0;
        for (int r = 0; r < size; r++) sum += input(r, i);
        if (!(fabs((double)y[i] + left[i] - sum) <= 2e-6 * size))
            fail_msg("%s, n %lld, element %lld: %g and %g left, the sum is %g", text, (long long)n,
                     (long long)i, y[i], left[i], sum);
    }
    free(left);
}

static void check_bytes(const char *text, const ll_codec *k, int64_t n, int64_t counted)
{
    ll_codec_report last = ll_codec_last(k);
    int64_t want = 2 * (size - 1) * coded(text, n);
    assert_int_equal(total(last.bytes), want);
    int64_t sent = total(counted);
    if (sent != (k->allgather ? want : 0)) /* the tuner's choice on one machine: its memory */
        fail_msg("%s, n %lld: %lld bytes were sent, %lld reported", text, (long long)n,
                 (long long)sent, (long long)want);
    assert_int_equal(last.dense_bytes, (int64_t)(8.0 * (size - 1) / size * (double)n));
    assert_string_equal(last.form, "slices");
}

static void check_codec(const char *text, int64_t n, bool by_messages)
{
    float *y = (float *)malloc(4 * (size_t)(n + 8));
    fill(y, n);
    memset(y + n, 0x7f, 32);
    ll_codec *k = NULL;
    OK(ll_codec_open(text, "w", n, 1, &k));
    if (by_messages) {
        k->alltoall = ll_algo_find(LL_COLL_ALLTOALL, "direct");
        k->allgather = ll_algo_find(LL_COLL_ALLGATHER, "ring");
        assert_true(k->alltoall && k->allgather);
    }
    int64_t before = ll_comm_used(comm).count.bytes;
    OK(ll_codec_allreduce(k, comm, y, 4, "test"));
    int64_t counted = ll_comm_used(comm).count.bytes - before;
    same_bits(y, n, text);
    if (ll_codec_residual(k))
        check_kept(text, y, ll_codec_residual(k), n);
    else
        check_sum(text, y, n);
    for (int i = 0; i < 32; i++) assert_int_equal(((char *)(y + n))[i], 0x7f);
    check_bytes(text, k, n, counted);
    ll_codec_close(k);
    free(y);
}

static void sums(void **state)
{
    (void)state;
    static const char *const texts[] = {"bf16",   "f16",    "qsgd:1", "qsgd:3",
                                        "qsgd:4", "qsgd:8", "onebit"};
    static const int64_t sizes[] = {0, 1, 5, 511, 512, 513, 10007};
    for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            check_codec(texts[t], sizes[s], false);
            check_codec(texts[t], sizes[s], true);
        }
}

/* More than one chunk under way at once. */
static void long_vector(void **state)
{
    (void)state;
    int64_t n = 3 * 4096 * BLOCK + 1000; /* chunks are of 4096 blocks */
    if (size > 4) return;
    check_codec("qsgd:4", n, false);
    check_codec("qsgd:4", n, true);
    check_codec("onebit", 4096 * BLOCK + 300, true);
}

/* The same codes in fewer bytes: the same sums, and what is kept for the next time. */
static void squeezed(void **state)
{
    (void)state;
    static const char *const texts[][2] = {{"int8", "int8:huffman"}, {"int4", "int4:huffman"}};
    const int64_t sizes[] = {0, 1, 5, 511, 513, 10007, size > 3 ? 512 : 4096 * BLOCK + 1000};
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i / 2], bytes[2];
        float *y[2];
        ll_codec *k[2] = {NULL, NULL};
        for (int h = 0; h < 2; h++) {
            y[h] = (float *)malloc(sizeof(float) * (size_t)(n + 1));
            OK(ll_codec_open(texts[i % 2][h], "h", n, 1, &k[h]));
            for (int64_t step = 0; step < 2; step++) {
                for (int64_t j = 0; j < n; j++) y[h][j] = powf(input(me, j), 3);
                OK(ll_codec_allreduce(k[h], comm, y[h], step, NULL));
            }
            bytes[h] = ll_codec_last(k[h]).bytes;
        }
        assert_memory_equal(y[0], y[1], sizeof(float) * (size_t)n);
        assert_memory_equal(ll_codec_residual(k[0]), ll_codec_residual(k[1]),
                            sizeof(float) * (size_t)n);
        if (n > 10000 && size > 1 && size < 5) assert_true(bytes[1] < bytes[0] * 97 / 100);
        for (int h = 0; h < 2; h++) {
            ll_codec_close(k[h]);
            free(y[h]);
        }
    }
}

/* Ranks round independently: the error of a sum of equal inputs grows as the root of their number.
 */
static void independent(void **state)
{
    (void)state;
    enum { N = 20000 };
    static float y[N];
    for (int i = 0; i < N; i++) y[i] = input(0, i % BLOCK);
    ll_codec *k = NULL;
    OK(ll_codec_open("qsgd:8", "i", N, 1, &k));
    OK(ll_codec_allreduce(k, comm, y, 0, NULL));
    double square = 0, step = 2.0 / 254;
    for (int i = 0; i < N; i++) square += pow((double)y[i] - size * input(0, i % BLOCK), 2);
    double rms =
        sqrt(square / N); /* size inputs of one step and, of more than one, a sum of size */
    double want = step * sqrt((size + (size > 1 ? (double)size * size : 0)) / 6);
    if (!(rms > 0.8 * want && rms < 1.2 * want)) fail_msg("rms %g, want %g", rms, want);
    ll_codec_close(k);
}

/* With error feedback the mean over steps of one gradient goes to it: off by 0.2 (1 rank) to 0.42
 * (7) after 5 steps, 0.04 to 0.11 after 50, 0.005 to 0.02 after 800. */
static void feedback(void **state)
{
    (void)state;
    enum { N = 3000, STEPS = 50 };
    static float y[N];
    static double mean[N];
    ll_codec *k = NULL;
    OK(ll_codec_open("onebit", "f", N, 1, &k));
    double off[2] = {0};
    memset(mean, 0, sizeof mean);
    for (int step = 1; step <= STEPS; step++) {
        fill(y, N);
        OK(ll_codec_allreduce(k, comm, y, step, NULL));
        for (int i = 0; i < N; i++) mean[i] += y[i];
        if (step != 5 && step != STEPS) continue;
        double lost = 0, whole = 0;
        for (int i = 0; i < N; i++) {
            double sum = 0;
            for (int r = 0; r < size; r++) sum += input(r, i);
            lost += pow(mean[i] / step - sum, 2), whole += sum * sum;
        }
        off[step == STEPS] = sqrt(lost / whole);
    }
    if (!(off[1] < 0.15 && off[1] < 0.35 * off[0]))
        fail_msg("off by %g after 5 steps, %g after %d", off[0], off[1], STEPS);
    ll_codec_close(k);
}

/* A NaN on one rank is seen on all, and in no residual. */
static void not_finite(void **state)
{
    (void)state;
    enum { N = 1500 };
    static const char *const texts[] = {"bf16", "qsgd:4", "onebit"};
    float y[N];
    for (int t = 0; t < 3; t++) {
        ll_codec *k = NULL;
        OK(ll_codec_open(texts[t], "n", N, 1, &k));
        for (int step = 0; step < 2; step++) {
            fill(y, N);
            if (me == size - 1 && step == 0) y[700] = NAN;
            OK(ll_codec_allreduce(k, comm, y, step, NULL));
            for (int i = 0; i < N; i++)
                if (step || i / BLOCK != 1) assert_true(isfinite(y[i]));
            assert_true(isnan(y[700]) == (step == 0));
        }
        ll_codec_close(k);
    }
}

/* Numbers of one of these kinds, known by rank and place. */
static float any(int kind, int rank, int64_t i)
{
    uint32_t bits = (uint32_t)ll_below_at(7, (uint64_t)rank, (uint64_t)i, 1ull << 32);
    float v;
    memcpy(&v, &bits, sizeof v);
    if (kind == 1) return input(rank, i) * 1e-3f;               /* as gradients are */
    if (kind == 2) return i / 40 % 5 ? 0 : input(rank, i);      /* rows of zeros */
    if (kind == 3) return i % 3 ? ldexpf(v, -100) : -0.0f;      /* of tiny ones, some not normal */
    return isfinite(v) && fabsf(v) < 1e37f ? v : i % 2 ? 0 : v; /* of every size, and not finite */
}

/* The sum has the bits of a canonical one that is not coded, in fewer bytes where there are any. */
static void lossless(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 31, 32, 33, 97, 1000, 20011};
    for (int kind = 0; kind < 4; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            int64_t n = sizes[s];
            float *x = (float *)malloc(4 * (size_t)n + 4), *y = (float *)malloc(4 * (size_t)n + 4);
            for (int64_t i = 0; i < n; i++) x[i] = y[i] = any(kind, me, i);
            ll_codec *k = NULL;
            OK(ll_codec_open("lossless", "l", n, 1, &k));
            assert_null(ll_codec_residual(k));
            for (int step = 0; step < 2; step++) {
                memcpy(y, x, 4 * (size_t)n);
                OK(ll_codec_allreduce(k, comm, y, step, "test"));
            }
            OK(ll_comm_allreduce(comm, x, n, LL_F32, LL_REDUCE_SUM,
                                 &(ll_coll_opts){.algorithm = "sharded"}));
            for (int64_t i = 0; i < n; i++) {
                bool same = !memcmp(&x[i], &y[i], 4) || (isnan(x[i]) && isnan(y[i]));
                if (!same)
                    fail_msg("kind %d, n %lld, element %lld: %a, not %a", kind, (long long)n,
                             (long long)i, y[i], x[i]);
            }
            ll_codec_report r = ll_codec_last(k);
            int64_t slice = (n + 32 * size - 1) / (32 * size) * 32; /* the longest */
            assert_true(r.bytes <= 2 * (size - 1) * (4 * slice + 1));
            if (kind == 1 && n > 9999 && size > 1) assert_true(r.bytes < 0.95 * r.dense_bytes);
            if (kind == 2 && n > 9999 && size > 1) assert_true(r.bytes < 0.35 * r.dense_bytes);
            ll_codec_close(k);
            free(x);
            free(y);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lossless),    cmocka_unit_test(sums),
                                       cmocka_unit_test(long_vector), cmocka_unit_test(squeezed),
                                       cmocka_unit_test(independent), cmocka_unit_test(feedback),
                                       cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, start, end);
}
