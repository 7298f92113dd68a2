/* place_gpu.c: rank i of a node takes GPU i of it, around. NCCL wants a GPU for each rank; where
 * some share one, collectives go through this process's memory, as they do on other machines. */
#include "exec/place_gpu.h"

#include "dev/group.h"

#include <stdio.h>

/* Two ranks with the same GPU. */
static bool shared(const ll_gpu_seats *s, int *a, int *b)
{
    for (*a = 0; *a < s->n; ++*a)
        for (*b = *a + 1; *b < s->n; ++*b)
            if (!memcmp(s->of[*a].id, s->of[*b].id, sizeof s->of->id)) return true;
    return false;
}

ll_err ll_gpu_seats_choose(const ll_seats_ask *ask, const char *library, ll_gpu_seats *s)
{
    const char *how = ask->transport ? ask->transport : "auto";
    bool nccl = !strcmp(how, "nccl"), host = !strcmp(how, "host");
    int a, b;
    CHECK(nccl || host || !strcmp(how, "auto"), LL_E_ARG,
          "transport %s is not known: auto, nccl or host", how);
    CHECK(!nccl || library, LL_E_DEVICE,
          "transport nccl: this build has no NCCL; install nccl.h and libnccl and configure again, "
          "or use host");
    CHECK(!nccl || !ask->canonical, LL_E_ARG,
          "transport nccl sums in an order of its own, and canonical sums are asked for: use host, "
          "or exact sums, which have no order");
    CHECK(!nccl || !ask->codec, LL_E_ARG,
          "transport nccl does not compress gradients: use host, or compress none");
    bool crowded = shared(s, &a, &b);
    CHECK(!nccl || !crowded, LL_E_DEVICE,
          "transport nccl needs a GPU for each rank, and ranks %d and %d share %s: use host, or as "
          "many ranks on a node as it has GPUs",
          a, b, s->of[a].name);
    s->nccl = !host && library && !ask->canonical && !ask->codec && !crowded;
    char why[128];
    if (s->nccl)
        snprintf(why, sizeof why, "every rank has a GPU of its own");
    else if (host)
        snprintf(why, sizeof why, "as asked for");
    else if (!library)
        snprintf(why, sizeof why, "this build has no NCCL");
    else if (ask->canonical || ask->codec)
        snprintf(why, sizeof why, "NCCL does not %s",
                 ask->codec ? "compress gradients" : "sum in canonical order");
    else
        snprintf(why, sizeof why, "ranks %d and %d share a GPU", a, b);
    snprintf(s->why, sizeof s->why, "%s: %s", s->nccl ? library : "through pinned memory and MPI",
             why);
    return LL_OK;
}

static ll_err look(int index, ll_gpu_seat *out)
{
    ll_gpu *g;
    ll_gpu_facts f;
    TRY(ll_gpu_open(index, &g));
    ll_err rc = ll_gpu_ask(g, &f);
    ll_gpu_close(g);
    TRY(rc);
    out->index = index;
    memcpy(out->id, f.id, sizeof out->id);
    snprintf(out->name, sizeof out->name, "%.107s", f.name);
    return LL_OK;
}

int ll_gpu_seat_mine(const ll_comm *c)
{
    int me = c ? ll_comm_rank(c) : 0, before = 0, gpus = ll_gpu_count();
    const int *node = c ? ll_comm_nodes(c) : NULL;
    for (int r = 0; node && r < me; r++) before += node[r] == node[me];
    return gpus ? before % gpus : 0;
}

ll_err ll_gpu_seats_find(ll_comm *c, const ll_seats_ask *ask, ll_arena *arena, ll_gpu_seats *out)
{
    int n = c ? ll_comm_size(c) : 1, me = c ? ll_comm_rank(c) : 0;
    *out = (ll_gpu_seats){
        .of = LL_NEW_ARRAY(arena, ll_gpu_seat, n), .n = n, .mine = ll_gpu_seat_mine(c)};
    ll_err rc = look(out->mine, &out->of[me]);
    if (n == 1) return rc;
    TRY(ll_comm_agree(c, rc));
    TRY(ll_comm_allgather(c, out->of, n * (int64_t)sizeof *out->of, LL_U8, NULL));
    const char *library = NULL;
    bool host = ask->transport && !strcmp(ask->transport, "host");
    rc = host ? LL_OK : ll_gpu_group_library(&library);
    if (rc == LL_OK) rc = ll_gpu_seats_choose(ask, library, out);
    return ll_comm_agree(c, rc);
}
