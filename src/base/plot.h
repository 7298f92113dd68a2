/* plot.h: what pictures of curves have in common: axes with round ticks, a frame that follows the
 * viewer's light or dark theme, text. Values become pixels through an axis. */
#pragma once
#include "base/text.h"

typedef enum ll_ticks {
    LL_TICKS_PLAIN,   /* 0.5, 20k, 3M */
    LL_TICKS_PERCENT, /* 80% */
    LL_TICKS_POWER,   /* the axis has logarithms to base 10: 0.01, 100 */
    LL_TICKS_BYTES,   /* the axis has logarithms to base 2 of bytes: 4K, 16M */
    LL_TICKS_TIME     /* the axis has logarithms to base 10 of seconds: 10 us, 1 ms */
} ll_ticks;

typedef struct ll_plot_axis {
    double lo, hi;   /* values, or their logarithms */
    double step;     /* between ticks */
    double from, to; /* pixels of lo and hi */
    ll_ticks ticks;
} ll_plot_axis;

/* Where a value lies (not its logarithm), where a tick lies. */
double ll_plot_place(const ll_plot_axis *a, double v);
double ll_plot_pixel(const ll_plot_axis *a, double tick);
/* Moves both ends out to ticks. */
void ll_plot_round(ll_plot_axis *a, double lo, double hi);
/* The least of 1, 2, 5 times a power of ten that is not less than v. */
double ll_plot_step(double v);
/* Tick i, a multiple of the step with a zero that is exactly zero; false: there are no more. */
bool ll_plot_tick(const ll_plot_axis *a, int i, double *out);
void ll_plot_text(ll_buf *b, const ll_plot_axis *a, double tick);
/* The lines and numbers of an axis at the left and one at the bottom of a plot. */
void ll_plot_left(ll_buf *b, const ll_plot_axis *y, double left, double right, const char *name);
void ll_plot_bottom(ll_buf *b, const ll_plot_axis *x, double y, const char *name);

/* Everything up to the first curve: size, title for screen readers, colours (classes l1 to l8 for
 * lines, f1 to f8 for areas and words, soft, grid, base), background. Ends with ll_plot_end. */
void ll_plot_begin(ll_buf *b, int width, int height, const char *title);
/* The title and a line below it (NULL: none) as one sees them. */
void ll_plot_words(ll_buf *b, const char *title, const char *caption);
void ll_plot_end(ll_buf *b);
/* text with &, < and control characters made harmless, for an argument of printf. */
char *ll_plot_xml(ll_arena *a, const char *text);

/* A path: begin, points (the first after a gap moves), end. more: attributes, led by a space. */
void ll_plot_path(ll_buf *b, int color, double width, const char *more);
void ll_plot_point(ll_buf *b, bool *open, double x, double y);
void ll_plot_path_end(ll_buf *b);
