/* stats.c: numbers in order. */
#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void ll_stats_sort(double *v, int64_t n)
{
    if (n > 0) qsort(v, (size_t)n, sizeof *v, by_value);
}

double ll_quantile(const double *v, int64_t n, double share)
{
    double at = share * (double)(n - 1);
    int64_t i = (int64_t)at;
    if (n < 1) return NAN;
    return i + 1 < n ? v[i] + (at - (double)i) * (v[i + 1] - v[i]) : v[n - 1];
}
