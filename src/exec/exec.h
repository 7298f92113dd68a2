/* exec.h: binds a program to a machine's memory and runs it: one slab, instructions in order,
 * nothing allocated in a step. Local. */
#pragma once
#include "machine/machine.h"

/* What a codec with error feedback has not sent yet of a parameter's gradient, on this rank. */
typedef struct ll_residual {
    const char *param;
    ll_axes axes; /* whom the gradient is summed over: each has a residual of its own */
    float *data;  /* as this rank holds the gradient */
} ll_residual;

/* Initialises parameters and state (those not shared) from the seed and their names alone. The
 * program must outlive the exec. */
ll_err ll_exec_open(const ll_program *p, const ll_exec_opts *opts, ll_exec **out);
void ll_exec_close(ll_exec *e);
LL_OWNED(ll_exec, ll_exec_close);
ll_err ll_exec_draw(ll_exec *e); /* what opts.undrawn has left out */
/* A slot's data; on a device a copy in this process's memory, as it is now. Who changes what it
 * holds says so (ll_exec_changed: of all micro-batches). */
void *ll_exec_data(const ll_exec *e, int slot, int micro);
ll_err ll_exec_changed(const ll_exec *e, int slot);
/* What a slot holds, of all micro-batches, whatever has been set for the next step. */
ll_err ll_exec_read(const ll_exec *e, int slot, void *to);
/* Writes a slot, of one micro-batch. Batch data that is put after a step's sections for results
 * have begun is the next step's. */
ll_err ll_exec_put(const ll_exec *e, int slot, int micro, const void *data);
/* A result that is one number. */
double ll_exec_scalar(const ll_exec *e, int slot);
/* Waits for the sections that results need, and tells what kernels found wrong with the data (a
 * label outside of its range). */
ll_err ll_exec_wait(ll_exec *e);
/* Runs a section; the micro section once for each micro-batch. */
ll_err ll_exec_run(ll_exec *e, int section, uint64_t step);
/* Calls run for instructions from..to, in order, for kernels in a row that work in parts on threads
 * that stay together. */
typedef ll_err ll_run_one(void *context, int instr);
ll_err ll_exec_each(const ll_exec *e, int from, int to, ll_run_one *run, void *context);
/* What was put is taken, as before the first section: for a section that runs by itself. */
ll_err ll_exec_begin(ll_exec *e, uint64_t step);
/* Parts of a pipeline's step, so that the next can begin before other stages have told its results.
 */
typedef enum ll_exec_part {
    LL_HEAD,     /* of the micro-batches, what comes before the first backward pass */
    LL_TAIL,     /* the rest of them */
    LL_MESSAGES, /* the rest without its kernels: what others wait for is sent, whatever it holds */
    LL_OWN,      /* of the report, all but results that other stages tell */
    LL_ASK,      /* these are asked for */
    LL_HEAR      /* and awaited */
} ll_exec_part;
ll_err ll_exec_run_part(ll_exec *e, ll_exec_part part, uint64_t step);
bool ll_exec_is_late(const ll_exec *e, int slot); /* a result that comes with LL_HEAR */
/* Runs a section and tells of the first instruction with a result that is not finite: LL_E_NUMERIC,
 * with its name and the element. With a team, collective: the first of any rank, on all. */
ll_err ll_exec_run_checked(ll_exec *e, int section, uint64_t step);
/* Seconds spent in each instruction since profiling was turned on; NULL when off. On a device by
 * its own clock. */
void ll_exec_profile(ll_exec *e, bool on);
const double *ll_exec_seconds(const ll_exec *e);
/* The compressed gradients' residuals; none where the codec has no feedback. */
int ll_exec_residuals(const ll_exec *e, ll_arena *arena, ll_residual **out);
/* Bytes that this rank sent of compressed gradients in the last step, and those that f32 takes. */
void ll_exec_compressed(const ll_exec *e, int64_t *bytes, int64_t *dense_bytes);
/* Bytes of communication, beside the program's, as planned when it was opened: windows of the
 * team's communicators, room of bundles, scratch of collectives under way at once. Codecs' own
 * memory is not among them. ll_comm_used tells what is held. */
size_t ll_exec_comm_bytes(const ll_exec *e);
/* Of other ranks' memory that this one's sums read, in its node: pages that it sees, too. */
size_t ll_exec_seen_bytes(const ll_exec *e);
/* Bytes that a program would take beside another, which has all parameters and state. */
size_t ll_exec_beside(const ll_program *p);
size_t ll_exec_bytes(const ll_exec *e); /* as obtained from the system; 0: works in another's */
