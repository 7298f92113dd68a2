/* exec_int.h: what exec.c, its collectives and its GPU part share: a program bound to memory. */
#pragma once
#include "comm/bucket.h"
#include "dev/gpu.h"
#include "exec/exec.h"
#include "pass/partition.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_onboard ll_onboard; /* a program's life on a GPU */

typedef struct bound { /* an instruction with its operands' addresses */
    ll_kcall call;
    const ll_instr *instr;
    ll_talk *talk; /* of a collective: its start has it, and its wait */
    int joint;     /* the joint all-reduce that it is a tensor of; -1: none */
    int tensor;    /* which one */
    bool flying;   /* of a start: not awaited yet */
    bool moves;    /* an operand is another address in each micro-batch */
} bound;

/* All-reduces of gradients over the same ranks: in buckets, started while the rest is still being
 * computed, each awaited with the first of its tensors that is. */
typedef struct joint {
    int64_t axes;
    /* Compressed gradients. Ranks that hold the same parameter must add the same to it, and what a
     * codec makes of a tensor depends on its neighbours in the bucket: those are cut alike. */
    bool compressed;
    ll_axes cut;
    ll_buckets *buckets;
    ll_bucket_tensor *tensors;
    int n;
} joint;

typedef struct moving { /* an operand that is another address in each micro-batch */
    ll_tensor *tensor;
    char *first;
    size_t stride;
} moving;

struct ll_exec {
    const ll_program *p;
    ll_team *team; /* NULL: alone */
    ll_arena *arena;
    char *slab;
    bool borrowed;      /* the slab is another's */
    size_t input_bytes; /* of the inputs that lie here */
    void **address;     /* slot -> micro-batch 0 */
    bound *instrs;
    moving *moving;
    int n_moving;
    double *seconds;
    bool profiling, poison;
    ll_trace *trace; /* NULL: nothing is traced */
    joint *joints;
    int n_joint;
    int n_flying;  /* collectives under way */
    ll_comm *comm; /* of the team */
    double waited; /* seconds, in waits */
    char *room;    /* scratch of collectives under way */
    size_t room_bytes;
    const char *compress;
    const ll_placement *place;
    ll_onboard *gpu; /* NULL: the slab is this process's own memory */
};

/* ---- exec_talk.c ---- */
/* Once instructions have their operands. Collective. */
ll_err ll_exec_open_talks(ll_exec *e, const ll_exec_opts *opts);
/* What a step that ended early left under way. */
ll_err ll_exec_wait_all(ll_exec *e);
/* ---- one instruction, on any machine ---- */
ll_err ll_exec_start_talk(ll_exec *e, bound *b);
ll_err ll_exec_wait_talk(ll_exec *e, bound *b); /* b: the start */
/* Operands that are another address in each micro-batch, as of this one. */
void ll_exec_move(ll_exec *e, int micro);
ll_err ll_exec_check_finite(const bound *b, const ll_tensor *out);

/* ---- exec_gpu.c ---- */
/* The GPU of share's, or, without one, a queue of work on this rank's GPU. */
ll_err ll_onboard_open(ll_exec *e, const ll_exec_opts *opts);
/* Whether collectives are between GPUs; if so, the ranks of one find each other. Collective. */
bool ll_onboard_talks(const ll_exec *e);
ll_err ll_onboard_meet(ll_exec *e, const ll_instr *x);
void ll_onboard_close(ll_exec *e);
ll_err ll_onboard_slab(ll_exec *e, size_t bytes, char **out);
/* Collectives work on this process's memory: their operands' views, and room to pack. */
ll_err ll_onboard_bind(ll_exec *e);
void *ll_onboard_view(const ll_exec *e, int slot, bool fresh);
/* Batch data lies with its micro-batches at multiples of 16 bytes, as kernels want their tensors:
 * where they do not, elsewhere than in the slab. After slots have their addresses. */
void ll_onboard_house(ll_exec *e);
size_t ll_onboard_stride(const ll_exec *e, size_t bytes); /* from one micro-batch to the next */
/* A parameter's or state's first value. */
ll_err ll_onboard_init(ll_exec *e, int slot, const ll_exec_opts *opts);
/* Before and after the sections that a step's results need: what is new goes to the GPU, results
 * and mistakes come from it. */
ll_err ll_onboard_deliver(ll_exec *e, uint64_t step);
ll_err ll_onboard_collect(ll_exec *e);
ll_err ll_onboard_run(ll_exec *e, int section, int micro, uint64_t step);
/* One instruction, finished when it returns; checked: for numbers that are not finite. */
ll_err ll_onboard_one(ll_exec *e, int i, bool checked);
ll_err ll_onboard_poison(ll_exec *e);

#ifdef __cplusplus
}
#endif
