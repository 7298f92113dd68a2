/* gpu_int.h: a program's life on a GPU, as the files that make it share it: exec_gpu.c runs it,
 * gpu_data.c carries what comes and goes, gpu_profile.c measures. */
#pragma once
#include "exec/merge.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_stretch { /* kernels from one launch on, in one micro-batch */
    int runs;
    ll_gpu_graph *graph, *marked; /* marked: with marks around each launch */
} ll_stretch;

typedef struct ll_span { /* launches from .. to - 1, in a micro-batch of a step */
    int from, to, micro;
    uint64_t step;
    bool once; /* not for each micro-batch */
} ll_span;

typedef struct ll_seen { /* a slot as this process sees it */
    void *data;
    bool pinned;
    void *staging; /* of batch data, on the GPU: where the next step's waits */
    void *house;   /* and where it lies, if not in the slab */
    bool staged;   /* the view is newer than the slot */
    int next;      /* micro-batches from here on have not been uploaded since */
} ll_seen;

enum { LL_TROUBLE = 3, LL_LETTER = 8 };

typedef struct ll_talkers ll_talkers; /* GPUs that talk to each other */

struct ll_onboard {
    ll_gpu *gpu;
    bool own; /* the queue is not another's */
    ll_seen *views;
    void **packing;
    ll_launch *launches;
    int end[LL_N_SECTION]; /* section s is launches [end[s-1], end[s]) */
    ll_stretch *stretches; /* [n_micro][n_instr] */
    void *clock, *trouble, *tables, *staging;
    size_t extra_bytes; /* of the GPU's memory, besides the slab: tables and staging */
    uint64_t step;
    bool started;
    bool uploading; /* something is, since a step last took what was staged */
    bool calm;      /* what was uploaded before that is over */
    /* Numbers of the next step: written with all else that is new. */
    struct ll_letter {
        int slot;
        uint64_t value;
    } letters[LL_LETTER];
    int n_letter;
    /* Scalar results and what was wrong with the data, in pinned memory after each step. */
    int64_t *reply; /* [n_reply], then trouble */
    int *reply_of;  /* slot -> where in reply, 1 up; 0: not there */
    int n_reply;
    enum { LL_REPLY_OLD, LL_REPLY_COMING, LL_REPLY_HERE } reply_state;
    /* Collectives by NCCL; NULL: through views and comm/. */
    ll_talkers *talkers;
    struct waiting *waiting; /* started, but not yet handed on */
    int n_waiting;
    size_t waiting_bytes;
};

/* ---- exec_gpu.c ---- */
ll_err ll_onboard_queue(ll_exec *e, const ll_span *s, bool marks);
ll_stretch *ll_onboard_stretch(ll_exec *e, const ll_span *s);
bool ll_onboard_runs(const ll_exec *e, const ll_launch *l, const ll_span *s);

/* ---- gpu_profile.c ---- */
/* Runs launches and notes how long each took, by the GPU's clock. */
ll_err ll_onboard_measure(ll_exec *e, const ll_span *s);

/* ---- gpu_talk.c ---- */
/* Groups are opened as instructions meet, or are another's of the same team. */
ll_err ll_talkers_open(ll_exec *e, const ll_talkers *lent, ll_arena *arena, ll_talkers **out);
void ll_talkers_close(ll_talkers *t);
ll_err ll_talkers_meet(ll_talkers *t, const ll_instr *x); /* collective */
/* A collective: its start, and (i is still the start's) its wait. */
ll_err ll_onboard_start(ll_exec *e, int i);
ll_err ll_onboard_await(ll_exec *e, int i);

/* ---- gpu_data.c ---- */
ll_err ll_onboard_open_data(ll_exec *e);
void ll_onboard_close_data(ll_exec *e);
/* Pinned views for these: what collectives work on. */
ll_err ll_onboard_pin(ll_exec *e, int slot, void **out);

#ifdef __cplusplus
}
#endif
