/* test_quantize: 8-bit floats hide nothing: infinity becomes no number, also in rows that are not
 * looked at, and which are looked at varies from step to step. */
#include "ir/op.h"
#include "kern/attr.h"
#include "kern/kern.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { ROWS = 64, COLS = 32, SAMPLE = 16 };

/* The scale that a step finds. */
static float quantize(const float *x, uint64_t step, uint8_t *q)
{
    float scale;
    ll_quantize_attr a = {.dtype = LL_F8_E4M3, .rows = 1, .sample = SAMPLE};
    ll_tensor in = {(void *)(uintptr_t)x, LL_F32, LL_SHAPE(ROWS, COLS)};
    ll_tensor out[2] = {{q, LL_F8_E4M3, in.shape}, {&scale, LL_F32, LL_SCALAR}};
    ll_kcall c = {.attr = &a, .n_in = 1, .n_out = 2, .in = &in, .out = out, .step = step};
    assert_int_equal(ll_op_find("quantize")->ref(&c), LL_OK);
    return scale;
}

static void infinity_is_no_number(void **state)
{
    (void)state;
    float x[ROWS * COLS];
    uint8_t q[ROWS * COLS];
    for (int at = 0; at < ROWS; at++) {
        for (int i = 0; i < ROWS * COLS; i++) x[i] = 1;
        x[at * COLS + 3] = at % 2 ? INFINITY : -INFINITY;
        quantize(x, 7, q);
        assert_true(isnan(ll_load(q, LL_F8_E4M3, at * COLS + 3)));
    }
}

static void all_rows_are_looked_at_in_turn(void **state)
{
    (void)state;
    float x[ROWS * COLS];
    uint8_t q[ROWS * COLS];
    bool seen[SAMPLE] = {0};
    int n = 0;
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (float)(1 + i / COLS % SAMPLE);
    for (uint64_t step = 0; step < 200; step++) {
        int row = (int)lrintf(quantize(x, step, q) * 448 / LL_QUANTIZE_MARGIN) - 1;
        assert_in_range(row, 0, SAMPLE - 1);
        n += !seen[row];
        seen[row] = true;
    }
    assert_int_equal(n, SAMPLE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(infinity_is_no_number),
                                       cmocka_unit_test(all_rows_are_looked_at_in_turn)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
