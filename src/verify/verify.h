/* verify.h: does a mesh of ranks train what one process trains? Both are run in one job from one
 * seed on the same batches, and everything is compared after every step. */
#pragma once
#include "exec/session.h"
#include "run/run.h"

/* Sets the whole batch of a step, all its micro-batches. */
typedef ll_err ll_feed(void *context, ll_session *s, int64_t step);

typedef struct ll_verify_opts {
    ll_session_opts session; /* of the ranks: comm, mesh and zero among them */
    int64_t steps;
    double tolerance; /* below 1e-6, whatever rounding may do; 0: no element may differ */
    double lr;
    ll_feed *feed;
    ll_err (*begin)(void *context, ll_session *s); /* behind initial values; NULL: nothing is */
    void *context;
} ll_verify_opts;

enum { LL_VERIFY_NAME = 160 };
typedef struct ll_verify_report {
    bool ok, init_identical;
    /* The largest relative difference of a tensor, as it is, and its name and step; [1]: in f64,
     * where both trained again, worst "": they did not. */
    double max_rel_diff[2];
    char worst[2][LL_VERIFY_NAME];
    int64_t worst_step[2];
    int64_t unjudged; /* tensors, in all steps, that rounding moves too much to judge them in f32 */
    int64_t unjudged_in_f64; /* that it moves too much there too: then exact sums decide */
    double rounding;         /* the most that changes of last bits change one of these */
    int64_t differing; /* with exact sums: elements that differ in a bit, on all ranks; else -1 */
    /* Parts of gradients (ranges of each dimension), and those that were off by more than 5 % in
     * every step, which rounding in the run's precision does too. */
    int64_t blocks, unjudged_blocks;
    int64_t restarts; /* steps after which ranks went on from serial values */
    /* Steps that rounding decided: ranks are far from the serial run, and make what a serial run
     * makes whose parameters were changed in their last bits. The first of them, and its first
     * tensor. */
    int64_t corners, corner_step;
    char corner[LL_VERIFY_NAME];
    double corner_rel_diff;
    int64_t steps;              /* done */
    int64_t tensors;            /* compared in each step */
    int64_t elements, left_out; /* of parameters; those whose gradient is rounding alone */
    double loss[2];             /* the last one, serial and parallel */
    size_t bytes[2];            /* planned: serial, and the most that a rank has */
    /* The first tensor that differs by more than the tolerance; "": there is none. */
    char name[LL_VERIFY_NAME], op[LL_VERIFY_NAME];
    char part[LL_VERIFY_NAME]; /* the range of it that does; "": as a whole */
    int rank;                  /* that holds the element which differs most */
    int64_t index;             /* of it in the whole tensor; step 0: before the first step */
    int64_t step;
    double serial, parallel, rel_diff, allowed;
    bool in_f64; /* it was found there */
} ll_verify_report;

/* Collective over o->session.comm. Compares results, gradients, parameters and state of a graph
 * with ll_minimize; gradients become results of it. A difference is no failure, but in the report,
 * which is the same on all ranks. */
ll_err ll_verify_graph(ll_graph *g, const ll_verify_opts *o, ll_verify_report *out);
/* The same with a run's model, its optimizer at a constant rate and its data; random: random
 * batches instead. o: session.comm and mesh, steps and tolerance; the rest is the run's. */
ll_err ll_verify_run(const ll_run *r, const ll_verify_opts *o, bool random, ll_verify_report *out);
