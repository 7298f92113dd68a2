/* halving.h: trees that come from cutting a range of ranks in two, again and again. The root of a
 * range stays the root of its half; the other half's root is its first rank; the two talk. A rank
 * sees of this the halves in which it is a root: a link to its parent, then links to children.
 *
 *     canonical halves of 0..5, root 0:  0..3 | 4 5   then 0 1 | 2 3 and 4 | 5   then 0 | 1, 2 | 3
 *     links of rank 0: children 4 (for 4 5), 2 (for 2 3), 1
 *     links of rank 4: parent 0, child 5
 *
 * A range's ranks are neighbours, so their blocks are one piece of DATA, whatever the root is. */
#pragma once
#include "sched/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ll_halving {
    LL_HALVE_CANONICAL, /* the first half is the largest power of two: the order of summation */
    LL_HALVE_EVENLY     /* in the middle, the root's half not the smaller: least data sent */
} ll_halving;

typedef struct ll_link {
    int peer;
    bool parent;  /* the peer is nearer to the root than I am */
    int from, to; /* the ranks on the side away from the root */
} ll_link;

enum { LL_MAX_LINKS = 32 };

/* Ranks from..to-1 with a root among them: the first rank of the second half. */
int ll_halving_cut(ll_halving how, int from, int to, int root);
/* My links, from the largest range to the smallest: how many. */
int ll_halving_links(ll_halving how, int size, int root, int me, ll_link out[LL_MAX_LINKS]);

#ifdef __cplusplus
}
#endif
