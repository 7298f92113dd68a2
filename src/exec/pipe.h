/* pipe.h: a pipeline planned: into which stages a graph is cut, in which order they take
 * micro-batches. Pure, and the same on every rank. */
#pragma once
#include "pass/partition.h"
#include "pass/stages.h"
#include "program/program.h"

/* What a plan that was too large took; of equal keys plans have equal programs. */
typedef struct ll_room_seen {
    uint64_t key;
    const double *used; /* [ranks along pipe] bytes */
} ll_room_seen;

/* What a rank's program may take, and what plans so far have come to. How many bytes a plan takes
 * is known when all ranks have compiled it: what is cut by an account of stages is judged by that,
 * and cut again with what the account has missed. */
typedef struct ll_room {
    double limit;                     /* bytes; 0: any */
    bool offload;                     /* what it has no room for may be laid aside */
    const char *recompute, *schedule; /* as asked for, so that nobody is told to; NULL: not */
    bool whole;                       /* a micro-batch is one sample: there is no smaller one */
    bool aside;                       /* is: what keeps all values has no room */
    bool wide;                /* counted too: a step of exact sums made again with all bits */
    double beside;            /* bytes of that, of this rank */
    int n_try;                /* plans that were too large */
    double over[LL_MAX_PIPE]; /* of ranks along axis pipe: bytes more than the account says */
    double push[LL_MAX_PIPE]; /* of these, so that a plan that was too large is not made again */
    double least;             /* of these plans, what the fullest rank takes */
    double refused; /* the limit as it was asked for, and limit what may do; 0: it is not refused */
    double step;    /* by which that grows where it does not */
    ll_arena *arena;
    ll_room_seen *seen; /* [n_seen] */
    int n_seen, cap_seen;
} ll_room;

typedef struct ll_pipe_plan {
    const ll_stages *stages;
    const int *rank_of;          /* [stages] along axis pipe */
    const ll_pipeline *pipeline; /* NULL: there is no backward pass, each stage runs once */
    ll_pipeline_report report;
    ll_pipeline_costs costs; /* of stages, in FLOPs or what takes as long */
    const double *held; /* [ranks along pipe] bytes, by the account of stages; NULL: as costs */
} ll_pipe_plan;

typedef struct ll_pipe_opts {
    /* A bundled schedule's name (NULL: 1f1b), "auto", or a schedule: lines of actions, or PyTorch's
     * CSV. */
    const char *schedule;
    int virtual_stages; /* a rank; 0: as the schedule wants */
    const char *stages; /* names of the nodes that begin them; NULL: by cost */
    int n_micro;
    const ll_room *room;      /* NULL: any */
    const ll_pipe_plan *like; /* parameters are kept where that keeps them; NULL: anywhere */
} ll_pipe_opts;

/* Of the whole graph, on a mesh with axis pipe. The plan lives in the arena. */
ll_err ll_pipe_make(const ll_graph *g, const ll_mesh *m, const ll_pipe_opts *o, ll_arena *arena,
                    const ll_pipe_plan **out);
/* Of what is asked for a graph of one micro-batch. */
ll_room ll_room_of(const ll_session_opts *asked, const ll_graph *g);
/* Whether what ranks have planned fits: used: [ranks along pipe] bytes, of those that have most. If
 * not, *again: another plan may, with what the room now knows. Where none does, others follow that
 * show which limit would, then LL_E_MEM with that. p NULL: no pipeline, one used. */
ll_err ll_room_judge(ll_room *room, const ll_pipe_plan *p, const double *used, bool *again);
/* What judging such a plan before was told: [ranks along pipe] bytes, too many then; NULL: it is a
 * new one. It need not be compiled to be judged again, by those. */
const double *ll_room_knows(const ll_room *room, const ll_pipe_plan *p);
/* Bytes that ranks' programs are to keep within by laying values aside; 0: they keep all. */
size_t ll_room_aside(const ll_room *room);
/* Whether a graph's steps overlap on this mesh: then it is to be trained as ll_delay makes it. */
ll_err ll_pipe_overlaps(const ll_graph *g, const char *mesh, const char *schedule, bool *out);
/* What a rank of the mesh does in a step. Where steps overlap, of that span. */
const ll_pipe *ll_pipe_of(const ll_pipe_plan *p, const ll_mesh *m, int rank, ll_pipe_span span,
                          ll_arena *arena);
/* A rank's graph: its part of the placed graph and, of that, what its stages do. */
ll_err ll_pipe_partition(const ll_pipe_plan *p, const ll_placement *place, int rank,
                         ll_graph **out);
