/* simulate.h: how long schedules take, without ranks. */
#pragma once
#include "sched/sched.h"

/* Seconds for a message (alpha), a byte sent (beta), a byte folded for each source after the first
 * (gamma), a byte copied (kappa), an await (sigma). alpha and beta are of two ranks of one node,
 * and of two nodes. share: ranks that run at once on a core, by which local work is slowed (0: 1).
 */
typedef struct ll_link_model {
    double alpha[2], beta[2]; /* [0] within a node, [1] between nodes */
    double gamma, kappa, sigma;
    double share;
} ll_link_model;

/* When the last rank is done. Each rank sends one message and receives one at a time; a message
 * occupies both for alpha + bytes * beta and starts when both have posted it and are free. Awaits
 * of a round follow one another; its folds run beside its messages. NAN where the library's own
 * collective is used, or the lists do not end. s may be NULL: all ranks on one node.
 * An algorithm's formula (ll_algo.cost) says what this finds for messages alone, for elements sent
 * alone, and, of local work, what is not hidden behind messages that take long. */
double ll_sched_time(const ll_coll_spec *s, const ll_sched *const *ranks, size_t elem_bytes,
                     const ll_link_model *m);
/* A cost in seconds, with the links of one class. */
double ll_cost_time(const ll_cost *c, size_t elem_bytes, const ll_link_model *m,
                    bool between_nodes);
