/* arange: start + step i for element i of n. A part knows where in the whole it starts. */
#include "op/op_int.h"

LL_KERNELS(arange)

static ll_err infer(ll_infer *i)
{
    const ll_arange_attr *a = (const ll_arange_attr *)i->attr;
    CHECK((unsigned)a->dtype < LL_N_DTYPE, LL_E_ARG, "no element type has number %d",
          (int)a->dtype);
    i->out[0] = (ll_type){a->dtype, LL_SHAPE(a->n)};
    return ll_check_shape(&i->out[0].shape);
}

static ll_err split(const void *, const ll_loops *, int, ll_range range, const ll_type *,
                    ll_part *part)
{
    ll_arange_attr *a = (ll_arange_attr *)part->attr;
    a->at += range.from;
    a->n = range.to - range.from;
    return LL_OK;
}

static const ll_op arange = {
    LL_PLAIN_OP(arange, COPY, 0, 1),
    LL_ATTRS(ll_arange_attr, dtype, start, step, n, at),
    .dims = "-> a",
    .infer = infer,
    .split = split,
    .no_grad = true,
    .f64 = true,
    .trials = {"{dtype=f32, start=1.5, step=-0.25, n=7}", "{dtype=i32, start=3, step=2, n=5, at=4}",
               "{dtype=f32, start=0, step=1, n=0}"},
};

ll_val ll_arange(ll_graph *g, ll_dtype dtype, int64_t n, double start, double step)
{
    ll_arange_attr a;
    memset(&a, 0, sizeof a);
    a.dtype = dtype, a.n = n, a.start = start, a.step = step;
    return ll_emit(g, &arange, &a, NULL, 0);
}

const ll_op *const ll_ops_arange[] = {&arange, NULL};
