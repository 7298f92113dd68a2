/* inspect.h: parts of loopline inspect: --schedule, a pipeline before it runs, and --conv. */
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
/* Measures what the graph's convolutions can be made by (exec/choose.h), and prints what train.conv
 * fast takes under the options' limit, and what other limits cost. */
ll_err ll_inspect_conv(const ll_graph *g, const ll_lower_opts *opts);
