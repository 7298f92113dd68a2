/* loopline_mpi.h: for programs that use MPI themselves and host Loopline. Includes mpi.h: compile
 * with the MPI that libloopline was built with.
 *
 *     MPI_Init(NULL, NULL);
 *     ll_comm *c = NULL;
 *     ll_err rc = ll_comm_from_mpi(MPI_COMM_WORLD, NULL, &c);
 *     if (rc == LL_OK) printf("rank %d\n", ll_comm_rank(c));
 *     ll_comm_close(c);
 *     MPI_Finalize(); */
#pragma once
#include "loopline.h"

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collective over comm, which is duplicated: messages of the program and of Loopline never meet.
 * MPI must have been initialised, and be finalised by the program after ll_comm_close. For
 * ll_comm_opts.thread it needs MPI_THREAD_SERIALIZED, or MPI_THREAD_MULTIPLE where the program
 * calls MPI while a collective that it started here is under way. LL_E_ARG, LL_E_COMM, LL_E_SYS. */
LL_API ll_err ll_comm_from_mpi(MPI_Comm comm, const ll_comm_opts *opts, ll_comm **out);
/* The same for a Fortran communicator handle. */
LL_API ll_err ll_comm_from_fortran(MPI_Fint comm, const ll_comm_opts *opts, ll_comm **out);

#ifdef __cplusplus
}
#endif
