/* ranks.h: what training says to the other ranks of a run, besides what its programs do. Each is
 * collective; c NULL: this process is alone, and nothing is done. */
#pragma once
#include "comm/comm.h"
#include "mesh/mesh.h"
#include "run/run.h"

/* The mesh that a run on so many ranks is cut over, as text. Local. Fails where the run's mesh is
 * not of so many. */
ll_err ll_run_mesh(const ll_run *r, int size, char out[LL_MESH_TEXT]);

/* How a run's communicator is to be opened. Local. */
ll_comm_opts ll_run_comm(const ll_run *r);

int ll_ranks_nodes(const ll_comm *c); /* Local. How many nodes they are on. */
/* Local. Does this one print, and write to the run folder? */
static inline bool ll_ranks_lead(const ll_comm *c)
{
    return !c || ll_comm_rank(c) == 0;
}
static inline ll_err ll_ranks_agree(ll_comm *c, ll_err mine)
{
    return c ? ll_comm_agree(c, mine) : mine;
}
/* Rank 0's. */
static inline ll_err ll_ranks_share(ll_comm *c, void *data, size_t bytes)
{
    return c ? ll_comm_broadcast(c, data, (int64_t)bytes, LL_U8, 0, NULL) : LL_OK;
}
/* Fails on all ranks where one's v is not rank 0's; what: "the run file". */
ll_err ll_ranks_same(ll_comm *c, int64_t v, const char *what);
/* Fails on all ranks where one does not see, of so many bytes, or may not write, the file that rank
 * 0 has written: folders must be shared. */
ll_err ll_ranks_see(ll_comm *c, const char *path, size_t bytes);
ll_err ll_ranks_xor(ll_comm *c, uint32_t *v, int n);
static inline ll_err ll_ranks_max(ll_comm *c, double *v)
{
    return c ? ll_comm_allreduce(c, v, 1, LL_F64, LL_REDUCE_MAX, NULL) : LL_OK;
}
static inline ll_err ll_ranks_sum(ll_comm *c, double *v)
{
    return c ? ll_comm_allreduce(c, v, 1, LL_F64, LL_REDUCE_SUM, NULL) : LL_OK;
}
