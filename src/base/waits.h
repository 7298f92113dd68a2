/* waits.h: how long threads that could have worked had no core, for others had it. */
#pragma once
#include "base/own.h"

typedef struct ll_waits ll_waits;

/* Of the threads of an OpenMP region of so many, started from here: the first 16. NULL: the system
 * does not tell. */
ll_waits *ll_waits_open(int threads);
void ll_waits_close(ll_waits *w);
/* Seconds since the last call, of the thread that waited longest, less those that other threads of
 * this process worked, for which it may have waited. 0: not known (w may be NULL). */
double ll_waits_since(ll_waits *w);
/* The same call; of these seconds since the last one, those in which no thread waited: halfway
 * between what is left if all waited at the same time and if they did without regard to each other.
 * 0: not known, for one waited longer. */
double ll_waits_left(ll_waits *w, double seconds);
LL_OWNED(ll_waits, ll_waits_close);
