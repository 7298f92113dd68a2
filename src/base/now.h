/* now.h: the clock that everything is timed by, and others. */
#pragma once
#include <time.h>

/* Seconds on a clock (CLOCK_REALTIME); NaN: there is no such clock. */
static inline double ll_clock(clockid_t clock)
{
    struct timespec t;
    return clock_gettime(clock, &t) ? __builtin_nan("")
                                    : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds since some moment, the same for all processes of a machine; never set back. */
static inline double ll_now(void)
{
    return ll_clock(CLOCK_MONOTONIC);
}
