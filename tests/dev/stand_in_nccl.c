/* stand_in_nccl.c: NCCL's calls that dev/nccl.cu makes, by host copies and memory that processes
 * share, so that ranks with one GPU between them run what ranks with one each do: order, groups,
 * overlap, graphs and failures. Loaded in place of the library (LD_PRELOAD; scripts/gpu.sh --only
 * nccl); its version is 0, by which machine/devices.c knows it.
 *
 *     in its stream:  copy to the host | host function: meet the others, sum | copy to the GPU
 *
 * Works of a group are one host function, so that sends and receives of one meet. Sums are in the
 * order of ranks. The driver runs host functions of all streams in one thread, where one that waits
 * would hold up others: a lone send or receive between two ranks, of which several are under way in
 * streams of their own, waits in its stream instead, for a number that the other side's writes:
 *
 *     sender:    wait until taken | copy to shared memory | write posted
 *     receiver:  wait until posted | copy from there | write taken
 *
 * Kernels copy, as NCCL's do: streams share the few queues of the GPU's copy engines, where one
 * that waits would hold up the others.
 *
 * LOOPLINE_STAND_IN="stall 1 7": rank 1 never ends its 7th work; "error 1 7": its call fails;
 * "async 1 7": all are told of a failure. */
#include <cuda.h>
#include <fcntl.h>
#include <nccl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 16, PIECE = 1 << 20, GROUP = 4096, PATIENCE_S = 60, ROOM = 1 << 28 };

typedef struct shared {
    atomic_int opened, failed;
    _Atomic uint32_t lane_posted, lane_taken; /* pieces of lone messages, from rank 0 to 1 */
    _Atomic uint64_t at[MOST];                /* how often each has met the others */
    _Atomic uint64_t posted[MOST][MOST], taken[MOST][MOST]; /* pieces, from one to another */
    char data[]; /* a piece of each rank, then one of each pair */
} shared;

typedef enum kind { ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, SEND, RECV } kind;

typedef struct op {
    kind kind;
    CUdeviceptr in, out;
    size_t count, elem, n_in, n_out; /* elements, their bytes; bytes */
    ncclDataType_t type;
    bool max;
    int peer; /* root, or the other one */
    char *host_in, *host_out;
    size_t moved;
} op;

typedef struct work {
    struct ncclComm *c;
    atomic_bool busy;
    bool kept; /* a graph has it */
    op *ops;
    int n;
    char *host; /* of the room, or its own */
    size_t bytes;
    bool own;
    struct work *next;
} work;

struct ncclComm {
    shared *s;
    size_t mapped;
    int size, rank;
    uint64_t phase;
    int64_t launched, works; /* queued, and begun */
    atomic_bool aborted;
    work *all;
    CUdeviceptr lane; /* of two ranks: what they share, as the GPU sees it */
    uint32_t pieces;  /* queued */
};

/* ---- what others do ---- */

static bool gone(const struct ncclComm *c)
{
    return atomic_load(&c->aborted) || atomic_load(&c->s->failed);
}

static char *piece_of(const struct ncclComm *c, int rank)
{
    return c->s->data + (size_t)rank * PIECE;
}

static char *channel(const struct ncclComm *c, int from, int to)
{
    return c->s->data + ((size_t)c->size + (size_t)(from * c->size + to)) * PIECE;
}

static bool meet(struct ncclComm *c)
{
    uint64_t phase = ++c->phase;
    atomic_store(&c->s->at[c->rank], phase);
    for (int r = 0; r < c->size; r++)
        while (atomic_load(&c->s->at[r]) < phase) {
            if (gone(c)) return false;
            sched_yield();
        }
    return true;
}

/* ---- sums ---- */

static float from_half(ncclDataType_t t, uint16_t v)
{
    float f;
    uint32_t bits = (uint32_t)v << 16;
    if (t == ncclFloat16) {
        _Float16 h;
        memcpy(&h, &v, 2);
        return (float)h;
    }
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t to_half(ncclDataType_t t, float f)
{
    uint32_t bits;
    uint16_t v;
    if (t == ncclFloat16) {
        _Float16 h = (_Float16)f;
        memcpy(&v, &h, 2);
        return v;
    }
    memcpy(&bits, &f, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define FOLD(type, get, set)                                                                       \
    do {                                                                                           \
        type sum = get(at(c, 0));                                                                  \
        for (int r = 1; r < c->size; r++) {                                                        \
            type v = get(at(c, r));                                                                \
            sum = o->max ? (v > sum ? v : sum) : (type)(sum + v);                                  \
        }                                                                                          \
        set;                                                                                       \
    } while (0)
#define at(c, r) (piece_of(c, r) + i * o->elem)
#define PLAIN(type) FOLD(type, *(const type *), *(type *)(to + i * o->elem) = sum)
#define half(p) from_half(o->type, *(const uint16_t *)(p))

static void fold(const struct ncclComm *c, const op *o, char *to, size_t n)
{
    for (size_t i = 0; i < n; i++) switch (o->type) {
        case ncclFloat32: PLAIN(float); break;
        case ncclFloat64: PLAIN(double); break;
        case ncclInt32: PLAIN(int32_t); break;
        case ncclInt64: PLAIN(int64_t); break;
        case ncclBfloat16:
        case ncclFloat16:
            FOLD(float, half, *(uint16_t *)(to + i * o->elem) = to_half(o->type, sum));
            break;
        default: PLAIN(uint8_t); break;
        }
}

/* ---- works, in a thread of the driver's ---- */

static bool reduce_to(struct ncclComm *c, const op *o, const char *in, char *out, int root)
{
    size_t step = PIECE / o->elem;
    for (size_t i = 0; i < o->count; i += step) {
        size_t n = o->count - i < step ? o->count - i : step;
        memcpy(piece_of(c, c->rank), in + i * o->elem, n * o->elem);
        if (!meet(c)) return false;
        if (root < 0 || root == c->rank) fold(c, o, out + i * o->elem, n);
        if (!meet(c)) return false;
    }
    return true;
}

/* One of them has what all get, or each a part. */
static bool spread(struct ncclComm *c, const op *o)
{
    for (size_t i = 0; i < o->n_in; i += PIECE) {
        size_t n = o->n_in - i < PIECE ? o->n_in - i : PIECE;
        bool gives = o->kind == ALL_GATHER || o->peer == c->rank;
        if (gives) memcpy(piece_of(c, c->rank), o->host_in + i, n);
        if (!meet(c)) return false;
        for (int r = 0; r < c->size && o->kind == ALL_GATHER; r++)
            memcpy(o->host_out + (size_t)r * o->n_in + i, piece_of(c, r), n);
        if (o->kind == BROADCAST) memcpy(o->host_out + i, piece_of(c, o->peer), n);
        if (!meet(c)) return false;
    }
    return true;
}

/* A piece more, where the other side lets it. */
static bool move_piece(struct ncclComm *c, op *o)
{
    bool sends = o->kind == SEND;
    int from = sends ? c->rank : o->peer, to = sends ? o->peer : c->rank;
    _Atomic uint64_t *posted = &c->s->posted[from][to], *taken = &c->s->taken[from][to];
    size_t bytes = sends ? o->n_in : o->n_out;
    size_t n = bytes - o->moved < PIECE ? bytes - o->moved : PIECE;
    bool full = atomic_load(posted) > atomic_load(taken);
    if (full == sends) return false;
    if (sends)
        memcpy(channel(c, from, to), o->host_in + o->moved, n);
    else
        memcpy(o->host_out + o->moved, channel(c, from, to), n);
    o->moved += n;
    atomic_fetch_add(sends ? posted : taken, 1);
    return true;
}

/* Between two ranks, one after the other; otherwise all at once. */
static bool is_next(const work *w, int i)
{
    for (int k = 0; k < i; k++) {
        const op *a = &w->ops[k];
        if (a->kind == w->ops[i].kind && a->peer == w->ops[i].peer &&
            a->moved < (a->kind == SEND ? a->n_in : a->n_out))
            return false;
    }
    return true;
}

static bool exchange(work *w)
{
    for (bool left = true; left;) {
        left = false;
        for (int i = 0; i < w->n; i++) {
            op *o = &w->ops[i];
            if (o->moved >= (o->kind == SEND ? o->n_in : o->n_out)) continue;
            left = true;
            if (is_next(w, i)) move_piece(w->c, o);
        }
        if (gone(w->c)) return false;
        if (left) sched_yield();
    }
    return true;
}

static bool befalls(const struct ncclComm *c, const char *what, int64_t number)
{
    char kind[16] = "";
    int rank = -1;
    long long n = -1;
    const char *text = getenv("LOOPLINE_STAND_IN");
    return text && sscanf(text, "%15s %d %lld", kind, &rank, &n) == 3 && !strcmp(kind, what) &&
           rank == c->rank && n == number;
}

static void CUDA_CB do_work(void *arg)
{
    work *w = (work *)arg;
    struct ncclComm *c = w->c;
    bool well = !gone(c);
    c->works++;
    if (befalls(c, "async", c->works)) atomic_store(&c->s->failed, 1);
    while (befalls(c, "stall", c->works) && !gone(c)) sched_yield();
    for (int i = 0; i < w->n; i++) w->ops[i].moved = 0;
    if (w->ops[0].kind >= SEND) {
        exchange(w);
        return;
    }
    for (int i = 0; i < w->n && well; i++) {
        const op *o = &w->ops[i];
        if (o->kind == ALL_GATHER || o->kind == BROADCAST) {
            well = spread(c, o);
        } else if (o->kind == REDUCE_SCATTER) {
            for (int r = 0; r < c->size && well; r++)
                well = reduce_to(c, o, o->host_in + (size_t)r * o->n_out, o->host_out, r);
        } else {
            well = reduce_to(c, o, o->host_in, o->host_out, o->kind == REDUCE ? o->peer : -1);
        }
    }
}

static void CUDA_CB end_work(void *arg)
{
    atomic_store(&((work *)arg)->busy, false);
}

/* ---- queueing ---- */

static _Thread_local struct {
    int depth, n;
    op ops[GROUP];
    struct ncclComm *c;
    CUstream stream;
} group;

/* What works copy through: pinned at once, before anything is queued. Pinning waits for all
 * streams, and so for messages, of a rank that may wait for what this one would queue next. */
static struct {
    char *data;
    size_t used;
} room;

static bool take_room(work *w, size_t bytes)
{
    bytes = (bytes + 255) / 256 * 256 + 256;
    w->bytes = bytes;
    w->own = !room.data || ROOM - room.used < bytes;
    if (w->own) return cuMemHostAlloc((void **)&w->host, bytes, 0) == CUDA_SUCCESS;
    w->host = room.data + room.used;
    room.used += bytes;
    return true;
}

static work *find_work(struct ncclComm *c, size_t bytes)
{
    for (work *w = c->all; w; w = w->next)
        if (!w->kept && w->bytes >= bytes && !atomic_exchange(&w->busy, true)) return w;
    work *w = (work *)calloc(1, sizeof *w);
    if (!w || !take_room(w, bytes)) return NULL;
    w->c = c;
    w->next = c->all;
    atomic_store(&w->busy, true);
    return c->all = w;
}

/* Lone messages go on, whatever they hold: after a failure. */
static void let_go(struct ncclComm *c)
{
    enum { FAR = 0x3fffffff };
    const struct timespec nap = {0, 1000000};
    for (int i = 0; i < 10; i++) { /* a write that was under way may have come in between */
        atomic_store(&c->s->lane_posted, FAR);
        atomic_store(&c->s->lane_taken, FAR);
        nanosleep(&nap, NULL);
    }
}

/* copy(to, from, bytes), a byte at a time. */
static const char copy_text[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 n) {\n"
    ".reg .u64 %to, %from, %n, %i, %step, %a; .reg .u32 %x, %y, %z; .reg .u16 %v; .reg .pred %p;\n"
    "ld.param.u64 %to, [to]; ld.param.u64 %from, [from]; ld.param.u64 %n, [n];\n"
    "cvta.to.global.u64 %to, %to; cvta.to.global.u64 %from, %from;\n"
    "mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mov.u32 %z, %tid.x;\n"
    "mad.lo.u32 %x, %x, %y, %z; cvt.u64.u32 %i, %x;\n"
    "mov.u32 %z, %nctaid.x; mul.lo.u32 %z, %z, %y; cvt.u64.u32 %step, %z;\n"
    "again: setp.ge.u64 %p, %i, %n; @%p bra over;\n"
    "add.u64 %a, %from, %i; ld.volatile.global.u8 %v, [%a];\n"
    "add.u64 %a, %to, %i; st.volatile.global.u8 [%a], %v;\n"
    "add.u64 %i, %i, %step; bra again;\n"
    "over: ret;\n}\n";

static CUresult launch_copy(CUstream s, CUdeviceptr to, CUdeviceptr from, size_t n)
{
    static CUmodule module;
    static CUfunction copy;
    CUresult rc = module ? CUDA_SUCCESS : cuModuleLoadData(&module, copy_text);
    if (!rc && !copy) rc = cuModuleGetFunction(&copy, module, "copy");
    void *args[] = {&to, &from, &n};
    return rc ? rc : cuLaunchKernel(copy, 64, 1, 1, 256, 1, 1, 0, s, args, NULL);
}

/* All of it before anything is queued: what loads code or maps memory waits for all streams. */
static CUresult prepare(struct ncclComm *c)
{
    CUresult rc = room.data ? CUDA_SUCCESS : cuMemHostAlloc((void **)&room.data, ROOM, 0);
    if (!rc && c->size == 2) rc = cuMemHostRegister(c->s, c->mapped, CU_MEMHOSTREGISTER_DEVICEMAP);
    if (!rc && c->size == 2) rc = cuMemHostGetDevicePointer(&c->lane, c->s, 0);
    if (!rc) rc = launch_copy(NULL, 0, 0, 0);
    return rc ? rc : cuCtxSynchronize();
}

static CUresult queue_piece(struct ncclComm *c, CUstream s, const op *o, size_t at, size_t n)
{
    bool sends = o->kind == SEND;
    CUdeviceptr room = c->lane + (CUdeviceptr)(piece_of(c, 0) - (char *)c->s);
    CUdeviceptr posted = c->lane + offsetof(shared, lane_posted);
    CUdeviceptr taken = c->lane + offsetof(shared, lane_taken);
    uint32_t i = ++c->pieces;
    CUresult rc =
        cuStreamWaitValue32(s, sends ? taken : posted, sends ? i - 1 : i, CU_STREAM_WAIT_VALUE_GEQ);
    if (!rc) rc = launch_copy(s, sends ? room : o->out + at, sends ? o->in + at : room, n);
    return rc ? rc
              : cuStreamWriteValue32(s, sends ? posted : taken, i, CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* The only one of its group, of two ranks, of which the first sends. */
static ncclResult_t launch_lone(struct ncclComm *c, CUstream s, const op *o)
{
    size_t bytes = o->kind == SEND ? o->n_in : o->n_out;
    CUresult rc = CUDA_SUCCESS;
    if (befalls(c, "stall", c->launched)) /* for what comes when all is let go */
        rc = cuStreamWaitValue32(s, c->lane + offsetof(shared, lane_posted), 0x20000000,
                                 CU_STREAM_WAIT_VALUE_GEQ);
    if (befalls(c, "async", c->launched)) {
        atomic_store(&c->s->failed, 1);
        let_go(c);
    }
    for (size_t at = 0; at < bytes && !rc; at += PIECE)
        rc = queue_piece(c, s, o, at, bytes - at < PIECE ? bytes - at : PIECE);
    return rc ? ncclUnhandledCudaError : ncclSuccess;
}

static ncclResult_t launch(void)
{
    struct ncclComm *c = group.c;
    CUstream s = group.stream;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    size_t bytes = 0;
    for (int i = 0; i < group.n; i++) bytes += group.ops[i].n_in + group.ops[i].n_out;
    if (befalls(c, "error", ++c->launched)) return ncclInternalError;
    const op *one = &group.ops[0];
    if (group.n == 1 && c->size == 2 && one->kind >= SEND && (one->kind == SEND) == !c->rank)
        return launch_lone(c, s, one);
    work *w = find_work(c, bytes);
    if (!w) return ncclSystemError;
    free(w->ops);
    w->ops = (op *)malloc(sizeof *w->ops * (size_t)group.n);
    if (!w->ops) return ncclSystemError;
    memcpy(w->ops, group.ops, sizeof *w->ops * (size_t)group.n);
    w->n = group.n;
    cuStreamIsCapturing(s, &status);
    w->kept = status != CU_STREAM_CAPTURE_STATUS_NONE;
    char *at = w->host;
    CUresult rc = CUDA_SUCCESS;
    for (int i = 0; i < w->n; i++) {
        op *o = &w->ops[i];
        o->host_in = at;
        o->host_out = at + o->n_in;
        at += o->n_in + o->n_out;
        bool gives = o->n_in && (o->kind != BROADCAST || o->peer == c->rank);
        if (!rc && gives) rc = launch_copy(s, (CUdeviceptr)o->host_in, o->in, o->n_in);
    }
    if (!rc) rc = cuLaunchHostFunc(s, do_work, w);
    for (int i = 0; i < w->n && !rc; i++) {
        const op *o = &w->ops[i];
        bool takes = o->n_out && (o->kind != REDUCE || o->peer == c->rank);
        if (takes) rc = launch_copy(s, o->out, (CUdeviceptr)o->host_out, o->n_out);
    }
    if (!rc && !w->kept) rc = cuLaunchHostFunc(s, end_work, w);
    return rc ? ncclUnhandledCudaError : ncclSuccess;
}

static ncclResult_t flush(void)
{
    ncclResult_t rc = group.n ? launch() : ncclSuccess;
    group.n = 0;
    return rc;
}

static ncclResult_t push(struct ncclComm *c, cudaStream_t stream, op o)
{
    if (group.n == GROUP) return ncclInvalidUsage;
    if (group.n && (group.c != c || group.stream != (CUstream)stream)) return ncclInvalidUsage;
    group.c = c;
    group.stream = (CUstream)stream;
    group.ops[group.n++] = o;
    return group.depth ? ncclSuccess : flush();
}

static size_t bytes_of(ncclDataType_t t)
{
    switch (t) {
    case ncclFloat64:
    case ncclInt64: return 8;
    case ncclFloat32:
    case ncclInt32: return 4;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    default: return 1;
    }
}

#define EXPORT __attribute__((visibility("default")))

EXPORT ncclResult_t ncclGroupStart(void)
{
    group.depth++;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void)
{
    return --group.depth ? ncclSuccess : flush();
}

static op make(kind k, const void *in, void *out, size_t count, ncclDataType_t t, ncclRedOp_t how,
               int peer)
{
    op o = {.kind = k, .in = (CUdeviceptr)in, .out = (CUdeviceptr)out};
    o.count = count;
    o.elem = bytes_of(t);
    o.n_in = o.n_out = count * o.elem;
    o.type = t;
    o.max = how == ncclMax;
    o.peer = peer;
    return o;
}

EXPORT ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t t,
                                  ncclRedOp_t how, ncclComm_t c, cudaStream_t s)
{
    return push(c, s, make(ALL_REDUCE, in, out, count, t, how, -1));
}

EXPORT ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t t,
                               ncclRedOp_t how, int root, ncclComm_t c, cudaStream_t s)
{
    return push(c, s, make(REDUCE, in, out, count, t, how, root));
}

EXPORT ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t t,
                                      ncclRedOp_t how, ncclComm_t c, cudaStream_t s)
{
    op o = make(REDUCE_SCATTER, in, out, count, t, how, -1);
    o.n_in *= (size_t)c->size;
    return push(c, s, o);
}

EXPORT ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t t,
                                  ncclComm_t c, cudaStream_t s)
{
    op o = make(ALL_GATHER, in, out, count, t, ncclSum, -1);
    o.n_out *= (size_t)c->size;
    return push(c, s, o);
}

EXPORT ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t t,
                                  int root, ncclComm_t c, cudaStream_t s)
{
    return push(c, s, make(BROADCAST, in, out, count, t, ncclSum, root));
}

EXPORT ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t t, int peer, ncclComm_t c,
                             cudaStream_t s)
{
    op o = make(SEND, in, NULL, count, t, ncclSum, peer);
    o.n_out = 0;
    return push(c, s, o);
}

EXPORT ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t t, int peer, ncclComm_t c,
                             cudaStream_t s)
{
    op o = make(RECV, NULL, out, count, t, ncclSum, peer);
    o.n_in = 0;
    return push(c, s, o);
}

/* ---- communicators ---- */

EXPORT ncclResult_t ncclGetVersion(int *version)
{
    *version = 0;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t rc)
{
    (void)rc;
    return "the stand-in for NCCL failed";
}

EXPORT const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return "as it was told to, or for want of memory";
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int n;
    snprintf(id->internal, sizeof id->internal, "/loopline-stand-in-%ld-%d", (long)getpid(), n++);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank)
{
    struct ncclComm *c = (struct ncclComm *)calloc(1, sizeof *c);
    size_t bytes = sizeof(shared) + (size_t)size * (size_t)(size + 1) * PIECE;
    int f = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
    if (!c || size > MOST || f < 0 || ftruncate(f, (off_t)bytes)) return ncclSystemError;
    *c = (struct ncclComm){.size = size, .rank = rank, .mapped = bytes};
    c->s = (shared *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    close(f);
    if (c->s == MAP_FAILED) return ncclSystemError;
    time_t until = time(NULL) + PATIENCE_S;
    atomic_fetch_add(&c->s->opened, 1);
    while (atomic_load(&c->s->opened) < size) {
        if (time(NULL) > until) return ncclSystemError;
        sched_yield();
    }
    shm_unlink(id.internal);
    *out = c;
    return prepare(c) ? ncclUnhandledCudaError : ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out)
{
    *out = atomic_load(&c->s->failed) ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
}

/* What is under way leaves: nothing is freed that it may use. */
EXPORT ncclResult_t ncclCommAbort(ncclComm_t c)
{
    atomic_store(&c->aborted, true);
    if (c->lane) let_go(c);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    for (work *w = c->all, *next; w; w = next) {
        next = w->next;
        if (w->own) cuMemFreeHost(w->host);
        free(w->ops);
        free(w);
    }
    if (c->lane) cuMemHostUnregister(c->s);
    munmap(c->s, c->mapped);
    free(c);
    return ncclSuccess;
}
