/* devices.c: NCCL wants a GPU for each rank; where some share one, collectives go through this
 * process's memory, as they do on other machines. */
#include "machine/devices.h"

#include "comm/transport.h"

#include <stdio.h>
#include <string.h>

/* Two ranks with the same GPU. */
static bool shared(const ll_devices *s, int *a, int *b)
{
    for (*a = 0; *a < s->n; ++*a)
        for (*b = *a + 1; *b < s->n; ++*b)
            if (!memcmp(s->of[*a].id, s->of[*b].id, sizeof s->of->id)) return true;
    return false;
}

static ll_err check_nccl(const ll_device_ask *ask, const char *library)
{
    CHECK(library, LL_E_DEVICE,
          "transport nccl: this build has no NCCL; install nccl.h and libnccl and configure again, "
          "or use host");
    CHECK(!ask->canonical, LL_E_ARG,
          "transport nccl sums in an order of its own, and canonical sums are asked for: use host, "
          "or exact sums, which have no order");
    CHECK(!ask->codec, LL_E_ARG,
          "transport nccl does not compress gradients: use host, or compress none");
    return LL_OK;
}

static ll_err check_mpi(const ll_device_ask *ask)
{
    CHECK(ask->mpi, LL_E_DEVICE,
          "transport mpi needs an MPI library that takes GPUs' memory, and this %s does not (Open "
          "MPI configured --with-cuda does; ompi_info tells): use host, or nccl",
          ll_transport_library());
    CHECK(!ask->codec, LL_E_ARG,
          "transport mpi does not compress gradients: use host, or compress none");
    CHECK(!ask->loose, LL_E_ARG,
          "transport mpi does not serve ranks that part (parallel.consistency): use host or auto");
    return LL_OK;
}

ll_err ll_devices_choose(const ll_device_ask *ask, const char *library, ll_devices *s)
{
    const char *how = ask->transport ? ask->transport : "auto";
    bool nccl = !strcmp(how, "nccl"), host = !strcmp(how, "host"), mpi = !strcmp(how, "mpi");
    int a, b;
    CHECK(nccl || host || mpi || !strcmp(how, "auto"), LL_E_ARG,
          "transport %s is not known: auto, nccl, mpi or host", how);
    if (nccl) TRY(check_nccl(ask, library));
    if (mpi) TRY(check_mpi(ask));
    bool crowded = shared(s, &a, &b);
    bool stand_in = nccl && !strcmp(library, LL_STAND_IN);
    CHECK(!nccl || !crowded || stand_in, LL_E_DEVICE,
          "transport nccl needs a GPU for each rank, and ranks %d and %d share %s: use host, or as "
          "many ranks on a node as it has GPUs",
          a, b, s->of[a].name);
    bool direct = !host && !mpi && library && !ask->canonical && !ask->codec &&
                  (nccl || !ask->pipe) && (!crowded || stand_in);
    s->link = mpi ? LL_BY_MPI : direct ? LL_BY_NCCL : LL_BY_HOST;
    char shared_one[64];
    snprintf(shared_one, sizeof shared_one, "ranks %d and %d share a GPU", a, b);
    const char *why = direct && stand_in ? "a stand-in for tests"
                      : direct           ? "every rank has a GPU of its own"
                      : host || mpi      ? "as asked for"
                      : !library         ? "this build has no NCCL"
                      : ask->codec       ? "NCCL does not compress gradients"
                      : ask->canonical   ? "NCCL does not sum in canonical order"
                      : ask->pipe ? "a pipeline's messages go by NCCL where that is asked for"
                                  : shared_one;
    snprintf(s->why, sizeof s->why, "%s%s: %s",
             direct ? library
             : mpi  ? ll_transport_library()
                    : "through pinned memory and MPI",
             mpi ? ", from GPU to GPU" : "", why);
    return LL_OK;
}
