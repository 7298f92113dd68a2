/* transport_mpi_window.c: memory that other ranks come to by MPI's one-sided calls. */
#include "comm/transport_mpi.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 30 }; /* bytes of one call: MPI counts in int */

ll_err ll_mpi_expose(ll_transport *t, size_t bytes, void **window)
{
    const mpi_transport *m = (const mpi_transport *)t;
    MPI_Win *win = (MPI_Win *)malloc(sizeof *win);
    void *mine;
    CHECK(win, LL_E_MEM, "not enough memory for a window");
    *window = win;
    *win = MPI_WIN_NULL;
    int rc = MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, m->comm, &mine, win);
    CHECK(rc == MPI_SUCCESS, LL_E_COMM,
          "MPI cannot create a window for one-sided calls between these nodes; Open MPI may need "
          "OMPI_MCA_osc=^ucx in the environment of every rank (Debian's lacks the one for TCP)");
    MPI_TRY(MPI_Win_set_errhandler(*win, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, t->rank, 0, *win));
    memset(mine, 0, bytes);
    MPI_TRY(MPI_Win_unlock(t->rank, *win));
    MPI_TRY(MPI_Barrier(m->comm));
    return LL_OK;
}

void ll_mpi_conceal(ll_transport *, void *window)
{
    MPI_Win *win = (MPI_Win *)window;
    if (win && *win != MPI_WIN_NULL) MPI_Win_free(win);
    free(win);
}

ll_err ll_mpi_reach(ll_transport *, void *window, int rank, bool alone)
{
    MPI_TRY(MPI_Win_lock(alone ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, rank, 0,
                         *(const MPI_Win *)window));
    return LL_OK;
}

ll_err ll_mpi_leave(ll_transport *, void *window, int rank)
{
    MPI_TRY(MPI_Win_unlock(rank, *(const MPI_Win *)window));
    return LL_OK;
}

ll_err ll_mpi_move(ll_transport *, void *window, int rank, size_t at, const char *from, char *to,
                   size_t bytes)
{
    MPI_Win win = *(const MPI_Win *)window;
    for (size_t i = 0; i < bytes; i += PIECE) {
        int n = bytes - i < PIECE ? (int)(bytes - i) : PIECE, m = n / (int)sizeof(float);
        MPI_Aint there = (MPI_Aint)(at + i);
        if (!from)
            MPI_TRY(MPI_Get(to + i, n, MPI_BYTE, rank, there, n, MPI_BYTE, win));
        else if (!to)
            MPI_TRY(MPI_Put(from + i, n, MPI_BYTE, rank, there, n, MPI_BYTE, win));
        else
            MPI_TRY(MPI_Get_accumulate(from + i, m, MPI_FLOAT, to + i, m, MPI_FLOAT, rank, there, m,
                                       MPI_FLOAT, MPI_SUM, win));
    }
    MPI_TRY(MPI_Win_flush(rank, win));
    return LL_OK;
}

void ll_mpi_serve(ll_transport *t)
{
    int found;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ((const mpi_transport *)t)->comm, &found,
               MPI_STATUS_IGNORE);
}
