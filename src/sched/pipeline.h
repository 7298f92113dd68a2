/* pipeline.h: pipelines as data. A model is cut into stages; a batch into micro-batches; a schedule
 * says for each rank which stage does what of which micro-batch, one action after another. Rank
 * rank_of[s] has stage s; a rank may have several. What is sent between stages follows: a stage's
 * forward pass reads what the one before it made, its backward pass what the one after it made.
 *
 *     F   forward
 *     B   backward: gradients of inputs and of weights
 *     I   of these the gradients of inputs alone, which the stage before waits for
 *     W   the gradients of weights, which nobody waits for
 *
 * An action as text is kind, micro-batch, '.', stage ("F3.0"; of one stage a rank, '.' and stage may
 * be left out); a rank is a line. */
#pragma once
#include "base/arena.h"

typedef enum ll_act { LL_ACT_F, LL_ACT_B, LL_ACT_I, LL_ACT_W } ll_act;

typedef struct ll_action {
    ll_act kind;
    int stage, micro;
} ll_action;

typedef struct ll_pipeline {
    const char *name; /* "1f1b" */
    int n_rank, n_stage, n_micro;
    const int *rank_of;              /* [n_stage] */
    const int *n_action;             /* [n_rank] */
    const ll_action *const *actions; /* [n_rank][n_action] */
} ll_pipeline;
