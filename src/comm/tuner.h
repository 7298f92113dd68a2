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

typedef struct ll_tuned {
    ll_coll coll;
    size_t bytes; /* at and above this, up to the next entry of the same collective */
    const ll_algo *algo;
    size_t segment_bytes; /* 0: not cut */
    double predicted_s, measured_s;
    const char *why; /* "fastest of 3 measured; window predicted 12 us, ring 31 us" */
} ll_tuned;

typedef struct ll_tuner ll_tuner;

typedef struct ll_tuner_opts {
    double budget_s; /* 0: 1.5 */
    bool fresh;      /* measure even if the file has a table */
} ll_tuner_opts;

/* Collective. Belongs to the communicator from now on; every call without an algorithm uses it. */
ll_err ll_tune(ll_comm *c, const ll_tuner_opts *opts, const ll_tuner **out);
/* NULL where none was made: then choices follow from built-in rules (ll_tuner_default). */
const ll_tuner *ll_comm_tuner(const ll_comm *c);
const ll_link_model *ll_tuner_model(const ll_tuner *t);
const ll_tuned *ll_tuner_entries(const ll_tuner *t, int *n);
const char *ll_tuner_file(const ll_tuner *t); /* read from or written to; NULL: none */
bool ll_tuner_was_read(const ll_tuner *t);
double ll_tuner_seconds(const ll_tuner *t);
/* A choice for a call, from the tuner (may be NULL) or the built-in rules. Pure. */
ll_err ll_tuner_choose(const ll_tuner *t, const ll_coll_spec *s, size_t elem_bytes, bool has_window,
                       bool canonical, const ll_algo **algo, int64_t *segment);
/* The bucket size from which on larger messages gain less than a tenth per byte. */
size_t ll_tuner_bucket_bytes(const ll_tuner *t);

#ifdef __cplusplus
}
#endif
