/* events.h: scalars in a file that TensorBoard reads. Each start of a run opens a file of its own
 * in the folder; a resumed run's first record tells TensorBoard to forget what earlier files have
 * from its first step on. */
#pragma once
#include "base/err.h"

typedef struct ll_events ll_events;

/* first_step: the step this run begins at; more than 1: it is a resumed one. */
ll_err ll_events_open(const char *folder, int64_t first_step, ll_events **out);
/* Removes the folder's other event files: a run has begun there anew. */
ll_err ll_events_alone(const ll_events *e);
/* Records are gathered in memory and written every few seconds. */
ll_err ll_events_scalar(ll_events *e, int64_t step, const char *tag, double value);
ll_err ll_events_flush(ll_events *e);
/* Writes what is left; call flush before it to hear whether that worked. */
void ll_events_close(ll_events *e);
