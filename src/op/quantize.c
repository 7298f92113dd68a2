/* quantize.c: a tensor as 8-bit floats and one scale, for products that read these:
 *
 *     x = q scale, scale = margin * largest magnitude of x / largest number of the type
 *
 *     quantize       x -> q, scale         as it lies, or with its last dimensions first
 *     quantize_both  x -> q, t, scale      as it lies and transposed, for one reading
 *     quantize_sum   x -> q, t, scale, s   and its columns summed: the gradient of a bias
 *
 * Of quantize attr.transposed says which. Matrix units want both operands of 8-bit floats with the
 * summed loop running fastest, so what the forward pass reads one way the backward pass reads the
 * other. attr.rows: how many of the dimensions are rows of the matrix that is transposed.
 * attr.sample: of so many rows one is looked at for the largest magnitude, another in each step,
 * and margin is LL_QUANTIZE_MARGIN, not 1: 8-bit floats lose nothing at the top of their range
 * that they do not also have further down, and what still is too large becomes the largest number,
 * and is counted (kern/cuda/trouble.h). Infinity becomes no number. attr.act: not x is taken but
 * gelu(x), or x gelu'(second operand); the largest magnitude is still x's, than which the first
 * has none larger, and the second none LL_DGELU_MOST times as large. A tensor of zeros has scale
 * 1. The compiler makes these late, for GPUs (fuse/fp8.c): no loop walks their dimensions. */
#include "op/op_int.h"

LL_KERNELS(quantize)

static ll_err infer(ll_infer *i)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    bool slope = a->act == LL_ACT_DGELU;
    CHECK(a->act == LL_ACT_NONE || a->act == LL_ACT_GELU || slope, LL_E_ARG,
          "act is %ld, expected none, gelu or dgelu", a->act);
    CHECK(i->n_in == 1 + slope, LL_E_ARG, "%d operands, expected %d", i->n_in, 1 + slope);
    for (int k = 0; k < i->n_in; k++)
        CHECK(i->in[k].dtype == (k ? LL_BF16 : i->in[0].dtype) &&
                  ll_wide(i->in[k].dtype) == LL_F32 && ll_shape_equal(&i->in[k].shape, s),
              LL_E_ARG,
              "operand %d is %s, expected f32 or bf16, with a second one bf16 of one shape", k,
              ll_dtype_name(i->in[k].dtype));
    CHECK(i->n_in == 1 || i->in[0].dtype == LL_BF16, LL_E_ARG, "with a second operand want bf16");
    CHECK(a->sample >= 1, LL_E_ARG, "one of %ld rows is looked at", a->sample);
    CHECK(a->dtype == LL_F8_E4M3 || a->dtype == LL_F8_E5M2, LL_E_ARG,
          "to %s, expected e4m3 or e5m2",
          (unsigned)a->dtype < LL_N_DTYPE ? ll_dtype_name(a->dtype) : "no type");
    CHECK(a->rows >= 0 && a->rows <= s->n && (a->transposed & ~1) == 0, LL_E_ARG,
          "%ld of %d dimensions are rows; transposed is %ld", a->rows, s->n, a->transposed);
    ll_shape transposed = {.n = s->n};
    for (int d = 0; d < s->n; d++) transposed.d[d] = s->d[(d + (int)a->rows) % s->n];
    i->out[0] = (ll_type){a->dtype, a->transposed && i->n_out == 2 ? transposed : *s};
    if (i->n_out > 2) i->out[1] = (ll_type){a->dtype, transposed};
    i->out[i->n_out > 2 ? 2 : 1] = (ll_type){LL_F32, LL_SCALAR};
    if (i->n_out < 4) return LL_OK;
    transposed.n -= (int)a->rows;
    i->out[3] = (ll_type){LL_F32, transposed};
    return LL_OK;
}

#define QUANTIZE(op, results)                                                                      \
    .name = #op, .work = LL_WORK_QUANTIZE, .n_in = -1, .n_out = results,                           \
    LL_ATTRS(ll_quantize_attr, dtype, rows, transposed, sample, act), .infer = infer,              \
    .no_grad = true, .ref = quantize_ref, .cuda = LL_GPU(quantize_cuda)

static const ll_op quantize = {
    QUANTIZE(quantize, 2),
    .trials = {"f32[7,5] {dtype=e4m3, rows=1, sample=1}",
               "f32[2,16,3,16] {dtype=e5m2, rows=2, transposed=1, sample=1}",
               "f32[144,272] {dtype=e4m3, rows=1, transposed=1, sample=1}",
               "f32[0,3] {dtype=e4m3, rows=1, sample=1}",
               "f32[3,4,7] {dtype=e4m3, rows=2, transposed=1, sample=5}",
               "f32[64,32] {dtype=e4m3, rows=1, sample=16}", "f32[] {dtype=e5m2, sample=1}",
               "bf16[48,80] {dtype=e4m3, rows=1, transposed=1, sample=1, act=2}"},
};
static const ll_op both = {
    QUANTIZE(quantize_both, 3),
    .trials = {"f32[7,5] {dtype=e4m3, rows=1, sample=1}",
               "f32[2,16,3,16] {dtype=e5m2, rows=2, sample=1}",
               "f32[144,272] {dtype=e4m3, rows=1, sample=3}",
               "bf16[1,400,16], bf16[1,400,16] {dtype=e5m2, rows=2, sample=1, act=3}",
               "f32[260,132] {dtype=e4m3, rows=1, sample=1}",
               "bf16[2,80,144] {dtype=e4m3, rows=2, sample=4, act=2}",
               "f32[7,5] {dtype=e4m3, rows=1, sample=1, act=2}"},
};
static const ll_op sum = {
    QUANTIZE(quantize_sum, 4),
    .trials = {"f32[7,5] {dtype=e4m3, rows=1, sample=1}",
               "bf16[2,16,3,16] {dtype=e5m2, rows=2, sample=1}",
               "bf16[272,144], bf16[272,144] {dtype=e5m2, rows=1, sample=4, act=3}",
               "bf16[5,3], bf16[5,3] {dtype=e5m2, rows=1, sample=1, act=3}",
               "f32[400,32] {dtype=e4m3, rows=1, sample=1}"},
};

const ll_op *const ll_ops_quantize[] = {&quantize, &both, &sum, NULL};
