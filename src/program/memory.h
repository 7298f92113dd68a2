/* memory.h: the order of a program (order.c, bundle.c, flight.c), which values share bytes, and
 * where in the slab they lie (memory.c). */
#pragma once
#include "program/unroll.h"

/* A collective while it is under way: from its start to its wait. */
typedef struct ll_flight {
    size_t packing; /* bytes of room for what is sent, and what is received */
    bool early;     /* the result is written from the start on; else by the wait */
    bool holds;     /* the operand is in use until the wait; else until the start */
} ll_flight;

/* A graph's nodes in the order they run. A collective is there twice: its start and its wait. */
typedef struct ll_order {
    const ll_graph *g;
    int *node;   /* [n] node indices */
    bool *wait;  /* [n] this is a collective's wait */
    int *place;  /* node index -> position of it, or of its start; -1: does not run (aliases) */
    int *done;   /* node index -> position of its wait; of others: place */
    int *bundle; /* node index -> the last of its bundle of collectives, or itself */
    int *before; /* node index -> that of the bundle's member before it, + 1; 0: none */
    bool *compressed;  /* node index -> a sum that goes through a codec */
    bool *last;        /* node index -> of the micro-batches, runs in the last alone */
    ll_flight *flight; /* of collectives */
    int n;
    int end[LL_N_SECTION];
    int n_micro;
    bool unrolled; /* each micro-batch has nodes of its own */
} ll_order;
/* Finds the bundles among a section's nodes, which are taken together in the list; returns its new
 * length. (bundle.c) */
int ll_bundle(ll_order *o, const ll_lower_opts *opts, int section, int *list, int n,
              ll_arena *arena);
ll_flight ll_flight_of(const ll_graph *g, const ll_node *n, int n_micro);
/* un: NULL: g is of one micro-batch. By opts: blocking: in the graph's order, collectives awaited
 * where they start. */
ll_err ll_find_order(const ll_graph *g, const ll_unrolled *un, const ll_lower_opts *opts,
                     ll_arena *arena, ll_order *o);

/* Whether a node's result is just its operand's bytes in this program. */
bool ll_is_alias(const ll_node *n, int n_micro);
/* The value whose bytes v is, through aliases. */
ll_val ll_alias_root(const ll_graph *g, ll_val v, int n_micro);
size_t ll_value_bytes(const ll_value *v);

typedef struct ll_places {
    int *storage; /* value -> storage */
    ll_region *region;
    size_t *offset; /* storage -> bytes into its region */
    int *packing;   /* node -> storage of the room it packs in, where it does */
    int *input;     /* storage -> the input that it is, 0: none */
    bool *in_place; /* update i writes straight into its input */
    int *scratch;   /* position -> storage of its scratch */
    size_t *live;   /* position -> bytes of work storages that are in use then */
    size_t persistent_bytes, work_bytes, ideal_work_bytes;
} ll_places;
/* scratch: bytes that each position asks for while it runs; NULL: they lie elsewhere. */
void ll_plan_memory(const ll_order *o, const size_t *scratch, ll_arena *arena, ll_places *out);
