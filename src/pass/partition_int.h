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

/* The last gathers of operands, made by and by: parts of a loop, cut by one axis, travel around its
 * ranks while what is there is worked on. */
typedef struct ll_panels_of {
    int operand, dim;
    ll_layout before, whole; /* of the operand */
    bool keep;               /* others want it later */
    bool lent;               /* it is stored cut: not for long */
    ll_paneled *there;       /* they have come already, for an earlier node */
} ll_panels_of;
typedef struct ll_panels {
    int n, axis, loop; /* n operands; 0: none */
    ll_panels_of of[LL_MAX_IN];
} ll_panels;

/* What a rank makes of a node: all of its part, or of a balanced loop half of its own part and half
 * of another's. */
typedef struct ll_view {
    ll_job j;
    int8_t cuts[LL_MAX_AXES];
    void *attr;
    ll_val x[LL_MAX_IN], out[LL_MAX_OUT];
} ll_view;

/* What pieces cost, in flops. */
enum {
    LL_MESSAGE_FLOPS = 1000000, /* arithmetic that takes as long as a message's way */
    LL_PIECE_FLOPS = 200000,    /* as one more piece, however small */
    LL_COPY_FLOPS = 6           /* as copying a byte */
};

static inline ll_range ll_share_of(int64_t n, int size, int k)
{
    ll_range r;
    ll_share(n, size, k, &r.from, &r.to);
    return r;
}

ll_err ll_cut_emit(ll_cutter *c, const ll_op *op, const void *attr, ll_val in, ll_val *out);
/* This rank's range of n elements cut by axes. */
ll_range ll_cut_range(const ll_cutter *c, ll_axes axes, int64_t n);

/* The node's results of this rank, from operands that lie as it wants them; loops before this one
 * are cut already. attr is changed. */
ll_err ll_make_node(ll_cutter *c, const ll_job *j, int loop, void *attr, const ll_val *x,
                    ll_val *out);
/* Range r of a loop: what it reads of each operand, and its attributes, a copy. */
ll_err ll_job_part(ll_cutter *c, const ll_job *j, int loop, ll_range r, const void *attr,
                   ll_part *x);
/* Sizes, of a rank on average: the axes that cut a loop; bytes of an operand, and of all results;
 * flops. */
ll_axes ll_job_axes(const ll_cutter *c, const ll_job *j, int loop);
double ll_job_bytes(const ll_cutter *c, const ll_job *j, const ll_type *t,
                    const int8_t map[LL_MAX_DIMS]);
double ll_job_results(const ll_cutter *c, const ll_job *j);
double ll_job_flops(const ll_cutter *c, const ll_job *j);
/* Do ranks of these axes wait for each other, and does hiding so much pay what it costs? */
bool ll_may_pay(const ll_cutter *c, ll_axes axes);
bool ll_pays(ll_cutter *c, const ll_job *j, const char *what, double hidden, double lost);
ll_err ll_cut_slice(ll_cutter *c, ll_val x, int dim, ll_range r, ll_val *out);
/* Of x, cut along a dimension, what each member is to have. */
ll_err ll_cut_take(ll_cutter *c, ll_val x, const ll_halo_attr *what, ll_val *out);

/* panels.c: views with operands in panels; their x have the panel of this rank. */
ll_err ll_make_panels(ll_cutter *c, ll_view *v, int n, const ll_panels *p);
/* Is it worth while to make the node in such panels? */
bool ll_panels_pay(ll_cutter *c, const ll_job *j, const ll_panels *p);
/* The panels in which v came that together are layout l; NULL: it did not. */
ll_paneled *ll_find_panels(const ll_cutter *c, ll_val v, const ll_layout *l);

/* balance.c: the node as one view, or as two of a loop whose parts differ in work (*loop; -1: one).
 */
ll_err ll_balance(ll_cutter *c, const ll_job *j, void *attr, const ll_val *x, ll_view v[2],
                  int *loop);
/* The results of both views, brought back to whose they are. */
ll_err ll_unite(ll_cutter *c, const ll_job *j, int loop, const ll_view v[2], ll_val *out);
