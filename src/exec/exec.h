/* exec.h: runs a program on this machine: one slab, kernels called in order, nothing allocated in a
 * step. Local. */
#pragma once
#include "base/trace.h"
#include "exec/team.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ll_exec ll_exec;

/* What a codec with error feedback has not sent yet of a parameter's gradient, on this rank. */
typedef struct ll_residual {
    const char *param;
    ll_axes axes; /* whom the gradient is summed over: each has a residual of its own */
    float *data;  /* as this rank holds the gradient */
} ll_residual;

typedef struct ll_exec_opts {
    uint64_t seed;
    /* A codec (comm/codec.h) for the gradients that are summed over axis data; NULL: none. place:
     * how the parameters lie. */
    const char *compress;
    const struct ll_placement *place;
    ll_team *team;  /* for programs with collectives; must outlive the exec */
    ll_exec *share; /* parameters and state of equal names live there; it must outlive this one */
    bool reuse;     /* with share: works in its memory too, where it fits; its results are lost */
    bool poison;    /* fills the work memory with NaN before each step, for tests */
    int device;     /* of machine cuda: which GPU */
    bool nccl;      /* of machine cuda: collectives between GPUs, of which each rank has its own */
} ll_exec_opts;

/* Initialises parameters and state (those not shared) from the seed and their names alone. The
 * program must outlive the exec. */
ll_err ll_exec_open(const ll_program *p, const ll_exec_opts *opts, ll_exec **out);
void ll_exec_close(ll_exec *e);
/* A slot's data; on a GPU a copy in this process's memory, as it is now. Who changes what it holds
 * says so (ll_exec_changed: of all micro-batches). */
void *ll_exec_data(const ll_exec *e, int slot, int micro);
ll_err ll_exec_changed(const ll_exec *e, int slot);
/* What a slot holds, of all micro-batches, whatever has been set for the next step. */
ll_err ll_exec_read(const ll_exec *e, int slot, void *to);
/* Writes a slot, of one micro-batch. Of batch data, on a GPU, the next step takes it. */
ll_err ll_exec_put(const ll_exec *e, int slot, int micro, const void *data);
/* A result that is one number. On a GPU those of a step come together, with ll_exec_trouble. */
double ll_exec_scalar(const ll_exec *e, int slot);
/* Of the GPU's memory, besides the program's: batches that wait, tables of launches. */
size_t ll_exec_extra_bytes(const ll_exec *e);
/* What a GPU's kernels found wrong with the data (a label outside of its range). Waits for the
 * sections that results need. */
ll_err ll_exec_trouble(ll_exec *e);
/* Runs a section; the micro section once for each micro-batch. */
ll_err ll_exec_run(ll_exec *e, int section, uint64_t step);
/* Runs a section and tells of the first instruction with a result that is not finite: LL_E_NUMERIC,
 * with its name and the element. With a team, collective: the first of any rank, on all. */
ll_err ll_exec_run_checked(ll_exec *e, int section, uint64_t step);
/* How often a step of one micro-batch calls on the machine: on a GPU equal work on several tensors
 * is one launch. */
int ll_exec_launches(const ll_exec *e);
bool ll_exec_on_gpu(const ll_exec *e);
/* Seconds spent in each instruction since profiling was turned on; NULL when off. On a GPU by its
 * own clock. */
void ll_exec_profile(ll_exec *e, bool on);
const double *ll_exec_seconds(const ll_exec *e);
/* Instructions and sections are noted there from now on; NULL: no more. */
void ll_exec_trace(ll_exec *e, ll_trace *t);
/* Seconds spent waiting for collectives since it was opened: what computing did not hide. */
double ll_exec_waited(const ll_exec *e);
/* The compressed gradients' residuals; none where the codec has no feedback. */
int ll_exec_residuals(const ll_exec *e, ll_arena *arena, ll_residual **out);
/* Bytes that this rank sent of compressed gradients in the last step, and those that f32 takes. */
void ll_exec_compressed(const ll_exec *e, int64_t *bytes, int64_t *dense_bytes);
/* Bytes of communication, beside the program's, as planned when it was opened: windows of the
 * team's communicators, room of buckets, scratch of collectives under way at once. Codecs' own
 * memory is not among them. ll_comm_used tells what is held. */
size_t ll_exec_comm_bytes(const ll_exec *e);
size_t ll_exec_bytes(const ll_exec *e); /* as obtained from the system; 0: works in another's */

/* Binds the OpenMP threads to cores, one each, once per process, where there are as many as cores,
 * unless OMP_PROC_BIND or OMP_PLACES says otherwise. */
void ll_bind_threads(int threads);
/* Collective. How many threads each rank should have, where *threads is 0: as OMP_NUM_THREADS says
 * or as there are hardware threads, divided among the ranks that may run on the same ones; the same
 * number on all ranks. Each of these then keeps to cores of its own, where there are enough, its
 * threads fit, and the environment does not say otherwise. */
ll_err ll_bind_rank(ll_comm *c, int *threads);
bool ll_bind_owns_cores(void); /* Local: has ll_bind_rank given this rank cores of its own? */
/* Fills data with an initial value: element i is a function of (seed, name, i) alone; of a piece, i
 * counts in its whole. */
void ll_init_fill(const ll_init *init, const char *name, uint64_t seed, const ll_type *type,
                  const ll_piece *piece, int threads, void *data);

#ifdef __cplusplus
}
#endif
