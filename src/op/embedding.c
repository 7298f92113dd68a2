/* embedding: y[i] = table[index[i]].   table [v,c]   index i32 [*]   y [*,c]
 * embedding_grad: dtable[index[i]] += dy[i], its transpose.
 *
 * The vocabulary is a summed loop: a rank that holds rows from .. from+v-1 gives zeros for all
 * other rows, and the ranks' results add up. Each op is the other's gradient. */
#include "op/op_int.h"
#include "op/rows.h"

LL_KERNELS(embedding, embedding_grad)

/* Attributes may come from text. */
static ll_err check_from(const ll_embedding_attr *a)
{
    CHECK(a->from >= 0 && a->from <= INT32_MAX, LL_E_ARG, "from = %ld, expected a row's number",
          a->from);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    TRY(check_from((const ll_embedding_attr *)i->attr));
    TRY(ll_check_float(i->in[0].dtype, "the table is"));
    TRY(ll_check_index(i, 1));
    return ll_infer_dims(i);
}

/* [*,c], [*] -> [v,c], v from the attributes. */
static ll_err infer_grad(ll_infer *i)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    TRY(ll_check_float(i->in[0].dtype, "operand 0 is"));
    TRY(ll_check_index(i, 1));
    TRY(check_from(a));
    CHECK(s->n > 0, LL_E_SHAPE, "a scalar has no rows");
    i->out[0] = (ll_type){ll_wide(i->in[0].dtype), LL_SHAPE(a->v, s->d[s->n - 1])};
    return ll_check_shape(&i->out[0].shape);
}

/* A cut of v holds some of the rows; other loops need nothing. */
static ll_err split(const void *, const ll_loops *l, int loop, ll_range range, const ll_type *,
                    ll_part *part)
{
    if (l->letter[loop] != 'v') return LL_OK;
    ll_embedding_attr *a = (ll_embedding_attr *)part->attr;
    a->from += range.from;
    if (!a->part) a->part = l->extent[loop];
    if (a->v) a->v = range.to - range.from;
    return LL_OK;
}

static void grad(ll_bwd *b);
static void grad_grad(ll_bwd *b);

static const ll_op embedding = {
    LL_REF_OP(embedding, EMBEDDING, 2, 1, .parts = true),
    LL_ATTRS(ll_embedding_attr, v, from, part),
    .dims = "vc, * -> *c",
    .sum = "v",
    .picks = true,
    .infer = infer,
    .split = split,
    .grad = grad,
    .f64 = true,
    .trials = {"f32[7,3], i32[5]<7", "f32[5,4], i32[2,3]<5", "f32[4,3], i32[13]<9 {from=3, part=9}",
               "f32[1,1], i32[]<1"},
};

static const ll_op embedding_grad = {
    LL_REF_OP(embedding_grad, EMBEDDING, 2, 1, .parts = true),
    LL_ATTRS(ll_embedding_attr, v, from, part),
    .dims = "*c, * -> vc",
    .wide_out = 1u << 0,
    .sum = "*",
    .infer = infer_grad,
    .split = split,
    .grad = grad_grad,
    .f64 = true,
    .trials = {"f32[5,3], i32[5]<7 {v=7}", "f32[2,3,4], i32[2,3]<5 {v=5}",
               "f32[13,3], i32[13]<9 {v=4, from=3, part=9}", "f32[1], i32[]<1 {v=1}",
               "f32[0,2], i32[0]<3 {v=3}", "f32[900,16], i32[900]<11 {v=11}",
               "f32[5000,8], i32[5000]<2 {v=2}"},
};

static void grad(ll_bwd *b)
{
    ll_embedding_attr a = *(const ll_embedding_attr *)b->attr;
    a.v = ll_graph_shape(b->g, b->in[0]).d[0];
    b->din[0] = LL_EMIT(b->g, &embedding_grad, &a, b->dout[0], b->in[1]);
}

static void grad_grad(ll_bwd *b)
{
    ll_embedding_attr a = *(const ll_embedding_attr *)b->attr;
    a.v = 0;
    b->din[0] = LL_EMIT(b->g, &embedding, &a, b->dout[0], b->in[1]);
}

ll_val ll_embedding(ll_graph *g, ll_val table, ll_val index)
{
    return LL_EMIT(g, &embedding, &(ll_embedding_attr){0}, table, index);
}

const ll_op *const ll_ops_embedding[] = {&embedding, &embedding_grad, NULL};
