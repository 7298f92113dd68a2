/* session.h: what the rest of Loopline may see of a session (the public part is loopline.h). */
#pragma once
#include "exec/exec.h"
#include "exec/place_gpu.h"
#include "pass/partition.h"

#ifdef __cplusplus
extern "C" {
#endif

const ll_program *ll_session_program(const ll_session *s);
/* NULL where this process is alone. */
ll_team *ll_session_team(const ll_session *s);
const ll_placement *ll_session_placement(const ll_session *s);
ll_exec *ll_session_exec(const ll_session *s);
uint64_t ll_session_step(const ll_session *s); /* steps done */
void ll_session_set_step(ll_session *s, uint64_t step);
/* Whose GPU is which, and how they talk; NULL: not on GPUs. */
const ll_gpu_seats *ll_session_seats(const ll_session *s);
/* f is called in each step while a GPU works on it, to set the next one's batch: what is set then
 * is uploaded beside the step. False: this machine's steps do not work so, and f is never called.
 */
bool ll_session_meanwhile(ll_session *s, ll_err (*f)(void *context), void *context);
/* Which of the first dimension of an input this rank holds: of batch data, which samples. */
void ll_session_rows(const ll_session *s, const char *input, int64_t *first, int64_t *count);
/* Parameters and state: how many; the i-th one's slot. */
int ll_session_kept(const ll_session *s);
int ll_session_kept_slot(const ll_session *s, int i);

#ifdef __cplusplus
}
#endif
