/* choose.h: which algorithm, and which segment, for how many bytes: from a table of (collective,
 * bytes) -> (algorithm, segment) that a tuning has left (src/tune), or by built-in rules. Pure: the
 * same on every rank, as the table is. */
#pragma once
#include "sched/simulate.h"

/* One way to do it, and what it takes. */
typedef struct ll_tuned_way {
    const ll_algo *algo;
    size_t segment_bytes;           /* 0: not cut */
    double predicted_s, measured_s; /* measured_s is 0 where it was predicted only */
} ll_tuned_way;

/* What was found for a collective of so many bytes of DATA; used for the sizes nearest to it. */
typedef struct ll_tuned {
    ll_coll coll;
    size_t bytes;
    bool shared;              /* DATA is memory that the ranks of a node share */
    const ll_tuned_way *ways; /* best first: those measured, then those predicted */
    int n_way;
    const char *why; /* "fastest of 3 measured: window 12 us, ring 31 us" */
} ll_tuned;

typedef struct ll_tuned_table {
    ll_arena *arena; /* of all of it */
    int size;        /* ranks that it is for */
    ll_link_model model;
    const ll_tuned *entries; /* by collective, shared, bytes */
    int n_entry;
    const char *file; /* read from or written to; NULL: none, or the machine was too busy for a
                       * table worth keeping */
    bool was_read;
    double seconds; /* that the tuning took */
} ll_tuned_table;

void ll_tuned_table_free(ll_tuned_table *t);
LL_OWNED(ll_tuned_table, ll_tuned_table_free);
/* A choice for a call, from the table (may be NULL) or the built-in rules. *segment is in elements,
 * 0 where the algorithm does not cut. */
ll_err ll_choose(const ll_tuned_table *t, const ll_coll_spec *s, size_t elem_bytes, bool has_window,
                 bool canonical, const ll_algo **algo, int64_t *segment);
/* Is it a choice at all? canonical: sums must be in that order. */
bool ll_choose_may(const ll_algo *a, const ll_coll_spec *s, bool has_window, bool canonical);
/* Why, in words: the table's; NULL where rules decide. */
const char *ll_choose_why(const ll_tuned_table *t, const ll_coll_spec *s, size_t elem_bytes);
/* The bucket size from which on larger messages gain less than a tenth per byte. */
size_t ll_choose_bucket_bytes(const ll_tuned_table *t);
