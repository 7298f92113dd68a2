/* attr.h: the attribute structs of ops, shared by op/ (declares, prints) and kern/ (computes).
 * They are compared and hashed as bytes: always made zeroed, strings padded with zeros. */
#pragma once
#include "base/share.h"
#include "base/types.h"
#include "kern/both.h"

#include <math.h>
#include <string.h>

#define LL_SPEC_MAX 40

/* transpose, sum, amax: "nhwc->c" */
typedef struct ll_spec_attr {
    char spec[LL_SPEC_MAX];
} ll_spec_attr;

/* matmul: "btc,nc->btn"; out: element type of the result; bits: 0, or products
 * of f64 are rounded to multiples of 2^bits, and their sums are exact (base/num.h) */
typedef struct ll_matmul_attr {
    char spec[LL_SPEC_MAX];
    ll_dtype out;
    int64_t bits;
} ll_matmul_attr;

/* SCALED: operands are 8-bit floats, and their scales follow them; FAST: sums may be kept in fewer
 * bits for a while; LINES: scales are of blocks of 128 along the summed loop, SQUARES_A, SQUARES_B:
 * those of one operand of 128 x 128 (op/blocks.c) */
typedef enum ll_scaled {
    LL_UNSCALED,
    LL_SCALED,
    LL_SCALED_FAST,
    LL_SCALED_LINES,
    LL_SCALED_SQUARES_A,
    LL_SCALED_SQUARES_B,
    LL_N_SCALED
} ll_scaled;
typedef enum ll_act {
    LL_ACT_NONE,
    LL_ACT_RELU,
    LL_ACT_GELU,
    LL_ACT_DGELU,
    LL_ACT_SLOPE,
    LL_ACT_TIMES,
    LL_N_ACT
} ll_act;
/* product: a matmul and what surrounds it (fuse/product.c); bias: whether there is one; act: an
 * ll_act; scaled: an ll_scaled; sparse: of each four numbers of b that lie beside each other two
 * are 0 */
typedef struct ll_product_attr {
    char spec[LL_SPEC_MAX];
    ll_dtype out;
    int64_t bias, act, scaled, sparse;
} ll_product_attr;

typedef struct ll_broadcast_attr {
    char spec[LL_SPEC_MAX];
    ll_shape shape;
} ll_broadcast_attr;

/* grid, ungrid: "nhwf,n,f->nhwf": the tensor, then its scales; bits: of the fixed point (ungrid:
 * of all factors together); out: element type of the result; odd: grid rounds to odd numbers */
typedef struct ll_grid_attr {
    char spec[LL_SPEC_MAX];
    int64_t bits;
    ll_dtype out;
    int64_t odd;
} ll_grid_attr;

/* grid_sum: grid's spec and bits, and the sum's spec */
typedef struct ll_grid_sum_attr {
    char grid[LL_SPEC_MAX], spec[LL_SPEC_MAX];
    int64_t bits;
} ll_grid_sum_attr;

/* grid_matmul: the product's spec, and grid's of each operand; bits: of both; rounded: the
 * product's */
typedef struct ll_grid_matmul_attr {
    char spec[LL_SPEC_MAX], a[LL_SPEC_MAX], b[LL_SPEC_MAX];
    int64_t bits, rounded;
} ll_grid_matmul_attr;

/* reach: "btc,nc->btn" of levels, which count from 1 to LL_REACH_BITS; enough: results are no more
 * than 2^-enough */
typedef struct ll_reach_attr {
    char spec[LL_SPEC_MAX];
    int64_t enough;
} ll_reach_attr;
enum { LL_REACH_BITS = 60 };

/* reach_over: reach's, most: of 1 / reach; a, b: specs of grid, where operands are no levels */
typedef struct ll_reach_over_attr {
    char spec[LL_SPEC_MAX], a[LL_SPEC_MAX], b[LL_SPEC_MAX];
    int64_t enough;
    double most;
} ll_reach_over_attr;

/* peaks: over windows as those of convolutions (ll_conv_attr); size: the window; back: the other
 * way around, and image: height and width of the result then */
typedef struct ll_peaks_attr {
    int64_t stride[2], pad[4], dilation[2], groups, size[2], back, image[2];
} ll_peaks_attr;

typedef struct ll_fill_attr {
    double value;
    ll_shape shape;
    ll_dtype dtype;
} ll_fill_attr;

typedef struct ll_reshape_attr {
    ll_shape shape;
} ll_reshape_attr;

/* slice: [from, to) of dim; pad: from zeros before, to zeros after; concat: dim */
typedef struct ll_range_attr {
    int64_t dim, from, to;
} ll_range_attr;

typedef struct ll_cast_attr {
    ll_dtype dtype;
} ll_cast_attr;

/* quantize: to which 8-bit type; how many dimensions are rows; transposed: columns come first;
 * sample: one of so many rows is looked at for the largest magnitude; act: LL_ACT_NONE, LL_ACT_GELU
 * or LL_ACT_DGELU */
enum { LL_QUANTIZE_MARGIN = 8 };
#define LL_DGELU_MOST 1.13 /* |gelu'| is less everywhere */
typedef struct ll_quantize_attr {
    ll_dtype dtype;
    int64_t rows, transposed, sample, act;
} ll_quantize_attr;
/* The first of the rows that are looked at: another in each step (clock: ll_stream("", step)). */
#define LL_QUANTIZE_FIRST(clock, rows, sample)                                                     \
    (int64_t)((clock) % (uint64_t)((rows) < (sample) ? (rows) + !(rows) : (sample)))

/* quantize_blocks, dequantize_blocks: how many dimensions are rows; transposed: columns come first;
 * square: a scale is of LL_BLOCK rows too */
enum { LL_BLOCK = 128, LL_BLOCK_PAD = 4 };
typedef struct ll_blocks_attr {
    int64_t rows, transposed, square;
} ll_blocks_attr;
/* How many scales 8-bit floats [rows, cols] have, by two dimensions, and which one is an element's:
 * as cuBLASLt wants them, those of one row's blocks far apart, squares' side by side. */
LL_BOTH static inline int64_t ll_block_count(int64_t n)
{
    return (n + LL_BLOCK - 1) / LL_BLOCK;
}
LL_BOTH static inline int64_t ll_block_stride(bool square, int64_t rows, int64_t cols)
{
    int64_t n = ll_block_count(cols);
    return square ? (n + LL_BLOCK_PAD - 1) / LL_BLOCK_PAD * LL_BLOCK_PAD : rows;
}
LL_BOTH static inline int64_t ll_block_at(bool square, int64_t rows, int64_t cols, int64_t row,
                                          int64_t col)
{
    int64_t stride = ll_block_stride(square, rows, cols);
    return square ? row / LL_BLOCK * stride + col / LL_BLOCK : col / LL_BLOCK * stride + row;
}
/* The scale of a block by its largest magnitude, so that e4m3 holds it. NaN stays. */
LL_BOTH static inline float ll_block_scale(float most)
{
    float scale = most / 448;
    return scale < 0x1p-126f ? (most > 0 ? 0x1p-126f : 1) : scale;
}

/* classify: a row's largest sum of exponentials with the label's as 1; see fuse/classify.c */
#define LL_CLASSIFY_MOST 0x1p80

/* onehot: how many classes, from which one on, and the result's element type; of: how many there
 * are in all, beyond which an index is an error (0: it is not) */
typedef struct ll_onehot_attr {
    int64_t size, from, of;
    ll_dtype dtype;
} ll_onehot_attr;

/* scale, shift: the number */
typedef struct ll_number_attr {
    double value;
} ll_number_attr;

/* conv2d and its gradients. Output row o reads input row o*stride - pad + r*dilation; reads outside
 * the image are zeros. pad may be negative in a part of a split convolution.
 * size: conv2d_dx: the image's height and width; conv2d_dw: the filter's; conv2d: unused.
 * narrow: the result of bf16 operands is bf16; otherwise it is f32.
 * bits: as of matmul.
 * at: of a part, where its result (conv2d_dw: dy) begins in the whole: tiles are laid there. */
typedef struct ll_conv_attr {
    int64_t stride[2], pad[4], dilation[2], groups, size[2]; /* pad: top, bottom, left, right */
    int64_t narrow, at[2], bits;
} ll_conv_attr;

/* pooling; size: the window. image: height and width of the input, for the gradients. */
typedef struct ll_pool_attr {
    int64_t size[2], stride[2], pad[4], image[2];
} ll_pool_attr;

/* resample: a matrix [out, image] of few numbers a row times dimension dim; back: its transpose.
 * Output o is at (o + pre) num / den + shift of the image; kind says what of the image it takes
 * (kern/resample.h). A part makes rows at.. of the result, size of them, from rows of the operand;
 * at: where the image and the output begin. */
typedef enum ll_resample_kind {
    LL_TAKE_FLOOR,   /* the pixel at or before it */
    LL_TAKE_CEIL,    /* at or behind it */
    LL_TAKE_LINEAR,  /* of the two around it */
    LL_TAKE_CUBIC,   /* of the four around it; cubic: their coefficient */
    LL_TAKE_AREA,    /* the average of what output o covers, of all evenly laid over the image */
    LL_TAKE_REVERSE, /* pixel image - 1 - o */
    LL_N_TAKE
} ll_resample_kind;
typedef struct ll_resample_attr {
    int64_t dim, kind, back, image, out, at[2], size;
    double pre, num, den, shift, cubic;
} ll_resample_attr;

/* recur: which cell (ll_cell). A cell has so many gates and states of h numbers each, and the first
 * `from_h` gates are given the last step's h times the weight. */
typedef struct ll_recur_attr {
    int64_t cell;
} ll_recur_attr;
enum { LL_CELL_GATES = 4, LL_CELL_STATES = 2 };
typedef struct ll_cell_kind {
    int gates, from_h, states;
} ll_cell_kind;
static const ll_cell_kind ll_cell_kinds[] = {[LL_LSTM] = {4, 4, 2},
                                             [LL_GRU] = {4, 3, 1},
                                             [LL_RNN_TANH] = {1, 1, 1},
                                             [LL_RNN_RELU] = {1, 1, 1}};

typedef struct ll_norm_attr {
    double eps;
} ll_norm_attr;

/* a norm with the pool behind it: fields as in ll_pool_attr */
typedef struct ll_norm_pool_attr {
    double eps;
    int64_t size[2], stride[2], pad[4];
} ll_norm_pool_attr;

/* dropout: drop probability; stream: which random numbers; whole: the shape of the tensor this one
 * is a part of, and at: where in it the part starts. The numbers are those of the whole. */
typedef struct ll_dropout_attr {
    double p;
    int64_t stream;
    ll_shape whole;
    int64_t at[LL_MAX_DIMS];
} ll_dropout_attr;

/* embedding and its gradient; v: rows of the gradient's result. part: the table holds only rows
 * from .. from+v-1 of so many, and indices of others of these count as zeros (0: it is whole).
 * Other indices are errors. */
typedef struct ll_embedding_attr {
    int64_t v, from, part;
} ll_embedding_attr;

/* gather and scatter_add: "avc,i->aic" (op/gather.c); v: of scatter_add, elements of the dimension
 * that is picked from; from, part: as of an embedding */
typedef struct ll_gather_attr {
    char spec[LL_SPEC_MAX];
    int64_t v, from, part;
} ll_gather_attr;

/* argmax: along dim; sort: the first k of each row. least: the smallest first. */
typedef struct ll_order_attr {
    int64_t dim, k, least;
} ll_order_attr;

typedef struct ll_cumsum_attr {
    int64_t dim, exclusive, reverse;
} ll_cumsum_attr;

/* arange: element i of n is start + step (at + i); at: where in the whole this part starts */
typedef struct ll_arange_attr {
    double start, step;
    int64_t at, n;
    ll_dtype dtype;
} ll_arange_attr;

/* causal_mask: what stands at [t,s] for at[1]+s > at[0]+t; at: where in the whole this part starts
 */
typedef struct ll_mask_attr {
    double value;
    int64_t at[2];
} ll_mask_attr;

/* attend: scores are scaled by scale; causal: query t sees keys s <= t + ahead. What a query that
 * sees no key has as the logarithm of its sum: above what masks say (-1e30), below any score.
 * own, of gradients: lse, and delta or o, are what these q, k and v give, and can be made again */
#define LL_ATTEND_NONE (-1e20f)
typedef struct ll_attend_attr {
    double scale;
    int64_t causal, ahead, own;
} ll_attend_attr;
/* linear_attend: query t sees keys s <= t + ahead, times (1 - 2^-(decay + at + n))^(t + ahead - s),
 * or 1 where decay is 0; at: of a part, its first head of keys. */
typedef struct ll_linear_attr {
    double decay;
    int64_t ahead, at;
} ll_linear_attr;
enum { LL_LINEAR_CHUNK = 96 }; /* of keys, between which CPUs keep state */
#define LL_LINEAR_EPS 1e-6     /* beside a sum of weights, which may be 0 */
/* What head n of keys forgets, as a logarithm. */
static inline LL_BOTH double ll_linear_decay(const ll_linear_attr *a, int64_t n)
{
    return a->decay > 0 ? log1p(-exp2(-(a->decay + (double)(a->at + n)))) : 0;
}
typedef struct ll_own_attr {
    int64_t own;
} ll_own_attr;

/* rope: angles are (at + t) / base^(2 i / d) for pair i of a row: elements 2 i and 2 i + 1 where
 * interleaved, else i and i + d/2. back: the other way around */
typedef struct ll_rope_attr {
    double base;
    int64_t at, interleaved, back;
} ll_rope_attr;

enum { LL_PACK = 32 }; /* numbers of a packed block (blocks.h) */
/* Products with packed weights: loops; how many dimensions of the weights are the result's. */
typedef struct ll_packed_attr {
    char spec[LL_SPEC_MAX];
    int64_t bits, rows;
} ll_packed_attr;

/* Several of one x, and what surrounds them (fuse/packed_several.c). */
enum { LL_PACKED_NONE, LL_PACKED_GATE, LL_PACKED_ADD, LL_N_PACKED };
typedef struct ll_packed_several_attr {
    int64_t bits, act, rows, rows1, rows2;
} ll_packed_several_attr;
static inline int64_t ll_packed_rows(const ll_packed_several_attr *a, int i)
{
    return i == 0 ? a->rows : i == 1 ? a->rows1 : a->rows2;
}

/* Products with weights in blocks (blocks.h): loops, "btk_,nk_->btn" or "btn,nk_->btk_". */
typedef struct ll_blocked_attr {
    char spec[LL_SPEC_MAX];
} ll_blocked_attr;
/* The same with 'z' for '_': the product with weights as numbers. */
static inline void ll_blocked_spec(const ll_blocked_attr *a, char out[LL_SPEC_MAX])
{
    char free = 'a'; /* for '_' */
    while (strchr(a->spec, free)) free++;
    for (int i = 0; i < LL_SPEC_MAX; i++) out[i] = a->spec[i] == '_' ? free : a->spec[i];
}
typedef struct ll_unblock_attr {
    ll_dtype dtype;
} ll_unblock_attr;
typedef struct ll_round_blocks_attr {
    int64_t bits; /* 8 or 4 */
} ll_round_blocks_attr;

typedef struct ll_cached_attr {
    double scale;
    int64_t window; /* keys that a query sees, its own among them; 0: all */
    int64_t bits;   /* of the cache's numbers: 8 (cache8.h), 4 (cache4.h), or 0: as they are */
    int64_t ring;   /* of 4: newest keys that are bytes */
} ll_cached_attr;
typedef struct ll_cache_write_attr {
    int64_t bits, ring; /* ring: 0 of values */
} ll_cache_write_attr;
typedef struct ll_cache_keep_attr {
    double scale; /* of attention */
} ll_cache_keep_attr;
enum { LL_CACHE8_TAIL = 2, LL_CACHE4_TAIL = 3, LL_CACHE4_GROUP = 32 };
/* Elements of a cache's row of d numbers. */
static inline LL_BOTH int64_t ll_cache_row(int64_t bits, int64_t d)
{
    if (bits == 4)
        return (d + 1) / 2 + (d + LL_CACHE4_GROUP - 1) / LL_CACHE4_GROUP * LL_CACHE4_TAIL;
    return d + (bits == 8 ? LL_CACHE8_TAIL : 0);
}
/* Rows of keys of so many places; ring: 0 where they are as values are. */
static inline int64_t ll_cache_rows(int64_t places, int64_t ring)
{
    if (!ring) return places;
    return (places + LL_CACHE4_GROUP - 1) / LL_CACHE4_GROUP * LL_CACHE4_GROUP + 2 * ring;
}

/* ---- elementwise ops, and chains of them as one kernel ----
 * X(name, operands, value for double operands a, b, c and number k) */
#define LL_EW(X)                                                                                   \
    X(add, 2, a + b)                                                                               \
    X(sub, 2, a - b)                                                                               \
    X(mul, 2, a *b)                                                                                \
    X(div, 2, a / b)                                                                               \
    X(max, 2, a > b || a != a ? a : b)                                                             \
    X(min, 2, a < b || a != a ? a : b)                                                             \
    X(less, 2, a < b ? 1 : 0)                                                                      \
    X(equal, 2, a == b ? 1 : 0)                                                                    \
    X(select, 3, a != 0 ? b : c)                                                                   \
    X(neg, 1, -a)                                                                                  \
    X(abs, 1, fabs(a))                                                                             \
    X(exp, 1, exp(a))                                                                              \
    X(log, 1, log(a))                                                                              \
    X(sqrt, 1, sqrt(a))                                                                            \
    X(rsqrt, 1, 1 / sqrt(a))                                                                       \
    X(tanh, 1, tanh(a))                                                                            \
    X(sigmoid, 1, 1 / (1 + exp(-a)))                                                               \
    X(sin, 1, sin(a))                                                                              \
    X(cos, 1, cos(a))                                                                              \
    X(relu, 1, a <= 0 ? 0 : a)                                                                     \
    X(gelu, 1, 0.5 * a * (1 + LL_GELU_T(a)))                                                       \
    X(dgelu, 1,                                                                                    \
      0.5 * (1 + LL_GELU_T(a)) +                                                                   \
          0.5 * a * (1 - LL_GELU_T(a) * LL_GELU_T(a)) * LL_GELU_A * (1 + 3 * LL_GELU_B * a * a))   \
    X(silu, 1, a / (1 + exp(-a)))                                                                  \
    X(square, 1, a *a)                                                                             \
    X(pow, 2, pow(a, b))                                                                           \
    X(mod, 2, LL_MOD(fmod(a, b), b))                                                               \
    X(erf, 1, erf(a))                                                                              \
    X(floor, 1, floor(a))                                                                          \
    X(ceil, 1, ceil(a))                                                                            \
    X(round, 1, rint(a))                                                                           \
    X(sign, 1, a != a ? a : (a > 0) - (a < 0))                                                     \
    X(log1p, 1, log1p(a))                                                                          \
    X(expm1, 1, expm1(a))                                                                          \
    X(softplus, 1, (a > 0 ? a : 0) + log1p(exp(-fabs(a))))                                         \
    X(atan, 1, atan(a))                                                                            \
    X(sinh, 1, sinh(a))                                                                            \
    X(asinh, 1, asinh(a))                                                                          \
    X(stop_gradient, 1, a)                                                                         \
    X(scale, 1, a *k)                                                                              \
    X(shift, 1, a + k)                                                                             \
    X(cast, 1, a)

#define LL_GELU_A 0.7978845608028654 /* sqrt(2/pi) */
#define LL_GELU_B 0.044715
#define LL_GELU_T(a) tanh(LL_GELU_A *(a + LL_GELU_B * a * a * a))
/* r, a remainder of b with any sign, with that of b */
#define LL_MOD(r, b) (r) + (((r) != 0 && ((r) < 0) != ((b) < 0)) ? (b) : 0)

typedef enum ll_ew {
#define X(name, operands, value) LL_EW_##name,
    LL_EW(X)
#undef X
        LL_N_EW
} ll_ew;

/* A chain: registers 0..n_in-1 are the inputs, register n_in+i the result of step i; out[] names
 * the registers that are written. A step's operand LL_FUSE_K is its number k. Input i is broadcast:
 * element e of the result reads its element (e / repeat[i]) % period[i], where period 1 is a scalar
 * and repeat 1 the usual case. Arithmetic is f32 whatever the tensors' types. */
#define LL_FUSE_STEPS 48
#define LL_FUSE_IN 16
#define LL_FUSE_OUT 8
#define LL_FUSE_K (-1)
typedef struct ll_fused_step {
    double k;
    int16_t op, a, b, c; /* ll_ew; registers */
} ll_fused_step;
typedef struct ll_fused_attr {
    int32_t n_step, n_in, n_out;
    int32_t out[LL_FUSE_OUT];
    ll_dtype out_dtype[LL_FUSE_OUT];
    int64_t period[LL_FUSE_IN], repeat[LL_FUSE_IN];
    ll_shape shape;
    ll_fused_step step[LL_FUSE_STEPS];
} ll_fused_attr;

/* Collectives among the ranks that differ in these axes of the mesh (a mask). extent: elements of
 * dim on all of them together, of which part i of p is [i n/p, (i+1) n/p). from, to: this rank's
 * range of the dimension that becomes cut (reduce_scatter: dim; all_to_all: to_dim), or that it
 * gets (rotate). max: maxima are taken, not sums. step: rotations before this one, so that member i
 * of the group has part i - step (around p) of dim, for member i + 1. serial: tells apart nodes
 * that must not become one. most: elements of the larger of operand and result, on the rank that
 * has most; cut: the axes that cut it: both the same on every rank. */
typedef struct ll_coll_attr {
    int64_t axes, max, dim, to_dim, extent, from, to, step, serial, most, cut;
} ll_coll_attr;

/* halo: member i of the group owns part i of extent elements along dim, and is given elements
 * need[2 i] to need[2 i + 1]; me: which member this rank is. swapped: it has the second half of the
 * part of member p-1-i instead. */
enum { LL_HALO_MAX = 64 };
typedef struct ll_halo_attr {
    int64_t axes, dim, extent, me, serial, swapped, need[2 * LL_HALO_MAX];
} ll_halo_attr;
/* What member k of p has. */
static inline void ll_halo_share(const ll_halo_attr *h, int p, int k, int64_t *from, int64_t *to)
{
    ll_share(h->extent, p, h->swapped ? p - 1 - k : k, from, to);
    if (h->swapped) *from += (*to - *from + 1) / 2;
}

/* send, recv: one value, to or from member `peer` of the group; serial: which of the messages of a
 * step it is, the same on both sides. when: in each micro-batch, once before them, once after them
 * for results, once for the update. channel: those of one from a rank to another are sent and
 * received in one order. dtype, shape: the value's. */
typedef enum ll_when { LL_EACH_MICRO, LL_BEFORE, LL_FOR_RESULTS, LL_FOR_UPDATE } ll_when;
typedef struct ll_message_attr {
    int64_t axes, peer, serial, when, channel;
    ll_dtype dtype;
    ll_shape shape;
} ll_message_attr;
