/* tuner.h: which algorithm, and which segment, for how many bytes. Fits the link model (verify.h)
 * on the live communicator, predicts every algorithm at every size with the simulator, measures the
 * few most promising, and keeps the fastest: a table of (collective, bytes) -> (algorithm,
 * segment), equal on every rank. The table is kept in a file, by ranks per node, nodes, MPI library
 * and machine, and read back instead of measured again. */
#pragma once
#include "comm/comm.h"
#include "sched/verify.h"

#ifdef __cplusplus
extern "C" {
#endif

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

typedef struct ll_tuner_opts {
    double budget_s; /* 0: 1.5 */
    bool fresh;      /* measure even if the file has a table */
} ll_tuner_opts;

/* Collective. Belongs to the communicator from now on; every call without an algorithm uses it. */
ll_err ll_tune(ll_comm *c, const ll_tuner_opts *opts, const ll_tuner **out);
/* Collective. The table of an earlier tuning, where there is one; else *out is NULL, and nothing is
 * changed. */
ll_err ll_tune_read(ll_comm *c, const ll_tuner **out);
void ll_tuner_free(ll_tuner *t); /* the communicator does */
const ll_link_model *ll_tuner_model(const ll_tuner *t);
const ll_tuned *ll_tuner_entries(const ll_tuner *t, int *n);
/* Read from or written to; NULL: none, or the machine was too busy for a table worth keeping. */
const char *ll_tuner_file(const ll_tuner *t);
bool ll_tuner_was_read(const ll_tuner *t);
double ll_tuner_seconds(const ll_tuner *t); /* that the tuning took */
const char *ll_tuner_cpu(ll_arena *arena);  /* this machine's processor, as the system calls it */
/* A choice for a call, from the tuner (may be NULL) or the built-in rules. Pure. *segment is in
 * elements, 0 where the algorithm does not cut. */
ll_err ll_tuner_choose(const ll_tuner *t, const ll_coll_spec *s, size_t elem_bytes, bool has_window,
                       bool canonical, const ll_algo **algo, int64_t *segment);
/* Why, in words: the table's; NULL where rules decide. */
const char *ll_tuner_why(const ll_tuner *t, const ll_coll_spec *s, size_t elem_bytes);
/* Seconds that the model gives an algorithm: by the simulator, or by its formula where the lists
 * are long; 0 where there is no telling (the library's own), or more window is needed than there
 * is. */
double ll_tuner_predict(const ll_link_model *m, const ll_coll_spec *s, const ll_algo *a,
                        size_t elem_bytes, size_t window_bytes);
/* The bucket size from which on larger messages gain less than a tenth per byte. */
size_t ll_tuner_bucket_bytes(const ll_tuner *t);

#ifdef __cplusplus
}
#endif
