/* bucket.c: tensors in buckets. A bucket holds neighbours of the list:
 *
 *     list      a 3 KB   b 2 KB   c 9 KB   d 1 KB      buckets of at most 8 KB
 *     buckets   [a b]             [c]      [d]
 *     ready     b: nothing.  c: nothing, for [a b] was not started.  a: starts [a b], then [c].
 *
 * Tensors that follow each other in memory on every rank are reduced where they are. Others are
 * packed as they become ready, while they are still in the caches, into memory that the ranks of a
 * node share, and unpacked by the wait. A codec's all-reduce does not run beside other work: it
 * is over when the bucket's last tensor is ready. */
#include "comm/bucket.h"

#include "base/crc32c.h"
#include "base/types.h"

#include <stdlib.h>
#include <string.h>

typedef struct bucket {
    int first, n; /* tensors */
    int64_t count;
    char *data; /* of the first tensor, or packed */
    bool packed;
    int missing; /* tensors not ready */
    bool done;   /* in this step */
    ll_request *request;
    ll_codec *codec;
    size_t scratch_bytes;
    char *scratch; /* of its all-reduce */
} bucket;

struct ll_buckets {
    ll_arena *arena;
    ll_comm *c;
    ll_buckets_opts opts;
    size_t elem_bytes;
    ll_bucket_tensor *tensors;
    int n_tensor;
    int *bucket_of; /* [n_tensor] */
    bool *ready;
    bucket *buckets;
    int n_bucket;
    int next;      /* to be started */
    int n_awaited; /* tensors, one by one */
    int64_t step;
    size_t packed_bytes, scratch_bytes;
    char *scratch; /* of all buckets: any of them may be under way */
};

/* ---- opening ---- */

static void divide(ll_buckets *b)
{
    int64_t room = (int64_t)(b->opts.bucket_bytes / b->elem_bytes);
    b->buckets = LL_NEW_ARRAY(b->arena, bucket, b->n_tensor + 1);
    b->bucket_of = LL_NEW_ARRAY(b->arena, int, b->n_tensor + 1);
    for (int i = 0; i < b->n_tensor; i++) {
        bucket *k = &b->buckets[b->n_bucket ? b->n_bucket - 1 : 0];
        bool full = k->count && b->tensors[i].n && k->count + b->tensors[i].n > room;
        if (!b->n_bucket || full) {
            k = &b->buckets[b->n_bucket++];
            k->first = i;
        }
        k->n++;
        k->count += b->tensors[i].n;
        b->bucket_of[i] = b->n_bucket - 1;
    }
    for (int i = 0; i < b->n_bucket; i++) b->buckets[i].missing = b->buckets[i].n;
}

static bool contiguous(const ll_buckets *b, const bucket *k)
{
    const ll_bucket_tensor *t = &b->tensors[k->first];
    for (int i = 0; i + 1 < k->n; i++)
        if ((char *)t[i].data + (size_t)t[i].n * b->elem_bytes != (char *)t[i + 1].data)
            return false;
    return true;
}

/* Do all ranks list the same? And what is packed on any rank is packed on all, for whether data is
 * shared memory decides over the algorithm. */
static ll_err compare(ll_buckets *b)
{
    uint32_t crc = 0;
    for (int i = 0; i < b->n_tensor; i++) {
        const ll_bucket_tensor *t = &b->tensors[i];
        crc = ll_crc32c(crc, &t->n, sizeof t->n);
        if (t->name) crc = ll_crc32c(crc, t->name, strlen(t->name));
    }
    const char *codec = b->opts.codec ? b->opts.codec : "";
    crc = ll_crc32c(crc, codec, strlen(codec));
    double mine[] = {(double)crc, b->n_tensor, b->opts.dtype, b->opts.op,
                     (double)b->opts.bucket_bytes};
    enum { N = sizeof mine / sizeof *mine };
    double both[2 * N];
    for (int i = 0; i < N; i++) {
        both[i] = mine[i];
        both[N + i] = -mine[i];
    }
    const ll_coll_opts o = {.site = "buckets"};
    TRY(ll_comm_allreduce(b->c, both, 2 * N, LL_F64, LL_REDUCE_MAX, &o));
    for (int i = 0; i < N; i++)
        CHECK(both[i] == -both[N + i], LL_E_COMM,
              "the ranks list different tensors for their buckets: %d here, of type %s",
              b->n_tensor, ll_dtype_name(b->opts.dtype));
    int32_t *packed = LL_NEW_ARRAY(b->arena, int32_t, b->n_bucket + 1);
    for (int i = 0; i < b->n_bucket; i++) packed[i] = !contiguous(b, &b->buckets[i]);
    TRY(ll_comm_allreduce(b->c, packed, b->n_bucket, LL_I32, LL_REDUCE_MAX, &o));
    for (int i = 0; i < b->n_bucket; i++) b->buckets[i].packed = packed[i];
    return LL_OK;
}

static ll_err find_room(ll_buckets *b)
{
    const size_t line = 64;
    size_t bytes = 0;
    for (int i = 0; i < b->n_bucket; i++)
        if (b->buckets[i].packed)
            bytes += ((size_t)b->buckets[i].count * b->elem_bytes + line - 1) / line * line;
    char *room = NULL;
    if (bytes) {
        void *data;
        TRY(ll_comm_alloc(b->c, bytes, &data));
        room = (char *)data;
    }
    b->packed_bytes = bytes;
    for (int i = 0; i < b->n_bucket; i++) {
        bucket *k = &b->buckets[i];
        k->data = k->packed ? room : (char *)b->tensors[k->first].data;
        if (k->packed) room += ((size_t)k->count * b->elem_bytes + line - 1) / line * line;
    }
    return LL_OK;
}

/* Several lists may be open: their codecs' random numbers are told apart by it. */
static const char *first_name(const ll_buckets *b, int bucket)
{
    const char *name = b->tensors[b->buckets[bucket].first].name;
    return name ? name : "";
}

static ll_err open_codecs(ll_buckets *b)
{
    if (!b->opts.codec || !strcmp(b->opts.codec, "none")) return LL_OK;
    CHECK(b->opts.dtype == LL_F32 && b->opts.op == LL_REDUCE_SUM, LL_E_ARG,
          "codec %s sums f32; these tensors are %s", b->opts.codec, ll_dtype_name(b->opts.dtype));
    for (int i = 0; i < b->n_bucket; i++)
        TRY(ll_codec_open(b->opts.codec,
                          ll_arena_printf(b->arena, "bucket %d %s", i, first_name(b, i)),
                          b->buckets[i].count, b->opts.seed, &b->buckets[i].codec));
    return LL_OK;
}

static const char *site_of(const ll_buckets *b, const bucket *k)
{
    const char *name = b->tensors[k->first].name;
    return name ? name : "bucket";
}

static ll_coll_call call_of(const ll_buckets *b, const bucket *k)
{
    return (ll_coll_call){.spec = {.coll = LL_COLL_ALLREDUCE, .count = k->count},
                          .data = k->data,
                          .dtype = b->opts.dtype,
                          .op = b->opts.op,
                          .site = site_of(b, k),
                          .scratch = k->scratch};
}

static ll_err find_scratch(ll_buckets *b)
{
    const size_t line = 64;
    for (int i = 0; i < b->n_bucket; i++) {
        bucket *k = &b->buckets[i];
        ll_coll_call call = call_of(b, k);
        if (!k->codec) TRY(ll_comm_scratch(b->c, &call, &k->scratch_bytes));
        b->scratch_bytes += (k->scratch_bytes + line - 1) / line * line;
    }
    if (!b->scratch_bytes) return LL_OK;
    char *at = b->scratch = (char *)aligned_alloc(line, b->scratch_bytes);
    CHECK(at, LL_E_MEM, "no memory for %zu bytes of scratch of buckets", b->scratch_bytes);
    ll_comm_hold(b->c, (int64_t)b->scratch_bytes);
    for (int i = 0; i < b->n_bucket; i++) {
        bucket *k = &b->buckets[i];
        k->scratch = k->scratch_bytes ? at : NULL;
        at += (k->scratch_bytes + line - 1) / line * line;
    }
    return LL_OK;
}

static ll_err open_own(ll_buckets *b)
{
    TRY(open_codecs(b));
    return find_scratch(b);
}

static ll_err open_buckets(ll_buckets *b)
{
    for (int i = 0; i < b->n_tensor; i++)
        CHECK(b->tensors[i].n >= 0, LL_E_ARG, "tensor %d (%s) has %lld elements", i,
              b->tensors[i].name ? b->tensors[i].name : "unnamed", (long long)b->tensors[i].n);
    divide(b);
    TRY(compare(b));
    TRY(find_room(b));
    return ll_comm_agree(b->c, open_own(b));
}

ll_err ll_buckets_open(ll_comm *c, const ll_bucket_tensor *tensors, int n,
                       const ll_buckets_opts *opts, ll_buckets **out)
{
    *out = NULL;
    ll_arena *arena = ll_arena_new();
    ll_buckets *b = LL_NEW(arena, ll_buckets);
    *b = (ll_buckets){.arena = arena, .c = c, .opts = *opts, .n_tensor = n};
    b->elem_bytes = ll_dtype_bytes(opts->dtype);
    b->tensors = (ll_bucket_tensor *)ll_arena_copy(arena, tensors, sizeof *tensors * (size_t)n);
    b->ready = LL_NEW_ARRAY(arena, bool, n + 1);
    if (!b->opts.bucket_bytes) b->opts.bucket_bytes = ll_choose_bucket_bytes(ll_comm_table(c));
    if (b->opts.codec) b->opts.codec = ll_arena_strdup(arena, b->opts.codec);
    ll_err rc = open_buckets(b);
    if (rc != LL_OK) {
        ll_buckets_close(b);
        return ll_frame(rc, __FILE__, __LINE__, __func__);
    }
    *out = b;
    return LL_OK;
}

void ll_buckets_close(ll_buckets *b)
{
    if (!b) return;
    for (int i = 0; i < b->n_bucket; i++) ll_codec_close(b->buckets[i].codec);
    if (b->scratch) ll_comm_hold(b->c, -(int64_t)b->scratch_bytes);
    free(b->scratch);
    ll_arena_free(b->arena);
}

/* ---- a step ---- */

/* Tensors of a bucket to or from where they are packed; tensor < 0: all of them. */
static void move_tensors(const ll_buckets *b, const bucket *k, int tensor, bool pack)
{
    char *at = k->data;
    for (int i = k->first; i < k->first + k->n; i++) {
        size_t bytes = (size_t)b->tensors[i].n * b->elem_bytes;
        if (bytes && (tensor < 0 || tensor == i))
            memcpy(pack ? at : (char *)b->tensors[i].data, pack ? (char *)b->tensors[i].data : at,
                   bytes);
        at += bytes;
    }
}

static ll_err start(ll_buckets *b, bucket *k)
{
    if (k->codec)
        return ll_codec_allreduce(k->codec, b->c, (float *)(void *)k->data, b->step, site_of(b, k));
    ll_coll_call call = call_of(b, k);
    return ll_comm_start(b->c, &call, &k->request);
}

ll_err ll_buckets_ready(ll_buckets *b, int tensor)
{
    CHECK(tensor >= 0 && tensor < b->n_tensor, LL_E_ARG, "tensor %d of %d", tensor, b->n_tensor);
    CHECK(!b->ready[tensor], LL_E_ARG, "tensor %d (%s) was ready before", tensor,
          b->tensors[tensor].name ? b->tensors[tensor].name : "unnamed");
    b->ready[tensor] = true;
    bucket *k = &b->buckets[b->bucket_of[tensor]];
    if (k->packed) move_tensors(b, k, tensor, true);
    k->missing--;
    while (b->next < b->n_bucket && b->buckets[b->next].missing == 0)
        TRY(start(b, &b->buckets[b->next++]));
    return ll_comm_poll(b->c);
}

static ll_err finish(ll_buckets *b, bucket *k)
{
    if (k->done) return LL_OK;
    ll_request *r = k->request;
    k->request = NULL;
    if (r) TRY(ll_comm_wait(r));
    if (k->packed) move_tensors(b, k, -1, false);
    k->done = true;
    return LL_OK;
}

static void begin_step(ll_buckets *b)
{
    for (int i = 0; i < b->n_bucket; i++) {
        b->buckets[i].missing = b->buckets[i].n;
        b->buckets[i].done = false;
    }
    memset(b->ready, 0, sizeof *b->ready * (size_t)b->n_tensor);
    b->next = b->n_awaited = 0;
    b->step++;
}

ll_err ll_buckets_wait_for(ll_buckets *b, int tensor)
{
    CHECK(tensor >= 0 && tensor < b->n_tensor, LL_E_ARG, "tensor %d of %d", tensor, b->n_tensor);
    int k = b->bucket_of[tensor];
    CHECK(k < b->next, LL_E_ARG, "tensor %d (%s) is awaited, and its bucket was not started",
          tensor, b->tensors[tensor].name ? b->tensors[tensor].name : "unnamed");
    TRY(finish(b, &b->buckets[k]));
    if (++b->n_awaited == b->n_tensor) begin_step(b);
    return LL_OK;
}

ll_err ll_buckets_wait(ll_buckets *b)
{
    for (int i = 0; i < b->n_tensor; i++)
        CHECK(b->ready[i], LL_E_ARG, "tensor %d (%s) is not ready, and its bucket is awaited", i,
              b->tensors[i].name ? b->tensors[i].name : "unnamed");
    for (int i = 0; i < b->n_bucket; i++) TRY(finish(b, &b->buckets[i]));
    begin_step(b);
    return LL_OK;
}

void ll_buckets_set_step(ll_buckets *b, int64_t step)
{
    b->step = step;
}

size_t ll_buckets_bytes(const ll_buckets *b)
{
    return b->packed_bytes + b->scratch_bytes;
}

int ll_buckets_count(const ll_buckets *b)
{
    return b->n_bucket;
}

ll_codec *ll_buckets_codec(ll_buckets *b, int i)
{
    return i >= 0 && i < b->n_bucket ? b->buckets[i].codec : NULL;
}

float *ll_buckets_residual(ll_buckets *b, int tensor)
{
    const bucket *k = &b->buckets[b->bucket_of[tensor]];
    float *all = k->codec ? ll_codec_residual(k->codec) : NULL;
    for (int i = k->first; all && i < tensor; i++) all += b->tensors[i].n;
    return all;
}

void ll_buckets_sent(ll_buckets *b, int64_t *bytes, int64_t *dense_bytes)
{
    *bytes = *dense_bytes = 0;
    for (int i = 0; i < b->n_bucket; i++) {
        if (!b->buckets[i].codec) continue;
        ll_codec_report r = ll_codec_last(b->buckets[i].codec);
        *bytes += r.bytes;
        *dense_bytes += r.dense_bytes;
    }
}
