/* acting.h: when the actions of a pipeline's program run, for traces: local, and called only where
 * something is traced.
 *
 * An action is from the start of its first kernel to the end of its last instruction; between
 * actions a rank is idle. What it waits for inside of an action is told with it; where that is more
 * than it did before, the action begins afterwards. */
#pragma once
#include "machine/machine.h"

/* The section of the micro-batches begins; ends. */
void ll_acting_begin(ll_exec *e);
void ll_acting_end(ll_exec *e);
/* Instruction x ran from then until now. */
void ll_acting_note(ll_exec *e, const ll_instr *x, double from);
