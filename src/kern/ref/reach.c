/* reach, reference: for each element of the result, the largest over the loops it does not have. */
#include "kern/attr.h"
#include "kern/einsum.h"
#include "kern/rows.h"

#include <math.h>

ll_kernel reach_ref;

ll_err reach_ref(const ll_kcall *c)
{
    const ll_reach_attr *attr = (const ll_reach_attr *)c->attr;
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int n = ll_einsum_read(attr->spec, &a->shape, &b->shape, &y->shape, loop), free = y->shape.n;
    int64_t points = ll_einsum_points(loop + free, n - free);
    for (int64_t e = 0; e < ll_numel(&y->shape); e++) {
        int64_t at[3], in[3];
        double most = 0;
        ll_einsum_offsets(loop, free, e, at);
        for (int64_t p = 0; p < points; p++) {
            ll_einsum_offsets(loop + free, n - free, p, in);
            double s = ll_at(a, at[0] + in[0]);
            double t = ll_at(b, at[1] + in[1]);
            if (s > 0 && t > 0) most = fmax(most, ldexp(1, (int)(s + t) - 2 * LL_REACH_BITS));
        }
        ll_set(y, at[2], fmin(most, ldexp(1, -(int)attr->enough)));
    }
    return LL_OK;
}
