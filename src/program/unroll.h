/* unroll.h: a pipeline's stage graph, of one micro-batch, as the graph of a whole step. */
#pragma once
#include "program/program.h"

typedef struct ll_unrolled {
    ll_graph *g;
    int n_each; /* its first nodes are those of the micro-batches */
    int *until; /* [n_node] of a send: the node before which it is awaited; 0: is none */
    bool *last; /* [n_node] sums a mean over ranks, when there is nothing more to add */
} ll_unrolled;

ll_err ll_unroll(const ll_graph *g, const ll_pipe *how, int n_micro, ll_arena *arena,
                 ll_unrolled *out);
