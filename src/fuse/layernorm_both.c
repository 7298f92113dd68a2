/* layernorm_both.c: a residual's sum, its layernorm, and that as 8-bit floats, as they lie and
 * transposed, for products that read nothing else (op/quantize.c says why both):
 *
 *     a, b, gain, bias[, before] -> sum, q, t, scale, mean, rstd
 *     sum = a + b (+ before)     q scale = layernorm(sum), e4m3
 *
 * A row's numbers are less than sqrt(c) before the gain is taken, so the scale is known before any
 * of them: (sqrt(c) largest |gain| + largest |bias|) / 448. At usual widths that is about as large
 * as the margin that scales from samples have. For GPUs. */
#include "fuse/fuse_int.h"
#include "op/rows.h"

#include <stdio.h>

extern const ll_solver layernorm_both_cuda[];

enum { WIDEST = 2560 }; /* rows that the kernel holds */

static ll_err infer(ll_infer *i)
{
    TRY(ll_infer_floats(i));
    i->out[1].dtype = i->out[2].dtype = LL_F8_E4M3;
    return LL_OK;
}

static void expand(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out)
{
    ll_val norm[4], gain = in[2], bias = in[3], one = ll_fill(g, LL_F64, LL_SCALAR, 1);
    ll_op_find("add_layernorm")->expand(g, attr, in, n_in, norm);
    double row = (double)ll_row_length(g, norm[0]);
    ll_val most = ll_scale(g, ll_absmax(g, gain, "c->"), sqrt(row));
    most = ll_scale(g, ll_add(g, most, ll_absmax(g, bias, "c->")), 1.0 / 448);
    out[0] = norm[0];
    out[3] = ll_select(g, most, most, one);
    out[1] = ll_cast(g, ll_div(g, norm[1], out[3]), LL_F8_E4M3);
    int n = ll_graph_shape(g, norm[0]).n;
    char spec[LL_SPEC_MAX];
    snprintf(spec, sizeof spec, "%.*sz->z%.*s", n - 1, "abcde", n - 1, "abcde");
    out[2] = ll_transpose(g, out[1], spec);
    out[4] = norm[2];
    out[5] = norm[3];
}

static const ll_op layernorm_both = {
    LL_GPU_OP(layernorm_both, NORM, 4, 6),
    .n_more = 1,
    LL_ATTRS(ll_norm_attr, eps),
    .wide_in = 1u << 2 | 1u << 3 | 1u << 4,
    .wide_out = 1u << 3 | 1u << 4 | 1u << 5,
    .dims = "*c, *c, c, c -> *c, *c, c*, , *, *",
    .whole = "*c",
    .infer = infer,
    .expand = expand,
    .flop = 9,
    .in_place = 1u << 0 | 1u << 1,
    .trials = {"*=3 c=7 {eps=1e-5}", "f32[2,3,8], f32[2,3,8], f32[8], f32[8], f32[8] {eps=1e-3}",
               "bf16[80,1600], bf16[80,1600], f32[1600], f32[1600], f32[1600] {eps=1e-5}",
               "*=336 c=1296 0:bf16 1:bf16 {eps=1e-5}", "*=2,112 c=272 0:bf16 1:bf16 {eps=1e-5}",
               "*=48 c=2064 0:bf16 1:bf16 {eps=1e-5}", "c=6 {eps=1e-5}"},
};

const ll_op *const ll_ops_layernorm_both[] = {&layernorm_both, NULL};

static bool guard(ll_match *m)
{
    const ll_quantize_attr *a = (const ll_quantize_attr *)ll_match_node(m, "q")->attr;
    ll_shape s = ll_graph_shape(m->g, ll_match_value(m, "y"));
    if (a->rows != s.n - 1) return ll_match_no(m, "%ld of %d dimensions are rows", a->rows, s.n);
    if (s.d[s.n - 1] > WIDEST) return ll_match_no(m, "rows are longer than %d", WIDEST);
    return true;
}

#define ROW(more)                                                                                  \
    {                                                                                              \
        .pattern =                                                                                 \
            "s, y, mean, rstd = add_layernorm(a, b, gain, bias" more ") {eps=$eps}\n"              \
            "q, t, scale = quantize_both(y) {dtype=e4m3, rows=$rows, sample=$sample, act=0}",      \
        .replace =                                                                                 \
            "s, q, t, scale, mean, rstd = layernorm_both(a, b, gain, bias" more ") {eps=$eps}",    \
        .guard = guard, .trials = {                                                                \
            "a: bf16[16,48], b: bf16[16,48], gain: f32[48], bias: f32[48], before: f32[48]"        \
            " $eps=1e-5 $rows=1 $sample=1"                                                         \
        }                                                                                          \
    }
static const ll_fusion_row rows[] = {ROW(""), ROW(", before"), {0}};

LL_GPU_FUSION(layernorm_both, LATE, .precisions = 1 << LL_PRECISION_fp8, .rows = rows)
