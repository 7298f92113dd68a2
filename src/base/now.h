/* now.h: the clock that everything is timed by. */
#pragma once
#include <time.h>

/* Seconds since some moment, the same for all processes of a machine; never set back. */
static inline double ll_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
