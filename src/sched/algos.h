/* algos.h: emitters that other algorithms are made of, for ll_emit_within or to be called as they
 * are. Each ends its last round, and expects to begin one. */
#pragma once
#include "sched/emit.h"

#ifdef __cplusplus
extern "C" {
#endif

ll_emitter ll_emit_ring_reduce_scatter, ll_emit_ring_allgather;

#ifdef __cplusplus
}
#endif
