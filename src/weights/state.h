/* state.h: what a session keeps from step to step, as tensors of a checkpoint. */
#pragma once
#include "exec/session.h"
#include "weights/safetensors.h"

/* Is it a cache of a generation (LL_CACHE), which files have not? */
bool ll_is_cache(const char *name);
bool ll_is_moment(const ll_graph *g, const char *name); /* an optimizer's, PARAMETER.MOMENT */
/* Parameters of a file of ours, without the optimizer's state, or their averages where it has any;
 * *step: the file's. */
ll_err ll_session_take(ll_session *s, const ll_st_file *f, int64_t *step);
/* Parameters and state, but caches and a teacher's (teacher.h), pointing into the session's
 * memory; in arena. */
ll_st_list ll_session_tensors(const ll_session *s, ll_arena *arena);
/* The same with residuals (residual.h): all that a checkpoint holds. */
ll_st_list ll_session_all_tensors(const ll_session *s, ll_arena *arena);
/* Do ranks that hold the same parameters and state have the same bits? An error names rank and
 * tensor. Collective over c. */
ll_err ll_copies_check(ll_comm *c, const ll_session *s, int64_t step);
/* These tensors were written to: on a GPU they go there now. */
ll_err ll_session_loaded(const ll_session *s);
/* Parameters and their averages (ll_optim.ema) change places; nothing where there are none. */
#define LL_EMA ".ema"
ll_err ll_session_swap_averages(ll_session *s);
int64_t ll_session_parameters(const ll_session *s); /* how many numbers are trained */
