/* trace.h: a Chrome trace of all ranks: one JSON file for chrome://tracing and ui.perfetto.dev. A
 * process for each rank, with rows for steps, instructions and collectives under way. */
#pragma once
#include "exec/session.h"

/* A pipeline's step as it was measured, in the picture that simulated ones have. */
typedef struct ll_timeline {
    const char *text, *svg; /* pictures */
    double bubble;
} ll_timeline;

typedef struct ll_tracer ll_tracer;

typedef struct ll_tracer_opts {
    const char *path;     /* of the trace; NULL: none is written */
    const char *timeline; /* a picture of a pipeline's last traced step, as SVG; NULL: none */
    const char *title;    /* what runs */
} ll_tracer_opts;

/* Collective; c NULL: alone. Rank 0 makes the files, now. s and the texts outlive the writing. */
ll_err ll_tracer_open(ll_comm *c, ll_session *s, const ll_tracer_opts *opts, ll_tracer **out);
void ll_tracer_close(ll_tracer *t); /* local */
LL_OWNED(ll_tracer, ll_tracer_close);
/* Collective. From here on, until it is written. */
ll_err ll_tracer_start(ll_tracer *t);
/* Local. What is done from here on is not of the trace. */
void ll_tracer_stop(ll_tracer *t);
/* Local. An interval of the row of steps, from then (CLOCK_MONOTONIC, s) until now, while tracing;
 * number < 0: none. */
void ll_tracer_note(ll_tracer *t, const char *name, int64_t number, double from);
/* Collective. Ends the tracing and writes the files; nothing is done where it has not started, or
 * was written before. */
ll_err ll_tracer_write(ll_tracer *t);
/* Local. The timeline, once it is written; NULL: there is none. */
const ll_timeline *ll_tracer_timeline(const ll_tracer *t);
