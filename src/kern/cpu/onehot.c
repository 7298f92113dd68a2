/* onehot.c: onehot on the cpu, of any element type: zeros, and a 1 where the index points. */
#include "kern/attr.h"
#include "kern/kern.h"

#include <omp.h>

ll_kernel onehot_cpu;

static void rows(const ll_onehot_attr *a, const int32_t *x, char *y, int64_t from, int64_t to)
{
    size_t bytes = ll_dtype_bytes(a->dtype); /* all types have a zero of zero bits */
    memset(y + (size_t)(from * a->size) * bytes, 0, bytes * (size_t)((to - from) * a->size));
    for (int64_t r = from; r < to; r++) {
        int64_t v = x[r] - a->from;
        if (v >= 0 && v < a->size) ll_store(y, a->dtype, r * a->size + v, 1);
    }
}

ll_err onehot_cpu(const ll_kcall *c)
{
    const ll_onehot_attr *a = c->attr;
    int64_t n = ll_numel(&c->in[0].shape);
    if (n == 0 || a->size == 0) return LL_OK;
    if (c->threads <= 1 || n * a->size < LL_PARALLEL_WORK) {
        rows(a, c->in[0].data, c->out[0].data, 0, n);
        return LL_OK;
    }
#pragma omp parallel num_threads(c->threads)
    {
        int t = omp_get_thread_num(), all = omp_get_num_threads();
        rows(a, c->in[0].data, c->out[0].data, n * t / all, n * (t + 1) / all);
    }
    return LL_OK;
}
