/* mpi: 1 2 3 4 7
 * The top-k codec and the sparse all-reduce in each form: against sums of brute force, bit for bit
 * in canonical order; the same bits on every rank; bytes reported are bytes counted; inputs come
 * through in the end (error feedback); a restored residual gives the same bits. */
#include "comm/codec_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static ll_comm *comm;
static int p, me;
static uint64_t seed = 11;

static void ok(ll_err e)
{
    if (e != LL_OK) fail_msg("rank %d: %s", me, ll_error_text());
}

static float *floats(int64_t n)
{
    float *x = (float *)malloc(sizeof(float) * (size_t)(n + 1));
    memset(x, 0x7f, sizeof(float) * (size_t)(n + 1));
    return x;
}

/* A number of -1..1, most of them small. */
static double number(uint64_t stream, int64_t i)
{
    uint64_t h = (seed + stream * 1000003 + (uint64_t)i) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    double u = (double)(h >> 11) * 0x1p-52 - 1;
    return u * u * u;
}

/* Input of a rank at a step: some of it shared by all ranks, so that unions overlap. */
static void input(float *x, int64_t n, int rank, int step)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(number((uint64_t)(1000 * step + rank), i) +
                       (i % 3 ? 0 : 2 * number((uint64_t)(900000 + step), i)));
}

static uint32_t magnitude(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    return u & 0x7fffffffu;
}

static const float *sorted;
static int by_magnitude(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    uint32_t x = magnitude(sorted[i]), y = magnitude(sorted[j]);
    return x != y ? (x < y ? 1 : -1) : (i > j) - (i < j);
}

/* What a rank keeps of residual + x: kept gets it, residual the rest. */
static void brute_take(const float *x, float *residual, float *kept, int64_t n, int64_t k)
{
    uint32_t *order = (uint32_t *)malloc(sizeof(uint32_t) * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) {
        residual[i] = x[i] + residual[i];
        order[i] = (uint32_t)i;
        kept[i] = 0;
    }
    sorted = residual;
    qsort(order, (size_t)n, sizeof *order, by_magnitude);
    for (int64_t i = 0; i < k; i++) {
        kept[order[i]] = residual[order[i]] + 0.0f;
        residual[order[i]] = 0;
    }
    free(order);
}

static float canonical(float *const *parts, int64_t i, int a, int b)
{
    if (b - a == 1) return parts[a][i];
    int q = 1;
    while (2 * q < b - a) q *= 2;
    return canonical(parts, i, a, a + q) + canonical(parts, i, a + q, b);
}

/* The order of doubling: ranks from the largest power of two on are added to the first ones. */
static float doubled(float *const *parts, int64_t i)
{
    int q = 1;
    while (2 * q <= p) q *= 2;
    float *sums[16], cell[16];
    for (int r = 0; r < q; r++) {
        cell[r] = r + q < p ? parts[r][i] + parts[r + q][i] : parts[r][i];
        sums[r] = &cell[r];
    }
    return canonical(sums, 0, 0, q);
}

/* Are n floats the same on all ranks, to the bit? */
static void same_everywhere(const float *x, int64_t n)
{
    uint32_t sum[4] = {0};
    int32_t most[4];
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        sum[0] = sum[0] * 31 + u;
        sum[1] = (sum[1] ^ u) * 16777619u;
    }
    for (int i = 0; i < 2; i++)
        sum[2 + i] = ~sum[i]; /* their largest: the least of the first two */
    memcpy(most, sum, sizeof most);
    ok(ll_comm_allreduce(comm, most, 4, LL_I32, LL_REDUCE_MAX, NULL));
    assert_memory_equal(most, sum, sizeof most);
}

static ll_codec *opened(const char *text, int64_t n, ll_sparse_form form)
{
    ll_codec *k;
    ok(ll_codec_open(text, "w", n, 5, &k));
    k->form = form;
    return k;
}

static void exact_case(const char *text, int64_t n, ll_sparse_form form)
{
    ll_codec *k = opened(text, n, form);
    int64_t count = (int64_t)llround(atof(text + 5) * (double)n); /* "topk:SHARE" */
    if (count < 1 && n > 0) count = 1;
    float *x = floats(n), *kept[16], *rest[16];
    for (int r = 0; r < p; r++) {
        kept[r] = floats(n);
        rest[r] = floats(n);
        memset(rest[r], 0, sizeof(float) * (size_t)n);
    }
    for (int step = 0; step < 2; step++) {
        for (int r = 0; r < p; r++) {
            input(x, n, r, step);
            brute_take(x, rest[r], kept[r], n, count);
        }
        input(x, n, me, step);
        int64_t before = ll_comm_used(comm).count.bytes;
        ok(ll_codec_allreduce(k, comm, x, step, "test"));
        ll_codec_report got = ll_codec_last(k);
        assert_int_equal(got.bytes, ll_comm_used(comm).count.bytes - before);
        if (form != LL_SPARSE_AUTO) assert_string_equal(got.form, ll_sparse_form_name(form));
        double part = 0, all = 0;
        for (int64_t i = 0; i < n; i++) {
            float want =
                !strcmp(got.form, "doubling") ? doubled(kept, i) : canonical(kept, i, 0, p);
            if (memcmp(&x[i], &want, 4))
                fail_msg("%s of %lld, %s, rank %d, step %d: element %lld is %.9g, want %.9g", text,
                         (long long)n, got.form, me, step, (long long)i, (double)x[i],
                         (double)want);
            part += (double)rest[me][i] * rest[me][i];
            all += (double)rest[me][i] * rest[me][i] + (double)kept[me][i] * kept[me][i];
        }
        if (n) assert_memory_equal(ll_codec_residual(k), rest[me], sizeof(float) * (size_t)n);
        if (n) assert_true(fabs(got.error - sqrt(part / all)) < 1e-4);
        same_everywhere(x, n);
    }
    free(x);
    for (int r = 0; r < p; r++) free(kept[r]), free(rest[r]);
    ll_codec_close(k);
}

static void exact(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 5, 31, 1009, 9001};
    static const char *const texts[] = {"topk:0.001", "topk:0.02", "topk:0.3", "topk:0.8",
                                        "topk:1"};
    for (int l = 0; l < 7; l++)
        for (int t = 0; t < 5; t++)
            for (int f = LL_SPARSE_AUTO; f <= LL_SPARSE_DENSE; f++) {
                if (lengths[l] < 10 && t % 2) continue;
                if (lengths[l] > 2000 && (t != 1 || f != LL_SPARSE_AUTO)) continue;
                exact_case(texts[t], lengths[l], (ll_sparse_form)f);
            }
}

/* In few bits: the same bits everywhere, and inputs up to now are results up to now and what all
 * residuals hold. */
static void quantised_case(const char *text, int64_t n, ll_sparse_form form)
{
    ll_codec *k = opened(text, n, form);
    float *x = floats(n), *sent = floats(n);
    double *in = (double *)calloc((size_t)n, sizeof *in), *out = (double *)calloc((size_t)n, 8);
    for (int step = 0; step < 4; step++) {
        for (int r = 0; r < p; r++) {
            input(x, n, r, step);
            for (int64_t i = 0; i < n; i++) in[i] += (double)x[i];
        }
        input(x, n, me, step);
        int64_t before = ll_comm_used(comm).count.bytes;
        ok(ll_codec_allreduce(k, comm, x, step, NULL));
        ll_codec_report got = ll_codec_last(k);
        assert_int_equal(got.bytes, ll_comm_used(comm).count.bytes - before);
        assert_true(got.error >= 0 && got.error < 2);
        same_everywhere(x, n);
        for (int64_t i = 0; i < n; i++) out[i] += (double)x[i];
    }
    memcpy(sent, ll_codec_residual(k), sizeof(float) * (size_t)n);
    ok(ll_comm_allreduce(comm, sent, n, LL_F32, LL_REDUCE_SUM, NULL));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(out[i] + (double)sent[i] - in[i]) <= 1e-4))
            fail_msg("%s, %s, rank %d: element %lld: %.9g sent and %.9g left of %.9g", text,
                     ll_sparse_form_name(form), me, (long long)i, out[i], (double)sent[i], in[i]);
    free(x), free(sent), free(in), free(out);
    ll_codec_close(k);
}

static void quantised(void **state)
{
    (void)state;
    static const char *const texts[] = {"topk:0.01:4", "topk:0.1:2", "topk:0.5:8", "topk:1:5"};
    for (int t = 0; t < 4; t++)
        for (int f = LL_SPARSE_AUTO; f <= LL_SPARSE_DENSE; f++) {
            quantised_case(texts[t], 3001, (ll_sparse_form)f);
            quantised_case(texts[t], 3, (ll_sparse_form)f);
        }
}

/* Gradient descent on |w - target|^2 / 2 summed over ranks gets there with a fifth of each
 * gradient. */
static void converges(void **state)
{
    (void)state;
    static const char *const texts[] = {"topk:0.2", "topk:0.2:4"};
    int64_t n = 500;
    float *w = floats(n), *g = floats(n), *target = floats(n);
    for (int t = 0; t < 2; t++) {
        ll_codec *k = opened(texts[t], n, LL_SPARSE_AUTO);
        input(target, n, me, 7);
        memset(w, 0, sizeof(float) * (size_t)n);
        double first = 0, last = 0;
        for (int step = 0; step < 120; step++) {
            double norm = 0;
            for (int64_t i = 0; i < n; i++) g[i] = w[i] - target[i];
            ok(ll_codec_allreduce(k, comm, g, step, NULL));
            for (int64_t i = 0; i < n; i++) {
                w[i] -= 0.1f * g[i] / (float)p;
                norm += (double)g[i] * g[i];
            }
            if (step < 30) first += norm;
            if (step >= 90) last += norm;
        }
        /* w should be the mean of the targets: the sum of w - target over ranks goes to 0. */
        float *mean = floats(n);
        memcpy(mean, target, sizeof(float) * (size_t)n);
        ok(ll_comm_allreduce(comm, mean, n, LL_F32, LL_REDUCE_SUM, NULL));
        double away = 0, size = 0;
        for (int64_t i = 0; i < n; i++) {
            away += pow((double)w[i] - (double)mean[i] / p, 2);
            size += pow((double)mean[i] / p, 2);
        }
        if (!(away < 0.01 * size && last < first))
            fail_msg("%s: %g of %g away", texts[t], sqrt(away), sqrt(size));
        free(mean);
        ll_codec_close(k);
    }
    free(w), free(g), free(target);
}

static void restored(void **state)
{
    (void)state;
    static const char *const texts[] = {"topk:0.02", "topk:0.02:4"};
    int64_t n = 2003;
    float *x = floats(n), *again = floats(n);
    for (int t = 0; t < 2; t++) {
        ll_codec *a = opened(texts[t], n, LL_SPARSE_AUTO), *b = NULL;
        for (int step = 0; step < 6; step++) {
            if (step == 3) { /* another process takes over here */
                b = opened(texts[t], n, LL_SPARSE_AUTO);
                memcpy(ll_codec_residual(b), ll_codec_residual(a), sizeof(float) * (size_t)n);
            }
            input(x, n, me, step);
            memcpy(again, x, sizeof(float) * (size_t)n);
            ok(ll_codec_allreduce(a, comm, x, step, NULL));
            if (!b) continue;
            ok(ll_codec_allreduce(b, comm, again, step, NULL));
            assert_memory_equal(x, again, sizeof(float) * (size_t)n);
            assert_memory_equal(ll_codec_residual(a), ll_codec_residual(b),
                                sizeof(float) * (size_t)n);
        }
        ll_codec_close(a);
        ll_codec_close(b);
    }
    free(x), free(again);
}

/* All the weight in one rank's part of the vector, or all ranks with the same elements, or one
 * rank with NaN: right whatever is predicted. */
static void uneven(void **state)
{
    (void)state;
    int64_t n = 4001;
    float *x = floats(n);
    for (int f = LL_SPARSE_AUTO; f <= LL_SPARSE_DENSE; f++) {
        ll_codec *k = opened("topk:0.1", n, (ll_sparse_form)f);
        for (int64_t i = 0; i < n; i++) x[i] = i < 400 ? (float)(me + 1) : 1e-3f;
        ok(ll_codec_allreduce(k, comm, x, 0, NULL));
        for (int64_t i = 0; i < n; i++)
            assert_true(x[i] == (i < 400 ? (float)(p * (p + 1) / 2) : 0));
        ll_codec_close(k);
        for (int bits = 0; bits <= 4; bits += 4) {
            k = opened(bits ? "topk:0.1:4" : "topk:0.1", n, (ll_sparse_form)f);
            for (int64_t i = 0; i < n; i++) x[i] = (float)(i % 7);
            if (me == p - 1) x[17] = NAN;
            ok(ll_codec_allreduce(k, comm, x, 0, NULL));
            assert_true(isnan(x[17]));
            for (int64_t i = 0; i < n; i++) assert_true(isfinite(ll_codec_residual(k)[i]));
            ll_codec_close(k);
        }
    }
    free(x);
}

static void texts(void **state)
{
    (void)state;
    static const char *const bad[] = {"topk",     "topk:",     "topk:0",     "topk:1.5",
                                      "topk:x",   "topk:0.1x", "topk:0.1:1", "topk:0.1:9",
                                      "topk:nan", "topk:-0.1", "topk:0.1:",  "topk:0.1:4:2"};
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++) {
        ll_codec *k;
        if (ll_codec_open(bad[i], "w", 10, 1, &k) != LL_E_ARG) fail_msg("%s", bad[i]);
        assert_null(k);
        assert_non_null(strstr(ll_error_text(), bad[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact),    cmocka_unit_test(quantised), cmocka_unit_test(converges),
        cmocka_unit_test(restored), cmocka_unit_test(uneven),    cmocka_unit_test(texts),
    };
    ll_comm_opts opts = {.timeout_s = 60, .table = ""};
    if (ll_comm_open(&opts, &comm) != LL_OK) return 1;
    p = ll_comm_size(comm);
    me = ll_comm_rank(comm);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ll_comm_close(comm);
    return failed;
}
