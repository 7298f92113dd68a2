/* loopline.h: the public interface of Loopline, a parallel deep-learning training system.
 *
 * A model is a graph, declared once and serially:
 *
 *     ll_graph *g = ll_graph_new("tiny");
 *     ll_val x = ll_batch(g, "x", LL_F32, LL_SHAPE(64, 784));
 *     ll_val y = ll_batch(g, "y", LL_I32, LL_SHAPE(64));
 *     ll_val h = ll_relu(g, ll_linear(g, "fc1", x, 128, true));
 *     ll_val loss = ll_mean(g, ll_cross_entropy(g, ll_linear(g, "fc2", h, 10, true), y));
 *     ll_minimize(g, loss, &(ll_optim){.name = "adamw"});
 *
 * then compiled and run by a session:
 *
 *     static float images[64 * 784];
 *     static int32_t labels[64];
 *     ll_session *s;
 *     ll_err rc = ll_session_open(g, &(ll_session_opts){.seed = 1}, &s);
 *     for (int step = 0; rc == LL_OK && step < 5; step++) {
 *         rc = ll_session_set(s, "x", 0, images, sizeof images);
 *         if (rc == LL_OK) rc = ll_session_set(s, "y", 0, labels, sizeof labels);
 *         if (rc == LL_OK) rc = ll_session_run(s, 1e-3);
 *         if (rc == LL_OK) printf("loss %g\n", ll_session_result(s, "loss"));
 *     }
 *     if (rc != LL_OK) fprintf(stderr, "%s\n", ll_error_text());
 *     ll_session_close(s);
 *     ll_graph_free(g);
 *
 * Names. What acts on an object is ll_<object>_<verb>; builders, which add a value to a graph and
 * return it, are named as mathematics names them.
 * Errors. Functions that can fail return ll_err, and say below with what, besides LL_E_MEM.
 * ll_error_text() tells what happened, on this thread, most recently. Builders return an ll_val
 * instead: the graph remembers the first mistake, later calls on it do nothing, and ll_graph_check,
 * or opening a session, reports it: LL_E_ARG, LL_E_SHAPE or LL_E_GRAPH. NULL is an argument only
 * where it is said to be.
 * Ownership. An out-parameter is owned by the caller; a returned pointer is borrowed. A graph must
 * outlive the sessions opened on it. Every function here is local, that is, no rank waits for
 * another, but those that say they are collective. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LL_API __attribute__((visibility("default")))
#if defined(__cplusplus) || __STDC_VERSION__ > 201710L
#define LL_NODISCARD [[nodiscard]]
#else
#define LL_NODISCARD
#endif

/* ---- errors ---- */
#define LL_ERRORS(X)                                                                               \
    X(ARG, "bad argument")                                                                         \
    X(SHAPE, "shapes do not fit")                                                                  \
    X(GRAPH, "graph not well formed")                                                              \
    X(MEM, "out of memory")                                                                        \
    X(SHARD, "layout not possible")                                                                \
    X(IO, "file or data error")                                                                    \
    X(CONFIG, "bad run file or setting")                                                           \
    X(NUMERIC, "not a finite number")                                                              \
    X(SYS, "system call failed")                                                                   \
    X(COMM, "communication failed")                                                                \
    X(DIFFER, "results differ")                                                                    \
    X(DEVICE, "GPU failed")

typedef enum LL_NODISCARD ll_err {
    LL_OK,
#define X(name, text) LL_E_##name,
    LL_ERRORS(X)
#undef X
} ll_err;

/* The message of this thread's most recent failure, one line; frames: where it passed through. */
LL_API const char *ll_error_text(void);
LL_API const char *ll_error_frames(void);
LL_API const char *ll_version(void);

/* ---- element types and shapes ---- */
#define LL_DTYPES(X)                                                                               \
    X(F64, "f64", 8)                                                                               \
    X(F32, "f32", 4)                                                                               \
    X(BF16, "bf16", 2)                                                                             \
    X(F16, "f16", 2) X(I32, "i32", 4) X(U8, "u8", 1) X(F8_E4M3, "e4m3", 1) X(F8_E5M2, "e5m2", 1)

typedef enum ll_dtype {
#define X(name, text, bytes) LL_##name,
    LL_DTYPES(X)
#undef X
        LL_N_DTYPE
} ll_dtype;

#define LL_MAX_DIMS 6

typedef struct ll_shape {
    int n; /* number of dimensions; 0: a scalar */
    int64_t d[LL_MAX_DIMS];
} ll_shape;

#define LL_SHAPE(...)                                                                              \
    ((ll_shape){.n = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .d = {__VA_ARGS__}})
#define LL_SCALAR ((ll_shape){.n = 0})

/* ---- graphs ---- */
typedef struct ll_graph ll_graph;
typedef struct ll_val {
    int32_t id; /* 0: none */
} ll_val;

LL_API ll_graph *ll_graph_new(const char *name);
LL_API void ll_graph_free(ll_graph *g);
/* The first mistake of the declaration, if any: LL_E_ARG, LL_E_SHAPE, LL_E_GRAPH. g NULL, for which
 * builders make nothing: LL_E_ARG. */
LL_API ll_err ll_graph_check(const ll_graph *g);
LL_API ll_shape ll_graph_shape(const ll_graph *g, ll_val v);
LL_API ll_dtype ll_graph_dtype(const ll_graph *g, ll_val v);

/* Names made between push and pop are led by "scope.". */
LL_API void ll_graph_push(ll_graph *g, const char *scope);
LL_API void ll_graph_pop(ll_graph *g);
/* Marks the start of the next block (a residual block, a transformer layer), which text and
 * pictures of the graph show. */
LL_API void ll_graph_block(ll_graph *g);
/* Records a mistake in a declaration, as builders do: LL_E_GRAPH (theirs: of shapes LL_E_SHAPE, of
 * other arguments LL_E_ARG). */
LL_API void ll_graph_reject(ll_graph *g, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

typedef enum ll_init_kind { LL_ZEROS, LL_CONSTANT, LL_NORMAL, LL_UNIFORM, LL_GIVEN } ll_init_kind;
typedef struct ll_init {
    ll_init_kind kind;
    double a; /* CONSTANT: the value; NORMAL: standard deviation; UNIFORM: in (-a, a) */
    const struct ll_data *data; /* GIVEN, by ll_constant: the graph's own copy */
    /* Promised, not made so: of each four numbers beside each other two are 0, in every step. */
    bool two_of_four;
} ll_init;

/* Inputs. Parameters, f32, are trained; state, f32, is kept from step to step (running statistics,
 * moments); batch data is set before each step, read or not, its first dimension the sample. */
LL_API ll_val ll_param(ll_graph *g, const char *name, ll_shape shape, ll_init init);
LL_API ll_val ll_state(ll_graph *g, const char *name, ll_shape shape, ll_init init);
LL_API ll_val ll_batch(ll_graph *g, const char *name, ll_dtype dtype, ll_shape shape);
/* An f32 scalar that is another one in each step: "lr", as ll_session_run is given it, "t", the
 * step's number from 1, or any that ll_session_set sets. */
LL_API ll_val ll_per_step(ll_graph *g, const char *name);
LL_API ll_val ll_fill(ll_graph *g, ll_dtype dtype, ll_shape shape, double value);
/* A tensor of given elements, which are copied; equal ones are one. It is no parameter, not in
 * checkpoints, and in memory once. */
LL_API ll_val ll_constant(ll_graph *g, ll_dtype dtype, ll_shape shape, const void *data);

/* Outputs: a named result; a new content for a parameter or state at the end of the step. */
LL_API void ll_graph_result(ll_graph *g, const char *name, ll_val v);
LL_API void ll_graph_update(ll_graph *g, ll_val input, ll_val next);
LL_API ll_val ll_graph_name(ll_graph *g, ll_val v,
                            const char *name); /* gives v a name; returns v */

/* ---- elementwise; two operands are broadcast to one shape as NumPy does ---- */
LL_API ll_val ll_add(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_sub(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_mul(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_div(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_max(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_min(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_less(ll_graph *g, ll_val a, ll_val b);  /* 1 where a < b, else 0; type of a */
LL_API ll_val ll_equal(ll_graph *g, ll_val a, ll_val b); /* 1 where a = b, else 0; type of a */
LL_API ll_val ll_select(ll_graph *g, ll_val c, ll_val a, ll_val b); /* a where c != 0, else b */
LL_API ll_val ll_not_equal(ll_graph *g, ll_val a, ll_val b);        /* these likewise 1 or 0 */
LL_API ll_val ll_greater(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_greater_equal(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_less_equal(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_and(ll_graph *g, ll_val a, ll_val b); /* what is not 0 is true */
LL_API ll_val ll_or(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_xor(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_not(ll_graph *g, ll_val x);
LL_API ll_val ll_isnan(ll_graph *g, ll_val x);
LL_API ll_val ll_isinf(ll_graph *g, ll_val x);
LL_API ll_val ll_pow(ll_graph *g, ll_val a, ll_val b);
LL_API ll_val ll_power(ll_graph *g, ll_val x, double by); /* the same, by a number */
LL_API ll_val ll_mod(ll_graph *g, ll_val a, ll_val b);    /* with the sign of b, as Python's */
LL_API ll_val ll_neg(ll_graph *g, ll_val x);
LL_API ll_val ll_abs(ll_graph *g, ll_val x);
LL_API ll_val ll_exp(ll_graph *g, ll_val x);
LL_API ll_val ll_log(ll_graph *g, ll_val x);
LL_API ll_val ll_sqrt(ll_graph *g, ll_val x);
LL_API ll_val ll_rsqrt(ll_graph *g, ll_val x);
LL_API ll_val ll_tanh(ll_graph *g, ll_val x);
LL_API ll_val ll_sigmoid(ll_graph *g, ll_val x);
LL_API ll_val ll_sin(ll_graph *g, ll_val x);
LL_API ll_val ll_cos(ll_graph *g, ll_val x);
LL_API ll_val ll_relu(ll_graph *g, ll_val x);
LL_API ll_val ll_gelu(ll_graph *g, ll_val x); /* the tanh form, as GPT-2 */
LL_API ll_val ll_silu(ll_graph *g, ll_val x);
LL_API ll_val ll_sign(ll_graph *g, ll_val x);
LL_API ll_val ll_floor(ll_graph *g, ll_val x);
LL_API ll_val ll_ceil(ll_graph *g, ll_val x);
LL_API ll_val ll_round(ll_graph *g, ll_val x); /* halves to even */
LL_API ll_val ll_reciprocal(ll_graph *g, ll_val x);
LL_API ll_val ll_clamp(ll_graph *g, ll_val x, double least, double most);
LL_API ll_val ll_erf(ll_graph *g, ll_val x);
LL_API ll_val ll_log1p(ll_graph *g, ll_val x); /* log(1 + x) */
LL_API ll_val ll_expm1(ll_graph *g, ll_val x); /* exp(x) - 1 */
LL_API ll_val ll_tan(ll_graph *g, ll_val x);
LL_API ll_val ll_asin(ll_graph *g, ll_val x);
LL_API ll_val ll_acos(ll_graph *g, ll_val x);
LL_API ll_val ll_atan(ll_graph *g, ll_val x);
LL_API ll_val ll_sinh(ll_graph *g, ll_val x);
LL_API ll_val ll_cosh(ll_graph *g, ll_val x);
LL_API ll_val ll_asinh(ll_graph *g, ll_val x);
LL_API ll_val ll_acosh(ll_graph *g, ll_val x);
LL_API ll_val ll_atanh(ll_graph *g, ll_val x);
LL_API ll_val ll_gelu_erf(ll_graph *g, ll_val x); /* the exact form, PyTorch's default */
LL_API ll_val ll_leaky_relu(ll_graph *g, ll_val x, double slope);
LL_API ll_val ll_prelu(ll_graph *g, ll_val x, ll_val slope);
LL_API ll_val ll_elu(ll_graph *g, ll_val x, double alpha);
LL_API ll_val ll_celu(ll_graph *g, ll_val x, double alpha);
LL_API ll_val ll_selu(ll_graph *g, ll_val x);
LL_API ll_val ll_softplus(ll_graph *g, ll_val x); /* log(1 + exp(x)) */
LL_API ll_val ll_mish(ll_graph *g, ll_val x);
LL_API ll_val ll_log_sigmoid(ll_graph *g, ll_val x);
LL_API ll_val ll_hard_sigmoid(ll_graph *g, ll_val x); /* x / 6 + 1/2, clamped to 0 .. 1 */
LL_API ll_val ll_hard_swish(ll_graph *g, ll_val x);
/* x itself, through which no gradient flows. */
LL_API ll_val ll_stop_gradient(ll_graph *g, ll_val x);
LL_API ll_val ll_cast(ll_graph *g, ll_val x, ll_dtype dtype);
LL_API ll_val ll_scale(ll_graph *g, ll_val x, double by); /* x * by */
LL_API ll_val ll_shift(ll_graph *g, ll_val x, double by); /* x + by */
LL_API ll_val ll_square(ll_graph *g, ll_val x);

/* ---- shape ---- */
LL_API ll_val ll_reshape(ll_graph *g, ll_val x, ll_shape shape); /* one dimension may be -1 */
/* spec names dimensions by letters: "bthd->bhtd". */
LL_API ll_val ll_transpose(ll_graph *g, ll_val x, const char *spec);
/* "c->nhwc": the letters missing on the left are repeated; shape is the result's. */
LL_API ll_val ll_broadcast(ll_graph *g, ll_val x, const char *spec, ll_shape shape);
LL_API ll_val ll_slice(ll_graph *g, ll_val x, int dim, int64_t from, int64_t to);
LL_API ll_val ll_pad(ll_graph *g, ll_val x, int dim, int64_t before, int64_t after);
LL_API ll_val ll_concat(ll_graph *g, const ll_val *x, int n, int dim); /* any number */

/* ---- elements by index, i32, from 0; an index out of range fails the step ---- */
/* NumPy's take: index replaces dimension dim by its own. */
LL_API ll_val ll_gather(ll_graph *g, ll_val x, ll_val index, int dim);
/* Take along an axis: index has x's dimensions, and along dim says which element it wants. */
LL_API ll_val ll_gather_elements(ll_graph *g, ll_val x, ll_val index, int dim);
/* The transpose: zeros of `size` along dim, to which x is added where index says. */
LL_API ll_val ll_scatter_add(ll_graph *g, ll_val x, ll_val index, int dim, int64_t size);
/* [...] -> [...,size]; an index out of range gives zeros. */
LL_API ll_val ll_one_hot(ll_graph *g, ll_val index, int64_t size, ll_dtype dtype);
LL_API ll_val ll_arange(ll_graph *g, ll_dtype dtype, int64_t n, double start, double step);
/* i32, without dimension dim; of equal elements the first. NaN is larger than every number. */
LL_API ll_val ll_argmax(ll_graph *g, ll_val x, int dim);
LL_API ll_val ll_argmin(ll_graph *g, ll_val x, int dim);
/* The last dimension in order, or its k largest; index, which may be NULL: where they were, i32. */
LL_API ll_val ll_sort(ll_graph *g, ll_val x, bool descending, ll_val *index);
LL_API ll_val ll_top_k(ll_graph *g, ll_val x, int64_t k, ll_val *index);
/* Running sums along dim; exclusive: without the element itself; reverse: from the end on. */
LL_API ll_val ll_cumsum(ll_graph *g, ll_val x, int dim, bool exclusive, bool reverse);

/* ---- reductions: "nhwc->c" sums over n, h and w ---- */
LL_API ll_val ll_sum(ll_graph *g, ll_val x, const char *spec);
LL_API ll_val ll_amax(ll_graph *g, ll_val x, const char *spec);
LL_API ll_val ll_amin(ll_graph *g, ll_val x, const char *spec);
LL_API ll_val ll_prod(ll_graph *g, ll_val x, const char *spec);
LL_API ll_val ll_mean_over(ll_graph *g, ll_val x, const char *spec);
LL_API ll_val ll_logsumexp(ll_graph *g, ll_val x, const char *spec);
LL_API ll_val ll_mean(ll_graph *g, ll_val x);    /* over everything, to a scalar */
LL_API ll_val ll_sum_all(ll_graph *g, ll_val x); /* likewise */

/* ---- products: an einsum of two operands, "btc,nc->btn" ---- */
LL_API ll_val ll_matmul(ll_graph *g, const char *spec, ll_val a, ll_val b);

/* Of each spatial dimension in turn: [n,l,c] has one, [n,h,w,c] two, [n,d,h,w,c] three. */
typedef struct ll_conv {
    int64_t stride[3], pad[3], dilation[3]; /* stride and dilation 0 mean 1 */
    int64_t groups;                         /* 0 means 1 */
    int64_t pad_more[3];                    /* after the end there are pad + pad_more */
} ll_conv;
/* x [n,h,w,c], filter [f,r,s,c/groups] -> [n,h',w',f] */
LL_API ll_val ll_conv2d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts);
LL_API ll_val ll_conv1d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts);
LL_API ll_val ll_conv3d(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts);
/* What conv2d does to its image's gradient: x [n,h,w,c], filter [c,r,s,f/groups] -> [n,h',w',f], h'
 * = (h-1) stride - pads + (r-1) dilation + 1 + out_pad, which is less than stride or dilation
 * (NULL: 0). Of [n,l,c] and [c,r,f/groups], or [n,d,h,w,c] and [c,q,r,s,f/groups], alike. */
LL_API ll_val ll_conv_transpose(ll_graph *g, ll_val x, ll_val filter, const ll_conv *opts,
                                const int64_t *out_pad);

/* Of each spatial dimension in turn. */
typedef struct ll_window {
    int64_t size[3], stride[3], pad[3]; /* stride 0 means size */
    bool ceil;                          /* round the output size up, as PyTorch does */
    bool skip_pad;                      /* avg_pool: padding does not count in the divisor */
    int64_t pad_more[3];                /* after the end there are pad + pad_more */
    int64_t dilation[3];                /* from place to place of a window; 0 means 1 */
} ll_window;
/* Of [n,l,c], [n,h,w,c] or [n,d,h,w,c]. */
LL_API ll_val ll_max_pool(ll_graph *g, ll_val x, const ll_window *w);
LL_API ll_val ll_avg_pool(ll_graph *g, ll_val x, const ll_window *w);
/* Over all spatial dimensions: [n,...,c] -> [n,c] */
LL_API ll_val ll_global_max_pool(ll_graph *g, ll_val x);
LL_API ll_val ll_global_avg_pool(ll_graph *g, ll_val x);
/* Averages each cell of an out_h x out_w grid laid over the image; cells may overlap. */
LL_API ll_val ll_adaptive_avg_pool(ll_graph *g, ll_val x, int64_t out_h, int64_t out_w);
/* Spatial dimensions to other sizes, or by a factor. Output o lies at o image/out of the image
 * (ASYMMETRIC), half a pixel in (HALF_PIXEL), or so that the first and last meet (ALIGN_CORNERS);
 * where a scale is given, at o/scale. NEAREST takes the pixel at or before it, or as round says;
 * PyTorch's is ASYMMETRIC. */
typedef struct ll_resize {
    enum { LL_NEAREST, LL_LINEAR, LL_CUBIC } mode;
    enum { LL_HALF_PIXEL, LL_ALIGN_CORNERS, LL_ASYMMETRIC } coords;
    enum { LL_FLOOR, LL_CEIL, LL_ROUND_DOWN, LL_ROUND_UP } round; /* DOWN, UP: of halves */
    int64_t size[3]; /* 0: the old size times scale, rounded down */
    double scale[3]; /* 0: size / old size */
    double cubic;    /* 0: -0.75 */
} ll_resize;
LL_API ll_val ll_resize_image(ll_graph *g, ll_val x, const ll_resize *r);
LL_API ll_val ll_flip(ll_graph *g, ll_val x, int dim); /* reversed along dim */
/* [n,h,w,c] -> [n, h*block, w*block, c/block^2], and back. A pixel's channels are in blocks of one
 * for each place of its square (ONNX's DCR), or, inner: places run fastest (CRD, pixel_shuffle). */
LL_API ll_val ll_depth_to_space(ll_graph *g, ll_val x, int64_t block, bool inner);
LL_API ll_val ll_space_to_depth(ll_graph *g, ll_val x, int64_t block, bool inner);

/* ---- normalisation, attention, losses ---- */
LL_API ll_val ll_softmax(ll_graph *g, ll_val x); /* over the last dimension */
LL_API ll_val ll_softmax_over(ll_graph *g, ll_val x, int dim);
LL_API ll_val ll_log_softmax(ll_graph *g, ll_val x, int dim);
LL_API ll_val ll_layernorm(ll_graph *g, ll_val x, ll_val gain, ll_val bias, double eps);
LL_API ll_val ll_rmsnorm(ll_graph *g, ll_val x, ll_val gain, double eps);
/* x [n,...,c]: each sample's groups of channels; each of its channels. gain, bias: [c], or none. */
LL_API ll_val ll_group_norm(ll_graph *g, ll_val x, int64_t groups, ll_val gain, ll_val bias,
                            double eps);
LL_API ll_val ll_instance_norm(ll_graph *g, ll_val x, ll_val gain, ll_val bias, double eps);
/* x / (k + alpha mean)^beta, the mean of the squares of `size` channels around each, as PyTorch. */
LL_API ll_val ll_local_response_norm(ll_graph *g, ll_val x, int64_t size, double alpha, double beta,
                                     double k);
/* Causal self-attention. qkv [b,t,3,h,d] -> [b,t,h,d]; scores are scaled by 1/sqrt(d). */
LL_API ll_val ll_attention(ll_graph *g, ll_val qkv);
/* Which keys a query sees: all; those up to its own place, counted from the first of both; the same
 * counted from the last of both (the last query sees all). */
typedef enum ll_causal { LL_SEES_ALL, LL_CAUSAL, LL_CAUSAL_ENDS } ll_causal;
typedef struct ll_attend_opts {
    ll_causal causal;
    ll_val mask;  /* added to scores; of integers: 0 hides. Broadcast to [b,h,t,s]; may be none */
    double scale; /* of scores; 0 means 1/sqrt(d) */
} ll_attend_opts;
/* Attention. q [b,t,h,d], k [b,s,n,d], v [b,s,n,e] -> [b,t,h,e]; h/n heads of q in a row share one
 * of k and v. q may be [b,t,n,h/n,d], and so is the result then: heads can be cut. A query that
 * sees no key gives zeros. opts: NULL for none. */
LL_API ll_val ll_attend(ll_graph *g, ll_val q, ll_val k, ll_val v, const ll_attend_opts *opts);
/* Causal linear attention: weights are (elu(q) + 1) (elu(k) + 1) over their sum, in time and memory
 * that grow with t alone. q [b,t,h,d] or [b,t,n,h/n,d], k [b,t,n,d], v [b,t,n,e]. decay: 0, or head
 * i of keys keeps 1 - 2^-(decay + i) of what it has as each token comes, decay 1 or more. */
LL_API ll_val ll_linear_attend(ll_graph *g, ll_val q, ll_val k, ll_val v, double decay);
/* Rotary positions (Su et al., 2021): pairs of a row of x [b,t,h,d] are turned by t / base^(2i/d).
 * Pair i: elements i and i + d/2; interleaved: 2 i and 2 i + 1. */
LL_API ll_val ll_rope(ll_graph *g, ll_val x, double base, bool interleaved);
/* The same with places, i32 [b,t], in place of t (none: t). x may be [b,t,n,g,d] in both. */
LL_API ll_val ll_rope_at(ll_graph *g, ll_val x, ll_val places, double base, bool interleaved);
LL_API ll_val ll_embedding(ll_graph *g, ll_val table,
                           ll_val index); /* [v,c], i32[...] -> [...,c] */
/* -log softmax(logits)[label] for each row: [...,v], i32[...] -> [...] */
LL_API ll_val ll_cross_entropy(ll_graph *g, ll_val logits, ll_val label);
/* Its mean, a scalar, as PyTorch's: where there are weights of classes, [v], rows count by them. */
typedef struct ll_cross_entropy_opts { /* NULL: none of these */
    double smoothing;                  /* so much of each label is shared by all classes */
    ll_val weight;                     /* or none */
} ll_cross_entropy_opts;
LL_API ll_val ll_cross_entropy_mean(ll_graph *g, ll_val logits, ll_val label,
                                    const ll_cross_entropy_opts *opts);
LL_API ll_val ll_nll(ll_graph *g, ll_val log_p, ll_val label); /* -log_p[label] of each row */
/* Losses of each element; ll_mean makes them a scalar. */
LL_API ll_val ll_mse(ll_graph *g, ll_val x, ll_val target);
LL_API ll_val ll_l1(ll_graph *g, ll_val x, ll_val target);
LL_API ll_val ll_huber(ll_graph *g, ll_val x, ll_val target, double delta);
LL_API ll_val ll_smooth_l1(ll_graph *g, ll_val x, ll_val target, double beta);
/* Binary cross entropy of sigmoid(x); weight: how much positives count, or none. */
LL_API ll_val ll_bce_logits(ll_graph *g, ll_val x, ll_val target, ll_val weight);
/* Binary, of sigmoid(x), as torchvision's; alpha < 0: both sides count alike. */
LL_API ll_val ll_focal(ll_graph *g, ll_val x, ll_val target, double alpha, double gamma);
LL_API ll_val ll_kl_div(ll_graph *g, ll_val log_p, ll_val target); /* target (log target - log_p) */
/* Of rows: [...,c], [...,c] -> [...]. sign: 1 where they should be alike, else -1. */
LL_API ll_val ll_cosine_similarity(ll_graph *g, ll_val a, ll_val b, double eps);
LL_API ll_val ll_cosine_embedding(ll_graph *g, ll_val a, ll_val b, ll_val sign, double margin);
/* 1 where the largest logit is the label's, else 0: [...,v], i32[...] -> f32[...] */
LL_API ll_val ll_correct(ll_graph *g, ll_val logits, ll_val label);
/* Zeroes each element with probability p and scales the rest by 1/(1-p). */
LL_API ll_val ll_dropout(ll_graph *g, ll_val x, double p);

/* ---- recurrent networks ---- */
/* Cells as PyTorch has them, gates in its order: LSTM i f g o, GRU r z n, RNN one.
 *   LSTM: c' = f c + i g, h' = o tanh c';  GRU: h' = (1 - z) n + z h, n = tanh(x + r (W h + b))
 * Weights are of x, [gates*h, c], and of h, [gates*h, h]; biases [gates*h], or none. */
typedef enum ll_cell { LL_LSTM, LL_GRU, LL_RNN_TANH, LL_RNN_RELU, LL_N_CELL } ll_cell;
typedef struct ll_recurrent {
    ll_cell cell;
    ll_val weight_ih, weight_hh, bias_ih, bias_hh;
    ll_val h0, c0; /* [b,h]; none: zeros. c0, c: LSTM's alone */
    bool reverse;  /* from the last step to the first */
    ll_val h, c;   /* set: the state after the step that is made last */
} ll_recurrent;
/* x [b,t,c] -> h of every step, [b,t,h] */
LL_API ll_val ll_recur(ll_graph *g, ll_val x, ll_recurrent *r);

/* ---- layers: parameters "name.weight", "name.bias" and the op ---- */
LL_API ll_val ll_linear(ll_graph *g, const char *name, ll_val x, int64_t out, bool bias);
/* x of one to three spatial dimensions; filter: size in each; bias as asked */
LL_API ll_val ll_conv_layer(ll_graph *g, const char *name, ll_val x, int64_t out, int64_t size,
                            const ll_conv *opts, bool bias);
LL_API ll_val ll_conv_transpose_layer(ll_graph *g, const char *name, ll_val x, int64_t out,
                                      int64_t size, const ll_conv *opts, const int64_t *out_pad,
                                      bool bias);
/* "name.weight_ih", "name.weight_hh", "name.bias_ih", "name.bias_hh"; states begin as zeros */
LL_API ll_val ll_lstm_layer(ll_graph *g, const char *name, ll_val x, int64_t hidden, bool reverse);
LL_API ll_val ll_gru_layer(ll_graph *g, const char *name, ll_val x, int64_t hidden, bool reverse);
LL_API ll_val ll_rnn_layer(ll_graph *g, const char *name, ll_val x, int64_t hidden, bool reverse);
/* "name.weight", "name.bias", running statistics "name.mean" and "name.var". Training: statistics
 * of the batch, running ones moved by momentum; otherwise the running ones. */
LL_API ll_val ll_batchnorm_layer(ll_graph *g, const char *name, ll_val x, bool training);
/* The same of values of one's own, each [c]: mean and var, the running statistics, are state. */
typedef struct ll_norm {
    ll_val gain, bias, mean, var;
    double eps, momentum; /* momentum: how much of the running statistics a step replaces */
    bool training;
} ll_norm;
LL_API ll_val ll_batchnorm(ll_graph *g, ll_val x, const ll_norm *n);
LL_API ll_val ll_layernorm_layer(ll_graph *g, const char *name, ll_val x);

/* ---- gradients and optimizers ---- */
/* dx[i] = d(sum of y)/d(x[i]); none where y does not depend on it becomes zeros. Appends nodes, so
 * gradients can be differentiated again. */
LL_API void ll_grad(ll_graph *g, ll_val y, const ll_val *x, int n, ll_val *dx);

/* How some parameters are trained. pattern: of names (* ? [a-z] as in a shell). Of several rules
 * that match, the last that says something of a matter decides it. */
typedef struct ll_param_rule {
    const char *pattern; /* NULL ends a list */
    bool freeze;         /* neither gradient nor update */
    double lr;           /* its rate is so many times the others'; 0: not said */
    bool set_decay;      /* a weight decay of its own */
    double decay;
    bool set_init; /* other initial values */
    ll_init init;
} ll_param_rule;

typedef struct ll_optim {
    /* sgd momentum nesterov adagrad rmsprop adam adamw lars larc lamb muon schedule-free-adamw */
    const char *name;
    double momentum;          /* 0: 0.9 */
    double beta1, beta2, eps; /* 0: the optimizer's usual value */
    double weight_decay;
    double trust;      /* lars, larc: trust coefficient; 0: 0.001 */
    double clip;       /* global norm of the gradient; 0: no clipping */
    double clip_value; /* largest element of a gradient, before that; 0: no clipping */
    /* Each parameter p has a state "p.ema", what p was on average: after a step ema times itself
     * and 1 - ema times p, from the first step's p on; 0: none. */
    double ema;
    const ll_param_rule *rules; /* NULL: none */
    const char *no_decay; /* which parameters skip weight decay: "1d" (biases, norms) or "none" */
    bool masked; /* zeros stay zeros, in parameters that products alone read: pruned weights */
} ll_optim;
/* Gradients of loss, averaged over micro-batches, and an update of every parameter of the graph.
 * Adds the results "loss" (unless there is one) and "grad_norm", and the per-step scalars "lr" and
 * "t". o: NULL for sgd as it comes. */
LL_API void ll_minimize(ll_graph *g, ll_val loss, const ll_optim *o);

/* ---- data of one's own ---- */
#define LL_MAX_FIELDS 8
typedef struct ll_field {
    const char *name; /* of the batch input that it becomes */
    ll_dtype dtype;
    ll_shape shape; /* of one sample */
} ll_field;
/* Samples that a program reads or makes itself. */
typedef struct ll_source {
    const char *name;               /* for messages, and data.name */
    int64_t samples[2];             /* to train on, for validation */
    ll_field fields[LL_MAX_FIELDS]; /* ends with name NULL */
    /* Writes sample `index` of a split (0: training, 1: validation), field by field; out[i] NULL:
     * not wanted. Called by several threads at once; what it writes depends on nothing but split
     * and index. Anything but LL_OK ends the run. */
    ll_err (*read)(void *user, int split, int64_t index, void *const *out);
    void *user;
} ll_source;

/* ---- models: sizes with defaults, and a declaration ---- */
typedef struct ll_size {
    const char *name;
    int64_t value;
    const char *help;
} ll_size;
typedef struct ll_build ll_build;
#define LL_MAX_SIZES 16
typedef struct ll_model {
    const char *name, *help;
    /* "image": batch data "x", scaled f32 [n,h,w,c], and "y" i32 [n]; "tokens": "x" and "y" i32
     * [n,seq]; NULL: what it declares, which the data must have by name, type and shape. */
    const char *input;
    ll_size sizes[LL_MAX_SIZES];
    /* Declares inputs and results, and returns the loss, a mean over samples. Results that are
     * scalars are shown while it trains, means over the batch, too; "correct" is a count of
     * samples, and shown as accuracy; "counted" is what the loss is a mean over where that is not
     * the samples: how much of validation's a batch makes. */
    ll_val (*declare)(ll_graph *g, const ll_build *b);
    const ll_source *data;       /* what it is trained on where a run does not say; may be NULL */
    void *user;                  /* as declare wants it */
    const struct ll_model *next; /* of a list */
} ll_model;
struct ll_build {
    int64_t batch; /* samples in the graph's batch */
    bool training; /* false: no dropout, running statistics */
    ll_size sizes[LL_MAX_SIZES];
    const ll_model *model;
    ll_graph *g; /* that is declared */
    /* Generation: > 0: each of the batch's sequences has so many places for keys and values, and
     * goes on by `step` tokens at a time: x is i32 [batch,step]. */
    int64_t cache, step;
    int64_t longest; /* step of the longest of programs that share a cache; 0: this one's */
    int64_t keep;    /* keys and values of so many tokens stay, those attended to; 0: of all */
    int cache_bits;  /* of a key's or value's number: 8 or 4; 0: as they are */
    bool all;        /* and logits of all of them are wanted, not of each one's last alone */
    bool source;     /* or what is declared reads sources, and ends with what ll_build_kept keeps */
    int64_t prompt;  /* vectors that are trained, before the tokens (ll_build_embed); 0: none */
    bool mixed;      /* training samples are mixed in pairs (data.mixup, data.cutmix) */
};
/* For models that generate, all as without where b->cache is 0. Causal attention of q [b,t,h,d] or
 * [b,t,n,h/n,d] to k and v [b,t,n,d]; window: how many keys, its own among them, a query sees, 0:
 * all. Generating, keys and values stay in the states "name.k.cache" and "name.v.cache". */
LL_API ll_val ll_self_attend(const ll_build *b, const char *name, ll_val q, ll_val k, ll_val v,
                             int64_t window);
/* The same of linear attention (ll_linear_attend). Generating, all that is kept is the state
 * "name.state.cache", of one size however long a sequence is. */
LL_API ll_val ll_self_linear(const ll_build *b, const char *name, ll_val q, ll_val k, ll_val v,
                             double decay);
/* What a decoder sees of a source, of dim 0 the batch: x, made once. Generating it is the state
 * "name.cache": b->source makes it (of sequences for which batch data "fresh", i32 [batch], is not
 * 0), otherwise it is given and x is not looked at. Such a model has a size "source", and where
 * b->source batch data "source", i32 [batch,source]. */
LL_API ll_val ll_build_kept(const ll_build *b, const char *name, ll_dtype dtype, ll_shape shape,
                            ll_val x);
LL_API ll_val ll_build_places(const ll_build *b); /* of x's tokens, i32 [batch,step]; none */
/* [batch,1,c]: each one's last new row; not generating, x without the rows of b->prompt. */
LL_API ll_val ll_build_last(const ll_build *b, ll_val x);
/* Rows of table [v,c] for tokens [b,t]. Of b->prompt vectors, parameter "prompt_embeddings", before
 * them: [b,prompt + t,c]; generating, tokens v and on are these vectors. */
LL_API ll_val ll_build_embed(const ll_build *b, ll_val table, ll_val tokens);
/* A size the model declares: as b has it, or else the model's own. */
LL_API int64_t ll_build_size(const ll_build *b, const char *name);
/* How classifiers end: batch data "y" i32, a label for each row of logits, results "loss" and
 * "correct"; returns the loss, a mean. Where samples are mixed, "y2" i32 is the other one's label
 * and "mix" f32 [n] how much of the loss is y's. */
LL_API ll_val ll_label_loss(ll_graph *g, const ll_build *b, ll_val logits);
LL_API const ll_model *ll_model_find(const char *name); /* NULL: none of that name */
LL_API const ll_model *const *ll_model_all(void);       /* ends with NULL */

/* The program `loopline`, with models of one's own (a list, by next; may be NULL) before the
 * bundled ones: train, verify, eval and all other commands. Returns the exit status: a program
 * of one's own ends in `return ll_main(argc, argv, &my_model);`.
 * A shared library with LL_EXPORT_MODELS(&my_model); brings its list to the program by the setting
 * model.file. */
LL_API int ll_main(int argc, char *const *argv, const ll_model *models);
typedef struct ll_model_file {
    size_t bytes; /* of an ll_model, as compiled */
    const ll_model *models;
} ll_model_file;
#define LL_EXPORT_MODELS(first)                                                                    \
    LL_API extern const ll_model_file ll_models;                                                   \
    const ll_model_file ll_models = {sizeof(ll_model), first}

/* ---- sessions: a graph compiled for a machine ---- */
typedef struct ll_session ll_session;
/* How values lie on a mesh, where not as by default. pattern: of names of inputs and nodes (* ?
 * [a-z] as in a shell), the last that matches wins. layout: for each dimension the axes that cut
 * it, - for none, . for what the axes that are not named do: "[., height*width, -, channel]". */
typedef struct ll_layout_rule {
    const char *pattern, *layout;
    const char *origin; /* where it comes from, for messages: "run.yaml:7"; may be NULL */
} ll_layout_rule;

typedef struct ll_session_opts {
    const char *machine; /* "cpu" (the default), "cuda" or "ref" */
    int threads;         /* 0: all cores */
    int micro_batches;   /* 0: 1; a step runs the graph's batch so many times, each on data of its
                            * own; gradients and results are their mean (of sums and counts too) */
    const char *
        precision; /* of products: "f32" (the default), "bf16", on cuda "tf32", "fp8", "fp8block" */
    uint64_t seed;
    bool undrawn;      /* parameters that would be random hold anything: for who sets them all */
    ll_session *share; /* parameters and state of equal names live in this session's memory; it is
                        * to be closed after the one that is opened */
    bool reuse;        /* with share: runs in its memory too, where it fits; its results are lost */
    /* Many ranks: the graph is cut over a mesh of them. Opening, running, ll_session_get and
     * closing are then collective. */
    struct ll_comm *comm; /* NULL: this process alone; outlives the session */
    const char *mesh;     /* such as "data=2,tensor=2": as many ranks as comm has */
    int zero;   /* 1: moments, 2: and gradients, 3: and parameters are cut over axis data */
    bool exact; /* sums are exact: the same bits on every mesh and any number of threads */
    /* A codec for the gradients that are summed over axis data: "bf16", "f16", "qsgd:BITS",
     * "int8" and "int4" (either with ":huffman"), "onebit", "topk:SHARE[:BITS]", "lossless" (the
     * sums keep their bits); "factors": those of fully connected layers are made from the factors
     * of all ranks, which are gathered; NULL or "none": sums in f32, or factors where that sends
     * clearly less. */
    const char *compress;
    const ll_layout_rule *layouts; /* ends with pattern NULL; NULL: none */
    /* Products and windows are made in pieces, so that ranks compute while they wait for each
     * other: "auto" (NULL: between nodes, where it is worth while), "none", "all" (wherever
     * possible). */
    const char *overlap;
    /* Where axis sequence cuts positions, how attention goes: "heads" (all-to-alls turn them into
     * heads, or samples), "rows" (queries stay cut, keys and values come to them: in a ring where
     * overlap makes pieces), "auto" (NULL: by what is sent and computed). */
    const char *sequence;
    /* Activations, which the backward pass reads: "none" (NULL: all are kept), "selective" (what is
     * cheap is made again), "full" (all but what enters a block), or the bytes that may be kept, of
     * one micro-batch of the whole graph: "200MiB". No bit of a result depends on it. */
    const char *recompute;
    /* Bytes that tensors of a rank's step may take, as planned: a pipeline's stages and "auto" are
     * made to keep within it; LL_E_MEM, with what would do, where they cannot; 0: any. */
    size_t memory;
    /* A folder; of machine cuda "host", pinned memory: activations, and state of the optimizer,
     * that memory has no room for lie in a file there, or in that, while nobody reads them, copied
     * beside the kernels. No bit of a result depends on it. Needs memory. NULL: all stay there. */
    const char *offload;
    /* Of machine cuda: how GPUs talk: "nccl", "mpi" (from GPU to GPU, where the library can),
     * "host" (through pinned memory), "auto" (NULL: by NCCL where every rank has a GPU of its own,
     * the mesh has no axis pipe, sums are not canonical and compress is none, else as "host"). */
    const char *transport;
    /* Of axis pipe: in which order its stages take micro-batches: "1f1b" (NULL), "gpipe",
     * "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "2bw" (see delay),
     * "auto" (by costs), or the text of a schedule, a line a rank, each with its end, forward and
     * backward of MICRO-BATCH.STAGE ("F0.0 F1.0 B0.0 B1.0\n"); how many stages a rank has (0:
     * as the schedule wants, one or two); names, or patterns of them, of the nodes that begin the
     * second, third ... stage (NULL: by cost). */
    const char *schedule;
    int virtual_stages;
    const char *stages;
    /* Gradients are of what parameters were a step before: w(t+1) = w(t) - lr grad(w(t-1)), which
     * is what schedule "2bw" trains by. A state w.next is the newest; all else reads w. */
    bool delay;
    /* Of axis pipe: a stage updates when its own gradients are there, as if the norm of all were
     * within clip, and begins the next step; when that is known not to be so, or not to be a
     * number, both are made again. Results are the same bits; those of a step are told when the
     * next one has run, or by ll_session_settle. Takes memory for parameters and state as they
     * were. With a schedule that ends as it begins (zb-h2, zb-v) no rank idles between steps. */
    bool post_validation;
    /* Of machine cuda: algorithms may be chosen by timing them, and attention's gradient in bf16 be
     * summed in any order, which is quicker and gives other bits each time. One rank, or ranks
     * along axis data alone. */
    bool any_order;
    /* Ranks wait for each other's data where they ask for it: nothing is under way while they
     * compute, nor between a step's micro-batches and its update. Not along axis pipe. */
    bool blocking;
    /* Of machine cpu, convolutions: "accurate" (NULL: by sums of products), "fast" (the quickest,
     * as measured on this machine once and kept in the user's cache; some round more), or a solver
     * such as "winograd4", where it fits. And the bytes by which what they work in may raise the
     * memory's peak, such as "64MiB"; "auto" (NULL): any. */
    const char *conv, *workspace;
    /* Told lines that a person should know of how kernels work, such as that one takes a slow path
     * or was chosen by timing, maybe the same more than once. NULL: nobody is. */
    void (*note)(void *to, const char *line);
    void *note_to;
} ll_session_opts;
/* Fails with the graph's mistake; LL_E_ARG: options that are not known or exclude each other;
 * LL_E_CONFIG: opts.layouts has one that cannot be read, is of no value, or cannot be; LL_E_SHAPE:
 * a parameter or state is another in opts.share; LL_E_SHARD: the graph cannot be cut so; LL_E_MEM:
 * its memory is not there; LL_E_DEVICE: there is no such GPU; LL_E_IO: no file can be made to
 * offload to, or that of measured convolutions is damaged; LL_E_COMM. *out is NULL then. */
LL_API ll_err ll_session_open(ll_graph *g, const ll_session_opts *opts, ll_session **out);
LL_API void ll_session_close(ll_session *s);
/* Copies batch data in (for micro-batch i), or parameters and state. bytes must be the tensor's; on
 * a mesh a rank may give all of it, just the piece it holds, or of the first dimension what it
 * holds and of the others all (the samples that are its own). LL_E_ARG: there is no such input,
 * micro-batch or number of bytes; LL_E_DEVICE. */
LL_API ll_err ll_session_set(ll_session *s, const char *name, int micro, const void *data,
                             size_t bytes);
/* Copies an input or result out: bytes of all of it, or of this rank's piece. LL_E_ARG: there is
 * none of that name or number of bytes; what ll_session_settle fails with. */
LL_API ll_err ll_session_get(ll_session *s, const char *name, void *data, size_t bytes);
/* One step: every micro-batch, then the update. Graphs without ll_minimize ignore lr.
 * LL_E_NUMERIC: the loss or the gradient is not finite, and parameters are as they were; LL_E_ARG:
 * lr is not finite, batch data is out of range (a label), or was never set; LL_E_IO: a copy to or
 * from a file of offload failed; LL_E_COMM, LL_E_DEVICE. What befalls one rank alone, such as a
 * label out of range, the others fail with as LL_E_COMM, and comm is of no more use. */
LL_API ll_err ll_session_run(ll_session *s, double lr);
/* Of schedules whose steps overlap ("2bw"): a step's end is in the next one, whose results are then
 * the step's; this ends the last of them, and results are of that. Parameters are read behind it:
 * ll_session_get and ll_session_save do it by themselves. Else it does nothing. LL_E_NUMERIC,
 * LL_E_IO, LL_E_COMM, LL_E_DEVICE. Collective on a mesh. */
LL_API ll_err ll_session_settle(ll_session *s);
/* A scalar result; NaN, with ll_error_text, where there is none of that name. */
LL_API double ll_session_result(ll_session *s, const char *name);
LL_API size_t ll_session_bytes(const ll_session *s); /* of the one slab, all told */
/* Parameters, state and the step count as a safetensors file, written beside and renamed. LL_E_IO:
 * it cannot be written; LL_E_SYS: no random number for its name meanwhile; LL_E_COMM; what
 * ll_session_settle fails with. Collective on a mesh. */
LL_API ll_err ll_session_save(ll_session *s, const char *path);
/* Such a file, or one of others (docs/own.md), which gives parameters and statistics. LL_E_IO: it
 * cannot be read, is damaged, or lacks a tensor of this session's (it may have more); LL_E_SHAPE:
 * one is of another shape; LL_E_COMM,
 * LL_E_DEVICE. Of others' also LL_E_NUMERIC: blocks of 8 or 4 bits are given what is not finite;
 * LL_E_SHARD: with opts.delay, both versions of a parameter are not laid out alike. Collective on a
 * mesh. */
LL_API ll_err ll_session_load(ll_session *s, const char *path);

/* ---- ranks: processes that work together ---- */
/* A communicator: some ranks, and what they send each other. Where the process was started by an
 * MPI launcher (mpirun, srun) it joins the others; otherwise it is the only rank.
 * loopline_mpi.h makes one of a program's own MPI_Comm. Calls on one communicator come from one
 * thread at a time. "Collective": all ranks must call it, in the same order:
 *
 *     ll_comm *c = NULL;
 *     double sum = 1;
 *     ll_err rc = ll_comm_open(&(ll_comm_opts){.timeout_s = 30}, &c);
 *     if (rc == LL_OK) rc = ll_comm_allreduce(c, &sum, 1, LL_F64, LL_REDUCE_SUM, NULL);
 *     if (rc == LL_OK) printf("rank %d of %g\n", ll_comm_rank(c), sum);
 *     ll_comm_close(c);
 *
 * Each may fail with LL_E_ARG, or with LL_E_COMM where ranks wait in different calls, one is gone,
 * or one is waited for longer than timeout_s; what is under way then never ends, and the job is to.
 * Numbers of elements, types, reductions and roots must be the same on all; ll_comm_opts.check
 * compares them. */
typedef struct ll_comm ll_comm;
typedef struct ll_request ll_request;
typedef enum ll_reduce { LL_REDUCE_SUM, LL_REDUCE_MAX, LL_REDUCE_MIN } ll_reduce;

typedef enum ll_tuning_kind {
    LL_TUNE_RULES,  /* by built-in rules */
    LL_TUNE_TABLE,  /* by the table that an earlier tuning of such ranks left, where there is one */
    LL_TUNE_MEASURE /* by that table, or one that is measured now */
} ll_tuning_kind;

typedef struct ll_comm_opts {
    double timeout_s;  /* a rank that the others wait for longer than this is a failure; 0: 60 */
    bool thread;       /* messages also move on a thread of their own, not only inside calls on the
                        * communicator, ll_comm_poll among them */
    bool canonical;    /* sums in an order that neither the algorithm nor timing can change */
    const char *table; /* the tuner's file; NULL: in the user's cache folder; "": none */
    size_t window_bytes; /* of each rank's window of shared memory; 0: 4 MiB */
    ll_tuning_kind tune; /* how algorithms are chosen, here and where it is split */
    bool check; /* ranks compare what they are about to call, which a message more tells: where one
                 * calls another collective, or of another number, type, reduction or root, all fail
                 * with LL_E_ARG, which names both calls, and may go on */
} ll_comm_opts;

/* Collective. opts NULL: all by default. *out is NULL where it fails, also with LL_E_SYS: no thread
 * can be had. What is under way on other communicators is finished first. */
LL_API ll_err ll_comm_open(const ll_comm_opts *opts, ll_comm **out);
LL_API void ll_comm_close(ll_comm *c);     /* collective */
LL_API int ll_comm_rank(const ll_comm *c); /* c NULL: 0, of 1 */
LL_API int ll_comm_size(const ll_comm *c);
/* Collective. Ranks that give the same color, ordered by key, then by rank; color < 0: *out is
 * NULL. Close before c. */
LL_API ll_err ll_comm_split(ll_comm *c, int color, int key, ll_comm **out);
/* Collective. Memory for data of collectives; within a node the ranks read each other's, which
 * saves copies. It lives as long as the communicator. */
LL_API ll_err ll_comm_alloc(ll_comm *c, size_t bytes, void **out);
/* Collective. A failure on any rank becomes the same failure, and message, on every rank. c NULL:
 * of this one alone. */
LL_API ll_err ll_comm_agree(ll_comm *c, ll_err mine);
/* What this rank is doing, for the report that names a rank the others wait for: "forward of
 * conv3". The text must outlive the communicator or the next call. */
LL_API void ll_comm_doing(ll_comm *c, const char *what);

/* Collectives, each in place on n elements (blocks of rank r of p: elements n r / p to
 * n (r + 1) / p). algorithm: a name that `loopline bench comm` shows; NULL: the tuner's choice.
 * site: who calls, for messages; may be NULL, else as for ll_comm_doing. */
typedef struct ll_coll_opts {
    const char *algorithm, *site;
    int64_t segment; /* elements; 0: the tuner's choice */
} ll_coll_opts;
LL_API ll_err ll_comm_allreduce(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                                const ll_coll_opts *opts);
LL_API ll_err ll_comm_reduce_scatter(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                                     const ll_coll_opts *opts);
LL_API ll_err ll_comm_allgather(ll_comm *c, void *data, int64_t n, ll_dtype t,
                                const ll_coll_opts *opts);
LL_API ll_err ll_comm_alltoall(ll_comm *c, const void *data, void *out, int64_t n, ll_dtype t,
                               const ll_coll_opts *opts);
LL_API ll_err ll_comm_broadcast(ll_comm *c, void *data, int64_t n, ll_dtype t, int root,
                                const ll_coll_opts *opts);
LL_API ll_err ll_comm_barrier(ll_comm *c);
/* Starts and returns; data belongs to the request until ll_request_wait. Requests are waited for in
 * any order, each once. */
LL_API ll_err ll_comm_allreduce_start(ll_comm *c, void *data, int64_t n, ll_dtype t, ll_reduce op,
                                      const ll_coll_opts *opts, ll_request **out);
LL_API ll_err ll_comm_poll(ll_comm *c); /* moves what can be moved */
LL_API ll_err ll_request_wait(ll_request *r);

#ifdef __cplusplus
}
#endif
