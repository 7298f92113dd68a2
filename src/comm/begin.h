/* begin.h: no rank waits for ever for one that does not come. Until the ranks watch each other
 * (watch.h), which takes their messages, a thread of each process looks at the clock. */
#pragma once
#include "base/err.h"

typedef struct ll_begin ll_begin;

/* Local. Unless ll_begin_over comes within the time (seconds, but at least LL_BEGIN_SECONDS unless
 * exactly is set) the process says that it waited in what ("MPI_Init") for the others, and ends.
 * Nothing else can be done there: MPI does not come back. NULL where no thread could be started;
 * what must stay until the end. */
#define LL_BEGIN_SECONDS 30 /* processes start apart */
typedef struct ll_begin_opts {
    double seconds;
    bool exactly;
    const char *what, *library; /* library: of MPI, "Open MPI 4.1.4" */
} ll_begin_opts;
ll_begin *ll_begin_guard(const ll_begin_opts *opts);
void ll_begin_over(ll_begin *b);
