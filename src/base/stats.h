/* stats.h: numbers in order. */
#pragma once
#include "base/err.h"

#include <stdbool.h>

void ll_stats_sort(double *v, int64_t n); /* least first */
/* Of n sorted numbers, the one that a share of them lies below; between two, their mean. NaN: there
 * are none. */
double ll_quantile(const double *v, int64_t n, double share);
/* What measurements of one thing say that it takes, whatever held up one of them: the median, of
 * two the less. Sorts them. */
double ll_typical(double *v, int64_t n);
/* The same of rows of numbers that belong together: mean[i] of [1 + i] over the middle half of
 * them, by [0], which is all of a row; of three or more the largest is none of it. Sorts them. */
void ll_typical_row(double **rows, int n, int width, double *mean);

/* Were these seconds held up, of them so many that nothing could be done? */
static inline bool ll_is_held(double seconds, double held)
{
    return held > 0.05 * seconds;
}
/* What those of n times say that were not held up: their median, *own of them; NaN: fewer than
 * three, and not all. Sorts times, held with them. */
double ll_unheld(double *times, double *held, int64_t n, int64_t *own);
