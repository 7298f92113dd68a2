/* stages.h: a model cut into the stages of a pipeline.
 *
 * Declared nodes are in an order in which each reads only earlier ones; a stage is a range of them.
 * A node's gradient belongs to its stage, and so do the parameters that it reads first, their state
 * and update. What one stage makes and another reads is a message: sent once to each rank that
 * reads it, however many cuts lie in between. */
#pragma once
#include "pass/pass.h"
#include "mesh/mesh.h"

enum { LL_MAX_PIPE = 64 }; /* ranks along axis pipe */

typedef struct ll_home {
    const char *name;
    int stage;
} ll_home;

typedef struct ll_stages {
    int n;
    int n_at;      /* declared nodes */
    int *of_at;    /* [n_at + 1] the stage of each, from 1 on */
    ll_home *home; /* [n_home] where parameters and state are kept */
    int n_home;
    double *
        cost; /* [n + 1] work of each stage, forward and backward, in FLOPs or what takes as long */
    double
        *bytes; /* [n + 1] that one micro-batch sends from this stage on to later ones, forward */
    double *fixed; /* [n + 1] bytes of parameters, their gradients and state, in the whole */
    double *kept;  /* [n + 1] bytes that the backward pass of one micro-batch finds kept */
} ll_stages;

/* What stages may hold. */
typedef struct ll_stage_room {
    const double *limit;  /* [n] bytes, in the whole, by the account of ll_stages */
    const int *in_flight; /* [n] micro-batches that a stage holds at once */
} ll_stage_room;

/* Where a parameter or state is kept; 0: it is none of these stages'. */
int ll_stages_home(const ll_stages *s, const char *name);
/* Finds these homes, where stages are known. (stages_cut.c) */
void ll_stages_settle(const ll_graph *g, ll_arena *arena, ll_stages *s);
/* Pure, of the whole graph. The cuts that leave the least to do for the stage that has most, what
 * it sends included; of those under the limit of room (NULL: none), or else the least above it.
 * names: of the first nodes of stages 2, 3, ..., as patterns, separated by blanks; NULL: by cost.
 */
ll_err ll_stages_find(const ll_graph *g, int n, const char *names, const ll_stage_room *room,
                      ll_arena *arena, const ll_stages **out);

/* Pure. Of another graph with these stages' parameters: each node as early as the parameters that
 * it reads, and what it reads of other nodes, allow. */
ll_err ll_stages_like(const ll_graph *g, const ll_stages *other, ll_arena *arena,
                      const ll_stages **out);

/* Work of each stage, [n]: forward; backward, what gradients that go to other stages need; the
 * rest, which is for weights. In the arena. */
typedef struct ll_stage_work {
    double f, i, w;
} ll_stage_work;
const ll_stage_work *ll_stages_work(const ll_graph *g, const ll_stages *s, ll_arena *arena);

/* A pair of stages between which one sends to another in each micro-batch. */
typedef struct ll_stage_edge {
    int from, to; /* from 1 on */
} ll_stage_edge;

/* Pure. Of a graph that is the same on all ranks along axis pipe what this rank does: stages whose
 * rank_of is its coordinate. Nodes get their stage (ll_origin). */
ll_err ll_stages_cut(const ll_graph *g, const ll_stages *s, const ll_mesh *m, int rank,
                     const int *rank_of, ll_graph **out);
/* Which stages the forward pass sends between: from < to. Returns how many. */
int ll_stages_edges(const ll_graph *g, const ll_stages *s, ll_arena *arena, ll_stage_edge **out);
/* Means of gradients that are sums over several stages become sums of means, so that what a stage
 * adds is sent once a step. */
ll_err ll_means_apart(const ll_graph *g, ll_graph **out);
