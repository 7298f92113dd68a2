/* memory.h: the order of a program (order.c, bundle.c, flight.c), which values share bytes, and
 * where in the slab they lie (memory.c). */
#pragma once
#include "program/program.h"

/* A pipeline's stage graph, of one micro-batch, as the graph of a whole step. */
typedef struct ll_unrolled {
    ll_graph *g;
    int n_each; /* its first nodes are those of the micro-batches */
    int *until; /* [n_node] of a send: the node before which it is awaited; 0: is none */
    bool *last; /* [n_node] sums a mean over ranks, when there is nothing more to add */
} ll_unrolled;

ll_err ll_unroll(const ll_graph *g, const ll_pipe *how, int n_micro, ll_arena *arena,
                 ll_unrolled *out);

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
/* uses: of values (ll_uses). (flight.c) */
ll_flight ll_flight_of(const ll_graph *g, const int *uses, const ll_node *n, int n_micro);
/* un: NULL: g is of one micro-batch. until: of nodes with a wait: the node before which that comes
 * at the latest, 0: any (NULL: of all). By opts: blocking: in the graph's order, collectives are
 * awaited where they start. */
ll_err ll_find_order(const ll_graph *g, const ll_unrolled *un, const int *until,
                     const ll_lower_opts *opts, ll_arena *arena, ll_order *o);

/* Whether a node's result is just its operand's bytes in this program. */
bool ll_is_alias(const ll_node *n, int n_micro);
/* The value whose bytes v is, through aliases. */
ll_val ll_alias_root(const ll_graph *g, ll_val v, int n_micro);

typedef struct ll_places {
    int *storage; /* value -> storage */
    ll_region *region;
    size_t *offset; /* storage -> bytes into its region */
    int *packing;   /* node -> storage of the room it packs in, where it does */
    int *input;     /* storage -> the input that it is, 0: none */
    bool *in_place; /* update i writes straight into its input */
    int *scratch;   /* position -> storage of its scratch */
    size_t *live;   /* position -> bytes of work storages that are in use then */
    size_t persistent_bytes, work_bytes, aside_bytes, ideal_work_bytes;
} ll_places;
/* scratch: bytes that each position asks for while it runs; NULL: they lie elsewhere. */
void ll_plan_memory(const ll_order *o, const size_t *scratch, ll_arena *arena, ll_places *out);

/* ---- offload.c ---- */
extern const ll_op ll_op_store, ll_op_load;
static inline ll_aside_kind ll_aside_of(const ll_node *n)
{
    return n->op == &ll_op_store ? LL_STORE : n->op == &ll_op_load ? LL_LOAD : LL_NOT_ASIDE;
}
/* Whether it has a start and a wait. */
static inline bool ll_has_wait(const ll_node *n)
{
    return n->op->collective || ll_aside_of(n);
}

/* What of a graph may be laid aside, best first. It lives in the arena; the graph must stay. */
typedef struct ll_offload ll_offload;
ll_offload *ll_offload_find(const ll_graph *g, const ll_lower_opts *opts, ll_arena *arena);
int ll_offload_most(const ll_offload *f);

typedef struct ll_offloaded {
    ll_graph *g;
    int *until;     /* [n_node] of stores, and of sends: as ll_find_order has it */
    ll_unrolled un; /* of a pipeline's; else un.g NULL */
} ll_offloaded;
/* The graph with the first n of them laid aside. un: as it was unrolled; un->g NULL: it was not. */
ll_err ll_offload_write(const ll_offload *f, int n, const ll_unrolled *un, ll_offloaded *out);
