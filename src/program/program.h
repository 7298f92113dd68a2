/* program.h: one rank's graph as a linear program with static memory.
 *
 * 1. Instructions are kernel calls on slots; a slot is a range of one slab. Nothing is allocated
 *    while a program runs: bytes is all there is, and is known before.
 * 2. The slab is [persistent | work | scratch]. Persistent slots hold inputs (parameters, state,
 *    batch data, per-step scalars) and live always; work slots share memory where lifetimes allow;
 *    scratch is the largest any instruction asks for (under a limit: it lies in the work region,
 *    where an instruction leaves room).
 * 3. Three sections: `micro` runs once per micro-batch, `report` (what results need) and `update`
 *    run once a step. A pipeline's program (unroll.c) has all micro-batches in its `micro`. Only
 *    `update` writes parameters and state. So a result can be looked at before they change, and
 *    keeps showing what it was when they have.
 * 4. A collective is two instructions. Between its start and its wait its result and its room for
 *    packing are its own, and so is its operand, if its wait comes after the start. All ranks start
 *    their collectives in the same order.
 * 5. Batch slots hold all micro-batches, one after another.
 * 6. A store and a load (offload.c) are two instructions each, as collectives are. What is stored
 *    lies aside: in a file or in the host's memory, outside of the slab; its bytes are planned the
 *    same way. */
#pragma once
#include "kern/notes.h"
#include "pass/target.h"
#include "sched/pipeline.h"

#include <string.h>

typedef enum ll_region { LL_PERSISTENT, LL_WORK, LL_ASIDE } ll_region;

typedef enum ll_aside_kind { LL_NOT_ASIDE, LL_STORE, LL_LOAD } ll_aside_kind;

typedef struct ll_slot {
    ll_type type;
    ll_kind kind;
    ll_init init;
    const ll_piece *piece; /* inputs: of which whole, and where in it; NULL: whole */
    ll_region region;
    size_t offset;           /* within the region */
    size_t bytes;            /* of one micro-batch */
    int input;               /* the input slot whose bytes these are: itself, an alias; 0: none */
    const char *name;        /* NULL: unnamed */
    const char *gradient_of; /* of a parameter's gradient: the parameter's name */
} ll_slot;

typedef struct ll_instr {
    const char *name;           /* the node's */
    const char *op;             /* of a wait: "wait" */
    ll_solver kernel;           /* run NULL: a collective's start, or its wait */
    ll_collective collective;   /* of a start: what it is; of several operands: a bundle */
    ll_aside_kind aside;        /* of a start: copies to what lies aside, or from it */
    bool compressed;            /* of a start: its sums may go through a codec */
    int at;                     /* the declared node that it is made for (ll_origin) */
    bool last;                  /* of the micro-batches, runs in the last alone */
    bool wait;                  /* the result of instruction `pair` has come after it */
    int pair;                   /* of a start its wait, of a wait its start */
    const void **attrs;         /* of a start: [n_in], for each operand has its own */
    size_t packing, packing_at; /* of a start: its room, and where in the work region */
    const void *attr;
    int micro;   /* of a pipeline's program: the micro-batch that it is of */
    int action;  /* of it, the action that it runs in, from 1 on; 0: none. They ascend */
    bool before; /* of it, of the step before: draws that one's random numbers */
    int n_in, n_out;
    int *in, *out;              /* slots */
    size_t scratch, scratch_at; /* bytes, and where from the work region's start on */
    const char *solver;         /* what was asked for, and images at once: as a call has them */
    int64_t at_once;
    double seconds;      /* as it was measured; 0: was not */
    double flops, bytes; /* arithmetic, as loops have it, and operand and result sizes */
    double done, padded; /* FLOPs that the kernel makes; of flops, those in padding */
} ll_instr;

enum { LL_MICRO, LL_REPORT, LL_UPDATE, LL_N_SECTION };

typedef struct ll_binding {
    const char *name;
    int slot;
} ll_binding;

/* What a pipeline's program is of: a step; or, where steps overlap, the first of them, one that
 * others are before and behind, and what the last one leaves to do. */
typedef enum ll_pipe_span { LL_WHOLE_STEP, LL_FIRST_STEP, LL_ANY_STEP, LL_LEFT_OVER } ll_pipe_span;

/* What one rank of a pipeline does in a step. */
typedef struct ll_pipe {
    const ll_action *actions;
    int n_action;
    int slack; /* what an action sends is awaited so many actions later */
    ll_pipe_span span;
    /* Where steps overlap: the number of actions after which every rank has done what the batch
     * before left; and all ranks' actions, by which to know what goes in the next step. */
    int settled;
    const ll_pipeline *all;
    const struct ll_pipe *left; /* of the first step: what the last one leaves, which it begins */
} ll_pipe;

typedef struct ll_program {
    ll_arena *arena;
    const ll_target *target;
    ll_slot *slots;
    ll_instr *instrs;
    int n_slot, n_instr;
    int end[LL_N_SECTION]; /* section s is [end[s-1], end[s]) */
    ll_binding *inputs, *results;
    int n_input, n_result;
    int n_micro, threads;
    bool unrolled;   /* a pipeline's: each micro-batch has instructions of its own */
    bool tf32;       /* products, convolutions, attention of f32 may round operands to tf32 */
    bool any_order;  /* sums may be made in any order where that is quicker */
    bool flush;      /* subnormal numbers may be taken for zeros where that is quicker */
    ll_context *ctx; /* of the device that kernels were chosen for; not the program's own */
    size_t persistent_bytes, work_bytes, scratch_bytes, bytes;
    size_t aside_bytes;      /* in a file, or where else the machine lays values aside */
    size_t ideal_work_bytes; /* largest sum of live work slots: no plan can need less */
    double flops;            /* of a whole step */
    const char *fusions;     /* lines: which were made how often, or why not; NULL: none */
    const ll_pipe *pipe;     /* by which it was unrolled; NULL: is no pipeline's */
} ll_program;

typedef struct ll_lower_opts {
    const ll_target *target;
    ll_precision precision;
    int threads, n_micro;
    bool any_order;      /* on devices: attention's gradient may be summed in any order */
    bool flush;          /* subnormal numbers may be taken for zeros: not in exact mode */
    bool no_fuse;        /* one instruction per node: for finding where a number went wrong */
    bool as_is;          /* the graph's own nodes, those that are needed; ref expands some */
    bool replayed;       /* and never run: no kernels are picked, so the build need not have any */
    size_t bucket_bytes; /* of gradients that are summed as one; 0: the target's */
    bool subsets;        /* sums over other ranks may be one too: their messages go together */
    size_t memory;       /* values are laid aside to keep within these bytes; 0: none are */
    const ll_pipe *pipe; /* NULL: no pipeline */
    int64_t compress;    /* axes: gradients that are summed over them are compressed */
    ll_context *ctx;     /* of the device, outlives the program; NULL: there is none */
    int level;           /* of its kernels: compute capability 80, 90 ...; 0: there is none */
    const char *solver;  /* asked for by name, where it fits; NULL: by rule */
    const struct ll_ways *ways; /* measured, to choose by (ways.h); NULL: nothing */
    bool limited;     /* work region and scratch may be so many bytes more than the work */
    size_t workspace; /* region without scratch, of convolutions */
    bool apart;       /* so many bytes for each of these, in one place for all */
    int share;        /* lower.c's own: of what is not live, 1/share is given out */
    /* Who is told what kernels note when they are chosen. */
    ll_noting notes;
    /* Collectives are awaited where they start, one by one: to measure what overlap gains. */
    bool blocking;
} ll_lower_opts;

/* Simplifies, lowers precision, fuses, orders, plans memory. The program is its own; the graph may
 * go afterwards. */
ll_err ll_lower(const ll_graph *g, const ll_lower_opts *opts, ll_program **out);
void ll_program_free(ll_program *p);
LL_OWNED(ll_program, ll_program_free);
int ll_program_input(const ll_program *p, const char *name); /* slot, or -1 */
int ll_program_result(const ll_program *p, const char *name);
/* How often its first section runs in a step. */
static inline int ll_program_rounds(const ll_program *p)
{
    return p->unrolled ? 1 : p->n_micro;
}
/* How often an instruction runs in a step. */
static inline int ll_program_times(const ll_program *p, int i)
{
    return i < p->end[LL_MICRO] && !p->instrs[i].last ? ll_program_rounds(p) : 1;
}
/* Whether it begins a copy to what lies aside, or from it, or awaits one. */
static inline bool ll_program_copies(const ll_program *p, const ll_instr *x)
{
    return x->aside || (x->wait && p->instrs[x->pair].aside);
}
/* A call of an instruction before there is memory for it. */
typedef struct ll_unbound {
    ll_kcall c;
    ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
} ll_unbound;
void ll_program_call(const ll_program *p, const ll_instr *x, ll_unbound *out);
/* Listing for people: a line per instruction with its slots, and the memory summary. */
char *ll_program_print(const ll_program *p, ll_arena *arena);
/* FLOPs of products (matmul, convolution, attention) in a step. */
typedef struct ll_program_work {
    double loops;  /* as ops' loops count them */
    double made;   /* as kernels make them: Winograd's are fewer */
    double padded; /* of loops, in padding of convolutions */
} ll_program_work;
ll_program_work ll_program_flops(const ll_program *p);
/* Of a step of the model as it is declared, on all ranks together: what exact sums, recomputation,
 * copies on several ranks and the update add does not count. g: of one micro-batch. */
double ll_model_flops(const ll_graph *g, int n_micro);

/* A program's bytes by what they are for; their sum is p->bytes. */
typedef struct ll_memory_kinds {
    size_t parameters, state,
        batch;        /* state: moments, statistics, constants; batch: data and scalars */
    size_t gradients; /* what micro-batches add up, and leave for the update */
    size_t other;     /* of the work region: activations, and what is gathered, sent or summed */
    size_t scratch;
} ll_memory_kinds;
ll_memory_kinds ll_program_kinds(const ll_program *p);
/* FLOPs of one run of a graph's nodes, from loop extents. */
double ll_graph_flops(const ll_graph *g);
