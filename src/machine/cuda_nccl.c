/* cuda_nccl.c: collectives of a program between GPUs, by NCCL, in a stream beside the kernels'.
 *
 *     compute   kernels ... | start: pack, event | more kernels ...   | wait | unpack, kernels
 *     comm                                      all-reduce (NCCL) | event ^
 *
 * Plans are those of team/transfer.c; what is packed there by this process is copied here in rows
 * by the GPU. Parts of uneven size are reductions to, or broadcasts from, each member. Sums of a
 * bundle are one group, each where its result lies.
 *
 * Messages between stages wait for nothing but each other: a channel (ll_message_attr) from one
 * rank to another is a group of the two with a stream of its own, in which both have queued the
 * same messages in the same order. A send is then over when the other side has come to its
 * receive, and holds up nothing else: what sched/pipeline_check.c has proved.
 *
 * No rank waits for ever: calls that may block are told to the watch, and where this process waits
 * for its GPU while collectives are under way there, it looks: how far they have come, whether NCCL
 * found a failure, whether the watch did. After a failure NCCL is ended, so that kernels that wait
 * for other GPUs leave. */
#include "machine/cuda.h"

#ifdef LL_NCCL
#include "base/crc32c.h"
#include "dev/group.h"
#include "kern/attr.h"

#include <stdlib.h>

enum { CHANNELS = LL_GPU_CHANNELS };

typedef struct channel {
    int64_t number;
    int32_t from, to; /* members along axis pipe */
    int32_t n;        /* messages of a program, */
    uint32_t sum;     /* and which, in their order */
    unsigned char id[LL_GPU_GROUP_ID];
    ll_gpu_group *group;
} channel;

typedef struct ll_nccl {
    ll_gpu_group *groups[1 << LL_MAX_AXES];
    channel channels[CHANNELS]; /* number k in stream LL_STREAM_CHANNEL + k */
    int n_channel;
    struct ll_nccl *lent; /* another's of the same team, which outlives this: all is there */
    /* Starts since the GPU was last seen to be done, of all that these groups are lent to, too: two
     * events each, that the kernels before it are over, and that it is. */
    struct under_way {
        const ll_instr *of;
        int before, after;
    } * starts;
    int n_start, most, done;
    uint64_t moved;
} ll_nccl;

static ll_nccl *owner_of(const ll_exec *e)
{
    ll_nccl *t = ll_cuda_of(e)->nccl;
    while (t && t->lent) t = t->lent;
    return t;
}

/* ---- groups ---- */

/* Collective over the group, the first time. */
static ll_err group_of(ll_exec *e, const ll_instr *x, ll_gpu_group **out)
{
    ll_nccl *t = owner_of(e);
    ll_axes axes = ll_collective_axes(x->collective, x->attr);
    ll_comm *c;
    unsigned char id[LL_GPU_GROUP_ID];
    if (!t->groups[axes]) {
        TRY(ll_team_group(e->opts.team, axes, &c));
        ll_err rc = ll_comm_rank(c) == 0 ? ll_gpu_group_id(id) : LL_OK;
        TRY(ll_comm_agree(c, rc));
        TRY(ll_comm_broadcast(c, id, LL_GPU_GROUP_ID, LL_U8, 0, NULL));
        ll_comm_waits(c, "NCCL's start", x->name);
        rc = ll_gpu_group_open(ll_cuda_of(e)->gpu, LL_STREAM_COMM, id, ll_comm_size(c),
                               ll_comm_rank(c), &t->groups[axes]);
        ll_comm_waits(c, NULL, NULL);
        TRY(ll_comm_agree(c, rc));
    }
    *out = t->groups[axes];
    return LL_OK;
}

/* ---- channels ---- */

static bool is_message(const ll_instr *x)
{
    return x->collective == LL_SEND || x->collective == LL_RECV;
}

static channel channel_of(const ll_exec *e, const ll_instr *x)
{
    const ll_message_attr *a = (const ll_message_attr *)x->attr;
    int me = ll_comm_rank(e->opts.team->pipe), peer = (int)a->peer;
    bool sends = x->collective == LL_SEND;
    return (channel){.number = a->channel, .from = sends ? me : peer, .to = sends ? peer : me};
}

/* From which both sides open them one after another, and nobody waits for ever. */
static int compare(const void *a, const void *b)
{
    const channel *x = (const channel *)a, *y = (const channel *)b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return x->number == y->number ? 0 : x->number < y->number ? -1 : 1;
}

/* Which of them it is; n: it is none. */
static int find_channel(const channel *list, int n, const channel *x)
{
    int k = 0;
    while (k < n && compare(&list[k], x)) k++;
    return k;
}

/* This rank's, by what its program sends and receives. */
static ll_err list_channels(const ll_exec *e, channel *list, int *n)
{
    *n = 0;
    for (int i = 0; i < e->p->n_instr; i++) {
        const ll_instr *instr = e->instrs[i].instr;
        if (!is_message(instr)) continue;
        const ll_message_attr *a = (const ll_message_attr *)instr->attr;
        channel x = channel_of(e, instr);
        int k = find_channel(list, *n, &x);
        CHECK(
            k < CHANNELS, LL_E_SHARD,
            "transport nccl has %d channels for what a rank's stages send each other, and more are "
            "wanted: use host, or fewer stages a rank",
            CHANNELS);
        if (k == *n) list[(*n)++] = x;
        list[k].n++;
        list[k].sum = ll_crc32c(list[k].sum, &a->serial, sizeof a->serial);
    }
    qsort(list, (size_t)*n, sizeof *list, compare);
    return LL_OK;
}

/* Those that are not open yet are given ids, by who sends. */
static ll_err name_channels(const ll_nccl *t, int me, channel *list, int n)
{
    for (int k = 0; k < n; k++)
        if (list[k].from == me && find_channel(t->channels, t->n_channel, &list[k]) == t->n_channel)
            TRY(ll_gpu_group_id(list[k].id));
    return LL_OK;
}

/* What is received on a channel is what its other end sends, in that order; takes its id. */
static ll_err match_channels(const channel *all, int me, channel *list, int n)
{
    for (int k = 0; k < n; k++) {
        if (list[k].from == me) continue;
        const channel *theirs = all + (size_t)list[k].from * CHANNELS;
        int i = find_channel(theirs, CHANNELS, &list[k]);
        CHECK(i < CHANNELS && theirs[i].n == list[k].n && theirs[i].sum == list[k].sum, LL_E_COMM,
              "stage ranks %d and %d send and receive in different orders, which transport nccl "
              "does not carry: use host",
              list[k].from, me);
        memcpy(list[k].id, theirs[i].id, sizeof list[k].id);
    }
    return LL_OK;
}

/* NCCL connects two ranks in the first call that has them talk, for which each waits in that call;
 * in a step these come in different orders. So both make it here, a byte, in the order of channels.
 */
static ll_err open_channel(ll_exec *e, ll_stream_id stream, channel *x, int me)
{
    ll_cuda *o = ll_cuda_of(e);
    TRY(ll_gpu_group_open(o->gpu, stream, x->id, 2, x->to == me, &x->group));
    TRY(ll_gpu_group_begin());
    ll_err rc = x->to == me ? ll_gpu_receive(x->group, o->clock, 1, 0)
                            : ll_gpu_send(x->group, o->clock, 1, 1);
    ll_err end = ll_gpu_group_end();
    TRY(rc);
    TRY(end);
    return ll_gpu_wait_for(o->gpu, stream);
}

/* Streams that share a queue wait for each other's messages, as ranks then may for ever.
 * dev/cuda.cu asks for all queues there are; a user's own number is kept. */
static ll_err check_queues(void)
{
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    CHECK(!queues || atoi(queues) >= 32, LL_E_ARG,
          "CUDA_DEVICE_MAX_CONNECTIONS=%s: pipelines over NCCL can hang with fewer than 32: "
          "leave it unset, or use transport=host",
          queues);
    return LL_OK;
}

static ll_err open_channels(ll_exec *e)
{
    ll_nccl *t = owner_of(e);
    ll_comm *c = e->opts.team->pipe;
    LL_OWN(ll_arena) arena = ll_arena_new();
    int n = 0, size = ll_comm_size(c), me = ll_comm_rank(c);
    channel *all = LL_NEW_ARRAY(arena, channel, size * CHANNELS + CHANNELS),
            *list = all + size * CHANNELS;
    ll_err rc = check_queues();
    if (rc == LL_OK) rc = list_channels(e, list, &n);
    if (rc == LL_OK) rc = name_channels(t, me, list, n);
    TRY(ll_comm_agree(c, rc));
    memcpy(all + me * CHANNELS, list, sizeof *list * (size_t)n);
    for (int k = n; k < CHANNELS; k++) all[me * CHANNELS + k].from = -1;
    TRY(ll_comm_allgather(c, all, (int64_t)size * CHANNELS * (int64_t)sizeof *all, LL_U8,
                          &(ll_coll_opts){.site = "NCCL's channels"}));
    TRY(ll_comm_agree(c, match_channels(all, me, list, n)));
    ll_comm_waits(c, "NCCL's start", "messages between stages");
    for (int k = 0; k < n && rc == LL_OK; k++) {
        if (find_channel(t->channels, t->n_channel, &list[k]) < t->n_channel) continue;
        if (t->n_channel == CHANNELS)
            rc = RAISE(LL_E_SHARD, "transport nccl: more than %d channels", CHANNELS);
        if (rc == LL_OK)
            rc = open_channel(e, (ll_stream_id)(LL_STREAM_CHANNEL + t->n_channel), &list[k], me);
        if (list[k].group) t->channels[t->n_channel++] = list[k];
    }
    ll_comm_waits(c, NULL, NULL);
    return ll_comm_agree(c, rc);
}

static ll_err open(ll_exec *e)
{
    const ll_exec *share = e->opts.share;
    ll_nccl *t = LL_NEW(e->arena, ll_nccl);
    ll_gpu_group *group;
    ll_cuda_of(e)->nccl = t;
    /* NCCL connects when a group is opened, not in its first call, which may wait for all streams:
     * for a message, too, as above. */
    if (e->opts.team->pipe) setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    t->most = ll_program_rounds(e->p) * e->p->n_instr;
    t->starts = LL_NEW_ARRAY(e->arena, struct under_way, t->most + 1);
    if (share && share->opts.team == e->opts.team) t->lent = ll_cuda_of(share)->nccl;
    LL_EACH (ll_bound, b, e->instrs, e->p->n_instr) {
        if (!b->instr->collective) continue;
        if (!is_message(b->instr)) TRY(group_of(e, b->instr, &group));
        TRY(ll_transfer_open(e->opts.team, e->arena, b->instr, b->call.in, b->call.out,
                             b->call.scratch, NULL, &b->transfer));
    }
    return e->opts.team->pipe ? open_channels(e) : LL_OK;
}

static void close(ll_exec *e)
{
    ll_nccl *t = ll_cuda_of(e)->nccl;
    ll_err rc = ll_cuda_await(e, LL_STREAM_COMPUTE); /* a failure was told where it was met */
    (void)rc;
    for (int i = 0; t && i < 1 << LL_MAX_AXES; i++) ll_gpu_group_close(t->groups[i]);
    for (int i = 0; t && i < t->n_channel; i++) ll_gpu_group_close(t->channels[i].group);
}

/* ---- packing ---- */

/* In the stream of the kernels: an operand may be written anew from the start on (but where the
 * flight holds it, see program/flight.c). */
static ll_err copy_strip(void *gpu, char *packed, char *data, const ll_strip *s, bool pack)
{
    char *far = data + s->at;
    ll_gpu_rows r = {.to = pack ? packed : far, .from = pack ? far : packed};
    r.to_stride = pack ? s->row : s->stride;
    r.from_stride = pack ? s->stride : s->row;
    r.row = s->row;
    r.n = s->rows;
    return ll_gpu_copy_rows((ll_gpu *)gpu, LL_STREAM_COMPUTE, &r);
}

/* ---- NCCL ---- */

static bool even(const ll_transfer *t)
{
    const int64_t *s = t->call.spec.starts;
    for (int k = 1; k < t->size; k++)
        if (s[k + 1] - s[k] != s[1] - s[0]) return false;
    return true;
}

/* Member k's block begins at starts[k]; this rank's own ends where it lies. */
static ll_err scatter(ll_gpu_group *x, const ll_transfer *t, char *data, size_t elem, bool max)
{
    const int64_t *s = t->call.spec.starts;
    char *own = data + (size_t)s[t->me] * elem;
    if (even(t)) return ll_gpu_reduce_scatter(x, data, own, s[1] - s[0], t->call.dtype, max);
    for (int k = 0; k < t->size; k++) {
        char *block = data + (size_t)s[k] * elem;
        TRY(ll_gpu_reduce(x, block, block, s[k + 1] - s[k], t->call.dtype, max, k));
    }
    return LL_OK;
}

static ll_err gather(ll_gpu_group *x, const ll_transfer *t, char *data, size_t elem)
{
    const int64_t *s = t->call.spec.starts;
    if (even(t))
        return ll_gpu_all_gather(x, data + (size_t)s[t->me] * elem, data,
                                 (size_t)(s[1] - s[0]) * elem);
    for (int k = 0; k < t->size; k++)
        TRY(ll_gpu_broadcast(x, data + (size_t)s[k] * elem, (size_t)(s[k + 1] - s[k]) * elem, k));
    return LL_OK;
}

/* Everyone gives each other what the matrix says. */
static ll_err exchange(ll_gpu *g, ll_gpu_group *x, const ll_transfer *t, const char *from, char *to,
                       size_t elem)
{
    const int64_t *m = t->call.spec.matrix;
    size_t given = 0, came = 0;
    for (int k = 0; k < t->size; k++) {
        size_t give = (size_t)m[t->me * t->size + k] * elem;
        size_t take = (size_t)m[k * t->size + t->me] * elem;
        if (k == t->me) {
            ll_gpu_rows r = {to + came, from + given, give, give, give, 1};
            TRY(ll_gpu_copy_rows(g, LL_STREAM_COMM, &r));
        } else {
            if (give) TRY(ll_gpu_send(x, from + given, give, k));
            if (take) TRY(ll_gpu_receive(x, to + came, take, k));
        }
        given += give;
        came += take;
    }
    return LL_OK;
}

static ll_err sum(ll_gpu_group *x, const ll_transfer *t, bool max)
{
    for (int k = 0; k < t->n; k++)
        TRY(ll_gpu_all_reduce(x, t->out[k].data, t->out[k].data, ll_numel(&t->out[k].shape),
                              t->call.dtype, max));
    return LL_OK;
}

/* The sender is the first of a channel's two, the receiver the second. */
static ll_err pass_on(ll_gpu_group *x, const ll_transfer *t)
{
    size_t bytes = (size_t)t->call.spec.count * ll_dtype_bytes(t->call.dtype);
    if (!bytes) return LL_OK;
    return t->kind == LL_SEND ? ll_gpu_send(x, t->in->data, bytes, 1)
                              : ll_gpu_receive(x, t->out->data, bytes, 0);
}

static ll_err queue(ll_gpu *g, ll_gpu_group *x, const ll_transfer *t)
{
    size_t elem = ll_dtype_bytes(t->call.dtype);
    bool max = t->call.op == LL_REDUCE_MAX;
    char *in = (char *)t->in->data, *out = (char *)t->out->data;
    switch (t->kind) {
    case LL_ALL_REDUCE: return sum(x, t, max);
    case LL_REDUCE_SCATTER: return scatter(x, t, t->packing ? t->packing : in, elem, max);
    case LL_ALL_GATHER: return gather(x, t, t->packing ? t->packing : out, elem);
    case LL_ROTATE: return exchange(g, x, t, in, out, elem);
    case LL_SEND:
    case LL_RECV: return pass_on(x, t);
    case LL_ALL_TO_ALL:
    case LL_HALO: return exchange(g, x, t, t->packing, ll_transfer_taken(t), elem);
    default: FAIL(LL_E_COMM, "NCCL has no collective of kind %d", (int)t->kind);
    }
}

/* ---- starts and waits ---- */

static int after_of(const ll_exec *e, const ll_bound *b)
{
    return e->p->n_instr + (int)(b - e->instrs);
}

/* What it goes by, and in which stream. */
static ll_err way_of(ll_exec *e, const ll_instr *x, ll_gpu_group **group, ll_stream_id *stream)
{
    *stream = LL_STREAM_COMM;
    if (!is_message(x)) return group_of(e, x, group);
    ll_nccl *t = owner_of(e);
    channel mine = channel_of(e, x);
    int k = find_channel(t->channels, t->n_channel, &mine);
    LL_ASSERT(k < t->n_channel);
    *group = t->channels[k].group;
    *stream = (ll_stream_id)(LL_STREAM_CHANNEL + k);
    return LL_OK;
}

static ll_err start(ll_exec *e, ll_bound *b)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    ll_gpu_group *group;
    ll_stream_id stream;
    TRY(way_of(e, b->instr, &group, &stream));
    TRY(ll_transfer_pack(b->transfer, copy_strip, g));
    b->in_flight = true;
    ll_nccl *t = owner_of(e);
    struct under_way now = {b->instr, (int)(b - e->instrs), after_of(e, b)};
    TRY(ll_gpu_record(g, LL_STREAM_COMPUTE, now.before));
    TRY(ll_gpu_await(g, stream, now.before));
    ll_comm_waits(e->comm, b->instr->op, b->instr->name); /* the first of a group connects */
    ll_err rc = ll_gpu_group_begin(), end = LL_OK;
    if (rc == LL_OK) rc = queue(g, group, b->transfer), end = ll_gpu_group_end();
    ll_comm_waits(e->comm, NULL, NULL);
    TRY(rc);
    TRY(end);
    if (t->n_start < t->most) t->starts[t->n_start++] = now;
    return ll_gpu_record(g, stream, now.after);
}

static ll_err await(ll_exec *e, ll_bound *b)
{
    ll_gpu *g = ll_cuda_of(e)->gpu;
    if (!b->in_flight) return LL_OK;
    b->in_flight = false;
    TRY(ll_gpu_await(g, LL_STREAM_COMPUTE, after_of(e, b)));
    return ll_transfer_unpack(b->transfer, copy_strip, g);
}

/* ---- waits of this process ---- */

typedef struct looking {
    const ll_exec *e;
    ll_stream_id s;
} looking;

/* The GPU waits for others where the kernels before a collective are over and it is not. */
static ll_err look(void *arg, ll_awaited *now)
{
    const looking *l = (const looking *)arg;
    ll_nccl *t = owner_of(l->e);
    ll_gpu *g = ll_cuda_of(l->e)->gpu;
    bool over = true;
    TRY(ll_gpu_ready(g, l->s, &now->done));
    if (now->done) return LL_OK;
    for (int i = 0; i < 1 << LL_MAX_AXES; i++)
        if (t->groups[i]) TRY(ll_gpu_group_check(t->groups[i]));
    for (int i = 0; i < t->n_channel; i++) TRY(ll_gpu_group_check(t->channels[i].group));
    while (t->done < t->n_start && over) {
        TRY(ll_gpu_passed(g, t->starts[t->done].after, &over));
        t->done += over;
    }
    const struct under_way *x = t->done < t->n_start ? &t->starts[t->done] : NULL;
    if (x) TRY(ll_gpu_passed(g, x->before, &over));
    t->moved += !x || !over;
    *now = (ll_awaited){.what = x ? x->of->op : "kernels", .site = x ? x->of->name : NULL};
    now->moved = t->moved + (uint64_t)t->done;
    return LL_OK;
}

static ll_err await_ranks(const ll_exec *e, ll_stream_id s)
{
    ll_nccl *t = owner_of(e);
    looking l = {e, s};
    ll_err rc = ll_comm_await(e->comm, look, &l);
    for (int i = 0; rc != LL_OK && i < 1 << LL_MAX_AXES; i++) ll_gpu_group_abort(t->groups[i]);
    for (int i = 0; rc != LL_OK && i < t->n_channel; i++) ll_gpu_group_abort(t->channels[i].group);
    if (rc != LL_OK || s == LL_STREAM_COMPUTE) t->n_start = t->done = 0;
    return rc;
}

const ll_link ll_link_nccl = {
    .name = "nccl", .open = open, .close = close, .start = start, .wait = await};
#endif

ll_err ll_cuda_await(const ll_exec *e, ll_stream_id s)
{
#ifdef LL_NCCL
    if (ll_cuda_of(e)->nccl && owner_of(e)->n_start) return await_ranks(e, s);
#endif
    return ll_gpu_wait_for(ll_cuda_of(e)->gpu, s);
}
