/* quantize, reference: the largest magnitude of the operand, then every element over the scale. */
#include "base/rng.h"
#include "kern/attr.h"
#include "kern/rows.h"
#include "kern/ref/value.h"

#include <math.h>

LL_KERNELS(quantize)

static double value(const ll_kcall *c, int64_t i)
{
    int64_t act = ((const ll_quantize_attr *)c->attr)->act;
    double v = ll_at(&c->in[0], i);
    if (act == LL_ACT_GELU) return ll_ew_value(LL_EW_gelu, v, 0, 0, 0);
    if (act == LL_ACT_NONE) return v;
    return v * ll_ew_value(LL_EW_dgelu, ll_at(&c->in[1], i), 0, 0, 0);
}

static float scale_of(const ll_kcall *c, int64_t n, int64_t cols)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)c->attr;
    double most = 0;
    int64_t rows = cols ? n / cols : 0;
    int64_t first = LL_QUANTIZE_FIRST(ll_stream("", c->step), rows, a->sample);
    for (int64_t i = 0; i < n; i++) {
        if (i / cols % a->sample != first) continue;
        double v = fabs(ll_at(&c->in[0], i));
        if (!(v <= most)) most = v; /* NaN stays */
    }
    float largest = a->dtype == LL_F8_E4M3 ? 448 : 57344;
    if (a->sample > 1) most *= LL_QUANTIZE_MARGIN;
    if (a->act == LL_ACT_DGELU) most *= LL_DGELU_MOST;
    return most > 0 || most != most ? (float)most / largest : 1;
}

ll_err quantize_ref(const ll_kcall *c)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)c->attr;
    int64_t n = ll_numel(&c->in[0].shape), rows = 1;
    for (int d = 0; d < a->rows; d++) rows *= c->in[0].shape.d[d];
    int64_t cols = rows ? n / rows : 0;
    float scale = scale_of(c, n, cols);
    bool both = c->n_out > 2;
    for (int64_t i = 0; i < n; i++) {
        float x = (float)value(c, i), v = isinf(x) ? NAN : x / scale;
        int64_t transposed = i % cols * rows + i / cols;
        ll_store(c->out[0].data, a->dtype, a->transposed && !both ? transposed : i, v);
        if (both) ll_store(c->out[1].data, a->dtype, transposed, v);
    }
    ll_store(c->out[both ? 2 : 1].data, LL_F32, 0, scale);
    for (int64_t j = 0; c->n_out == 4 && j < cols; j++) {
        double sum = 0;
        for (int64_t i = 0; i < rows; i++) sum += value(c, i * cols + j);
        ll_store(c->out[3].data, LL_F32, j, sum);
    }
    return LL_OK;
}
