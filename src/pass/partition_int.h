/* partition_int.h: what the files of the partitioner share. partition.c walks the nodes and brings
 * values to layouts; parts.c makes a node's part of this rank, in pieces where ranks then have
 * something to do while they wait for each other. */
#pragma once
#include "base/text.h"
#include "kern/attr.h"
#include "pass/partition.h"

/* A value as it is held in some layout. */
typedef struct ll_held {
    ll_layout layout;
    ll_val value;
    struct ll_held *next;
} ll_held;

/* Ranges of a dimension, one for each member of a group, taken of a value: kept, so that the next
 * who wants the same finds it. */
typedef struct ll_taken {
    ll_halo_attr what;
    ll_val from, value;
    struct ll_taken *next;
} ll_taken;

/* What was gathered for a use, until others are gathered in its place. */
typedef struct ll_loan {
    ll_layout layout;
    ll_val value; /* id 0: none */
    double at;    /* ll_cutter.lent after it was last used */
} ll_loan;

/* A value that came in panels: parts of dimension dim, in order. Together they are layout whole. */
typedef struct ll_paneled {
    int value, n, dim;
    ll_layout whole;
    ll_val panel[LL_MAX_IN];
    double until; /* ll_cutter.lent, to which they are kept */
    struct ll_paneled *next;
} ll_paneled;

typedef struct ll_cutter {
    const ll_placement *p;
    const ll_graph *g;
    const ll_mesh *m;
    ll_graph *to;
    ll_arena *arena;
    ll_held **versions; /* [n_value] */
    ll_loan *loans;     /* [n_value] */
    double lent;        /* bytes gathered for single uses so far */
    ll_taken *taken;
    ll_paneled *paneled;
    ll_buf *told; /* what was decided for each node, as text; NULL: nobody asks */
    int rank;
    int64_t serial;
} ll_cutter;

/* A node to be made for this rank. */
typedef struct ll_job {
    const ll_node *n;
    const ll_loops *l;
    const int8_t *cuts; /* [axes] the loop that each cuts; -1: none */
    const ll_type *in;  /* operands as wholes */
    bool apart;         /* windows: what needs no neighbour is made apart from what does */
} ll_job;

/* The last gather of an operand, made by and by: parts of dim, cut by one axis, travel around its
 * ranks while products with those that are there are made. */
typedef struct ll_panels {
    int operand, axis, dim, loop; /* operand -1: none */
    ll_layout before, whole;      /* of the operand */
    bool keep;                    /* others want it later */
    bool lent;                    /* it is stored cut: not for long */
    ll_paneled *there;            /* they have come already, for an earlier node */
} ll_panels;

ll_err ll_cut_emit(ll_cutter *c, const ll_op *op, const void *attr, ll_val in, ll_val *out);
/* This rank's range of n elements cut by axes. */
ll_range ll_cut_range(const ll_cutter *c, ll_axes axes, int64_t n);

/* The node's results of this rank, from operands that lie as it wants them. attr is changed. */
ll_err ll_make_node(ll_cutter *c, const ll_job *j, void *attr, const ll_val *x, ll_val *out);
/* The same with one operand in panels; x has its panel of this rank. */
ll_err ll_make_panels(ll_cutter *c, const ll_job *j, const ll_panels *p, void *attr,
                      const ll_val *x, ll_val *out);
/* Is it worth while to make the node in such panels? */
bool ll_panels_pay(ll_cutter *c, const ll_job *j, const ll_panels *p);
/* The panels in which v came that together are layout l; NULL: it did not. */
ll_paneled *ll_find_panels(const ll_cutter *c, ll_val v, const ll_layout *l);
