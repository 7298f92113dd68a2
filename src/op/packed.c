/* packed_matmul: a product with weights of 8 or 4 bits (pass/packed.h), for inference.
 *   x [F,C,32] f32, q [N,C,32 or 16] u8, scale [N,C] f16, of 4 bits least [N,C] f16 -> [F,N]
 * Blocks of x are rounded to 8 bits: with d = max |x| / 127 and k = rint(x / d),
 *   y = sum over blocks of scale d sum(q k) (+ least d sum(k)). */
#include "kern/attr.h"
#include "op/op_int.h"

#include <stdio.h>

ll_kernel packed_matmul_ref, packed_matmul_cpu;
ll_scratch packed_matmul_cpu_scratch;
extern const ll_solver packed_matmul_cuda[];

static const ll_attr_field fields[] = {LL_FIELD(ll_packed_attr, spec, LL_A_SPEC),
                                       LL_FIELD(ll_packed_attr, bits, LL_A_INT),
                                       LL_FIELD(ll_packed_attr, rows, LL_A_INT),
                                       {0}};

static ll_err loops(const void *attr, int, const ll_type *, char dims[LL_DIMS_TEXT])
{
    const ll_packed_attr *a = (const ll_packed_attr *)attr;
    size_t n = strnlen(a->spec, LL_SPEC_MAX);
    CHECK(n < LL_SPEC_MAX && strstr(a->spec, "->") && strchr(a->spec, ','), LL_E_ARG,
          "spec \"%.*s\", want one like \"bk_,nk_,nk->bn\"", (int)n, a->spec);
    for (size_t i = 0; i < n; i++)
        CHECK(strchr("abcdefghijklmnopqrstuvwxyz_,->", a->spec[i]), LL_E_ARG,
              "spec \"%s\": '%c' is not a letter a to z", a->spec, a->spec[i]);
    snprintf(dims, LL_DIMS_TEXT, "%s", a->spec);
    return LL_OK;
}

static ll_err infer(ll_infer *i)
{
    const ll_packed_attr *a = (const ll_packed_attr *)i->attr;
    const ll_shape *x = &i->in[0].shape, *q = &i->in[1].shape, *s = &i->in[2].shape;
    CHECK((a->bits == 8 && i->n_in == 3) || (a->bits == 4 && i->n_in == 4), LL_E_ARG,
          "%lld bits and %d operands", (long long)a->bits, i->n_in);
    CHECK(i->in[0].dtype == LL_F32 && i->in[1].dtype == LL_U8 && i->in[2].dtype == LL_F16 &&
              (i->n_in < 4 || i->in[3].dtype == LL_F16),
          LL_E_ARG, "operands are %s, %s and %s, want f32, u8 and f16",
          ll_dtype_name(i->in[0].dtype), ll_dtype_name(i->in[1].dtype),
          ll_dtype_name(i->in[2].dtype));
    CHECK(x->n > 1 && q->n > 1 && x->d[x->n - 1] == 32 && q->d[q->n - 1] == 4 * a->bits &&
              a->rows > 0 && a->rows < s->n,
          LL_E_SHAPE, "want blocks of 32, packed in %lld bytes", 4 * (long long)a->bits);
    TRY(ll_infer_dims(i));
    i->out[0].dtype = LL_F32;
    return LL_OK;
}

const ll_op ll_op_packed_matmul = {
    LL_REF_OP(packed_matmul, PRODUCT, 3, 1, .scratch = packed_matmul_cpu_scratch),
    LL_ATTRS(ll_packed_attr, fields),
    .n_more = 1,
    .model = 1,
    .loops = loops,
    .sum = "?",
    .infer = infer,
    .no_grad = true,
    .flop = 64,
    .trials = {"f32[2,3,32], u8[5,3,32], f16[5,3] {spec=\"mk_,nk_,nk->mn\", bits=8, rows=1}",
               "f32[1,2,32], u8[7,2,16], f16[7,2], f16[7,2] {spec=\"mk_,nk_,nk,nk->mn\", bits=4, "
               "rows=1}",
               "f32[2,3,2,2,32], u8[9,2,2,32], f16[9,2,2] {spec=\"btnd_,cnd_,cnd->btc\", bits=8, "
               "rows=1}",
               "f32[1,9,1,32], u8[2,3,1,16], f16[2,3,1], f16[2,3,1] {spec=\"btk_,nhk_,nhk,nhk->btnh"
               "\", bits=4, rows=2}"},
};

const ll_op *const ll_ops_packed[] = {&ll_op_packed_matmul, NULL};
