/* algos.h: emitters that other algorithms are made of, for ll_emit_within or to be called as they
 * are. Each ends its last round, and expects to begin one. Those for reduce-scatter and all-gather
 * work on the spec's blocks, also where the spec is that of an all-reduce made of the two. */
#pragma once
#include "sched/emit.h"

/* ---- whole collectives ---- */
ll_emitter ll_emit_circulant_reduce_scatter, ll_emit_circulant_allgather;

ll_cost ll_circulant_reduce_scatter_cost(const ll_coll_spec *s);
ll_cost ll_circulant_allgather_cost(const ll_coll_spec *s);

/* ---- a power of two of units among any number of ranks (butterfly.c) ---- */
typedef struct ll_units {
    int n;     /* the largest power of two up to the number of ranks */
    int extra; /* ranks beyond that: units 0..extra-1 are pairs of ranks, the others one rank */
    int log2;  /* of n */
} ll_units;
ll_units ll_units_of(int size);
int ll_unit_rank(const ll_units *u, int unit); /* the one that acts */
/* Pairs add up; returns my unit, or -1: another rank acts for mine. */
int ll_emit_fold_extras(ll_steps *e, const ll_coll_spec *s, int me);
/* The results go to the ranks that did not act. */
void ll_emit_unfold_extras(ll_steps *e, const ll_coll_spec *s, int me);
/* Is a sum over aligned units, in order, canonical for the ranks? */
bool ll_units_canonical(const ll_coll_spec *s);

/* ---- a step of an algorithm that sums (swap.c) ---- */
typedef struct ll_swap {
    int peer;
    int64_t out, n_out; /* elements of DATA that go to it */
    int64_t in, n_in;   /* and those that what comes from it is added to */
} ll_swap;
/* In pieces of at most segment elements (0: one): each is added while the next one is under way. */
void ll_emit_swap(ll_steps *e, const ll_swap *w, int64_t segment);
/* Where as many come as go, or none do. */
ll_cost ll_swap_cost(double n, int64_t segment);

/* ---- blocks (blocks.c) ---- */
int64_t ll_largest_block(const ll_coll_spec *s);
/* Elements from the beginning of block `from` to that of block `to` (to <= size). */
int64_t ll_block_span(const ll_coll_spec *s, int from, int to, int64_t *at);
/* Pieces of n elements of at most segment each (0: one). */
int ll_n_piece(int64_t n, int64_t segment);
int ll_block_pieces(const ll_coll_spec *s); /* of the largest block, by the spec's segment */
/* Piece k of n of block b: how many elements. b may be up to size before 0 or beyond. */
int64_t ll_block_piece(const ll_coll_spec *s, int b, int k, int n, int64_t *at);
int ll_log2_up(int n); /* rounded up */
ll_cost ll_cost_sum(ll_cost a, ll_cost b);
bool ll_canonical_always(const ll_coll_spec *s);
bool ll_canonical_of_two(const ll_coll_spec *s); /* a sum of two has one order only */
