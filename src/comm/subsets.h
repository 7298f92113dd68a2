/* subsets.h: all-reduces over many subsets of a communicator's ranks as one request: gradients that
 * are cut by some axes of a mesh and summed over others. Their messages are under way together,
 * where one communicator after another would wait (sched/subsets.c). By messages alone: within one
 * node a communicator for each subset, with its window, is faster. */
#pragma once
#include "comm/comm.h"

/* A tensor, or several one after another: ranks of one color sum theirs. Ranks of one color have
 * equally many elements; those of other colors may have more or fewer, or none. */
typedef struct ll_subset_piece {
    const int *color;     /* [size] */
    const int64_t *count; /* [size] */
} ll_subset_piece;

typedef struct ll_subsets {
    ll_arena *arena;
    ll_comm *c;
    int64_t *at, count;   /* where this rank's part of a piece begins; elements of the data */
    const ll_sched *list; /* with the elements of scratch that a request wants */
} ll_subsets;

/* Local, but for the same pieces on all ranks. */
ll_err ll_subsets_open(ll_comm *c, const ll_subset_piece *pieces, int n, ll_subsets **out);
void ll_subsets_close(ll_subsets *s);
/* Collective. One request for all of them, as of a call like this: data, and scratch (NULL: comm
 * has it), stay until the wait. */
ll_err ll_subsets_start(ll_subsets *s, const ll_coll_call *like, ll_request **out);
