/* scale.h: training steps of a run on the ranks of one job, timed and counted: a point of a scaling
 * report. */
#pragma once
#include "mesh/mesh.h"
#include "run/run.h"

typedef struct ll_scale_opts {
    int64_t steps, warm_up; /* timed, and before them */
    const char *trace;      /* a Chrome trace of the timed steps goes to this file; NULL: to none */
} ll_scale_opts;

/* The same on every rank. */
typedef struct ll_scale_point {
    int ranks, nodes, threads;      /* threads: of each rank */
    char mesh[LL_MESH_TEXT];        /* "" for one rank */
    int64_t batch, parameters, seq; /* seq: tokens in a sample; 0: images */
    double *times;                  /* [n_step] s: of each step, on the rank it took longest on */
    int n_step;
    double flops; /* of a step, all ranks together */
    /* Of a step: time in collectives (mean of the ranks, and the most), bytes of the rank with
     * most: sent as messages, read of other ranks' shared memory; collectives, and those that the
     * MPI library did, whose bytes are not known. */
    double exposed_s, most_exposed_s, sent, read, collectives, library;
    /* Of the rank with most: planned before the run; mapped and allocated for tensors and
     * communication; the process in all, as the system counts it. */
    double planned_bytes, used_bytes, resident_bytes;
    double loss;
} ll_scale_point;

/* Collective. A step is reading its data, forward, backward, communication and update; no
 * validation, no files. times are in the arena. */
ll_err ll_scale_measure(const ll_run *r, ll_comm *c, const ll_scale_opts *opts, ll_arena *arena,
                        ll_scale_point *out);
