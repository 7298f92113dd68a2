/* peaks, reference: element by element. */
#include "kern/peaks.h"

LL_KERNELS(peaks)

ll_err peaks_ref(const ll_kcall *c)
{
    for (int64_t e = 0; e < ll_numel(&c->out[0].shape); e++)
        ((uint8_t *)c->out[0].data)[e] =
            ll_peak(c->attr, c->in[0].data, c->in[0].shape.d, c->out[0].shape.d, e);
    return LL_OK;
}
