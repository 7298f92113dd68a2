/* cut.h: the way from a graph to the graph that a rank compiles: activations made again, stages of
 * a pipeline, means of each stage's own, layouts on a mesh, a rank's part. Sessions go it, and who
 * asks beforehand what they would run (inspect, plan). Pure, and the same on every rank. */
#pragma once
#include "exec/pipe.h"
#include "machine/machine.h"
#include "pass/recompute.h"

typedef struct ll_cut {
    ll_arena *arena;
    ll_graph *lean; /* with activations made again; NULL: they are kept */
    ll_recomputed recomputed;
    ll_graph *apart;          /* with means of each stage's own; NULL: needs none */
    const ll_graph *whole;    /* what is cut: the last of these, or the graph that was given */
    ll_placement *place;      /* of that; NULL: nothing is cut */
    ll_placement *wide;       /* of steps of exact sums made again with all bits; NULL: not asked */
    const ll_pipe_plan *plan; /* NULL: no pipeline */
} ll_cut;

typedef struct ll_cut_opts {
    bool alone;    /* one rank has all of it: nothing is cut, but exact sums are made */
    bool wide;     /* exact sums of all bits of operands */
    bool again;    /* steps of exact sums made again with all bits are cut too */
    bool unstaged; /* stages are not looked for */
    /* [ranks] where they are; NULL: so many on each node, one after another; 0: all on one. */
    const int *nodes;
    int per_node;
    bool canonical;      /* ranks sum in canonical order (ll_comm_opts) */
    const ll_room *room; /* that ranks have; NULL: any */
    const ll_cut *like;  /* whose parameters it shares; NULL: nobody's */
} ll_cut_opts;

/* g outlives it. asked: mesh, zero, layouts, recompute, schedule and the like, micro_batches. */
ll_err ll_cut_make(const ll_graph *g, const ll_session_opts *asked, const ll_cut_opts *o,
                   ll_cut **out);
void ll_cut_free(ll_cut *c);
LL_OWNED(ll_cut, ll_cut_free);
/* A rank's graph; place: the cut's, or that of steps made again. */
ll_err ll_cut_part(const ll_cut *c, const ll_placement *place, int rank, ll_graph **out);
/* Ranks whose programs may differ in bytes, one of each kind, from the last rank down: that of any
 * other rank has the bytes of one of these. The list lives as long as the cut. */
ll_err ll_cut_kinds(const ll_cut *c, const int **ranks, int *n);
/* How what is asked has a rank's graph lowered. ctx: NULL: no GPU is here. The options live as long
 * as the cut. */
ll_err ll_cut_lowers(const ll_cut *c, const ll_session_opts *asked, const ll_machine *m,
                     ll_context *ctx, int rank, ll_pipe_span span, ll_lower_opts *out);
/* Bytes of a rank's program: its tensors, and what a codec keeps of gradients from step to step.
 * That is what ll_session_opts.memory limits, what train tells of a step, and what inspect shows;
 * communication's own buffers are known when ranks have met. */
ll_err ll_cut_bytes(const ll_session_opts *asked, const ll_program *p, double *bytes);
/* Bytes that a step made again with all bits takes beside a rank's program; 0: there is none. */
ll_err ll_cut_beside(const ll_cut *c, const ll_lower_opts *how, int rank, double *bytes);

/* How steps of a graph follow each other. */
typedef struct ll_step_order {
    bool overlap; /* the next one begins before this one is over */
    bool late;    /* gradients are of what parameters were a step before: ll_delay */
    bool wide;    /* exact sums are of all bits at once, for no step can be made again */
} ll_step_order;
ll_err ll_step_order_of(const ll_graph *g, const ll_session_opts *asked, ll_step_order *out);
