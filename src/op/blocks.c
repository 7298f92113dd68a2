/* blocks.c: a matrix as 8-bit floats (e4m3) whose scales are of blocks, for products that read
 * these: of 128 numbers along the loop that is summed, or of 128 x 128:
 *
 *     quantize_blocks        x -> q, scales                 as it lies, or transposed
 *     quantize_blocks_both   x -> q, scales, t, its scales  as it lies and transposed
 *     dequantize_blocks                q, scales -> x                 what they stand for
 *
 * An outlier then costs precision in its block alone. Of what lies and what is transposed blocks of
 * lines differ, and so do numbers; squares (of parameters) are the same both ways. attr.rows: how
 * many of the dimensions are rows of the matrix. Scales lie as cuBLASLt wants them (kern/attr.h);
 * those that pad a row of squares are 1. The compiler makes these late, for GPUs (fuse/fp8.c): no
 * loop walks their dimensions. */
#include "op/op_int.h"

LL_KERNELS(quantize_blocks, dequantize_blocks)

static ll_err check(const ll_infer *i, const ll_blocks_attr *a)
{
    CHECK(a->rows >= 0 && a->rows <= i->in[0].shape.n && !(a->transposed & ~1) && !(a->square & ~1),
          LL_E_ARG, "%ld of %d dimensions are rows; transposed is %ld, square %ld", a->rows,
          i->in[0].shape.n, a->transposed, a->square);
    return LL_OK;
}

/* Of a matrix of so many rows and columns. */
static ll_shape scales_of(const ll_blocks_attr *a, int64_t rows, int64_t cols)
{
    int64_t lines = ll_block_count(a->square ? rows : cols);
    return LL_SHAPE(lines, ll_block_stride(a->square, rows, cols));
}

static int64_t extent(const ll_shape *s, int from, int to)
{
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= s->d[d];
    return n;
}

static ll_err infer(ll_infer *i)
{
    const ll_blocks_attr *a = (const ll_blocks_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    TRY(check(i, a));
    CHECK(ll_wide(i->in[0].dtype) == LL_F32, LL_E_ARG, "the operand is %s, expected f32 or bf16",
          ll_dtype_name(i->in[0].dtype));
    bool both = i->n_out > 2;
    CHECK(!both || !a->transposed, LL_E_ARG, "both ways are made: transposed is 0");
    int64_t rows = extent(s, 0, (int)a->rows), cols = extent(s, (int)a->rows, s->n);
    ll_shape transposed = {.n = s->n};
    for (int d = 0; d < s->n; d++) transposed.d[d] = s->d[(d + (int)a->rows) % s->n];
    i->out[0] = (ll_type){LL_F8_E4M3, a->transposed ? transposed : *s};
    i->out[1] =
        (ll_type){LL_F32, a->transposed ? scales_of(a, cols, rows) : scales_of(a, rows, cols)};
    if (!both) return LL_OK;
    i->out[2] = (ll_type){LL_F8_E4M3, transposed};
    i->out[3] = (ll_type){LL_F32, scales_of(a, cols, rows)};
    return LL_OK;
}

static ll_err infer_back(ll_infer *i)
{
    const ll_blocks_attr *a = (const ll_blocks_attr *)i->attr;
    const ll_shape *s = &i->in[0].shape;
    TRY(check(i, a));
    ll_shape want = scales_of(a, extent(s, 0, (int)a->rows), extent(s, (int)a->rows, s->n));
    bool wide = i->in[0].dtype == LL_F64; /* of expansions, for machine ref */
    CHECK((wide || i->in[0].dtype == LL_F8_E4M3) && i->in[1].dtype == (wide ? LL_F64 : LL_F32) &&
              ll_shape_equal(&i->in[1].shape, &want),
          LL_E_ARG, "operands are %s and %s, expected e4m3 and its scales, f32[%ld,%ld]",
          ll_dtype_name(i->in[0].dtype), ll_dtype_name(i->in[1].dtype), want.d[0], want.d[1]);
    i->out[0] = (ll_type){i->in[1].dtype, *s};
    return LL_OK;
}

#define BLOCKS(op, results)                                                                        \
    .name = #op, .work = LL_WORK_QUANTIZE, .n_in = 1, .n_out = results,                            \
    LL_ATTRS(ll_blocks_attr, rows, transposed, square), .infer = infer, .no_grad = true,           \
    .ref = quantize_blocks_ref, .cuda = LL_GPU(quantize_blocks_cuda)

static const ll_op one = {
    BLOCKS(quantize_blocks, 2),
    .trials = {"f32[7,5] {rows=1}", "bf16[2,136,3,48] {rows=2, transposed=1}",
               "f32[144,272] {rows=1, square=1}", "f32[400,130] {rows=1, transposed=1, square=1}",
               "f32[0,3] {rows=1}", "bf16[128,656] {rows=1}"},
};
static const ll_op both = {
    BLOCKS(quantize_blocks_both, 4),
    .trials = {"f32[7,5] {rows=1}", "bf16[2,80,144] {rows=2}", "f32[272,144] {rows=1, square=1}",
               "f32[1,300] {rows=1, square=1}", "bf16[640,16] {rows=1}"},
};
static const ll_op dequantize_blocks = {
    .name = "dequantize_blocks",
    .work = LL_WORK_QUANTIZE,
    .n_in = 2,
    .n_out = 1,
    LL_ATTRS(ll_blocks_attr, rows, transposed, square),
    .infer = infer_back,
    .no_grad = true,
    .ref = dequantize_blocks_ref,
    .cuda = LL_GPU(dequantize_blocks_cuda),
    .trials = {"e4m3[7,200], f32[2,7]> {rows=1}", "e4m3[2,100,144], f32[2,4]> {rows=2, square=1}",
               "e4m3[3,0], f32[0,3]> {rows=1}"},
};

const ll_op *const ll_ops_blocks[] = {&one, &both, &dequantize_blocks, NULL};
