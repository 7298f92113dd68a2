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

double ll_typical(double *v, int64_t n)
{
    ll_stats_sort(v, n);
    return n == 2 ? v[0] : ll_quantile(v, n, 0.5);
}

double ll_unheld(double *times, double *held, int64_t n, int64_t *own)
{
    *own = 0;
    for (int64_t i = 0; i < n; i++) {
        double t = times[i], h = held[i];
        if (ll_is_held(t, h)) continue;
        times[i] = times[*own], held[i] = held[*own];
        times[*own] = t, held[(*own)++] = h;
    }
    ll_stats_sort(times, *own);
    return *own < 3 && *own < n ? NAN : ll_quantile(times, *own, 0.5);
}

static int by_first(const void *a, const void *b)
{
    return by_value(*(const double *const *)a, *(const double *const *)b);
}

void ll_typical_row(double **rows, int n, int width, double *mean)
{
    int cut = n > 2 ? (n + 3) / 4 : 0, from = cut, to = n - cut;
    qsort(rows, (size_t)n, sizeof *rows, by_first);
    for (int i = 0; i < width; i++) {
        mean[i] = 0;
        for (int k = from; k < to; k++) mean[i] += rows[k][i + 1] / (to - from);
    }
}
