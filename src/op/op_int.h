/* op_int.h: builders and helpers shared by the files of op/, none of them public. */
#pragma once
#include "base/spec.h"
#include "kern/kern.h"
#include "op/ops.h"

/* ll_op.model of an op whose gradient is one of its own: that counts twice, here. */
enum { LL_WITH_GRADIENT = 3 };

/* The mean over micro-batches of x, kept from one to the next. */
ll_val ll_accum(ll_graph *g, ll_val x);
ll_err ll_check_dim(int64_t dim, const ll_shape *s);
/* Has x that dimension? Else, of x that is there, it is rejected. */
bool ll_is_dim(ll_graph *g, const char *what, ll_val x, int dim);
/* Products of type t may be rounded to multiples of 2^bits (base/num.h); 0: they are not. */
ll_err ll_check_bits(int64_t bits, ll_dtype t);
/* "ab_d->ab_d", or "ab_d->abd": of an op that works along dim. */
ll_err ll_dim_loops(int64_t dim, const ll_type *in, bool drop, char dims[LL_DIMS_TEXT]);

/* A scalar of x's type; 1 - x. */
ll_val ll_like(ll_graph *g, ll_val x, double value);
ll_val ll_one_minus(ll_graph *g, ll_val x);

/* ---- elementwise ops: kernels come from the op's row in LL_EW (kern/attr.h) ---- */
#define X(name, operands, value) LL_EACH_KERNEL(name)
LL_EW(X)
#undef X
#define LL_EW_OP(fn, fl)                                                                           \
    .name = #fn, .work = LL_WORK_CHAIN, .n_out = 1, .flop = fl, .elementwise = true,               \
    .ew = LL_EW_##fn, .f64 = true, .ref = fn##_ref,                                                \
    .cpu = LL_KERNEL(.run = fn##_cpu, .parts = true), .cuda = LL_GPU(fn##_cuda)
/* Of one operand, with gradient fn_grad. */
#define LL_EW_OP1(fn, fl)                                                                          \
    LL_EW_OP(fn, fl), .n_in = 1, .dims = "* -> *", .infer = ll_ew_infer, .grad = fn##_grad
ll_err ll_ew_infer(ll_infer *i);
/* Builders: operands are broadcast to one shape. */
ll_val ll_ew_unary(ll_graph *g, ll_ew ew, ll_val x);

/* Is x [n,l,c], [n,h,w,c] or [n,d,h,w,c]? Else it is rejected. */
bool ll_is_spatial(ll_graph *g, const char *op, ll_val x);
/* Of images [n,h,w,c]; the public builders take other dimensions to them (op/spatial.c). */
ll_val ll_pool2d(ll_graph *g, ll_val x, const ll_window *w, bool max);
ll_val ll_conv2d_transpose(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts,
                           const int64_t *out_pad);

/* 1 at element index - from of a new last dimension of this size, 0 elsewhere; an index outside
 * gives zeros only. i32[...] -> [..., size] */
ll_val ll_onehot(ll_graph *g, ll_val index, int64_t size, int64_t from, ll_dtype dtype);
/* Of labels: others than 0 to classes - 1 are errors, cut or not. */
ll_val ll_onehot_labels(ll_graph *g, ll_val label, int64_t classes, ll_dtype dtype);
/* x [*,t,s] with value where s > t + ahead. */
ll_val ll_masked(ll_graph *g, ll_val x, double value, int64_t ahead);
/* Of generation: the graph's input of that name, i32 of each sequence. */
ll_val ll_build_each(const ll_build *b, const char *name);
/* The sum of the squares of everything in x, a scalar. */
ll_val ll_sumsq(ll_graph *g, ll_val x);
/* The largest magnitude over the dimensions whose letters vanish; 0 of nothing. */
ll_val ll_absmax(ll_graph *g, ll_val x, const char *spec);
/* A scale of ll_to_grid and ll_from_grid: its dimensions as dimensions of the tensor. */
typedef struct ll_grid_scale {
    ll_val value;
    int n, dim[LL_MAX_DIMS];
} ll_grid_scale;
/* x as fixed point of so many bits, whole numbers in f64 (or their levels, in u8), and back
 * (op/grid.c). */
ll_val ll_to_grid(ll_graph *g, ll_val x, const ll_grid_scale *m, int bits, bool odd, ll_dtype out);
ll_val ll_from_grid(ll_graph *g, ll_val z, const ll_grid_scale *m, int n_scale, int bits,
                    ll_dtype out);
/* For each result of a product with this spec its largest term, as a power of two (op/matmul.c). */
ll_val ll_reach(ll_graph *g, const char *spec, ll_val a, ll_val b, int enough);
/* Of levels, the largest in each window (op/peaks.c). */
ll_val ll_peaks(ll_graph *g, ll_val x, const struct ll_peaks_attr *a);
/* A product's spec, "btc,nc->btn", which may come from a file, cut in three and checked. */
typedef struct ll_matmul_parts {
    const char *text[3]; /* a, b, result */
    int len[3];
} ll_matmul_parts;
ll_err ll_matmul_read(const char *spec, ll_matmul_parts *p);
bool ll_matmul_has(const ll_matmul_parts *p, int i, char letter); /* part i */
/* Of a product with a parameter as its second operand, "Fc,Nc->FN": how many letters N are, rows of
 * the weight, of which it sums over all others; 0: it is no such node. */
int ll_weight_rows(const ll_graph *g, const ll_node *n, ll_matmul_parts *p);
/* An op's loops, which are its spec's, if that fits; else it "is no what". */
ll_err ll_spec_loops(const char *spec, bool (*fits)(const ll_spec *s), const char *what,
                     char dims[LL_DIMS_TEXT]);
/* A spec with its sides swapped: "c->nhwc" of "nhwc->c". */
const char *ll_spec_reverse(const char *spec, char out[LL_SPEC_MAX]);
