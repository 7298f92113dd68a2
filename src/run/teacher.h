/* teacher.h: learning from another model's logits (Hinton et al., 2015) and hidden states (FitNets:
 * Romero et al., 2015). train.teacher names its run. Its forward pass is part of the graph that
 * trains, under "teacher.", its parameters frozen: every mesh cuts it as it cuts the rest. What is
 * minimised is
 *   (1 - w) loss + w T^2 KL(softmax(theirs / T) || softmax(ours / T))    the mean over rows
 *              + u mean over pairs of mean((ours P - theirs)^2),
 * w train.teacher_weight, T train.temperature, u train.hidden_weight. train.teacher_hidden has the
 * pairs, "h0=h2,h1=h5": the last values of these scopes. P is learned where their channels (the
 * last dimension) are not as many; it is in checkpoints, and in no other graph. Evaluation has no
 * teacher; files have none. */
#pragma once
#include "exec/session.h"
#include "run/run.h"

#define LL_TEACHER "teacher."
static inline bool ll_is_teacher(const char *name) /* of a parameter or state */
{
    return !strncmp(name, LL_TEACHER, sizeof LL_TEACHER - 1);
}
#define LL_MATCH "match." /* leads the names of projections */
static inline bool ll_is_match(const char *name)
{
    return !strncmp(name, LL_MATCH, sizeof LL_MATCH - 1);
}
/* Its run, for sequences as long as ours. */
ll_err ll_teacher_run(const ll_run *r, ll_run **out);
/* Adds its graph, of evaluation, to one that makes loss; *loss becomes what is minimised. Result
 * "distillation" is the second term without w, "hidden" the third without u. */
ll_err ll_teacher_add(const ll_run *r, const ll_graph *theirs, ll_graph *g, ll_val *loss);
/* Its trained parameters, or those that it begins with, into s, where the run has a teacher. *note:
 * which those are, for people; NULL: it has none. */
ll_err ll_teacher_load(const ll_run *r, ll_session *s, ll_arena *arena, const char **note);
