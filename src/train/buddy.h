/* buddy.h: the state of a run in memory that outlives its processes, so that a job which is started
 * again (recovery.h) loses no step and reads no disk.
 *
 * Every so many steps the ranks of a node write what they have of the state, each tensor's part
 * once, to a file in /dev/shm that lies as a checkpoint would; and each sends what the next node
 * has not to a buddy there, which adds it to that node's file. So the loss of processes, and of any
 * one node of several, leaves the whole state, for any other mesh.
 *
 *     node 0: ranks 0, 1      loopline-JOB-START-0-{0,1}: parts of ranks 0, 1 and, sent, of 2, 3
 *     node 1: ranks 2, 3      loopline-JOB-START-1-{0,1}: parts of ranks 2, 3 and, sent, of 0, 1
 *
 * 1. Two files take turns: while one is written, the other is whole. Ranks come to the next copy
 *    only when all have made the last.
 * 2. A table of seals beside them has, for each rank that writes there, the step it has written and
 *    the remainder of its bytes (crc32c.h), set last: a file is whole where all seals say the same
 *    step, and the remainder of all its bytes is theirs together (what nobody has written is zero).
 * 3. Files are this user's alone, named by a random number, and go when the run ends, when the
 *    supervisor does (unless the disk has no state as new), or when a later start has made its own.
 */
#pragma once
#include "replicas/loose.h"
#include "train/recovery.h"
#include "weights/state.h"

typedef struct ll_buddy ll_buddy;

/* Collective over c (NULL: alone). replicas: s is one of them; NULL: it is all there is. meta: what
 * a checkpoint of the run says of it. */
ll_err ll_buddy_new(ll_comm *c, const ll_start *start, const ll_session *s,
                    const ll_loose *replicas, const ll_st_pair *meta, int n_meta, ll_buddy **out);
void ll_buddy_free(ll_buddy *b);
LL_OWNED(ll_buddy, ll_buddy_free);
/* Collective. The state after this step. Between two calls all ranks meet in some collective. norm:
 * as the checkpoint's metadata have it. */
ll_err ll_buddy_copy(ll_buddy *b, int64_t step, const char *norm);
size_t ll_buddy_bytes(const ll_buddy *b);     /* of this node's files, both */
const char *ll_buddy_text(const ll_buddy *b); /* what it protects from, for people */

/* The newest whole state of this job's earlier starts; NULL: there is none. Collective over c. */
ll_err ll_buddy_open(ll_comm *c, const char *job, ll_st_file **out);
/* Local. Removes what a job has on this host. */
void ll_buddy_sweep(const char *job);
