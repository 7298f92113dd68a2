/* curve.h: a run's learning curve as one SVG picture: training loss, raw and smoothed, and what
 * validation found; the picture follows the viewer's light or dark theme. */
#pragma once
#include "base/arena.h"

typedef struct ll_points {
    double *x, *y; /* x ascending: steps */
    int n, room;   /* room: of a list that grows */
} ll_points;

typedef struct ll_curve {
    const char *title;
    const char *caption;  /* a line under the title; NULL: none */
    ll_points train_loss; /* those that are not finite leave a gap; any list may be empty */
    ll_points val_loss;
    ll_points val_accuracy; /* 0 to 1; drawn against an axis of its own */
} ll_curve;

/* The picture's text. One list of points gives one text, to the byte. */
const char *ll_curve_svg(ll_arena *a, const ll_curve *c);
/* The curve of a run folder, folder/curve.svg, from its metrics.jsonl. */
ll_err ll_curve_of_run(const char *folder, const char *title, const char *caption);
