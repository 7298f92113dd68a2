/* recompute.h: values of the forward pass that the backward pass reads are made again there, in
 * place of being kept. */
#pragma once
#include "pass/pass.h"

typedef enum ll_recompute_policy {
    LL_RECOMPUTE_NONE,
    LL_RECOMPUTE_SELECTIVE,
    LL_RECOMPUTE_FULL,
    LL_RECOMPUTE_BUDGET
} ll_recompute_policy;

typedef struct ll_recompute_how {
    ll_recompute_policy policy;
    double budget; /* bytes */
    /* Of a pipeline, the stage of each declared node: what another stage made is kept. */
    const int *stage_of;
    int n_at;
} ll_recompute_how;

/* "none" (NULL too), "selective", "full", or a size: "200MiB". */
ll_err ll_recompute_parse(const char *text, ll_recompute_how *out);

typedef struct ll_recomputed {
    double before, after; /* bytes that the backward pass finds kept, without and with it */
    double extra;         /* FLOPs that are made twice, as a part of the graph's */
    int n_node;           /* nodes that are */
} ll_recomputed;

/* Of a whole training graph. The graph's own nodes stay in their order. LL_E_ARG: the budget is
 * less than what full keeps. */
ll_err ll_recompute(const ll_graph *g, const ll_recompute_how *how, ll_recomputed *facts,
                    ll_graph **out);
/* One line for people. */
const char *ll_recompute_text(const char *how, const ll_recomputed *facts, char *out, size_t room);
