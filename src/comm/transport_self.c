/* transport_self.c: one rank alone, without MPI: it has nobody to send to. */
#include "comm/transport.h"

#include "base/types.h"

#include <stdlib.h>
#include <string.h>

static const int zero[] = {0};

static ll_err self_post(ll_transport *, bool, void *, size_t, int peer, int, ll_message *)
{
    FAIL(LL_E_COMM, "a message to rank %d of 1", peer);
}

static ll_err self_test(ll_transport *, ll_message *, bool *done)
{
    *done = true;
    return LL_OK;
}

static bool self_cancel(ll_transport *, ll_message *)
{
    return true;
}

/* Of one rank, every collective leaves the data as it is; an all-to-all copies it. */
static ll_err self_library(ll_transport *, const ll_library_call *call, ll_message *out)
{
    const ll_coll_spec *s = call->spec;
    int64_t n = s->matrix ? s->matrix[0] : s->count;
    if (s->coll == LL_COLL_ALLTOALL && n)
        memcpy(call->out, call->data, (size_t)n * ll_dtype_bytes(call->dtype));
    *out = (ll_message){0};
    return LL_OK;
}

static ll_err self_split(ll_transport *, int color, int, ll_transport **out)
{
    *out = NULL;
    return color < 0 ? LL_OK : ll_transport_self(out);
}

static ll_err self_share(ll_transport *, size_t bytes, ll_shm *out)
{
    size_t room = (bytes + 4095) & ~(size_t)4095;
    char *data = (char *)aligned_alloc(4096, room ? room : 4096);
    char **part = (char **)malloc(sizeof *part);
    if (!data || !part) {
        free(data);
        free(part);
        FAIL(LL_E_MEM, "not enough memory for %zu bytes", bytes);
    }
    memset(data, 0, bytes);
    *part = data;
    *out = (ll_shm){.n_rank = 1, .ranks = zero, .part = part, .bytes = bytes};
    return LL_OK;
}

static void self_unshare(ll_transport *, ll_shm *w)
{
    if (w->part) free(w->part[0]);
    free(w->part);
    *w = (ll_shm){0};
}

static void self_close(ll_transport *t, bool)
{
    free(t);
}

static const ll_transport_ops self_ops = {.name = "self",
                                          .post = self_post,
                                          .test = self_test,
                                          .cancel = self_cancel,
                                          .library = self_library,
                                          .split = self_split,
                                          .share = self_share,
                                          .unshare = self_unshare,
                                          .close = self_close};

ll_err ll_transport_self(ll_transport **out)
{
    *out = (ll_transport *)malloc(sizeof **out);
    CHECK(*out, LL_E_MEM, "not enough memory for a communicator");
    **out = (ll_transport){
        .ops = &self_ops, .size = 1, .max_tag = 0x7fffffff, .node = zero, .world = zero};
    return LL_OK;
}
