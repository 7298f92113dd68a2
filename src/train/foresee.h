/* foresee.h: how long a step of an opened session will take, before any was run.
 *
 * What its program is made of is rehearsed (rehearse.h). What a step takes follows from the
 * program: its instructions in order, collectives by the steps of their algorithms over the links
 * as measured (tune.h), between nodes beside kernels, a pipeline's actions that were not run by its
 * schedule (sched/pipeline.h). */
#pragma once
#include "base/process.h"
#include "base/waits.h"
#include "data/data.h"
#include "exec/session.h"
#include "run/run.h"

/* ll_others_share since then, of the job's threads; NAN: not known, or kernels run elsewhere.
 * Collective over c (NULL: this process alone). */
ll_err ll_foresee_others(const ll_session *s, ll_comm *c, ll_core_time since, double *share);
typedef struct ll_ahead {
    double seconds; /* of a step; NAN: not foreseen */
    double spare;   /* of them, those in which a core of this rank waits for others of the step */
} ll_ahead;
/* Collective likewise. steps: that will follow; it takes no more than a few times as long as they.
 * waits: of the session's threads, then a step is foreseen as if others left them their cores;
 * NULL: on cores as busy as now. *without: why it is not, or what of a step is not counted; NULL:
 * nothing. */
ll_err ll_foresee_step(const ll_session *s, ll_comm *c, int64_t steps, ll_waits *waits,
                       ll_ahead *out, const char **without);
/* Adds what a step waits for its samples. Collective likewise. */
ll_err ll_foresee_data(const ll_run *r, const ll_dataset *d, const ll_loader *l,
                       const ll_session *s, ll_comm *c, ll_ahead *a);

/* More than 1: they take turns. Local. */
double ll_threads_a_core(const ll_session *s, const ll_comm *c);
