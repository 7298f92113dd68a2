/* peaks, reference: the largest under all taps. */
#include "kern/peaks.h"

ll_kernel peaks_ref;

ll_err peaks_ref(const ll_kcall *c)
{
    const ll_peaks_attr *a = (const ll_peaks_attr *)c->attr;
    const uint8_t *x = (const uint8_t *)c->in[0].data;
    const int64_t *xd = c->in[0].shape.d, *yd = c->out[0].shape.d, d = yd[3] ? xd[3] / yd[3] : 0;
    for (int64_t e = 0; e < ll_numel(&c->out[0].shape); e++) {
        int64_t g = e % yd[3], at = e / yd[3], n = at / yd[2] / yd[1];
        uint8_t most = 0;
        for (int64_t t = 0; t < a->size[0] * a->size[1]; t++) {
            int64_t i = ll_tap_reads(a, 0, at / yd[2] % yd[1], t / a->size[1], xd[1]);
            int64_t j = ll_tap_reads(a, 1, at % yd[2], t % a->size[1], xd[2]);
            for (int64_t k = g * d; i >= 0 && j >= 0 && k < (g + 1) * d; k++) {
                uint8_t v = x[((n * xd[1] + i) * xd[2] + j) * xd[3] + k];
                most = v > most ? v : most;
            }
        }
        ((uint8_t *)c->out[0].data)[e] = most;
    }
    return LL_OK;
}
