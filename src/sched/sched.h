/* sched.h: collectives as data. An algorithm is a pure function that emits, for one rank, a list of
 * steps; the verifier (tests/sched/verify.h) proves the lists of all ranks right, the simulator
 * (simulate.h) times them, comm/ runs them. All three read the same lists.
 *
 * Buffers. Steps name elements, not bytes, of four buffers that each rank has:
 *   DATA     the caller's, in place
 *   OUT      the caller's second buffer: the result of an all-to-all only
 *   SCRATCH  private, sched->scratch elements
 *   WINDOW   sched->window elements that the other ranks of the node can read
 * A rank writes its own buffers only. It may read another rank's WINDOW and, where the spec says
 * shared, another rank's DATA, with signals (below) to say when.
 *
 * Rounds. Steps are grouped in rounds that a rank runs one after another, at its own pace:
 *   1. every AWAIT of the round is over;
 *   2. its RECVs and SENDs are posted, in list order;
 *   3. its FOLDs run, in list order;
 *   4. its SIGNAL is raised (at most one a round);
 *   5. its RECVs and SENDs complete, and the round is over.
 * So the FOLDs of a round overlap its messages, and may touch nothing that these write, nor write
 * anything that these read. Messages from i to j match in the order both post them.
 *
 * A SIGNAL adds one to a counter of the rank; AWAIT(peer, k) waits until the peer has signalled k
 * times in this collective. In a schedule with a window all ranks of a node signal equally often.
 *
 * The canonical order of a sum over parts 0..p-1 is the aligned binary tree
 *     T(a, b) = T(a, a + q) + T(a + q, b), q the largest power of two below b - a
 *     T(a, a + 1) = part a
 * A fold combines its sources so. Algorithms for which the whole result is T over the ranks, bit
 * for bit, are called canonical (docs/architecture.md says what that promises); IEEE addition
 * commutes, so which of two operands comes first does not matter. */
#pragma once
#include "base/arena.h"
#include "base/share.h"

#define LL_COLLS(X)                                                                                \
    X(ALLREDUCE, "all-reduce")                                                                     \
    X(REDUCE_SCATTER, "reduce-scatter")                                                            \
    X(ALLGATHER, "all-gather")                                                                     \
    X(ALLTOALL, "all-to-all")                                                                      \
    X(BROADCAST, "broadcast")                                                                      \
    X(BARRIER, "barrier")

typedef enum ll_coll {
#define X(name, text) LL_COLL_##name,
    LL_COLLS(X)
#undef X
        LL_N_COLL
} ll_coll;

const char *ll_coll_name(ll_coll c);
bool ll_coll_sums(ll_coll c); /* is the result a sum, whose order may matter? */

/* ---- steps ---- */
typedef enum ll_step_kind {
    LL_STEP_SEND,   /* n elements at from[0] (own) to peer */
    LL_STEP_RECV,   /* n elements from peer to dst */
    LL_STEP_FOLD,   /* dst = from[0] op from[1] op ... in canonical order; one source: a copy */
    LL_STEP_SIGNAL, /* my next signal */
    LL_STEP_AWAIT,  /* peer has signalled value times */
    LL_STEP_LIBRARY /* the MPI library's own collective on DATA (and OUT), all of it */
} ll_step_kind;

typedef enum ll_buf_id { LL_DATA, LL_OUT, LL_SCRATCH, LL_WINDOW, LL_N_BUF } ll_buf_id;

typedef struct ll_ref {
    int rank; /* whose buffer */
    ll_buf_id buf;
    int64_t at; /* element */
} ll_ref;

typedef struct ll_step {
    ll_step_kind kind;
    int round;
    int peer;  /* SEND, RECV, AWAIT */
    int value; /* AWAIT */
    int64_t n;
    ll_ref dst;         /* RECV, FOLD; own */
    const ll_ref *from; /* SEND, FOLD */
    int n_from;
} ll_step;

typedef struct ll_sched {
    int rank, size;
    const ll_step *steps; /* by round */
    int n_step, n_round;
    int64_t scratch, window;   /* elements needed */
    int n_signal;              /* that this rank raises */
    int64_t n_message, n_sent; /* messages and elements that this rank sends */
    int64_t n_received;        /* elements */
} ll_sched;

/* ---- what is to be done ---- */
typedef struct ll_coll_spec {
    ll_coll coll;
    int size; /* ranks */
    int root; /* broadcast */
    /* Elements of DATA on every rank. All-reduce, broadcast: all of them. Reduce-scatter,
     * all-gather: cut into one block for each rank; a rank's own block is where its part is found
     * or left. All-to-all: of the blocks that go to each rank. */
    int64_t count;
    const int64_t *starts; /* size + 1: where blocks begin and end; NULL: ll_share */
    const int64_t *matrix; /* all-to-all: [from * size + to] elements, both buffers packed in order
                            * of the other rank; NULL: block `to` of DATA as above */
    int64_t segment;       /* elements in a segment, for algorithms that cut; 0: their default */
    const int *node;       /* [size] which node a rank is on, any numbering; NULL: all on one */
    bool shared;           /* the ranks of a node can read each other's DATA */
    bool far;              /* buffers are not this process's memory: only messages come there */
} ll_coll_spec;

/* Are ranks 0..size-1 all on one node? NULL: they are. */
bool ll_one_node(const int *node, int size);
/* Block b of a spec. */
void ll_coll_block(const ll_coll_spec *s, int b, int64_t *from, int64_t *to);
/* All-to-all: elements from one rank to another, and where they lie in the sender's DATA and the
 * receiver's OUT. */
int64_t ll_coll_between(const ll_coll_spec *s, int from, int to, int64_t *data, int64_t *out);

/* ---- algorithms ---- */
/* What the slowest chain of steps costs, in the model of one message at a time in and one out of a
 * rank: messages (times alpha), elements sent (beta), folded (gamma: n for each source after the
 * first) and copied (kappa), signals awaited (sigma). Folds and copies that overlap messages of at
 * least as many elements are hidden behind them, and not counted. */
typedef struct ll_cost {
    double messages, sent, folded, copied, awaits;
} ll_cost;

typedef struct ll_steps ll_steps;

typedef struct ll_algo {
    const char *name; /* "ring" */
    ll_coll coll;
    const char *help; /* one line */
    bool segmented;   /* honours spec->segment */
    bool window;      /* needs all ranks on one node, with a window */
    bool shared;      /* needs spec->shared */
    bool library;     /* the MPI library's own */
    /* Can it do this? On false, *why says what it needs (static text). NULL: always. */
    bool (*fits)(const ll_coll_spec *s, const char **why);
    void (*emit)(ll_steps *e, const ll_coll_spec *s, int rank);
    /* NULL where no formula is known to be exact: then only the simulator tells. */
    ll_cost (*cost)(const ll_coll_spec *s);
    /* Is the sum in canonical order? NULL: never (or nothing is summed). */
    bool (*canonical)(const ll_coll_spec *s);
} ll_algo;

/* All, sorted by collective and name; ends with NULL. */
const ll_algo *const *ll_algos(void);
/* NULL: no such. */
const ll_algo *ll_algo_find(ll_coll coll, const char *name);
/* Can it do this? On false, *why says what it needs (static text). */
bool ll_algo_can(const ll_algo *a, const ll_coll_spec *s, const char **why);
/* "ring, tree": those that can do this (NULL: all), in canonical order where it is asked for. */
const char *ll_algo_names(ll_arena *arena, ll_coll coll, const ll_coll_spec *s, bool canonical);
/* Fails, naming the algorithms that can do it, where this one cannot. */
ll_err ll_algo_check(const ll_algo *a, const ll_coll_spec *s);
/* One rank's steps, in the arena. */
ll_err ll_sched_build(ll_arena *arena, const ll_algo *a, const ll_coll_spec *s, int rank,
                      const ll_sched **out);

/* The least that any algorithm can cost (messages, sent and folded), one message at a time. */
ll_cost ll_coll_bound(const ll_coll_spec *s);

/* ---- more than one algorithm in a list ---- */
/* All-reduces over subsets of the ranks, all at once: a rank takes part in those it is
 * listed in. */
typedef struct ll_subset {
    const int *ranks; /* ascending */
    int n_rank;
    int64_t at, count; /* of DATA, the same on all its ranks */
} ll_subset;
ll_err ll_sched_subsets(ll_arena *arena, const ll_algo *a, const ll_subset *subsets, int n_subset,
                        int size, int64_t segment, int rank, const ll_sched **out);
