/* open.c: communicators as loopline.h opens them: tuned as their options say. */
#include "loopline_mpi.h"
#include "tune/tune.h"

/* A communicator that was made so. */
static ll_err tune(ll_err rc, ll_comm **c)
{
    const ll_tuned_table *table;
    if (rc || !*c) return rc;
    if (ll_comm_options(*c)->tune == LL_TUNE_TABLE) rc = ll_tune_read(*c, &table);
    if (ll_comm_options(*c)->tune == LL_TUNE_MEASURE) rc = ll_tune(*c, NULL, &table);
    if (!rc) return LL_OK;
    ll_comm_abandon(*c);
    *c = NULL;
    return rc;
}

ll_err ll_comm_open(const ll_comm_opts *opts, ll_comm **out)
{
    return tune(ll_comm_open_untuned(NULL, opts, out), out);
}

ll_err ll_comm_from_mpi(MPI_Comm comm, const ll_comm_opts *opts, ll_comm **out)
{
    return tune(ll_comm_open_untuned(&comm, opts, out), out);
}

ll_err ll_comm_from_fortran(MPI_Fint comm, const ll_comm_opts *opts, ll_comm **out)
{
    return ll_comm_from_mpi(MPI_Comm_f2c(comm), opts, out);
}

ll_err ll_comm_split(ll_comm *c, int color, int key, ll_comm **out)
{
    return tune(ll_comm_split_untuned(c, color, key, out), out);
}
