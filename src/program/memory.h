/* memory.h: which values share bytes, and where in the slab they lie. */
#pragma once
#include "program/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A graph's nodes in the order they run. */
typedef struct ll_order {
    const ll_graph *g;
    int *node;  /* [n] node indices */
    int *place; /* node index -> position, -1: does not run (aliases) */
    int n;
    int end[LL_N_SECTION];
    int n_micro;
} ll_order;

/* Whether a node's result is just its operand's bytes in this program. */
bool ll_is_alias(const ll_node *n, int n_micro);
/* The value whose bytes v is, through aliases. */
ll_val ll_alias_root(const ll_graph *g, ll_val v, int n_micro);

typedef struct ll_places {
    int *storage; /* value -> storage */
    ll_region *region;
    size_t *offset; /* storage -> bytes into its region */
    int *input;     /* storage -> the input that it is, 0: none */
    bool *in_place; /* update i writes straight into its input */
    size_t persistent_bytes, work_bytes, ideal_work_bytes;
} ll_places;
void ll_plan_memory(const ll_order *o, ll_arena *arena, ll_places *out);

#ifdef __cplusplus
}
#endif
