/* session.h: what the rest of Loopline may see of a session (the public part is loopline.h). */
#pragma once
#include "exec/exec.h"
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
const ll_machine *ll_session_machine(const ll_session *s);
/* Which device is whose, and how they talk; NULL: the machine has none. */
const ll_devices *ll_session_devices(const ll_session *s);
/* ll_session_run in two parts. Between them the next step's batch may be set: where steps run on a
 * device it is uploaded beside this one. */
ll_err ll_session_start(ll_session *s, double lr);
ll_err ll_session_finish(ll_session *s);
/* Which of the first dimension of an input this rank holds: of batch data, which samples. */
void ll_session_rows(const ll_session *s, const char *input, int64_t *first, int64_t *count);
/* Parameters and state: how many; the i-th one's slot. */
int ll_session_kept(const ll_session *s);
int ll_session_kept_slot(const ll_session *s, int i);

#ifdef __cplusplus
}
#endif
