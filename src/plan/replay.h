/* replay.h: machine sim: a compiled program without its arithmetic. Every instruction moves two
 * clocks, of kernels and of communication, by what the cluster's cost model says: kernels by
 * roofline, collectives by who takes part. Communication that was started early runs beside
 * kernels until its wait. All ranks are taken to be as the one whose program it is. */
#pragma once
#include "pass/partition.h"
#include "plan/cost.h"
#include "program/program.h"

typedef struct ll_replayed {
    double step_s, compute_s;
    double exposed_s; /* of collectives, what kernels waited for */
    double latency_s; /* of exposed_s, by exchanges of which latency is the most */
    int n_small;      /* these, of a step; one of them */
    const char *small;
    double moved; /* bytes that this rank sends */
    double model; /* FLOPs of this rank's share of the model; the caller's to fill in */
    ll_program_work work;
} ll_replayed;

/* m NULL: one rank. precision: of products. halved: numbers have half of the bytes that they have
 * in the program, but for state that is updated. */
ll_replayed ll_replay(const ll_cluster *c, const ll_program *p, const ll_mesh *m,
                      ll_precision precision, bool halved);
