/* ranks.c: small agreements between the ranks of a run. */
#include "run/ranks.h"

#include "sched/nodes.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

ll_err ll_run_mesh(const ll_run *r, int size, char out[LL_MESH_TEXT])
{
    ll_mesh m;
    const char *text = r->parallel.mesh;
    int replicas = (int)r->parallel.replicas;
    CHECK(size % replicas == 0, LL_E_SHARD,
          "%d rank%s cannot be divided into %d equal replicas: use -n with a multiple of %d", size,
          size > 1 ? "s" : "", replicas, replicas);
    size /= replicas;
    snprintf(out, LL_MESH_TEXT, "data=%d", size);
    TRY(ll_mesh_parse(*text ? text : out, &m));
    CHECK(replicas == 1 || m.n_rank == size, LL_E_SHARD,
          "mesh \"%s\" needs %d rank%s, but each of the %d replicas has %d: use -n %d, or another "
          "mesh",
          text, m.n_rank, m.n_rank > 1 ? "s" : "", replicas, size, m.n_rank * replicas);
    CHECK(size > 1 || m.n_rank == 1, LL_E_SHARD,
          "mesh \"%s\" needs %d ranks, but there is one: use -n %d, or --mesh \"\"", text, m.n_rank,
          m.n_rank);
    TRY(ll_mesh_fits(&m, size));
    int data = ll_mesh_axis(&m, LL_AXIS_DATA), n = 0;
    bool merge = replicas > 1 && !ll_run_loose(r); /* synchronous ones are ranks of axis data */
    if (merge && data >= 0) m.size[data] *= replicas;
    if (merge && data < 0) n = snprintf(out, LL_MESH_TEXT, m.n ? "data=%d," : "data=%d", replicas);
    char rest[LL_MESH_TEXT];
    snprintf(out + n, LL_MESH_TEXT - (size_t)n, "%s", ll_mesh_text(&m, rest));
    return LL_OK;
}

ll_comm_opts ll_run_comm(const ll_run *r)
{
    return (ll_comm_opts){.timeout_s = r->parallel.timeout,
                          .canonical = r->parallel.canonical,
                          .thread = ll_run_loose(r) && ll_consistency_served(&r->parallel.between),
                          .tune = r->parallel.tune ? LL_TUNE_MEASURE : LL_TUNE_TABLE};
}

int ll_ranks_nodes(const ll_comm *c)
{
    return ll_nodes_count(&(ll_coll_spec){.size = ll_comm_size(c), .node = ll_comm_nodes(c)});
}

ll_err ll_ranks_same(ll_comm *c, int64_t v, const char *what)
{
    int64_t first = v;
    TRY(ll_ranks_share(c, &first, sizeof first));
    ll_err rc = LL_OK;
    if (v != first)
        rc = RAISE(LL_E_CONFIG,
                   "%s differs between this rank and rank 0: give every rank the same files", what);
    return ll_ranks_agree(c, rc);
}

/* Network file systems may take a moment. */
static ll_err see(const char *path, size_t bytes)
{
    enum { TRIES = 20 };
    struct stat st;
    for (int i = 0; i < TRIES; i++) {
        if (stat(path, &st) == 0 && (size_t)st.st_size == bytes) {
            CHECK(access(path, W_OK) == 0, LL_E_IO, "%s: %m", path);
            return LL_OK;
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    FAIL(LL_E_IO,
         "%s, written by rank 0, is not visible on this rank: put the run's folder on storage that "
         "all nodes share",
         path);
}

ll_err ll_ranks_see(ll_comm *c, const char *path, size_t bytes)
{
    return ll_ranks_agree(c, ll_ranks_lead(c) ? LL_OK : see(path, bytes));
}

ll_err ll_ranks_xor(ll_comm *c, uint32_t *v, int n)
{
    if (!c || !n) return LL_OK;
    int size = ll_comm_size(c);
    LL_OWN(ll_arena) a = ll_arena_new();
    uint32_t *all = LL_NEW_ARRAY(a, uint32_t, (int64_t)size * n);
    memcpy(all + (int64_t)ll_comm_rank(c) * n, v, sizeof *v * (size_t)n);
    TRY(ll_comm_allgather(c, all, (int64_t)size * n, LL_I32, NULL));
    memset(v, 0, sizeof *v * (size_t)n);
    for (int64_t i = 0; i < (int64_t)size * n; i++) v[i % n] ^= all[i];
    return LL_OK;
}
