/* teacher.h: learning from another model's logits (Hinton et al., 2015). train.teacher names its
 * run. Its forward pass is part of the graph that trains, under "teacher.", its parameters frozen:
 * every mesh cuts it as it cuts the rest. What is minimised is
 *   (1 - w) loss + w T^2 KL(softmax(theirs / T) || softmax(ours / T)),   the mean over rows,
 * w train.teacher_weight, T train.temperature. Evaluation has no teacher; files have none. */
#pragma once
#include "exec/session.h"
#include "train/run.h"

#define LL_TEACHER "teacher."
static inline bool ll_is_teacher(const char *name) /* of a parameter or state */
{
    return !strncmp(name, LL_TEACHER, sizeof LL_TEACHER - 1);
}
/* Its run, for sequences as long as ours. */
ll_err ll_teacher_run(const ll_run *r, ll_run **out);
/* Adds its graph, of evaluation, to one that makes loss; *loss becomes what is minimised. Result
 * "distillation" is the second term without w. */
ll_err ll_teacher_add(const ll_run *r, const ll_graph *theirs, ll_graph *g, ll_val *loss);
/* Its trained parameters, or those that it begins with, into s, where the run has a teacher. *note:
 * which those are, for people; NULL: it has none. */
ll_err ll_teacher_load(const ll_run *r, ll_session *s, ll_arena *arena, const char **note);
