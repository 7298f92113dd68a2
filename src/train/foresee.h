/* foresee.h: how long a step of an opened session will take, before any was run.
 *
 * Every kernel of the program, once for each op, attributes and shapes, is timed a few times on the
 * session's own memory: those that would change parameters or state are not run, but reckoned by
 * their bytes. On a device they run in order, for a second or two. What a step takes follows from
 * the program: its instructions one after another, collectives by bytes and messages, a pipeline's
 * actions by its schedule (sched/pipeline.h). Ranks time their kernels at the same time, as they
 * will work. */
#pragma once
#include "exec/session.h"
#include "train/run.h"

/* Collective over c (NULL: this process alone). NAN: there is no account of several ranks' devices,
 * nor of exact sums. */
ll_err ll_foresee_step(const ll_session *s, ll_comm *c, double *seconds);

/* One line more in OUT/predictions.jsonl: what was said, what came of it. Local. */
typedef struct ll_foreseen {
    const char *model, *mesh;
    int ranks;
    int64_t steps;
    double predicted_s, measured_s, predicted_bytes, measured_bytes;
} ll_foreseen;
ll_err ll_foresee_note(const char *folder, const ll_foreseen *f);
