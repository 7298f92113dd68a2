/* pipeline_int.h: who sends to whom, as the verifier, the simulator and the scheduler walk it. */
#pragma once
#include "sched/pipeline.h"

/* Passes over every (stage, micro): B is the last two at once. What of an action others wait for:
 * of B, the gradients of inputs. */
enum { LL_PASS_F, LL_PASS_I, LL_PASS_W, LL_N_PASS };
static inline int ll_pass_of(ll_action_kind kind)
{
    return kind == LL_ACT_F ? LL_PASS_F : kind == LL_ACT_W ? LL_PASS_W : LL_PASS_I;
}

/* Neighbours of stage s, and the edges to them, are items first[s] to first[s + 1] - 1. */
typedef struct ll_hood {
    int *first, *stage, *edge;
} ll_hood;

/* Forward, the stages that send to one, and those that one sends to. */
typedef struct ll_hoods {
    ll_hood before, after;
} ll_hoods;

typedef struct ll_near_stages {
    const int *stage, *edge;
    int n;
} ll_near_stages;

/* A schedule whose steps overlap, written out: so many steps, and what is left behind the last. All
 * of it is one schedule, of all their micro-batches. */
typedef struct ll_repeated {
    ll_pipeline p;
    int n_step;  /* with what is left */
    int **first; /* [n_rank][n_step + 1] places in a rank's list, 0 for the first */
    int **step;  /* [n_rank][n_action] */
} ll_repeated;
/* In the arena, with what its actions say: whether steps overlap. */
const ll_pipeline *ll_pipeline_keep(ll_arena *arena, ll_pipeline p);
ll_err ll_pipeline_repeat(ll_arena *arena, const ll_pipeline *p, int n_batch,
                          const ll_repeated **out);
/* The most that a rank holds at once, each micro-batch of a stage from F to B or W: of so many
 * bytes, [n_stage], or (NULL) of 1. (pipeline_simulate.c) */
double ll_pipeline_peak(const ll_pipeline *p, int rank, const double *bytes);

ll_err ll_hoods_make(ll_arena *arena, int n_stage, const ll_edge *edges, int n_edge, ll_hoods *out);
/* The stages whose actions of the same pass and micro-batch this one reads, or (!reads) whose read
 * this one. Weight gradients are nobody's business. */
ll_near_stages ll_hoods_of(const ll_hoods *h, ll_action_kind kind, int stage, bool reads);
