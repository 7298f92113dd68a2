/* inspect_pipe.h: loopline inspect --schedule: a pipeline before it runs. */
#pragma once
#include "exec/pipe.h"

typedef struct ll_pipe_view {
    const ll_graph *g; /* whole, of one micro-batch */
    const ll_mesh *mesh;
    const ll_pipe_plan *plan;
    const char *form; /* "text" or "csv": the schedule alone, as it is read back; NULL: all of it */
    const char *svg;  /* the picture goes to this file too; NULL: to none */
    bool goes_on;     /* parallel.post_validation */
    bool json;
} ll_pipe_view;

/* Prints stages, timeline, bubble, activations in flight, slack. Local. */
ll_err ll_inspect_pipe(const ll_pipe_view *v);
