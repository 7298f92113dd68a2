/* transport_self.c: one rank alone, without MPI. A message to itself is a copy, made when both its
 * send and its receive have been posted. */
#include "comm/transport.h"

#include "base/types.h"

#include <stdlib.h>
#include <string.h>

typedef struct half {
    struct half *next;
    bool is_send, done;
    int tag;
    void *data;
    size_t bytes;
} half;

typedef struct self {
    ll_transport t;
    half *first; /* not yet matched, in the order posted */
} self;

static const int zero[] = {0};

/* The first half that fits, out of the list; NULL: none. */
static half *take(self *s, bool is_send, int tag)
{
    for (half **h = &s->first; *h; h = &(*h)->next)
        if ((*h)->is_send == is_send && (*h)->tag == tag) {
            half *found = *h;
            *h = found->next;
            return found;
        }
    return NULL;
}

static ll_err post(self *s, half new_half, ll_message *out)
{
    half *mine = (half *)malloc(sizeof *mine), *other = take(s, !new_half.is_send, new_half.tag);
    CHECK(mine, LL_E_MEM, "no memory for a message");
    *mine = new_half;
    *out = (ll_message){.handle = mine};
    if (!other) {
        half **end = &s->first;
        while (*end) end = &(*end)->next;
        *end = mine;
        return LL_OK;
    }
    half *from = mine->is_send ? mine : other, *to = mine->is_send ? other : mine;
    CHECK(from->bytes <= to->bytes, LL_E_COMM, "a message of %zu bytes to room for %zu",
          from->bytes, to->bytes);
    if (from->bytes) memcpy(to->data, from->data, from->bytes);
    to->bytes = from->bytes;
    mine->done = other->done = true;
    return LL_OK;
}

static ll_err self_send(ll_transport *t, const void *data, size_t bytes, int peer, int tag,
                        ll_message *out)
{
    LL_ASSERT(peer == 0);
    return post((self *)t,
                (half){.is_send = true, .tag = tag, .data = (void *)data, .bytes = bytes}, out);
}

static ll_err self_recv(ll_transport *t, void *data, size_t bytes, int peer, int tag,
                        ll_message *out)
{
    LL_ASSERT(peer == 0);
    return post((self *)t, (half){.tag = tag, .data = data, .bytes = bytes}, out);
}

static ll_err self_test(ll_transport *t, ll_message *m, bool *done)
{
    (void)t;
    half *h = (half *)m->handle;
    *done = h->done;
    if (!h->done) return LL_OK;
    m->bytes = h->is_send ? 0 : h->bytes;
    m->handle = NULL;
    free(h);
    return LL_OK;
}

/* Of one rank, every collective leaves the data as it is; an all-to-all copies it. */
static ll_err self_library(ll_transport *t, const ll_library_call *call, ll_message *out)
{
    (void)t;
    const ll_coll_spec *s = call->spec;
    int64_t n = s->matrix ? s->matrix[0] : s->count;
    if (s->coll == LL_COLL_ALLTOALL && n)
        memcpy(call->out, call->data, (size_t)n * ll_dtype_bytes(call->dtype));
    half *h = (half *)malloc(sizeof *h);
    CHECK(h, LL_E_MEM, "no memory for a message");
    *h = (half){.is_send = true, .done = true};
    *out = (ll_message){.handle = h};
    return LL_OK;
}

static ll_err self_split(ll_transport *t, int color, int key, ll_transport **out)
{
    (void)t, (void)key;
    *out = NULL;
    return color < 0 ? LL_OK : ll_transport_self(out);
}

static ll_err self_share(ll_transport *t, size_t bytes, ll_shm *out)
{
    (void)t;
    size_t room = (bytes + 4095) & ~(size_t)4095;
    char *data = (char *)aligned_alloc(4096, room ? room : 4096);
    char **part = (char **)malloc(sizeof *part);
    if (!data || !part) {
        free(data);
        free(part);
        FAIL(LL_E_MEM, "no memory for %zu bytes", bytes);
    }
    memset(data, 0, bytes);
    *part = data;
    *out = (ll_shm){.n_rank = 1, .ranks = zero, .part = part, .bytes = bytes};
    return LL_OK;
}

static void self_unshare(ll_transport *t, ll_shm *w)
{
    (void)t;
    if (w->part) free(w->part[0]);
    free(w->part);
    *w = (ll_shm){0};
}

static void self_close(ll_transport *t, bool failed)
{
    (void)failed;
    self *s = (self *)t;
    for (half *h = s->first, *next; h; h = next) {
        next = h->next;
        free(h);
    }
    free(s);
}

static const ll_transport_ops self_ops = {.name = "self",
                                          .send = self_send,
                                          .recv = self_recv,
                                          .test = self_test,
                                          .library = self_library,
                                          .split = self_split,
                                          .share = self_share,
                                          .unshare = self_unshare,
                                          .close = self_close};

ll_err ll_transport_self(ll_transport **out)
{
    self *s = (self *)calloc(1, sizeof *s);
    CHECK(s, LL_E_MEM, "no memory for a communicator");
    s->t = (ll_transport){
        .ops = &self_ops, .size = 1, .max_tag = 0x7fffffff, .node = zero, .world = zero};
    *out = &s->t;
    return LL_OK;
}
