/* layernorm_both.c: a residual's sum, its layernorm, and that as 8-bit floats, as they lie and
 * turned, for products that read nothing else (op/quantize.c says why both):
 *
 *     a, b, gain, bias[, before] -> sum, q, t, scale, mean, rstd
 *     sum = a + b (+ before)     q scale = layernorm(sum), e4m3
 *
 * A row's numbers are less than sqrt(c) before the gain is taken, so the scale is known before any
 * of them: (sqrt(c) largest |gain| + largest |bias|) / 448. At usual widths that is about as large
 * as the margin that scales from samples have. The compiler makes these late, for GPUs
 * (pass/fp8.c). */
#include "op/op_int.h"
#include "op/rows.h"

ll_kernel layernorm_both_ref, layernorm_both_cuda;

static ll_err infer(ll_infer *i)
{
    CHECK(i->n_in == 4 || i->n_in == 5, LL_E_GRAPH, "%d operands, want 4 or 5", i->n_in);
    TRY(ll_infer_as(i, "*c, *c, c, c, c -> *c, *c, *c, *, *, *", ll_infer_floats));
    const ll_shape *s = &i->in[0].shape;
    ll_shape turned = {.n = s->n};
    for (int d = 0; d < s->n; d++) turned.d[d] = s->d[(d + s->n - 1) % s->n];
    i->out[1].dtype = LL_F8_E4M3;
    i->out[2] = (ll_type){LL_F8_E4M3, turned};
    i->out[3] = (ll_type){LL_F32, LL_SCALAR};
    return LL_OK;
}

static ll_err loops(const void *, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT])
{
    int n = in[0].shape.n;
    ll_no_loops(n_in, in, 6, (int[]){n, n, n, 0, n - 1, n - 1}, dims);
    return LL_OK;
}

static const ll_attr_field fields[] = {LL_FIELD(ll_norm_attr, eps, LL_A_F64), {0}};

static const ll_op layernorm_both = {
    .name = "layernorm_both",
    .n_in = -1,
    .n_out = 6,
    .attr_size = sizeof(ll_norm_attr),
    .attrs = fields,
    .wide_in = 1u << 2 | 1u << 3 | 1u << 4,
    .wide_out = 1u << 3 | 1u << 4 | 1u << 5,
    .infer = infer,
    .loops = loops,
    .no_grad = true,
    .flop = 9,
    .in_place = 1u << 0 | 1u << 1,
    .ref = layernorm_both_ref,
    .cuda = LL_GPU(LL_KERNEL(.run = layernorm_both_cuda)),
    .trials = {"f32[3,7], f32[3,7], f32[7], f32[7] {eps=1e-5}",
               "f32[2,3,8], f32[2,3,8], f32[8], f32[8], f32[8] {eps=1e-3}",
               "bf16[80,1600], bf16[80,1600], f32[1600], f32[1600], f32[1600] {eps=1e-5}",
               "bf16[336,1296], bf16[336,1296], f32[1296], f32[1296] {eps=1e-5}",
               "bf16[2,112,272], bf16[2,112,272], f32[272], f32[272] {eps=1e-5}",
               "bf16[48,2064], bf16[48,2064], f32[2064], f32[2064] {eps=1e-5}",
               "f32[6], f32[6], f32[6], f32[6] {eps=1e-5}"},
};

const ll_op *const ll_ops_layernorm_both[] = {&layernorm_both, NULL};
