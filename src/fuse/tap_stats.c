/* tap_stats.c: a convolution by one tap, which is a product, makes the statistics of the batch norm
 * behind it from the registers that its result is made in (kern/cuda/hopper_stats.cu): what is
 * written is not read again for them.
 *
 *     tap_stats  x, w -> y, mean, var     x [n,h,w,c]   w [f,1,1,c]   y [n,h,w,f]   others [f]
 *
 * For GPUs whose product with such an epilogue is as quick as cuDNN's convolution, and where it
 * pays: a convolution to no fewer channels has more to write than to read, and the pass saved is a
 * large part of it; filters of more than MOST channels do not stay on the chip. */
#include "fuse/fuse_int.h"
#include "op/rows.h"

LL_KERNELS(tap_stats)

static const ll_op op = {
    LL_GPU_OP(tap_stats, CONVOLUTION, 2, 3),
    .dims = "nhwc, f__c -> nhwf, f, f",
    .whole = "nhwc",
    .wide_out = 3u << 1,
    .infer = ll_infer_floats,
    .flop = 2,
    .trials = {"f32[2,5,3,7], f32[5,1,1,7]", "f32[2,9,11,64], f32[72,1,1,64]",
               "f32[1,5,13,72], f32[200,1,1,72]"},
};
const ll_op *const ll_ops_tap_stats[] = {&op, NULL};

enum { LEAST = 64, MOST = 512 }; /* channels, the first also of pixels */

static bool guard(ll_match *m)
{
    const ll_graph *g = m->g;
    ll_val x = ll_match_value(m, "x"), y = ll_match_value(m, "y");
    ll_shape w = ll_graph_shape(g, ll_match_value(m, "w")), all = ll_graph_shape(g, y);
    if (ll_graph_dtype(g, x) != LL_BF16 || w.d[1] != 1 || w.d[2] != 1) return false;
    int64_t f = w.d[0], c = w.d[3], rows = all.d[0] * all.d[1] * all.d[2];
    if (c < LEAST || rows < LEAST || f % 8 || c % 8)
        return ll_match_no(
            m, "%ld channels to %ld of %ld pixels: expected %d and more, channels multiples of 8",
            c, f, rows, LEAST);
    return (c <= MOST && f >= c) ||
           ll_match_no(m, "%ld channels to %ld: pays for at most %d to as many or more", c, f,
                       MOST);
}

#define TAP "y = conv2d(x, w) {stride=[1,1], pad=[0,0,0,0], dilation=[1,1], groups=1, narrow=1}\n"
#define MADE "y, mean, var = tap_stats(x, w)\n"
#define TRIAL                                                                                      \
    "x: bf16[2,5,9,64], w: bf16[72,1,1,64], gain: f32[72], bias: f32[72], r: bf16[2,5,9,72] "      \
    "$eps=1e-5"

static const ll_fusion_row rows[] = {
    {.pattern = TAP "mean, var = batchnorm_stats(y)",
     .replace = MADE,
     .guard = guard,
     .trials = {TRIAL}},
    {.pattern = TAP "z, mean, var = batchnorm_relu(y, gain, bias) {eps=$eps}",
     .replace = MADE "z = batchnorm_known_relu(y, gain, bias, mean, var) {eps=$eps}",
     .guard = guard,
     .trials = {TRIAL}},
    {.pattern = TAP "z, mean, var, bits = batchnorm_add_relu_bits(y, r, gain, bias) {eps=$eps}",
     .replace =
         MADE "z, bits = batchnorm_known_add_relu_bits(y, r, gain, bias, mean, var) {eps=$eps}",
     .guard = guard,
     .trials = {TRIAL}},
    {0}};

LL_GPU_FUSION(tap_stats, LATE, .precisions = LL_IN_16, .level = 90, .rows = rows)
