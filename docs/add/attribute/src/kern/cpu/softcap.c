/* softcap.c: cap tanh(x / cap) of f32. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/cpu/vecmath.h"

LL_KERNELS(softcap)

ll_err softcap_cpu(const ll_kcall *c)
{
    float cap = (float)((const ll_softcap_attr *)c->attr)->cap;
    const float *x = (const float *)c->in[0].data;
    float *y = (float *)c->out[0].data;
    int64_t n = ll_numel(&c->in[0].shape);
#pragma omp parallel for simd num_threads(ll_team(c, n * 10)) schedule(static)
    for (int64_t i = 0; i < n; i++) y[i] = cap * ll_tanhf(x[i] / cap);
    return LL_OK;
}
