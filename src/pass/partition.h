/* partition.h: one graph, declared serially, becomes each rank's own.
 *
 * ll_place decides, the same on every rank: how inputs are stored, and for each node which axes of
 * the mesh cut which of its loops. ll_partition makes one rank's graph of that: its shapes, and
 * collective nodes where a value is not held as a node wants it. What a cut does to an op follows
 * from its loop dims alone (ir/op.h): nothing here knows any op. */
#pragma once
#include "mesh/mesh.h"
#include "pass/pass.h"

typedef struct ll_placement ll_placement;

enum { LL_FLOPS_PER_BYTE = 50 }; /* arithmetic that takes as long as sending a byte */

/* Are nodes made in pieces, so that there is work to do while ranks wait for each other: where it
 * is worth while, nowhere, wherever it can be done (pass/parts.c)? Within a node it is not. */
typedef enum ll_overlap { LL_OVERLAP_AUTO, LL_OVERLAP_NONE, LL_OVERLAP_ALL } ll_overlap;

/* "auto" (NULL too), "none", "all". */
ll_err ll_overlap_parse(const char *text, ll_overlap *out);

/* Where axis sequence cuts a loop that must be whole: is another cut in its stead, there and back
 * (pass/place_detour.c): where that is cheaper, always, never? */
typedef enum ll_turn { LL_TURN_AUTO, LL_TURN_HEADS, LL_TURN_ROWS } ll_turn;

/* "auto" (NULL too), "heads", "rows". */
ll_err ll_turn_parse(const char *text, ll_turn *out);

/* The gradient of a fully connected layer is a sum over samples of products: where axis data cuts
 * these, ranks sum what each has made, or gather the factors and each make the whole sum: nowhere,
 * where that sends clearly less and nothing is asked of gradients, or everywhere. (Xie et al.:
 * Lighter-communication distributed machine learning via sufficient factor broadcasting, 2016.) */
typedef enum ll_factors { LL_FACTORS_NONE, LL_FACTORS_AUTO, LL_FACTORS_ALL } ll_factors;

/* compress: a run's; NULL, "none": by itself, unless something speaks against it. */
ll_factors ll_factors_of(const char *compress, bool against);

typedef struct ll_place_opts {
    const ll_mesh *mesh;
    bool exact; /* every sum is made exact, whatever the mesh (pass/exact.c) */
    bool wide;  /* with exact: of all bits of f32 operands, however their sizes differ */
    int zero;   /* over axis data: 1 moments, 2 and gradients, 3 and parameters are stored cut */
    ll_factors factors;
    ll_overlap overlap;
    ll_turn sequence;
    ll_axes near; /* axes whose ranks share a node, all of them: nothing hides there */
    /* Inputs of equal names are stored as there; an axis that cuts nothing here, or has more ranks
     * than the batch samples, is left unused. May be NULL. */
    const ll_placement *like;
    const ll_layout_rule *layouts; /* ends with pattern NULL (pass/layouts.h); may be NULL */
} ll_place_opts;

struct ll_placement {
    ll_arena *arena;
    ll_mesh mesh;
    ll_overlap overlap;
    ll_axes near;
    int bits;        /* of exact sums: that operands of products keep at least; 0: no products */
    ll_graph *g;     /* the whole graph, with nodes expanded where a cut needs that */
    ll_layout *made; /* [n_value] as a node leaves it; inputs: as stored */
    ll_layout *seen; /* [n_value] as later nodes find it: sums of gradients are made once, inputs
                      * that are stored cut for memory's sake are gathered for the model's nodes */
    int8_t (*loop)[LL_MAX_AXES]; /* [n_node] the loop that each axis cuts; -1: none */
    ll_axes *through; /* [n_node] axes over which partial operands give partial results */
    ll_axes *factors; /* [n_node] axes over which the factors of a gradient are gathered; NULL in
                       * exact mode: none */
    bool *micro;      /* [n_node] runs for each micro-batch */
    const struct ll_pin **pins; /* [n_value] what is asked of it (pass/layouts.h), or NULL; NULL in
                                 * exact mode */
};

/* Pure. Fails where an axis of the mesh cuts nothing at all, or where the batch has fewer samples
 * than ranks share it. */
ll_err ll_place(const ll_graph *g, const ll_place_opts *opts, ll_placement **out);
void ll_placement_free(ll_placement *p);
LL_OWNED(ll_placement, ll_placement_free);
/* Pure. One rank's graph. */
ll_err ll_partition(const ll_placement *p, int rank, ll_graph **out);
struct ll_buf;
/* And what was decided about pieces of nodes, a line each, with the numbers. */
ll_err ll_partition_told(const ll_placement *p, int rank, struct ll_buf *told, ll_graph **out);

/* How a node wants an operand: cut along the loops that its axes cut. */
ll_layout ll_place_wanted(const ll_placement *p, int node, int operand, const ll_loops *l);
/* Every value's layout and every node's cuts, as text. */
char *ll_placement_print(const ll_placement *p, ll_arena *arena);

/* ---- exact mode: pass/exact.c, called by ll_place ---- */
/* The graph simplified, with every op expanded that can be. */
ll_err ll_exact_prepare(const ll_graph *g, ll_graph **out);
/* Nodes that sum become sums of whole numbers, and so does their placement. */
ll_err ll_exact_place(ll_placement *p, bool wide);
/* How a parameter's gradient (ll_minimize's grad:PARAM) lies when an all-reduce over axes has
 * summed it; false: none does. */
bool ll_gradient_layout(const ll_placement *p, const char *param, ll_axes axes, ll_layout *out);

/* ---- collective nodes ---- */
/* Bytes that this rank sends in one run with an operand of this type, by the usual formulas: an
 * all-reduce 2 (p-1)/p of them, the others what they must. */
double ll_collective_sent(const ll_mesh *m, ll_collective kind, const void *attr,
                          const ll_type *in);
ll_axes ll_collective_axes(ll_collective kind, const void *attr); /* among whom */
