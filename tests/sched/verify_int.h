/* verify_int.h: inside of the verifier. verify.c runs the lists, verify_lists.c looks at each
 * alone, verify_cells.c is the memory that the steps work on, verify_promise.c says what is in it
 * before and must be in it after.
 *
 * Time is a vector clock for each rank: clock[q] is how much of what rank q did has been told to
 * this rank, by messages and signals. What q does at its time e is known to r where r's clock[q] >=
 * e. A rank's own time goes on after each telling. (Mattern: Virtual time and global states of
 * distributed systems, 1989; races as in Flanagan, Freund: FastTrack, PLDI 2009.) */
#pragma once
#include "sched/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LL_VERIFY_RANKS = 64 }; /* bits in a set of ranks */

/* What an element holds: element elem of each of these ranks, combined in a tree. */
typedef struct ll_value {
    uint64_t ranks; /* a bit each; 0: nothing was ever written */
    uint64_t tree;  /* hash of the tree's shape and leaves; the two sides of a sum may be swapped */
    int64_t elem;
} ll_value;

ll_value ll_value_leaf(int rank, int64_t elem);
/* Of ranks[0..n) (NULL: 0..n-1), in canonical order. */
ll_value ll_value_sum(const int *ranks, int n, int64_t elem);
uint64_t ll_tree_join(uint64_t a, uint64_t b);

/* A problem: the buffers' sizes, what they hold before, and what they must hold after. */
typedef struct ll_promise ll_promise;
struct ll_promise {
    int size;
    const int *node;
    bool shared;
    bool barrier;        /* values do not matter; every exit comes after every entry */
    const void *what;    /* the spec, or the array of subsets */
    int n_what;          /* subsets */
    int64_t count;       /* subsets: elements of DATA */
    const ll_value *sum; /* of all ranks (coll), or of each subset, of element 0 */
    int64_t (*extent)(const ll_promise *p, int rank, ll_buf_id buf); /* of DATA and OUT */
    /* Element i; false: nothing. */
    bool (*before)(const ll_promise *p, int rank, int64_t i, ll_value *out);
    /* Element i of DATA or OUT; false: not promised. */
    bool (*after)(const ll_promise *p, int rank, ll_buf_id buf, int64_t i, ll_value *out);
};

ll_err ll_promise_coll(ll_arena *arena, const ll_coll_spec *s, ll_promise *out);
ll_err ll_promise_subsets(ll_arena *arena, const ll_subset *subsets, int n_subset, int size,
                          int64_t count, ll_promise *out);

static inline bool ll_promise_same_node(const ll_promise *p, int a, int b)
{
    return !p->node || p->node[a] == p->node[b];
}

/* ---- the run ---- */
typedef struct ll_place_seen {
    ll_value value;
    int run;        /* in which this was written */
    int epoch;      /* the owner's time when it was written; INT32_MAX: while a receive is posted */
    int recv_round; /* the owner's last round with a receive, with a send of this element */
    int send_round;
    int *reads; /* [size] times of other ranks' last reads since it was written; NULL: none */
} ll_place_seen;

typedef struct ll_posted ll_posted; /* a message that one side has posted */
struct ll_posted {
    ll_posted *next;
    const ll_step *step;
    const int *clock; /* of the rank when it posted */
};

typedef enum ll_phase {
    LL_AT_START,
    LL_AT_AWAIT,
    LL_AT_LIBRARY,
    LL_AT_MESSAGES,
    LL_AT_END
} ll_phase;

typedef struct ll_vrank {
    const ll_sched *list;
    ll_place_seen *cells[LL_N_BUF];
    int64_t extent[LL_N_BUF];
    int *clock;    /* [size] */
    int *incoming; /* [size] told by messages received in this round, known when it is over */
    int *entry;    /* [times] own time at the begin of each run */
    ll_phase phase;
    int run, round_id;   /* round_id: another one for each round of each run */
    int at, end;         /* the round's steps */
    int pending;         /* messages of the round not yet over */
    int n_signal;        /* so far */
    const int **signals; /* [times * list->n_signal] the clock when each was raised */
} ll_vrank;

typedef struct ll_verify {
    ll_arena *arena;
    const ll_promise *promise;
    int size, times;
    ll_vrank *ranks;
    ll_posted **sends, **recvs; /* [from * size + to] first of those without a partner */
    int n_in_library;
    int unmet[2]; /* a rank that ended without having heard from another; equal: none did */
    bool canonical;
} ll_verify;

/* "rank 3, round 2: send to 4, data[0..5): ...". step may be NULL. */
ll_err ll_verify_fail(ll_verify *v, int rank, const ll_step *step, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Each list by itself, and the counters. */
ll_err ll_verify_lists(ll_verify *v);

void ll_cells_new(ll_verify *v, int rank);
void ll_cells_begin(ll_verify *v, int rank); /* of a run */
ll_err ll_cells_send(ll_verify *v, int rank, const ll_step *s);
ll_err ll_cells_recv(ll_verify *v, int rank, const ll_step *s);
void ll_cells_deliver(ll_verify *v, int from, const ll_step *send, int to, const ll_step *recv);
void ll_cells_received(ll_verify *v, int rank, const ll_step *s);
ll_err ll_cells_fold(ll_verify *v, int rank, const ll_step *s);
void ll_cells_library(ll_verify *v, int rank);
ll_err ll_cells_end(ll_verify *v, int rank); /* of a run: is it as promised? */

#ifdef __cplusplus
}
#endif
