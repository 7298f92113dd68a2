/* order.c: where the largest or smallest element of a dimension is, rows in order, running sums.
 * NaN counts as larger than every number; of equal elements the first comes first. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(argmax, sort, cumsum)

/* ---- argmax: [a,v,c] -> i32 [a,c] ---- */

static ll_err argmax_loops(const void *attr, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    return ll_dim_loops(((const ll_order_attr *)attr)->dim, in, true, dims);
}

static ll_err argmax_infer(ll_infer *i)
{
    const ll_order_attr *a = (const ll_order_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    TRY(ll_check_dim(a->dim, s));
    CHECK(s->d[a->dim] > 0 && s->d[a->dim] <= INT32_MAX, LL_E_SHAPE,
          "of %ld elements none is the largest", s->d[a->dim]);
    i->out[0] = (ll_type){LL_I32, {.n = 0}};
    for (int d = 0; d < s->n; d++)
        if (d != a->dim) i->out[0].shape.d[i->out[0].shape.n++] = s->d[d];
    return LL_OK;
}

static const ll_op argmax = {
    LL_SOME_OP(argmax, REDUCTION, 1, 1),
    LL_ATTRS(ll_order_attr, dim, least),
    .loops = argmax_loops,
    .infer = argmax_infer,
    .no_grad = true,
    .f64 = true,
    .trials = {"f32[4,7] {dim=1, least=0}", "f32[3,5,2] {dim=1, least=1}",
               "f32[9] {dim=0, least=0}", "i32[6,40]<3 {dim=1, least=0}",
               "i32[6,40]<3 {dim=0, least=1}", "f32[0,3] {dim=1, least=0}"},
};

ll_val ll_argmax(ll_graph *g, ll_val x, int dim)
{
    return LL_EMIT(g, &argmax, (&(ll_order_attr){.dim = dim}), x);
}

ll_val ll_argmin(ll_graph *g, ll_val x, int dim)
{
    return LL_EMIT(g, &argmax, (&(ll_order_attr){.dim = dim, .least = 1}), x);
}

/* ---- sort: [*,n] -> the first k in order [*,k], and where they were, i32 [*,k] ---- */

static ll_err sort_infer(ll_infer *i)
{
    const ll_order_attr *a = (const ll_order_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    TRY(ll_check_dim(s->n - 1, s));
    CHECK(a->k >= 0 && a->k <= s->d[s->n - 1] && s->d[s->n - 1] <= INT32_MAX, LL_E_SHAPE,
          "the first %ld of %ld", a->k, s->d[s->n - 1]);
    i->out[0] = i->in[0];
    i->out[0].shape.d[s->n - 1] = a->k;
    i->out[1] = (ll_type){LL_I32, i->out[0].shape};
    return LL_OK;
}

static void sort_grad(ll_bwd *b)
{
    ll_shape s = ll_graph_shape(b->g, b->in[0]);
    if (b->dout[0].id)
        b->din[0] = ll_scatter_add(b->g, b->dout[0], b->out[1], s.n - 1, s.d[s.n - 1]);
}

static const ll_op sort = {
    LL_SOME_OP(sort, OTHER, 1, 2, .scratch = sort_cpu_scratch),
    LL_ATTRS(ll_order_attr, k, least),
    .dims = "*_ -> *_, *_",
    .infer = sort_infer,
    .grad = sort_grad,
    .flop = 1,
    .f64 = true,
    .trials = {"f32[4,7] {k=7, least=1}", "f32[3,2,9] {k=4, least=0}", "f32[5] {k=1, least=0}",
               "i32[7,40]<5 {k=40, least=1}", "i32[7,40]<5 {k=17, least=0}",
               "i32[30,100]<500 {k=100, least=1}", "f32[0,3] {k=2, least=1}",
               "f32[3,2] {k=0, least=1}"},
};

static ll_val sorted(ll_graph *g, ll_val x, int64_t k, bool least, ll_val *index)
{
    ll_val y = LL_EMIT(g, &sort, (&(ll_order_attr){.k = k, .least = least}), x);
    if (index) *index = ll_sibling(g, y, 1);
    return y;
}

ll_val ll_sort(ll_graph *g, ll_val x, bool descending, ll_val *index)
{
    return sorted(g, x, x.id ? ll_row_length(g, x) : 0, !descending, index);
}

ll_val ll_top_k(ll_graph *g, ll_val x, int64_t k, ll_val *index)
{
    return sorted(g, x, k, false, index);
}

/* ---- cumsum ---- */

static ll_err cumsum_loops(const void *attr, int, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    return ll_dim_loops(((const ll_cumsum_attr *)attr)->dim, in, false, dims);
}

static ll_err cumsum_infer(ll_infer *i)
{
    TRY(ll_check_dim(((const ll_cumsum_attr *)i->attr)->dim, &i->in[0].shape));
    i->out[0] = i->in[0];
    return LL_OK;
}

static void cumsum_grad(ll_bwd *b)
{
    const ll_cumsum_attr *a = (const ll_cumsum_attr *)b->attr;
    b->din[0] = ll_cumsum(b->g, b->dout[0], (int)a->dim, a->exclusive, !a->reverse);
}

static const ll_op cumsum = {
    LL_SOME_OP(cumsum, REDUCTION, 1, 1),
    LL_ATTRS(ll_cumsum_attr, dim, exclusive, reverse),
    .loops = cumsum_loops,
    .infer = cumsum_infer,
    .grad = cumsum_grad,
    .flop = 1,
    .linear = true,
    .f64 = true,
    .trials = {"f32[4,7] {dim=1, exclusive=0, reverse=0}",
               "f32[2,5,3] {dim=1, exclusive=1, reverse=0}",
               "f32[3,70] {dim=0, exclusive=0, reverse=1}",
               "f32[9] {dim=0, exclusive=1, reverse=1}",
               "i32[5,40]<9 {dim=1, exclusive=0, reverse=0}",
               "f32[0,3] {dim=0, exclusive=0, reverse=0}"},
};

ll_val ll_cumsum(ll_graph *g, ll_val x, int dim, bool exclusive, bool reverse)
{
    return LL_EMIT(g, &cumsum, (&(ll_cumsum_attr){dim, exclusive, reverse}), x);
}

const ll_op *const ll_ops_order[] = {&argmax, &sort, &cumsum, NULL};
