/* peaks.h: what peaks reads; shared by its kernels. */
#pragma once
#include "kern/attr.h"
#include "kern/kern.h"

/* Of row (k = 0) or column (k = 1) `at` of the result, under tap t, the operand's; -1: none of n.
 */
static inline LL_BOTH int64_t ll_tap_reads(const ll_peaks_attr *a, int k, int64_t at, int64_t t,
                                           int64_t n)
{
    int64_t by = t * a->dilation[k] - a->pad[2 * k];
    int64_t i = a->back ? at - by : at * a->stride[k] + by;
    if (a->back && (i < 0 || i % a->stride[k])) return -1;
    if (a->back) i /= a->stride[k];
    return i < 0 || i >= n ? -1 : i;
}

/* Element e of the result: the largest under all taps; xd, yd: sizes of operand and result. */
static inline LL_BOTH uint8_t ll_peak(const ll_peaks_attr *a, const uint8_t *x, const int64_t *xd,
                                      const int64_t *yd, int64_t e)
{
    int64_t d = xd[3] / yd[3], g = e % yd[3], at = e / yd[3], n = at / yd[2] / yd[1];
    uint8_t most = 0;
    for (int64_t t = 0; t < a->size[0] * a->size[1]; t++) {
        int64_t i = ll_tap_reads(a, 0, at / yd[2] % yd[1], t / a->size[1], xd[1]);
        int64_t j = ll_tap_reads(a, 1, at % yd[2], t % a->size[1], xd[2]);
        for (int64_t k = g * d; i >= 0 && j >= 0 && k < (g + 1) * d; k++) {
            uint8_t v = x[((n * xd[1] + i) * xd[2] + j) * xd[3] + k];
            most = v > most ? v : most;
        }
    }
    return most;
}
