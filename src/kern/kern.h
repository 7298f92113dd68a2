/* kern.h: what a kernel is given. Kernels are arithmetic only: they know nothing of graphs, never
 * allocate and never wait. A kernel's tensors are dense and row-major; the caller has checked types
 * and shapes. An op has a plain reference kernel (kern/ref, any element type, slow and obviously
 * right), or an expansion that says what it means, and a fast one (kern/cpu: f32; bf16 where an
 * op's file says so, f64 where the op does).
 *
 * 1. A fast kernel gives the same bits for the same inputs and thread count, always
 *    (but where any_order is set).
 * 2. A kernel writes every element of its outputs.
 * 3. A result may lie on an operand, byte for byte, where the op says that it may: elementwise ops
 *    and chains any result, others result 0 (in_place in ir/op.h).
 * 4. scratch is what the op's scratch function asked for, 64-byte aligned, of any content. */
#pragma once
#include "base/types.h"

#include <string.h>

typedef struct ll_tensor {
    void *data;
    ll_dtype dtype;
    ll_shape shape;
} ll_tensor;

typedef struct ll_context ll_context; /* a device's own: kern/cuda/context.h */

typedef struct ll_kcall {
    const void *attr; /* the op's attribute struct, from kern/attr.h */
    int n_in, n_out;
    const ll_tensor *in, *out;
    void *scratch;
    int threads;
    int micro, n_micro; /* which micro-batch of how many: random ops and accumulation ask */
    uint64_t seed, step;
    /* Of GPUs: the stream to queue work on; in device memory the stream of random numbers of the
     * step (captured work reads it anew), and what was wrong with the data: kind, where, value. */
    void *stream;
    ll_context *ctx; /* what a device's kernels keep between calls; NULL: no device */
    const uint64_t *clock;
    int64_t *trouble;
    /* tf32: products, convolutions and attention of f32 may round operands to tf32. any_order: sums
     * may be made in any order, and so have other bits each time. timing: algorithms may be chosen
     * by timing them, too; not where other ranks must come to the same bits. flush: elementwise
     * work on a CPU takes subnormal numbers for zeros. */
    bool tf32, timing, any_order, flush;
    const char *solver; /* the one that is asked for, where it fits; NULL: the first that fits */
    int64_t at_once;    /* of convolutions, where a solver cuts: images at once; 0: all */
} ll_kcall;

typedef ll_err ll_kernel(const ll_kcall *c);
/* Bytes of scratch a call needs; data pointers are NULL when it is asked. */
typedef size_t ll_scratch(const ll_kcall *c);
typedef bool ll_fits(const ll_kcall *c);

/* Of GPUs: calls of one op that do not depend on each other, as one launch with the bits of single
 * ones. The table says which block works on what; it is made once, in this process's memory, and
 * given where the GPU reads it. */
typedef struct ll_many {
    bool (*alike)(const ll_kcall *a, const ll_kcall *b); /* may they be one launch? */
    /* The table's bytes, with room to work in; out NULL: it is not written yet. */
    size_t (*table)(const ll_kcall *const *calls, int n, void *out);
    ll_err (*run)(const ll_kcall *const *calls, int n, void *table);
    void (*prepare)(const ll_kcall *first); /* as of a solver; NULL: nothing */
} ll_many;

/* One way to make a call of an op on a machine. An op lists its ways, the best first, ended by {0};
 * the first that fits is taken. Data pointers are NULL when fits and scratch are asked. */
typedef struct ll_solver {
    const char *name;    /* NULL: the only one */
    ll_fits *fits;       /* NULL: any call of the op */
    ll_scratch *scratch; /* NULL: none */
    ll_kernel *run;
    const ll_many *many; /* several calls as one launch; NULL: one by one */
    /* Begins what takes long to make (compiles code, in threads) for a call that will come, once,
     * before the first; NULL: nothing. */
    void (*prepare)(const ll_kcall *c);
    bool asked; /* taken where it is asked for alone: it rounds more than sums of products do */
    bool cuts;  /* at_once is honoured */
    bool parts; /* of CPUs: its threads are those of ll_in_parts (kern/cpu/row.h), or none */
    /* FLOPs that it makes, and how many of the loops' are in padding; NULL: as the loops say. */
    void (*work)(const ll_kcall *c, double *done, double *padded);
} ll_solver;
#define LL_KERNEL(...) ((const ll_solver[]){{__VA_ARGS__}, {0}})
/* A fast kernel for calls that fit, and the plain loops for others. */
#define LL_OR_PLAIN(fn, ...)                                                                       \
    ((const ll_solver[]){{.name = "fast", .fits = fn##_cpu_fits, .run = fn##_cpu, __VA_ARGS__},    \
                         {.name = "plain", .run = fn##_ref, .parts = true},                        \
                         {0}})

/* Declares what kernels of these ops may be named; not all need be there. */
#define LL_KERNELS(...) LL_EXPAND(LL_EACH_KERNEL(__VA_ARGS__))
#define LL_EACH_KERNEL(fn, ...)                                                                    \
    ll_kernel fn##_ref, fn##_cpu;                                                                  \
    ll_fits fn##_cpu_fits;                                                                         \
    ll_scratch fn##_cpu_scratch;                                                                   \
    extern const ll_solver fn##_cuda[];                                                            \
    __VA_OPT__(LL_NEXT_KERNEL LL_NOW(__VA_ARGS__))
#define LL_NEXT_KERNEL() LL_EACH_KERNEL

static inline bool ll_solver_fits(const ll_solver *s, const ll_kcall *c)
{
    return !s->fits || s->fits(c);
}

/* NULL: none fits. */
static inline const ll_solver *ll_solver_for(const ll_solver *list, const ll_kcall *c)
{
    for (const ll_solver *s = list; c->solver && s && s->run; s++)
        if (s->name && !strcmp(s->name, c->solver) && ll_solver_fits(s, c)) return s;
    for (; list && list->run; list++)
        if (!list->asked && ll_solver_fits(list, c)) return list;
    return NULL;
}
