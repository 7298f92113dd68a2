/* pipe.h: a pipeline planned: into which stages a graph is cut, in which order they take
 * micro-batches. Pure, and the same on every rank. */
#pragma once
#include "pass/partition.h"
#include "pass/stages.h"
#include "program/program.h"

typedef struct ll_pipe_plan {
    const ll_stages *stages;
    const int *rank_of;          /* [stages] along axis pipe */
    const ll_pipeline *pipeline; /* NULL: there is no backward pass, each stage runs once */
    ll_pipeline_report report;
    ll_pipeline_costs costs; /* of stages, in FLOPs or what takes as long */
} ll_pipe_plan;

typedef struct ll_pipe_opts {
    /* A bundled schedule's name (NULL: 1f1b), "auto", or a schedule: lines of actions, or PyTorch's
     * CSV. */
    const char *schedule;
    int virtual_stages; /* a rank; 0: as the schedule wants */
    const char *stages; /* names of the nodes that begin them; NULL: by cost */
    int n_micro;
    const ll_pipe_plan *like; /* parameters are kept where that keeps them; NULL: anywhere */
} ll_pipe_opts;

/* Of the whole graph, on a mesh with axis pipe. The plan lives in the arena. */
ll_err ll_pipe_make(const ll_graph *g, const ll_mesh *m, const ll_pipe_opts *o, ll_arena *arena,
                    const ll_pipe_plan **out);
/* What a rank of the mesh does in a step. */
const ll_pipe *ll_pipe_of(const ll_pipe_plan *p, const ll_mesh *m, int rank, ll_arena *arena);
/* A rank's graph: its part of the placed graph and, of that, what its stages do. */
ll_err ll_pipe_partition(const ll_pipe_plan *p, const ll_placement *place, int rank,
                         ll_graph **out);
