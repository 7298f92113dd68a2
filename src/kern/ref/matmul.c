/* matmul, reference: for each element of the result, the sum over the loops it does not have. */
#include "base/num.h"
#include "kern/attr.h"
#include "kern/einsum.h"
#include "kern/rows.h"

#include <math.h>

LL_KERNELS(matmul)

ll_err matmul_ref(const ll_kcall *c)
{
    const ll_matmul_attr *attr = (const ll_matmul_attr *)c->attr;
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int n = ll_einsum_read(attr->spec, &a->shape, &b->shape, &y->shape, loop);
    int free = y->shape.n; /* the result's loops come first */
    int sums = n > free ? n - free - 1 : 0;
    const ll_einsum_loop last = n > free ? loop[n - 1] : (ll_einsum_loop){.extent = 1};
    int64_t points = ll_einsum_points(loop + free, sums);
    for (int64_t e = 0; e < ll_numel(&y->shape); e++) {
        int64_t at[3], in[3];
        const double start = ll_sum_start(attr->bits);
        double sum = start;
        ll_einsum_offsets(loop, free, e, at);
        for (int64_t p = 0; p < points; p++) {
            ll_einsum_offsets(loop + free, sums, p, in);
            for (int64_t i = 0; i < last.extent; i++) {
                double x = ll_at(a, at[0] + in[0] + i * last.stride[0]);
                sum = fma(x, ll_at(b, at[1] + in[1] + i * last.stride[1]), sum);
            }
        }
        ll_set(y, at[2], sum - start);
    }
    return LL_OK;
}
