/* prune.h: a session's weights of products, pruned (pass/prune.h): those that products alone read,
 * in rows that are summed. It is decided on whole tensors, so that no mesh changes it. Zeros stay
 * zeros by ll_optim's masked, which keeps no state. */
#pragma once
#include "exec/session.h"
#include "pass/prune.h"

typedef struct ll_pruned {
    int64_t tensors, numbers, zeros;
} ll_pruned;
/* All ranks of s together; "none" only counts. LL_E_ARG: it is no rule, there are no such weights,
 * or some are zeros alone and would be trained; LL_E_MEM, LL_E_COMM. */
ll_err ll_prune_session(const char *rule, ll_session *s, ll_pruned *out);
/* Before the first step of training, by train.prune and train.prune_steps; where these have steps,
 * it only counts. LL_E_ARG also: gradients are a step late. */
ll_err ll_prune_begin(const char *rule, const char *steps, ll_session *s, ll_pruned *out);
/* Before the step that so many came before. out->tensors 0: nothing was due. */
ll_err ll_prune_step(const char *rule, const char *steps, int64_t step, ll_session *s,
                     ll_pruned *out);
