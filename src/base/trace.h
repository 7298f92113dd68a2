/* trace.h: what a process did when: intervals, kept in memory while something is traced. Whoever
 * can be traced holds a pointer that is NULL where nothing is; a test of it is all that it costs.
 * train/trace.h makes a file of the traces of all ranks. */
#pragma once
#include "base/err.h"
#include "base/now.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ll_trace_row {
    LL_TRACE_STEP,    /* steps, and their parts */
    LL_TRACE_PIPE,    /* of a pipeline: actions, times that a rank is idle, the update */
    LL_TRACE_COMPUTE, /* instructions, and waits inside of them */
    LL_TRACE_DEVICE,  /* kernels, by the own clock of what they run on */
    LL_TRACE_COMM,    /* collectives under way: several at once */
    LL_TRACE_ROWS
} ll_trace_row;

/* Texts must live until the trace is written; NULL: none. */
typedef struct ll_trace_event {
    ll_trace_row row;
    const char *name, *kind; /* fc1.weight, all-reduce */
    const char *algorithm, *peers;
    int64_t bytes, number; /* < 0: none */
    double from, to;       /* s, of ll_now */
    double waited;         /* s of them, of an action */
} ll_trace_event;

typedef struct ll_trace ll_trace;

ll_err ll_trace_open(ll_trace **out);
void ll_trace_close(ll_trace *t);
/* From any thread. Where there is no memory for more the event is dropped, and counted. */
void ll_trace_add(ll_trace *t, const ll_trace_event *e);
const ll_trace_event *ll_trace_events(const ll_trace *t, int64_t *n, int64_t *dropped);
