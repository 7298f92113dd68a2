/* comm.h: collectives on a communicator: takes a schedule for what is asked (cached), and runs its
 * steps on a transport as messages arrive. What is public is in loopline.h; this is the rest.
 *
 * Each collective on a communicator has a number, the same on every rank because the order of calls
 * is; its messages carry the number as tag, so those of collectives under way at once never meet.
 * Collectives that use the window run one after another, in the order of their numbers. */
#pragma once
#include "base/trace.h"
#include "comm/choose.h"
#include "comm/transport.h"

/* Memory that is not this process's but a GPU's, from and to which MPI takes messages by itself.
 * Collectives there go by messages alone; what else they do is done by these. */
typedef struct ll_memory {
    void *of;
    ll_err (*alloc)(void *of, size_t bytes, void **out);
    void (*free)(void *of, void *data);
    /* n rows of so many bytes, each so far behind the one before. May be under way still when it
     * returns: ready waits for it, and for whoever writes operands. */
    ll_err (*copy)(void *of, void *to, size_t to_stride, const void *from, size_t from_stride,
                   size_t row, int64_t n);
    ll_err (*ready)(void *of);
    ll_err (*fold)(void *of, void *dst, const void *const *src, int n_src, int64_t n, ll_dtype t,
                   ll_reduce op); /* as ll_fold; over when it returns */
} ll_memory;

typedef struct ll_coll_call {
    ll_coll_spec spec;       /* size, node, shared and far are filled in */
    const ll_memory *memory; /* where data, out and scratch lie; NULL: this process's */
    void *data, *out;
    ll_dtype dtype;
    ll_reduce op;
    const ll_algo *algo; /* NULL: the tuner's choice (and its segment, where spec.segment is 0) */
    /* A ready list in place of spec and algo (subsets, messages): it must live until the wait. */
    const ll_sched *sched;
    /* Of a list that not all ranks start: its number, from 1 on, which those that do have in
     * common; such calls have a communicator of their own. what: as what it is told. */
    int64_t number;
    const char *what;
    const char *site;
    void *scratch; /* of ll_comm_scratch bytes, until the wait; NULL: from what is kept for all */
} ll_coll_call;

/* A pointer that callers of loopline.h must give. */
#define LL_GIVEN(argument) CHECK(argument, LL_E_ARG, "argument " #argument " is NULL")

ll_err ll_comm_start(ll_comm *c, const ll_coll_call *call, ll_request **out);
ll_err ll_comm_run(ll_comm *c, const ll_coll_call *call); /* start and wait */

/* Local. How much scratch the call would use; data may not be there yet, but is memory of the same
 * kind (ll_comm_alloc's or not). */
ll_err ll_comm_scratch(ll_comm *c, const ll_coll_call *call, size_t *bytes);
/* Waits until nothing of this family of communicators is under way on this rank. */
ll_err ll_comm_drain(ll_comm *c);
/* Local. From now on waits on it are a thread's that has time: they take no core, and the watch is
 * not told, for the rank goes on. */
void ll_comm_patient(ll_comm *c);
/* Is memory that was given to requests free again? Not where ranks failed and MPI did not let go of
 * a message: then it must stay for good. */
bool ll_comm_settled(ll_comm *c);
/* Local. Memory of ll_comm_alloc is not needed any more: it goes with a later allocation, when all
 * ranks have said so, or with the communicator. */
void ll_comm_release(ll_comm *c, const void *data);

/* What this rank did. */
typedef struct ll_comm_count {
    int64_t messages, bytes; /* sent */
    int64_t read;            /* bytes, of other ranks' shared memory: sent by nobody */
    int64_t collectives;
    int64_t library; /* of them the MPI library's own, of which nothing else is known */
} ll_comm_count;

/* Of a communicator and all that were split from the same one. */
typedef struct ll_comm_usage {
    ll_comm_count count;
    double seconds; /* that callers spent in collectives: starting, moving and waiting for them */
    size_t held;    /* bytes of memory: windows, ll_comm_alloc, scratch */
} ll_comm_usage;
ll_comm_usage ll_comm_used(ll_comm *c);
enum { LL_LEAST_SCRATCH = 4096 };
/* Bytes that an open communicator holds by itself: its window, and the family's least scratch. */
size_t ll_comm_own_bytes(const ll_comm *c);
/* So many bytes more are held (or fewer), by somebody who uses it. */
void ll_comm_hold(ll_comm *c, int64_t bytes);
/* Gives back scratch beyond the least. */
void ll_comm_trim(ll_comm *c);
/* Collectives of the family, and waits for them, are noted there from now on; NULL: no more. */
void ll_comm_trace(ll_comm *c, ll_trace *t);

/* Local. This rank failed, with its thread's last error, and will take part in nothing more: the
 * others learn of it by the watch, wherever they wait. */
void ll_comm_give_up(ll_comm *c);

const int *ll_comm_nodes(const ll_comm *c); /* [size] */
/* Others' reports of what this rank does (ll_comm_doing) are to have it from now on. */
void ll_comm_tell(ll_comm *c);
/* What this rank does now may take long for reasons not its own (a disk): it is given more time. */
void ll_comm_slow(ll_comm *c, bool slow);
const ll_comm_opts *ll_comm_options(const ll_comm *c);

/* ---- how algorithms are chosen (choose.h) ---- */
/* The communicator holds it from now on, and lets go of one it had (ll_tuned_table_free), as its
 * close does; NULL takes it away. Calls under way keep what was chosen for them. */
void ll_comm_set_table(ll_comm *c, ll_tuned_table *t);
/* NULL where there is none: then choices follow from built-in rules. */
const ll_tuned_table *ll_comm_table(const ll_comm *c);
/* As ll_comm_open, ll_comm_from_mpi (comm: an MPI_Comm *; NULL: open) and ll_comm_split, which are
 * tune/open.c's, without a table. */
ll_err ll_comm_open_untuned(const void *comm, const ll_comm_opts *opts, ll_comm **out);
ll_err ll_comm_split_untuned(ll_comm *c, int color, int key, ll_comm **out);
/* Local. Lets go of it without a word to the others, which may be gone. */
void ll_comm_abandon(ll_comm *c);
bool ll_comm_has_window(const ll_comm *c);     /* can algorithms with a window be used? */
size_t ll_comm_window_bytes(const ll_comm *c); /* that one collective may use; 0: no window */

/* ---- messages outside of schedules, for codecs whose lengths depend on the data ---- */
/* One number of a collective, for tags: call on every rank in the same order. */
int64_t ll_comm_next_number(ll_comm *c, const char *what, const char *site);
/* Sends and receives at once; either may be of 0 bytes. */
typedef struct ll_exchange {
    int64_t number;
    int to, from; /* -1: nobody */
    const void *data;
    size_t bytes;
    void *room;
    size_t room_bytes;
} ll_exchange;
/* Waits, with an eye on failures. *received: how many bytes came; may be NULL. */
ll_err ll_comm_exchange(ll_comm *c, const ll_exchange *x, size_t *received);

/* ---- waits for what is no message: a GPU, another library ---- */
/* A call that may block is told to the watch, by name and site; what NULL: it is over. */
void ll_comm_waits(ll_comm *c, const char *what, const char *site);
typedef struct ll_awaited {
    bool done;
    const char *what, *site; /* as what it is told now */
    uint64_t moved;          /* another number: the others are not what is waited for */
} ll_awaited;
/* Waits, with an eye on failures, until look says that it is over, or fails. */
ll_err ll_comm_await(ll_comm *c, ll_err (*look)(void *arg, ll_awaited *now), void *arg);

/* ---- arithmetic (reduce.c) ---- */
/* dst = src[0] op src[1] op ..., n elements, in canonical order (sched.h); dst may be one of the
 * sources, other overlaps are not allowed. bf16 and f16 are rounded after every addition. */
void ll_fold(void *dst, const void *const *src, int n_src, int64_t n, ll_dtype t, ll_reduce op);
