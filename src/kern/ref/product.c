/* product, reference: a matmul, then what surrounds it, element by element. */
#include "kern/attr.h"
#include "kern/einsum.h"
#include "kern/ref/value.h"

ll_kernel product_ref;

static double load(const ll_tensor *t, int64_t i)
{
    return ll_load(t->data, t->dtype, i);
}

/* The sum over the loops that the result does not have, for element e of the result. */
static double dot(const ll_kcall *c, const ll_einsum_loop *loop, int n, int64_t e)
{
    int free = c->out[0].shape.n;
    int64_t at[3], in[3];
    double sum = 0;
    ll_einsum_offsets(loop, free, e, at);
    for (int64_t p = 0; p < ll_einsum_points(loop + free, n - free); p++) {
        ll_einsum_offsets(loop + free, n - free, p, in);
        sum += load(&c->in[0], at[0] + in[0]) * load(&c->in[1], at[1] + in[1]);
    }
    return sum;
}

/* What is made of the product p for element e, and for that of the second result. */
static double finish(const ll_product_attr *attr, const ll_tensor *more, int64_t e, double p,
                     double *second)
{
    *second = attr->act == LL_ACT_SLOPE ? ll_ew_value(LL_EW_dgelu, p, 0, 0, 0) : p;
    switch (attr->act) {
    case LL_ACT_RELU: return ll_ew_value(LL_EW_relu, p, 0, 0, 0);
    case LL_ACT_GELU:
    case LL_ACT_SLOPE: return ll_ew_value(LL_EW_gelu, p, 0, 0, 0);
    case LL_ACT_DGELU: return p * ll_ew_value(LL_EW_dgelu, load(more, e), 0, 0, 0);
    case LL_ACT_TIMES: return p * load(more, e);
    default: return p;
    }
}

ll_err product_ref(const ll_kcall *c)
{
    const ll_product_attr *attr = (const ll_product_attr *)c->attr;
    const ll_tensor *y = &c->out[0], *more = &c->in[attr->scaled ? 4 : 2];
    const ll_tensor *bias = attr->bias ? more++ : NULL;
    double scale = attr->scaled ? load(&c->in[2], 0) * load(&c->in[3], 0) : 1, second;
    ll_einsum_loop loop[LL_EINSUM_LOOPS];
    int n = ll_einsum_read(attr->spec, &c->in[0].shape, &c->in[1].shape, &y->shape, loop);
    bool sums = attr->act == LL_ACT_TIMES && c->n_out == 2;
    int64_t columns = sums ? ll_numel(&c->out[1].shape) : 1;
    for (int64_t i = 0; i < columns; i++) {
        double sum = 0;
        for (int64_t e = i; e < ll_numel(&y->shape); e += columns) {
            double p = dot(c, loop, n, e) * scale;
            if (bias) p += load(bias, e % ll_numel(&bias->shape));
            double v = finish(attr, more, e, p, &second);
            ll_store(y->data, y->dtype, e, v);
            if (c->n_out == 2 && !sums) ll_store(c->out[1].data, c->out[1].dtype, e, second);
            sum += v;
        }
        if (sums) ll_store(c->out[1].data, c->out[1].dtype, i, sum);
    }
    return LL_OK;
}
