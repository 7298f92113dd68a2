/* fake_gpu.h: dev/gpu.h and dev/group.h in this process's memory, so that what exec/ does with GPUs
 * can be tested where there is none, and on several ranks. Define it in one file of a test.
 *
 * Streams are real: nothing runs before somebody waits, and then only what must: a stream that
 * waits for another lets that one run up to where it waits. So a missing wait is a wrong number,
 * not luck. Captured work is a list, and replaying it queues the list; as CUDA has it, a stream is
 * captured from where it waits for what is, must be awaited in the end, and events of captured work
 * are nobody else's. Kernels are the CPU's, put
 * between by fake_kernels; groups are communicators of MPI, whose collectives begin when all have
 * come to them. A test may have them stall, or fail as NCCL tells it. */
#pragma once
#include "dev/group.h"
#include "exec/parts.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { FAKE_MOST = 1 << 16, FAKE_EVENTS = 4096 };

typedef enum fake_kind {
    FAKE_KERNEL,
    FAKE_COPY,
    FAKE_FILL,
    FAKE_RECORD,
    FAKE_AWAIT,
    FAKE_FOLD,
    FAKE_COLLECTIVE
} fake_kind;
typedef enum fake_collective {
    FAKE_SUM,
    FAKE_TO_ONE,
    FAKE_SCATTER,
    FAKE_GATHER,
    FAKE_CAST,
    FAKE_SWAP
} fake_collective;

typedef struct fake_work {
    fake_kind kind;
    ll_gpu_rows rows; /* a copy */
    void *own;        /* what is copied, where its owner may change it at once */
    int byte, event, serial, stream;
    ll_kernel *kernel;
    ll_kcall call;
    ll_tensor in[LL_MAX_IN], out[LL_MAX_OUT];
    fake_collective collective;
    MPI_Comm comm;
    ll_gpu_group *group;
    bool asked; /* whether the others have come */
    MPI_Request all;
    const void *from, *sources[64]; /* of a fold: n_source of them */
    int n_source;
    ll_reduce op;
    void *to;
    int64_t n;
    ll_dtype type;
    bool max;
    int root;
    struct fake_swap {
        const void *give;
        void *take;
        size_t bytes;
        int peer;
    } * swaps;
    int n_swap;
    MPI_Request *swapping; /* once they have begun */
} fake_work;

struct ll_gpu {
    fake_work **stream[LL_STREAMS];
    int n[LL_STREAMS], done[LL_STREAMS];
    int raised[FAKE_EVENTS], want[FAKE_EVENTS]; /* how often an event was, and was asked to be */
    bool capturing;
    bool joined[LL_STREAMS], captured[FAKE_EVENTS]; /* streams that are; events that were */
    struct ll_gpu_graph *graph;
};

struct ll_gpu_graph {
    fake_work **work;
    int n;
};

struct ll_gpu_group {
    MPI_Comm comm;
    ll_gpu *gpu;
    ll_stream_id stream;
    bool aborted;
};

static void *fake_pinned[256];
static size_t fake_pinned_bytes[256];
static int fake_launched, fake_replayed, fake_grouped, fake_copied,
    fake_folded;                     /* what a test may ask */
static int fake_allocs = 1 << 30;    /* there is room for so many */
static bool fake_stalls, fake_fails; /* and what it may have collectives do */

static inline bool fake_is_pinned(const void *p)
{
    for (int i = 0; i < 256; i++)
        if (fake_pinned[i] && (const char *)p >= (char *)fake_pinned[i] &&
            (const char *)p < (char *)fake_pinned[i] + fake_pinned_bytes[i])
            return true;
    return false;
}

/* ---- running ---- */

static MPI_Datatype fake_type(ll_dtype t)
{
    return t == LL_F32 ? MPI_FLOAT : t == LL_F64 ? MPI_DOUBLE : t == LL_I32 ? MPI_INT : MPI_BYTE;
}

/* Begun, and whether they are over: a send is when the other side has come to its receive. */
static bool fake_swapped(fake_work *w)
{
    int yes = 0;
    MPI_Request *r = w->swapping;
    if (!r) r = w->swapping = (MPI_Request *)calloc((size_t)w->n_swap + 1, sizeof *r);
    for (int i = 0; i < w->n_swap && !w->asked; i++) {
        const struct fake_swap *s = &w->swaps[i];
        if (s->give)
            MPI_Issend(s->give, (int)s->bytes, MPI_BYTE, s->peer, 7, w->comm, &r[i]);
        else
            MPI_Irecv(s->take, (int)s->bytes, MPI_BYTE, s->peer, 7, w->comm, &r[i]);
    }
    w->asked = true;
    MPI_Testall(w->n_swap, r, &yes, MPI_STATUSES_IGNORE);
    if (yes) free(r);
    if (yes) w->swapping = NULL;
    return yes;
}

static void fake_collective_now(const fake_work *w)
{
    MPI_Op op = w->max ? MPI_MAX : MPI_SUM;
    MPI_Datatype t = fake_type(w->type);
    int n = (int)w->n, size, me;
    size_t bytes = (size_t)w->n * ll_dtype_bytes(w->type);
    MPI_Comm_size(w->comm, &size);
    MPI_Comm_rank(w->comm, &me);
    char *room = (char *)malloc(bytes * (size_t)size + 1);
    if (w->collective == FAKE_SUM || w->collective == FAKE_TO_ONE) {
        MPI_Allreduce(w->from, room, n, t, op, w->comm);
        if (w->collective == FAKE_SUM || me == w->root) memcpy(w->to, room, bytes);
    } else if (w->collective == FAKE_SCATTER) {
        MPI_Allreduce(w->from, room, n * size, t, op, w->comm);
        memcpy(w->to, room + bytes * (size_t)me, bytes);
    } else if (w->collective == FAKE_GATHER) {
        MPI_Allgather(w->from, n, MPI_BYTE, room, n, MPI_BYTE, w->comm);
        memcpy(w->to, room, bytes * (size_t)size);
    } else
        MPI_Bcast(w->to, n, MPI_BYTE, w->root, w->comm);
    free(room);
}

/* Whether all of the group have come to it. */
static bool fake_met(fake_work *w)
{
    int yes = 0;
    if (fake_stalls) return false;
    if (w->collective == FAKE_SWAP) return fake_swapped(w); /* of those that give or take */
    if (!w->asked) MPI_Ibarrier(w->comm, &w->all);
    w->asked = true;
    MPI_Test(&w->all, &yes, MPI_STATUS_IGNORE);
    return yes;
}

static bool fake_run(ll_gpu *g, int q, int to);

/* False: not yet. */
static bool fake_do(ll_gpu *g, fake_work *w)
{
    ll_err rc;
    switch (w->kind) {
    case FAKE_KERNEL:
        w->call.in = w->in, w->call.out = w->out;
        rc = w->kernel(&w->call);
        LL_ASSERT(rc == LL_OK);
        fake_launched++;
        break;
    case FAKE_COPY:
        for (int64_t i = 0; i < w->rows.n; i++)
            memmove((char *)w->rows.to + (size_t)i * w->rows.to_stride,
                    (const char *)w->rows.from + (size_t)i * w->rows.from_stride, w->rows.row);
        break;
    case FAKE_FOLD: ll_fold(w->to, w->sources, w->n_source, w->n, w->type, w->op); break;
    case FAKE_FILL: memset(w->to, w->byte, (size_t)w->n); break;
    case FAKE_RECORD: g->raised[w->event] = w->serial; break;
    case FAKE_AWAIT:
        for (int q = 0; q < LL_STREAMS && g->raised[w->event] < w->serial; q++)
            for (int k = g->done[q]; k < g->n[q] && g->raised[w->event] < w->serial; k++)
                if (g->stream[q][k]->kind == FAKE_RECORD && g->stream[q][k]->event == w->event &&
                    g->stream[q][k]->serial == w->serial)
                    if (!fake_run(g, q, k + 1)) return false;
        LL_ASSERT(g->raised[w->event] >= w->serial);
        break;
    default:
        if (w->group->aborted) break;
        if (!fake_met(w)) return false;
        if (w->collective != FAKE_SWAP) fake_collective_now(w);
    }
    return true;
}

/* As far as it goes; whether that is to the end. */
static bool fake_run(ll_gpu *g, int q, int to)
{
    while (g->done[q] < to && fake_do(g, g->stream[q][g->done[q]])) g->done[q]++;
    return g->done[q] >= to;
}

/* Messages go on by themselves, as a GPU's do: others may wait for them. */
static void fake_poke(ll_gpu *g)
{
    for (int q = LL_STREAM_CHANNEL; q < LL_STREAMS; q++) fake_run(g, q, g->n[q]);
}

static fake_work *fake_add(ll_gpu *g, int q, fake_kind kind)
{
    fake_work *w = (fake_work *)calloc(1, sizeof *w);
    w->kind = kind;
    w->stream = q;
    if (g->capturing && g->joined[q]) {
        g->graph->work[g->graph->n++] = w;
        return w;
    }
    LL_ASSERT(g->n[q] < FAKE_MOST);
    g->stream[q][g->n[q]++] = w;
    return w;
}

/* Work that is over and belongs to no graph could go; a test is short. */

/* ---- kernels ---- */

static ll_exec *fake_exec;
static ll_kernel **fake_real; /* by instruction */
enum { FAKE_CODE = 256 };
static ll_kernel *fake_loaded[FAKE_CODE];
static ll_gpu *fake_open_gpu;

/* As CUDA may have it, a kernel's code is loaded when it is first launched, when all streams are
 * empty. */
static void fake_load(ll_gpu *g, ll_kernel *kernel)
{
    enum { PATIENCE_S = 200 };
    int n = 0;
    while (fake_loaded[n] && fake_loaded[n] != kernel) n++;
    LL_ASSERT(n + 1 < FAKE_CODE);
    bool busy = !fake_loaded[n] && !g->capturing && !fake_stalls;
    fake_loaded[n] = kernel;
    for (double since = MPI_Wtime(); busy;) {
        busy = false;
        for (int q = 0; q < LL_STREAMS; q++) busy |= !fake_run(g, q, g->n[q]);
        LL_ASSERT(MPI_Wtime() - since < PATIENCE_S);
    }
}

static ll_err fake_kernel(const ll_kcall *c)
{
    int i = 0;
    while (&fake_exec->instrs[i].call != c) i++;
    fake_load(fake_open_gpu, fake_real[i]);
    fake_work *w = fake_add(fake_open_gpu, LL_STREAM_COMPUTE, FAKE_KERNEL);
    w->kernel = fake_real[i];
    w->call = *c;
    for (int k = 0; k < c->n_in; k++) w->in[k] = c->in[k];
    for (int k = 0; k < c->n_out; k++) w->out[k] = c->out[k];
    return LL_OK;
}

/* A program lowered for the CPU becomes one of the fake GPU. */
static void fake_kernels(ll_program *p)
{
    fake_real = LL_NEW_ARRAY(p->arena, ll_kernel *, p->n_instr + 1);
    memset(fake_loaded, 0, sizeof fake_loaded);
    for (int i = 0; i < p->n_instr; i++) {
        fake_real[i] = p->instrs[i].kernel.run;
        if (p->instrs[i].kernel.run) p->instrs[i].kernel.run = fake_kernel;
    }
    p->target = &ll_target_cuda;
}

/* ---- dev/gpu.h ---- */

int ll_gpu_count(void)
{
    return 1;
}

ll_err ll_gpu_bus(int index, char *out, int room)
{
    snprintf(out, (size_t)room, "0000:%02x:00.0", index);
    return LL_OK;
}

#ifndef LL_CUDA /* where it is, it finds no GPU */
ll_err ll_cuda_context_open(int device, ll_context **out)
{
    (void)device;
    *out = NULL;
    return LL_OK;
}

void ll_cuda_context_close(ll_context *x)
{
    (void)x;
}

int ll_cuda_level(const ll_context *x)
{
    (void)x;
    return 0;
}
#endif

ll_err ll_gpu_open(int index, ll_gpu **out)
{
    (void)index;
    ll_gpu *g = (ll_gpu *)calloc(1, sizeof *g);
    for (int q = 0; q < LL_STREAMS; q++)
        g->stream[q] = (fake_work **)calloc(FAKE_MOST, sizeof **g->stream);
    *out = fake_open_gpu = g;
    return LL_OK;
}

void ll_gpu_close(ll_gpu *g)
{
    for (int q = 0; g && q < LL_STREAMS; q++) free(g->stream[q]);
    free(g);
}

ll_err ll_gpu_ask(const ll_gpu *g, ll_gpu_facts *out)
{
    (void)g;
    *out = (ll_gpu_facts){.name = "fake", .bytes = 1u << 30, .free_bytes = 1u << 30};
    return LL_OK;
}

void *ll_gpu_stream(ll_gpu *g, ll_stream_id s)
{
    (void)g, (void)s;
    return NULL;
}

ll_err ll_gpu_alloc(ll_gpu *g, size_t bytes, void **out)
{
    (void)g;
    CHECK(fake_allocs-- > 0, LL_E_MEM, "no GPU memory");
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    memset(*out, 0xff, bytes);
    return LL_OK;
}

void ll_gpu_free(ll_gpu *g, void *p)
{
    (void)g;
    free(p);
}

ll_err ll_gpu_pinned(size_t bytes, void **out)
{
    int i = 0;
    *out = malloc(bytes + 1);
    while (fake_pinned[i]) i++;
    LL_ASSERT(i < 256);
    fake_pinned[i] = *out;
    fake_pinned_bytes[i] = bytes + 1;
    return LL_OK;
}

void ll_gpu_unpin(void *p)
{
    for (int i = 0; i < 256; i++)
        if (fake_pinned[i] == p) fake_pinned[i] = NULL;
    free(p);
}

static ll_err fake_copy(ll_gpu *g, int q, void *to, const void *from, size_t bytes)
{
    fake_work *w = fake_add(g, q, FAKE_COPY);
    w->rows = (ll_gpu_rows){to, from, bytes, bytes, bytes, bytes ? 1 : 0};
    return LL_OK;
}

ll_err ll_gpu_write(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    void *own = malloc(bytes + 1);
    if (bytes) memcpy(own, from, bytes);
    return fake_copy(g, LL_STREAM_COMPUTE, to, fake_is_pinned(from) ? from : own, bytes);
}

ll_err ll_gpu_read(ll_gpu *g, void *to, const void *from, size_t bytes)
{
    return fake_copy(g, LL_STREAM_COMPUTE, to, from, bytes);
}

ll_err ll_gpu_fill(ll_gpu *g, void *to, int byte, size_t bytes)
{
    fake_work *w = fake_add(g, LL_STREAM_COMPUTE, FAKE_FILL);
    w->to = to, w->byte = byte, w->n = (int64_t)bytes;
    return LL_OK;
}

/* Number by number, as base/rng.h has them. */
ll_err ll_gpu_draw(ll_gpu *g, void *to, const ll_gpu_drawing *d)
{
    int64_t n = ll_numel(&d->shape);
    size_t each = d->f64 ? sizeof(double) : sizeof(float);
    char *own = (char *)malloc((size_t)n * each + 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, stride = 1;
        for (int k = d->shape.n - 1; k >= 0; k--) {
            at += (rest % d->shape.d[k] + d->at[k]) * stride;
            rest /= d->shape.d[k], stride *= d->whole.d[k];
        }
        double v = d->normal ? ll_normal_at(d->seed, d->stream, (uint64_t)at)
                             : 2.0 * ll_uniform_at(d->seed, d->stream, (uint64_t)at) - 1.0;
        if (d->f64) ((double *)own)[i] = d->scale * v;
        if (!d->f64) ((float *)own)[i] = (float)(d->scale * v);
    }
    return fake_copy(g, LL_STREAM_COMPUTE, to, own, (size_t)n * each);
}

ll_err ll_gpu_wait_for(ll_gpu *g, ll_stream_id q)
{
    for (; !fake_run(g, q, g->n[q]); sched_yield()) fake_poke(g);
    return LL_OK;
}

ll_err ll_gpu_ready(ll_gpu *g, ll_stream_id q, bool *out)
{
    *out = fake_run(g, q, g->n[q]);
    if (!*out) fake_poke(g);
    return LL_OK;
}

ll_err ll_gpu_passed(ll_gpu *g, int i, bool *out)
{
    *out = g->raised[i] >= g->want[i];
    return LL_OK;
}

ll_err ll_gpu_wait(ll_gpu *g)
{
    return ll_gpu_wait_for(g, LL_STREAM_COMPUTE);
}

ll_err ll_gpu_pieces(ll_gpu *g, const ll_gpu_piece *v, int n)
{
    for (int i = 0; i < n; i++) {
        const void *from = v[i].from;
        if (!from) {
            void *own = malloc(sizeof v->value);
            from = memcpy(own, &v[i].value, sizeof v->value);
        }
        ll_err rc = fake_copy(g, LL_STREAM_COMPUTE, v[i].to, from, v[i].bytes);
        (void)rc;
    }
    return LL_OK;
}

ll_err ll_gpu_copy(ll_gpu *g, ll_stream_id q, void *to, const void *from, size_t bytes)
{
    LL_ASSERT(!bytes || fake_is_pinned(from) || fake_is_pinned(to));
    if (q != LL_STREAM_UPLOAD) fake_copied++;
    return fake_copy(g, q, to, from, bytes);
}

ll_err ll_gpu_record(ll_gpu *g, ll_stream_id q, int i)
{
    LL_ASSERT(i < FAKE_EVENTS);
    fake_work *w = fake_add(g, q, FAKE_RECORD);
    w->event = i;
    w->serial = ++g->want[i];
    g->captured[i] = g->capturing && g->joined[q];
    return LL_OK;
}

ll_err ll_gpu_await(ll_gpu *g, ll_stream_id q, int i)
{
    LL_ASSERT(g->captured[i] ? g->capturing : !(g->capturing && g->joined[q]));
    if (g->captured[i]) g->joined[q] = true;
    fake_work *w = fake_add(g, q, FAKE_AWAIT);
    w->event = i;
    w->serial = g->want[i];
    return LL_OK;
}

ll_err ll_gpu_after(ll_gpu *g, ll_stream_id later, ll_stream_id earlier)
{
    int flag = FAKE_EVENTS - 1 - (int)(later * LL_STREAMS + earlier);
    TRY(ll_gpu_record(g, earlier, flag));
    return ll_gpu_await(g, later, flag);
}

ll_err ll_gpu_copy_rows(ll_gpu *g, ll_stream_id q, const ll_gpu_rows *r)
{
    fake_add(g, q, FAKE_COPY)->rows = *r;
    return LL_OK;
}

ll_err ll_gpu_fold(ll_gpu *g, ll_stream_id q, void *dst, const void *const *src, int n_src,
                   int64_t n, ll_dtype t, ll_reduce op)
{
    fake_work *w = fake_add(g, q, FAKE_FOLD);
    LL_ASSERT(n_src <= 64);
    for (int k = 0; k < n_src; k++) w->sources[k] = src[k];
    w->to = dst, w->n_source = n_src, w->n = n, w->type = t, w->op = op;
    fake_folded++;
    return LL_OK;
}

ll_err ll_gpu_capture(ll_gpu *g)
{
    g->graph = (ll_gpu_graph *)calloc(1, sizeof *g->graph);
    g->graph->work = (fake_work **)calloc(FAKE_MOST, sizeof *g->graph->work);
    g->capturing = g->joined[LL_STREAM_COMPUTE] = true;
    return LL_OK;
}

/* Whether the stream that computes awaits what was captured last in another. */
static bool fake_is_awaited(const ll_gpu_graph *w, int q)
{
    int last = w->n - 1, event = -1, serial = 0;
    for (; last >= 0 && (w->work[last]->stream != q || w->work[last]->kind == FAKE_AWAIT); last--)
        ;
    if (last < 0) return true;
    if (w->work[last]->kind == FAKE_RECORD) event = w->work[last]->event;
    if (w->work[last]->kind == FAKE_RECORD) serial = w->work[last]->serial;
    for (int i = last; i < w->n; i++)
        if (w->work[i]->kind == FAKE_AWAIT && w->work[i]->stream == LL_STREAM_COMPUTE &&
            w->work[i]->event == event && w->work[i]->serial == serial)
            return true;
    return false;
}

ll_err ll_gpu_captured(ll_gpu *g, ll_gpu_graph **out)
{
    g->capturing = false;
    for (int q = 0; q < LL_STREAMS; q++) {
        LL_ASSERT(q == LL_STREAM_COMPUTE || fake_is_awaited(g->graph, q));
        g->joined[q] = false;
    }
    *out = g->graph;
    return LL_OK;
}

ll_err ll_gpu_replay(ll_gpu *g, ll_gpu_graph *w)
{
    for (int i = 0; i < w->n; i++) {
        fake_work *x = w->work[i];
        if (x->kind == FAKE_RECORD || x->kind == FAKE_AWAIT) { /* once more: of this replay */
            fake_work *again = (fake_work *)calloc(1, sizeof *again);
            *again = *x;
            again->serial = x->kind == FAKE_RECORD ? ++g->want[x->event] : g->want[x->event];
            x = again;
        }
        LL_ASSERT(g->n[x->stream] < FAKE_MOST);
        g->stream[x->stream][g->n[x->stream]++] = x;
    }
    fake_replayed++;
    return LL_OK;
}

void ll_gpu_drop(ll_gpu_graph *w)
{
    if (w) free(w->work);
    free(w);
}

ll_err ll_gpu_mark(ll_gpu *g, int i)
{
    (void)g, (void)i;
    return LL_OK;
}

ll_err ll_gpu_seconds(ll_gpu *g, int from, int to, double *out)
{
    (void)g;
    *out = to - from;
    return LL_OK;
}

/* ---- dev/group.h ---- */

ll_err ll_gpu_group_library(const char **out)
{
    *out = "fake NCCL";
    return LL_OK;
}

/* The id: the world's rank of who made it, and a tag of its own. */
ll_err ll_gpu_group_id(unsigned char id[LL_GPU_GROUP_ID])
{
    static int n;
    int who[2] = {0, 1000 + 16 * (n++ % 1000)};
    memset(id, 0, LL_GPU_GROUP_ID);
    MPI_Comm_rank(MPI_COMM_WORLD, &who[0]);
    memcpy(id, who, sizeof who);
    return LL_OK;
}

ll_err ll_gpu_group_open(ll_gpu *g, ll_stream_id s, const unsigned char id[LL_GPU_GROUP_ID],
                         int size, int rank, ll_gpu_group **out)
{
    int me, who[2], *members = (int *)calloc((size_t)size, sizeof *members);
    ll_gpu_group *x = (ll_gpu_group *)calloc(1, sizeof *x);
    MPI_Group world, some;
    while (fake_stalls) sched_yield();
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    memcpy(who, id, sizeof who);
    members[rank] = me;
    if (rank == 0) {
        for (int r = 1; r < size; r++)
            MPI_Recv(&members[r], 1, MPI_INT, MPI_ANY_SOURCE, who[1] + r, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        for (int r = 1; r < size; r++)
            MPI_Send(members, size, MPI_INT, members[r], who[1], MPI_COMM_WORLD);
    } else {
        MPI_Send(&me, 1, MPI_INT, who[0], who[1] + rank, MPI_COMM_WORLD);
        MPI_Recv(members, size, MPI_INT, who[0], who[1], MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, size, members, &some);
    MPI_Comm_create_group(MPI_COMM_WORLD, some, who[1], &x->comm);
    x->gpu = g;
    x->stream = s;
    free(members);
    *out = x;
    return LL_OK;
}

void ll_gpu_group_close(ll_gpu_group *x)
{
    if (x && !x->aborted) MPI_Comm_free(&x->comm);
    free(x);
}

ll_err ll_gpu_group_check(ll_gpu_group *x)
{
    (void)x;
    CHECK(!fake_fails, LL_E_COMM, "NCCL: remote process exited or there was a network error");
    return LL_OK;
}

void ll_gpu_group_abort(ll_gpu_group *x)
{
    if (x) x->aborted = true;
}

static fake_work *fake_swapping; /* what sends and receives of a group gather in */
static int fake_group_depth;

ll_err ll_gpu_group_begin(void)
{
    fake_group_depth++;
    return LL_OK;
}

ll_err ll_gpu_group_end(void)
{
    LL_ASSERT(--fake_group_depth == 0);
    fake_swapping = NULL;
    fake_grouped++;
    return LL_OK;
}

static fake_work *fake_say(ll_gpu_group *x, fake_collective kind)
{
    LL_ASSERT(fake_group_depth == 1);
    fake_work *w = fake_add(x->gpu, x->stream, FAKE_COLLECTIVE);
    w->collective = kind;
    w->comm = x->comm;
    w->group = x;
    w->type = LL_U8;
    return w;
}

static ll_err fake_reduce(fake_work *w, const void *in, void *out, int64_t n, ll_dtype t, bool max)
{
    w->from = in, w->to = out, w->n = n, w->type = t, w->max = max;
    return LL_OK;
}

ll_err ll_gpu_all_reduce(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t,
                         bool max)
{
    return fake_reduce(fake_say(x, FAKE_SUM), in, out, n, t, max);
}

ll_err ll_gpu_reduce(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t, bool max,
                     int to)
{
    fake_work *w = fake_say(x, FAKE_TO_ONE);
    w->root = to;
    return fake_reduce(w, in, out, n, t, max);
}

ll_err ll_gpu_reduce_scatter(ll_gpu_group *x, const void *in, void *out, int64_t n, ll_dtype t,
                             bool max)
{
    return fake_reduce(fake_say(x, FAKE_SCATTER), in, out, n, t, max);
}

ll_err ll_gpu_all_gather(ll_gpu_group *x, const void *in, void *out, size_t bytes)
{
    return fake_reduce(fake_say(x, FAKE_GATHER), in, out, (int64_t)bytes, LL_U8, false);
}

ll_err ll_gpu_broadcast(ll_gpu_group *x, void *data, size_t bytes, int from)
{
    fake_work *w = fake_say(x, FAKE_CAST);
    w->root = from;
    return fake_reduce(w, data, data, (int64_t)bytes, LL_U8, false);
}

static ll_err fake_add_swap(ll_gpu_group *x, const void *give, void *take, size_t bytes, int peer)
{
    if (!fake_swapping || fake_swapping->comm != x->comm) {
        fake_swapping = fake_say(x, FAKE_SWAP);
        fake_swapping->swaps = (struct fake_swap *)calloc(256, sizeof *fake_swapping->swaps);
    }
    LL_ASSERT(fake_swapping->n_swap < 256);
    fake_swapping->swaps[fake_swapping->n_swap++] = (struct fake_swap){give, take, bytes, peer};
    return LL_OK;
}

ll_err ll_gpu_send(ll_gpu_group *x, const void *data, size_t bytes, int to)
{
    return fake_add_swap(x, data, NULL, bytes, to);
}

ll_err ll_gpu_receive(ll_gpu_group *x, void *data, size_t bytes, int from)
{
    return fake_add_swap(x, NULL, data, bytes, from);
}

/* ---- a program on it ---- */

extern const ll_machine ll_machine_cuda;

/* One rank's of a graph. With o->memory: by a GPU's costs, what that has no room for is laid aside.
 */
static ll_err fake_open(ll_comm *c, const ll_graph *g, const part_opts *o, ll_link_kind link,
                        part *out)
{
    ll_mesh m;
    ll_placement *place;
    ll_graph *mine;
    *out = (part){0};
    TRY(ll_mesh_parse(o->mesh, &m));
    TRY(ll_team_open(c, &m, &out->team));
    ll_place_opts how = {.mesh = &m, .zero = o->zero, .overlap = o->overlap};
    TRY(ll_place(g, &how, &place));
    ll_target mixed = ll_target_cpu;
    mixed.aside = ll_target_cuda.aside;
    ll_lower_opts l = {.target = &mixed, .threads = 1, .n_micro = o->n_micro, .memory = o->memory};
    TRY(part_cut(c, place, o, &l, &mine));
    TRY(ll_lower(mine, &l, &out->p));
    fake_kernels(out->p);
    ll_exec_opts opts = {.machine = &ll_machine_cuda, .seed = 5, .team = out->team, .poison = true};
    opts.offload = o->memory ? "host" : NULL;
    opts.link = ll_machine_cuda.links[link];
    TRY(ll_exec_open(out->p, &opts, &out->e));
    fake_exec = out->e;
    ll_graph_free(mine);
    ll_placement_free(place);
    return LL_OK;
}

static void fake_close(part *x)
{
    ll_exec_close(x->e);
    ll_program_free(x->p);
    ll_team_close(x->team);
}
