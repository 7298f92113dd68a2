/* exact_int.h: what the files of exact sums share: nodes of the new graph and their placement. */
#pragma once
#include "op/op_int.h"
#include "pass/partition.h"

typedef struct ll_gridder {
    ll_placement *p; /* the old one, of which g is read */
    ll_rewrite rw;
    ll_placement next; /* arrays of the new graph */
    int *reader;       /* [old n_value] the first node that reads it, or -1 */
    bool *gradient;    /* [old n_value] all that comes of it is one parameter's gradient */
    bool *mean;        /* [old n_value] a sum that is scaled, and read by nobody else */
    bool wide;         /* operands in as many limbs as f32 may need, and all else in f64 */
    ll_val *own;       /* [old n_value] of a value that is f64 there: in its own type, or none */
    bool *wanted;      /* [old n_value] that one is read */
    ll_val lost;       /* 1: too little was left in this micro-batch, on any rank; or none */
    int placed;        /* so many nodes of the new graph are */
} ll_gridder;

/* A part of an operand's bits: as fixed point, and its scales. */
typedef struct ll_limb {
    ll_val x;
    ll_grid_scale m, own;
} ll_limb;

/* An operand of a product: in the new graph, and how the product wants it. */
typedef struct ll_factor {
    int operand;
    ll_val x;
    ll_layout want;
} ll_factor;

/* exact_guard.c. Where it is cut, without what it is a part of a sum of. */
ll_layout ll_gridder_splits(const ll_layout *l);
void ll_gridder_set(ll_gridder *c, ll_val v, const ll_layout *made, const ll_layout *seen);
/* The last node emitted is cut as its first operand in layout l. */
ll_err ll_gridder_cut(ll_gridder *c, const ll_layout *l, bool micro);

/* Of old node i, a product y of k terms of two limbs with scales m: is too little left? */
ll_err ll_guard_product(ll_gridder *c, int i, const ll_factor factor[2], const ll_limb *a,
                        const ll_limb *b, ll_val y, const ll_layout *held, int bits, double k,
                        const ll_grid_scale m[2]);
/* Results are numbers only if nothing was lost in any micro-batch. */
ll_err ll_guard_results(ll_gridder *c);
