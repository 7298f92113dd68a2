/* onehot.c: rows with a single 1: index i becomes a row of `size` numbers, 1 at i - from. An index
 * outside of the row gives zeros only, so that a part of the classes can be cut out; outside of all
 * classes (of) it is an error where it is a label. */
#include "op/op_int.h"

LL_KERNELS(onehot)

static const ll_op onehot;

static ll_val emit(ll_graph *g, ll_val index, int64_t size, int64_t from, int64_t of,
                   ll_dtype dtype)
{
    ll_onehot_attr a;
    memset(&a, 0, sizeof a);
    a.size = size;
    a.from = from;
    a.of = of;
    a.dtype = dtype;
    return LL_EMIT(g, &onehot, &a, index);
}

ll_val ll_onehot(ll_graph *g, ll_val index, int64_t size, int64_t from, ll_dtype dtype)
{
    return emit(g, index, size, from, 0, dtype);
}

ll_val ll_onehot_labels(ll_graph *g, ll_val label, int64_t classes, ll_dtype dtype)
{
    return emit(g, label, classes, 0, classes, dtype);
}

static ll_err infer(ll_infer *i)
{
    const ll_onehot_attr *a = i->attr;
    const ll_type *x = &i->in[0];
    CHECK(x->dtype == LL_I32, LL_E_SHAPE, "the index is %s, expected i32", ll_dtype_name(x->dtype));
    CHECK((unsigned)a->dtype < LL_N_DTYPE && ll_dtype_is_float(a->dtype), LL_E_ARG,
          "the result must be of a float type");
    CHECK(x->shape.n < LL_MAX_DIMS, LL_E_SHAPE, "more than %d dimensions", LL_MAX_DIMS);
    i->out[0] = (ll_type){a->dtype, x->shape};
    i->out[0].shape.d[i->out[0].shape.n++] = a->size;
    return ll_check_shape(&i->out[0].shape);
}

static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    ll_onehot_attr *a = part->attr;
    if (l->letter[loop] != 'v') return LL_OK;
    a->from += range.from;
    a->size = range.to - range.from;
    return LL_OK;
}

static const ll_op onehot = {
    LL_REF_OP(onehot, OTHER, 1, 1, .parts = true),
    LL_ATTRS(ll_onehot_attr, size, from, dtype, of),
    .dims = "* -> *v",
    .infer = infer,
    .split = split,
    .no_grad = true,
    .f64 = true,
    .trials = {"i32[7]<5 {size=5, from=0, dtype=f32}",
               "i32[2,3]<9 {size=4, from=3, dtype=f32, of=9}",
               "i32[]<3 {size=3, from=0, dtype=f32}", "i32[0]<3 {size=1, from=0, dtype=f32}"},
};

const ll_op *const ll_ops_onehot[] = {&onehot, NULL};
