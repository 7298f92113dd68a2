/* residual.h: what codecs have not sent yet is training state. A checkpoint has it as
 * PARAM.residual, [ranks, PARAM's dimensions]: of each rank that takes part in the sum its own. */
#pragma once
#include "exec/session.h"
#include "weights/safetensors.h"

#define LL_RESIDUAL_SUFFIX ".residual"
/* Is it the name of a residual? */
bool ll_is_residual(const char *name);

/* A session's residuals as tensors of a file. */
ll_st_list ll_residual_tensors(const ll_session *s, ll_arena *arena);
size_t ll_residual_bytes(const ll_session *s); /* of this rank's */
/* Restores them, those that the file does not have as zeros. Saved by another number of ranks, the
 * sum of all is divided among these: what is still to be added to the parameters stays the same.
 * *note: what a person should know of it, or NULL. */
ll_err ll_residual_load(const ll_session *s, const ll_st_file *f, ll_arena *arena,
                        const char **note);
