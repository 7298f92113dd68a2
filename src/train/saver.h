/* saver.h: checkpoints that are written beside the steps: the state is copied, a thread of each
 * rank writes its parts, and when all have, rank 0 the checksums, and it gets its name.
 *
 *            save: copied            all ranks' parts are on disk       it has its name
 *     [idle] ------------> [writing] ---------------------------> [sealing] ----------> [idle]
 *                             | some rank's failed                    |
 *                             +----------> [idle], failed <-----------+
 *
 * Ranks move on together: at each step every rank says whether its thread has something to do yet
 * (ll_saver_busy), and when none has, all call ll_saver_move. */
#pragma once
#include "weights/checkpoint.h"
#include "replicas/loose.h"

typedef struct ll_saver ll_saver;

/* beside: by copy and thread; else save returns when all is written. Collective over c, as all here
 * but busy. run: stays. replicas: not NULL: s is one of several', whose averages are made before
 * each save. */
ll_err ll_saver_open(ll_comm *c, const ll_session *s, const ll_loose *replicas, const char *run,
                     bool beside, ll_saver **out);
void ll_saver_close(ll_saver *v); /* what is not done is taken back */
size_t ll_saver_bytes(const ll_saver *v);
/* Begins one, when it is idle; of what: step, meta and is_first, copied. */
ll_err ll_saver_save(ll_saver *v, const ll_checkpoint *what, int keep);
bool ll_saver_busy(const ll_saver *v);
bool ll_saver_idle(const ll_saver *v); /* the same on all ranks */
/* When nobody is busy. A failure is everyone's, and leaves it idle. */
ll_err ll_saver_move(ll_saver *v);
ll_err ll_saver_finish(ll_saver *v);      /* until it is idle */
int64_t ll_saver_step(const ll_saver *v); /* of the last that was written; -1: none */
