/* tune.h: fits the link model (simulate.h) on a live communicator, predicts every algorithm at
 * every size with the simulator, measures the few most promising, and keeps the fastest: a table
 * (comm/choose.h), equal on every rank. The table is kept in a file, by ranks per node, nodes, MPI
 * library and machine, and read back instead of measured again. */
#pragma once
#include "comm/comm.h"

typedef struct ll_tune_opts {
    double budget_s; /* 0: 1.5 */
    bool fresh;      /* measure even if the file has a table */
} ll_tune_opts;

/* Collective. Belongs to the communicator from now on; every call without an algorithm uses it. */
ll_err ll_tune(ll_comm *c, const ll_tune_opts *opts, const ll_tuned_table **out);
/* Collective. The table of an earlier tuning, where there is one; else *out is NULL, and nothing is
 * changed. */
ll_err ll_tune_read(ll_comm *c, const ll_tuned_table **out);
/* Collective. The model alone, measured now (a fraction of a second on links that are not slow). */
ll_err ll_tune_links(ll_comm *c, ll_link_model *out);
const char *ll_tune_cpu(ll_arena *arena); /* this machine's processor, as the system calls it */
/* Seconds that the model gives an algorithm: by the simulator, or by its formula where the lists
 * are long; 0 where there is no telling (the library's own), or more window is needed than there
 * is. */
double ll_tune_predict(const ll_link_model *m, const ll_coll_spec *s, const ll_algo *a,
                       size_t elem_bytes, size_t window_bytes);
