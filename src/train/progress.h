/* progress.h: what a person sees while training. On a terminal one line is redrawn in place:
 *
 *     [##                ] 12% | 2m 13s left | step 120/938 | loss 0.5312 | norm 1.204 | ...
 *
 * elsewhere (a file, a pipe, a batch system's log) plain lines, the first, the last, and now and
 * then one between:
 *
 *     step 120/938 | loss 0.5312 | norm 1.204 | lr 1.0e-03 | 3.41 ms | 18.8k img/s | 212 MiB
 */
#pragma once
#include "base/err.h"
#include "base/own.h"

#include <stdio.h>

typedef struct ll_step_stats {
    int64_t step;          /* from 1 */
    double loss, norm, lr; /* norm and lr NaN, and a loss of no step that is: not shown */
    double step_s;         /* seconds a step takes */
    double rate;           /* units a second; 0: not shown */
    double peak;           /* of the machine's arithmetic, 0 to 1; 0: not shown */
    size_t bytes;          /* of memory; 0: not shown */
    bool apart;            /* loss and norm are of a part of the ranks: the loss is marked */
    const char *word;      /* what is counted; NULL: step */
} ll_step_stats;

typedef struct ll_progress_opts {
    int64_t first, total;  /* the step the run begins at (0: 1), and its last */
    const char *unit;      /* what rate counts: "img", "tok" */
    double every_s;        /* between plain lines; 0: 2 seconds */
    FILE *out;             /* NULL: standard error */
    bool plain;            /* plain lines on a terminal too */
    bool live;             /* a live line even where out is no terminal */
    int columns;           /* of the terminal; 0: ask it */
    double (*clock)(void); /* seconds; NULL: the system's steady clock */
} ll_progress_opts;

typedef struct ll_progress ll_progress;

ll_progress *ll_progress_new(const ll_progress_opts *opts);
/* After each step; mostly it prints nothing. */
void ll_progress_step(ll_progress *p, const ll_step_stats *s);
/* A line that stays: above the live one, or in order between the plain ones. */
void ll_progress_note(ll_progress *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Draws the last step where it was not, and ends the line. */
void ll_progress_free(ll_progress *p);
LL_OWNED(ll_progress, ll_progress_free);

/* The plain line without its end, cut between fields to columns; returns its length. */
#define LL_STEP_LINE 256
int ll_step_line(const ll_step_stats *s, int64_t total, const char *unit, int columns,
                 char line[LL_STEP_LINE]);
