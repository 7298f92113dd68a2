/* cache8.h: a row of numbers as signed bytes and their scale in two bytes behind them, for caches
 * of keys and values: x = scale q. The scale is a positive number of 6 bits of exponent (2^-40 to
 * 2^23) and 7 of fraction, so that any bytes are one. */
#pragma once
#include "kern/both.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline LL_BOTH float ll_cache8_scale(const uint8_t *row, int64_t d)
{
    uint32_t v = (uint32_t)(row[d] | row[d + 1] << 8) & 0x1fff, bits = (v + (87 << 7)) << 16;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* The scale for a largest magnitude, rounded up; returns it as it is read back. */
static inline LL_BOTH float ll_cache8_begin(uint8_t *row, int64_t d, float top)
{
    float want = top / 127;
    uint32_t bits;
    memcpy(&bits, &want, sizeof bits);
    int64_t v = (int64_t)((bits + 0xffff) >> 16) - (87 << 7);
    v = v < 0 ? 0 : v > 0x1fff ? 0x1fff : v;
    row[d] = (uint8_t)(v & 255);
    row[d + 1] = (uint8_t)(v >> 8);
    return ll_cache8_scale(row, d);
}

static inline LL_BOTH uint8_t ll_cache8_byte(float x, float scale)
{
    float q = rintf(x / scale);
    return (uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
}
