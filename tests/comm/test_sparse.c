/* Top-k and streams on one rank: selection against sorting, sums against dense ones, bytes there
 * and back, bytes that are no stream, the choice of a form. */
#include "base/rng.h"
#include "comm/sparse.h"
#include "comm/topk.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST = 200000 };
#ifdef __SANITIZE_ADDRESS__ /* sorting is slow: of lengths that differ in nothing else, one */
enum { LONGEST = 4097, STEPS = 8 };
#else
enum { LONGEST = 65536, STEPS = 60 };
#endif

static float data[MOST], residual[MOST], sums[MOST], value[MOST];
static uint32_t ix[MOST], order[MOST];

static uint32_t magnitude(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u & 0x7fffffffu;
}

static int by_magnitude(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    uint32_t x = magnitude(sums[i]), y = magnitude(sums[j]);
    return x != y ? (x < y ? 1 : -1) : (i > j) - (i < j);
}

static int by_index(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    return (i > j) - (i < j);
}

/* Takes the k largest of data + residual and holds them against all sums sorted. */
static void check_take(ll_topk *t, int64_t n, int64_t k)
{
    double norm2, want = 0;
    for (int64_t i = 0; i < n; i++) {
        sums[i] = data[i] + residual[i];
        order[i] = (uint32_t)i;
        if (isfinite(sums[i])) want += (double)sums[i] * sums[i];
    }
    qsort(order, (size_t)n, sizeof *order, by_magnitude);
    qsort(order, (size_t)k, sizeof *order, by_index);
    memset(ix, 0x7f, sizeof ix);
    memset(value, 0x7f, sizeof value);
    ll_topk_take(t, data, residual, ix, value, &norm2);
    for (int64_t i = 0; i < k; i++) {
        assert_int_equal(ix[i], order[i]);
        float v = sums[ix[i]] + 0.0f;
        assert_memory_equal(&value[i], &v, 4);
        assert_false(value[i] == 0 && signbit(value[i]));
        sums[ix[i]] = 0;
    }
    assert_memory_equal(residual, sums, sizeof(float) * (size_t)n);
    for (int64_t i = 0; i < n; i++) assert_true(magnitude(data[i]) == 0);
    if (isfinite(norm2) && want > 1e-12) /* squares of f32 */
        assert_true(fabs(norm2 - want) <= 1e-5 * want);
    if (k < MOST) assert_int_equal(ix[k], 0x7f7f7f7f);
}

typedef float (*filler)(int64_t i, int64_t n);
static uint64_t seed = 1;

static float normal(int64_t i, int64_t n)
{
    (void)n;
    return (float)ll_normal_at(seed, 1, (uint64_t)i);
}
static float zeros(int64_t i, int64_t n)
{
    (void)n;
    return i % 2 ? -0.0f : 0.0f;
}
static float equal(int64_t i, int64_t n)
{
    (void)n;
    return i % 3 ? -1.5f : 1.5f;
}
static float few_values(int64_t i, int64_t n)
{
    (void)n;
    return (float)(int)ll_below_at(seed, 2, (uint64_t)i, 7) - 3;
}
static float rising(int64_t i, int64_t n)
{
    (void)n;
    return (float)i;
}
static float falling(int64_t i, int64_t n)
{
    return (float)(n - i);
}
static float one_corner(int64_t i, int64_t n) /* all that counts lies in a place samples miss */
{
    return i < n / 100 ? 1e6f + (float)i : 1e-20f * (float)(i % 5);
}
static float wide(int64_t i, int64_t n)
{
    (void)n;
    return (float)exp(40 * ll_normal_at(seed, 3, (uint64_t)i) / 2);
}
static float odd(int64_t i, int64_t n)
{
    (void)n;
    if (i % 997 == 5) return i % 2 ? NAN : -INFINITY;
    return i % 10 ? 1e-42f * (float)(i % 50) : (float)i;
}

static void selection(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 2, 3, 31, 32, 33, 100, 4095, 4097, 10007, 65536, 99991};
    static const double shares[] = {1e-5, 0.001, 0.01, 0.124, 0.3, 0.999, 1};
    static const filler fill[] = {normal,  zeros,      equal, few_values, rising,
                                  falling, one_corner, wide,  odd};
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int f = 0; f < (int)(sizeof fill / sizeof *fill); f++) {
        for (int l = 0; l < 12; l++) {
            int64_t n = lengths[l], before = 0;
            if (f > 0 && n > LONGEST) continue;
            for (int s = 0; s < 7; s++) {
                int64_t k = (int64_t)ceil(shares[s] * (double)n);
                ll_topk *t;
                if (k == before) continue;
                before = k;
                assert_int_equal(ll_topk_open(n, k, &t), LL_OK);
                memset(residual, 0, sizeof residual);
                for (int step = 0; step < 2; step++, seed++) {
                    for (int64_t i = 0; i < n; i++) data[i] = fill[f](i, n);
                    check_take(t, n, k);
                }
                ll_topk_close(t);
            }
        }
    }
}

/* The guess fails where the sample sees nothing of what is large: still exact. */
static void wrong_guess(void **state)
{
    (void)state;
    int64_t n = 160000, k = 100;
    ll_topk *t;
    double norm2;
    assert_int_equal(ll_topk_open(n, k, &t), LL_OK);
    memset(residual, 0, sizeof residual);
    /* Each selection empties the largest: the sample of one step cannot know the next's. Values
     * that only a few elements reach, in growing numbers, make it guess too high at some time. */
    for (int step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < n; i++) data[i] = i % 16000 == 0 ? 0 : 1e-3f;
        for (int64_t i = 0; i < 6 + step; i++)
            for (int64_t m = 0; m < 16; m++) {
                uint64_t at = ll_below_at(7, (uint64_t)step, (uint64_t)(16 * i + m), (uint64_t)n);
                data[at] = 5 + (float)m;
            }
        check_take(t, n, k);
    }
    ll_topk_close(t);
    /* Directly: nothing but what a list of candidates must be cut to, and cut again. */
    assert_int_equal(ll_topk_open(n, k, &t), LL_OK);
    memset(residual, 0, sizeof residual);
    for (int64_t i = 0; i < n; i++) data[i] = (float)(i / 7);
    check_take(t, n, k);
    ll_topk_take(t, data, residual, ix, value, &norm2);
    ll_topk_close(t);
    ll_topk_close(NULL);
}

static void bad_sizes(void **state)
{
    (void)state;
    ll_topk *t;
    assert_int_equal(ll_topk_open(10, 11, &t), LL_E_ARG);
    assert_null(t);
    assert_int_equal(ll_topk_open(10, 0, &t), LL_E_ARG);
    assert_int_equal(ll_topk_open(-1, 0, &t), LL_E_ARG);
    assert_int_equal(ll_topk_open((int64_t)1 << 32, 1, &t), LL_E_ARG);
    double norm2 = 1;
    assert_int_equal(ll_topk_open(0, 0, &t), LL_OK);
    ll_topk_take(t, data, residual, ix, value, &norm2);
    assert_true(norm2 == 0);
    ll_topk_close(t);
    ll_sparse *w;
    assert_int_equal(ll_sparse_open(10, 11, 0, &w), LL_E_ARG);
    assert_int_equal(ll_sparse_open(10, 1, 1, &w), LL_E_ARG);
    assert_int_equal(ll_sparse_open(10, 1, 9, &w), LL_E_ARG);
    ll_sparse_close(NULL);
}

/* ---- streams ---- */
static ll_svec room_for(int64_t len, int64_t room, bool dense)
{
    ll_svec s = {.len = len, .room = room};
    s.index = (uint32_t *)malloc(4 * (size_t)room + 4);
    s.value = (float *)malloc(4 * (size_t)room + 4);
    s.dense = dense ? (float *)malloc(4 * (size_t)len + 4) : NULL;
    memset(s.index, 0x7f, 4 * (size_t)room + 4);
    memset(s.value, 0x7f, 4 * (size_t)room + 4);
    if (dense) memset(s.dense, 0x7f, 4 * (size_t)len + 4);
    return s;
}

static void done_with(ll_svec *s)
{
    free(s->index);
    free(s->value);
    free(s->dense);
}

static ll_svec random_stream(int64_t len, double density, uint64_t stream)
{
    ll_svec s = room_for(len, len, false);
    for (int64_t i = 0; i < len; i++) {
        if (ll_uniform_at(seed, stream, (uint64_t)i) >= density) continue;
        s.index[s.count] = (uint32_t)i;
        s.value[s.count++] = (float)ll_normal_at(seed, stream + 100, (uint64_t)i);
    }
    return s;
}

static void spread(const ll_svec *s, float *out)
{
    memset(out, 0, 4 * (size_t)s->len);
    for (int64_t i = 0; i < s->count && !s->is_dense; i++) out[s->index[i]] = s->value[i];
    if (s->is_dense) memcpy(out, s->dense, 4 * (size_t)s->len);
}

static float canonical(float *const *parts, int64_t i, int a, int b)
{
    if (b - a == 1) return parts[a][i];
    int q = 1;
    while (2 * q < b - a) q *= 2;
    return canonical(parts, i, a, a + q) + canonical(parts, i, a + q, b);
}

static void sum_of(int n, int64_t len, double density, bool dense)
{
    ll_svec s[9], out = room_for(len, ll_svec_most(len), true);
    const ll_svec *src[9];
    ll_svec_head heads[18];
    float *parts[9], *got = (float *)malloc(4 * (size_t)len + 4);
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        s[i] = random_stream(len, i == 3 ? 0 : density, (uint64_t)i);
        parts[i] = (float *)malloc(4 * (size_t)len + 4);
        spread(&s[i], parts[i]);
        if (i == 2 && density > 0.5) { /* a dense one among them */
            s[i].dense = (float *)malloc(4 * (size_t)len + 4);
            memcpy(s[i].dense, parts[i], 4 * (size_t)len);
            s[i].is_dense = true;
            s[i].count = len;
        }
        total += s[i].count;
        src[i] = &s[i];
    }
    assert_int_equal(ll_svec_sum(src, n, dense, heads, &out), LL_OK);
    assert_int_equal(out.is_dense, dense || total > ll_svec_most(len));
    for (int64_t i = 1; i < out.count && !out.is_dense; i++)
        assert_true(out.index[i - 1] < out.index[i]);
    spread(&out, got);
    for (int64_t i = 0; i < len; i++) {
        float want = canonical(parts, i, 0, n);
        assert_memory_equal(&got[i], &want, 4);
    }
    for (int i = 0; i < n; i++) done_with(&s[i]), free(parts[i]);
    done_with(&out);
    free(got);
}

static void sum_streams(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 7, 64, 1009};
    static const double densities[] = {0, 0.01, 0.1, 0.6, 1};
    for (int n = 1; n <= 9; n++)
        for (int l = 0; l < 5; l++)
            for (int d = 0; d < 5; d++)
                for (int dense = 0; dense < 2; dense++) {
                    seed++;
                    sum_of(n, lengths[l], densities[d], dense);
                }
    ll_svec a = random_stream(100, 0.5, 1), b = room_for(100, 3, false);
    const ll_svec *src[] = {&a};
    ll_svec_head heads[2];
    assert_int_equal(ll_svec_sum(src, 1, false, heads, &b), LL_E_ARG);
    done_with(&a);
    done_with(&b);
}

/* There and back; with bits, the values are what write left, close to what they were, and residual
 * holds the difference. */
static void there_and_back(int64_t len, double density, int bits, bool as_dense)
{
    ll_svec s = random_stream(len, density, 5), got = room_for(len, len, true);
    float *rest = (float *)calloc((size_t)len + 4, 4), *was = (float *)malloc(4 * (size_t)len + 4);
    float *is = (float *)malloc(4 * (size_t)len + 4), *read = (float *)malloc(4 * (size_t)len + 4);
    double lost2 = 0, sum2 = 0;
    bool may_be_dense;
    ll_svec_code code = {
        .bits = bits, .seed = seed, .stream = 9, .base = 3, .residual = rest, .lost2 = &lost2};
    spread(&s, was);
    if (as_dense) {
        s.dense = (float *)malloc(4 * (size_t)len + 4);
        memcpy(s.dense, was, 4 * (size_t)len);
        s.is_dense = true;
        s.count = len;
    }
    size_t bound = as_dense ? ll_svec_dense_bytes(len, bits)
                            : ll_svec_bound(len, s.count, bits, &may_be_dense);
    uint8_t *bytes = (uint8_t *)malloc(bound + 1);
    bytes[bound] = 0x7f;
    size_t size = ll_svec_write(&s, &code, bytes);
    assert_true(size <= bound && bytes[bound] == 0x7f);
    assert_int_equal(ll_svec_read(bytes, size, bits, &got), LL_OK);
    if (!as_dense && got.is_dense) assert_true(may_be_dense);
    spread(&s, is);
    spread(&got, read);
    assert_memory_equal(is, read, 4 * (size_t)len);
    for (int64_t i = 0; i < len; i++) {
        float lost = was[i] - is[i];
        assert_memory_equal(&rest[3 + i], &lost, 4);
        assert_true(bits || lost == 0);
        assert_true(fabsf(lost) <= 6.0f / (float)((1 << (bits ? bits - 1 : 1)) - 1));
        sum2 += (double)lost * lost;
    }
    assert_true(fabs(sum2 - lost2) <= 1e-9 * sum2);
    for (size_t cut = 0; cut < size; cut += 1 + size / 50) /* cut short: never accepted */
        assert_int_equal(ll_svec_read(bytes, cut, bits, &got), LL_E_COMM);
    assert_int_equal(ll_svec_read(bytes, size + 1, bits, &got), LL_E_COMM);
    free(bytes), free(rest), free(was), free(is), free(read);
    done_with(&s);
    done_with(&got);
}

static void bytes_and_back(void **state)
{
    (void)state;
    static const int64_t lengths[] = {0, 1, 2, 511, 512, 513, 5003, 70001};
    static const double densities[] = {0, 0.001, 0.05, 0.3, 0.9, 1};
    for (int bits = 0; bits <= 8; bits++)
        for (int l = 0; l < 8 && bits != 1; l++)
            for (int d = 0; d < 6; d++)
                for (int dense = 0; dense < 2; dense++) {
                    seed++;
                    there_and_back(lengths[l], densities[d], bits, dense);
                }
}

/* Stochastic rounding has the right mean, does not depend on what else is in the stream, and NaN
 * and infinity are not hidden. */
static void rounding(void **state)
{
    (void)state;
    uint8_t bytes[64];
    uint32_t at[2] = {4, 9};
    float v[2];
    ll_svec s = {.len = 100, .count = 2, .index = at, .value = v, .room = 2};
    ll_svec_code code = {.bits = 3, .seed = 5};
    double mean = 0;
    for (int i = 0; i < 4000; i++) {
        v[0] = 1, v[1] = 0.4f;
        code.stream = (uint64_t)i;
        ll_svec_write(&s, &code, bytes);
        assert_true(v[0] == 1 && (fabsf(v[1] - 1 / 3.0f) < 1e-6 || fabsf(v[1] - 2 / 3.0f) < 1e-6));
        mean += v[1] / 4000;
    }
    assert_true(fabs(mean - 0.4) < 0.01);
    const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float rest[100] = {0};
        double lost2 = 0;
        code.residual = rest;
        code.lost2 = &lost2;
        v[0] = strange[i], v[1] = 1;
        ll_svec_write(&s, &code, bytes);
        assert_true(isnan(v[0]) && isnan(v[1]));
        for (int j = 0; j < 100; j++) assert_true(rest[j] == 0);
    }
    v[0] = 1e-45f, v[1] = -1e-45f; /* the smallest there is */
    code.residual = NULL;
    ll_svec_write(&s, &code, bytes);
    assert_true(v[0] == 1e-45f && v[1] == -1e-45f);
}

static void no_stream(void **state)
{
    (void)state;
    ll_svec s = room_for(1000, 5, false);
    static const struct {
        const char *what;
        size_t size;
        uint8_t bytes[24];
    } bad[] = {
        {"no header", 7, {0}},
        {"kind 2", 8, {2}},
        {"4 bits", 8, {0, 4}},
        {"not 0", 8, {0, 0, 1}},
        {"6 pairs", 40, {0, 0, 0, 0, 6}},
        {"2^32-1 pairs", 24, {0, 0, 0, 0, 255, 255, 255, 255}},
        {"dense, no room", 8, {1, 0, 0, 0, 0xe8, 3}},
        {"no values", 11, {0, 0, 0, 0, 1}},
        {"no gap", 12, {0, 0, 0, 0, 1}},
        {"gap goes on", 13, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x80}},
        {"gap of 1000", 14, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xe8, 7}},
        {"gap of 2^34", 17, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x40}},
        {"gap in 6 bytes", 18, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 128, 128, 128, 128, 128, 1}},
        {"gap 0 as 80 00", 14, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x80, 0}},
        {"a byte too many", 14, {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3, 0}},
        {"second gap beyond", 19, {0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xe7, 7, 0}},
    };
    for (int i = 0; i < (int)(sizeof bad / sizeof *bad); i++)
        if (ll_svec_read(bad[i].bytes, bad[i].size, 0, &s) != LL_E_COMM)
            fail_msg("%s", bad[i].what);
    const uint8_t good[] = {0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x40, 0xe7, 7};
    assert_int_equal(ll_svec_read(good, sizeof good, 0, &s), LL_OK);
    assert_true(s.count == 1 && s.index[0] == 999 && s.value[0] == 2);
    /* 2 bits: codes 0, 1, 2 */
    const uint8_t code3[] = {0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0x80, 0x3f, 3, 0};
    assert_int_equal(ll_svec_read(code3, sizeof code3, 2, &s), LL_E_COMM);
    done_with(&s);
}

static void choice(void **state)
{
    (void)state;
    /* Few bytes: latency decides. Many: bytes do. A union that fills the vector: dense. */
    assert_int_equal(ll_sparse_choose(1000, 10, 0, 8, 1e-5, 1e-9, false), LL_SPARSE_DOUBLING);
    assert_int_equal(ll_sparse_choose(60000000, 60000, 0, 16, 1e-5, 1e-8, false), LL_SPARSE_SPLIT);
    assert_int_equal(ll_sparse_choose(60000000, 6000000, 0, 32, 1e-5, 1e-8, false),
                     LL_SPARSE_DENSE);
    assert_int_equal(ll_sparse_choose(60000000, 60000000, 0, 4, 1e-5, 1e-8, false),
                     LL_SPARSE_DENSE);
    assert_int_not_equal(ll_sparse_choose(1000, 10, 0, 7, 1e-5, 1e-9, true), LL_SPARSE_DOUBLING);
    for (int p = 1; p < 9; p++) {
        assert_int_not_equal(ll_sparse_choose(0, 0, 0, p, 1e-5, 1e-9, false), LL_SPARSE_AUTO);
        assert_int_not_equal(ll_sparse_choose(1, 1, 4, p, 1e-5, 1e-9, false), LL_SPARSE_AUTO);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selection),      cmocka_unit_test(wrong_guess),
        cmocka_unit_test(bad_sizes),      cmocka_unit_test(sum_streams),
        cmocka_unit_test(bytes_and_back), cmocka_unit_test(rounding),
        cmocka_unit_test(no_stream),      cmocka_unit_test(choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
