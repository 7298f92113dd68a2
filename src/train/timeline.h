/* timeline.h: a pipeline's step as it was measured, in the picture that simulated ones have. */
#pragma once
#include "exec/session.h"

/* What one rank did: by a clock that all have in common, in s. */
typedef struct ll_timeline_part {
    double *start, *end, *waited; /* [n_action] */
    ll_interval update;
} ll_timeline_part;

typedef struct ll_timeline {
    const char *text, *svg; /* pictures */
    double bubble;
} ll_timeline;

/* Local. Of a trace: the last step of this rank's actions; false: it has none. */
bool ll_timeline_read(const ll_trace *trace, const ll_session *s, ll_arena *arena,
                      ll_timeline_part *out);
/* Collective, c and s as they are in ll_tracer_open. Draws the ranks along axis pipe that have
 * coordinate 0 on all others. name: what is drawn; all lives in the arena. */
ll_err ll_timeline_draw(ll_comm *c, const ll_session *s, const ll_timeline_part *mine,
                        const char *name, ll_arena *arena, ll_timeline *out);
