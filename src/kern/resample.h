/* resample.h: a row of resample's matrix: which pixels of the image output o takes, and how much.
 * But for REVERSE, neither end of a row's pixels ever moves back as o grows; so the rows that have
 * pixel i are neighbours, and the first of them is found by halving. */
#pragma once
#include "kern/attr.h"
#include "kern/both.h"

#include <math.h>

typedef struct ll_taps {
    int64_t from, n; /* pixels from .. from+n-1; more than 4: each 1/n */
    double w[4];
} ll_taps;

LL_BOTH static inline double ll_tap(const ll_taps *t, int64_t k)
{
    return t->n > 4 ? 1 / (double)t->n : t->w[k];
}

LL_BOTH static inline double ll_between(double x, double lo, double hi)
{
    return x > lo ? x < hi ? x : hi : lo; /* no number: lo */
}

/* Four pixels around i + f; those outside of the image are its edge. */
LL_BOTH static inline void ll_taps_cubic(ll_taps *t, int64_t i, double f, double a, int64_t last)
{
    double w[4], d[4] = {1 + f, f, 1 - f, 2 - f};
    for (int k = 0; k < 4; k++)
        w[k] = k == 1 || k == 2 ? ((a + 2) * d[k] - (a + 3)) * d[k] * d[k] + 1
                                : ((a * d[k] - 5 * a) * d[k] + 8 * a) * d[k] - 4 * a;
    int64_t from = i - 1 < 0 ? 0 : i - 1 > last ? last : i - 1;
    int64_t to = i + 2 < 0 ? 0 : i + 2 > last ? last : i + 2;
    t->from = from;
    t->n = to - from + 1;
    for (int k = 0; k < 4; k++) {
        int64_t at = i - 1 + k < from ? from : i - 1 + k > to ? to : i - 1 + k;
        t->w[at - from] += w[k];
    }
}

LL_BOTH static inline ll_taps ll_taps_of(const ll_resample_attr *a, int64_t o)
{
    ll_taps t = {0, 1, {1, 0, 0, 0}};
    int64_t last = a->image - 1;
    double x = ((double)o + a->pre) * a->num / a->den + a->shift;
    double in = ll_between(x, 0, (double)last);
    switch (a->kind) {
    case LL_TAKE_FLOOR: t.from = (int64_t)in; break;
    case LL_TAKE_CEIL: t.from = (int64_t)ceil(in); break;
    case LL_TAKE_LINEAR:
        t.from = (int64_t)in;
        t.n = t.from < last ? 2 : 1;
        t.w[1] = in - (double)t.from;
        t.w[0] = 1 - t.w[1];
        break;
    case LL_TAKE_CUBIC:
        x = ll_between(x, -3, (double)last + 3);
        t.w[0] = 0;
        ll_taps_cubic(&t, (int64_t)floor(x), x - floor(x), a->cubic, last);
        break;
    case LL_TAKE_AREA:
        t.from = o * a->image / a->out;
        t.n = ((o + 1) * a->image + a->out - 1) / a->out - t.from;
        for (int k = 0; k < 4; k++) t.w[k] = 1 / (double)t.n;
        break;
    case LL_TAKE_REVERSE: t.from = last - o; break;
    }
    return t;
}

/* The first of outputs [o, to) whose last pixel (all: whose first) is i or one behind it; to: none.
 */
LL_BOTH static inline int64_t ll_taps_first(const ll_resample_attr *a, int64_t i, int64_t o,
                                            int64_t to, bool all)
{
    while (o < to) {
        int64_t mid = o + (to - o) / 2;
        ll_taps t = ll_taps_of(a, mid);
        if (t.from + (all ? 0 : t.n - 1) >= i)
            to = mid;
        else
            o = mid + 1;
    }
    return o;
}
