/* ll_fold against the definition, element by element: every type, operation and count of sources,
 * odd sizes, pointers at odd addresses, in place; equal bits, NaN for NaN. */
#include "base/rng.h"
#include "base/types.h"
#include "comm/comm.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_SRC = 17, MAX_N = 3001 };
static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 16, 31, 1000, MAX_N};

/* An element at any address. */
static double value(const char *e, ll_dtype t)
{
    char aligned[8] __attribute__((aligned(8)));
    memcpy(aligned, e, ll_dtype_bytes(t));
    return ll_load(aligned, t, 0);
}

static void store(char *e, ll_dtype t, double v)
{
    char aligned[8] __attribute__((aligned(8)));
    ll_store(aligned, t, 0, v);
    memcpy(e, aligned, ll_dtype_bytes(t));
}

/* An element of each kind: numbers of all magnitudes, zeros of both signs, infinities, NaN,
 * subnormals; integers that overflow. */
static void fill(char *data, int64_t n, ll_dtype t, uint64_t stream)
{
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e-40, -6e-8, 65504, 1};
    for (int64_t i = 0; i < n; i++) {
        double v = ll_normal_at(11, stream, (uint64_t)i);
        uint32_t w[4];
        ll_philox(12, stream, (uint64_t)i, w);
        if (w[0] % 8 == 0) v = special[w[1] % 9];
        if (w[0] % 8 == 1) v *= exp2((double)(w[1] % 60) - 30);
        char e[8];
        if (t == LL_I32)
            memcpy(e, &w[2], 4);
        else if (t == LL_U8)
            e[0] = (char)w[2];
        else
            store(e, t, v);
        memcpy(data + i * (int64_t)ll_dtype_bytes(t), e, ll_dtype_bytes(t));
    }
}

static double zero_or(double a, double b, bool max)
{
    bool minus = max ? signbit(a) && signbit(b) : signbit(a) || signbit(b);
    return a != 0 ? a : minus ? -0.0 : 0.0;
}

/* One element op another, by the definition. */
static void two(char *r, const char *a, const char *b, ll_dtype t, ll_reduce op)
{
    if (op == LL_REDUCE_SUM && t == LL_I32) {
        uint32_t x, y;
        memcpy(&x, a, 4), memcpy(&y, b, 4);
        x += y;
        memcpy(r, &x, 4);
        return;
    }
    if (op == LL_REDUCE_SUM && t == LL_U8) {
        *r = (char)(unsigned char)((unsigned char)*a + (unsigned char)*b);
        return;
    }
    double x = value(a, t), y = value(b, t), v;
    if (op == LL_REDUCE_SUM)
        v = t == LL_F64 ? x + y : (double)((float)x + (float)y);
    else if (isnan(x) || isnan(y))
        v = NAN;
    else if (x == y)
        v = zero_or(x, y, op == LL_REDUCE_MAX);
    else
        v = (x > y) == (op == LL_REDUCE_MAX) ? x : y;
    store(r, t, v);
}

static void reference(char *r, char (*e)[8], int n, ll_dtype t, ll_reduce op)
{
    if (n == 1) {
        memcpy(r, e[0], 8);
        return;
    }
    int q = 1;
    while (2 * q < n) q *= 2;
    char a[8] = {0}, b[8] = {0};
    reference(a, e, q, t, op);
    reference(b, e + q, n - q, t, op);
    two(r, a, b, t, op);
}

static bool same(const char *a, const char *b, ll_dtype t)
{
    if (ll_dtype_is_float(t) && isnan(value(a, t)) && isnan(value(b, t))) return true;
    return !memcmp(a, b, ll_dtype_bytes(t));
}

typedef struct room {
    char *src[MAX_SRC], *dst;
    char *base[MAX_SRC + 1];
} room;

/* Every pointer at another odd multiple of the element's size (bytes_off: of a byte). */
static room *make_room(ll_dtype t, bool bytes_off)
{
    room *r = (room *)calloc(1, sizeof *r);
    size_t e = ll_dtype_bytes(t);
    for (int i = 0; i <= MAX_SRC; i++) {
        r->base[i] = (char *)aligned_alloc(64, 64 * (MAX_N * 8 / 64 + 4));
        char *p = r->base[i] + (bytes_off ? (size_t)(2 * i + 1) % 64 : e * (size_t)(i * 3 % 7));
        if (i < MAX_SRC)
            fill(r->src[i] = p, MAX_N, t, (uint64_t)(i + 100 * (int)t));
        else
            r->dst = p;
    }
    return r;
}

static void free_room(room *r)
{
    for (int i = 0; i <= MAX_SRC; i++) free(r->base[i]);
    free(r);
}

static void check_case(room *r, int n_src, int64_t n, ll_dtype t, ll_reduce op, int in_place)
{
    int64_t e = (int64_t)ll_dtype_bytes(t);
    const void *src[MAX_SRC];
    for (int i = 0; i < n_src; i++) src[i] = r->src[i];
    static char want[MAX_N][8];
    for (int64_t i = 0; i < n; i++) {
        char elems[MAX_SRC][8] = {{0}};
        for (int s = 0; s < n_src; s++) memcpy(elems[s], r->src[s] + i * e, (size_t)e);
        reference(want[i], elems, n_src, t, op);
    }
    char *dst = r->dst;
    if (in_place >= 0)
        memcpy(dst, r->src[in_place], (size_t)(n * e)), src[in_place] = dst;
    else
        memset(dst, 0x7f, (size_t)(n * e));
    memset(dst + n * e, 0x5a, 16);
    ll_fold(dst, src, n_src, n, t, op);
    for (int64_t i = 0; i < n; i++)
        if (!same(dst + i * e, want[i], t))
            fail_msg("%s, op %d, %d sources, n %lld, element %lld: %.17g, want %.17g",
                     ll_dtype_name(t), (int)op, n_src, (long long)n, (long long)i,
                     value(dst + i * e, t), value(want[i], t));
    for (int i = 0; i < 16; i++) assert_int_equal(dst[n * e + i], 0x5a); /* nothing after it */
}

static void folds(bool bytes_off)
{
    for (int t = 0; t < LL_F8_E4M3; t++) { /* 8-bit floats are not summed */
        room *r = make_room((ll_dtype)t, bytes_off);
        for (int op = 0; op < 3; op++)
            for (int n_src = 1; n_src <= MAX_SRC; n_src++)
                for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                    if (bytes_off && sizes[s] > 31) continue;
                    check_case(r, n_src, sizes[s], (ll_dtype)t, (ll_reduce)op, -1);
                    if (bytes_off || (sizes[s] > 31 && n_src > 5)) continue;
                    for (int k = 0; k < n_src; k++)
                        check_case(r, n_src, sizes[s], (ll_dtype)t, (ll_reduce)op, k);
                }
        free_room(r);
    }
}

static void as_defined(void **state)
{
    (void)state;
    folds(false);
}

/* Not even aligned to elements: parts of packed messages. */
static void any_address(void **state)
{
    (void)state;
    folds(true);
}

/* Large and in place, more sources than one pass takes: a block must not see its own result. */
static void in_place_many(void **state)
{
    (void)state;
    room *r = make_room(LL_F32, false);
    for (int n_src = 5; n_src <= MAX_SRC; n_src += 4)
        for (int k = 0; k < n_src; k++) check_case(r, n_src, MAX_N, LL_F32, LL_REDUCE_SUM, k);
    free_room(r);
}

/* Every f16 and bf16 value once through a sum with each of a few: rounding to nearest even. */
static void halves(void **state)
{
    (void)state;
    static const double other[] = {0, 1, -1, 1e-7, 0.333, 65504, -2048, 3e38};
    static const ll_dtype types[] = {LL_F16, LL_BF16};
    enum { N = 65536 };
    uint16_t *a = (uint16_t *)malloc(2 * N), *b = (uint16_t *)malloc(2 * N);
    uint16_t *c = (uint16_t *)malloc(2 * N);
    for (int k = 0; k < 2; k++)
        for (size_t o = 0; o < sizeof other / sizeof *other; o++) {
            for (int i = 0; i < N; i++) a[i] = (uint16_t)i, ll_store(b, types[k], i, other[o]);
            ll_fold(c, (const void *[]){a, b}, 2, N, types[k], LL_REDUCE_SUM);
            for (int i = 0; i < N; i++) {
                char want[8] = {0};
                two(want, (char *)&a[i], (char *)&b[i], types[k], LL_REDUCE_SUM);
                if (!same((char *)&c[i], want, types[k]))
                    fail_msg("%s %#x + %g", ll_dtype_name(types[k]), i, other[o]);
            }
        }
    free(a), free(b), free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_defined), cmocka_unit_test(any_address),
                                       cmocka_unit_test(in_place_many), cmocka_unit_test(halves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
