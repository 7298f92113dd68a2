/* Element types: every half-precision number there and back, rounding, saturation, shapes. */
#include "base/types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static float bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* What an f16 means, from its fields. */
static double f16_value(uint32_t h)
{
    double sign = h & 0x8000u ? -1 : 1;
    int exp = (int)(h >> 10 & 31), man = (int)(h & 0x3ffu);
    if (exp == 31) return man ? NAN : sign * INFINITY;
    return sign * (exp ? ldexp(1024 + man, exp - 25) : ldexp(man, -24));
}

static void f16_exhaustive(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = ll_f16_to_f32((uint16_t)h);
        uint16_t back = ll_f32_to_f16(f);
        if (isnan(f16_value(h))) {
            assert_true(isnan(f));
            assert_true(isnan(ll_f16_to_f32(back)));
            assert_int_equal(back >> 15, h >> 15);
        } else {
            assert_true((double)f == f16_value(h));
            assert_int_equal(back, h); /* signed zeros too */
        }
    }
}

/* Halfway between neighbours: to even; a little to either side: to the nearer one. */
static void f16_rounding(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double low = f16_value(h), high = h + 1 == 0x7c00 ? 65536 : f16_value(h + 1);
        float mid = (float)((low + high) / 2); /* exact in f32 */
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(ll_f32_to_f16(mid), even);
        assert_int_equal(ll_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(ll_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(ll_f32_to_f16(-mid), even | 0x8000u);
    }
    assert_int_equal(ll_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(ll_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(ll_f32_to_f16(1e-30f), 0);
    assert_int_equal(ll_f32_to_f16(bits(1)), 0);
}

/* Every 8-bit number there and back, halfway points to even, saturation. */
static void f8_exhaustive(void **state)
{
    (void)state;
    static const struct {
        ll_dtype type;
        double largest, smallest;
        int n; /* finite ones that are not negative */
    } kinds[] = {{LL_F8_E4M3, 448, 0x1p-9, 127}, {LL_F8_E5M2, 57344, 0x1p-16, 124}};
    for (int k = 0; k < 2; k++) {
        ll_dtype t = kinds[k].type;
        double last = -1;
        for (int b = 0; b < kinds[k].n; b++) {
            uint8_t byte = (uint8_t)b, back, minus = (uint8_t)(b | 0x80);
            double v = ll_load(&byte, t, 0);
            assert_true(v > last && ll_load(&minus, t, 0) == -v);
            ll_store(&back, t, 0, v);
            assert_int_equal(back, b);
            ll_store(&back, t, 0, -v);
            assert_int_equal(back, minus);
            if (b) {
                ll_store(&back, t, 0, (v + last) / 2);
                assert_int_equal(back, b & 1 ? b - 1 : b);
                ll_store(&back, t, 0, nextafter((v + last) / 2, 1e9));
                assert_int_equal(back, b);
            }
            if (b == 1) assert_true(v == kinds[k].smallest);
            last = v;
        }
        assert_true(last == kinds[k].largest);
        uint8_t big;
        ll_store(&big, t, 0, 1e30);
        assert_true(ll_load(&big, t, 0) == kinds[k].largest);
        ll_store(&big, t, 0, NAN);
        assert_true(isnan(ll_load(&big, t, 0)));
    }
}

static void bf16_exhaustive(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = ll_bf16_to_f32((uint16_t)h);
        uint16_t back = ll_f32_to_bf16(f);
        if (isnan(f)) {
            assert_true(isnan(ll_bf16_to_f32(back)));
            continue;
        }
        assert_int_equal(back, h);
        if (isinf(f)) continue;
        uint32_t u = h << 16;
        assert_int_equal(ll_f32_to_bf16(bits(u | 0x7fff)), h);
        assert_int_equal(ll_f32_to_bf16(bits(u | 0x8000)), h & 1 ? h + 1 : h);
        assert_int_equal(ll_f32_to_bf16(bits(u | 0x8001)), h + 1);
    }
    /* A NaN whose high bits are all in the lower half stays one. */
    assert_true(isnan(ll_bf16_to_f32(ll_f32_to_bf16(bits(0x7f800001)))));
    assert_true(isnan(ll_bf16_to_f32(ll_f32_to_bf16(bits(0xffffffff)))));
}

static void load_store(void **state)
{
    (void)state;
    static const double values[] = {0, 1, -1, 2.5, 3.5, 200, 1e6};
    for (int t = 0; t < LL_N_DTYPE; t++) {
        unsigned char data[8 * 9];
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            memset(data, 0x7f, sizeof data);
            ll_store(data, (ll_dtype)t, 3, values[i]);
            double want = values[i];
            if (t == LL_I32 || t == LL_U8) want = nearbyint(want);
            if (t == LL_U8) want = want < 0 ? 0 : want > 255 ? 255 : want;
            if (t == LL_F16 && want == 1e6) want = INFINITY;
            if (t == LL_BF16 && want == 1e6) want = 999424;
            if (t == LL_F8_E4M3) want = want == 200 ? 192 : want == 1e6 ? 448 : want;
            if (t == LL_F8_E5M2) want = want == 200 ? 192 : want == 1e6 ? 57344 : want;
            assert_true(ll_load(data, (ll_dtype)t, 3) == want);
            size_t n = ll_dtype_bytes((ll_dtype)t); /* the neighbours are untouched */
            for (size_t k = 0; k < sizeof data; k++)
                if (k < 3 * n || k >= 4 * n) assert_int_equal(data[k], 0x7f);
        }
    }
    int32_t i;
    ll_store(&i, LL_I32, 0, 1e300);
    assert_int_equal(i, INT32_MAX);
    ll_store(&i, LL_I32, 0, -INFINITY);
    assert_int_equal(i, INT32_MIN);
    uint8_t u = 7;
    ll_store(&u, LL_U8, 0, NAN);
    assert_int_equal(u, 0);
}

static void names(void **state)
{
    (void)state;
    for (int t = 0; t < LL_N_DTYPE; t++) {
        ll_dtype back = LL_N_DTYPE;
        assert_true(ll_dtype_find(ll_dtype_name((ll_dtype)t), &back));
        assert_int_equal(back, t);
    }
    ll_dtype none;
    assert_false(ll_dtype_find("f31", &none));
    assert_false(ll_dtype_find("", &none));
    assert_true(ll_dtype_is_float(LL_BF16));
    assert_false(ll_dtype_is_float(LL_U8));
}

static void shapes(void **state)
{
    (void)state;
    char text[LL_SHAPE_TEXT];
    ll_shape scalar = LL_SCALAR, a = LL_SHAPE(2, 3), b = LL_SHAPE(2, 3, 1), zero = LL_SHAPE(5, 0);
    ll_shape large = LL_SHAPE(INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN);
    assert_int_equal(ll_numel(&scalar), 1);
    assert_int_equal(ll_numel(&a), 6);
    assert_int_equal(ll_numel(&zero), 0);
    assert_true(ll_shape_equal(&a, &a));
    assert_false(ll_shape_equal(&a, &b));
    assert_false(ll_shape_equal(&a, &scalar));
    assert_string_equal(ll_shape_print(&scalar, text), "[]");
    assert_string_equal(ll_shape_print(&b, text), "[2,3,1]");
    assert_int_equal(strlen(ll_shape_print(&large, text)), 6 * 20 + 5 + 2); /* fits */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f8_exhaustive), cmocka_unit_test(f16_exhaustive),
        cmocka_unit_test(f16_rounding),  cmocka_unit_test(bf16_exhaustive),
        cmocka_unit_test(load_store),    cmocka_unit_test(names),
        cmocka_unit_test(shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
