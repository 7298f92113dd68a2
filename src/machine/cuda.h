/* cuda.h: a program on a GPU, as the files that make it share it: cuda.c is the machine,
 * cuda_run.c its launches, cuda_data.c what comes and goes, cuda_aside.c what is laid aside,
 * cuda_nccl.c and cuda_mpi.c its collectives. */
#pragma once
#include "dev/gpu.h"
#include "kern/cuda/trouble.h"
#include "machine/host.h"
#include "machine/merge.h"

/* Launches and copies between two collectives, in one micro-batch. */
typedef struct ll_cuda_segment {
    int runs;
    ll_gpu_graph *graph, *marked; /* marked: with timing events around each launch */
} ll_cuda_segment;

typedef struct ll_span { /* launches from .. to - 1, in a micro-batch of a step */
    int from, to, micro;
    uint64_t step;
    bool once; /* not for each micro-batch */
} ll_span;

typedef struct ll_cuda_view { /* a slot as this process sees it */
    void *data;
    bool pinned;
    void *staging; /* of batch data, on the GPU: where the next step's waits */
    bool staged;   /* the view is newer than the slot */
    int next;      /* micro-batches from here on have not been uploaded since */
} ll_cuda_view;

enum { LL_STEP_SCALARS = 8 };

typedef struct ll_cuda {
    ll_gpu *gpu;
    bool own; /* the streams are not another's */
    ll_cuda_view *views;
    void **packing;
    ll_launch *launches;
    int end[LL_N_SECTION];     /* section s is launches [end[s-1], end[s]) */
    ll_cuda_segment *segments; /* [n_micro][n_instr] */
    void *clock, *trouble, *tables, *staging;
    uint64_t step;
    bool started;
    bool rehearsed; /* all kernels that run beside messages were launched once */
    bool uploading; /* something is, since a step last took what was staged */
    bool uploaded;  /* what was before that is over */
    /* Numbers of the next step: written with all else that is new. */
    struct ll_step_scalar {
        int slot;
        uint64_t value;
    } scalars[LL_STEP_SCALARS];
    int n_scalar;
    /* Scalar results and what was wrong with the data, in pinned memory after each step. */
    int64_t *reply; /* [n_reply], then trouble */
    int *reply_of;  /* slot -> where in reply, 1 up; 0: not there */
    int n_reply;
    int64_t saturated; /* numbers, in all steps that were waited for */
    enum { LL_REPLY_OLD, LL_REPLY_COMING, LL_REPLY_HERE } reply_state;
    struct ll_nccl *nccl; /* of link nccl */
    char *aside;          /* pinned: what is laid aside; NULL: nothing is */
} ll_cuda;

static inline ll_cuda *ll_cuda_of(const ll_exec *e)
{
    return (ll_cuda *)e->own;
}

/* ---- cuda_run.c ---- */
ll_err ll_cuda_plan(ll_exec *e);
ll_err ll_cuda_run(ll_exec *e, int section, int micro, uint64_t step);
ll_err ll_cuda_rehearse(ll_exec *e, int section, ll_may_run *may, int times, double *seconds);

/* ---- cuda_aside.c ---- */
ll_err ll_cuda_map_aside(ll_exec *e, size_t bytes, char **out);
bool ll_cuda_is_aside(const ll_exec *e, int slot);
ll_err ll_cuda_copy(ll_exec *e, ll_bound *b);
ll_err ll_cuda_copy_wait(ll_exec *e, ll_bound *b); /* nothing where it is not under way */

/* ---- cuda_nccl.c, where NCCL is built ---- */
extern const ll_link ll_link_nccl;
extern const ll_link ll_link_mpi;
/* Until what is in a stream is over: of one that waits for other ranks' GPUs with an eye on these.
 */
ll_err ll_cuda_await(const ll_exec *e, ll_stream_id s);

/* ---- cuda_data.c ---- */
ll_err ll_cuda_open_data(ll_exec *e);
void ll_cuda_close_data(ll_exec *e);
/* Pinned views for these: what collectives work on. */
ll_err ll_cuda_pin(ll_exec *e, int slot, void **out);
ll_err ll_cuda_init(ll_exec *e, int slot);
void *ll_cuda_view_of(const ll_exec *e, int slot);
ll_err ll_cuda_changed(const ll_exec *e, int slot);
ll_err ll_cuda_put(const ll_exec *e, int slot, int micro, const void *data);
ll_err ll_cuda_read(const ll_exec *e, int slot, void *to);
ll_err ll_cuda_begin(ll_exec *e, uint64_t step);
ll_err ll_cuda_end(ll_exec *e);
ll_err ll_cuda_wait(ll_exec *e);
