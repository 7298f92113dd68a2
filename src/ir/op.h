/* op.h: what an op is. src/op/x.c declares ops as constants of this type, in a list named ll_ops_x;
 * the build finds the lists from the file names. Adding an op adds its file and its kernels.
 *
 * Loop dims. dims names, for each operand and result, the loop that walks each of its dimensions:
 * "nhwc, frsc -> nhwf". '*' stands for any number of leading dimensions, '_' for one that no loop
 * walks (it is never cut). The same letter is the same loop and has one extent. A loop that is in a
 * result is free: cutting it cuts operands and result. A loop that vanishes is listed in sum (parts
 * add up), max (parts combine by maximum) or whole (may not be cut); sum = "?" means every loop
 * that vanishes. One that is in sum and in some of the results is free for these and summed for
 * the others. A letter in window is walked by the result exactly and by some operands through a
 * sliding window: split says which range of each operand a range of the loop reads.
 * An op without dims has no loops: only the compiler makes such, when nothing is cut any more.
 * What does not fit: infer (shapes), loops (dims that depend on attributes), split (halos), and
 * expand: the node rewritten as nodes that do fit. A whole loop of an op with expand can be cut by
 * cutting the expansion; an op without grad is differentiated through its expansion. */
#pragma once
#include "ir/ir.h"

struct ll_kcall;
typedef ll_err ll_kernel(const struct ll_kcall *c);
struct ll_solver;

#ifdef LL_CUDA
#define LL_GPU(solvers) solvers
#else
#define LL_GPU(solvers) NULL
#endif

enum { LL_MAX_IN = 16, LL_MAX_OUT = 8, LL_MAX_LOOPS = 16, LL_DIMS_TEXT = 256 };

/* ---- attributes as data: printing, parsing ---- */
typedef enum ll_attr_kind {
    LL_A_INT,
    LL_A_F64,
    LL_A_INTS,
    LL_A_SHAPE,
    LL_A_DTYPE,
    LL_A_SPEC,
    LL_A_BITS, /* a small number; 0 is not printed */
    LL_A_FUSED
} ll_attr_kind;
typedef struct ll_attr_field {
    const char *name; /* NULL ends the list */
    ll_attr_kind kind;
    size_t offset;
    int count; /* INTS: how many */
} ll_attr_field;
#define LL_FIELD(type, field, kind)                                                                \
    {                                                                                              \
#field, kind, offsetof(type, field), sizeof((type *)0)->field / sizeof(int64_t)            \
    }
/* A field's kind is its C type's; those that look otherwise are in tables of LL_FIELDs. */
#define LL_FIELD_OF(type, field)                                                                   \
    LL_FIELD(type, field,                                                                          \
             _Generic(((type *)0)->field, int64_t                                                  \
                      : LL_A_INT, double                                                           \
                      : LL_A_F64, int64_t *                                                        \
                      : LL_A_INTS, ll_shape                                                        \
                      : LL_A_SHAPE, ll_dtype                                                       \
                      : LL_A_DTYPE, char *                                                         \
                      : LL_A_SPEC))
/* Of an op: its attribute struct and those of its fields that print and parse, up to 16. */
#define LL_ATTRS(type, ...)                                                                        \
    .attr_size = sizeof(type), .attrs = (const ll_attr_field[])                                    \
    {                                                                                              \
        LL_EXPAND(LL_EACH_FIELD(type, __VA_ARGS__))                                                \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define LL_EACH_FIELD(type, field, ...)                                                            \
    LL_FIELD_OF(type, field), __VA_OPT__(LL_NEXT_FIELD LL_NOW(type, __VA_ARGS__))
#define LL_NEXT_FIELD() LL_EACH_FIELD

/* ---- shapes ---- */
typedef struct ll_infer {
    const ll_op *op;
    const void *attr;
    int n_in, n_out;
    const ll_type *in;
    ll_type *out;
} ll_infer;
/* The default rule, for an infer that only adds checks or changes types. */
ll_err ll_infer_dims(ll_infer *i);
/* The element type of an op's tensors, but for those that wide_in and wide_out say. */
ll_dtype ll_infer_type(const ll_infer *i);
/* f32 of 16-bit floats, else t. */
ll_dtype ll_wide(ll_dtype t);

/* ---- loops of one node ---- */
typedef enum ll_combine { LL_FREE, LL_SUM, LL_MAX, LL_WHOLE } ll_combine;
typedef struct ll_loops {
    int n;
    char letter[LL_MAX_LOOPS];
    int64_t extent[LL_MAX_LOOPS];
    ll_combine combine[LL_MAX_LOOPS];
    bool window[LL_MAX_LOOPS];
    int8_t in[LL_MAX_IN][LL_MAX_DIMS]; /* operand dimension -> loop; -1: none (whole) */
    int8_t out[LL_MAX_OUT][LL_MAX_DIMS];
} ll_loops;
/* The dimension that a loop walks, of an operand or result; -1: none. */
static inline int ll_dim_of(const int8_t map[LL_MAX_DIMS], int loop)
{
    for (int d = 0; d < LL_MAX_DIMS; d++)
        if (loop >= 0 && map[d] == loop) return d;
    return -1;
}
/* The loops of a node with these operand and result types. */
ll_err ll_loops_of(const ll_op *op, const void *attr, int n_in, const ll_type *in, int n_out,
                   const ll_type *out, ll_loops *loops);
ll_err ll_node_loops(const ll_graph *g, const ll_node *n, ll_loops *loops);
double ll_node_flops(const ll_graph *g, const ll_node *n);
double ll_node_bytes(const ll_graph *g, const ll_node *n); /* of operands and results */

/* Which range of each operand one part of a cut loop reads, and the attributes it runs with. */
typedef struct ll_range {
    int64_t from, to;
} ll_range;
typedef struct ll_part {
    ll_range in[LL_MAX_IN]; /* along the dimension the loop walks; begins as the loop's own */
    void *attr;             /* a copy of the node's, for split to change */
} ll_part;

/* ---- gradients: reads in, out, dout (none: zero; one is); sets din (none: no gradient) ---- */
typedef struct ll_bwd {
    ll_graph *g;
    const ll_op *op;
    const void *attr;
    int n_in;
    const ll_val *in, *out, *dout;
    ll_val *din;
    const bool *wanted; /* [n_in] does anybody ask for din? Others may be set, in vain */
} ll_bwd;

/* What ranks do together. */
typedef enum ll_collective {
    LL_NO_COLLECTIVE,
    LL_ALL_REDUCE,
    LL_REDUCE_SCATTER,
    LL_ALL_GATHER,
    LL_ALL_TO_ALL,
    LL_HALO,
    LL_ROTATE,
    LL_SEND,
    LL_RECV,
    LL_N_COLLECTIVE
} ll_collective;

/* What kind of work an op is: where a step's time goes is told by it. */
#define LL_WORKS(X)                                                                                \
    X(OTHER, "other")                                                                              \
    X(PRODUCT, "products")                                                                         \
    X(CONVOLUTION, "convolutions")                                                                 \
    X(ATTENTION, "attention")                                                                      \
    X(NORM, "norms")                                                                               \
    X(LOSS, "loss")                                                                                \
    X(POOL, "pooling")                                                                             \
    X(EMBEDDING, "embeddings")                                                                     \
    X(CHAIN, "chains")                                                                             \
    X(COPY, "copies")                                                                              \
    X(REDUCTION, "reductions")                                                                     \
    X(QUANTIZE, "casts to 8 bits")                                                                 \
    X(COLLECTIVE, "collectives")
typedef enum ll_work {
#define X(name, text) LL_WORK_##name,
    LL_WORKS(X)
#undef X
        LL_N_WORK
} ll_work;
const char *ll_work_name(ll_work w);

struct ll_op {
    const char *name;
    ll_work work;
    int n_in, n_out; /* n_in -1: any number */
    int n_more;      /* so many more operands may follow */
    size_t attr_size;
    const ll_attr_field *attrs;
    const char *dims, *sum, *max, *whole, *window;
    ll_err (*loops)(const void *attr, int n_in, const ll_type *in, char dims[LL_DIMS_TEXT]);
    ll_err (*infer)(ll_infer *i); /* NULL: shapes from dims, type of the first operand */
    ll_err (*split)(const void *attr, const ll_loops *loops, int loop, ll_range range,
                    const ll_type *in, ll_part *part);
    void (*expand)(ll_graph *g, const void *attr, const ll_val *in, int n_in, ll_val *out);
    /* Of a whole loop: the results of two parts of it as those of both. */
    void (*merge)(ll_graph *g, const ll_val *a, const ll_val *b, ll_val *out);
    void (*grad)(ll_bwd *b);
    /* Of a sum of products: for each result its largest term (op/matmul.c), or no less than it, of
     * the levels of its operands: largest over what neither the other operand nor the result has.
     * in: the operands' types. */
    ll_val (*reach)(ll_graph *g, const void *attr, const ll_type *in, const ll_val *level,
                    int enough);
    /* Flops of a node, where they are no multiple of the product of all loops (attention). */
    double (*cost)(const void *attr, const ll_loops *l);
    bool no_grad; /* a constant or a count: no gradient flows through it */
    int logits; /* of a loss of classes and its gradient: 1 + the operand that holds their scores */
    bool straight; /* it rounds, and its gradient is taken to be its result's, as if it did not */
    double flop;   /* per point of the product of all loops */
    /* In a graph as declared, of its FLOPs those that are the model's, times: a gradient makes some
     * anew, which do not count (attention). 0: none. */
    double model;
    bool elementwise;  /* may run in place and be fused; ew says which */
    int ew;            /* ll_ew */
    unsigned in_place; /* bit k: result 0 may lie on operand k, if both are of one size */
    bool alias;        /* the result is the first operand's bytes: no kernel runs (reshape) */
    bool linear;       /* op(a + b) = op(a) + op(b), all operands taken together */
    unsigned gain;     /* bit k: result 0's last dimension is scaled as these operands are, all */
    bool picks;        /* of what it sums at most one term is not zero: any order gives its bits */
    /* Where an op's tensors are bf16: operands that stay f32, and results that are f32 all the same
     * (sums, statistics, losses). Bit k: operand or result k. */
    unsigned wide_in, wide_out;
    bool f64; /* cpu takes f64 too; of others machine cpu runs the plain kernel then */
    ll_collective
        collective; /* ranks talk: no kernel, comm/ runs it (pass/partition.c makes these) */
    bool random;    /* depends on the step and seed: two equal nodes still give one value. Where
                     * nothing is to be drawn (ll_only), its operand stands for it. */
    /* The oracle; NULL: its expansion or pattern is (fuse/fuse.h). For each machine kernels, the
     * best first (kern/kern.h): the first that fits a call runs it. cuda: LL_GPU(list). */
    ll_kernel *ref;
    const struct ll_solver *cpu, *cuda;
    /* For tests: "f32[6,12], f32[12,18] {spec=\"mk,kn->mn\"}"; or extents of the loops of dims,
     * then operands that are not f32 of any numbers: "*=2,3 v=7 1:i32<7 3> {eps=0.1}". */
    const char *trials[10];
};

/* An op's name, kind of work, and numbers of operands and results. Its kernels are named after it:
 * fn_cpu, fn_cuda, and of LL_REF_OP fn_ref. What follows is of the CPU's: .scratch. */
#define LL_OP(fn, kind, operands, results, ...)                                                    \
    LL_OP_BY(fn, kind, operands, results, LL_KERNEL(.run = fn##_cpu, __VA_ARGS__))
#define LL_REF_OP(fn, ...) LL_OP(fn, __VA_ARGS__), .ref = fn##_ref
/* Whose CPU kernel is for the calls that fn_cpu_fits says. */
#define LL_SOME_OP(fn, kind, operands, results, ...)                                               \
    LL_OP_BY(fn, kind, operands, results, LL_OR_PLAIN(fn, __VA_ARGS__)), .ref = fn##_ref
#define LL_OP_BY(fn, kind, operands, results, list)                                                \
    .name = #fn, .work = LL_WORK_##kind, .n_in = operands, .n_out = results, .cpu = list,          \
    .cuda = LL_GPU(fn##_cuda)
/* Of GPUs alone, made late (fuse/): gradients are there by then. */
#define LL_GPU_OP(fn, kind, operands, results)                                                     \
    .name = #fn, .work = LL_WORK_##kind, .n_in = operands, .n_out = results, .no_grad = true,      \
    .cuda = LL_GPU(fn##_cuda)
/* Of CPUs alone likewise, in f64 too. */
#define LL_CPU_OP(fn, kind, operands, results)                                                     \
    .name = #fn, .work = LL_WORK_##kind, .n_in = operands, .n_out = results, .no_grad = true,      \
    .f64 = true, .cpu = LL_KERNEL(.run = fn##_cpu, .scratch = fn##_cpu_scratch)
/* The plain loops are the CPU's too. */
#define LL_PLAIN_OP(fn, kind, operands, results)                                                   \
    .name = #fn, .work = LL_WORK_##kind, .n_in = operands, .n_out = results, .ref = fn##_ref,      \
    .cpu = LL_KERNEL(.run = fn##_ref, .parts = true), .cuda = LL_GPU(fn##_cuda)

const ll_op *ll_op_find(const char *name); /* NULL: none */
/* All ops, sorted by file and then as listed; ends with NULL. */
const ll_op *const *ll_ops(void);
