/* emit.h: how algorithms write their steps. An emitter works for a group, a list of ranks with
 * indices 0..size-1 of which one may be mine, and on a part of DATA, so that algorithms can be used
 * inside others: hierarchical is three of them one after another; subsets are many side by side.
 *
 * Steps go to the current round; ll_emit_next starts another (nothing happens where the current one
 * is empty). Positions given to messages and folds are elements of a buffer. */
#pragma once
#include "sched/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_group {
    const int *ranks; /* NULL: index is rank */
    int size;
    int me; /* my index; -1: I am not in it, and an emitter emits nothing */
} ll_group;

static inline int ll_group_rank(const ll_group *g, int index)
{
    return g->ranks ? g->ranks[index] : index;
}

struct ll_emit {
    ll_arena *arena;
    int rank, size;
    int round;
    ll_step *steps;
    int n_step, capacity;
    int64_t scratch, window; /* most that was used so far */
    int n_signal;
};

void ll_emit_next(ll_emit *e);
void ll_emit_send(ll_emit *e, int peer, ll_buf_id buf, int64_t at, int64_t n);
void ll_emit_recv(ll_emit *e, int peer, ll_buf_id buf, int64_t at, int64_t n);
/* dst = a op b, own buffers. */
void ll_emit_fold(ll_emit *e, ll_buf_id dst, int64_t at, ll_buf_id a, int64_t a_at, ll_buf_id b,
                  int64_t b_at, int64_t n);
/* dst = from[0] op ... (from is copied). */
void ll_emit_fold_all(ll_emit *e, ll_buf_id dst, int64_t at, const ll_ref *from, int n_from,
                      int64_t n);
void ll_emit_copy(ll_emit *e, ll_buf_id dst, int64_t at, ll_ref from, int64_t n);
/* A copy of rows of n elements, apart by two strides; from is own. */
void ll_emit_rows(ll_emit *e, ll_buf_id dst, int64_t at, ll_ref from, int64_t n,
                  const ll_rows *rows);
void ll_emit_signal(ll_emit *e);
void ll_emit_await(ll_emit *e, int peer, int value);
void ll_emit_library(ll_emit *e);
/* Steps of no elements are dropped by all of these. */
const ll_sched *ll_emit_finish(ll_emit *e);

#ifdef __cplusplus
}
#endif
