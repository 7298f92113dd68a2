/* Weights rounded by what products read: sums of products change less than to nearest, by a good
 * part; what comes out is in blocks of 4 bits already; without moments it is to nearest. */
#include "infer/gptq.h"

#include "base/rng.h"
#include "base/types.h"
#include "kern/blocks.h"
#include "pass/packed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { M = 300, C = 96, N = 19 };

static void unpacked(const float *x, int64_t n, float *y)
{
    uint8_t q[N * C];
    uint16_t s[N * C / LL_PACK], least[N * C / LL_PACK];
    ll_pack(x, n, 4, q, s, least);
    for (int64_t i = 0; i < n; i++) {
        int64_t b = i / LL_PACK, k = q[b * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
        y[i] = (float)(ll_load(s, LL_F16, b) * (double)k + ll_load(least, LL_F16, b));
    }
}

/* Inputs that go together, of very different sizes. */
static void make(float *x, float *w, float *h)
{
    for (int m = 0; m < M; m++)
        for (int c = 0; c < C; c++) {
            float own = ll_normal_at(1, 1, (uint64_t)(m * C + c));
            float all = ll_normal_at(1, 2, (uint64_t)(m * 4 + c % 4));
            x[m * C + c] = (0.3f * own + all) * (c % 7 ? 1 : 6);
        }
    for (int i = 0; i < N * C; i++) w[i] = 0.1f * ll_normal_at(1, 3, (uint64_t)i);
    for (int i = 0; i < C * C; i++) {
        double sum = 0;
        for (int m = 0; m < M; m++) sum += (double)x[m * C + i / C] * (double)x[m * C + i % C];
        h[i] = (float)sum;
    }
}

static double lost(const float *x, const float *a, const float *b)
{
    double sum = 0;
    for (int m = 0; m < M; m++)
        for (int r = 0; r < N; r++) {
            double d = 0;
            for (int c = 0; c < C; c++)
                d += (double)x[m * C + c] * ((double)a[r * C + c] - (double)b[r * C + c]);
            sum += d * d;
        }
    return sqrt(sum);
}

static void rounding(void **)
{
    static float x[M * C], w[N * C], h[C * C], near[N * C], is[N * C], again[N * C];
    make(x, w, h);
    unpacked(w, N * C, near);
    for (int threads = 1; threads <= 3; threads++) {
        memcpy(is, w, sizeof w);
        assert_int_equal(ll_gptq_matrix(is, N, C, h, threads), LL_OK);
        unpacked(is, N * C, again);
        assert_memory_equal(is, again, sizeof is);
        double a = lost(x, w, near), b = lost(x, w, is);
        printf("to nearest %.4g, by moments %.4g\n", a, b);
        assert_true(b < 0.6 * a);
    }
}

static void without_moments(void **)
{
    static float x[M * C], w[N * C], h[C * C], near[N * C];
    make(x, w, h);
    memset(h, 0, sizeof h);
    unpacked(w, N * C, near);
    memcpy(x, w, sizeof w);
    assert_int_equal(ll_gptq_matrix(w, 1, LL_PACK, h, 2), LL_OK);
    double a = 0, b = 0; /* narrower blocks lose no more */
    for (int i = 0; i < LL_PACK; i++) {
        a += (double)((x[i] - near[i]) * (x[i] - near[i]));
        b += (double)((x[i] - w[i]) * (x[i] - w[i]));
    }
    assert_true(b <= a);
    assert_int_equal(ll_gptq_matrix(w, 0, C, h, 2), LL_OK);
    h[5 * C + 5] = NAN;
    assert_int_equal(ll_gptq_matrix(w, N, C, h, 2), LL_E_NUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounding),
                                       cmocka_unit_test(without_moments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
