/* stats.h: numbers in order. */
#pragma once
#include "base/err.h"

void ll_stats_sort(double *v, int64_t n); /* least first */
/* Of n sorted numbers, the one that a share of them lies below; between two, their mean. NaN: there
 * are none. */
double ll_quantile(const double *v, int64_t n, double share);
