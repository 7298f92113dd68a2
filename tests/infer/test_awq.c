/* Scales of channels: which inputs can have them, and what is folded with them; products of the
 * data change less than without, alpha 0 where numbers are of 4 bits already. */
#include "infer/awq.h"

#include "base/rng.h"
#include "base/types.h"
#include "kern/blocks.h"
#include "loopline.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { M = 200, C = 96, N = 150 };

static ll_val param(ll_graph *g, const char *name, ll_shape s)
{
    return ll_param(g, name, s, (ll_init){LL_NORMAL, 1});
}

static ll_val product(ll_graph *g, const char *name, ll_val x, int64_t n)
{
    int64_t c = ll_graph_shape(g, x).d[1];
    return ll_matmul(g, "mc,nc->mn", x, param(g, name, LL_SHAPE(n, c)));
}

static void folding(void **)
{
    ll_graph *g = ll_graph_new("t");
    ll_val f[LL_AWQ_FOLDS], x = ll_batch(g, "x", LL_F32, LL_SHAPE(4, 32));
    ll_val gain = param(g, "gain", LL_SHAPE(32)), bias = param(g, "bias", LL_SHAPE(32));
    ll_val rms = ll_rmsnorm(g, x, gain, 1e-5);
    ll_val gate = product(g, "gate", rms, 64), up = product(g, "up", rms, 64);
    ll_val mixed = ll_mul(g, ll_silu(g, gate), up);
    ll_val down = product(g, "down", mixed, 32);
    assert_int_equal(ll_awq_folds(g, rms, 32, f), 1);
    assert_int_equal(f[0].id, gain.id);
    assert_int_equal(ll_awq_folds(g, mixed, 64, f), 1); /* by up: silu is not linear */
    assert_int_equal(f[0].id, ll_find(g, "up").id);
    assert_int_equal(ll_awq_folds(g, x, 32, f), 0); /* made by nobody, and a norm reads it */
    ll_val layer = ll_layernorm(g, down, param(g, "gain2", LL_SHAPE(32)), bias, 1e-5);
    product(g, "p", layer, 32);
    assert_int_equal(ll_awq_folds(g, layer, 32, f), 2);
    assert_int_equal(f[1].id, bias.id);
    ll_val both = ll_rmsnorm(g, down, param(g, "gain3", LL_SHAPE(32)), 1e-5);
    product(g, "q", both, 32);
    ll_graph_result(g, "both", both); /* somebody else sees it */
    assert_int_equal(ll_awq_folds(g, both, 32, f), 0);
    ll_val shared = ll_rmsnorm(g, down, gain, 1e-5);
    product(g, "r", shared, 32);
    assert_int_equal(ll_awq_folds(g, shared, 32, f), 0); /* and the first one's gain no more */
    assert_int_equal(ll_awq_folds(g, rms, 32, f), 0);
    ll_val gelu = ll_gelu(g, down);
    product(g, "s", gelu, 32);
    assert_int_equal(ll_awq_folds(g, gelu, 32, f), 0);
    assert_int_equal(ll_graph_check(g), LL_OK);
    ll_graph_free(g);
}

/* A few channels of large inputs. */
static void make(float *x, float *w, float *h)
{
    for (int i = 0; i < M * C; i++) x[i] = ll_normal_at(1, 1, (uint64_t)i) * (i % C % 11 ? 1 : 30);
    for (int i = 0; i < N * C; i++) w[i] = 0.1f * ll_normal_at(1, 3, (uint64_t)i);
    for (int i = 0; i < C * C; i++) {
        double sum = 0;
        for (int m = 0; m < M; m++) sum += (double)x[m * C + i / C] * (double)x[m * C + i % C];
        h[i] = (float)sum;
    }
}

/* What products of x are off by. */
static double lost(const float *x, const float *w, const float *is, const float *scale)
{
    double sum = 0;
    for (int m = 0; m < M; m++)
        for (int r = 0; r < N; r++) {
            double d = 0;
            for (int c = 0; c < C; c++)
                d += (double)x[m * C + c] *
                     ((double)is[r * C + c] / (double)scale[c] - (double)w[r * C + c]);
            sum += d * d;
        }
    return sqrt(sum);
}

static void packed(const float *w, const float *scale, const char *kind, float *is)
{
    const ll_block_kind *k = ll_block_find(kind, 4);
    uint8_t block[64];
    for (int i = 0; i < N * C; i++) is[i] = w[i] * scale[i % C];
    for (int b = 0; b < N * C; b += LL_PACK) {
        k->pack(is + b, block);
        k->unpack(block, is + b);
    }
}

static void searching(void **)
{
    static float x[M * C], w[N * C], h[C * C], is[N * C], again[N * C];
    float scale[3][C], one[C], moments[C];
    ll_awq_product p[2] = {{w, 70}, {w + 70 * C, N - 70}};
    make(x, w, h);
    for (int c = 0; c < C; c++) one[c] = 1, moments[c] = h[c * C + c];
    for (int bits = 4; bits <= 8; bits += 4) {
        const char *kind = bits == 4 ? "int4" : "int8";
        double alpha[3];
        for (int t = 0; t < 3; t++)
            assert_int_equal(ll_awq_search(p, 2, C, h, bits, t + 1, scale[t], &alpha[t]), LL_OK);
        assert_memory_equal(scale[0], scale[1], sizeof one);
        assert_memory_equal(scale[0], scale[2], sizeof one);
        packed(w, one, kind, is);
        double a = lost(x, w, is, one);
        packed(w, scale[0], kind, is);
        double b = lost(x, w, is, scale[0]);
        printf("%s: %.4g, with scales of alpha %.2f %.4g\n", kind, a, alpha[0], b);
        assert_true(alpha[0] > 0 && b < 0.6 * a);
    }
    /* ranges by moments lose less than the whole range, and are found again */
    packed(w, one, "int4", is);
    double whole = lost(x, w, is, one);
    memcpy(is, w, sizeof w);
    ll_awq_round(is, N, C, moments, 2);
    assert_true(lost(x, w, is, one) < 0.9 * whole);
    packed(is, one, "int4", again);
    assert_memory_equal(is, again, sizeof is);
    /* what is in blocks already stays as it is */
    double alpha;
    p[0].w = is, p[1].w = is + 70 * C;
    assert_int_equal(ll_awq_search(p, 2, C, h, 4, 2, scale[0], &alpha), LL_OK);
    assert_true(alpha == 0);
    assert_memory_equal(scale[0], one, sizeof one);
    memset(h, 0, sizeof h); /* nothing came by */
    p[0].w = w;
    assert_int_equal(ll_awq_search(p, 1, C, h, 4, 2, scale[0], &alpha), LL_OK);
    assert_memory_equal(scale[0], one, sizeof one);
    h[7 * C + 7] = NAN;
    assert_int_equal(ll_awq_search(p, 1, C, h, 4, 2, scale[0], &alpha), LL_E_NUMERIC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(folding), cmocka_unit_test(searching)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
