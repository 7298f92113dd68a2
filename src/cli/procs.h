/* procs.h: the processes that a launcher has started on this machine, as /proc tells of them. */
#pragma once
#include "base/arena.h"

#include <sys/types.h>

/* One of them: has it a handler of SIGUSR1, one that counts stops (base/process.h), has a signal
 * (SIGSTOP) stopped it, does it sleep, and not wait for a core or a disk? */
typedef struct ll_proc {
    pid_t parent;
    bool catches, counts, halted, sleeps;
} ll_proc;
bool ll_proc_see(pid_t pid, ll_proc *out); /* false: it is gone */
/* The rank that its launcher made it, by its environment; -1: not known. */
int ll_proc_rank(pid_t pid);

/* Ranks: processes below the launcher that run this program. */
typedef struct ll_procs {
    ll_arena *arena;
    pid_t *pid;
    int n, room;
} ll_procs;
/* Those below a launcher; or, with a job, the ranks that have this word among theirs, whoever is
 * above them now. */
void ll_procs_find(ll_procs *p, pid_t launcher, const char *job);
/* Sends them a signal, SIGUSR1 only to those that would not die of it; to how many. */
int ll_procs_signal(const ll_procs *p, int number);
/* They were stopped for so long, by a signal that tells them nothing. */
void ll_procs_tell_stop(const ll_procs *p, double seconds);
/* Ends a launcher, and all that it has started here: ranks, ways to other hosts. */
void ll_procs_end(pid_t launcher);
