/* emit.h: how algorithms write their steps. An emitter is written for ranks 0..size-1 and for DATA
 * from element 0 on. ll_emit_within runs it for a group instead, a list of ranks of which one may
 * be mine, on a part of DATA, so that algorithms can be used inside others: hierarchical is three
 * of them one after another; subsets are many side by side. Groups nest.
 *
 * Steps go to the current round; ll_emit_next starts another (nothing happens where the current one
 * is empty). Positions given to messages and folds are elements of a buffer. */
#pragma once
#include "sched/sched.h"

typedef struct ll_group {
    const int *ranks; /* NULL: index is rank */
    int size;
    int me;          /* my index; -1: I am not in it, and nothing is emitted */
    int64_t at;      /* where its DATA begins */
    int64_t scratch; /* and its SCRATCH: not 0 where groups share rounds */
} ll_group;

static inline int ll_group_rank(const ll_group *g, int index)
{
    return g->ranks ? g->ranks[index] : index;
}

struct ll_steps {
    ll_arena *arena;
    int rank, size;
    int round;
    ll_step *steps;
    int n_step, capacity;
    int64_t scratch, window; /* most that was used so far */
    int n_signal;
    ll_group in;       /* what ranks and positions given to the functions below are relative to */
    int signal_before; /* signals raised before it was entered: awaited values count from there */
};

/* spec->size is the group's; rank: the caller's index in it. */
typedef void ll_emitter(ll_steps *e, const ll_coll_spec *s, int rank);
/* Runs an emitter for a group, in rounds of its own: it begins a round, and so does what follows.
 * The ranks of the group must have signalled equally often before. */
void ll_emit_within(ll_steps *e, const ll_group *g, ll_emitter *f, const ll_coll_spec *s);

void ll_emit_next(ll_steps *e);
void ll_emit_send(ll_steps *e, int peer, ll_buf_id buf, int64_t at, int64_t n);
void ll_emit_recv(ll_steps *e, int peer, ll_buf_id buf, int64_t at, int64_t n);
/* dst = a op b, own buffers. */
void ll_emit_fold(ll_steps *e, ll_buf_id dst, int64_t at, ll_buf_id a, int64_t a_at, ll_buf_id b,
                  int64_t b_at, int64_t n);
/* dst = from[0] op ... (from is copied). */
void ll_emit_fold_all(ll_steps *e, ll_buf_id dst, int64_t at, const ll_ref *from, int n_from,
                      int64_t n);
void ll_emit_copy(ll_steps *e, ll_buf_id dst, int64_t at, ll_ref from, int64_t n);
void ll_emit_signal(ll_steps *e);
void ll_emit_await(ll_steps *e, int peer, int value);
void ll_emit_library(ll_steps *e);
/* Steps of no elements are dropped by all of these. */
const ll_sched *ll_emit_finish(ll_steps *e);
