/* matmul, reference: for each element of the result, the sum over the loops it does not have. */
#include "kern/attr.h"
#include "kern/einsum.h"

ll_kernel matmul_ref;

/* The offsets into a, b, c of point number `at` of loops [from, to), the last one fastest. */
static void offsets(const ll_einsum_loop *loop, int from, int to, int64_t at, int64_t off[3])
{
    off[0] = off[1] = off[2] = 0;
    for (int i = to - 1; i >= from; i--) {
        int64_t x = at % loop[i].extent;
        at /= loop[i].extent;
        for (int t = 0; t < 3; t++) off[t] += x * loop[i].stride[t];
    }
}

ll_err matmul_ref(const ll_kcall *c)
{
    const ll_matmul_attr *attr = (const ll_matmul_attr *)c->attr;
    const ll_tensor *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int n = ll_einsum_read(attr->spec, &a->shape, &b->shape, &y->shape, loop);
    int free = y->shape.n; /* the result's loops come first */
    int64_t points = 1;
    for (int i = free; i < n; i++) points *= loop[i].extent;
    for (int64_t e = 0; e < ll_numel(&y->shape); e++) {
        int64_t at[3], in[3];
        double sum = 0;
        offsets(loop, 0, free, e, at);
        for (int64_t p = 0; p < points; p++) {
            offsets(loop, free, n, p, in);
            sum += ll_load(a->data, a->dtype, at[0] + in[0]) *
                   ll_load(b->data, b->dtype, at[1] + in[1]);
        }
        ll_store(y->data, y->dtype, at[2], sum);
    }
    return LL_OK;
}
