/* search.h: which mesh, schedule, micro-batch, ZeRO and recomputation train a transformer quickest
 * on a cluster, of those that fit its memory; and what a training costs with failures. */
#pragma once
#include "plan/lm.h"

typedef struct ll_candidate {
    ll_how how;
    ll_outcome out;
    bool fits;
    double stage_bytes; /* for pictures: layers of a stage */
} ll_candidate;

typedef struct ll_search {
    const ll_cluster *cluster;
    const ll_lm *model;
    const ll_system *system;
    ll_precision precision;
    double ranks, batch; /* samples a step */
    /* Asked for; 0, or -1 of zero and remake: any. */
    double data, tensor, pipe, context, micro_batch;
    int virtual_stages, zero, remake;
    double memory;        /* bytes that a rank's tensors may take; 0: as the chip has */
    const char *schedule; /* NULL: any */
    bool nccl;            /* a pipeline's messages go as train lets NCCL take them */
} ll_search;

typedef struct ll_found {
    ll_candidate *best; /* [n] those that fit first, quickest first; one of a kind */
    int n, tried;
} ll_found;

extern const ll_system ll_system_loopline;

bool ll_plan_fits(const ll_search *s, const ll_outcome *o);

/* Lives in the arena. LL_E_ARG where the ranks cannot be cut so. */
ll_err ll_plan_search(const ll_search *s, ll_arena *arena, ll_found *out);

/* "data=4,tensor=8,pipe=12"; writes into out and returns it. */
#define LL_HOW_TEXT 96
const char *ll_how_mesh(const ll_how *h, char out[LL_HOW_TEXT]);
const char *ll_how_schedule(const ll_how *h);
const char *ll_remake_name(ll_remake r);
/* For ll_plan_spread. */
static inline const char *ll_how_kind(const ll_how *h)
{
    return h->zero >= 2 ? "sharded" : h->pipe > 1 ? "pipeline" : "data and tensor";
}

/* To train on so many tokens (or samples). */
typedef struct ll_training {
    double hours, steps, goodput; /* goodput: part of the time that is not lost */
    double checkpoint_s, interval_s, failures;
    double kwh, price, co2_kg;
} ll_training;
ll_training ll_train_cost(const ll_cluster *c, double ranks, double step_s, double steps,
                          double state_bytes);
/* What most of a step is spent on, in words. */
const char *ll_outcome_bound(const ll_outcome *o);
