/* onehot.c: onehot on the cpu, of any element type: zeros, and a 1 where the index points. */
#include "kern/attr.h"
#include "kern/cpu/row.h"
#include "kern/rows.h"

LL_KERNELS(onehot)

static void rows(const void *call, int64_t from, int64_t to)
{
    const ll_kcall *c = (const ll_kcall *)call;
    const ll_onehot_attr *a = (const ll_onehot_attr *)c->attr;
    const int32_t *x = (const int32_t *)c->in[0].data;
    char *y = (char *)c->out[0].data;
    size_t bytes = ll_dtype_bytes(a->dtype); /* all types have a zero of zero bits */
    memset(y + (size_t)(from * a->size) * bytes, 0, bytes * (size_t)((to - from) * a->size));
    for (int64_t r = from; r < to; r++) {
        int64_t v = x[r] - a->from;
        if (v >= 0 && v < a->size) ll_store(y, a->dtype, r * a->size + v, 1);
    }
}

ll_err onehot_cpu(const ll_kcall *c)
{
    const ll_onehot_attr *a = (const ll_onehot_attr *)c->attr;
    int64_t n = ll_numel(&c->in[0].shape), size = a->size;
    if (a->of) TRY(ll_check_labels(&c->in[0], a->of));
    ll_in_parts(ll_team(c, n * size), n, rows, c);
    return LL_OK;
}
