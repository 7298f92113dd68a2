/* Matrix products against a plain triple loop in double: every transpose, ragged sizes, all element
 * types, one to three threads, and the same bits when run again; f64 on whole numbers: the exact
 * result, and of odd ones of 40 bits, from a start (base/num.h), the sum of products that are
 * rounded one by one. */
#include "kern/cpu/gemm_int.h"
#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#ifdef __SANITIZE_ADDRESS__
enum { SEED = 11, DRAWN = 100, SCRATCHES = 4000 };
static const int teams[] = {2, 3, 4}; /* clang's libomp does not free those of more */
#else
enum { SEED = 11, DRAWN = 300, SCRATCHES = 20000 };
static const int teams[] = {5, 7, 16};
#endif

/* Room for n elements with guard bands of a known byte on both sides. */
enum { GUARD = 256 };
static char *guarded(size_t bytes)
{
    char *p = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
    assert_non_null(p);
    memset(p, 0x7f, (bytes + 2 * GUARD + 63) / 64 * 64);
    return p + GUARD;
}
static void check_guard(char *p, size_t bytes)
{
    for (int i = 1; i <= GUARD; i++) assert_int_equal(p[-i], 0x7f);
    for (int i = 0; i < GUARD; i++) assert_int_equal(p[bytes + (size_t)i], 0x7f);
    free(p - GUARD);
}

enum { ODD_BITS = 40 };
static int rounded_for(int64_t k)
{
    return 2 * ODD_BITS + (k > 1 ? (int)ceil(log2((double)k)) : 0) - 51;
}

/* Odd numbers of either sign and all sizes, both ends and zeros among them. */
static void fill_odd(double *x, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) {
        double size = ldexp(1, (int)ll_below_at(SEED, stream + 50, (uint64_t)i, ODD_BITS));
        double v = 2 * (double)ll_uniform_at(SEED, stream, (uint64_t)i) - 1;
        v = copysign(2 * floor(fabs(v) * size) + 1, v);
        x[i] = i % 7 == 3 ? 0x1p40 - 1 : i % 11 == 5 ? 1 - 0x1p40 : i % 13 == 6 ? 0 : v;
    }
}

/* Multiples of 2^rounded, as sums of others may be. */
static void fill_sums(double *x, int64_t n, int rounded, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ldexp((double)ll_below_at(SEED, stream, (uint64_t)i, 1u << 31) - 0x1p30, rounded);
}

/* f64: whole numbers of as many bits as leave sums of k products exact, both ends among them. */
static void fill(void *x, ll_dtype t, int64_t n, int64_t k, uint64_t stream)
{
    double top = 0x1p23;
    while ((double)k * top * top > 0x1p53) top /= 2;
    for (int64_t i = 0; i < n; i++) {
        double v = 2 * (double)ll_uniform_at(SEED, stream, (uint64_t)i) - 1;
        if (t == LL_F64) v = i % 7 == 3 ? -top : i % 11 == 5 ? top - 1 : rint(v * (top - 1));
        ll_store(x, t, i, v);
    }
}

/* layout bits: 1: a transposed; 2: b transposed; 4: c transposed; 8: nothing has stride 1;
 * 16: strides of whole pages */
static void strides(int64_t rows, int64_t cols, bool transposed, int layout, int64_t *rs,
                    int64_t *cs)
{
    int64_t unit = layout & 8 ? 2 : 1, line = transposed ? rows : cols;
    line = layout & 8 ? 2 * line + 3 : line;
    if (layout & 16) line = (line / 1024 + 1) * 1024;
    *rs = transposed ? unit : line;
    *cs = transposed ? line : unit;
}
static int64_t extent(int64_t rows, int64_t cols, int64_t rs, int64_t cs)
{
    return rows && cols ? (rows - 1) * rs + (cols - 1) * cs + 1 : 0;
}

/* Against whole numbers of 128 bits, each product rounded to nearest: there are no ties. */
static void compare_rounded(const ll_gemm_call *g, int rounded, const double *before,
                            const char *what)
{
    const double *a = (const double *)g->a, *b = (const double *)g->b;
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = i * g->c_rs + j * g->c_cs, sum = 0;
            for (int64_t p = 0; p < g->k; p++) {
                __int128 x = (int64_t)a[i * g->a_rs + p * g->a_cs];
                x *= (int64_t)b[p * g->b_rs + j * g->b_cs];
                sum += (int64_t)((x + ((__int128)1 << (rounded - 1))) >> rounded);
            }
            double got = ((const double *)g->c)[at], want = ldexp((double)sum, rounded);
            if (g->add) want += before[at];
            if (got != want)
                fail_msg("%s %lldx%lldx%lld at %lld,%lld: %a, want %a", what, (long long)g->m,
                         (long long)g->n, (long long)g->k, (long long)i, (long long)j, got, want);
        }
}

/* A row behind the other: read once, not once for each sum. */
static double *rows_of(const void *from, ll_dtype t, int64_t n, int64_t k, int64_t rs, int64_t cs)
{
    double *to = malloc((size_t)(n * k) * sizeof *to + 1);
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < k; p++) to[i * k + p] = ll_load(from, t, i * rs + p * cs);
    return to;
}

static void compare(const ll_gemm_call *g, ll_dtype in, ll_dtype out, const void *before,
                    const char *what)
{
    double *a = rows_of(g->a, in, g->m, g->k, g->a_rs, g->a_cs);
    double *b = rows_of(g->b, in, g->n, g->k, g->b_cs, g->b_rs);
    for (int64_t i = 0; i < g->m; i++)
        for (int64_t j = 0; j < g->n; j++) {
            int64_t at = i * g->c_rs + j * g->c_cs;
            double want = g->add ? ll_load(before, out, at) : 0, size = fabs(want);
            for (int64_t p = 0; p < g->k; p++) {
                double x = a[i * g->k + p] * b[j * g->k + p];
                want += x;
                size += fabs(x);
            }
            double got = ll_load(g->c, out, at);
            double tol = size * 3e-6 + (g->bf16_out ? fabs(want) / 200 : 0) + 1e-7;
            if (g->f64) tol = 0;
            if (!(fabs(got - want) <= tol))
                fail_msg("%s %lldx%lldx%lld at %lld,%lld: %g, want %g", what, (long long)g->m,
                         (long long)g->n, (long long)g->k, (long long)i, (long long)j, got, want);
        }
    free(a);
    free(b);
}

static void run_one(int64_t m, int64_t n, int64_t k, int layout, ll_dtype from, ll_dtype to,
                    bool rounds, bool add, int threads)
{
    ll_gemm_call g = {.m = m, .n = n, .k = k, .add = add, .f64 = from == LL_F64};
    const int rounded = rounded_for(k);
    if (rounds) g.start = ll_sum_start(rounded);
    g.bf16 = from == LL_BF16, g.bf16_out = to == LL_BF16;
    g.threads = threads;
    strides(m, k, layout & 1, layout, &g.a_rs, &g.a_cs);
    strides(k, n, layout & 2, layout, &g.b_rs, &g.b_cs);
    strides(m, n, layout & 4, layout, &g.c_rs, &g.c_cs);
    int64_t na = extent(m, k, g.a_rs, g.a_cs), nb = extent(k, n, g.b_rs, g.b_cs);
    int64_t nc = extent(m, n, g.c_rs, g.c_cs);
    size_t in = ll_dtype_bytes(from), out = ll_dtype_bytes(to);
    size_t scratch = threads ? ll_gemm_scratch(&g) : ll_gemm_serial_scratch(&g);
    char *a = malloc((size_t)na * in), *b = malloc((size_t)nb * in); /* the sanitizer's to guard */
    char *c = guarded((size_t)nc * out), *s = guarded(scratch), *again = guarded((size_t)nc * out);
    fill(a, from, na, k, 1);
    fill(b, from, nb, k, 2);
    if (rounds) fill_odd((double *)(void *)a, na, 1), fill_odd((double *)(void *)b, nb, 2);
    memset(c, 0xff, (size_t)nc * out); /* NaN */
    if (add) fill(c, to, nc, k, 3);
    if (add && rounds) fill_sums((double *)(void *)c, nc, rounded, 3);
    char *before = malloc((size_t)nc * out + 1);
    memcpy(before, c, (size_t)nc * out);
    memcpy(again, c, (size_t)nc * out);
    g.a = a, g.b = b, g.c = c, g.scratch = s;
    void (*run)(const ll_gemm_call *) = threads ? ll_gemm : ll_gemm_serial;
    memset(s, 0xff, scratch);
    run(&g);
    char what[80];
    snprintf(what, sizeof what, "layout %d %s%s to %s%s threads %d", layout,
             rounds ? "rounded " : "", ll_dtype_name(from), ll_dtype_name(to), add ? " add" : "",
             threads);
    if (rounds)
        compare_rounded(&g, rounded, (const double *)(void *)before, what);
    else
        compare(&g, from, to, before, what);
    g.c = again;
    memset(s, 0xff, scratch);
    run(&g);
    assert_memory_equal(c, again, (size_t)nc * out);
    free(before);
    free(a);
    free(b);
    check_guard(c, (size_t)nc * out);
    check_guard(s, scratch);
    check_guard(again, (size_t)nc * out);
}

static void one(int64_t m, int64_t n, int64_t k, int layout, ll_dtype from, ll_dtype to, bool add,
                int threads)
{
    for (int rounds = 0; rounds < 1 + (from == LL_F64); rounds++)
        run_one(m, n, k, layout, from, to, rounds, add, threads);
}

/* Every small size with a few layouts each: all edges of a tile. */
static void test_small(void **state)
{
    (void)state;
    int turn = 0;
    for (int64_t m = 0; m <= 20; m++)
        for (int64_t n = 0; n <= 36; n++)
            for (int64_t k = 0; k <= 9; k += k < 2 ? 1 : 7, turn++)
                for (int wide = 0; wide < 2; wide++) {
                    ll_dtype t = wide ? LL_F64 : LL_F32;
                    one(m, n, k, turn % 16, t, t, turn % 3 == 0, turn % 2);
                }
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < DRAWN; i++) {
        int64_t d[3];
        for (uint64_t j = 0; j < 3; j++) {
            static const uint64_t limit[] = {4, 20, 70, 150, 300};
            uint64_t l = limit[ll_below_at(SEED, 10 + j, i, 5)];
            d[j] = (int64_t)ll_below_at(SEED, 20 + j, i, l) + 1;
        }
        uint64_t flags = ll_below_at(SEED, 30, i, 64);
        bool bf16_out = flags & 2, add = !bf16_out && (flags & 4);
        int layout = (int)(i % 16) + (i % 5 ? 0 : 16), threads = (int)(flags >> 3) % 4;
        one(d[0], d[1], d[2], layout, flags & 1 ? LL_BF16 : LL_F32, bf16_out ? LL_BF16 : LL_F32,
            add, threads);
        one(d[0], d[1], d[2], layout, LL_F64, LL_F64, flags & 4, threads);
    }
}

/* Long and thin ones, where k is cut into blocks, or over threads. */
static void test_thin(void **state)
{
    (void)state;
    static const int64_t size[][3] = {{6, 25, 5017}, {1, 1, 3000},   {1, 700, 900}, {700, 1, 900},
                                      {10, 3, 2049}, {16, 16, 777},  {3001, 6, 25}, {2, 2500, 31},
                                      {64, 10, 84},  {13, 130, 1100}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++)
        for (int layout = 0; layout < 8; layout++) {
            const int64_t *d = size[i];
            int threads = (layout + (int)i) % 4;
            one(d[0], d[1], d[2], layout, layout == 5 ? LL_BF16 : LL_F32,
                layout == 6 ? LL_BF16 : LL_F32, layout & 1, threads);
            if ((layout / 2 + i) % 2) /* half, by turns */
                one(d[0], d[1], d[2], layout, LL_F64, LL_F64, layout & 1, threads);
        }
    /* Whole tiles of bf16, which AMX stores itself; the last has rows of two blocks. */
    static const int64_t whole[][3] = {{64, 64, 96}, {37, 32, 33}, {48, 96, 600}, {2100, 32, 64}};
    for (int i = 0; i < 4; i++)
        for (int layout = 0; layout < 8; layout++)
            for (int threads = 0; threads < 3; threads += 2)
                one(whole[i][0], whole[i][1], whole[i][2], layout, LL_BF16, LL_BF16, false,
                    threads);
}

/* Many threads: rows that do not divide, panels fewer than threads, B packed together in several
 * passes, k cut. */
static void test_parts(void **state)
{
    (void)state;
    static const int64_t size[][3] = {{230, 64, 700}, {97, 200, 330}, {45, 33, 1500},
                                      {640, 40, 65},  {15, 1000, 90}, {24, 24, 9000}};
    for (int i = 0; i < 6; i++)
        for (int layout = 0; layout < 8; layout++) {
            const int64_t *d = size[i];
            int t = teams[(i + layout) % 3];
            bool even = (i + layout) % 2 == 0; /* of the other types: half, by turns */
            one(d[0], d[1], d[2], layout, LL_F32, LL_F32, layout & 1, t);
            if (even) one(d[0], d[1], d[2], layout, LL_BF16, i % 2 ? LL_BF16 : LL_F32, false, t);
            if (!even) one(d[0], d[1], d[2], layout, LL_F64, LL_F64, layout & 1, t);
        }
}

/* The scratch of a product serves every smaller one with the same strides. */
static void test_scratch(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < SCRATCHES; i++) {
        static const int64_t strides[] = {1, 1, 1, 2, 6, 64, 1000, 1024, 4096, 33};
        int64_t r[16];
        for (uint64_t j = 0; j < 16; j++) r[j] = (int64_t)ll_below_at(SEED, 1000 + i, j, 3000);
        ll_gemm_call g = {.m = r[0] >> r[1] % 12, .n = r[2] >> r[3] % 12, .k = r[4] >> r[5] % 12};
        int64_t *s[] = {&g.a_rs, &g.a_cs, &g.b_rs, &g.b_cs, &g.c_rs, &g.c_cs};
        for (int j = 0; j < 6; j++) *s[j] = strides[r[6 + j] % 10];
        g.bf16 = r[12] & 1, g.bf16_out = r[12] & 2, g.f64 = !(r[12] & 3) && r[12] & 4;
        ll_gemm_call small = g;
        small.m = r[13] % (g.m + 1), small.n = r[14] % (g.n + 1), small.k = r[15] % (g.k + 1);
        assert_true(ll_gemm_serial_scratch(&small) <= ll_gemm_serial_scratch(&g));
        assert_int_equal(ll_gemm_serial_scratch(&g) % 64, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small), cmocka_unit_test(test_random),  cmocka_unit_test(test_thin),
        cmocka_unit_test(test_parts), cmocka_unit_test(test_scratch),
    };
    const ll_gemm_kind *bf16 = ll_gemm_bf16();
    printf("seed %d; tiles: %s, %s, %s\n", SEED, ll_gemm_f32.name,
           bf16 ? bf16->name : "bf16 as f32", ll_gemm_f64.name);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
