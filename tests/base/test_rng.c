/* Random numbers: Philox's published answers, permutations, moments, and what they depend on. */
#include "base/crc32c.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Known answers that come with Random123, for Philox4x32-10. Counter words: block, then stream. */
static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t *c = cases[i].counter, *k = cases[i].key;
        uint32_t out[4] = {0};
        ll_philox((uint64_t)k[1] << 32 | k[0], (uint64_t)c[3] << 32 | c[2],
                  (uint64_t)c[1] << 32 | c[0], out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void permutes(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 997, 1024, 60000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t n = sizes[s], same = 0;
        char *seen = (char *)calloc(n, 1);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = ll_permute(7, 3, i, n);
            assert_true(p < n);
            assert_false(seen[p]);
            seen[p] = 1;
            same += p == i;
        }
        if (n > 900) assert_true(same < 20); /* a shuffle keeps about one in its place */
        free(seen);
    }
    /* Another seed or stream is another shuffle; sizes past 32 bits stay in range. */
    int moved = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        moved += ll_permute(7, 3, i, 1000) != ll_permute(8, 3, i, 1000);
        moved += ll_permute(7, 3, i, 1000) != ll_permute(7, 4, i, 1000);
        assert_true(ll_permute(7, 3, i, ((uint64_t)1 << 40) + 1) <= (uint64_t)1 << 40);
    }
    assert_true(moved > 1900);
}

/* The same bits on every CPU and GPU (test_op_gpu draws them there), one at a time and many at
 * once; as near to what the library's log and sine make as they are to the truth. */
static void normal_bits(void **state)
{
    (void)state;
    enum { BLOCKS = 16 * LL_RNG_LANES, RUN = 4 * LL_RNG_LANES };
    uint32_t sum = 0;
    for (uint64_t b = 0; b < BLOCKS; b += LL_RNG_LANES) {
        double many[RUN], four[4];
        uint32_t words[RUN], w[4];
        ll_normal_many(7, 3, b, many);
        ll_philox_many(7, 3, b, words);
        sum = ll_crc32c(sum, many, sizeof many);
        for (uint64_t l = 0; l < LL_RNG_LANES; l++) {
            ll_normal_4(7, 3, b + l, four);
            ll_philox(7, 3, b + l, w);
            assert_memory_equal(many + 4 * l, four, sizeof four);
            assert_memory_equal(words + 4 * l, w, sizeof w);
            for (int i = 0; i < 4; i++) {
                double u = ldexp(w[i & 2] + 0.5, -32), t = ldexp(w[(i & 2) + 1] + 0.5, -32);
                double a = 6.283185307179586 * t, r = sqrt(-2 * log(u));
                assert_true(fabs(four[i] - r * (i & 1 ? sin(a) : cos(a))) < 1e-14);
            }
        }
    }
    assert_int_equal(sum, 0xec18fbfc);
}

/* Mean, variance, and fourth moment within five standard errors; neighbours are not correlated. */
static void normal_moments(void **state)
{
    (void)state;
    enum { N = 200000 };
    double m1 = 0, m2 = 0, m4 = 0, lag = 0, last = 0;
    for (int i = 0; i < N; i++) {
        double v = ll_normal_at(42, ll_stream("weight", 0), (uint64_t)i);
        assert_true(isfinite(v));
        m1 += v / N;
        m2 += v * v / N;
        m4 += v * v * v * v / N;
        lag += v * last / N;
        last = v;
    }
    double e = 5 / sqrt(N);
    assert_true(fabs(m1) < e);
    assert_true(fabs(m2 - 1) < e * sqrt(2));
    assert_true(fabs(m4 - 3) < e * sqrt(96));
    assert_true(fabs(lag) < e);
}

static void uniform_moments(void **state)
{
    (void)state;
    enum { N = 200000, BINS = 10 };
    double mean = 0, lag = 0, last = 0;
    int bins[BINS] = {0};
    for (int i = 0; i < N; i++) {
        double v = (double)ll_uniform_at(42, 9, (uint64_t)i);
        assert_true(v > 0 && v < 1);
        mean += v / N;
        lag += (v - 0.5) * last / N;
        last = v - 0.5;
        bins[(int)(v * BINS)]++;
    }
    assert_true(fabs(mean - 0.5) < 5 / sqrt(12.0 * N));
    assert_true(fabs(lag) < 5.0 / 12 / sqrt(N));
    double chi2 = 0;
    for (int i = 0; i < BINS; i++) chi2 += pow(bins[i] - N / BINS, 2) / (N / BINS);
    assert_true(chi2 < 35); /* 9 degrees of freedom: one in twenty thousand */
}

static void below(void **state)
{
    (void)state;
    int count[7] = {0};
    for (uint64_t i = 0; i < 70000; i++) {
        uint64_t v = ll_below_at(1, 2, i, 7);
        assert_true(v < 7);
        count[v]++;
        assert_int_equal(ll_below_at(1, 2, i, 1), 0);
    }
    for (int i = 0; i < 7; i++) assert_true(abs(count[i] - 10000) < 500);
}

/* A number depends on seed, stream and index, and on nothing asked before. */
static void pure(void **state)
{
    (void)state;
    uint64_t a = ll_stream("a", 0);
    assert_true(a != ll_stream("b", 0));
    assert_true(a != ll_stream("a", 1));
    assert_true(ll_stream("a", 1) != ll_stream("a", 2));
    double first = ll_normal_at(1, a, 123456789);
    ll_normal_at(1, a, 5);
    assert_true(first == ll_normal_at(1, a, 123456789));
    assert_true(first != ll_normal_at(2, a, 123456789));
    assert_true(first != ll_normal_at(1, a + 1, 123456789));
    assert_true(ll_uniform_at(1, a, 0) != ll_uniform_at(1, a, (uint64_t)1 << 34));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers),
                                       cmocka_unit_test(permutes),
                                       cmocka_unit_test(normal_bits),
                                       cmocka_unit_test(normal_moments),
                                       cmocka_unit_test(uniform_moments),
                                       cmocka_unit_test(below),
                                       cmocka_unit_test(pure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
