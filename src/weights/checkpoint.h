/* checkpoint.h: the checkpoints of a run folder: RUN/checkpoints/step-00001200.safetensors, each
 * whole or not there at all. Which is the latest is found by listing the folder, so there is no
 * pointer that can be wrong. */
#pragma once
#include "base/arena.h"
#include "weights/safetensors.h"

#define LL_REPLICA "replica." /* begins names of what one of several has (loose.h) */

typedef struct ll_checkpoint {
    int64_t step;
    ll_st_content x; /* its metadata: seed, data position and the like; "step" is added */
    bool is_first;   /* of a start: once it is written, those that were set aside go */
} ll_checkpoint;

const char *ll_checkpoint_path(ll_arena *a, const char *run, int64_t step);
/* To write one (saver.h has other things in between): begin, which is collective over its comm, and
 * ll_st_finish; what is there then does not depend on the parts, and when the disk is full the
 * earlier ones are as they were. Then prune, which is rank 0's, removes the oldest of those up to
 * its step, so that keep are left; keep 0: all. What c points to, and the arena, stay until the
 * writer is closed. */
ll_err ll_checkpoint_begin(const char *run, const ll_checkpoint *c, ll_arena *a,
                           ll_st_writer **out);
ll_err ll_checkpoint_prune(const char *run, const ll_checkpoint *c, int keep);
/* Moves those of later steps to RUN/checkpoints/replaced, where they stay until a first one is
 * saved: a run that goes on from this step will write its own. *what: them, for people ("3
 * checkpoints (steps 10 to 30)"), or NULL where there are none. */
ll_err ll_checkpoint_set_aside(const char *run, int64_t after, ll_arena *arena, const char **what);

/* Opens one and reads all of it once, to see that it is not damaged. Collective over c, if not
 * NULL. */
ll_err ll_checkpoint_open(ll_comm *c, const char *path, ll_st_file **out);
/* The newest of a run; *out is NULL where there is none. A damaged newest is an error that names
 * the one before it: going back is the user's decision. Collective likewise. */
ll_err ll_checkpoint_open_latest(ll_comm *c, const char *run, ll_st_file **out);
/* The newest one that is not damaged, of a step that is a multiple of every; NULL: there is none.
 * *note: of those that are, for people, in arena; NULL: none is. Collective likewise. */
ll_err ll_checkpoint_open_whole(ll_comm *c, const char *run, int64_t every, ll_arena *arena,
                                const char **note, ll_st_file **out);
/* The newest one's step, by its name; -1: there is none. */
int64_t ll_checkpoint_newest(const char *run);
/* A whole number in the metadata, such as "step". */
ll_err ll_checkpoint_int(const ll_st_file *f, const char *key, int64_t *value);

/* Fills the n tensors' data, or these parts of them (NULL: whole), after checking that the file has
 * each with its type and shape; exact: and that it has no others but residuals (residual.h) and
 * what replicas have each (loose.h). On failure no data was touched, unless reading itself failed.
 */
ll_err ll_checkpoint_load(const ll_st_file *f, const ll_st_tensor *tensors, const ll_st_part *parts,
                          int n, bool exact);
/* That the file has no parameters and statistics but these: it is of the same model. */
ll_err ll_checkpoint_check_model(const ll_st_file *f, const ll_st_tensor *tensors, int n);
