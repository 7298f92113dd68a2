/* verify.h: proofs of schedules, without ranks. */
#pragma once
#include "sched/sched.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Runs the lists of all ranks symbolically and in the strictest way that messages may behave (a
 * send is over only when its receive is posted). Every element of every buffer carries which ranks'
 * contributions it holds, in what order they were combined, and who wrote and read it when (vector
 * clocks). Fails, saying which rank, step and element, on: a deadlock, a message of the wrong
 * length, one never received, a contribution summed twice, unwritten memory used, reads and writes
 * that no signal or message orders, a result that is not what the collective promises, counters
 * (messages, elements sent, signals, buffer sizes) that are not those of the list, a rank that ends
 * a list with signals without having heard from all on its node (then the window's other half would
 * not be free for whatever comes next). At most 64 ranks. The library's own is trusted. */
ll_err ll_sched_verify(const ll_coll_spec *s, const ll_sched *const *ranks);
/* The same lists run `times` times one after another, alternating between two halves of the window
 * as comm/ does: is that free of races too? */
ll_err ll_sched_verify_repeated(const ll_coll_spec *s, const ll_sched *const *ranks, int times);
ll_err ll_sched_verify_subsets(const ll_subset *subsets, int n_subset, int size, int64_t count,
                               const ll_sched *const *ranks);
/* Did every sum of the last verification on this thread have the canonical order? */
bool ll_sched_was_canonical(void);

/* Readable: one line a step; and one step of a rank's list, without the end of the line. */
const char *ll_sched_text(ll_arena *arena, const ll_sched *s);
const char *ll_step_text(ll_arena *arena, const ll_step *s, int rank);

#ifdef __cplusplus
}
#endif
