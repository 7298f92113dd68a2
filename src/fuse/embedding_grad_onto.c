/* embedding_grad_onto.c: an embedding's gradient that is only added to a value, added to it where
 * it lies, for GPUs: tied input and output tables.   dy [*,c]   index i32 [*]   table, result [v,c]
 */
#include "fuse/fuse_int.h"
#include "op/rows.h"

extern const ll_solver embedding_grad_cuda[];

static ll_err infer(ll_infer *i)
{
    const ll_embedding_attr *a = (const ll_embedding_attr *)i->attr;
    const ll_type *dy = &i->in[0], *table = &i->in[2];
    CHECK(ll_dtype_is_float(dy->dtype) && table->dtype == ll_wide(dy->dtype), LL_E_ARG,
          "%s is added to %s", ll_dtype_name(dy->dtype), ll_dtype_name(table->dtype));
    TRY(ll_check_index(i, 1));
    TRY(ll_infer_dims(i));
    CHECK(a->v == table->shape.d[0] && a->from >= 0 && a->from <= INT32_MAX, LL_E_ARG,
          "v = %ld, from = %ld, for a table of %ld rows", a->v, a->from, table->shape.d[0]);
    i->out[0].dtype = table->dtype;
    return LL_OK;
}

static const ll_op embedding_grad_onto = {
    .name = "embedding_grad_onto",
    .work = LL_WORK_EMBEDDING,
    .n_in = 3,
    .n_out = 1,
    LL_ATTRS(ll_embedding_attr, v, from, part),
    .dims = "*c, *, vc -> vc",
    .whole = "*vc",
    .wide_in = 1u << 2,
    .infer = infer,
    .no_grad = true,
    .in_place = 1u << 2,
    .cuda = LL_GPU(embedding_grad_cuda),
    .trials = {"f32[5,3], i32[5]<7, f32[7,3] {v=7}",
               "f32[13,3], i32[13]<9, f32[4,3] {v=4, from=3, part=9}",
               "f32[0,2], i32[0]<3, f32[3,2] {v=3}", "f32[700,8], i32[700]<3, f32[3,8] {v=3}"},
};

static const ll_fusion_row rows[] = {
    {.pattern = "d = embedding_grad(dy, index) {v=$v, from=$from, part=$part}\nr = add(d, table)",
     .replace = "r = embedding_grad_onto(dy, index, table) {v=$v, from=$from, part=$part}",
     .same = "r d table"},
    {0}};

LL_GPU_FUSION(embedding_grad_onto, BACKWARD, .rows = rows)
const ll_op *const ll_ops_embedding_grad_onto[] = {&embedding_grad_onto, NULL};
