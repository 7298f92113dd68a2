/* nodes.h: which ranks are on which node, as algorithms for several nodes want to know it. A rank's
 * place on its node is how many ranks before it are there too; the first of a node leads it.
 *
 *     nodes {0 1 4} {2 3}      places: 0 and 2 have 0, 1 and 3 have 1, 4 has 2
 *     rank 3: members 2 3, place 1, peers 1 3 */
#pragma once
#include "sched/sched.h"

typedef struct ll_node_view {
    int *members, n_member; /* ranks of my node, ascending */
    int place;              /* mine among them */
    int *peers, n_peer;     /* ranks with my place on their nodes, ascending, me among them */
    int me;                 /* my index there */
} ll_node_view;

ll_node_view ll_nodes_view(ll_arena *arena, const ll_coll_spec *s, int rank);
int ll_nodes_count(const ll_coll_spec *s);
int ll_nodes_most(const ll_coll_spec *s); /* ranks on one */
/* As many ranks on each. */
bool ll_nodes_even(const ll_coll_spec *s);
/* Runs of 2^k ranks in order, the last may be shorter; or one node. Then the canonical order over
 * nodes of canonical sums over their ranks is the canonical order over ranks: all cuts of the tree
 * over ranks down to 2^k lie between nodes, at the powers of two at which the tree over nodes has
 * them. */
bool ll_nodes_aligned(const ll_coll_spec *s);
/* An all-reduce for one rank of each of n nodes. */
const ll_algo *ll_nodes_between(int n, int64_t count);
