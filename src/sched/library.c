/* library.c: the MPI library's own collective, as one step, to be measured beside ours and chosen
 * where it is faster. What it does inside is its own affair: no messages are counted, no cost is
 * known before it is measured, and no order of summation is promised. */
#include "sched/emit.h"

static void emit(ll_steps *e, const ll_coll_spec *, int)
{
    ll_emit_library(e);
}

#define LIBRARY(which, call)                                                                       \
    {                                                                                              \
        .name = "mpi", .coll = LL_COLL_##which, .help = "the MPI library's " call,                 \
        .library = true, .emit = emit                                                              \
    }

const ll_algo ll_algos_library[] = {LIBRARY(ALLREDUCE, "MPI_Allreduce"),
                                    LIBRARY(REDUCE_SCATTER, "MPI_Reduce_scatter"),
                                    LIBRARY(ALLGATHER, "MPI_Allgatherv"),
                                    LIBRARY(ALLTOALL, "MPI_Alltoallv"),
                                    LIBRARY(BROADCAST, "MPI_Bcast"),
                                    LIBRARY(BARRIER, "MPI_Barrier"),
                                    {0}};
